//! Rotary position embedding in the steps of transformers.

use crate::context::Forward;
use crate::spec::{RotaryForm, RotaryJoin, RotaryPrecision, RotarySpec};
use tensor::ops::rope::RopeStyle;
use tensor::{DType, Result, Tensor};

/// Cosine and sine, made once per pass.
///
/// # Shapes
/// `1 s dim`
pub fn tables(f: &Forward, spec: &RotarySpec, dtype: DType) -> Result<(Tensor, Tensor)> {
    f.rotary(spec, || make(f, spec, dtype))
}

pub(in crate::modules) fn make(f: &Forward, spec: &RotarySpec, dtype: DType) -> Result<(Tensor, Tensor)> {
    let rt = &f.runtime;
    let wide_tables = spec.precision == RotaryPrecision::WideTables || spec.form == RotaryForm::Complex;
    let dtype = if wide_tables { DType::F32 } else { dtype };
    rt.no_grad(|| {
        let exponents = rt.arange(spec.dim / 2, 0.0, -2.0 / spec.dim as f64, DType::F32)?;
        let inv_freq = exponents.mul_scalar(spec.theta.ln())?.exp()?;
        let inv_freq = super::still(inv_freq, spec)?;
        let positions = rt.arange(f.seq_len, 0.0, spec.sign(), DType::I64)?.unsqueeze(0)?; // 1 s
        let angles = positions.unsqueeze(-1)?.to_dtype(DType::F32)?.mul(&inv_freq)?; // 1 s d/2
        let wide = match spec.form {
            RotaryForm::Halves => angles,
            RotaryForm::Complex => twice(&angles)?,
            RotaryForm::RotateHalf if spec.interleaved && !spec.widened => twice(&angles)?,
            RotaryForm::RotateHalf | RotaryForm::Neighbours => Tensor::cat(&[&angles, &angles], -1)?,
        };
        let cos = wide.cos()?.mul_scalar(1.0)?.to_dtype(dtype)?;
        let sin = wide.sin()?.mul_scalar(1.0)?.to_dtype(dtype)?;
        Ok((cos, sin))
    })
}

/// Each entry of the last dimension twice, neighbours.
fn twice(x: &Tensor) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last *= 2;
    }
    let column = x.unsqueeze(-1)?;
    Tensor::cat(&[&column, &column], -1)?.view(&shape)
}

/// `(-x2, x1)` of the two halves, or of neighbours.
pub(in crate::modules) fn rotate_half(x: &Tensor, interleaved: bool) -> Result<Tensor> {
    let half = x.size(-1) / 2;
    if interleaved {
        let (x1, x2) = (x.narrow_step(-1, 0, half, 2)?, x.narrow_step(-1, 1, half, 2)?);
        let stacked = Tensor::stack(&[&x2.neg()?, &x1], -1)?;
        return stacked.view(x.shape());
    }
    let (x1, x2) = (x.narrow(-1, 0, half)?, x.narrow(-1, half, half)?);
    Tensor::cat(&[&x2.neg()?, &x1], -1)
}

/// The two halves of every pair turned apart and joined.
fn turn_apart(x: &Tensor, cos: &Tensor, sin: &Tensor, form: RotaryForm) -> Result<Tensor> {
    let half = x.size(-1) / 2;
    let (x1, x2) = if form == RotaryForm::Neighbours {
        (x.narrow_step(-1, 0, half, 2)?, x.narrow_step(-1, 1, half, 2)?)
    } else {
        let halves = x.split(&[half, half], -1)?;
        (halves[0].clone(), halves[1].clone())
    };
    let first = x1.mul(cos)?.sub(&x2.mul(sin)?)?;
    let second = x2.mul(cos)?.add(&x1.mul(sin)?)?;
    Tensor::cat(&[&first, &second], -1)
}

/// Neighbours as complex numbers: one product each.
fn turn_complex(x: &Tensor, cos: &Tensor, sin: &Tensor, spec: &RotarySpec) -> Result<Tensor> {
    let shape = [cos.size(1), cos.size(2)];
    let (cos, sin) = (cos.view(&shape)?, sin.view(&shape)?);
    x.to_dtype(DType::F32)?.rope(&cos, &sin, spec.dim, RopeStyle::Interleaved)?.to_dtype(x.dtype())
}

/// `x cos + rotate_half(x) sin`
fn turn(x: &Tensor, cos: &Tensor, sin: &Tensor, spec: &RotarySpec) -> Result<Tensor> {
    let straight = x.mul(cos)?;
    let across = rotate_half(x, spec.interleaved)?;
    let turned = across.mul(sin)?;
    drop(across);
    straight.add(&turned)
}

/// The rotated part of a head and, unless it is empty, the rest.
fn cut(x: &Tensor, spec: &RotarySpec) -> Result<(Tensor, Option<Tensor>)> {
    let rest = x.size(-1) - spec.dim;
    let tail = if rest == 0 { None } else { Some(x.narrow(-1, spec.dim, rest)?) };
    Ok((x.narrow(-1, 0, spec.dim)?, tail))
}

/// A copy of both parts side by side, made even if there is only one.
fn join(turned: &Tensor, tail: Option<&Tensor>) -> Result<Tensor> {
    match tail {
        Some(tail) => Tensor::cat(&[turned, tail], -1),
        None => Tensor::cat(&[turned], -1),
    }
}

/// Queries alone, whole heads in halves: `b a s d -> b a s d`.
pub fn rotate_one(f: &Forward, spec: &RotarySpec, q: &Tensor, dtype: DType) -> Result<Tensor> {
    let (cos, sin) = tables(f, spec, dtype)?;
    turn(q, &cos.unsqueeze(1)?, &sin.unsqueeze(1)?, spec)
}

/// `apply_rotary_pos_emb`.
///
/// # Shapes
/// `b a s d`, `b k s d` -> the same
pub fn rotate(f: &Forward, spec: &RotarySpec, q: Tensor, k: Tensor, dtype: DType) -> Result<(Tensor, Tensor)> {
    let (cos, sin) = tables(f, spec, dtype)?;
    if spec.form == RotaryForm::Complex {
        return Ok((turn_complex(&q, &cos, &sin, spec)?, turn_complex(&k, &cos, &sin, spec)?));
    }
    let (mut cos, mut sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    if spec.form != RotaryForm::RotateHalf {
        let half = spec.dim / 2;
        (cos, sin) = (cos.narrow(-1, 0, half)?, sin.narrow(-1, 0, half)?);
        return Ok((turn_apart(&q, &cos, &sin, spec.form)?, turn_apart(&k, &cos, &sin, spec.form)?));
    }
    if spec.widened {
        let half = spec.dim / 2;
        cos = f.runtime.no_grad(|| twice(&cos.narrow(-1, 0, half)?))?;
        sin = f.runtime.no_grad(|| twice(&sin.narrow(-1, 0, half)?))?;
    }
    let (q_dtype, k_dtype) = (q.dtype(), k.dtype());
    let raise = |x: &Tensor| match spec.precision {
        RotaryPrecision::WideOperands => x.to_dtype(DType::F32),
        RotaryPrecision::Stream | RotaryPrecision::WideTables => Ok(x.clone()),
    };
    let (wide_q, wide_k) = (raise(&q)?, raise(&k)?);
    let (q_turned, k_turned) = match spec.join {
        RotaryJoin::IfAny if spec.dim == q.size(-1) => {
            (turn(&wide_q, &cos, &sin, spec)?, turn(&wide_k, &cos, &sin, spec)?)
        }
        RotaryJoin::IfAny | RotaryJoin::Each => {
            let each = |x: &Tensor| {
                let (head, tail) = cut(x, spec)?;
                join(&turn(&head, &cos, &sin, spec)?, tail.as_ref())
            };
            (each(&wide_q)?, each(&wide_k)?)
        }
        RotaryJoin::Last => {
            let ((q_head, q_tail), (k_head, k_tail)) = (cut(&wide_q, spec)?, cut(&wide_k, spec)?);
            let (q_turned, k_turned) = (turn(&q_head, &cos, &sin, spec)?, turn(&k_head, &cos, &sin, spec)?);
            (join(&q_turned, q_tail.as_ref())?, join(&k_turned, k_tail.as_ref())?)
        }
    };
    if spec.precision == RotaryPrecision::Stream {
        return Ok((q_turned, k_turned));
    }
    Ok((q_turned.to_dtype(q_dtype)?, k_turned.to_dtype(k_dtype)?))
}
