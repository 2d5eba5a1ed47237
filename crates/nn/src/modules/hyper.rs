//! Streams mixed by doubly stochastic weights: what collapses them before a part of a block and mixes them behind it.

use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::HyperSpec;
use std::sync::Arc;
use tensor::{DType, Result, Tensor};

/// The connection of one part of a block. Its weights stay in f32.
#[derive(Clone, Debug)]
pub struct Connection {
    spec: Arc<HyperSpec>,
    name: &'static str,
    /// `(c + c + c c) (c h)`
    map: Tensor,
    /// `c + c + c c`
    base: Tensor,
    /// `3`
    scale: Tensor,
}

/// Streams as a part of a block sees them.
pub struct Collapsed {
    /// What the part reads: `b s h`.
    pub input: Tensor,
    /// How much of its output each stream gets: `b s c`, f32.
    post: Tensor,
    /// How the streams go on: `b s c c`, f32, columns from rows.
    mix: Tensor,
}

impl Connection {
    /// The connection of streams of width `h`, in the module `name` of the current one.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, name: &'static str, spec: &Arc<HyperSpec>, h: u64) -> Result<Self> {
        let c = spec.streams;
        let _scope = b.runtime().scope(name);
        let weights = (2 + c) * c;
        Ok(Self {
            spec: spec.clone(),
            name,
            map: b.param_in("fn", &[weights, c * h], ParamKind::Matrix, Init::FanIn(c * h), DType::F32)?,
            base: b.param_in("base", &[weights], ParamKind::Vector, Init::Zeros, DType::F32)?,
            scale: b.param_in("scale", &[3], ParamKind::Vector, Init::Ones, DType::F32)?,
        })
    }

    /// The streams collapsed into one, and the weights for the way back.
    ///
    /// # Shapes
    /// `b s c h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn collapse(&self, f: &Forward, streams: &Tensor) -> Result<Collapsed> {
        let _scope = f.runtime.scope(self.name);
        let this = self.clone();
        let (b, s) = (streams.size(0), streams.size(1));
        let raw = flat(streams, self.spec.norm_eps)?.linear(&self.map, None)?; // b s (c + c + c c)
        let weights = f.fused(&[raw, self.base.clone(), self.scale.clone()], move |t| this.weights(t))?;
        let c = self.spec.streams;
        let parts = weights.split(&[c, c, c * c], -1)?;
        let input = f.fused(&[parts[0].clone(), streams.clone()], |t| collapsed(&t[0], &t[1]))?;
        Ok(Collapsed { input, post: parts[1].clone(), mix: parts[2].reshape(&[b, s, c, c])? })
    }

    /// The weights of all streams, side by side: `b s (c + c + c c)` -> the same.
    fn weights(&self, tensors: &[Tensor]) -> Result<Tensor> {
        let [raw, base, scale] = tensors else { return Err(NO_WEIGHTS) };
        let (c, eps) = (self.spec.streams, self.spec.eps);
        let (b, s) = (raw.size(0), raw.size(1));
        let sizes = [c, c, c * c];
        let (raw, base) = (raw.split(&sizes, -1)?, base.split(&sizes, -1)?);
        let scaled = |i: u64| raw[i as usize].mul(&scale.select(0, i)?)?.add(&base[i as usize]);
        let pre = scaled(0)?.sigmoid()?.add_scalar(eps)?;
        let post = scaled(1)?.sigmoid()?.mul_scalar(2.0)?;
        let square = scaled(2)?.reshape(&[b, s, c, c])?;
        let mut mix = square.softmax(-1)?.add_scalar(eps)?;
        let brought = |mix: &Tensor, dim: isize| mix.div(&mix.sum(&[dim], true)?.add_scalar(eps)?);
        mix = brought(&mix, -2)?;
        for _ in 1..self.spec.iterations {
            mix = brought(&brought(&mix, -1)?, -2)?;
        }
        Tensor::cat(&[&pre, &post, &mix.reshape(&[b, s, c * c])?], -1)
    }
}

impl Collapsed {
    /// The streams behind a part of the block that made `out`.
    ///
    /// # Shapes
    /// streams `b s c h`, out `b s h` -> `b s c h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn expand(&self, streams: &Tensor, out: &Tensor) -> Result<Tensor> {
        let dtype = streams.dtype();
        let added = self.post.to_dtype(dtype)?.unsqueeze(-1)?.mul(&out.unsqueeze(-2)?)?;
        added.add(&self.mix.to_dtype(dtype)?.transpose(-1, -2)?.matmul(streams)?)
    }
}

/// What collapses the streams behind the last block.
#[derive(Clone, Debug)]
pub struct HyperHead {
    spec: Arc<HyperSpec>,
    map: Tensor,
    base: Tensor,
    scale: Tensor,
}

impl HyperHead {
    /// Of streams of width `h`, in the module of the stack.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Arc<HyperSpec>, h: u64) -> Result<Self> {
        let c = spec.streams;
        let _scope = b.runtime().scope("hc_head");
        Ok(Self {
            spec: spec.clone(),
            map: b.param_in("hc_fn", &[c, c * h], ParamKind::Matrix, Init::FanIn(c * h), DType::F32)?,
            base: b.param_in("hc_base", &[c], ParamKind::Vector, Init::Zeros, DType::F32)?,
            scale: b.param_in("hc_scale", &[1], ParamKind::Vector, Init::Ones, DType::F32)?,
        })
    }

    /// The streams at the first block, all alike: `b s h -> b s c h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn fan_out(&self, x: &Tensor) -> Result<Tensor> {
        x.unsqueeze(2)?.expand(&[x.size(0), x.size(1), self.spec.streams, x.size(2)])?.contiguous()
    }

    /// `b s c h -> b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn join(&self, f: &Forward, streams: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope("hc_head");
        let raw = flat(streams, self.spec.norm_eps)?.linear(&self.map, None)?;
        let eps = self.spec.eps;
        let weights = f.fused(&[raw, self.base.clone(), self.scale.clone()], move |t| {
            t[0].mul(&t[2])?.add(&t[1])?.sigmoid()?.add_scalar(eps)
        })?;
        f.fused(&[weights, streams.clone()], |t| collapsed(&t[0], &t[1]))
    }
}

/// All streams side by side in f32, normalised together: `b s c h -> b s (c h)`
fn flat(streams: &Tensor, eps: f64) -> Result<Tensor> {
    let (b, s) = (streams.size(0), streams.size(1));
    let wide = streams.view(&[b, s, streams.size(2) * streams.size(3)])?.to_dtype(DType::F32)?;
    plain_norm(&wide, eps)
}

/// Rows over their root mean square, which is taken in f32; without a weight.
///
/// # Errors
/// If the tensor holds no floats.
pub fn plain_norm(x: &Tensor, eps: f64) -> Result<Tensor> {
    let squares = x.to_dtype(DType::F32)?.pow_scalar(2.0)?.mean(&[-1], true)?;
    x.mul(&squares.add_scalar(eps)?.rsqrt()?.to_dtype(x.dtype())?)
}

/// The weighted sum of streams: `b s c`, `b s c h` -> `b s h` in the dtype of the streams.
fn collapsed(weights: &Tensor, streams: &Tensor) -> Result<Tensor> {
    weights.unsqueeze(-1)?.mul(streams)?.sum(&[2], false)?.to_dtype(streams.dtype())
}

/// The region of the weights gets three tensors.
const NO_WEIGHTS: tensor::Error = tensor::Error::Backward("weights of streams without what they are made of");
