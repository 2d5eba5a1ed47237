//! Trained position biases: a number for each head and bucket of distances.
//!
//! Source: Raffel et al. 2020, arXiv:1910.10683.

use super::hf;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{AttentionSpec, BiasSource, RelativeSpec};
use tensor::{DType, Result, Runtime, Tensor, checkpoint};

/// Name of the biases among the tables of a pass.
const BIAS: &str = "relative bias";

/// The attention that holds the table of a stack runs before those that use it.
const NO_BIAS: tensor::Error = tensor::Error::Backward("position biases that no block made");

/// The table of `heads` biases for each bucket, in the current module.
///
/// # Errors
/// If it is too large to count.
pub fn table(b: &Builder<'_>, spec: RelativeSpec, heads: u64) -> Result<Tensor> {
    let _scope = b.runtime().scope("relative_attention_bias");
    b.param("weight", &[spec.buckets, heads], ParamKind::Embedding, Init::TruncatedNormal(0.02))
}

/// Makes the biases of the pass out of the table, if `table` is held here: `1 a s s`.
///
/// # Errors
/// If shapes do not fit.
pub fn make(f: &Forward, spec: &AttentionSpec, table: Option<&Tensor>, s: u64) -> Result<()> {
    let (Some(relative), Some(table)) = (spec.relative, table) else { return Ok(()) };
    if relative.from == BiasSource::Own {
        return Ok(());
    }
    if let Some(past) = f.cache.as_ref().map(|cache| cache.len()).filter(|past| *past > 0) {
        f.shared(BIAS, || unplaced(f, spec, past, table))?;
        return Ok(());
    }
    f.shared(BIAS, || {
        let (rt, causal) = (f.runtime.clone(), spec.causal);
        let look_up = move |t: &[Tensor]| Ok(std::iter::once(looked_up(&rt, relative, causal, s, &t[0])?).collect());
        // In the reference this is part of the first block, and is run again with it; beside the blocks it is not.
        if f.recompute.whole_blocks().is_some() && relative.from != BiasSource::Beside {
            Ok(checkpoint(&[table], look_up)?.remove(0))
        } else {
            look_up(std::slice::from_ref(table)).map(|mut made: tensor::Outputs| made.remove(0))
        }
    })?;
    Ok(())
}

/// The biases of the pass, or those of a table that serves one attention alone: `1 a s s`.
///
/// # Errors
/// If no block of the stack holds a table.
pub fn bias(f: &Forward, spec: &AttentionSpec, own: Option<&Tensor>) -> Result<Tensor> {
    match (own, spec.relative) {
        (Some(table), Some(relative)) if relative.from == BiasSource::Own => {
            let past = f.cache.as_ref().map_or(0, |cache| cache.len());
            if past > 0 {
                return unplaced(f, spec, past, table);
            }
            looked_up(&f.runtime, relative, spec.causal, f.seq_len, table)
        }
        _ => f.shared(BIAS, || Err(NO_BIAS)),
    }
}

/// Biases of a text that goes on behind `past` positions: which buckets those are in changes no cost of a pass without data.
fn unplaced(f: &Forward, spec: &AttentionSpec, past: u64, table: &Tensor) -> Result<Tensor> {
    let rt = &f.runtime;
    rt.no_grad(|| rt.zeros(&[1, spec.heads, f.seq_len, past + f.seq_len], table.dtype()))
}

/// The numbers of a table for all pairs of `s` positions: `1 a s s`.
fn looked_up(rt: &Runtime, spec: RelativeSpec, causal: bool, s: u64, table: &Tensor) -> Result<Tensor> {
    let buckets = rt.no_grad(|| {
        let all = buckets(spec, causal, s);
        rt.tensor_with(&[s, s], DType::I64, || all.collect())
    })?;
    let _scope = rt.scope("relative_attention_bias");
    table.embedding(&buckets)?.permute(&[2, 0, 1])?.unsqueeze(0)
}

/// Zeros where attention to another stack has no biases: `1 a sq sk`, made once in a pass.
///
/// # Errors
/// If a size is too large to count.
pub fn zeros(f: &Forward, heads: u64, [sq, sk]: [u64; 2], dtype: DType) -> Result<Tensor> {
    f.shared("no relative bias", || f.runtime.no_grad(|| f.runtime.zeros(&[1, heads, sq, sk], dtype)))
}

/// The biases as the additive mask that the reference hands to PyTorch's attention, made anew in every block.
///
/// # Errors
/// As [`bias`].
pub fn mask(f: &Forward, spec: &AttentionSpec, own: Option<&Tensor>, dtype: DType) -> Result<Tensor> {
    let bias = bias(f, spec, own)?;
    if !spec.causal {
        return bias.contiguous();
    }
    let rt = &f.runtime;
    let (allowed, low) = rt.no_grad(|| {
        let s = f.seq_len;
        let keys = rt.arange(s, 0.0, 1.0, DType::I64)?;
        let allowed = keys.less_equal(&keys.unsqueeze(1)?)?.view(&[1, 1, s, s])?;
        Ok::<_, tensor::Error>((allowed, rt.full(&[], hf::LOW, dtype)?))
    })?;
    allowed.where_cond(&bias, &low)
}

/// The bucket of each pair of `s` positions, row-major by query: exact for small distances, in steps of equal ratio
/// beyond. A causal stack has no buckets for later keys.
fn buckets(spec: RelativeSpec, causal: bool, s: u64) -> impl Iterator<Item = f64> {
    let count = if causal { spec.buckets } else { spec.buckets / 2 };
    let exact = (count / 2).max(1);
    let ratio = (spec.max_distance as f64 / exact as f64).ln();
    let bucket = move |distance: u64| {
        if distance < exact {
            return distance;
        }
        let step = (distance as f64 / exact as f64).ln() / ratio * (count - exact) as f64;
        (exact + step as u64).min(count.saturating_sub(1))
    };
    (0..s * s).map(move |i| {
        let (query, key) = (i / s, i % s);
        let before = bucket(query.saturating_sub(key));
        let later = if causal { 0 } else { count + bucket(key.saturating_sub(query)) };
        (if key > query { later } else { before }) as f64
    })
}
