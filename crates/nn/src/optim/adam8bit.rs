//! `AdamW` whose running means are stored in one byte per element, with one f32 per block of 256. Source: Dettmers et al.,
//! 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861.

use super::Kind;
use super::adam;
use super::state::{Slot, State};
use super::update::Update;
use tensor::ops::adamw_8bit::AdamW8bit;
use tensor::ops::blockwise::{BLOCK, Code};
use tensor::{DType, Result, Tensor};

/// Largest magnitude in each block of the mean of gradients.
const MEAN_SCALE: &str = "exp_avg_absmax";
/// Largest value in each block of the mean of squares.
const SQUARES_SCALE: &str = "exp_avg_sq_absmax";

/// Parameters with fewer elements keep f32 means: they take no bytes worth saving, and norms and biases are among them.
///
/// Source: bitsandbytes (51294d9), `optim/optimizer.py`, `min_8bit_size` and `Optimizer2State.init_state`.
const SMALLEST: u64 = 4096;

/// Whether a parameter is large enough.
pub(super) fn takes(shape: &[u64]) -> bool {
    shape.iter().product::<u64>() >= SMALLEST
}

/// Both means in bytes, and the scales of their blocks.
pub(super) fn slots(shape: &[u64]) -> Vec<Slot> {
    let blocks = [shape.iter().product::<u64>().div_ceil(BLOCK)];
    vec![
        Slot::new(adam::MEAN, shape, DType::U8),
        Slot::new(MEAN_SCALE, &blocks, DType::F32),
        Slot::new(adam::SQUARES, shape, DType::U8),
        Slot::new(SQUARES_SCALE, &blocks, DType::F32),
    ]
}

/// A step of `AdamW` on the means read from their bytes; they are rounded to bytes again after the weight has moved.
pub(super) fn update(u: &Update<'_>) -> Result<Option<Tensor>> {
    let means = [(adam::MEAN, MEAN_SCALE, Code::Signed), (adam::SQUARES, SQUARES_SCALE, Code::Unsigned)];
    if u.fused() {
        let [first, second] = means.map(|(bytes, scale, _)| (u.state.get(bytes), u.state.get(scale)));
        let op = AdamW8bit(adam::op(u));
        u.param.adamw_8bit_(u.grad, first, second, u.master(), &op)?;
        return Ok(None);
    }
    let mut wide = Vec::new();
    for (bytes, scale, code) in means {
        wide.push((bytes, u.state.get(bytes).dequantize_blockwise(u.state.get(scale), code)?));
    }
    wide.extend(u.master().map(|master| (Slot::MASTER, master.clone())));
    let wide = State::of(wide);
    let root = adam::update(&Update { rule: Kind::AdamW, state: &wide, ..*u })?;
    for (bytes, scale, code) in means {
        u.state.get(bytes).quantize_blockwise_(u.state.get(scale), wide.get(bytes), code)?;
    }
    Ok(root)
}
