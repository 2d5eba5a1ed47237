//! Weights of keys made from values (Doge): a bias on the scores, which also says which keys are kept.

use super::Linear;
use super::hf;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{AttentionSpec, LinearSpec};
use tensor::{DType, Result, Tensor};

/// What stands in for minus infinity, so that a row of masked scores stays finite.
const LOW: f64 = -1e30;

/// The map from values to weights of keys.
#[derive(Clone, Debug)]
pub struct KeyWeights {
    keep: u64,
    map: Linear,
    /// `k`
    rate: Tensor,
}

impl KeyWeights {
    /// The map, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &AttentionSpec, keep: u64) -> Result<Self> {
        let (k, width) = (spec.kv_heads, spec.kv_heads * spec.value_dim);
        let map = LinearSpec::new("dt_proj", spec.out.bias);
        Ok(Self {
            keep,
            map: Linear::new(b, &map, width, k, Init::FanIn(width))?,
            rate: b.param("A", &[k], ParamKind::Vector, Init::Zeros)?,
        })
    }

    /// Added to the scores: masked where a key is later than the query, or not among the `keep` of most weight.
    ///
    /// # Shapes
    /// values `b k s d` -> `b k s s`
    pub fn bias(&self, f: &Forward, spec: &AttentionSpec, v: &Tensor) -> Result<Tensor> {
        let (b, k, s) = (v.size(0), v.size(1), v.size(2));
        let flat = v.transpose(1, 2)?.reshape(&[b, s, k * spec.value_dim])?;
        let weights = f.weight(&self.rate)?.mul(&self.map.forward(f, &flat)?.softplus()?)?.exp()?; // b s k
        let rt = &f.runtime;
        let later = rt.no_grad(|| hf::allowed_pairs(f, spec)?.logical_not())?;
        let bias = weights.transpose(1, 2)?.unsqueeze(2)?.expand(&[b, k, s, s])?.masked_fill(&later, LOW)?;
        if s <= self.keep {
            return Ok(bias);
        }
        let dropped = rt.no_grad(|| -> Result<Tensor> {
            let kept = bias.detach().topk(self.keep, -1)?.1;
            let one = rt.ones(&[], DType::F32)?.expand(kept.shape())?;
            let active = rt.zeros(&[b, k, s, s], DType::F32)?.scatter(-1, &kept, &one)?;
            active.to_dtype(DType::Bool)?.logical_not()
        })?;
        bias.masked_fill(&dropped, LOW)
    }
}
