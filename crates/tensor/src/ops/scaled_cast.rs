//! Casts to narrow floats with a scale for the whole tensor, so that its numbers fill the range of the type, and the
//! largest magnitude noted on the way. Source: Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433.

use super::unary::need_float;
use super::{Op, Out, Outs, Rule};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::Args;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::float_format::FloatFormat;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Inputs: numbers, their scale, and the largest magnitude seen so far, which is raised. A scale of 0 says that none is
/// known yet: then it follows from these numbers. Outputs: the numbers times the scale in the narrow type, cut off at its
/// largest (infinities too, as the hardware's saturating casts do it; the magnitude noted shows them), NaN where they are;
/// and the inverse of the scale.
///
/// The gradient of the result is that of the numbers it stands for (not of the scaled ones), in a wider type, and is
/// passed on as theirs: [`super::scaled_matmul`] gives it so.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledCast {
    /// dtype of the result.
    pub to: DType,
}

/// Largest finite number of a float dtype.
fn largest(dtype: DType) -> f64 {
    FloatFormat::of(dtype).map_or(f64::MAX, |format| format.max_finite())
}

/// The scale to use: the one that is known, or what brings the largest magnitude `top` to the largest number.
fn scale_for<T: Num>(known: T, top: T, largest: f64) -> T {
    let fitting = T::from_f64(largest) / top;
    match (known.to_f64(), top.to_f64()) {
        (0.0, top) if top > 0.0 && top.is_finite() => fitting,
        (0.0, _) => T::one(),
        _ => known,
    }
}

/// The larger of two magnitudes; NaN above all.
fn larger<T: Num>(a: T, b: T) -> T {
    if b.greater(a) { b } else { a }
}

/// Refuses what is not one number.
pub(super) fn need_scalar(op: &'static str, spec: &Spec) -> Result<()> {
    need_float(op, spec)?;
    if spec.elements() == 1 {
        Ok(())
    } else {
        Err(Error::Argument { op, what: format!("a scale is one number, not {:?}", spec.shape()) })
    }
}

impl Rule for ScaledCast {
    fn name(&self) -> &'static str {
        "scaled_cast"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        need_float(op, &inputs[0])?;
        need_scalar(op, &inputs[1])?;
        need_scalar(op, &inputs[2])?;
        if !self.to.is_float() {
            return Err(Error::DType { op, got: self.to, expected: "a floating-point dtype" });
        }
        // Row-major, whatever the input: products of narrow types read rows.
        let narrow = Out::fresh(inputs[0].shape(), self.to)?;
        Ok(smallvec![narrow, Out::fresh(&[], inputs[1].dtype)?, Out::InPlace(2)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Beside the products: the scale and its inverse.
        let flops = u128::from(inputs[0].elements()) + 2;
        super::elementwise(inputs, outputs, flops)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = &inputs[0].num().data;
        let top = x.iter().fold(T::zero(), |top, x| larger(top, T::from_f64(x.to_f64().abs())));
        let largest = largest(self.to);
        let scale = scale_for(inputs[1].num().data[0], top, largest);
        for (out, &x) in outputs[0].num_mut().data.iter_mut().zip(x) {
            let scaled = x * scale;
            *out = if scaled.to_f64().abs() > largest { T::from_f64(largest.copysign(scaled.to_f64())) } else { scaled };
        }
        outputs[1].num_mut().data[0] = T::one() / scale;
        let seen = &mut outputs[2].num_mut().data[0];
        *seen = larger(*seen, top);
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(fast::run(self.to, args))
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(back.grad()?.to_dtype(back.spec(0).dtype)?), None, None])
    }
}

#[cfg(feature = "cpu")]
mod fast {
    use super::{larger, largest, scale_for};
    use crate::cpu::Args;
    use crate::cpu::elementwise::CHUNK;
    use crate::cpu::simd::vectorized;
    use crate::cpu::typed::{Real, Typed};
    use crate::dtype::DType;
    use rayon::prelude::*;

    /// Elements that are looked at together.
    const BLOCK: usize = 1024;

    /// The code of the nearest number with `BITS` bits of mantissa and exponents of bias `BIAS`, ties to even, at most
    /// `largest`; NaN stays NaN. Without a branch, so that a loop over it becomes vector instructions.
    #[inline(always)]
    fn code<const BITS: u32, const BIAS: u32>(x: f32, largest: f32) -> u8 {
        let magnitude = if x.abs() > largest { largest } else { x.abs() };
        let bits = magnitude.to_bits();
        let dropped = 23 - BITS;
        let even = bits.wrapping_add((1 << (dropped - 1)) - 1 + (bits >> dropped & 1)) >> dropped;
        let normal = even.wrapping_sub((127 - BIAS) << BITS);
        // The sum has the spacing of subnormal numbers.
        let spaced = f32::from_bits((127 + 1 - BIAS + dropped) << 23);
        let subnormal = (magnitude + spaced).to_bits().wrapping_sub(spaced.to_bits());
        let finite = if magnitude < f32::from_bits((127 + 1 - BIAS) << 23) { subnormal } else { normal };
        let code = if magnitude.is_nan() { 0x7F } else { finite };
        (x.to_bits() >> 24 & 0x80 | code) as u8
    }

    /// Codes of numbers times a scale, at most the largest number.
    type Encode = fn(&[f32], f32, f32, &mut [u8]);

    fn encode<const BITS: u32, const BIAS: u32>(x: &[f32], scale: f32, largest: f32, to: &mut [u8]) {
        vectorized(
            #[inline(always)]
            || {
                for (to, x) in to.iter_mut().zip(x) {
                    *to = code::<BITS, BIAS>(x * scale, largest);
                }
            },
        );
    }

    fn encoder(to: DType) -> Option<Encode> {
        match to {
            DType::F8E4M3 => Some(encode::<3, 7>),
            DType::F8E5M2 => Some(encode::<2, 15>),
            _ => None,
        }
    }

    pub(super) fn run(to: DType, args: &mut Args<'_>) -> bool {
        let Args { inputs, outputs } = args;
        let wide = inputs.iter().any(|x| x.dtype == DType::F64);
        let Some(encode) = encoder(to).filter(|_| !wide && inputs[0].layout.is_contiguous()) else { return false };
        let (Some(x), Some(known)) = (inputs[0].typed(), inputs[1].typed()) else { return false };
        let mut scale = [0f32];
        known.read(0, 1, &mut scale);
        let count = inputs[0].elements();
        let [mut scale] = scale;
        if scale == 0.0 {
            let all = (0..count).into_par_iter().step_by(CHUNK).map(|first| largest_of(x, first, CHUNK.min(count - first)));
            scale = scale_for(0.0, all.reduce(|| 0.0, larger), largest(to));
        }
        let Some(narrow) = outputs[0].dense::<u8>() else { return false };
        let pieces = narrow.par_chunks_mut(CHUNK).enumerate();
        let encode = |x: &[f32], codes: &mut [u8]| encode(x, scale, largest(to) as f32, codes);
        let top = pieces.map(|(i, codes)| convert(x, i * CHUNK, codes, encode)).reduce(|| 0.0, larger);
        outputs[1].typed().write(0, 1, &[1.0 / scale]);
        let mut amax = outputs[2].typed();
        let mut old = [0f32];
        amax.as_read().read(0, 1, &mut old);
        amax.write(0, 1, &[larger(old[0], top)]);
        true
    }

    fn blocks(x: Typed<'_>, first: usize, count: usize, mut each: impl FnMut(usize, &[f32])) {
        let mut buffer = [0f32; BLOCK];
        for start in (0..count).step_by(BLOCK) {
            let len = BLOCK.min(count - start);
            if let Some(slice) = f32::slice(&x) {
                each(start, &slice[first + start..][..len]);
            } else {
                x.read(first + start, 1, &mut buffer[..len]);
                each(start, &buffer[..len]);
            }
        }
    }

    /// Of magnitudes the bits are in order, NaN above all.
    #[inline(always)]
    fn magnitude(x: f32) -> u32 {
        x.to_bits() & 0x7FFF_FFFF
    }

    fn largest_bits(x: &[f32]) -> u32 {
        vectorized(
            #[inline(always)]
            || x.iter().fold(0, |top, &x| magnitude(x).max(top)),
        )
    }

    fn largest_of(x: Typed<'_>, first: usize, count: usize) -> f32 {
        let mut top = 0;
        blocks(x, first, count, |_, x| top = top.max(largest_bits(x)));
        f32::from_bits(top)
    }

    /// Writes the codes of a stretch, and gives its largest magnitude.
    fn convert(x: Typed<'_>, first: usize, to: &mut [u8], encode: impl Fn(&[f32], &mut [u8])) -> f32 {
        let mut top = 0;
        blocks(x, first, to.len(), |start, x| {
            encode(x, &mut to[start..][..x.len()]);
            top = top.max(largest_bits(x));
        });
        f32::from_bits(top)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::float_format::convert;

        /// Every f32 whose lower half does not matter to rounding, or is what decides it.
        #[test]
        fn codes_are_those_of_the_conversion() {
            for (to, one) in [
                (DType::F8E4M3, convert::f32_to_f8e4m3_bits_saturating as fn(f32) -> u8),
                (DType::F8E5M2, convert::f32_to_f8e5m2_bits_saturating),
            ] {
                for high in 0..1u32 << 16 {
                    let x = [0, 1, 0x7FFF, 0x8000, 0xFFFF].map(|low| f32::from_bits(high << 16 | low));
                    let mut codes = [0; 5];
                    encoder(to).unwrap()(&x, 1.0, largest(to) as f32, &mut codes);
                    assert_eq!(codes, x.map(one), "{to} {x:?}");
                }
            }
        }
    }
}

impl Tensor {
    /// These numbers in a narrow type, times `scale` (or, if that is 0, what fits them), and the inverse of the scale.
    /// Raises `amax` to their largest magnitude.
    ///
    /// # Shapes
    /// self `shape..`, scale `1 element`, amax `1 element` -> `shape..` row-major, and one number
    ///
    /// # Errors
    /// [`Error::DType`] for integers.
    pub fn scaled_cast(&self, to: DType, scale: &Self, amax: &Self) -> Result<(Self, Self)> {
        let mut out = apply(Op::ScaledCast(ScaledCast { to }), &[self, scale, amax])?;
        let inverse = out.swap_remove(1).detach();
        Ok((out.swap_remove(0), inverse))
    }
}
