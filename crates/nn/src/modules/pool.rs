//! Pooling by attention of one trained query.

use super::{Mlp, Norm};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, MlpInput, MlpSpec, PoolSpec};
use tensor::{Result, Tensor};

/// One query that attends to all positions, then an MLP around its result, as SigLIP pools images.
#[derive(Clone, Debug)]
pub struct AttentionPool {
    spec: PoolSpec,
    probe: Tensor,
    maps: [Tensor; 2],
    out: [Tensor; 2],
    norm: Norm,
    mlp: Mlp,
}

impl AttentionPool {
    /// The pool in the module `spec.name`.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &PoolSpec) -> Result<Self> {
        let _scope = b.runtime().scope(spec.name);
        let h = spec.hidden_size;
        let probe = b.param("probe", &[1, 1, h], ParamKind::Vector, Init::TruncatedNormal(0.02))?;
        let (maps, out) = {
            let _scope = b.runtime().scope("attention");
            let maps = [
                b.param("in_proj_weight", &[3 * h, h], ParamKind::Matrix, Init::FanIn(h))?,
                b.param("in_proj_bias", &[3 * h], ParamKind::Vector, Init::Zeros)?,
            ];
            let _scope = b.runtime().scope("out_proj");
            let out = [
                b.param("weight", &[h, h], ParamKind::Matrix, Init::FanIn(h))?,
                b.param("bias", &[h], ParamKind::Vector, Init::Zeros)?,
            ];
            (maps, out)
        };
        let norm = Norm::named(b, &spec.norm, h)?;
        let mlp = MlpSpec::new(
            spec.intermediate_size,
            spec.act,
            MlpInput::Plain(LinearSpec::new("fc1", true)),
            LinearSpec::new("fc2", true),
        );
        let _scope = b.runtime().scope("mlp");
        Ok(Self { spec: spec.clone(), probe, maps, out, norm, mlp: Mlp::new(b, &mlp, h, 1)? })
    }

    /// `b s h -> b h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.spec.name);
        let (b, s, h, a) = (x.size(0), x.size(1), self.spec.hidden_size, self.spec.heads);
        let d = h / a.max(1);
        let attended = {
            let _scope = f.runtime.scope("attention");
            let [weight, bias] = [f.weight(&self.maps[0])?, f.weight(&self.maps[1])?];
            let probe = f.weight(&self.probe)?.to_dtype(x.dtype())?.expand(&[b, 1, h])?;
            let q = probe.linear(&weight.narrow(0, 0, h)?, Some(&bias.narrow(0, 0, h)?))?;
            let kv = x.linear(&weight.narrow(0, h, 2 * h)?, Some(&bias.narrow(0, h, 2 * h)?))?;
            let heads = |t: &Tensor, n: u64| t.reshape(&[b, n, a, d])?.transpose(1, 2);
            let (q, k) = (heads(&q, 1)?, heads(&kv.narrow(2, 0, h)?, s)?);
            let v = heads(&kv.narrow(2, h, h)?, s)?;
            let scores = q.matmul(&k.t()?)?.mul_scalar(1.0 / (d as f64).sqrt())?;
            let mixed = scores.softmax(-1)?.matmul(&v)?.transpose(1, 2)?.reshape(&[b, 1, h])?;
            let _scope = f.runtime.scope("out_proj");
            mixed.linear(&f.weight(&self.out[0])?, Some(&f.weight(&self.out[1])?))?
        };
        let normed = self.norm.forward(f, &attended)?;
        let _scope = f.runtime.scope("mlp");
        attended.add(&self.mlp.forward(f, &normed)?)?.select(1, 0)
    }
}
