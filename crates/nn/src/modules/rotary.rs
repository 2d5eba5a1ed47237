//! Rotary position embedding.

pub mod hf;

use crate::context::Forward;
use crate::spec::{LayerSpec, RotarySpec};
use std::sync::Arc;
use tensor::ops::rope::RopeStyle;
use tensor::{DType, Result, Tensor};

/// Rotates queries and keys.
///
/// # Shapes
/// `b a s d`, `b k s d` -> the same
pub fn rotate(f: &Forward, spec: &RotarySpec, q: Tensor, k: Tensor, dtype: DType) -> Result<(Tensor, Tensor)> {
    if f.profile.is_hf() {
        return hf::rotate(f, spec, q, k, dtype);
    }
    let (cos, sin) = f.rotary(spec, || tables(f, spec, dtype))?;
    let style = if spec.interleaved { RopeStyle::Interleaved } else { RopeStyle::Half };
    let turned = q.rope(&cos, &sin, spec.dim, style)?;
    drop(q);
    Ok((turned, k.rope(&cos, &sin, spec.dim, style)?))
}

/// Rotates queries alone, of a rotation over whole heads in halves.
///
/// # Shapes
/// `b a s d -> b a s d`
///
/// # Errors
/// If shapes do not fit.
pub fn rotate_one(f: &Forward, spec: &RotarySpec, q: Tensor, dtype: DType) -> Result<Tensor> {
    if f.profile.is_hf() {
        return hf::rotate_one(f, spec, &q, dtype);
    }
    let (cos, sin) = f.rotary(spec, || tables(f, spec, dtype))?;
    q.rope(&cos, &sin, spec.dim, RopeStyle::Half)
}

/// Makes the tables of all blocks before the first: then equal blocks run equal ops.
///
/// # Errors
/// None beyond those of creating a tensor.
pub fn prepare(f: &Forward, layers: &[Arc<LayerSpec>], dtype: DType) -> Result<()> {
    for spec in layers.iter().filter_map(|layer| layer.attention()?.rotary.as_ref()) {
        f.rotary(spec, || tables(f, spec, dtype))?;
    }
    Ok(())
}

/// Cosine and sine of `position * theta^(-2i/dim)`.
///
/// # Shapes
/// `s dim`, each frequency twice: once per half, or in neighbours.
pub(super) fn tables(f: &Forward, spec: &RotarySpec, dtype: DType) -> Result<(Tensor, Tensor)> {
    let rt = &f.runtime;
    rt.no_grad(|| {
        let half = spec.dim / 2;
        let exponents = rt.arange(half, 0.0, -2.0 / spec.dim as f64, DType::F32)?;
        let inv_freq = exponents.mul_scalar(spec.theta.ln())?.exp()?; // d/2
        let inv_freq = still(inv_freq, spec)?;
        let sign = spec.sign();
        let run = |(first, len): (u64, u64)| rt.arange(len, sign * first as f64, sign, DType::F32);
        let runs = f.runs().into_iter().map(run).collect::<Result<Vec<Tensor>>>()?;
        let positions = match &runs[..] {
            [one] => one.clone(),
            several => Tensor::cat(&several.iter().collect::<Vec<_>>(), 0)?,
        };
        let angles = positions.unsqueeze(1)?.mul(&inv_freq)?; // s d/2
        let wide = if spec.interleaved {
            let twice = angles.unsqueeze(2)?;
            Tensor::cat(&[&twice, &twice], 2)?.view(&[f.seq_len, spec.dim])?
        } else {
            Tensor::cat(&[&angles, &angles], 1)?
        };
        Ok((wide.cos()?.to_dtype(dtype)?, wide.sin()?.to_dtype(dtype)?))
    })
}

/// Frequencies of the pairs that turn, 0 for the others: `d/2 -> d/2`.
fn still(frequencies: Tensor, spec: &RotarySpec) -> Result<Tensor> {
    let pairs = spec.dim / 2;
    let Some(turning) = spec.turning.filter(|&turning| turning < pairs) else { return Ok(frequencies) };
    let rest = frequencies.runtime().zeros(&[pairs - turning], frequencies.dtype())?;
    Tensor::cat(&[&frequencies.narrow(0, 0, turning)?, &rest], 0)
}
