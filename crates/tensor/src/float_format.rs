//! Floating-point formats as data: what each one can hold, and bit-exact rounding into it.
//!
//! One generic encoder and decoder covers every format from fp64 down to the 8-bit ones, so that the facts that
//! `napkin dtype` prints and the rounding that kernels do come from the same few lines. Kernels use the specialised
//! conversions in [`convert`]; tests hold them equal to this module on every bit pattern.
//!
//! Sources: IEEE 754-2019 for binary64, binary32 and binary16; OCP 8-bit Floating Point Specification (OFP8) 1.0 for
//! E4M3 and E5M2.

pub mod convert;
mod describe;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod torch_reference;

pub use describe::{Description, Note};

use crate::dtype::DType;

/// Explicit mantissa bits of an `f64`, the carrier of all exact values here.
const F64_MANTISSA_BITS: u32 = 52;
/// Exponent of the last place of every subnormal `f64`.
const F64_MIN_PLACE: i32 = -1074;

/// A binary floating-point format: sign, biased exponent, mantissa with a hidden bit, gradual underflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct FloatFormat {
    /// The field's short name: `fp64`, `fp32`, `tf32`, `bf16`, `fp16`, `e4m3`, `e5m2`.
    pub name: &'static str,
    /// Width of the exponent field, in bits.
    pub exponent_bits: u32,
    /// Width of the mantissa field, in bits; the hidden bit is not counted.
    pub mantissa_bits: u32,
    /// The value subtracted from the exponent field of a normal number.
    pub bias: i32,
    /// True when the all-ones exponent is reserved for infinities and NaNs as in IEEE 754. False for E4M3, which
    /// spends that exponent on numbers and keeps one NaN per sign.
    pub has_infinity: bool,
}

/// What a finite value too large for the format, or an infinity, becomes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Overflow {
    /// Infinity, or NaN in a format without infinity: IEEE 754's rule and OFP8's non-saturating mode. A finite value
    /// overflows when it rounds beyond the largest finite value *as if the exponent had no upper limit*; for E4M3
    /// all up to and including 464 still becomes 448.
    ///
    /// `PyTorch` casts so to every format, with one change: to E4M3 it gave NaN before 2.12 and saturates since.
    NonSaturating,
    /// The largest finite value with the same sign, for infinities too: OFP8's saturating mode, and what fp8 training
    /// recipes use when they cast scaled tensors. NaN stays NaN.
    Saturating,
}

impl FloatFormat {
    /// IEEE 754 binary64.
    pub const FP64: Self = Self::ieee("fp64", 11, 52);
    /// IEEE 754 binary32.
    pub const FP32: Self = Self::ieee("fp32", 8, 23);
    /// `TensorFloat`-32: the operand format of tensor cores fed with fp32. 19 bits wide, stored in 32. Hardware may
    /// round ties away from zero on the way in; here ties go to even as everywhere.
    pub const TF32: Self = Self::ieee("tf32", 8, 10);
    /// bfloat16.
    pub const BF16: Self = Self::ieee("bf16", 8, 7);
    /// IEEE 754 binary16.
    pub const FP16: Self = Self::ieee("fp16", 5, 10);
    /// OFP8 E4M3 (`float8_e4m3fn`): no infinity, largest finite value 448, NaN is 0x7F and 0xFF.
    pub const E4M3: Self = Self { has_infinity: false, ..Self::ieee("e4m3", 4, 3) };
    /// OFP8 E5M2: IEEE-like, largest finite value 57344.
    pub const E5M2: Self = Self::ieee("e5m2", 5, 2);

    /// Every format, widest first.
    pub const ALL: [Self; 7] = [Self::FP64, Self::FP32, Self::TF32, Self::BF16, Self::FP16, Self::E4M3, Self::E5M2];

    const fn ieee(name: &'static str, exponent_bits: u32, mantissa_bits: u32) -> Self {
        Self { name, exponent_bits, mantissa_bits, bias: (1 << (exponent_bits - 1)) - 1, has_infinity: true }
    }

    /// The format in which tensors of `dtype` are stored; `None` for integers and bool.
    pub const fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F64 => Self::FP64,
            DType::F32 => Self::FP32,
            DType::F16 => Self::FP16,
            DType::BF16 => Self::BF16,
            DType::F8E4M3 => Self::E4M3,
            DType::F8E5M2 => Self::E5M2,
            DType::I64 | DType::I32 | DType::U32 | DType::U16 | DType::U8 | DType::Bool => {
                return None;
            }
        })
    }

    /// Bits that carry information: 1 + exponent + mantissa. 19 for tf32, although it is stored in 32.
    pub const fn width(&self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits
    }

    /// Code of positive infinity; `None` when the format has none.
    pub const fn infinity_bits(&self) -> Option<u64> {
        if self.has_infinity { Some(self.max_finite_bits() + 1) } else { None }
    }

    /// Code of the positive quiet NaN that [`encode`](Self::encode) produces.
    pub const fn nan_bits(&self) -> u64 {
        if self.has_infinity {
            (self.max_finite_bits() + 1) | 1 << (self.mantissa_bits - 1)
        } else {
            (1 << (self.width() - 1)) - 1
        }
    }

    /// Code of the largest finite value.
    pub const fn max_finite_bits(&self) -> u64 {
        let all_ones = (1 << (self.width() - 1)) - 1;
        if self.has_infinity { all_ones - (1 << self.mantissa_bits) } else { all_ones - 1 }
    }

    /// The largest finite value.
    pub fn max_finite(&self) -> f64 {
        self.decode(self.max_finite_bits())
    }

    /// The smallest positive value with full precision, `2^(1 - bias)`.
    pub fn min_normal(&self) -> f64 {
        power_of_two(self.min_exponent())
    }

    /// The smallest positive value, `2^(1 - bias - mantissa_bits)`.
    pub fn min_subnormal(&self) -> f64 {
        power_of_two(self.min_exponent() - self.mantissa_bits as i32)
    }

    /// The distance from 1 to the next larger value, `2^-mantissa_bits` (the field's `eps`; rounding errs by at
    /// most half of it, relatively).
    pub fn epsilon(&self) -> f64 {
        power_of_two(-(self.mantissa_bits as i32))
    }

    /// The largest `n` such that every integer of magnitude up to `n` is stored exactly, `2^(mantissa_bits + 1)`.
    /// Counting in steps of one stops here, because `n + 1` is a tie that goes back to `n`.
    pub const fn max_exact_integer(&self) -> u64 {
        1 << (self.mantissa_bits + 1)
    }

    /// Exponent of the smallest normal number and of all subnormals.
    const fn min_exponent(&self) -> i32 {
        1 - self.bias
    }

    /// The code of the value nearest to `x`, ties to even, overflow as [`Overflow::NonSaturating`].
    ///
    /// One rounding from the `f64` given, whatever the format: never through an intermediate format. An `f32`
    /// argument widens exactly, so this is also the exact conversion from `f32`. NaN keeps its sign and becomes
    /// [`nan_bits`](Self::nan_bits).
    pub fn encode(&self, x: f64) -> u64 {
        self.encode_with(x, Overflow::NonSaturating)
    }

    /// As [`encode`](Self::encode), with the overflow rule chosen.
    pub fn encode_with(&self, x: f64, overflow: Overflow) -> u64 {
        let sign = (x.to_bits() >> 63) << (self.width() - 1);
        if x.is_nan() {
            return sign | self.nan_bits();
        }
        let largest = self.max_finite_bits();
        let cap = match overflow {
            // One past the largest finite code is infinity in the IEEE-like formats and NaN in E4M3: in both, where
            // rounding with an unbounded exponent lands first.
            Overflow::NonSaturating => largest + 1,
            Overflow::Saturating => largest,
        };
        let code = if x.is_infinite() { cap } else { self.round_magnitude(x.abs()) };
        sign | code.min(cap)
    }

    /// Code of the finite `x >= 0` rounded to nearest even, without an upper limit to the exponent field.
    fn round_magnitude(&self, x: f64) -> u64 {
        let bits = x.to_bits();
        let fraction = bits & ((1 << F64_MANTISSA_BITS) - 1);
        let (significand, place) = match (bits >> F64_MANTISSA_BITS) as i32 {
            0 => (fraction, F64_MIN_PLACE),
            field => (fraction | 1 << F64_MANTISSA_BITS, field - 1 + F64_MIN_PLACE),
        };
        let exponent = self.binade(significand, place);
        let shift = exponent - self.mantissa_bits as i32 - place;
        // The hidden bit is part of the rounded significand and adds one to the field below it, which is why the
        // field starts one lower; so does the carry of a round up to the next power of two. Subnormals have neither.
        let field = (exponent - self.min_exponent()) as u64;
        (field << self.mantissa_bits) + shift_right_to_even(significand, shift as u32)
    }

    /// Exponent of the binade of `significand * 2^place` in this format; subnormals share the lowest normal one.
    fn binade(&self, significand: u64, place: i32) -> i32 {
        let top = 63 - significand.leading_zeros() as i32;
        (place + top).max(self.min_exponent())
    }

    /// The exact value of a code. Bits above [`width`](Self::width) are ignored.
    pub fn decode(&self, bits: u64) -> f64 {
        let sign_bit = self.width() - 1;
        let magnitude_bits = bits & ((1 << sign_bit) - 1);
        let magnitude = if magnitude_bits <= self.max_finite_bits() {
            let hidden = 1 << self.mantissa_bits;
            let mantissa = magnitude_bits & (hidden - 1);
            let (significand, exponent) = match (magnitude_bits >> self.mantissa_bits) as i32 {
                0 => (mantissa, self.min_exponent()),
                field => (mantissa | hidden, field - self.bias),
            };
            // At most 53 bits times a power of two that f64 holds: exact.
            significand as f64 * power_of_two(exponent - self.mantissa_bits as i32)
        } else if Some(magnitude_bits) == self.infinity_bits() {
            f64::INFINITY
        } else {
            f64::NAN
        };
        if bits >> sign_bit & 1 == 1 { -magnitude } else { magnitude }
    }

    /// `x` after a round trip through the format, [`Overflow::NonSaturating`].
    pub fn round(&self, x: f64) -> f64 {
        self.decode(self.encode(x))
    }

    /// Distance between neighbouring values in the binade of `x`: the unit in the last place.
    ///
    /// At a power of two this is the distance upwards; downwards it is half as much (above the subnormals). `None`
    /// when `x` is NaN or larger in magnitude than the largest finite value.
    pub fn spacing_at(&self, x: f64) -> Option<f64> {
        let magnitude = x.abs();
        if magnitude.is_nan() || magnitude > self.max_finite() {
            return None;
        }
        let field = (magnitude.to_bits() >> F64_MANTISSA_BITS) as i32;
        // A subnormal f64 has field 0 and lies below every format's normal range.
        let exponent = (field - 1023).max(self.min_exponent());
        Some(power_of_two(exponent - self.mantissa_bits as i32))
    }

    /// The smallest finite value of the format greater than `x`; `None` when there is none or `x` is NaN.
    pub fn next_up(&self, x: f64) -> Option<f64> {
        if x.is_nan() || x >= self.max_finite() {
            return None;
        }
        let nearest = self.decode(self.encode_with(x, Overflow::Saturating));
        if nearest > x {
            return Some(nearest);
        }
        // Not above x, so one step up is; codes count up with magnitude.
        let code = self.encode(nearest.abs());
        Some(if nearest < 0.0 { -self.decode(code - 1) } else { self.decode(code + 1) })
    }

    /// The largest finite value of the format less than `x`; `None` when there is none or `x` is NaN.
    pub fn next_down(&self, x: f64) -> Option<f64> {
        self.next_up(-x).map(|up| -up)
    }
}

/// `value / 2^shift` rounded to the nearest integer, ties to even; `value` is below 2^53.
fn shift_right_to_even(value: u64, shift: u32) -> u64 {
    match shift {
        0 => value,
        // The quotient is below one half.
        55.. => 0,
        _ => {
            let quotient = value >> shift;
            let rest = value & ((1 << shift) - 1);
            let half = 1 << (shift - 1);
            quotient + u64::from(rest > half || (rest == half && quotient & 1 == 1))
        }
    }
}

/// `2^exponent`, exact for every exponent that `f64` reaches, -1074 to 1023.
fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((F64_MIN_PLACE..=1023).contains(&exponent), "2^{exponent}");
    if exponent < -1022 {
        f64::from_bits(1 << (exponent - F64_MIN_PLACE))
    } else {
        f64::from_bits(((exponent + 1023) as u64) << F64_MANTISSA_BITS)
    }
}
