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

/// The values of the bytes, and where one byte ends and the next begins.
pub(crate) struct Table {
    values: [f32; 256],
    /// Halfway from each value to the next; the last has none.
    midpoints: [f32; 256],
    zero: u8,
    /// Whether what is above zero stays above it.
    above_zero: bool,
    /// By the upper half of the bits of a number: the byte of the smallest (in magnitude) that begins with these. Values
    /// are so far apart that at most one midpoint lies between two numbers with the same upper half.
    starts: Box<[u8; 1 << 16]>,
}

impl Code {
    /// Seven decades, each with twice the values of the one below it; then 0 and 1.
    pub(crate) fn table(self) -> &'static Table {
        static TABLES: [OnceLock<Table>; 2] = [const { OnceLock::new() }; 2];
        TABLES[self as usize].get_or_init(|| Table::new(self))
    }
}

impl Table {
    fn new(code: Code) -> Self {
        let mut values = vec![0.0, 1.0];
        for decade in 0..7 {
            let count = 1 << (decade + i32::from(code == Code::Unsigned));
            for i in 0..count {
                // The middle of the i-th of `count` equal parts of 0.1..1.
                let fraction = 0.1 + 0.9 * (f64::from(i) + 0.5) / f64::from(count);
                let value = fraction * 10f64.powi(decade - 6);
                values.push(value);
                if code == Code::Signed {
                    values.push(-value);
                }
            }
        }
        values.sort_by(f64::total_cmp);
        let values: [f32; 256] = std::array::from_fn(|i| values[i] as f32);
        let midpoints: [f32; 256] =
            std::array::from_fn(|i| values.get(i + 1).map_or(f32::INFINITY, |next| f32::midpoint(values[i], *next)));
        let nearest = |x: f32| midpoints[..255].partition_point(|&m| m < x) as u8;
        let starts = (0..1u32 << 16).map(|upper| nearest(f32::from_bits(upper << 16))).collect::<Vec<u8>>();
        let starts = starts.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("there are 2^16"));
        let zero = values.partition_point(|&v| v < 0.0) as u8;
        Self { values, midpoints, zero, above_zero: code == Code::Unsigned, starts }
    }

    /// The value of a byte.
    #[inline(always)]
    pub(crate) fn value(&self, byte: u8) -> f32 {
        self.values[usize::from(byte)]
    }

    /// The byte nearest to `x`, which is between -1 and 1; of two that are, the lower.
    #[inline(always)]
    pub(crate) fn byte(&self, x: f32) -> u8 {
        let start = self.starts[(x.to_bits() >> 16) as usize];
        // Away from zero is up for positive numbers, and down for negative ones.
        let nearest = if x > 0.0 {
            start + u8::from(self.midpoints[usize::from(start)] < x)
        } else {
            start - u8::from(start > 0 && self.midpoints[usize::from(start.wrapping_sub(1))] >= x)
        };
        nearest + u8::from(self.above_zero && nearest == self.zero && x > 0.0)
    }
}

/// Reads one block: 1 multiplication for each element.
pub(super) fn dequantize<T: Num>(code: Code, bytes: &[i64], scale: T) -> impl Iterator<Item = T> {
    let table = code.table();
    bytes.iter().map(move |&byte| T::from_f64(f64::from(table.value(byte as u8))) * scale)
}

/// Writes one block and returns its scale, the largest magnitude: 1 division for each element.
pub(super) fn quantize<T: Num>(code: Code, values: &[T], bytes: &mut [i64]) -> T {
    let magnitude = |x: T| T::from_f64(x.to_f64().abs());
    let larger = |a: T, &b: &T| if magnitude(b).greater(a) { magnitude(b) } else { a };
    let scale = values.iter().fold(T::zero(), larger);
    let table = code.table();
    for (byte, &x) in bytes.iter_mut().zip(values) {
        let part = (x / scale).to_f64() as f32;
        *byte = i64::from(if scale.to_f64() == 0.0 { table.zero } else { table.byte(part) });
    }
    scale
}

/// [`dequantize`] of bytes as they lie.
#[cfg(feature = "cpu")]
#[inline(always)]
pub(super) fn read_block(table: &Table, bytes: &[u8], scale: f32, to: &mut [f32]) {
    for (to, &byte) in to.iter_mut().zip(bytes) {
        *to = table.value(byte) * scale;
    }
}

/// [`quantize`] to bytes as they lie.
#[cfg(feature = "cpu")]
#[inline(always)]
pub(super) fn write_block(table: &Table, values: &[f32], bytes: &mut [u8]) -> f32 {
    // NaN is larger than anything.
    let scale = values.iter().fold(0f32, |a, b| if b.abs() > a || b.is_nan() { b.abs() } else { a });
    for (byte, &x) in bytes.iter_mut().zip(values) {
        *byte = if scale == 0.0 { table.zero } else { table.byte(x / scale) };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a search of all values, and of all numbers with these upper bits at both ends.
    #[test]
    fn the_nearest_byte_is_found_at_once() {
        for code in [Code::Signed, Code::Unsigned] {
            let table = code.table();
            let ends = (0..1u32 << 16).flat_map(|upper| [0, 1, 0x7FFF, 0xFFFF].map(|lower| upper << 16 | lower));
            let around = table.midpoints[..255].iter().flat_map(|m| [m.to_bits() - 1, m.to_bits(), m.to_bits() + 1]);
            for x in ends.chain(around).map(f32::from_bits) {
                let range = if code == Code::Signed { -1.0..=1.0 } else { 0.0..=1.0 };
                if !range.contains(&x) {
                    continue;
                }
                let mut best = table.midpoints[..255].partition_point(|&m| m < x) as u8;
                if code == Code::Unsigned && x > 0.0 {
                    best = best.max(1);
                }
                assert_eq!(table.byte(x), best, "{code:?} {x:e}");
            }
        }
    }

    #[test]
    fn there_are_256_values_in_order() {
        for (code, lowest) in [(Code::Signed, -0.992_968_75), (Code::Unsigned, 0.0)] {
            let values = code.table().values;
            assert!(values.windows(2).all(|w| w[0] < w[1]), "{code:?}");
            assert_eq!((values[0], values[255]), (lowest, 1.0), "{code:?}");
            assert_eq!(values[usize::from(code.table().zero)], 0.0);
        }
    }
}
