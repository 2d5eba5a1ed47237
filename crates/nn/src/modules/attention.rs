//! Self-attention: grouped, multi-query and latent heads, fused or explicit.

use super::linear::Branch;
use super::steps::{self, Heads, Setting};
use super::{Differential, KeyWeights, Latent, Linear, Norm, RoutedHeads, hf, relative, rotary};
use crate::context::{Forward, Profile, Recompute};
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{AttentionSpec, AttentionSteps, BiasSource, FusedOrder, KvSharing, Projection, QkNorm, QkNormPlace};
use std::rc::Rc;
use tensor::ops::attention::{Attention as Core, pairs};
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor, checkpoint};

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

/// The maps that make queries, keys and values.
#[derive(Clone, Debug)]
enum Maps {
    /// Queries, keys, values.
    Separate(Box<[Linear; 3]>),
    /// Queries; keys and values.
    Paired(Box<[Linear; 2]>),
    /// Queries alone: keys and values are those of another block.
    Queries(Box<Linear>),
    Fused(Linear, FusedOrder),
    Latent(Box<Latent>),
    Routed(Box<RoutedHeads>),
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
        let fan_in = Init::FanIn(h);
        let takes = matches!(spec.sharing, KvSharing::Takes(_));
        let maps = match &spec.projection {
            Projection::Separate { q, .. } | Projection::Paired { q, .. } if takes => {
                Maps::Queries(Box::new(Linear::new(b, q, h, a * d, fan_in)?))
            }
            Projection::Separate { q, k: key, v } => Maps::Separate(Box::new([
                Linear::new(b, q, h, if spec.query_gate { 2 * a * d } else { a * d }, fan_in)?,
                Linear::new(b, key, from, k * d, Init::FanIn(from))?,
                Linear::new(b, v, from, k * dv, Init::FanIn(from))?,
            ])),
            Projection::Paired { q, k: key } => Maps::Paired(Box::new([
                Linear::new(b, q, h, a * d, fan_in)?,
                Linear::new(b, key, from, k * d, Init::FanIn(from))?,
            ])),
            Projection::Fused { qkv, order } => {
                Maps::Fused(Linear::new(b, qkv, h, a * d + k * (d + dv), fan_in)?, *order)
            }
            Projection::Latent(latent) => Maps::Latent(Box::new(Latent::new(b, latent, spec, h)?)),
            Projection::Routed(routed) => Maps::Routed(Box::new(RoutedHeads::new(b, routed, spec, h, layers)?)),
        };
        let norm = |name, heads| -> Result<Option<Norm>> {
            match &spec.qk_norm {
                QkNorm::None => Ok(None),
                QkNorm::PerHead(n) => Norm::new(b, name, n, &[d]).map(Some),
                QkNorm::Full(n) => Norm::new(b, name, n, &[heads * d]).map(Some),
                QkNorm::EveryHead(n) => Norm::new(b, name, n, &[heads, d]).map(Some),
                QkNorm::Modules(n) => Norm::split(b, name, n, heads, d).map(Some),
            }
        };
        Ok(Self {
            q_norm: norm(spec.qk_norm_names[0], a)?,
            k_norm: if takes { None } else { norm(spec.qk_norm_names[1], k)? },
            value_norm: (spec.value_norm.as_ref().filter(|_| !takes))
                .map(|norm| Norm::new(b, "v_norm", norm, &[dv]))
                .transpose()?,
            sinks: spec.sinks.then(|| b.param("sinks", &[a], ParamKind::Vector, Init::Zeros)).transpose()?,
            mask: match spec.steps {
                AttentionSteps::GptNeo { positions: p } => {
                    let shape = [1, 1, p, p];
                    Some(b.buffer_with("bias", &shape, DType::Bool, || windowed(p, spec.window))?)
                }
                _ => None,
            },
            differential: spec.differential.map(|start| Differential::new(b, start, d, 1e-5)).transpose()?,
            keys: spec.keep.map(|keep| KeyWeights::new(b, spec, keep)).transpose()?,
            gate: spec.gate.as_ref().map(|gate| Linear::new(b, gate, h, a * dv, fan_in)).transpose()?,
            out_norm: spec.out_norm.as_ref().map(|norm| Norm::named(b, norm, a * dv)).transpose()?,
            relative: spec
                .relative
                .filter(|r| r.from == BiasSource::Table)
                .map(|r| relative::table(b, r, a))
                .transpose()?,
            crosses: false,
            out: match spec.projection {
                Projection::Routed(_) => None,
                _ => Some(Linear::new(b, &spec.out, a * dv, to, Init::ScaledResidual { fan_in: a * dv, layers })?),
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
        let mut held = Vec::new();
        let mut query_gate = None;
        let mut routing = None;
        let (q, k, v) = match &self.maps {
            Maps::Separate(maps) if f.profile.is_hf() && self.spec.steps == AttentionSteps::GptJ => {
                self.gptj(f, x, maps, &mut held)?
            }
            Maps::Separate(maps) => self.separate(f, x, maps, &mut query_gate)?,
            Maps::Paired(maps) => {
                let heads = |map: &Linear, heads: u64| -> Result<Tensor> {
                    let made = map.forward(f, x)?.view(&[x.size(0), x.size(1), heads, self.spec.head_dim])?;
                    made.transpose(1, 2)
                };
                let (q, both) = (heads(&maps[0], self.spec.heads)?, heads(&maps[1], self.spec.kv_heads)?);
                let v = self.value_norm.as_ref().map_or(Ok(both.clone()), |norm| norm.forward(f, &both))?;
                let (q, k) = self.normed(f, q, both)?;
                (q, k, v)
            }
            Maps::Queries(map) => {
                let spec = &self.spec;
                let q = map.forward(f, x)?.view(&[x.size(0), x.size(1), spec.heads, spec.head_dim])?.transpose(1, 2)?;
                let (k, v) = f.taken(spec.sharing)?;
                let q = self.q_norm.as_ref().map_or(Ok(q.clone()), |norm| norm.forward(f, &q))?;
                match &spec.rotary {
                    Some(rotary) => (rotary::rotate_one(f, rotary, q, f.activation_dtype(x))?, k, v),
                    None => (q, k, v),
                }
            }
            Maps::Fused(qkv, FusedOrder::Parts(parts)) if f.profile.is_hf() => {
                let (q, k, v) = self.parts(&qkv.forward(f, x)?, *parts)?;
                self.turned_gptj(f, x, (q, k, v.transpose(1, 2)?), &mut held)?
            }
            Maps::Fused(qkv, order) => {
                let (q, k, v) = self.fused(f, qkv.forward(f, x)?, *order)?;
                let heads = self.spec.qk_norm_place == QkNormPlace::Heads;
                let (q, k) = if heads { self.normed(f, q, k)? } else { (q, k) };
                (q, k, v)
            }
            Maps::Routed(routed) => {
                let (heads, topology) = routed.heads(f, &self.spec, x)?;
                routing = Some((routed, topology));
                heads
            }
            Maps::Latent(latent) => {
                let heads = latent.heads(f, &self.spec, x)?;
                held = heads.held;
                (heads.q, heads.k, heads.v)
            }
        };
        let (q, k) = match (&self.spec.rotary, &self.maps) {
            (Some(_), _) if f.profile.is_hf() && self.spec.steps == AttentionSteps::GptJ => (q, k),
            (Some(rotary), Maps::Separate(..) | Maps::Paired(..) | Maps::Fused(..) | Maps::Routed(..)) => {
                rotary::rotate(f, rotary, q, k, f.activation_dtype(x))?
            }
            _ => (q, k),
        };
        let (q, k) = if self.spec.qk_norm_place == QkNormPlace::Rotated { self.normed(f, q, k)? } else { (q, k) };
        let gate = self.gate.as_ref().map(|gate| gate.forward(f, x)).transpose()?.or(query_gate);
        if f.profile.is_hf() {
            // Local names of the reference until its function returns.
            held.extend([q.clone(), k.clone(), v.clone()]);
        }
        let (k, v) = match &f.cache {
            Some(cache) if !matches!(self.maps, Maps::Queries(_)) => cache.extend(&k, &v)?,
            _ => (k, v),
        };
        f.give(self.spec.sharing, &k, &v);
        let (mut mixed, weights) = match &self.differential {
            None => self.core(f, (q, k, v), x.dtype(), &mut held)?, // b s (a dv)
            Some(differential) => {
                let (v1, v2) = Differential::halves(&v)?;
                let (first, weights) = self.core(f, (q.clone(), k.clone(), v1), x.dtype(), &mut held)?;
                let (second, _) = self.core(f, (q, k, v2), x.dtype(), &mut held)?;
                (differential.combine(f, &first, &second, self.spec.heads)?, weights)
            }
        };
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
        if let (true, Some(memory)) = (self.crosses, &f.memory) {
            let zeros = self.spec.relative.is_some() && f.profile.is_hf() && f.recompute.whole_blocks().is_some();
            if zeros {
                relative::zeros(f, self.spec.heads, [x.size(1), memory.size(1)], x.dtype())?;
            }
            return Ok(());
        }
        relative::make(f, &self.spec, self.relative.as_ref(), x.size(1))
    }

    /// Three maps, each cut into heads; norms where the family puts them.
    fn separate(
        &self,
        f: &Forward,
        x: &Tensor,
        [q_map, k, v]: &[Linear; 3],
        gate: &mut Option<Tensor>,
    ) -> Result<Heads> {
        let spec = &self.spec;
        let (b, s) = (x.size(0), x.size(1));
        let place = spec.qk_norm_place;
        let normed = |t: Tensor, norm: Option<&Norm>| match norm {
            Some(norm) => norm.forward(f, &t),
            None => Ok(t),
        };
        let full = matches!(spec.qk_norm, QkNorm::Full(_));
        let memory = if self.crosses { Some(f.memory.as_ref().ok_or(NO_MEMORY)?) } else { None };
        let project = |map: &Linear, heads: u64, d: u64, norm: Option<&Norm>| -> Result<Tensor> {
            let norm = norm.filter(|_| place == QkNormPlace::Projection);
            // The first map is that of the queries; the others read the other stack, if there is one.
            let x = if std::ptr::eq(map, q_map) { x } else { memory.unwrap_or(x) };
            let t = normed(map.forward(f, x)?, norm.filter(|_| full))?;
            let t = if spec.clip_qkv.is_some() { t } else { t.view(&[b, x.size(1), heads, d])? };
            normed(t, norm.filter(|_| !full))
        };
        let (q_norm, k_norm) = (self.q_norm.as_ref(), self.k_norm.as_ref());
        let mut q = if spec.query_gate {
            let (a, d) = (spec.heads, spec.head_dim);
            let both = q_map.forward(f, x)?.view(&[b, s, a, 2 * d])?.split(&[d, d], -1)?;
            *gate = Some(both[1].reshape(&[b, s, a * d])?);
            normed(both[0].clone(), q_norm.filter(|_| place == QkNormPlace::Projection))?
        } else {
            project(q_map, spec.heads, spec.head_dim, q_norm)?
        };
        if f.profile.is_hf() && spec.steps == AttentionSteps::ScaledQueries {
            q = q.mul_scalar(spec.scale)?;
        }
        let mut k = project(k, spec.kv_heads, spec.head_dim, k_norm)?;
        let mut v = project(v, spec.kv_heads, spec.value_dim, None)?;
        if spec.clip_qkv.is_some() {
            q = self.clip(q)?.view(&[b, s, spec.heads, spec.head_dim])?;
            k = self.clip(k)?.view(&[b, s, spec.kv_heads, spec.head_dim])?;
            v = self.clip(v)?.view(&[b, s, spec.kv_heads, spec.value_dim])?;
        }
        if place == QkNormPlace::Positions {
            (q, k) = (normed(q, q_norm)?, normed(k, k_norm)?);
        }
        (q, k, v) = (q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?); // b heads s d
        if let Some(norm) = &self.value_norm {
            v = norm.forward(f, &v)?;
        }
        if let Some(scale) = spec.value_scale {
            v = v.mul_scalar(scale)?;
        }
        if place == QkNormPlace::Heads {
            (q, k) = self.normed(f, q, k)?;
        }
        Ok((q, k, v))
    }

    /// Queries and keys through their norms, if there are any.
    fn normed(&self, f: &Forward, q: Tensor, k: Tensor) -> Result<(Tensor, Tensor)> {
        let each = |norm: &Option<Norm>, t: Tensor| match norm {
            Some(norm) => norm.forward(f, &t),
            None => Ok(t),
        };
        Ok((each(&self.q_norm, q)?, each(&self.k_norm, k)?))
    }

    /// Three maps; queries and keys are turned before heads and positions change places.
    fn gptj(&self, f: &Forward, x: &Tensor, [q, k, v]: &[Linear; 3], held: &mut Vec<Tensor>) -> Result<Heads> {
        let spec = &self.spec;
        let project = |map: &Linear| map.forward(f, x)?.view(&[x.size(0), x.size(1), spec.heads, spec.head_dim]);
        self.turned_gptj(f, x, (project(q)?, project(k)?, project(v)?.transpose(1, 2)?), held)
    }

    /// Queries and keys `b s a d` turned as GPT-J does, then `b a s d`.
    fn turned_gptj(&self, f: &Forward, x: &Tensor, (q, k, v): Heads, held: &mut Vec<Tensor>) -> Result<Heads> {
        let (q, k) = match &self.spec.rotary {
            Some(rotary) => steps::turn_gptj(f, rotary, (q, k), x.dtype(), held)?,
            None => (q.transpose(1, 2)?, k.transpose(1, 2)?),
        };
        Ok((q, k, v))
    }

    /// One map whose output is cut in the family's order.
    fn fused(&self, f: &Forward, qkv: Tensor, order: FusedOrder) -> Result<Heads> {
        let spec = &self.spec;
        let (b, s) = (qkv.size(0), qkv.size(1));
        let (a, k, d, dv) = (spec.heads, spec.kv_heads, spec.head_dim, spec.value_dim);
        let qkv = self.clip(qkv)?;
        match order {
            FusedOrder::Blocks => {
                let parts = qkv.split(&[a * d, k * d, k * dv], -1)?;
                let heads = |t: &Tensor, n: u64, d: u64| t.view(&[b, s, n, d])?.transpose(1, 2);
                Ok((heads(&parts[0], a, d)?, heads(&parts[1], k, d)?, heads(&parts[2], k, dv)?))
            }
            FusedOrder::PerHead => {
                let cut = qkv.view(&[b, s, a, 2 * d + dv])?.transpose(1, 2)?; // b a s (q k v)
                let parts = cut.split(&[d, d, dv], -1)?;
                Ok((parts[0].clone(), parts[1].clone(), parts[2].clone()))
            }
            FusedOrder::PickedPerHead => {
                let cut = qkv.view(&[b, s, a, 3, d])?;
                let pick = |i: u64| cut.select(3, i)?.transpose(1, 2);
                Ok((pick(0)?, pick(1)?, pick(2)?))
            }
            FusedOrder::Parts(parts) => {
                let (q, k, v) = self.parts(&qkv, parts)?;
                Ok((q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?))
            }
            FusedOrder::PerGroup if f.profile.is_hf() => steps::falcon_heads(f, spec, &qkv),
            FusedOrder::PerGroup => {
                let per_group = a / k;
                let cut = qkv.view(&[b, s, k, per_group + 2, d])?;
                let take = |start: u64, len: u64| cut.narrow(3, start, len);
                let q = take(0, per_group)?.reshape(&[b, s, a, d])?.transpose(1, 2)?;
                let key = take(per_group, 1)?.squeeze(3)?.transpose(1, 2)?;
                let value = take(per_group + 1, 1)?.squeeze(3)?.transpose(1, 2)?;
                Ok((q, key, value))
            }
        }
    }

    /// Queries, keys and values out of a projection that lies in parts: `b s a d` each.
    fn parts(&self, qkv: &Tensor, parts: u64) -> Result<Heads> {
        let spec = &self.spec;
        let (b, s, a, d, dv) = (qkv.size(0), qkv.size(1), spec.heads, spec.head_dim, spec.value_dim);
        let (width, values) = (a * d / parts, a * dv / parts);
        let cut = qkv.view(&[b, s, parts, 2 * width + values])?;
        let take = |start: u64, len: u64, d: u64| cut.narrow(3, start, len)?.reshape(&[b, s, a, d]);
        Ok((take(0, width, d)?, take(width + values, width, d)?, take(width, values, dv)?))
    }

    fn clip(&self, x: Tensor) -> Result<Tensor> {
        match self.spec.clip_qkv {
            Some(c) => x.clamp(-c, c),
            None => Ok(x),
        }
    }

    /// Scores, softmax, weighted values.
    ///
    /// # Shapes
    /// `b a s d`, `b k s d`, `b k s dv` -> `b s (a dv)`, and `b a s s` from explicit attention
    fn core(
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
        let (b, s) = (heads.0.size(0), heads.0.size(2));
        let pairs = self.pairs(f, &heads);
        if let Some(keys) = &self.keys {
            let (out, weights) = self.weighted(f, heads, keys)?;
            let merged = out.transpose(1, 2)?.reshape(&[b, s, self.spec.heads * self.spec.value_dim])?;
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
        let merged = out.transpose(1, 2)?.reshape(&[b, s, self.spec.heads * self.spec.value_dim])?;
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
            Some(_) => (f.seq_len, f.seq_len),
            None => (heads.0.size(2), heads.1.size(2)),
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
            let bias = relative::mask(f, &self.spec, heads.0.dtype())?;
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
            scores = scores.div_scalar(cap)?;
            scores = scores.tanh()?;
            scores = scores.mul_scalar(cap)?;
        }
        if spec.alibi {
            scores = scores.add(&self.alibi(f, scores.dtype())?)?;
        }
        if spec.relative.is_some() {
            let bias = if spec.has_trained_bias() {
                relative::bias(f)?
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

/// A block with attention to another stack runs in a pass that has one.
const NO_MEMORY: tensor::Error = tensor::Error::Backward("attention to another stack without its outputs");

/// Pairs of `n` positions that are at most `side` apart.
fn band(n: u64, side: u64) -> u64 {
    let side = side.min(n.saturating_sub(1));
    n * (2 * side + 1) - side * (side + 1)
}

/// Which of `n` keys each of `n` queries sees: those up to itself, at most `window` of them. Row-major.
fn windowed(n: u64, window: Option<u64>) -> Vec<f64> {
    let sees = |q: u64, k: u64| k <= q && window.is_none_or(|w| q - k < w);
    (0..n * n).map(|i| f64::from(u8::from(sees(i / n, i % n)))).collect()
}

/// The reference makes the transposed result contiguous; the merge that follows is then a view.
fn merged_by_copy(out: &Tensor) -> Result<Tensor> {
    out.transpose(1, 2)?.contiguous()?.transpose(1, 2)
}
