//! The conversions that kernels use between storage codes and `f32`.
//!
//! All round to nearest, ties to even. A narrowing from `f64` goes through `f32` (rounding twice) when it follows
//! `PyTorch`, whose `double` to half conversions do the same; use [`FloatFormat::encode`](super::FloatFormat::encode)
//! where a single rounding matters.
//!
//! | to | finite value too large, infinity | same as |
//! |---|---|---|
//! | `f16`, `bf16`, `f8e5m2` | infinity | `PyTorch` |
//! | `f8e4m3` | NaN (the format has no infinity) | `PyTorch` before 2.12, `ml_dtypes`, JAX |
//! | `f8e4m3_saturating` | 448 with the sign kept | `PyTorch` from 2.12 on, the hardware's `satfinite` casts |
//! | `f8e5m2_saturating` | 57344 with the sign kept | the hardware's `satfinite` casts; never `PyTorch` |
//!
//! NaN stays NaN everywhere. `PyTorch` changed its E4M3 cast in pull request 178817 (April 2026).

use half::{bf16, f16};

/// The nearest bfloat16; overflow gives infinity, NaN stays NaN.
pub fn f32_to_bf16_bits(x: f32) -> u16 {
    bf16::from_f32(x).to_bits()
}

/// Exact.
pub fn bf16_bits_to_f32(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

/// The nearest binary16; magnitudes from 65520 up give infinity, NaN stays NaN.
pub fn f32_to_f16_bits(x: f32) -> u16 {
    f16::from_f32(x).to_bits()
}

/// Exact.
pub fn f16_bits_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// The nearest E4M3 value; magnitudes above 464 and infinities give NaN, as in `PyTorch` before 2.12.
pub const fn f32_to_f8e4m3_bits(x: f32) -> u8 {
    encode_fp8::<3, 7>(x, 0x7F, 0x7F)
}

/// The nearest E4M3 value, at most 448 in magnitude; only NaN gives NaN. As in `PyTorch` from 2.12 on.
pub const fn f32_to_f8e4m3_bits_saturating(x: f32) -> u8 {
    encode_fp8::<3, 7>(x, 0x7E, 0x7F)
}

/// Exact, by a table of 256 entries.
pub const fn f8e4m3_bits_to_f32(bits: u8) -> f32 {
    F8E4M3_VALUES[bits as usize]
}

/// The nearest E5M2 value; magnitudes from 61440 up give infinity, as in `PyTorch`.
pub const fn f32_to_f8e5m2_bits(x: f32) -> u8 {
    encode_fp8::<2, 15>(x, 0x7C, 0x7F)
}

/// The nearest E5M2 value, at most 57344 in magnitude; only NaN gives NaN.
pub const fn f32_to_f8e5m2_bits_saturating(x: f32) -> u8 {
    encode_fp8::<2, 15>(x, 0x7B, 0x7F)
}

/// Exact, by a table of 256 entries.
pub const fn f8e5m2_bits_to_f32(bits: u8) -> f32 {
    F8E5M2_VALUES[bits as usize]
}

/// The value of every E4M3 code; 1 KiB, so that it stays in the first-level cache beside the data.
pub static F8E4M3_VALUES: [f32; 256] = decode_table::<3, 7>(0x7F, None);

/// The value of every E5M2 code.
pub static F8E5M2_VALUES: [f32; 256] = decode_table::<2, 15>(0x7D, Some(0x7C));

/// Explicit mantissa bits of an `f32`.
const F32_MANTISSA_BITS: u32 = 23;

/// Rounds in integers, with the hidden bit added onto the exponent field as in the generic encoder. `cap` is the code
/// that everything beyond the largest finite value becomes.
const fn encode_fp8<const MANTISSA_BITS: u32, const BIAS: i32>(x: f32, cap: u32, nan: u8) -> u8 {
    let bits = x.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = bits & 0x7FFF_FFFF;
    if magnitude > 0x7F80_0000 {
        return sign | nan;
    }
    // Zero and subnormal f32 are mistaken for numbers near 2^-127 here, which are shifted out below all the same.
    let significand = magnitude & 0x007F_FFFF | 0x0080_0000;
    let own_exponent = (magnitude >> F32_MANTISSA_BITS) as i32 - 127;
    let min_exponent = 1 - BIAS;
    let exponent = if own_exponent > min_exponent { own_exponent } else { min_exponent };
    let shift = (exponent - own_exponent) as u32 + F32_MANTISSA_BITS - MANTISSA_BITS;
    if shift > F32_MANTISSA_BITS + 1 {
        return sign;
    }
    // Adding just under half, and a full half when the quotient is odd, makes the carry do the rounding.
    let odd = significand >> shift & 1;
    let rounded = (significand + (1 << (shift - 1)) - 1 + odd) >> shift;
    let code = (((exponent - min_exponent) as u32) << MANTISSA_BITS) + rounded;
    // An f32 infinity has the largest exponent and so ends at the cap without a case of its own.
    sign | if code < cap { code as u8 } else { cap as u8 }
}

const fn decode_table<const MANTISSA_BITS: u32, const BIAS: i32>(first_nan: u8, infinity: Option<u8>) -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 128 {
        let magnitude = match infinity {
            Some(infinity) if code == infinity => f32::INFINITY,
            _ if code >= first_nan => f32::NAN,
            _ => decode_finite(code as u32, MANTISSA_BITS, BIAS),
        };
        table[code as usize] = magnitude;
        table[code as usize | 0x80] = -magnitude;
        code += 1;
    }
    table
}

const fn decode_finite(code: u32, mantissa_bits: u32, bias: i32) -> f32 {
    let hidden = 1 << mantissa_bits;
    let mantissa = code & (hidden - 1);
    let field = (code >> mantissa_bits) as i32;
    let (significand, exponent) = if field == 0 { (mantissa, 1 - bias) } else { (mantissa | hidden, field - bias) };
    let place = exponent - mantissa_bits as i32;
    // Few bits times a power of two well inside the normal range of f32: exact.
    significand as f32 * f32::from_bits(((place + 127) as u32) << F32_MANTISSA_BITS)
}
