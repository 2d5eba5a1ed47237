//! Self-attention: grouped, multi-query and latent heads, fused or explicit.

mod core;
mod heads;

use super::linear::Branch;
use super::{Differential, KeyWeights, Linear, Norm, relative};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::ranks::Share;
use crate::spec::{AttentionSpec, AttentionSteps, BiasSource, KvSharing, Projection, QkNorm};
use heads::{Made, Maps};
use std::rc::Rc;
use tensor::{DType, Result, Tensor};

/// Self-attention of one block.
#[derive(Clone, Debug)]
pub struct Attention {
    spec: Rc<AttentionSpec>,
    maps: Maps,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    sinks: Option<Tensor>,
    mask: Option<Tensor>,
    differential: Option<Differential>,
    gate: Option<Linear>,
    keys: Option<KeyWeights>,
    out_norm: Option<Norm>,
    value_norm: Option<Norm>,
    relative: Option<Tensor>,
    /// Whether keys and values come from another stack.
    crosses: bool,
    /// `None` where it is routed to.
    out: Option<Linear>,
}

impl Attention {
    /// Attention on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Rc<AttentionSpec>, h: u64, layers: u64) -> Result<Self> {
        Self::build(b, spec, (h, h, h), layers)
    }

    /// Attention on a stream of width `from` whose output is of width `h`.
    ///
    /// # Errors
    /// As [`Attention::new`].
    pub fn between(b: &Builder<'_>, spec: &Rc<AttentionSpec>, from: u64, h: u64, layers: u64) -> Result<Self> {
        Self::build(b, spec, (from, from, h), layers)
    }

    /// The same with branches beside the maps of queries, keys and values.
    #[must_use]
    pub fn with_branches(mut self, branches: [Rc<Branch>; 3]) -> Self {
        if let Maps::Separate(maps) = &mut self.maps {
            for (map, branch) in maps.iter_mut().zip(branches) {
                *map = map.with_branch(branch);
            }
        }
        self
    }

    /// Attention whose keys and values come from another stack, of width `from`.
    ///
    /// # Errors
    /// As [`Attention::new`].
    pub fn to(b: &Builder<'_>, spec: &Rc<AttentionSpec>, h: u64, from: u64, layers: u64) -> Result<Self> {
        Ok(Self { crosses: true, ..Self::build(b, spec, (h, from, h), layers)? })
    }

    fn build(b: &Builder<'_>, spec: &Rc<AttentionSpec>, (h, from, to): (u64, u64, u64), layers: u64) -> Result<Self> {
        let (a, k, d, dv) = (spec.heads, spec.kv_heads, spec.head_dim, spec.value_dim);
        let maps = Maps::new(b, spec, (h, from), layers)?;
        let takes = matches!(spec.sharing, KvSharing::Takes(_));
        let norm = |name, heads| -> Result<Option<Norm>> {
            let part = |norm: &dyn Fn() -> Result<Norm>| b.sharing(Share::Part, norm).map(Some);
            match &spec.qk_norm {
                QkNorm::None => Ok(None),
                QkNorm::PerHead(n) => b.sharing(Share::Inside, || Norm::new(b, name, n, &[d])).map(Some),
                QkNorm::Full(n) => part(&|| Norm::new(b, name, n, &[heads * d])),
                QkNorm::EveryHead(n) => part(&|| Norm::new(b, name, n, &[heads, d])),
                QkNorm::Modules(n) => part(&|| Norm::split(b, name, n, heads, d)),
            }
        };
        let sinks = || b.param("sinks", &[a], ParamKind::Vector, Init::Zeros);
        Ok(Self {
            q_norm: norm(spec.qk_norm_names[0], a)?,
            k_norm: if takes { None } else { norm(spec.qk_norm_names[1], k)? },
            value_norm: (spec.value_norm.as_ref().filter(|_| !takes))
                .map(|norm| b.sharing(Share::Inside, || Norm::new(b, "v_norm", norm, &[dv])))
                .transpose()?,
            sinks: spec.sinks.then(|| b.sharing(Share::Part, sinks)).transpose()?,
            mask: match spec.steps {
                AttentionSteps::GptNeo { positions: p } => {
                    let shape = [1, 1, p, p];
                    Some(b.buffer_with("bias", &shape, DType::Bool, || windowed(p, spec.window))?)
                }
                _ => None,
            },
            differential: spec.differential.map(|start| Differential::new(b, start, d, 1e-5)).transpose()?,
            keys: spec.keep.map(|keep| KeyWeights::new(b, spec, keep)).transpose()?,
            gate: spec.gate.as_ref().map(|gate| Linear::columns(b, gate, h, a * dv, Init::FanIn(h))).transpose()?,
            out_norm: spec.out_norm.as_ref().map(|norm| Norm::named(b, norm, a * dv)).transpose()?,
            relative: spec
                .relative
                .filter(|r| matches!(r.from, BiasSource::Table | BiasSource::Own))
                .map(|r| relative::table(b, r, a))
                .transpose()?,
            crosses: false,
            out: match spec.projection {
                Projection::Routed(_) => None,
                _ => Some(Linear::rows(b, &spec.out, a * dv, to, Init::ScaledResidual { fan_in: a * dv, layers })?),
            },
            spec: spec.clone(),
            maps,
        })
    }

    /// The output, and the weights where the reference returns them beside it: its blocks hold them to their end.
    ///
    /// # Shapes
    /// `b s h -> b s h`, `b a s s`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        // Compressed streams are made of the rank's own positions, and enter themselves.
        let compressed = matches!(self.maps, Maps::Latent(_));
        let entered = if compressed && self.gate.is_none() { x.clone() } else { f.enter(x)? };
        let Made { heads: (q, k, v), mut held, gate, routing } =
            self.heads(f, if compressed { x } else { &entered })?;
        let gate = self.gate.as_ref().map(|gate| gate.forward(f, &entered)).transpose()?.or(gate);
        drop(entered);
        if f.profile.is_hf() {
            // Local names of the reference until its function returns.
            held.extend([q.clone(), k.clone(), v.clone()]);
        }
        let (k, v) = match &f.cache {
            Some(cache) if !matches!(self.maps, Maps::Queries(_)) && !self.crosses => cache.extend(&k, &v)?,
            _ => (k, v),
        };
        f.give(self.spec.sharing, &k, &v);
        let [q, k, v] = [f.heads_for_positions(q)?, f.heads_for_positions(k)?, f.heads_for_positions(v)?];
        let (mut mixed, weights) = match &self.differential {
            None => self.core(f, (q, k, v), x.dtype(), &mut held)?, // b s (a dv)
            Some(differential) => {
                let (v1, v2) = Differential::halves(&v)?;
                let (first, weights) = self.core(f, (q.clone(), k.clone(), v1), x.dtype(), &mut held)?;
                let (second, _) = self.core(f, (q, k, v2), x.dtype(), &mut held)?;
                (differential.combine(f, &first, &second, self.spec.heads)?, weights)
            }
        };
        mixed = f.positions_for_heads(mixed)?;
        if let Some(gate) = gate {
            mixed = mixed.mul(&gate.sigmoid()?)?;
        }
        if let Some(norm) = &self.out_norm {
            mixed = norm.forward(f, &mixed)?;
        }
        let out = match (&self.out, routing) {
            (_, Some((routed, topology))) => routed.out(f, &self.spec, &mixed, &topology)?,
            (Some(out), None) => out.forward(f, &mixed)?,
            (None, None) => mixed,
        };
        drop(held);
        Ok((out, weights))
    }

    /// Makes the trained position biases of the stack, if their table is here, or the zeros in their place.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn prepare(&self, f: &Forward, x: &Tensor) -> Result<()> {
        if let (true, Some(encoded)) = (self.crosses, &f.encoded) {
            let zeros = self.spec.relative.is_some() && f.profile.is_hf() && f.recompute.whole_blocks().is_some();
            if zeros {
                relative::zeros(f, self.spec.heads, [x.size(1), encoded.size(1)], x.dtype())?;
            }
            return Ok(());
        }
        relative::make(f, &self.spec, self.relative.as_ref(), x.size(1))
    }
}

/// Which of `n` keys each of `n` queries sees: those up to itself, at most `window` of them. Row-major.
fn windowed(n: u64, window: Option<u64>) -> Vec<f64> {
    let sees = |q: u64, k: u64| k <= q && window.is_none_or(|w| q - k < w);
    (0..n * n).map(|i| f64::from(u8::from(sees(i / n, i % n)))).collect()
}
