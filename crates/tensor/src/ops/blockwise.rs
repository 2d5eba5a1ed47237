//! Numbers as bytes: blocks of 256 share a scale, and a byte names one of 256 values between -1 and 1 that lie denser
//! towards zero. Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861; Dettmers,
//! 8-Bit Approximations for Parallelism in Deep Learning, arXiv:1511.04561 (dynamic tree quantisation).

use super::unary::need_float;
use super::{Op, Out, Outs, Rule, elementwise};
use crate::apply::apply;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::elementwise_layout;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::{Arc, OnceLock};

/// Elements that share a scale, in row-major order.
pub const BLOCK: u64 = 256;

/// Which 256 values the bytes name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Between -1 and 1.
    Signed,
    /// Between 0 and 1. A number above 0 never becomes 0: a mean of squares is divided by.
    Unsigned,
}

/// The values of the bytes, and the midpoints between them.
pub(super) struct Table {
    values: [f32; 256],
    midpoints: [f32; 255],
    zero: u8,
    positive: u8,
}

impl Code {
    /// Seven decades, each with twice the values of the one below it; then 0 and 1.
    fn table(self) -> &'static Table {
        static TABLES: [OnceLock<Table>; 2] = [const { OnceLock::new() }; 2];
        TABLES[self as usize].get_or_init(|| {
            let mut values = vec![0.0, 1.0];
            for decade in 0..7 {
                let count = 1 << (decade + i32::from(self == Self::Unsigned));
                for i in 0..count {
                    // The middle of the i-th of `count` equal parts of 0.1..1.
                    let fraction = 0.1 + 0.9 * (f64::from(i) + 0.5) / f64::from(count);
                    let value = fraction * 10f64.powi(decade - 6);
                    values.push(value);
                    if self == Self::Signed {
                        values.push(-value);
                    }
                }
            }
            values.sort_by(f64::total_cmp);
            let values: [f32; 256] = std::array::from_fn(|i| values[i] as f32);
            let zero = values.partition_point(|&v| v < 0.0) as u8;
            Table { values, midpoints: std::array::from_fn(|i| f32::midpoint(values[i], values[i + 1])), zero, positive: zero + 1 }
        })
    }

    /// The value of a byte.
    pub(super) fn value(self, byte: u8) -> f32 {
        self.table().values[usize::from(byte)]
    }

    /// The byte nearest to `x`, which is between -1 and 1.
    pub(super) fn byte(self, x: f32) -> u8 {
        let table = self.table();
        let nearest = table.midpoints.partition_point(|&m| m < x) as u8;
        if self == Self::Unsigned && x > 0.0 { nearest.max(table.positive) } else { nearest }
    }
}

/// Reads one block: 1 multiplication for each element.
pub(super) fn dequantize<T: Num>(code: Code, bytes: &[i64], scale: T) -> impl Iterator<Item = T> {
    bytes.iter().map(move |&byte| T::from_f64(f64::from(code.value(byte as u8))) * scale)
}

/// Writes one block and returns its scale, the largest magnitude: 1 division for each element.
pub(super) fn quantize<T: Num>(code: Code, values: &[T], bytes: &mut [i64]) -> T {
    let magnitude = |x: T| T::from_f64(x.to_f64().abs());
    let larger = |a: T, &b: &T| if magnitude(b).greater(a) { magnitude(b) } else { a };
    let scale = values.iter().fold(T::zero(), larger);
    for (byte, &x) in bytes.iter_mut().zip(values) {
        let part = (x / scale).to_f64() as f32;
        *byte = i64::from(if scale.to_f64() == 0.0 { code.table().zero } else { code.byte(part) });
    }
    scale
}

/// Refuses bytes and scales that do not belong together.
pub(super) fn need_blocks(op: &'static str, bytes: &Spec, scales: &Spec) -> Result<()> {
    if bytes.dtype != DType::U8 {
        return Err(Error::DType { op, got: bytes.dtype, expected: "u8 for the bytes" });
    }
    need_float(op, scales)?;
    if scales.shape() == [bytes.elements().div_ceil(BLOCK)] {
        return Ok(());
    }
    let rule = "there must be one scale for each 256 elements";
    Err(Error::Shapes { op, a: bytes.shape().into(), b: scales.shape().into(), rule })
}

/// Writes numbers as bytes and scales. Inputs: bytes, scales, numbers; the first two are written over.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizeBlockwise {
    /// Values of the bytes.
    pub code: Code,
}

impl Rule for QuantizeBlockwise {
    fn name(&self) -> &'static str {
        "quantize_blockwise_"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        need_blocks(op, &inputs[0], &inputs[1])?;
        need_float(op, &inputs[2])?;
        if inputs[0].shape() != inputs[2].shape() {
            let rule = "bytes and numbers must have one shape";
            return Err(Error::Shapes { op, a: inputs[0].shape().into(), b: inputs[2].shape().into(), rule });
        }
        Ok(smallvec![Out::InPlace(0), Out::InPlace(1)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(&inputs[2..], outputs, u128::from(inputs[2].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let mut bytes = outputs[0].ints();
        for (i, block) in inputs[2].num().data.chunks(BLOCK as usize).enumerate() {
            let start = i * BLOCK as usize;
            let scale = quantize(self.code, block, &mut bytes[start..start + block.len()]);
            outputs[1].num_mut().data[i] = scale;
        }
        write_bytes(&mut outputs[0], &bytes);
        Ok(())
    }
}

/// Writes integers into an operand.
pub(super) fn write_bytes<T: Num>(out: &mut Data<T>, bytes: &[i64]) {
    for (i, &byte) in bytes.iter().enumerate() {
        out.set_int(i, byte);
    }
}

/// Reads bytes and scales as numbers. Inputs: bytes, scales.
#[derive(Clone, Debug, PartialEq)]
pub struct DequantizeBlockwise {
    /// Values of the bytes.
    pub code: Code,
}

impl Rule for DequantizeBlockwise {
    fn name(&self) -> &'static str {
        "dequantize_blockwise"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        need_blocks(self.name(), &inputs[0], &inputs[1])?;
        let layout = elementwise_layout(inputs[0].shape(), &[&inputs[0].layout]);
        Ok(smallvec![Out::Fresh(Spec { dtype: inputs[1].dtype, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (bytes, scales, out) = (inputs[0].ints(), inputs[1].num(), outputs[0].num_mut());
        let blocks = bytes.chunks(BLOCK as usize).zip(&scales.data);
        let values = blocks.flat_map(|(block, &scale)| dequantize(self.code, block, scale));
        for (out, value) in out.data.iter_mut().zip(values) {
            *out = value;
        }
        Ok(())
    }
}

impl Tensor {
    /// Writes `values` into these bytes and into `scales`, one for each 256 of them.
    ///
    /// # Shapes
    /// bytes `shape..`, scales `n / 256` rounded up, values `shape..`
    ///
    /// # Errors
    /// Operands of other shapes or dtypes.
    pub fn quantize_blockwise_(&self, scales: &Self, values: &Self, code: Code) -> Result<()> {
        apply(Op::QuantizeBlockwise(QuantizeBlockwise { code }), &[self, scales, values]).map(drop)
    }

    /// The numbers that these bytes and their scales stand for.
    ///
    /// # Shapes
    /// bytes `shape..`, scales `n / 256` rounded up -> `shape..`
    ///
    /// # Errors
    /// Operands of other shapes or dtypes.
    pub fn dequantize_blockwise(&self, scales: &Self, code: Code) -> Result<Self> {
        Self::op(Op::DequantizeBlockwise(DequantizeBlockwise { code }), &[self, scales])
    }
}
