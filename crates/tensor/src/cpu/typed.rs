//! Elements of any dtype, read and written as the numbers kernels compute in.
//!
//! Half types are widened and narrowed a block at a time, so that a kernel over f32 serves them at the cost of a pass
//! over the first-level cache. The conversions are those of the plain kernels, bit for bit.

use super::math::Fast;
use super::simd::vectorized;
use crate::dtype::DType;
use crate::float_format::convert as ff;
use crate::kernel::Num;
use bytemuck::Pod;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// A number that fast kernels compute in.
pub trait Real: Num + Pod + Send + Sync {
    /// The same number with the functions of the fast kernels.
    type Math: Num;
    /// As such.
    fn lift(self) -> Self::Math;
    /// As stored.
    fn lower(x: Self::Math) -> Self;
    /// The elements themselves, if they are of this type.
    fn slice<'a>(from: &Typed<'a>) -> Option<&'a [Self]>;
    /// The same, to be written.
    fn slice_mut<'a>(from: &'a mut TypedMut<'_>) -> Option<&'a mut [Self]>;
    /// Such elements, to be read.
    fn typed(from: &[Self]) -> Typed<'_>;
    /// Such elements, to be written.
    fn typed_mut(to: &mut [Self]) -> TypedMut<'_>;
    /// Reads a block of half-precision numbers.
    fn widen(from: &[half::f16], to: &mut [Self]);
    /// Rounds a block to half precision.
    fn narrow(from: &[Self], to: &mut [half::f16]);
}

impl Real for f32 {
    type Math = Fast;
    #[inline(always)]
    fn lift(self) -> Fast {
        Fast(self)
    }
    #[inline(always)]
    fn lower(x: Fast) -> Self {
        x.0
    }
    fn slice<'a>(from: &Typed<'a>) -> Option<&'a [Self]> {
        if let Typed::F32(slice) = from { Some(slice) } else { None }
    }
    fn slice_mut<'a>(from: &'a mut TypedMut<'_>) -> Option<&'a mut [Self]> {
        if let TypedMut::F32(slice) = from { Some(slice) } else { None }
    }
    fn typed(from: &[Self]) -> Typed<'_> {
        Typed::F32(from)
    }
    fn typed_mut(to: &mut [Self]) -> TypedMut<'_> {
        TypedMut::F32(to)
    }
    fn widen(from: &[half::f16], to: &mut [Self]) {
        from.convert_to_f32_slice(to);
    }
    fn narrow(from: &[Self], to: &mut [half::f16]) {
        to.convert_from_f32_slice(from);
    }
}

impl Real for f64 {
    type Math = Self;
    #[inline(always)]
    fn lift(self) -> Self {
        self
    }
    #[inline(always)]
    fn lower(x: Self) -> Self {
        x
    }
    fn slice<'a>(from: &Typed<'a>) -> Option<&'a [Self]> {
        if let Typed::F64(slice) = from { Some(slice) } else { None }
    }
    fn slice_mut<'a>(from: &'a mut TypedMut<'_>) -> Option<&'a mut [Self]> {
        if let TypedMut::F64(slice) = from { Some(slice) } else { None }
    }
    fn typed(from: &[Self]) -> Typed<'_> {
        Typed::F64(from)
    }
    fn typed_mut(to: &mut [Self]) -> TypedMut<'_> {
        TypedMut::F64(to)
    }
    fn widen(from: &[half::f16], to: &mut [Self]) {
        from.convert_to_f64_slice(to);
    }
    fn narrow(from: &[Self], to: &mut [half::f16]) {
        for (to, &x) in to.iter_mut().zip(from) {
            *to = half::f16::from_f32(x as f32);
        }
    }
}

macro_rules! typed {
    ($($dtype:ident $t:ty;)*) => {
        /// Elements that are read.
        #[derive(Clone, Copy)]
        #[allow(missing_docs)] // each variant holds elements of the dtype of its name; half types as bits
        pub enum Typed<'a> {
            $($dtype(&'a [$t])),*
        }

        /// Elements that are written.
        #[allow(missing_docs)]
        pub enum TypedMut<'a> {
            $($dtype(&'a mut [$t])),*
        }

        impl<'a> Typed<'a> {
            /// Bytes as elements.
            pub(super) fn new(dtype: DType, bytes: &'a [u8]) -> Self {
                match dtype { $(DType::$dtype => Self::$dtype(bytemuck::cast_slice(bytes))),* }
            }

            /// The elements from `start` on; none if it lies beyond them.
            pub fn from(self, start: usize) -> Self {
                match self { $(Self::$dtype(slice) => Self::$dtype(&slice[start.min(slice.len())..])),* }
            }
        }

        impl<'a> TypedMut<'a> {
            /// Bytes as elements.
            pub(super) fn new(dtype: DType, bytes: &'a mut [u8]) -> Self {
                match dtype { $(DType::$dtype => Self::$dtype(bytemuck::cast_slice_mut(bytes))),* }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                match self { $(Self::$dtype(slice) => slice.len()),* }
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Splits the first `count` elements (at most) off.
            pub fn take(&mut self, count: usize) -> Self {
                match self { $(Self::$dtype(slice) => {
                    let count = count.min(slice.len());
                    let (first, rest) = std::mem::take(slice).split_at_mut(count);
                    *slice = rest;
                    Self::$dtype(first)
                }),* }
            }

            /// Zeros everywhere.
            pub fn fill_zero(&mut self) {
                match self { $(Self::$dtype(slice) => slice.fill(bytemuck::Zeroable::zeroed())),* }
            }

            /// The same elements, to be read.
            pub fn as_read(&self) -> Typed<'_> {
                match self { $(Self::$dtype(slice) => Typed::$dtype(slice)),* }
            }
        }
    };
}

typed! {
    F64 f64;
    F32 f32;
    F16 u16;
    BF16 u16;
    F8E4M3 u8;
    F8E5M2 u8;
    I64 i64;
    I32 i32;
    U32 u32;
    U16 u16;
    U8 u8;
    Bool u8;
}

/// Nearest bfloat16, as [`half::bf16::from_f32`], without a branch.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// Exact.
#[inline(always)]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

impl Typed<'_> {
    /// Reads elements `at`, `at + stride`, ... as numbers.
    pub fn read<C: Real>(&self, at: usize, stride: isize, to: &mut [C]) {
        fn each<S: Copy, C: Copy>(from: &[S], at: usize, stride: isize, to: &mut [C], f: impl Fn(S) -> C) {
            vectorized(
                #[inline(always)]
                || match stride {
                    1 => {
                        let from = &from[at..][..to.len()];
                        for (to, &x) in to.iter_mut().zip(from) {
                            *to = f(x);
                        }
                    }
                    0 => to.fill(f(from[at])),
                    _ => {
                        for (i, to) in to.iter_mut().enumerate() {
                            *to = f(from[at.wrapping_add_signed(i as isize * stride)]);
                        }
                    }
                },
            );
        }
        if to.is_empty() {
            return;
        }
        // Through f64, which changes nothing and is optimised away where the types are alike.
        match *self {
            Self::F64(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(x),
            ),
            Self::F32(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(f64::from(x)),
            ),
            Self::F16(from) if stride == 1 => C::widen(from[at..][..to.len()].reinterpret_cast(), to),
            Self::F16(from) => each(from, at, stride, to, |x| C::from_f64(half::f16::from_bits(x).to_f64())),
            Self::BF16(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(f64::from(from_bf16(x))),
            ),
            Self::F8E4M3(from) => each(from, at, stride, to, |x| C::from_f64(f64::from(ff::f8e4m3_bits_to_f32(x)))),
            Self::F8E5M2(from) => each(from, at, stride, to, |x| C::from_f64(f64::from(ff::f8e5m2_bits_to_f32(x)))),
            Self::I64(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(x as f64),
            ),
            Self::I32(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(f64::from(x)),
            ),
            Self::U32(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(f64::from(x)),
            ),
            Self::U16(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(f64::from(x)),
            ),
            Self::U8(from) | Self::Bool(from) => each(
                from,
                at,
                stride,
                to,
                #[inline(always)]
                |x| C::from_f64(f64::from(x)),
            ),
        }
    }

    /// Integer `at`; a float is truncated.
    pub fn int(&self, at: usize) -> i64 {
        match *self {
            Self::I64(from) => from[at],
            Self::I32(from) => i64::from(from[at]),
            Self::U32(from) => i64::from(from[at]),
            Self::U16(from) => i64::from(from[at]),
            Self::U8(from) | Self::Bool(from) => i64::from(from[at]),
            _ => {
                let mut x = [0.0f64];
                self.read(at, 1, &mut x);
                x[0] as i64
            }
        }
    }
}

impl TypedMut<'_> {
    /// Writes numbers to elements `at`, `at + stride`, ..., rounded to the dtype.
    pub fn write<C: Real>(&mut self, at: usize, stride: isize, from: &[C]) {
        fn each<S: Copy, C: Copy>(to: &mut [S], at: usize, stride: isize, from: &[C], f: impl Fn(C) -> S) {
            vectorized(
                #[inline(always)]
                || {
                    if stride == 1 {
                        let to = &mut to[at..][..from.len()];
                        for (to, &x) in to.iter_mut().zip(from) {
                            *to = f(x);
                        }
                    } else {
                        for (i, &x) in from.iter().enumerate() {
                            to[at.wrapping_add_signed(i as isize * stride)] = f(x);
                        }
                    }
                },
            );
        }
        match self {
            Self::F64(to) => each(to, at, stride, from, C::to_f64),
            Self::F32(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| x.to_f64() as f32,
            ),
            Self::F16(to) if stride == 1 => C::narrow(from, to[at..][..from.len()].reinterpret_cast_mut()),
            Self::F16(to) => each(to, at, stride, from, |x| half::f16::from_f32(x.to_f64() as f32).to_bits()),
            Self::BF16(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| to_bf16(x.to_f64() as f32),
            ),
            Self::F8E4M3(to) => each(to, at, stride, from, |x| ff::f32_to_f8e4m3_bits_saturating(x.to_f64() as f32)),
            Self::F8E5M2(to) => each(to, at, stride, from, |x| ff::f32_to_f8e5m2_bits(x.to_f64() as f32)),
            Self::I64(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| x.to_f64() as i64,
            ),
            Self::I32(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| x.to_f64() as i64 as i32,
            ),
            Self::U32(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| x.to_f64() as i64 as u32,
            ),
            Self::U16(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| x.to_f64() as i64 as u16,
            ),
            Self::U8(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| x.to_f64() as i64 as u8,
            ),
            Self::Bool(to) => each(
                to,
                at,
                stride,
                from,
                #[inline(always)]
                |x| u8::from(x.to_f64() != 0.0),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_is_that_of_the_half_crate() {
        for bits in (0..=u32::MAX).step_by(127) {
            let x = f32::from_bits(bits);
            assert_eq!(to_bf16(x), half::bf16::from_f32(x).to_bits(), "{x:e}");
        }
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (from_bf16(bits), half::bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()));
        }
    }
}
