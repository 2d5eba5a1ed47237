//! Scores, softmax and weighted values, fused or explicit.

use super::Attention;
use crate::context::{Forward, Profile, Recompute};
use crate::modules::steps::{self, Heads, Setting};
use crate::modules::{KeyWeights, hf, relative};
use crate::spec::AttentionSteps;
use tensor::ops::attention::{Attention as Core, pairs};
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor, checkpoint};

impl Attention {
    /// Scores, softmax, weighted values.
    ///
    /// # Shapes
    /// `b a s d`, `b k s d`, `b k s dv` -> `b s (a dv)`, and `b a s s` from explicit attention
    pub(super) fn core(
        &self,
        f: &Forward,
        heads: Heads,
        input: DType,
        held: &mut Vec<Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        if f.recompute != Recompute::Selective {
            return self.run_core(f, heads, input, held);
        }
        let (q, k, v) = heads;
        let (this, forward) = (self.clone(), f.held(Some(&self.spec)));
        let region = move |t: &[Tensor]| {
            let heads = (t[0].clone(), t[1].clone(), t[2].clone());
            let (out, _) = this.run_core(&forward, heads, input, &mut Vec::new())?;
            Ok(std::iter::once(out).collect())
        };
        Ok((checkpoint(&[&q, &k, &v], region)?.remove(0), None))
    }

    fn run_core(
        &self,
        f: &Forward,
        heads: Heads,
        input: DType,
        held: &mut Vec<Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (b, a, s) = (heads.0.size(0), heads.0.size(1), heads.0.size(2));
        let pairs = self.pairs(f, &heads);
        if let Some(keys) = &self.keys {
            let (out, weights) = self.weighted(f, heads, keys)?;
            let merged = out.transpose(1, 2)?.reshape(&[b, s, a * self.spec.value_dim])?;
            return Ok((merged, Some(weights)));
        }
        let set = Setting { f, spec: &self.spec, pairs, input };
        let (out, weights) = match f.profile {
            // A fused kernel hands no gradient to a bias.
            Profile::Fused if self.spec.has_trained_bias() => (self.core_eager(f, heads.0, heads.1, heads.2)?.0, None),
            Profile::Fused => (self.core_fused(f, &heads.0, &heads.1, &heads.2)?, None),
            Profile::HfSdpa => (self.core_sdpa(&set, heads)?, None),
            Profile::HfEager => {
                let (out, weights) = self.explicit(&set, heads, held)?;
                (out, Some(weights))
            }
        };
        // b a s dv, laid out as b s a dv: the merge is a view wherever the kernel wrote it so.
        let merged = out.transpose(1, 2)?.reshape(&[b, s, a * self.spec.value_dim])?;
        Ok((merged, weights))
    }

    fn options(&self, f: &Forward, causal: bool) -> Core {
        // The window of attention in both directions is in its mask.
        let window = self.spec.window.filter(|_| causal);
        Core { causal, window, softcap: self.spec.softcap, ..Core::full(self.core_scale(f)) }
    }

    /// Pairs of a head that the mask leaves, of those that explicit attention computes.
    fn pairs(&self, f: &Forward, heads: &Heads) -> Mask {
        let (sq, sk) = match f.cache {
            Some(_) if !self.crosses && !self.spec.has_trained_bias() => (f.seq_len, f.seq_len),
            _ => (heads.0.size(2), heads.1.size(2)),
        };
        let pairs = match self.spec.window {
            Some(window) if !self.spec.causal => band(sq, window / 2),
            window => pairs(sq, sk, self.spec.causal, window),
        };
        Mask { pairs, square: sq.saturating_mul(sk) }
    }

    fn core_fused(&self, f: &Forward, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let mut bias = self.spec.alibi.then(|| self.alibi(f, q.dtype())).transpose()?;
        if !self.spec.causal && self.spec.window.is_some() {
            bias = Some(hf::additive_mask(f, &self.spec, q.dtype())?);
        }
        if let Some(group) = f.ranks.around() {
            return q.ring_attention(k, v, group, self.options(f, self.spec.causal));
        }
        let sinks = self.sinks.as_ref().map(|s| f.weight(s)).transpose()?;
        q.attention(k, v, bias.as_ref(), sinks.as_ref(), self.options(f, self.spec.causal))
    }

    fn core_sdpa(&self, set: &Setting<'_>, heads: Heads) -> Result<Tensor> {
        let f = set.f;
        let falcon = matches!(self.spec.steps, AttentionSteps::Falcon { .. });
        let dropout = if self.drops(f) && (!falcon || self.spec.alibi) { self.spec.dropout } else { 0.0 };
        let groups = heads.0.size(1) / heads.1.size(1);
        // PyTorch's CPU kernel wants one head size and no dropout, and falls back to small ops otherwise.
        let unfused = self.spec.head_dim != self.spec.value_dim || dropout > 0.0;
        if self.spec.has_trained_bias() {
            let bias = relative::mask(f, &self.spec, self.relative.as_ref(), heads.0.dtype())?;
            return steps::unfused(set, heads, Some(&bias), dropout);
        }
        if falcon {
            let mask = steps::falcon_bias(set, heads.0.dtype())?;
            if unfused {
                return steps::unfused(set, heads, Some(&mask), dropout);
            }
            let (q, k, v) = heads;
            return q.attention(&k, &v, Some(&mask), None, self.options(f, true));
        }
        if unfused {
            if !hf::needs_mask(f, &self.spec) {
                return steps::unfused(set, heads, None, dropout);
            }
            let (q, k, v) = heads;
            let low = f.runtime.autocast_setting().map_or(q.dtype(), |(low, _)| low);
            let mask = hf::fused_mask(f, &self.spec, low)?;
            let heads = (q, hf::repeat_kv(&k, groups)?, hf::repeat_kv(&v, groups)?);
            return steps::unfused(set, heads, Some(&mask), dropout);
        }
        let (q, k, v) = heads;
        if self.spec.relative.is_some() {
            let zeros = relative::zeros(f, q.size(1), [q.size(2), k.size(2)], q.dtype())?;
            return q.attention(&k, &v, Some(&zeros), None, self.options(f, self.spec.causal));
        }
        if !hf::needs_mask(f, &self.spec) && !self.spec.alibi {
            // Grouped heads go to the kernel as they are up to the head size that GPU kernels take.
            let groups = if self.spec.head_dim <= 256 { 1 } else { groups };
            let (k, v) = (hf::repeat_kv(&k, groups)?, hf::repeat_kv(&v, groups)?);
            let plain = Core { window: None, ..self.options(f, self.spec.causal) };
            return q.attention(&k, &v, None, None, plain);
        }
        let (k, v) = (hf::repeat_kv(&k, groups)?, hf::repeat_kv(&v, groups)?);
        let mask = if self.spec.alibi {
            hf::additive_mask(f, &self.spec, q.dtype())?
        } else {
            // Autocast has lowered the queries by the time PyTorch turns the boolean mask into theirs.
            let low = f.runtime.autocast_setting().map_or(q.dtype(), |(low, _)| low);
            hf::fused_mask(f, &self.spec, low)?
        };
        q.attention(&k, &v, Some(&mask), None, self.options(f, self.spec.causal))
    }

    /// Explicit attention in the steps of the family.
    fn explicit(&self, set: &Setting<'_>, heads: Heads, held: &mut Vec<Tensor>) -> Result<(Tensor, Tensor)> {
        match self.spec.steps {
            AttentionSteps::Bloom => steps::bloom(set, heads, held),
            AttentionSteps::Falcon { .. } => steps::falcon_eager(set, heads, held),
            AttentionSteps::Mpt { positions } => {
                let (out, weights) = steps::mpt(set, heads, positions, held)?;
                Ok((merged_by_copy(&out)?, weights))
            }
            AttentionSteps::GptNeo { .. } => {
                let mask = self.mask.as_ref().ok_or(tensor::Error::Backward("attention without its mask"))?;
                let (out, weights) = steps::gpt_neo(set, heads, mask)?;
                Ok((merged_by_copy(&out)?, weights))
            }
            _ => self.core_eager(set.f, heads.0, heads.1, heads.2),
        }
    }

    /// What the scores are still multiplied with.
    fn core_scale(&self, f: &Forward) -> f64 {
        // The hf profiles have scaled the queries already.
        let done = f.profile.is_hf() && self.spec.steps == AttentionSteps::ScaledQueries;
        if done { 1.0 } else { self.spec.scale }
    }

    /// Whether some of the attention weights are dropped.
    fn drops(&self, f: &Forward) -> bool {
        f.training && self.spec.dropout > 0.0
    }

    fn core_eager(&self, f: &Forward, q: Tensor, k: Tensor, v: Tensor) -> Result<(Tensor, Tensor)> {
        let spec = &self.spec;
        let dtype = q.dtype();
        let groups = spec.heads / spec.kv_heads;
        let (k, v) = (hf::repeat_kv(&k, groups)?, hf::repeat_kv(&v, groups)?);
        let heads = (q, k, v);
        let pairs = self.pairs(f, &heads);
        let (q, k, v) = heads;
        let mut scores = if spec.f32_scores {
            hf::matmul(f, &q.to_dtype(DType::F32)?, &k.to_dtype(DType::F32)?.t()?, pairs)?
        } else {
            hf::matmul(f, &q, &k.t()?, pairs)?
        };
        scores = scores.mul_scalar(self.core_scale(f))?;
        if let Some(cap) = spec.softcap {
            scores = hf::softcap(scores, cap)?;
        }
        if spec.alibi {
            scores = scores.add(&self.alibi(f, scores.dtype())?)?;
        }
        if spec.relative.is_some() {
            let bias = if spec.has_trained_bias() {
                relative::bias(f, spec, self.relative.as_ref())?
            } else {
                relative::zeros(f, spec.heads, [q.size(2), k.size(2)], q.dtype())?
            };
            scores = scores.add(&bias)?;
        }
        if spec.is_masked() {
            scores = scores.add(&hf::additive_mask(f, spec, scores.dtype())?)?;
        }
        let mut shifted = None;
        let mut weights = match &self.sinks {
            None => {
                if spec.floored_scores {
                    scores = scores.clamp(-1e30, f64::INFINITY)?;
                }
                let wide = if spec.narrow_softmax { scores.clone() } else { scores.to_dtype(DType::F32)? };
                let weights = wide.softmax(-1)?;
                drop(wide);
                // The scores keep their name in the reference until the weights have the caller's dtype.
                let weights = weights.to_dtype(dtype)?;
                drop(scores);
                weights
            }
            Some(sinks) => {
                let (b, a, s) = (scores.size(0), scores.size(1), scores.size(2));
                let column = sinks.view(&[1, a, 1, 1])?.expand(&[b, a, s, 1])?;
                let joined = Tensor::cat(&[&scores, &column], -1)?;
                // The largest score cancels in the softmax, but the reference sends a gradient through it.
                let shift = joined.sub(&joined.max(-1, true)?.0)?;
                drop(joined);
                let all = shift.softmax(-1)?;
                // Lives until the function returns, the scores until the weights take their name.
                shifted = Some(shift);
                let weights = all.narrow(-1, 0, s)?.to_dtype(v.dtype())?;
                drop(scores);
                weights
            }
        };
        if self.drops(f) {
            weights = weights.dropout_composed(spec.dropout)?;
        }
        let out = hf::matmul(f, &weights, &v, pairs)?;
        let out = merged_by_copy(&out)?;
        drop(shifted);
        Ok((out, weights))
    }

    /// Explicit attention with weights of the keys on the scores, which have gradients: no fused kernel takes them.
    fn weighted(&self, f: &Forward, heads: Heads, keys: &KeyWeights) -> Result<(Tensor, Tensor)> {
        let pairs = self.pairs(f, &heads);
        let (q, k, v) = heads;
        let groups = self.spec.heads / self.spec.kv_heads;
        let bias = hf::repeat_kv(&keys.bias(f, &self.spec, &v)?, groups)?;
        let (k, v) = (hf::repeat_kv(&k, groups)?, hf::repeat_kv(&v, groups)?);
        let scores = hf::matmul(f, &q, &k.t()?, pairs)?.mul_scalar(self.spec.scale)?.add(&bias)?;
        drop(bias);
        let mut weights = scores.to_dtype(DType::F32)?.softmax(-1)?.to_dtype(q.dtype())?;
        drop(scores);
        if self.drops(f) {
            weights = weights.dropout_composed(self.spec.dropout)?;
        }
        let out = hf::matmul(f, &weights, &v.to_dtype(weights.dtype())?, pairs)?;
        Ok((merged_by_copy(&out)?, weights))
    }

    /// Linear position biases `1 a 1 s`.
    fn alibi(&self, f: &Forward, dtype: DType) -> Result<Tensor> {
        let rt = &f.runtime;
        rt.no_grad(|| {
            let slopes = steps::slopes_tensor(f, self.spec.heads, 8.0)?.view(&[1, self.spec.heads, 1, 1])?;
            let positions = rt.arange(f.start() + f.seq_len, 0.0, 1.0, DType::F32)?;
            slopes.mul(&positions)?.to_dtype(dtype)
        })
    }
}

/// Pairs of `n` positions that are at most `side` apart.
fn band(n: u64, side: u64) -> u64 {
    let side = side.min(n.saturating_sub(1));
    n * (2 * side + 1) - side * (side + 1)
}

/// The reference makes the transposed result contiguous; the merge that follows is then a view.
fn merged_by_copy(out: &Tensor) -> Result<Tensor> {
    out.transpose(1, 2)?.contiguous()?.transpose(1, 2)
}
