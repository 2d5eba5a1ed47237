//! A linear map with its weight and bias.

use super::{Adapter, Packed};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::LinearSpec;
use tensor::{DType, Result, Tensor};

/// `x Wᵀ + b`, and what an adapter adds to it.
#[derive(Clone, Debug)]
pub struct Linear {
    name: &'static str,
    weight: Weight,
    adapter: Option<Box<Adapter>>,
    bias: Option<Tensor>,
    transposed: bool,
    loose: bool,
}

#[derive(Clone, Debug)]
enum Weight {
    Whole(Tensor),
    Packed(Box<Packed>),
}

impl Linear {
    /// A map from `input` to `output` features in the module `spec.name`.
    ///
    /// # Errors
    /// If the weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &LinearSpec, input: u64, output: u64, init: Init) -> Result<Self> {
        let _scope = b.runtime().scope(spec.name);
        let tuning = b.tuning();
        let weight = match tuning.packed {
            Some(format) if !b.trains("weight") => {
                Weight::Packed(Box::new(Packed::new(b, format, [output, input], init)?))
            }
            _ => {
                let shape = if spec.transposed { [input, output] } else { [output, input] };
                Weight::Whole(b.param("weight", &shape, ParamKind::Matrix, init)?)
            }
        };
        let bias = spec.bias.then(|| b.param("bias", &[output], ParamKind::Vector, Init::Zeros)).transpose()?;
        let adapter = tuning.adapter(&b.runtime().module_path());
        let adapter = adapter.map(|lora| Adapter::new(b, lora, input, output).map(Box::new)).transpose()?;
        Ok(Self { name: spec.name, weight, adapter, bias, transposed: spec.transposed, loose: spec.loose })
    }

    /// dtype of the weight; none of one that is packed.
    pub fn dtype(&self) -> Option<DType> {
        match &self.weight {
            Weight::Whole(weight) => Some(weight.dtype()),
            Weight::Packed(_) => None,
        }
    }

    /// `rows.. in -> rows.. out`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.name);
        let out = match &self.weight {
            Weight::Whole(weight) => self.whole(f, x, weight)?,
            Weight::Packed(packed) => {
                let out = packed.forward(f, x)?;
                match &self.bias {
                    Some(bias) => out.add(&bias.to_dtype(out.dtype())?)?,
                    None => out,
                }
            }
        };
        match &self.adapter {
            Some(adapter) => adapter.forward(f, x, &out),
            None => Ok(out),
        }
    }

    /// The map itself, with a weight that is stored as it is used.
    fn whole(&self, f: &Forward, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        if let Some(casts) = &f.fp8
            && let Some(out) = casts.linear(f, x, weight, self.bias.as_ref(), self.transposed)?
        {
            return Ok(out);
        }
        let weight = f.weight(weight)?;
        let bias = self.bias.as_ref().map(|b| f.weight(b)).transpose()?;
        if self.loose && f.profile.is_hf() {
            // Autocast keeps copies of parameters only, and this is a view of one.
            let out = x.linear_transposed(&weight.t()?, None)?;
            return match &self.bias {
                Some(bias) => out.add(bias),
                None => Ok(out),
            };
        }
        if self.transposed { x.linear_transposed(&weight, bias.as_ref()) } else { x.linear(&weight, bias.as_ref()) }
    }
}
