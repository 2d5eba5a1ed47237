//! Steps of transformers' modules, op by op, as PyTorch runs them.
//!
//! Which small ops run, in which order and with which copies decides what is kept for backward; that is what the `hf`
//! profiles predict. Written from transformers 5.24 and PyTorch 2.15.

use crate::context::Forward;
use crate::spec::{Activation, AttentionSpec, RotarySpec};
use tensor::{DType, Result, Tensor};

/// `torch.matmul`: batch dimensions are folded into one, copying operands that cannot be viewed so.
///
/// # Shapes
/// `batch.. m k`, `batch.. k n` -> `batch.. m n`
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let rank = a.rank();
    let (batch, m, k, n) = (&a.shape()[..rank - 2], a.size(-2), a.size(-1), b.size(-1));
    let folded: u64 = batch.iter().product();
    let out = a.reshape(&[folded, m, k])?.matmul(&b.reshape(&[folded, k, n])?)?;
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
        Activation::Relu => x.relu(),
        Activation::Relu2 => x.relu()?.pow_scalar(2.0),
    }
}

/// Cosine and sine tables in the steps of the reference.
///
/// # Shapes
/// `1 s dim`
fn tables(f: &Forward, spec: &RotarySpec, dtype: DType) -> Result<(Tensor, Tensor)> {
    let rt = &f.runtime;
    rt.no_grad(|| {
        let exponents = rt.arange(spec.dim / 2, 0.0, -2.0 / spec.dim as f64, DType::F32)?;
        let inv_freq = exponents.mul_scalar(spec.theta.ln())?.exp()?;
        let positions = rt.arange(f.seq_len, 0.0, 1.0, DType::I64)?.unsqueeze(0)?; // 1 s
        let angles = positions.unsqueeze(-1)?.to_dtype(DType::F32)?.mul(&inv_freq)?; // 1 s d/2
        let wide = if spec.interleaved {
            let twice = angles.unsqueeze(-1)?;
            Tensor::cat(&[&twice, &twice], -1)?.view(&[1, f.seq_len, spec.dim])?
        } else {
            Tensor::cat(&[&angles, &angles], -1)?
        };
        let cos = wide.cos()?.mul_scalar(1.0)?.to_dtype(dtype)?;
        let sin = wide.sin()?.mul_scalar(1.0)?.to_dtype(dtype)?;
        Ok((cos, sin))
    })
}

/// `(-x2, x1)` of the two halves, or of neighbours.
fn rotate_half(x: &Tensor, interleaved: bool) -> Result<Tensor> {
    let half = x.size(-1) / 2;
    if interleaved {
        let (x1, x2) = (x.narrow_step(-1, 0, half, 2)?, x.narrow_step(-1, 1, half, 2)?);
        let stacked = Tensor::stack(&[&x2.neg()?, &x1], -1)?;
        return stacked.view(x.shape());
    }
    let (x1, x2) = (x.narrow(-1, 0, half)?, x.narrow(-1, half, half)?);
    Tensor::cat(&[&x2.neg()?, &x1], -1)
}

/// One operand rotated: `x cos + rotate_half(x) sin`, the unrotated tail joined again.
fn turn(x: &Tensor, cos: &Tensor, sin: &Tensor, spec: &RotarySpec) -> Result<Tensor> {
    let d = x.size(-1);
    if spec.dim == d {
        let straight = x.mul(cos)?;
        return straight.add(&rotate_half(x, spec.interleaved)?.mul(sin)?);
    }
    let (head, tail) = (x.narrow(-1, 0, spec.dim)?, x.narrow(-1, spec.dim, d - spec.dim)?);
    let straight = head.mul(cos)?;
    let turned = straight.add(&rotate_half(&head, spec.interleaved)?.mul(sin)?)?;
    drop(straight);
    Tensor::cat(&[&turned, &tail], -1)
}

/// `apply_rotary_pos_emb`.
///
/// # Shapes
/// `b a s d`, `b k s d` -> the same
pub fn rotate(f: &Forward, spec: &RotarySpec, q: Tensor, k: Tensor, dtype: DType) -> Result<(Tensor, Tensor)> {
    let (cos, sin) = f.rotary(spec, || tables(f, spec, dtype))?;
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    Ok((turn(&q, &cos, &sin, spec)?, turn(&k, &cos, &sin, spec)?))
}

/// Additive mask `1 1 s s` of a causal, windowed or chunked attention.
pub fn additive_mask(f: &Forward, spec: &AttentionSpec, dtype: DType) -> Result<Tensor> {
    let key = (spec.window.unwrap_or(0), spec.chunk.unwrap_or(0));
    f.mask(key, || {
        let rt = &f.runtime;
        rt.no_grad(|| {
            let allowed = allowed_pairs(f, spec)?;
            let (zero, low) = (rt.zeros(&[], dtype)?, rt.full(&[], -1e30, dtype)?);
            allowed.where_cond(&zero, &low)
        })
    })
}

/// Boolean mask `b 1 s s` of the pairs that may attend.
fn allowed_pairs(f: &Forward, spec: &AttentionSpec) -> Result<Tensor> {
    let (rt, s) = (&f.runtime, f.seq_len);
    let keys = rt.arange(s, 0.0, 1.0, DType::I64)?;
    let queries = keys.unsqueeze(1)?;
    let mut allowed = keys.less_equal(&queries)?;
    if let Some(window) = spec.window {
        let first = queries.add_scalar(-(window as f64))?;
        allowed = allowed.logical_and(&first.less(&keys)?)?;
    }
    if let Some(chunk) = spec.chunk {
        // Same chunk: the query's chunk starts at or before the key.
        let starts = queries.div_scalar(chunk as f64)?.to_dtype(DType::I64)?.mul_scalar(chunk as f64)?;
        allowed = allowed.logical_and(&starts.less_equal(&keys)?)?;
    }
    allowed.unsqueeze(0)?.unsqueeze(0)?.expand(&[f.batch, 1, s, s])
}

/// Whether the reference passes a mask to its fused attention instead of the causal flag.
pub fn needs_mask(f: &Forward, spec: &AttentionSpec) -> bool {
    spec.window.is_some_and(|w| f.seq_len >= w) || spec.chunk.is_some_and(|c| f.seq_len > c)
}
