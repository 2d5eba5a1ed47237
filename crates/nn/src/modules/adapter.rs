//! A low-rank adapter beside a linear map.

use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::Lora;
use tensor::{DType, Result, Tensor};

/// `(alpha / rank) (dropout(x) Aᵀ) Bᵀ`, and the magnitudes of what the map and it make together.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// `rank in`
    a: Tensor,
    /// `out rank`
    b: Tensor,
    /// `out`
    magnitudes: Option<Tensor>,
    scale: f64,
    dropout: f64,
}

/// The map that an adapter stands beside.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// `out in`, or the other way round.
    pub weight: &'a Tensor,
    /// Whether it lies the other way round.
    pub transposed: bool,
    /// `out`
    pub bias: Option<&'a Tensor>,
}

/// The magnitudes of a map are those of rows that can be read.
const NO_ROWS: tensor::Error = tensor::Error::Backward("magnitudes of a weight that is packed");

impl Base<'_> {
    /// `out in`
    fn rows(&self, dtype: DType) -> Result<Tensor> {
        if self.transposed { self.weight.t()?.to_dtype(dtype) } else { self.weight.to_dtype(dtype) }
    }
}

impl Adapter {
    /// Of the linear map of the current module, from `input` to `output` features. It begins as zero, and magnitudes as those
    /// of the rows of the map.
    ///
    /// # Errors
    /// If a weight is too large to count, or has no rows to take magnitudes of.
    pub fn new(b: &Builder<'_>, lora: &Lora, [input, output]: [u64; 2], base: Option<&Base<'_>>) -> Result<Self> {
        let make = |name, shape: &[u64], init| {
            let _scope = b.runtime().scope(name);
            b.adapter("weight", shape, ParamKind::Adapter, init)
        };
        let magnitudes = || {
            let base = base.ok_or(NO_ROWS)?;
            let _scope = b.runtime().scope("lora_magnitude_vector");
            b.adapter_with("weight", &[output], || {
                b.runtime().no_grad(|| base.rows(DType::F32)?.sum_squares(&[-1], false)?.sqrt()?.to_vec())
            })
        };
        Ok(Self {
            a: make("lora_A", &[lora.rank, input], Init::FanIn(input))?,
            b: make("lora_B", &[output, lora.rank], Init::Zeros)?,
            magnitudes: lora.magnitudes.then(magnitudes).transpose()?,
            scale: lora.alpha / lora.rank as f64,
            dropout: lora.dropout,
        })
    }

    /// `out` of the map `base`, with what the adapter adds: `rows.. out`.
    ///
    /// The `hf` profiles follow PEFT (0.17): the input in the dtype of the adapter, each step a small op, the sum in the
    /// dtype the map had.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, x: &Tensor, out: &Tensor, base: Option<&Base<'_>>) -> Result<Tensor> {
        let hf = f.profile.is_hf();
        let mut x = if hf { x.to_dtype(self.a.dtype())? } else { x.clone() };
        let drops = f.training && self.dropout > 0.0;
        if drops {
            x = if hf { x.dropout_composed(self.dropout)? } else { x.dropout(self.dropout)? };
        }
        if let Some(magnitudes) = &self.magnitudes {
            let base = base.ok_or(NO_ROWS)?;
            if hf {
                let added = self.directed_hf(f, &x, drops, out, (base, magnitudes))?;
                return out.add(&added)?.to_dtype(out.dtype());
            }
            return self.directed(f, &x, out, (base, magnitudes));
        }
        let low = step(f, "lora_A", &x, &self.a)?; // rows.. rank
        if hf {
            let added = step(f, "lora_B", &low, &self.b)?.mul_scalar(self.scale)?; // rows.. out
            return out.add(&added)?.to_dtype(out.dtype());
        }
        out.add(&step(f, "lora_B", &low.mul_scalar(self.scale)?, &self.b)?)
    }

    /// What the map and the adapter make together, its rows brought to their magnitudes. Norms of rows count as constants
    /// (section 4.3 of the source).
    fn directed(&self, f: &Forward, x: &Tensor, out: &Tensor, (base, m): (&Base<'_>, &Tensor)) -> Result<Tensor> {
        let rt = &f.runtime;
        let norms = rt.no_grad(|| {
            let rows = f.weight(base.weight)?;
            let rows = if base.transposed { rows.t()? } else { rows };
            let added = f.weight(&self.b)?.matmul(&f.weight(&self.a)?)?.mul_scalar(self.scale)?; // out in
            rows.add(&added)?.sum_squares(&[-1], false)?.sqrt()
        })?;
        let factor = m.div(&norms.to_dtype(m.dtype())?)?.to_dtype(f.activation_dtype(out))?; // out
        let low = step(f, "lora_A", x, &self.a)?.mul_scalar(self.scale)?;
        let added = step(f, "lora_B", &low, &self.b)?;
        let bias = base.bias.map(|bias| f.weight(bias)).transpose()?;
        let Some(bias) = bias else { return out.add(&added)?.mul(&factor) };
        out.sub(&bias)?.add(&added)?.mul(&factor)?.add(&bias)
    }

    /// What PEFT adds to the output of the map: it makes the product of the adapter out of the unit matrix, and runs the map
    /// again where inputs are dropped.
    fn directed_hf(
        &self,
        f: &Forward,
        x: &Tensor,
        dropped: bool,
        out: &Tensor,
        (base, magnitudes): (&Base<'_>, &Tensor),
    ) -> Result<Tensor> {
        let rt = &f.runtime;
        let (input, dtype) = (self.a.size(1), x.dtype());
        let (rows, norms) = rt.no_grad(|| {
            let unit = || (0..input * input).map(|at| f64::from(u8::from(at / input == at % input))).collect();
            let unit = rt.tensor_with(&[input, input], self.a.dtype(), unit)?;
            let added = step(f, "lora_B", &step(f, "lora_A", &unit, &self.a)?, &self.b)?.t()?; // out in
            drop(unit);
            let rows = base.rows(dtype)?;
            let directed = rows.add(&added.to_dtype(dtype)?.mul_scalar(self.scale)?)?;
            Ok::<_, tensor::Error>((rows, directed.sum_squares(&[-1], false)?.sqrt()?.to_dtype(dtype)?))
        })?;
        let factor = magnitudes.div(&norms)?; // out
        let added = step(f, "lora_B", &step(f, "lora_A", x, &self.a)?, &self.b)?;
        let alone = match base.bias {
            _ if dropped => x.linear(&rows, None)?,
            Some(bias) => out.sub(bias)?,
            None => out.clone(),
        };
        drop(rows);
        let turned = factor.add_scalar(-1.0)?.mul(&alone)?;
        turned.add(&factor.mul(&added)?.mul_scalar(self.scale)?)
    }
}

/// One map of an adapter.
fn step(f: &Forward, name: &'static str, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let _scope = f.runtime.scope(name);
    x.linear(&f.weight(weight)?, None)
}
