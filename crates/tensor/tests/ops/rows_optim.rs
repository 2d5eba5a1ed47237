//! Rows of the ops of optimizers: steps, moving averages, moments in bytes, stochastic rounding.

use crate::inputs::Inputs;
use crate::rows::{Row, row};
use napkin_tensor::ops::blockwise::{BLOCK, Code};
use napkin_tensor::ops::{adamw::AdamW, adamw_8bit::AdamW8bit, lion::Lion};
use napkin_tensor::rng::Stream;
use napkin_tensor::{DType, Result, Tensor};

/// The step of the rows of `AdamW`.
fn adamw(master: bool, weight_decay: f64) -> AdamW {
    AdamW { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay, step: 3, master }
}

/// A master copy of zeros.
fn master_copy(g: &Inputs, wanted: bool, shape: &[u64]) -> Result<Option<Tensor>> {
    wanted.then(|| g.rt.zeros(shape, DType::F32)).transpose()
}

fn step(g: &mut Inputs, master: bool, weight_decay: f64) -> Result<Vec<Tensor>> {
    let (param, grad, mean) = (g.target(&[2, 3])?, g.data(&[2, 3])?, g.target(&[2, 3])?);
    let square = g.target(&[2, 3])?;
    square.mul_(&square.copy()?)?;
    let copy = master_copy(g, master, &[2, 3])?;
    param.adamw_(&grad, &mean, &square, copy.as_ref(), &adamw(master, weight_decay))?;
    Ok(vec![param, mean, square])
}

fn lion(g: &mut Inputs, master: bool, weight_decay: f64) -> Result<Vec<Tensor>> {
    let (param, grad, mean) = (g.target(&[2, 3])?, g.data(&[2, 3])?, g.target(&[2, 3])?);
    let copy = master_copy(g, master, &[2, 3])?;
    param.lion_(&grad, &mean, copy.as_ref(), &Lion { lr: 0.1, beta1: 0.9, beta2: 0.99, weight_decay })?;
    Ok(vec![param, mean])
}

/// Bytes and scales of a moment of this shape, from random numbers.
fn moment(g: &mut Inputs, shape: &[u64], code: Code) -> Result<(Tensor, Tensor)> {
    let elements: u64 = shape.iter().product();
    let (bytes, scales) = (g.rt.zeros(shape, DType::U8)?, g.rt.zeros(&[elements.div_ceil(BLOCK)], DType::F32)?);
    let values = g.data(shape)?;
    let values = if code == Code::Signed { values } else { values.mul(&values)? };
    bytes.quantize_blockwise_(&scales, &values, code)?;
    Ok((bytes, scales))
}

fn step_8bit(g: &mut Inputs, master: bool, weight_decay: f64) -> Result<Vec<Tensor>> {
    // Two blocks, the second one short.
    let shape = [3, 100];
    let (param, grad) = (g.target(&shape)?, g.data(&shape)?);
    let (mean, square) = (moment(g, &shape, Code::Signed)?, moment(g, &shape, Code::Unsigned)?);
    let copy = master_copy(g, master, &shape)?;
    let op = AdamW8bit(adamw(master, weight_decay));
    param.adamw_8bit_(&grad, (&mean.0, &mean.1), (&square.0, &square.1), copy.as_ref(), &op)?;
    Ok(vec![param, mean.0, mean.1, square.0, square.1])
}

/// All rows of this file.
pub fn rows() -> Vec<Row> {
    vec![
        row("lerp_", |g| {
            let (x, end) = (g.target(&[2, 3])?, g.data(&[2, 3])?);
            Ok(vec![x.lerp_(&end, 0.1)?, x.lerp_(&end, 0.9)?])
        }),
        row("add_scaled_, addcmul_, addcdiv_", |g| {
            let (x, a, b) = (g.target(&[2, 3])?, g.data(&[2, 3])?, g.data(&[2, 3])?);
            Ok(vec![x.add_scaled_(&a, 0.5)?, x.addcmul_(&a, &b, -0.5)?, x.addcdiv_(&a, &b, 2.0)?])
        }),
        row("adamw_", |g| step(g, false, 0.1)),
        row("adamw_ without decay", |g| step(g, false, 0.0)),
        row("adamw_ with a master copy", |g| step(g, true, 0.1)),
        row("lion_", |g| lion(g, false, 0.1)),
        row("lion_ without decay, with a master copy", |g| lion(g, true, 0.0)),
        row("adamw_8bit_", |g| step_8bit(g, false, 0.1)),
        row("adamw_8bit_ without decay, with a master copy", |g| step_8bit(g, true, 0.0)),
        row("quantize and dequantize, signed", |g| {
            let (bytes, scales) = moment(g, &[2, 300], Code::Signed)?;
            Ok(vec![bytes.dequantize_blockwise(&scales, Code::Signed)?])
        }),
        row("quantize and dequantize, unsigned", |g| {
            let (bytes, scales) = moment(g, &[7], Code::Unsigned)?;
            Ok(vec![bytes.dequantize_blockwise(&scales, Code::Unsigned)?])
        }),
        row("stochastic_round_", |g| {
            let (x, y) = (g.rt.zeros(&[2, 3], DType::BF16)?, g.data(&[2, 3])?);
            Ok(vec![x.stochastic_round_(&y, g.rt.rng().for_stream(Stream::Rounding), 7)?])
        }),
    ]
}
