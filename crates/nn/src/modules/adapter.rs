//! A low-rank adapter beside a linear map.

use crate::context::Forward;
use crate::param::{Builder, Init};
use crate::spec::Lora;
use tensor::{Result, Tensor};

/// `(alpha / rank) (dropout(x) Aᵀ) Bᵀ`.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// `rank in`
    a: Tensor,
    /// `out rank`
    b: Tensor,
    scale: f64,
    dropout: f64,
}

impl Adapter {
    /// Of the linear map of the current module, from `input` to `output` features. It begins as zero.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, lora: &Lora, input: u64, output: u64) -> Result<Self> {
        let make = |name, shape: &[u64], init| {
            let _scope = b.runtime().scope(name);
            b.adapter("weight", shape, init)
        };
        Ok(Self {
            a: make("lora_A", &[lora.rank, input], Init::FanIn(input))?,
            b: make("lora_B", &[output, lora.rank], Init::Zeros)?,
            scale: lora.alpha / lora.rank as f64,
            dropout: lora.dropout,
        })
    }

    /// `out` of the map, with what the adapter adds: `rows.. out`.
    ///
    /// The `hf` profiles follow PEFT (0.17): the input in the dtype of the adapter, each step a small op, the sum in the
    /// dtype the map had.
    pub fn forward(&self, f: &Forward, x: &Tensor, out: &Tensor) -> Result<Tensor> {
        let hf = f.profile.is_hf();
        let mut x = if hf { x.to_dtype(self.a.dtype())? } else { x.clone() };
        if f.training && self.dropout > 0.0 {
            x = if hf { x.dropout_composed(self.dropout)? } else { x.dropout(self.dropout)? };
        }
        let step = |name, x: &Tensor, weight: &Tensor| {
            let _scope = f.runtime.scope(name);
            x.linear(&f.weight(weight)?, None)
        };
        let low = step("lora_A", &x, &self.a)?; // rows.. rank
        if hf {
            let added = step("lora_B", &low, &self.b)?.mul_scalar(self.scale)?; // rows.. out
            return out.add(&added)?.to_dtype(out.dtype());
        }
        out.add(&step("lora_B", &low.mul_scalar(self.scale)?, &self.b)?)
    }
}
