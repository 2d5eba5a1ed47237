//! Queries, keys and values of an attention, as its maps make them.

use super::Attention;
use crate::context::Forward;
use crate::modules::routed_heads::Topology;
use crate::modules::steps::{self, Heads};
use crate::modules::{Latent, Linear, Norm, RoutedHeads, rotary};
use crate::param::{Builder, Init};
use crate::spec::{AttentionSpec, AttentionSteps, FusedOrder, KvSharing, Projection, QkNorm, QkNormPlace};
use tensor::{Result, Role, Tensor};

/// The maps that make queries, keys and values.
#[derive(Clone, Debug)]
pub(super) enum Maps {
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

/// What the maps make of an input.
pub(super) struct Made<'a> {
    /// Queries, keys, values.
    pub(super) heads: Heads,
    /// What the reference keeps until its function returns.
    pub(super) held: Vec<Tensor>,
    /// The gate that comes with the queries.
    pub(super) gate: Option<Tensor>,
    /// Where queries were routed, for the way back.
    pub(super) routing: Option<(&'a RoutedHeads, Topology)>,
}

impl Maps {
    /// The maps of `spec`: queries from a stream of width `h`, keys and values from one of width `from`.
    pub(super) fn new(b: &Builder<'_>, spec: &AttentionSpec, (h, from): (u64, u64), layers: u64) -> Result<Self> {
        let (a, k, d, dv) = (spec.heads, spec.kv_heads, spec.head_dim, spec.value_dim);
        let fan_in = Init::FanIn(h);
        let takes = matches!(spec.sharing, KvSharing::Takes(_));
        Ok(match &spec.projection {
            Projection::Separate { q, .. } | Projection::Paired { q, .. } if takes => {
                Self::Queries(Box::new(Linear::columns(b, q, h, a * d, fan_in)?))
            }
            Projection::Separate { q, k: key, v } => Self::Separate(Box::new([
                Linear::columns(b, q, h, if spec.query_gate { 2 * a * d } else { a * d }, fan_in)?,
                Linear::columns(b, key, from, k * d, Init::FanIn(from))?,
                Linear::columns(b, v, from, k * dv, Init::FanIn(from))?,
            ])),
            Projection::Paired { q, k: key } => Self::Paired(Box::new([
                Linear::columns(b, q, h, a * d, fan_in)?,
                Linear::columns(b, key, from, k * d, Init::FanIn(from))?,
            ])),
            Projection::Fused { qkv, order } => {
                Self::Fused(Linear::columns(b, qkv, h, a * d + k * (d + dv), fan_in)?, *order)
            }
            Projection::Latent(latent) => Self::Latent(Box::new(Latent::new(b, latent, spec, h)?)),
            Projection::Routed(routed) => Self::Routed(Box::new(RoutedHeads::new(b, routed, spec, h, layers)?)),
        })
    }
}

impl Attention {
    /// Queries, keys and values of the input; behind compressed streams, of what the rank has of the stream.
    ///
    /// # Shapes
    /// `b s h` -> `b a s d`, `b k s d`, `b k s dv`
    pub(super) fn heads(&self, f: &Forward, x: &Tensor) -> Result<Made<'_>> {
        let mut held = Vec::new();
        let mut gate = None;
        let mut routing = None;
        let (q, k, v) = match &self.maps {
            Maps::Separate(maps) if f.profile.is_hf() && self.spec.steps == AttentionSteps::GptJ => {
                self.gptj(f, x, maps, &mut held)?
            }
            Maps::Separate(maps) => self.separate(f, x, maps, &mut gate)?,
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
                routing = Some((&**routed, topology));
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
        Ok(Made { heads: (q, k, v), held, gate, routing })
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
        let encoded = if self.crosses { Some(f.encoded.as_ref().ok_or(NOT_ENCODED)?) } else { None };
        // Keys and values of another stack are made once; of a pass without data they are of zeros.
        let past = self.crosses && f.cache.as_ref().is_some_and(|cache| !cache.is_empty());
        let project = |map: &Linear, heads: u64, d: u64, norm: Option<&Norm>| -> Result<Tensor> {
            if let (true, Some(encoded)) = (past && !std::ptr::eq(map, q_map), encoded) {
                let kept = || f.runtime.zeros(&[b, encoded.size(1), heads, d], f.activation_dtype(x));
                return Ok(f.runtime.no_grad(kept)?.with_role(Role::Buffer));
            }
            let norm = norm.filter(|_| place == QkNormPlace::Projection);
            // The first map is that of the queries; the others read the other stack, if there is one.
            let x = if std::ptr::eq(map, q_map) { x } else { encoded.unwrap_or(x) };
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
}

/// A block with attention to another stack runs in a pass that has one.
const NOT_ENCODED: tensor::Error = tensor::Error::Backward("attention to another stack without its outputs");
