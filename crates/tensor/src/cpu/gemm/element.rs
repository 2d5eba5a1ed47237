//! Element types of the factors and of the result.

#![allow(clippy::inline_always)] // what is not inlined is not compiled for the instruction set of the caller

use crate::float_format::convert::{F8E4M3_VALUES, F8E5M2_VALUES};
use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

/// A cache line of numbers.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(super) struct Line([f32; Line::LEN]);

impl Line {
    pub(super) const LEN: usize = 16;
    pub(super) const ZERO: Self = Self([0.0; Self::LEN]);
}

/// Element type of a matrix, known when the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 32 bits.
    F32,
    /// The upper 16 bits of f32.
    Bf16,
    /// 16 bits of IEEE 754.
    F16,
    /// 64 bits.
    F64,
    /// 8 bits, of which 4 are exponent. Of factors only.
    E4m3,
    /// 8 bits, of which 5 are exponent. Of factors only.
    E5m2,
}

impl Kind {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 | Self::E5m2 => 1,
        }
    }

    /// Whether every value is one of bf16, and none but those of bf16 itself is a subnormal one.
    pub(super) const fn fits_bf16(self) -> bool {
        matches!(self, Self::Bf16 | Self::E4m3 | Self::E5m2)
    }
}

/// A number in 8 bits by its code: of [`DType::F8E4M3`](crate::dtype::DType::F8E4M3).
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(transparent)]
pub struct E4m3(pub u8);

/// A number in 8 bits by its code: of [`DType::F8E5M2`](crate::dtype::DType::F8E5M2).
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(transparent)]
pub struct E5m2(pub u8);

/// Element types of products: f32, bf16, f16, and 8-bit floats as factors, in any combination, with sums in f32; or f64
/// throughout.
pub trait Element: Pod + Send + Sync {
    /// Which of them it is.
    const KIND: Kind;
}

/// Element types whose sums are f32.
pub(super) trait Single: Element {
    /// The value.
    fn widen(self) -> f32;
}

/// Half types of results.
pub(super) trait Rounded: Single {
    /// The nearest value, ties to even.
    fn round(x: f32) -> Self;
}

macro_rules! element {
    ($type:ty, $kind:ident) => {
        impl Element for $type {
            const KIND: Kind = Kind::$kind;
        }
    };
    ($type:ty, $kind:ident, $widen:expr) => {
        element!($type, $kind);
        impl Single for $type {
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }
        }
    };
    ($type:ty, $kind:ident, $widen:expr, $round:expr) => {
        element!($type, $kind, $widen);
        impl Rounded for $type {
            #[inline(always)]
            fn round(x: f32) -> Self {
                $round(x)
            }
        }
    };
}
element!(f64, F64);
element!(f32, F32, |x| x);
element!(E4m3, E4m3, |x: Self| F8E4M3_VALUES[usize::from(x.0)]);
element!(E5m2, E5m2, |x: Self| F8E5M2_VALUES[usize::from(x.0)]);
element!(bf16, Bf16, |x: Self| f32::from_bits(u32::from(x.to_bits()) << 16), nearest_bf16);
element!(f16, F16, Self::to_f32, Self::from_f32);

/// Without a branch, so that a loop over it becomes vector instructions.
#[inline(always)]
fn nearest_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let even = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet_nan = (bits >> 16) | 0x40;
    bf16::from_bits(if x.is_nan() { quiet_nan } else { even } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_as_the_library_does() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                assert_eq!(bf16::round(x).to_bits(), bf16::from_f32(x).to_bits(), "{x:e} {:#x}", x.to_bits());
            }
        }
    }
}
