//! Operands of the fast kernels, seen as heads of rows of f32.

use crate::cpu::scratch::{LINE, rounded};
use crate::cpu::simd::vectorized;
use crate::cpu::{Input, Output};
use crate::dtype::DType;
use crate::layout::Layout;
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Element types of queries, keys and values.
pub(super) trait Element: Pod + Send + Sync {
    const DTYPE: DType;
    /// The values.
    fn widen(from: &[Self], to: &mut [f32]);
    /// The nearest values, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
    fn widen(from: &[Self], to: &mut [f32]) {
        vectorized(|| {
            for (x, y) in from.iter().zip(to) {
                *y = f32::from_bits(u32::from(x.to_bits()) << 16);
            }
        });
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        vectorized(|| {
            for (x, y) in from.iter().zip(to) {
                let bits = x.to_bits();
                // Half a place, less where the last bit is even; the carry rounds. NaN keeps a bit of its own.
                let nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
                *y = Self::from_bits(if x.is_nan() { bits >> 16 | 0x40 } else { nearest } as u16);
            }
        });
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

/// Rows of f32 in memory.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub data: &'a [f32],
    /// From one row to the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// From row `i` on.
    pub(super) fn from(self, i: usize) -> Self {
        Self { data: &self.data[i * self.stride..], ..self }
    }

    /// The first `width` numbers of row `i`.
    pub(super) fn row(self, i: usize, width: usize) -> &'a [f32] {
        &self.data[i * self.stride..][..width]
    }
}

/// An operand `(b heads rows width)`.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, T> {
    data: &'a [T],
    strides: [usize; 4],
    offset: usize,
    pub width: usize,
}

impl<'a, T: Element> Heads<'a, T> {
    /// `None` if the operand is of another type or rank, runs backwards, or is written over.
    pub(super) fn new(input: &'a Input<'_>) -> Option<Self> {
        Self::of(input, input.layout)
    }

    /// The same with another layout over its storage.
    pub(super) fn of(input: &'a Input<'_>, layout: &Layout) -> Option<Self> {
        let data: &[T] = if input.dtype == T::DTYPE { input.storage()? } else { return None };
        let strides: [i64; 4] = layout.strides().try_into().ok()?;
        let &[.., width] = layout.shape() else { return None };
        if strides.iter().any(|&s| s < 0) || layout.end() > data.len() as u64 {
            return None;
        }
        let strides = strides.map(|s| s as usize);
        Some(Self { data, strides, offset: layout.offset() as usize, width: width as usize })
    }

    /// Numbers of scratch that [`Heads::load`] wants at most for `count` rows.
    pub(super) fn room(&self, count: usize) -> usize {
        count * rounded(self.width)
    }

    /// `count` rows of head `at[1]` of batch `at[0]` from row `at[2]` on: where they are if they are f32, else widened
    /// into scratch. If `padded`, each is followed by zeros up to a multiple of a cache line.
    pub(super) fn load<'t>(&'t self, at: [usize; 3], count: usize, padded: bool, scratch: &'t mut [f32]) -> Rows<'t> {
        let start = self.offset + at.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<usize>();
        let &[_, _, row, column] = &self.strides;
        let dense = column == 1 || self.width == 1;
        if T::DTYPE == DType::F32 && dense && (!padded || self.width.is_multiple_of(LINE)) {
            let data = bytemuck::cast_slice::<T, f32>(&self.data[start..]);
            return Rows { data: &data[..(count - 1) * row + self.width], stride: row };
        }
        let stride = rounded(self.width);
        for (i, to) in scratch[..count * stride].chunks_exact_mut(stride).enumerate() {
            let (to, rest) = to.split_at_mut(self.width);
            rest.fill(0.0);
            let from = &self.data[start + i * row..];
            if dense {
                T::widen(&from[..self.width], to);
            } else {
                for (j, y) in to.iter_mut().enumerate() {
                    T::widen(&from[j * column..][..1], std::slice::from_mut(y));
                }
            }
        }
        Rows { data: &scratch[..count * stride], stride }
    }
}

/// An operand of any of the types that broadcasts to rank 4 and is read a number at a time: bias, sinks.
pub(super) struct Numbers<'a> {
    source: Source<'a>,
    offset: usize,
    /// 0 where it broadcasts.
    pub strides: [usize; 4],
}

enum Source<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl<'a> Numbers<'a> {
    /// `None` if it is of another type, runs backwards, or is written over.
    pub(super) fn new(input: &'a Input<'_>) -> Option<Self> {
        let source = match input.dtype {
            DType::F32 => Source::F32(input.storage()?),
            DType::BF16 => Source::Bf16(input.storage()?),
            DType::F16 => Source::F16(input.storage()?),
            _ => return None,
        };
        let layout = input.layout;
        let mut strides = [0; 4];
        for (to, (&stride, &size)) in strides.iter_mut().rev().zip(layout.strides().iter().zip(layout.shape()).rev()) {
            *to = if size == 1 { 0 } else { usize::try_from(stride).ok()? };
        }
        Some(Self { source, offset: layout.offset() as usize, strides })
    }

    /// Where the number of this index lies.
    pub(super) fn position(&self, index: [usize; 4]) -> usize {
        self.offset + index.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<usize>()
    }

    /// The number that lies there.
    pub(super) fn number(&self, position: usize) -> f32 {
        match self.source {
            Source::F32(x) => x[position],
            Source::Bf16(x) => x[position].to_f32(),
            Source::F16(x) => x[position].to_f32(),
        }
    }

    /// The number of this index.
    pub(super) fn at(&self, index: [usize; 4]) -> f32 {
        self.number(self.position(index))
    }
}

/// The elements of an output, if they are of type `T`.
pub(super) fn written<'a, T: Element>(output: &'a mut Output<'_>) -> Option<&'a mut [T]> {
    if output.dtype == T::DTYPE { output.storage() } else { None }
}
