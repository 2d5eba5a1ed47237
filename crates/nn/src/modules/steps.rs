//! Attention in the steps of families that do not share the common ones, and PyTorch's own attention where it has no
//! fused kernel.
//!
//! Written from transformers 5.24 and PyTorch 2.15. What a function pushes on `held` lives until the whole attention
//! module has returned, as the locals of the reference do.

use super::hf;
use crate::context::Forward;
use crate::spec::{AttentionSpec, AttentionSteps, RotarySpec};
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor};

/// Queries, keys, values: `b a s d`, `b k s d`, `b k s dv`.
pub type Heads = (Tensor, Tensor, Tensor);

/// What the cores need to know beside queries, keys and values.
pub struct Setting<'a> {
    /// The pass.
    pub f: &'a Forward,
    /// The attention.
    pub spec: &'a AttentionSpec,
    /// Pairs the model needs of those computed.
    pub pairs: Mask,
    /// dtype of the module's input.
    pub input: DType,
}

impl Setting<'_> {
    fn dropout(&self, weights: Tensor) -> Result<Tensor> {
        if self.f.training && self.spec.dropout > 0.0 {
            weights.dropout_composed(self.spec.dropout)
        } else {
            Ok(weights)
        }
    }
}

/// Makes the tables of the family before the first block.
///
/// # Errors
/// If a size is too large to count.
pub fn prepare(f: &Forward, spec: &AttentionSpec, dtype: DType) -> Result<()> {
    match spec.steps {
        AttentionSteps::GptJ => {
            if let Some(rotary) = &spec.rotary {
                sines_and_cosines(f, rotary, dtype)?;
            }
        }
        AttentionSteps::Bloom => {
            repeated_alibi(f, spec, dtype)?;
        }
        AttentionSteps::Falcon { .. } if spec.alibi => {
            repeated_alibi(f, spec, dtype)?;
            biased_mask(f, spec, dtype)?;
        }
        AttentionSteps::Mpt { positions } => {
            long_alibi(f, spec, positions)?;
            blocked(f, spec)?;
        }
        _ => {}
    }
    Ok(())
}

/// Slopes of linear position biases for `heads` heads.
///
/// Source: Press et al. 2022. A count that is no power of two takes the series of the power below, then every second one
/// of the series of the power above.
fn slopes(heads: u64, bias_max: f64) -> Vec<f64> {
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let series = |count: u64, i: u64| (-bias_max * i as f64 / count as f64).exp2();
    let first = (1..=below).map(|i| series(below, i));
    first.chain((0..heads - below).map(|j| series(2 * below, 2 * j + 1))).collect()
}

/// The slopes as a tensor `a`.
///
/// # Errors
/// If a size is too large to count.
pub fn slopes_tensor(f: &Forward, heads: u64, bias_max: f64) -> Result<Tensor> {
    f.runtime.tensor_with(&[heads], DType::F32, || slopes(heads, bias_max))
}

/// Position biases repeated for every sequence: `(b a) 1 s`.
fn repeated_alibi(f: &Forward, spec: &AttentionSpec, dtype: DType) -> Result<Tensor> {
    f.shared("alibi", || {
        let (rt, a, s) = (&f.runtime, spec.heads, f.seq_len);
        rt.no_grad(|| {
            let slopes = slopes_tensor(f, a, 8.0)?.view(&[1, a, 1, 1])?;
            let one = slopes.mul(&rt.arange(s, 0.0, 1.0, DType::F32)?)?; // 1 a 1 s
            one.expand(&[f.batch, a, 1, s])?.contiguous()?.view(&[f.batch * a, 1, s])?.to_dtype(dtype)
        })
    })
}

/// Position biases of all positions the model has: `a 1 p`.
fn long_alibi(f: &Forward, spec: &AttentionSpec, positions: u64) -> Result<Tensor> {
    f.shared("alibi", || {
        let rt = &f.runtime;
        rt.no_grad(|| {
            let first = 1.0 - positions as f64;
            let slopes = slopes_tensor(f, spec.heads, 8.0)?.view(&[spec.heads, 1, 1])?;
            slopes.mul(&rt.arange(positions, first, 1.0, DType::F32)?)
        })
    })
}

/// Pairs that may not attend, `b 1 s s` bool, one byte for every pair of every sequence.
fn blocked(f: &Forward, spec: &AttentionSpec) -> Result<Tensor> {
    f.shared("blocked", || {
        let rt = &f.runtime;
        rt.no_grad(|| {
            let allowed = hf::allowed_pairs(f, spec)?;
            let (zero, one) = (rt.zeros(&[], DType::F32)?, rt.ones(&[], DType::F32)?);
            allowed.where_cond(&zero, &one)?.to_dtype(DType::Bool)
        })
    })
}

/// Falcon's mask with position biases in it: `b a s s`.
fn biased_mask(f: &Forward, spec: &AttentionSpec, dtype: DType) -> Result<Tensor> {
    f.shared("biased mask", || {
        let (rt, a, s) = (&f.runtime, spec.heads, f.seq_len);
        rt.no_grad(|| {
            let bias = repeated_alibi(f, spec, dtype)?.view(&[f.batch, a, 1, s])?.mul_scalar(spec.scale)?;
            let low = rt.full(&[], -1e30, dtype)?;
            hf::allowed_pairs(f, spec)?.where_cond(&bias, &low)
        })
    })
}

/// GPT-J's sines and cosines side by side: `1 s dim`.
fn sines_and_cosines(f: &Forward, rotary: &RotarySpec, dtype: DType) -> Result<Tensor> {
    f.shared("sines and cosines", || {
        let rt = &f.runtime;
        rt.no_grad(|| {
            let exponents = rt.arange(rotary.dim / 2, 0.0, -2.0 / rotary.dim as f64, DType::F32)?;
            let frequencies = exponents.mul_scalar(rotary.theta.ln())?.exp()?;
            let positions = rt.arange(f.seq_len, 0.0, 1.0, DType::F32)?;
            let angles = positions.unsqueeze(1)?.mul(&frequencies)?; // s d/2
            Tensor::cat(&[&angles.sin()?, &angles.cos()?], 1)?.unsqueeze(0)?.to_dtype(dtype)
        })
    })
}

/// Queries and keys of GPT-J turned while positions still come before heads.
///
/// # Shapes
/// `b s a d`, `b s a d` -> `b a s d`, `b a s d`
///
/// # Errors
/// If shapes do not fit.
pub fn turn_gptj(
    f: &Forward,
    rotary: &RotarySpec,
    (q, k): (Tensor, Tensor),
    dtype: DType,
    held: &mut Vec<Tensor>,
) -> Result<(Tensor, Tensor)> {
    let table = sines_and_cosines(f, rotary, dtype)?;
    let (s, half, d) = (f.seq_len, rotary.dim / 2, q.size(-1));
    // Each number for both neighbours: a copy at every use.
    let twice = |start: u64| -> Result<Tensor> {
        f.runtime.no_grad(|| {
            let part = table.narrow(-1, start, half)?.unsqueeze(2)?.unsqueeze(-1)?;
            part.expand(&[1, s, 1, half, 2])?.contiguous()?.view(&[1, s, 1, rotary.dim])
        })
    };
    let turned = |x: &Tensor| -> Result<Tensor> {
        let (sin, cos) = (twice(0)?, twice(half)?);
        let straight = x.mul(&cos)?;
        let (even, odd) = (x.narrow_step(-1, 0, half, 2)?, x.narrow_step(-1, 1, half, 2)?);
        let crossed = Tensor::stack(&[&odd.neg()?, &even], -1)?.view(x.shape())?;
        straight.add(&crossed.mul(&sin)?)
    };
    if d == rotary.dim {
        return Ok((turned(&q)?.transpose(1, 2)?, turned(&k)?.transpose(1, 2)?));
    }
    let cut =
        |x: &Tensor| Ok::<_, tensor::Error>((x.narrow(-1, 0, rotary.dim)?, x.narrow(-1, rotary.dim, d - rotary.dim)?));
    let ((k_rot, k_pass), (q_rot, q_pass)) = (cut(&k)?, cut(&q)?);
    let (k_rot, q_rot) = (turned(&k_rot)?, turned(&q_rot)?);
    let joined_k = Tensor::cat(&[&k_rot, &k_pass], -1)?.transpose(1, 2)?;
    let joined_q = Tensor::cat(&[&q_rot, &q_pass], -1)?.transpose(1, 2)?;
    held.extend([k_rot, k_pass, q_rot, q_pass]);
    Ok((joined_q, joined_k))
}

/// Values and weights of GPT-Neo: masked by the layer's buffer, then by the common mask.
///
/// # Errors
/// If shapes do not fit.
pub fn gpt_neo(set: &Setting<'_>, heads: Heads, buffer: &Tensor) -> Result<(Tensor, Tensor)> {
    let ((q, k, v), f) = (heads, set.f);
    let (q, k) = (q.to_dtype(DType::F32)?, k.to_dtype(DType::F32)?);
    let mut scores = hf::matmul(f, &q, &k.t()?, set.pairs)?;
    let window = buffer.narrow(2, 0, f.seq_len)?.narrow(3, 0, f.seq_len)?;
    let low = f.runtime.no_grad(|| f.runtime.full(&[], -1e30, scores.dtype()))?;
    scores = window.where_cond(&scores, &low)?;
    scores = scores.add(&hf::additive_mask(f, set.spec, scores.dtype())?)?;
    let mut weights = scores.softmax(-1)?;
    drop(scores);
    weights = weights.to_dtype(v.dtype())?;
    let weights = set.dropout(weights)?;
    Ok((hf::matmul(f, &weights, &v, set.pairs)?, weights))
}

/// Values and weights of BLOOM: one product adds scaled scores to the position biases.
///
/// # Errors
/// If shapes do not fit.
pub fn bloom(set: &Setting<'_>, heads: Heads, held: &mut Vec<Tensor>) -> Result<(Tensor, Tensor)> {
    let ((q, k, v), f) = (heads, set.f);
    let (b, a, s, d) = (q.size(0), q.size(1), q.size(2), q.size(3));
    let flat = |x: &Tensor| x.reshape(&[b * a, s, d]);
    let (q, k, v) = (flat(&q)?, flat(&k)?, flat(&v)?);
    let alibi = repeated_alibi(f, set.spec, q.dtype())?;
    let scores = {
        let product = q.matmul_masked(&k.t()?, set.pairs)?;
        let alibi = alibi.to_dtype(product.dtype())?;
        product.mul_scalar_reusing(set.spec.scale)?.add_reusing(&alibi)?
    };
    let scores = scores.view(&[b, a, s, s])?;
    held.extend([q.clone(), k, v.clone(), scores.clone()]);
    let masked = scores.add(&hf::additive_mask(f, set.spec, scores.dtype())?)?;
    held.push(masked.clone());
    let weights = masked.to_dtype(DType::F32)?.softmax(-1)?.to_dtype(q.dtype())?;
    let weights = set.dropout(weights)?;
    let out = weights.view(&[b * a, s, s])?.matmul_masked(&v, set.pairs)?.view(&[b, a, s, d])?;
    Ok((out, weights))
}

/// Falcon's heads out of the joint projection: keys and values are copied out and, in the grouped architecture, repeated.
///
/// # Shapes
/// `b s (a + 2 k) d` -> `b a s d`, and keys and values `b a s d`, or `b 1 s d` with one key head
///
/// # Errors
/// If shapes do not fit.
pub fn falcon_heads(f: &Forward, spec: &AttentionSpec, qkv: &Tensor) -> Result<Heads> {
    let (b, s, rt) = (qkv.size(0), qkv.size(1), &f.runtime);
    let (a, k, d) = (spec.heads, spec.kv_heads, spec.head_dim);
    let groups = a / k;
    let at = |i: u64| rt.no_grad(|| rt.arange(1, i as f64, 1.0, DType::I64));
    if !matches!(spec.steps, AttentionSteps::Falcon { repeats: true }) {
        let cut = qkv.view(&[b, s, a + 2, d])?;
        let pick = |i: u64| copied(&cut, 2, &at(i)?);
        return Ok((cut.narrow(2, 0, a)?.transpose(1, 2)?, pick(a)?.transpose(1, 2)?, pick(a + 1)?.transpose(1, 2)?));
    }
    let cut = qkv.view(&[b, s, k, groups + 2, d])?;
    let (key, value) = (copied(&cut, 3, &at(groups)?)?, copied(&cut, 3, &at(groups + 1)?)?);
    let flat = |x: &Tensor| x.expand(&[b, s, k, groups, d])?.reshape(&[b, s, a, d])?.transpose(1, 2);
    Ok((flat(&cut.narrow(3, 0, groups)?)?, flat(&key)?, flat(&value)?))
}

/// One index of dimension `dim`, kept as a dimension of size one, by copy.
fn copied(x: &Tensor, dim: isize, index: &Tensor) -> Result<Tensor> {
    x.transpose(0, dim)?.index(index)?.transpose(0, dim)
}

/// Values and weights of Falcon: scaled in place; with position biases in f32 and dropout, without them neither.
///
/// # Errors
/// If shapes do not fit.
pub fn falcon_eager(set: &Setting<'_>, heads: Heads, held: &mut Vec<Tensor>) -> Result<(Tensor, Tensor)> {
    let ((q, k, v), f, spec) = (heads, set.f, set.spec);
    let (b, a, s) = (q.size(0), q.size(1), q.size(2));
    let product = hf::matmul(f, &q, &k.t()?, set.pairs)?;
    if !spec.alibi {
        let scores = product.mul_scalar_reusing(spec.scale)?;
        let masked = scores.add(&hf::additive_mask(f, spec, scores.dtype())?)?;
        let weights = masked.to_dtype(set.input)?.softmax(-1)?;
        drop((masked, scores));
        return Ok((hf::matmul(f, &weights, &v, set.pairs)?, weights));
    }
    let raised = product.to_dtype(DType::F32)?;
    let alibi = repeated_alibi(f, spec, set.input)?.view(&[b, a, 1, s])?;
    let logits = raised.add(&alibi)?.mul_scalar_reusing(spec.scale)?;
    held.extend([product, raised, logits.clone()]);
    let weights = logits.add(&biased_mask(f, spec, set.input)?)?.to_dtype(set.input)?.softmax(-1)?;
    let weights = set.dropout(weights)?;
    Ok((hf::matmul(f, &weights, &v, set.pairs)?, weights))
}

/// The mask Falcon passes to PyTorch's attention; a boolean one becomes additive in every layer anew.
///
/// # Errors
/// If a size is too large to count.
pub fn falcon_bias(set: &Setting<'_>, dtype: DType) -> Result<Tensor> {
    let f = set.f;
    if set.spec.alibi { biased_mask(f, set.spec, set.input) } else { hf::fused_mask(f, set.spec, dtype) }
}

/// Values and weights of MPT: biases of the last positions, masked by filling.
///
/// # Errors
/// If shapes do not fit.
pub fn mpt(set: &Setting<'_>, heads: Heads, positions: u64, held: &mut Vec<Tensor>) -> Result<(Tensor, Tensor)> {
    let ((q, k, v), f) = (heads, set.f);
    let mut scores = hf::matmul(f, &q, &k.t()?, set.pairs)?;
    scores = scores.mul_scalar(set.spec.scale)?;
    let alibi = long_alibi(f, set.spec, positions)?;
    let last = alibi.narrow(-1, positions.saturating_sub(f.seq_len), f.seq_len.min(positions))?;
    scores = scores.add(&last)?;
    scores = scores.masked_fill(&blocked(f, set.spec)?, -1e30)?;
    let weights = scores.to_dtype(DType::F32)?.softmax(-1)?.to_dtype(v.dtype())?;
    held.push(scores);
    let weights = set.dropout(weights)?;
    Ok((hf::matmul(f, &weights, &v, set.pairs)?, weights))
}

/// PyTorch's attention where no fused kernel fits (dropout on a CPU, or values of another width than keys): scaled
/// operands, scores, softmax, values, in f32 whatever autocast says.
///
/// `mask` is additive; without one causal attention makes its own.
///
/// # Errors
/// If shapes do not fit.
pub fn unfused(set: &Setting<'_>, heads: Heads, mask: Option<&Tensor>, dropout: f64) -> Result<Tensor> {
    let ((q, k, v), f, spec) = (heads, set.f, set.spec);
    let groups = q.size(1) / k.size(1);
    let low = f.runtime.autocast_setting().map(|(low, _)| low);
    let cast = |x: &Tensor| low.map_or_else(|| Ok(x.clone()), |low| x.to_dtype(low));
    let (k, q, v) = (cast(&k)?, cast(&q)?, cast(&v)?);
    f.runtime.without_autocast(|| {
        let origin = q.dtype();
        let (q, k, v) = (q.to_dtype(DType::F32)?, k.to_dtype(DType::F32)?, v.to_dtype(DType::F32)?);
        let root = spec.scale.sqrt();
        let q = q.mul_scalar(root)?;
        let mask = match mask {
            Some(mask) => Some(mask.clone()),
            None => spec.causal.then(|| hf::causal_mask_of_math(f)).transpose()?,
        };
        let (k, v) = (hf::repeat_kv(&k, groups)?, hf::repeat_kv(&v, groups)?);
        let mut scores = hf::matmul(f, &q, &k.t()?.mul_scalar(root)?, set.pairs)?;
        if let Some(mask) = &mask {
            scores = scores.add(mask)?;
        }
        let mut weights = scores.softmax(-1)?;
        drop(scores);
        if dropout > 0.0 {
            weights = weights.dropout_composed(dropout)?;
        }
        // Returned beside the result and dropped by the caller.
        let returned = f.runtime.no_grad(|| weights.to_dtype(origin))?;
        let out = hf::matmul(f, &weights, &v, set.pairs)?.to_dtype(origin);
        drop(returned);
        out
    })
}
