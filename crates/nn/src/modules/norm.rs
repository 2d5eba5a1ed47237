//! Normalisations, fused or written out the way transformers writes them.

use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{NamedNorm, NormKind, NormSpec};
use tensor::{DType, Result, Tensor};

/// Only a norm without parameters has no weight, and its kind is matched before the weight is asked for.
const NO_WEIGHT: tensor::Error = tensor::Error::Backward("a norm without its weight");

/// A norm over the last dimension.
#[derive(Clone, Debug)]
pub struct Norm {
    name: &'static str,
    kind: NormKind,
    eps: f64,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    /// Weights of one norm for every head, each a module of its own.
    parts: Vec<Tensor>,
}

impl Norm {
    /// A norm with weights of `shape` (usually one dimension, `[width]`).
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn new(b: &Builder<'_>, name: &'static str, spec: &NormSpec, shape: &[u64]) -> Result<Self> {
        let _scope = b.runtime().scope(name);
        let start = match spec.kind {
            NormKind::RmsUnitOffset | NormKind::LayerNormUnitOffset => Init::Zeros,
            _ => Init::Ones,
        };
        let bare = matches!(
            spec.kind,
            NormKind::LayerNormPlain | NormKind::LayerNormBare | NormKind::RmsPlain | NormKind::Identity
        );
        let weight = (!bare).then(|| b.param("weight", shape, ParamKind::Vector, start)).transpose()?;
        let has_bias = matches!(spec.kind, NormKind::LayerNorm { bias: true } | NormKind::LayerNormUnitOffset);
        let bias = has_bias.then(|| b.param("bias", shape, ParamKind::Vector, Init::Zeros)).transpose()?;
        Ok(Self { name, kind: spec.kind, eps: spec.eps, weight, bias, parts: Vec::new() })
    }

    /// A layer norm over `d` channels for each of `heads` heads, each a module of its own.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn split(b: &Builder<'_>, name: &'static str, spec: &NormSpec, heads: u64, d: u64) -> Result<Self> {
        let _scope = b.runtime().scope(name);
        let _list = b.runtime().scope("norms");
        let part = |i: u64| {
            let _scope = b.runtime().scope(i.to_string());
            b.param("weight", &[d], ParamKind::Vector, Init::Ones)
        };
        let parts = (0..heads).map(part).collect::<Result<_>>()?;
        Ok(Self { name, kind: spec.kind, eps: spec.eps, weight: None, bias: None, parts })
    }

    /// Each head through its own norm, then all side by side: `b heads s d`.
    fn forward_parts(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let one = |(i, weight): (usize, &Tensor)| {
            x.narrow(1, i as u64, 1)?.layer_norm(Some(&f.weight(weight)?), None, self.eps)
        };
        let all = self.parts.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&all.iter().collect::<Vec<_>>(), 1)
    }

    /// A norm by its named description.
    ///
    /// # Errors
    /// If the width is too large to count.
    pub fn named(b: &Builder<'_>, norm: &NamedNorm, width: u64) -> Result<Self> {
        Self::new(b, norm.name, &norm.spec, &[width])
    }

    /// The dtype it takes where the residual stream is wider: that of its weight as it is used.
    pub fn dtype(&self, f: &Forward) -> DType {
        f.compute.or_else(|| self.weight.as_ref().map(Tensor::dtype)).unwrap_or(DType::F32)
    }

    /// Each channel normalised over its positions, then scaled and shifted: `b s c -> b s c`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn over_positions(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.name);
        let normal = x.transpose(1, 2)?.layer_norm(None, None, self.eps)?.transpose(1, 2)?;
        let weight = f.weight(self.weight.as_ref().ok_or(NO_WEIGHT)?)?;
        let scaled = normal.mul(&weight)?;
        match &self.bias {
            Some(bias) => scaled.add(&f.weight(bias)?),
            None => Ok(scaled),
        }
    }

    /// `rows.. h -> rows.. h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        if self.kind == NormKind::Identity {
            return Ok(x.clone());
        }
        let _scope = f.runtime.scope(self.name);
        if !self.parts.is_empty() {
            return self.forward_parts(f, x);
        }
        if f.profile.is_hf() && !f.fused_norms { self.forward_hf(x) } else { self.forward_fused(f, x) }
    }

    fn forward_fused(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let weight = self.weight.as_ref().map(|w| f.weight(w)).transpose()?;
        let bias = self.bias.as_ref().map(|w| f.weight(w)).transpose()?;
        if let Some(weight) = weight.as_ref().filter(|w| w.rank() > 1) {
            // A weight for every head: the kernel takes one for all rows, so it is a product of its own.
            return match self.kind {
                NormKind::Rms | NormKind::RmsWeightInF32 => x.rms_norm(None, self.eps)?.mul(weight),
                _ => x.layer_norm(None, None, self.eps)?.mul(weight),
            };
        }
        match self.kind {
            NormKind::Rms | NormKind::RmsWeightInF32 | NormKind::RmsPlain => x.rms_norm(weight.as_ref(), self.eps),
            NormKind::RmsUnitOffset => x.rms_norm_unit_offset(&weight.ok_or(NO_WEIGHT)?, self.eps),
            NormKind::LayerNormUnitOffset => {
                let weight = weight.map(|w| w.add_scalar(1.0)).transpose()?;
                x.layer_norm(weight.as_ref(), bias.as_ref(), self.eps)
            }
            _ => x.layer_norm(weight.as_ref(), bias.as_ref(), self.eps),
        }
    }

    fn forward_hf(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = x.dtype();
        let weight = || self.weight.as_ref().ok_or(NO_WEIGHT);
        match self.kind {
            NormKind::LayerNorm { .. } | NormKind::LayerNormBare => {
                x.layer_norm(self.weight.as_ref(), self.bias.as_ref(), self.eps)
            }
            NormKind::LayerNormPlain => x.to_dtype(DType::F32)?.layer_norm(None, None, self.eps)?.to_dtype(dtype),
            NormKind::LayerNormUnitOffset => {
                x.layer_norm(Some(&weight()?.add_scalar(1.0)?), self.bias.as_ref(), self.eps)
            }
            NormKind::LayerNormUpcast => {
                let wide = x.to_dtype(DType::F32)?;
                let mean = wide.mean(&[-1], true)?;
                let variance = wide.sub(&mean)?.pow_scalar(2.0)?.mean(&[-1], true)?;
                let normal = wide.sub(&mean)?.mul(&variance.add_scalar(self.eps)?.rsqrt()?)?;
                drop(wide);
                let scaled = weight()?.to_dtype(DType::F32)?.mul(&normal)?;
                drop(normal);
                scaled.to_dtype(dtype)
            }
            NormKind::Rms => weight()?.mul(&self.normalised(x)?.to_dtype(dtype)?),
            NormKind::RmsWeightInF32 => weight()?.mul(&self.normalised(x)?)?.to_dtype(dtype),
            NormKind::RmsPlain => self.normalised(x)?.to_dtype(dtype),
            NormKind::Identity => Ok(x.clone()),
            NormKind::RmsUnitOffset => {
                let normal = self.normalised(x)?;
                let scaled = normal.mul(&weight()?.to_dtype(DType::F32)?.add_scalar(1.0)?)?;
                drop(normal);
                scaled.to_dtype(dtype)
            }
        }
    }

    /// `x / rms(x)` in f32, in the steps of the reference.
    fn normalised(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.to_dtype(DType::F32)?;
        let variance = x.pow_scalar(2.0)?.mean(&[-1], true)?;
        let spread = variance.add_scalar(self.eps)?;
        // Gemma and norms without weight are one expression, where the others name the variance to the end.
        let _named = (!matches!(self.kind, NormKind::RmsUnitOffset | NormKind::RmsPlain)).then_some(variance);
        let scale = spread.rsqrt()?;
        drop(spread);
        x.mul(&scale)
    }
}
