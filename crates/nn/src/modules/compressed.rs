//! Attention to a window of keys and to compressed blocks of all before them (DeepSeek-V4).

use super::compressor::Blocks;
use super::hyper::plain_norm;
use super::rotary::{self, hf as rotary_hf};
use super::{Linear, Norm, hf};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{CompressedSpec, LinearSpec, RotarySpec};
use std::rc::Rc;
use tensor::ops::attention::Attention as Core;
use tensor::ops::matmul::Mask;
use tensor::ops::rope::RopeStyle;
use tensor::{DType, Result, Role, Tensor};

/// Attention to compressed blocks.
#[derive(Clone, Debug)]
pub struct CompressedAttention {
    spec: Rc<CompressedSpec>,
    q_down: Linear,
    q_norm: Norm,
    q_up: Linear,
    keys: Linear,
    key_norm: Norm,
    blocks: Option<Blocks>,
    /// `a`
    sinks: Tensor,
    /// Output maps of the groups of heads: `(g rank) (a / g d)`.
    grouped: Tensor,
    out: Linear,
}

/// Keys of the positions before, which a pass without data goes on from: which ones they are changes no cost.
pub(super) fn kept(f: &Forward, shape: &[u64], dtype: DType) -> Result<Tensor> {
    f.runtime.no_grad(|| Ok(f.runtime.zeros(shape, dtype)?.with_role(Role::Buffer)))
}

/// Sines and cosines that turn the last channels of heads.
pub struct Turn {
    dim: u64,
    /// `s dim`, or `1 s dim` in the `hf` profiles.
    cos: Tensor,
    sin: Tensor,
}

impl CompressedAttention {
    /// Attention on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &CompressedSpec, h: u64, layers: u64) -> Result<Self> {
        let (a, d, rank) = (spec.heads, spec.head_dim, spec.q_rank);
        let [groups, group_rank] = spec.out;
        let map = |name, from, to, init| Linear::new(b, &LinearSpec::new(name, false), from, to, init);
        let fan_in = a * d / groups.max(1);
        let sinks = b.param("sinks", &[a], ParamKind::Vector, Init::Zeros)?;
        let grouped = {
            let _scope = b.runtime().scope("o_a_proj");
            b.param("weight", &[groups * group_rank, fan_in], ParamKind::Matrix, Init::FanIn(fan_in))?
        };
        let width = groups * group_rank;
        Ok(Self {
            q_down: map("q_a_proj", h, rank, Init::FanIn(h))?,
            q_norm: Norm::new(b, "q_a_norm", &spec.norm, &[rank])?,
            q_up: map("q_b_proj", rank, a * d, Init::FanIn(rank))?,
            keys: map("kv_proj", h, d, Init::FanIn(h))?,
            key_norm: Norm::new(b, "kv_norm", &spec.norm, &[d])?,
            blocks: spec.blocks.as_ref().map(|blocks| Blocks::new(b, spec, blocks, h)).transpose()?,
            out: map("o_b_proj", width, h, Init::ScaledResidual { fan_in: width, layers })?,
            sinks,
            grouped,
            spec: Rc::new(spec.clone()),
        })
    }

    /// Makes the tables of the pass: sines, and the mask of the window.
    ///
    /// # Errors
    /// None beyond those of creating a tensor.
    pub fn prepare(&self, f: &Forward, x: &Tensor) -> Result<()> {
        let dtype = f.activation_dtype(x);
        Turn::of(f, &self.spec.rotary, dtype)?;
        self.window(f, dtype)?;
        Ok(())
    }

    /// `b s h -> b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let (b, s, a, d) = (x.size(0), x.size(1), self.spec.heads, self.spec.head_dim);
        let past = f.cache.as_ref().map_or(0, |cache| cache.len());
        let dtype = f.activation_dtype(x);
        let turn = Turn::of(f, &self.spec.rotary, dtype)?;
        let low = self.q_norm.forward(f, &self.q_down.forward(f, x)?)?;
        let q = self.q_up.forward(f, &low)?.view(&[b, s, a, d])?.transpose(1, 2)?;
        let eps = self.spec.norm.eps;
        let q = if f.profile.is_hf() { plain_norm(&q, eps)? } else { q.rms_norm(None, eps)? };
        let q = turn.apply(f, &q)?; // b a s d
        let near = self.key_norm.forward(f, &self.keys.forward(f, x)?)?.unsqueeze(1)?;
        let near = turn.apply(f, &near)?; // b 1 s d
        let mut mask = self.window(f, dtype)?;
        let mut keys = near;
        let before = self.spec.near(past, s) - s;
        if before > 0 {
            keys = Tensor::cat(&[&kept(f, &[b, 1, before, d], dtype)?, &keys], 2)?;
        }
        let blocks = self.blocks.as_ref().map(|blocks| blocks.forward(f, &turn, x, &low)).transpose()?;
        if let Some((compressed, open)) = blocks.flatten() {
            keys = Tensor::cat(&[&keys, &compressed], 2)?;
            let wide = [open.size(0), 1, s, mask.size(3)];
            mask = f.runtime.no_grad(|| Tensor::cat(&[&mask.expand(&wide)?, &open.to_dtype(dtype)?], -1))?;
        }
        drop(low);
        let mixed = self.core(f, q, &keys, &mask, self.spec.pairs(past, s))?; // b a s d
        drop((keys, mask));
        let mixed = turn.back()?.apply(f, &mixed)?;
        let [groups, rank] = self.spec.out;
        let fan_in = a * d / groups.max(1);
        let grouped = {
            let _scope = f.runtime.scope("o_a_proj");
            let weight = f.weight(&self.grouped)?.view(&[groups, rank, fan_in])?.transpose(1, 2)?;
            let rows = mixed.transpose(1, 2)?.reshape(&[b * s, groups, fan_in])?.transpose(0, 1)?;
            rows.matmul(&weight)?.transpose(0, 1)?.reshape(&[b, s, groups * rank])?
        };
        self.out.forward(f, &grouped)
    }

    /// Scores, softmax and weighted keys, which are the values.
    ///
    /// # Shapes
    /// `b a s d`, `b 1 t d`, `1 1 s t` or `b 1 s t` -> `b a s d`
    fn core(&self, f: &Forward, q: Tensor, keys: &Tensor, mask: &Tensor, pairs: u64) -> Result<Tensor> {
        let (a, s, t) = (q.size(1), q.size(2), keys.size(2));
        let scale = 1.0 / (self.spec.head_dim as f64).sqrt();
        let sinks = f.weight(&self.sinks)?;
        if !f.profile.is_hf() {
            let core = Core { seen: Some(pairs), ..Core::full(scale) };
            return q.attention(keys, keys, Some(mask), Some(&sinks), core);
        }
        let of = Mask { pairs, square: s * t };
        let many = hf::repeat_kv(keys, a)?;
        let scores = hf::matmul(f, &q, &many.t()?, of)?.mul_scalar(scale)?.add(mask)?;
        let column = sinks.view(&[1, a, 1, 1])?.expand(&[q.size(0), a, s, 1])?;
        let joined = Tensor::cat(&[&scores, &column], -1)?;
        drop(scores);
        let shift = joined.sub(&joined.max(-1, true)?.0)?;
        drop(joined);
        let mut weights = shift.softmax(-1)?.narrow(-1, 0, t)?;
        if f.training && self.spec.dropout > 0.0 {
            weights = weights.dropout_composed(self.spec.dropout)?;
        }
        let weights = weights.to_dtype(many.dtype())?;
        let out = hf::matmul(f, &weights, &many, of)?.transpose(1, 2)?.contiguous()?;
        drop(shift);
        out.transpose(1, 2)
    }

    /// What is added to scores of keys in the text itself, made once in a pass: `1 1 s n`, the last `s` of the `n` keys being
    /// those of the queries.
    fn window(&self, f: &Forward, dtype: DType) -> Result<Tensor> {
        let rt = &f.runtime;
        let s = f.seq_len;
        let n = self.spec.near(f.cache.as_ref().map_or(0, |cache| cache.len()), s);
        f.shared("window of keys", || {
            rt.no_grad(|| {
                let keys = rt.arange(n, 0.0, 1.0, DType::I64)?;
                let queries = keys.narrow(0, n - s, s)?.unsqueeze(1)?;
                let first = queries.add_scalar(-(self.spec.window as f64))?;
                let allowed = keys.less_equal(&queries)?.logical_and(&first.less(&keys)?)?;
                let (zero, low) = (rt.zeros(&[], dtype)?, rt.full(&[], hf::LOW, dtype)?);
                allowed.where_cond(&zero, &low)?.view(&[1, 1, s, n])
            })
        })
    }
}

impl Turn {
    /// The tables of a rotation, made once in a pass.
    fn of(f: &Forward, spec: &RotarySpec, dtype: DType) -> Result<Self> {
        let names = if spec.table == 0 { ["cosines", "sines"] } else { ["cosines of blocks", "sines of blocks"] };
        let make = || if f.profile.is_hf() { rotary_hf::make(f, spec, dtype) } else { rotary::tables(f, spec, dtype) };
        let mut made = None;
        let cos = f.shared(names[0], || {
            let (cos, sin) = make()?;
            made = Some(sin);
            Ok(cos)
        })?;
        let sin = f.shared(names[1], || made.map_or_else(|| Ok(make()?.1), Ok))?;
        Ok(Self { dim: spec.dim, cos, sin })
    }

    /// Of the first of every `rate` positions, `n` of them.
    ///
    /// # Errors
    /// If there are fewer positions.
    pub fn every(&self, rate: u64, n: u64) -> Result<Self> {
        let rows = |t: &Tensor| t.narrow_step(-2, 0, n, rate);
        Ok(Self { dim: self.dim, cos: rows(&self.cos)?, sin: rows(&self.sin)? })
    }

    /// The other way.
    fn back(&self) -> Result<Self> {
        Ok(Self { dim: self.dim, cos: self.cos.clone(), sin: self.sin.neg()? })
    }

    /// The last channels of heads turned: `b a s d -> b a s d`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn apply(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let still = x.size(-1) - self.dim;
        let parts = x.split(&[still, self.dim], -1)?;
        let turned = if f.profile.is_hf() {
            let half = rotary_hf::rotate_half(&parts[1], true)?.to_dtype(DType::F32)?;
            let wide = parts[1].to_dtype(DType::F32)?;
            wide.mul(&self.cos)?.add(&half.mul(&self.sin)?)?.to_dtype(x.dtype())?
        } else {
            parts[1].rope(&self.cos, &self.sin, self.dim, RopeStyle::Interleaved)?
        };
        Tensor::cat(&[&parts[0], &turned], -1)
    }
}
