//! The maps of multi-head latent attention (DeepSeek): queries, keys and values from compressed streams.

use super::{Indexer, Linear, Norm, rotary};
use crate::context::Forward;
use crate::param::{Builder, Init};
use crate::spec::{AttentionSpec, LatentSpec, LinearSpec};
use tensor::{Result, Tensor};

/// The maps of multi-head latent attention.
#[derive(Clone, Debug)]
pub struct Latent {
    spec: LatentSpec,
    q: QueryMaps,
    kv_down: Linear,
    kv_norm: Norm,
    kv_up: Linear,
    indexer: Option<Indexer>,
}

#[derive(Clone, Debug)]
enum QueryMaps {
    Direct(Linear),
    Compressed(Box<(Linear, Norm, Linear)>),
}

/// Queries, keys and values, and what the reference keeps until attention is over.
pub struct LatentHeads {
    /// `b a s (n r)`
    pub q: Tensor,
    /// `b a s (n r)`
    pub k: Tensor,
    /// `b a s dv`
    pub v: Tensor,
    /// Local variables of the reference's function.
    pub held: Vec<Tensor>,
}

impl Latent {
    /// The maps on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &LatentSpec, attention: &AttentionSpec, h: u64) -> Result<Self> {
        let (a, n, r) = (attention.heads, spec.nope_dim, spec.rope_dim);
        let map =
            |name, bias, input, output| Linear::new(b, &LinearSpec::new(name, bias), input, output, Init::FanIn(input));
        let part =
            |name, input, output| Linear::columns(b, &LinearSpec::new(name, false), input, output, Init::FanIn(input));
        let q = match spec.q_rank {
            None => QueryMaps::Direct(part("q_proj", h, a * (n + r))?),
            Some(rank) => QueryMaps::Compressed(Box::new((
                b.on_every_rank(|| map("q_a_proj", spec.bias, h, rank))?,
                Norm::new(b, "q_a_layernorm", &spec.norm, &[rank])?,
                part("q_b_proj", rank, a * (n + r))?,
            ))),
        };
        let indexer = match (&spec.indexer, spec.q_rank) {
            (Some(indexer), Some(rank)) => Some(b.on_every_rank(|| Indexer::new(b, indexer, spec, rank, h))?),
            _ => None,
        };
        Ok(Self {
            indexer,
            q,
            kv_down: b.on_every_rank(|| map("kv_a_proj_with_mqa", spec.bias, h, spec.kv_rank + r))?,
            kv_norm: Norm::new(b, "kv_a_layernorm", &spec.norm, &[spec.kv_rank])?,
            kv_up: part("kv_b_proj", spec.kv_rank, a * (n + attention.value_dim))?,
            spec: spec.clone(),
        })
    }

    /// `b s h` -> heads. The rotated part of the keys is one head shared by all.
    pub fn heads(&self, f: &Forward, attention: &AttentionSpec, x: &Tensor) -> Result<LatentHeads> {
        let (b, a) = (x.size(0), attention.heads);
        let (n, r, dv) = (self.spec.nope_dim, self.spec.rope_dim, attention.value_dim);
        let mut compressed = None;
        let q = match &self.q {
            QueryMaps::Direct(map) => map.forward(f, &f.enter(x)?)?,
            QueryMaps::Compressed(maps) => {
                let (down, norm, up) = &**maps;
                let low = down.forward(f, x)?;
                let low = norm.forward(f, &low)?;
                compressed = Some(low.clone());
                up.forward(f, &f.enter(&low)?)?
            }
        };
        let s = q.size(1);
        let q = q.view(&[b, s, a, n + r])?.transpose(1, 2)?; // b a s (n r)
        let mut q = q.split(&[n, r], -1)?;
        if let Some([by, _]) = self.spec.scales {
            q = q.iter().map(|part| part.mul_scalar(by)).collect::<Result<_>>()?;
        }
        let low = self.kv_down.forward(f, x)?.split(&[self.spec.kv_rank, r], -1)?;
        let mut latent = self.kv_norm.forward(f, &low[0])?; // b s rank
        if let Some([_, by]) = self.spec.scales {
            latent = latent.mul_scalar(by)?;
        }
        let latent = f.enter(&latent)?;
        let k_rot = f.enter(&low[1])?.view(&[b, 1, s, r])?;
        let (q_rot, k_rot) = match &attention.rotary {
            Some(rotary) => rotary::rotate(f, rotary, q[1].clone(), k_rot, f.activation_dtype(x))?,
            None => (q[1].clone(), k_rot),
        };
        let queries = Tensor::cat(&[&q[0], &q_rot], -1)?;
        let kv = self.kv_up.forward(f, &latent)?;
        let kv = kv.view(&[b, s, a, n + dv])?.transpose(1, 2)?.split(&[n, dv], -1)?;
        if let (Some(indexer), Some(compressed)) = (&self.indexer, compressed) {
            indexer.choose(f, attention.rotary.as_ref(), x, &compressed)?;
        }
        // The reference writes both parts into one buffer of the dtype of the unrotated part.
        let wide = k_rot.expand(&[b, a, s, r])?.to_dtype(kv[0].dtype())?;
        let keys = f.runtime.without_autocast(|| Tensor::cat(&[&kv[0], &wide], -1))?;
        let held = if f.profile.is_hf() {
            vec![low[0].clone(), latent, q[0].clone(), q_rot, k_rot, queries.clone(), keys.clone(), kv[1].clone()]
        } else {
            Vec::new()
        };
        Ok(LatentHeads { q: queries, k: keys, v: kv[1].clone(), held })
    }
}
