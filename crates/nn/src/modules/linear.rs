//! A linear map with its weight and bias.

use super::Packed;
use super::adapter::{Adapter, Base};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::ranks::Share;
use crate::spec::LinearSpec;
use std::rc::Rc;
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
    /// Whether ranks that share it divide it by its inputs: each has a part of the sum.
    summed: bool,
    branch: Option<Rc<Branch>>,
}

/// Two maps of low rank beside a shared one, at one of the places where it is used.
#[derive(Clone, Debug)]
pub struct Branch {
    list: &'static str,
    place: u64,
    down: Linear,
    up: Linear,
}

impl Branch {
    /// Maps between the widths `[from, rank, to]`, the `place`-th of the list `list` in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, list: &'static str, place: u64, [from, rank, to]: [u64; 3]) -> Result<Self> {
        let _list = b.runtime().scope(list);
        let _place = b.runtime().scope(place.to_string());
        let down = Linear::new(b, &LinearSpec::new("0", false), from, rank, Init::FanIn(from))?;
        let up = Linear::new(b, &LinearSpec::new("1", false), rank, to, Init::FanIn(rank))?;
        Ok(Self { list, place, down, up })
    }

    fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _list = f.runtime.scope(self.list);
        let _place = f.runtime.scope(self.place.to_string());
        self.up.forward(f, &self.down.forward(f, x)?)
    }
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
        Self::build(b, spec, [input, output], init, false)
    }

    /// A map of which each rank makes another part of the outputs: `output` are its own.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub fn columns(b: &Builder<'_>, spec: &LinearSpec, input: u64, output: u64, init: Init) -> Result<Self> {
        b.sharing(Share::Part, || Self::build(b, spec, [input, output], init, false))
    }

    /// A map of which each rank reads another part of the inputs: `input` are its own. The outputs leave as the sum over the
    /// ranks.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub fn rows(b: &Builder<'_>, spec: &LinearSpec, input: u64, output: u64, init: Init) -> Result<Self> {
        b.sharing(Share::Part, || Self::build(b, spec, [input, output], init, true))
    }

    fn build(b: &Builder<'_>, spec: &LinearSpec, [input, output]: [u64; 2], init: Init, summed: bool) -> Result<Self> {
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
        let bias = || b.param("bias", &[output], ParamKind::Vector, Init::Zeros);
        // Of a sum over the ranks, the bias is added to the whole.
        let bias = spec.bias.then(|| if summed { b.sharing(Share::Whole, bias) } else { bias() }).transpose()?;
        let adapter = b.adapter_here();
        let whole = match &weight {
            Weight::Whole(weight) => Some(Base { weight, transposed: spec.transposed, bias: bias.as_ref() }),
            Weight::Packed(_) => None,
        };
        let adapter = adapter.map(|lora| Adapter::new(b, lora, [input, output], whole.as_ref()).map(Box::new));
        let adapter = adapter.transpose()?;
        Ok(Self {
            name: spec.name,
            weight,
            adapter,
            bias,
            transposed: spec.transposed,
            loose: spec.loose,
            summed,
            branch: None,
        })
    }

    /// dtype of the weight; none of one that is packed.
    pub fn dtype(&self) -> Option<DType> {
        match &self.weight {
            Weight::Whole(weight) => Some(weight.dtype()),
            Weight::Packed(_) => None,
        }
    }

    /// The same map with a branch beside it.
    #[must_use]
    pub fn with_branch(&self, branch: Rc<Branch>) -> Self {
        Self { branch: Some(branch), ..self.clone() }
    }

    /// `rows.. in -> rows.. out`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let out = self.alone(f, x)?;
        match &self.branch {
            Some(branch) => out.add(&branch.forward(f, x)?),
            None => Ok(out),
        }
    }

    fn alone(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
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
        match self.adapter.as_ref().filter(|_| f.adapters) {
            Some(adapter) => adapter.forward(f, x, &out, self.base().as_ref()),
            None => Ok(out),
        }
    }

    /// The map without its adapter, if its weight is stored as it is used.
    fn base(&self) -> Option<Base<'_>> {
        match &self.weight {
            Weight::Whole(weight) => Some(Base { weight, transposed: self.transposed, bias: self.bias.as_ref() }),
            Weight::Packed(_) => None,
        }
    }

    /// The map itself, with a weight that is stored as it is used.
    fn whole(&self, f: &Forward, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        if self.summed && f.ranks.tp > 1 {
            let out = f.leave(self.product(f, x, weight, None)?)?;
            return match &self.bias {
                Some(bias) => out.add(&f.weight(bias)?.to_dtype(out.dtype())?),
                None => Ok(out),
            };
        }
        self.product(f, x, weight, self.bias.as_ref())
    }

    fn product(&self, f: &Forward, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if let Some(casts) = &f.fp8
            && let Some(out) = casts.linear(f, x, weight, bias, self.transposed)?
        {
            return Ok(out);
        }
        let weight = f.weight(weight)?;
        let bias = bias.map(|b| f.weight(b)).transpose()?;
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
