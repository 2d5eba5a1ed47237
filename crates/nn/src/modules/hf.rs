//! Steps of transformers' modules, op by op, as PyTorch runs them.
//!
//! Which small ops run, in which order and with which copies decides what is kept for backward; that is what the `hf`
//! profiles predict. Written from transformers 5.24 and PyTorch 2.15.

use super::mlp::NO_SLOPES;
use super::rotary::hf as rotary;
use super::steps;
use crate::context::{Forward, Profile, WHOLE};
use crate::spec::{Activation, AttentionSpec, AttentionSteps, LayerSpec, RotarySpec};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::ops::matmul::Mask;
use tensor::{CastLists, DType, Result, Tensor};

/// `cap * tanh(x / cap)`; each result lives until the next is made.
///
/// # Errors
/// If the tensor holds no floats.
pub fn softcap(mut x: Tensor, cap: f64) -> Result<Tensor> {
    x = x.div_scalar(cap)?;
    x = x.tanh()?;
    x.mul_scalar(cap)
}

/// What stands in additive masks for pairs that may not attend.
pub const LOW: f64 = -1e30;

/// `torch.matmul` of scores or values: batch dimensions are folded into one, copying operands that cannot be viewed so.
///
/// `mask` says how many of the computed pairs the model needs.
///
/// # Shapes
/// `batch.. m k`, `batch.. k n` -> `batch.. m n`
pub fn matmul(f: &Forward, a: &Tensor, b: &Tensor, mask: Mask) -> Result<Tensor> {
    let rank = a.rank();
    let (batch, m, k, n) = (&a.shape()[..rank - 2], a.size(-2), a.size(-1), b.size(-1));
    let folded: u64 = batch.iter().product();
    // Autocast lowers the operands before they are folded, so that the copies of folding are in the low precision.
    let low = f.runtime.autocast_setting().filter(|(_, lists)| *lists != CastLists::Explicit).map(|(low, _)| low);
    let lower = |x: &Tensor| low.map_or_else(|| Ok(x.clone()), |low| x.to_dtype(low));
    let (a, b) = (lower(a)?, lower(b)?);
    // One head of keys or values for all queries is seen as many before the fold copies it.
    let full: Vec<u64> = batch.iter().copied().chain([k, n]).collect();
    let b = if b.shape() == full { b } else { b.expand(&full)? };
    let out = a.reshape(&[folded, m, k])?.matmul_masked(&b.reshape(&[folded, k, n])?, mask)?;
    let shape: Vec<u64> = batch.iter().copied().chain([m, n]).collect();
    out.view(&shape)
}

/// Key/value heads repeated for their query heads: a copy, unless there is nothing to repeat.
///
/// # Shapes
/// `b k s d` -> `b (k n) s d`
pub fn repeat_kv(x: &Tensor, n: u64) -> Result<Tensor> {
    if n == 1 {
        return Ok(x.clone());
    }
    let (b, k, s, d) = (x.size(0), x.size(1), x.size(2), x.size(3));
    x.unsqueeze(2)?.expand(&[b, k, n, s, d])?.reshape(&[b, k * n, s, d])
}

/// An activation, composed of small ops where transformers composes it.
pub fn activate(f: &Forward, act: Activation, x: Tensor) -> Result<Tensor> {
    match act {
        Activation::Silu => x.silu(),
        Activation::Sigmoid => x.sigmoid(),
        Activation::Gelu => x.gelu(),
        Activation::GeluTanh => x.gelu_tanh(),
        Activation::GeluNew if !f.profile.is_hf() => x.gelu_tanh(),
        Activation::GeluNew => {
            let half = x.mul_scalar(0.5)?;
            let cube = x.pow_scalar(3.0)?.mul_scalar(0.044_715)?;
            let inner = x.add(&cube)?;
            drop((cube, x));
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            let bent = inner.mul_scalar(slope)?;
            drop(inner);
            let bent = bent.tanh()?.add_scalar(1.0)?;
            half.mul(&bent)
        }
        Activation::QuickGelu => x.mul(&x.mul_scalar(1.702)?.sigmoid()?),
        Activation::Tanh => x.tanh(),
        Activation::Relu => x.relu(),
        Activation::Relu2 => x.relu()?.pow_scalar(2.0),
        Activation::Xielu => Err(NO_SLOPES),
    }
}

/// Masks and rotary tables of a pass, made before the first block and kept until the last, as the reference does.
pub fn prepare(f: &Forward, layers: &[Arc<LayerSpec>], dtype: DType) -> Result<()> {
    let mut masks: BTreeMap<u64, &AttentionSpec> = BTreeMap::new();
    let mut tables: BTreeMap<(u8, u64), &RotarySpec> = BTreeMap::new();
    for spec in layers.iter().filter_map(|layer| layer.attention()) {
        if spec.has_common_mask() && spec.is_masked() {
            masks.entry(spec.mask_key()).or_insert(spec);
        }
        if spec.spare_mask {
            masks.entry(SPARE_MASK).or_insert(spec);
        }
        if let (Some(rotary), true) = (&spec.rotary, spec.steps != AttentionSteps::GptJ) {
            tables.entry((rotary.table, rotary.dim)).or_insert(rotary);
        }
    }
    for (key, spec) in masks {
        if f.profile == Profile::HfEager {
            additive_mask_as(f, key, spec, dtype)?;
        } else if key == SPARE_MASK {
            f.mask(key, || f.runtime.no_grad(|| allowed_pairs(f, spec)))?;
        } else if needs_mask(f, spec) {
            allowed_mask(f, spec)?;
        }
    }
    for spec in tables.into_values() {
        rotary::tables(f, spec, dtype)?;
    }
    if let Some(first) = layers.first().and_then(|layer| layer.attention()) {
        steps::prepare(f, first, dtype)?;
    }
    Ok(())
}

/// Key of a mask that the reference makes and no layer uses.
const SPARE_MASK: u64 = 1 << 62;

/// Additive mask `b 1 s s` of a causal or windowed attention.
pub fn additive_mask(f: &Forward, spec: &AttentionSpec, dtype: DType) -> Result<Tensor> {
    additive_mask_as(f, spec.mask_key(), spec, dtype)
}

fn additive_mask_as(f: &Forward, key: u64, spec: &AttentionSpec, dtype: DType) -> Result<Tensor> {
    f.mask(key, || {
        let rt = &f.runtime;
        rt.no_grad(|| {
            let allowed = allowed_pairs(f, spec)?;
            let (zero, low) = (rt.zeros(&[], dtype)?, rt.full(&[], LOW, dtype)?);
            allowed.where_cond(&zero, &low)
        })
    })
}

/// Boolean mask `b 1 s s` that the reference hands to fused attention, made once per pass.
fn allowed_mask(f: &Forward, spec: &AttentionSpec) -> Result<Tensor> {
    f.mask(spec.mask_key() | WHOLE, || f.runtime.no_grad(|| allowed_pairs(f, spec)))
}

/// The mask PyTorch makes of it inside every call of fused attention.
pub fn fused_mask(f: &Forward, spec: &AttentionSpec, dtype: DType) -> Result<Tensor> {
    let allowed = allowed_mask(f, spec)?;
    let rt = &f.runtime;
    rt.no_grad(|| {
        let (low, zero) = (rt.full(&[], LOW, dtype)?, rt.zeros(&[], dtype)?);
        allowed.where_cond(&zero, &low)
    })
}

/// Additive mask `s s` that PyTorch's composed attention makes in every call.
pub fn causal_mask_of_math(f: &Forward) -> Result<Tensor> {
    let (rt, s) = (&f.runtime, f.seq_len);
    rt.no_grad(|| {
        let allowed = rt.ones(&[s, s], DType::Bool)?.tril(0)?;
        let (low, zero) = (rt.full(&[], LOW, DType::F32)?, rt.zeros(&[], DType::F32)?);
        allowed.where_cond(&zero, &low)
    })
}

/// Boolean mask `b 1 s s` of the pairs that may attend.
pub(super) fn allowed_pairs(f: &Forward, spec: &AttentionSpec) -> Result<Tensor> {
    let (rt, s) = (&f.runtime, f.seq_len);
    let keys = rt.arange(s, 0.0, 1.0, DType::I64)?;
    let queries = keys.unsqueeze(1)?;
    let mut allowed = keys.less_equal(&queries)?;
    if let Some(window) = spec.mask_window() {
        let first = queries.add_scalar(-(window as f64))?;
        allowed = if spec.causal {
            allowed.logical_and(&first.less(&keys)?)?
        } else {
            // As many before as behind.
            let side = (window / 2) as f64;
            let (first, last) = (queries.add_scalar(-side)?, queries.add_scalar(side)?);
            first.less_equal(&keys)?.logical_and(&keys.less_equal(&last)?)?
        };
    }
    allowed.unsqueeze(0)?.unsqueeze(0)?.expand(&[f.batch, 1, s, s])
}

/// Whether the reference passes a mask to its fused attention instead of the causal flag.
pub fn needs_mask(f: &Forward, spec: &AttentionSpec) -> bool {
    let always = spec.always_masked || matches!(spec.steps, AttentionSteps::Falcon { .. });
    always || spec.mask_window().is_some_and(|w| f.seq_len >= w)
}
