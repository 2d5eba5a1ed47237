//! The indexer of DeepSeek sparse attention: small heads score the keys of every query, of which the best are kept.
//!
//! It runs without gradients. transformers masks the keys that were not chosen and computes their scores all the same, so
//! what is counted for attention does not depend on the choice; up to `top_k` tokens every key is chosen.

use super::{Linear, Norm, hf, rotary};
use crate::context::Forward;
use crate::param::{Builder, Init};
use crate::spec::{IndexerSpec, LatentSpec, LinearSpec, NormKind, NormSpec, RotarySpec};
use tensor::ops::attention::pairs;
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor};

/// The maps of an indexer.
#[derive(Clone, Debug)]
pub struct Indexer {
    spec: IndexerSpec,
    rope_dim: u64,
    queries: Linear,
    keys: Linear,
    key_norm: Norm,
    weights: Linear,
}

impl Indexer {
    /// An indexer on a residual stream of width `h` and compressed queries of width `q_rank`.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &IndexerSpec, latent: &LatentSpec, q_rank: u64, h: u64) -> Result<Self> {
        let _scope = b.runtime().scope("indexer");
        let map =
            |name, input, output| Linear::new(b, &LinearSpec::new(name, false), input, output, Init::FanIn(input));
        let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-6 };
        Ok(Self {
            queries: map("wq_b", q_rank, spec.heads * spec.head_dim)?,
            keys: map("wk", h, spec.head_dim)?,
            key_norm: Norm::new(b, "k_norm", &norm, &[spec.head_dim])?,
            weights: map("weights_proj", h, spec.heads)?,
            rope_dim: latent.rope_dim,
            spec: spec.clone(),
        })
    }

    /// The keys each query attends to.
    ///
    /// # Shapes
    /// stream `b s h`, compressed queries `b s rank` -> `b s top_k` (i64)
    pub fn choose(&self, f: &Forward, turned: Option<&RotarySpec>, x: &Tensor, compressed: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope("indexer");
        f.runtime.no_grad(|| {
            let (b, s, a, d) = (x.size(0), x.size(1), self.spec.heads, self.spec.head_dim);
            let q = self.queries.forward(f, compressed)?.view(&[b, s, a, d])?.transpose(1, 2)?; // b a s d
            let k = self.key_norm.forward(f, &self.keys.forward(f, x)?)?.unsqueeze(1)?; // b 1 s d
            let (q, k) = match turned {
                Some(turned) => self.turn(f, turned, &q, &k, f.activation_dtype(x))?,
                None => (q, k),
            };
            // The model needs the scores of earlier keys alone.
            let causal = Mask { pairs: pairs(s, s, true, None), square: s * s };
            let q = q.transpose(1, 2)?.to_dtype(DType::F32)?; // b s a d
            let k = k.transpose(2, 3)?.to_dtype(DType::F32)?; // b 1 d s
            let scores = hf::matmul(f, &q, &k.expand(&[b, s, d, s])?, causal)?.mul_scalar(1.0 / (d as f64).sqrt())?;
            let scores = scores.relu()?; // b s a s
            let weights = self.weights.forward(f, x)?.to_dtype(DType::F32)?.mul_scalar(1.0 / (a as f64).sqrt())?;
            let summed = hf::matmul(f, &weights.unsqueeze(-2)?, &scores, causal)?.squeeze(-2)?; // b s s
            let later = f.runtime.ones(&[s, s], DType::Bool)?.tril(0)?.logical_not()?;
            Ok(summed.masked_fill(&later, f64::NEG_INFINITY)?.topk(self.spec.top_k.min(s), -1)?.1)
        })
    }

    /// The first channels of queries and keys turned.
    fn turn(&self, f: &Forward, spec: &RotarySpec, q: &Tensor, k: &Tensor, dtype: DType) -> Result<(Tensor, Tensor)> {
        let parts = [self.rope_dim, self.spec.head_dim - self.rope_dim];
        let (q, k) = (q.split(&parts, -1)?, k.split(&parts, -1)?);
        let (q_rot, k_rot) = rotary::rotate(f, spec, q[0].clone(), k[0].clone(), dtype)?;
        Ok((Tensor::cat(&[&q_rot, &q[1]], -1)?, Tensor::cat(&[&k_rot, &k[1]], -1)?))
    }
}
