//! Operands of the fast kernels, seen as heads of rows of f32.

#![allow(unsafe_code)]

use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::planes::Plane;
use crate::cpu::scratch::{LINE, rounded};
use crate::cpu::{Input, Output};
use crate::dtype::DType;
use crate::layout::Layout;
use bytemuck::Pod;
use half::{bf16, f16};

/// Element types of queries, keys and values.
pub(super) trait Element: Pod + Send + Sync {
    const DTYPE: DType;
    fn widen(self) -> f32;
    /// The nearest value, ties to even.
    fn narrow(x: f32) -> Self;
    /// # Safety
    /// A vector of elements is readable.
    unsafe fn load<L: Lanes>(l: L, from: *const Self) -> L::F;
    /// # Safety
    /// A vector of elements is writable.
    unsafe fn store<L: Lanes>(l: L, to: *mut Self, x: L::F);
}

macro_rules! element {
    ($type:ty, $dtype:expr, $widen:expr, $narrow:expr, $load:ident, $store:ident) => {
        impl Element for $type {
            const DTYPE: DType = $dtype;
            fn widen(self) -> f32 {
                $widen(self)
            }
            fn narrow(x: f32) -> Self {
                $narrow(x)
            }
            #[inline(always)]
            unsafe fn load<L: Lanes>(l: L, from: *const Self) -> L::F {
                // SAFETY: by the caller.
                unsafe { l.$load(from) }
            }
            #[inline(always)]
            unsafe fn store<L: Lanes>(l: L, to: *mut Self, x: L::F) {
                // SAFETY: by the caller.
                unsafe { l.$store(to, x) }
            }
        }
    };
}
element!(f32, DType::F32, f32::from, f32::from, load, store);
element!(bf16, DType::BF16, bf16::to_f32, bf16::from_f32, load_bf16, store_bf16);
element!(f16, DType::F16, f16::to_f32, f16::from_f32, load_f16, store_f16);

/// Widens rows of elements side by side; zeros after them, up to the end of each row of the result.
struct Widen<'a, T> {
    from: &'a [T],
    row: usize,
    width: usize,
    /// Rows of whole cache lines.
    to: &'a mut [f32],
}

impl<T: Element> Kernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let whole = self.width / L::COUNT * L::COUNT;
        for (i, to) in self.to.chunks_exact_mut(rounded(self.width)).enumerate() {
            let from = &self.from[i * self.row..][..self.width];
            for c in (0..whole).step_by(L::COUNT) {
                // SAFETY: the row has a vector of elements from here on.
                l.put(to, c, unsafe { T::load(l, from[c..].as_ptr()) });
            }
            for (to, x) in to[whole..].iter_mut().zip(&from[whole..]) {
                *to = x.widen();
            }
            to[self.width..].fill(0.0);
        }
    }
}

/// Writes a row times a number, rounded.
struct Narrow<'a, T> {
    from: &'a [f32],
    factor: f32,
    to: &'a mut [T],
}

impl<T: Element> Kernel for Narrow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { from, factor, to } = self;
        let whole = to.len() / L::COUNT * L::COUNT;
        let by = l.splat(factor);
        for c in (0..whole).step_by(L::COUNT) {
            // SAFETY: the row has a vector of elements from here on.
            unsafe { T::store(l, to[c..].as_mut_ptr(), l.mul(l.get(from, c), by)) };
        }
        for (to, x) in to[whole..].iter_mut().zip(&from[whole..]) {
            *to = T::narrow(x * factor);
        }
    }
}

/// Writes row `i` of a plane: these numbers times a factor, rounded to its type.
pub(super) fn put<L: Lanes, T: Element>(l: L, out: &mut Plane<'_, T>, i: usize, from: &[f32], factor: f32) {
    match out.row(i) {
        Some(to) => l.call(Narrow { from: &from[..to.len()], factor, to }),
        None => out.write(i, |j| T::narrow(from[j] * factor)),
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
    pub(super) fn load<'t, L: Lanes>(&'t self, l: L, at: [usize; 3], count: usize, padded: bool, scratch: &'t mut [f32]) -> Rows<'t> {
        let start = self.offset + at.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<usize>();
        let &[_, _, row, column] = &self.strides;
        let dense = column == 1 || self.width == 1;
        if T::DTYPE == DType::F32 && dense && (!padded || self.width.is_multiple_of(LINE)) {
            let data = bytemuck::cast_slice::<T, f32>(&self.data[start..]);
            return Rows { data: &data[..(count - 1) * row + self.width], stride: row };
        }
        let stride = rounded(self.width);
        let (from, to) = (&self.data[start..], &mut scratch[..count * stride]);
        if dense {
            l.call(Widen { from, row, width: self.width, to });
        } else {
            for (i, to) in to.chunks_exact_mut(stride).enumerate() {
                for (j, to) in to.iter_mut().enumerate() {
                    *to = if j < self.width { from[i * row + j * column].widen() } else { 0.0 };
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
