//! Operands as rows along the last dimension, and work on rows shared out to threads.

use super::args::{Args, Input};
use super::elementwise::CHUNK;
use super::simd::vectorized;
use super::typed::{Real, Typed, TypedMut};
use crate::layout::Layout;
use rayon::prelude::*;
use smallvec::SmallVec;
use std::borrow::Cow;

/// An operand as rows of its last dimension.
pub struct Rows<'a> {
    typed: Typed<'a>,
    width: usize,
    stride: isize,
    outer: SmallVec<[(usize, isize); 4]>,
}

impl<'a> Rows<'a> {
    /// Rows of an operand that is not written over. `None` if it is, or has no dimensions, or runs backwards.
    pub fn of(input: &'a Input<'_>) -> Option<Self> {
        Self::new(input.typed()?, input.layout)
    }

    fn new(typed: Typed<'a>, layout: &Layout) -> Option<Self> {
        let (&width, shape) = layout.shape().split_last()?;
        let (&stride, strides) = layout.strides().split_last()?;
        if layout.strides().iter().any(|&s| s < 0) {
            return None;
        }
        let mut outer: SmallVec<[(usize, isize); 4]> = SmallVec::new();
        for (&size, &stride) in shape.iter().zip(strides).filter(|&(&size, _)| size != 1) {
            let (size, stride) = (size as usize, stride as isize);
            match outer.last_mut() {
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => outer.push((size, stride)),
            }
        }
        Some(Self { typed, width: width as usize, stride: stride as isize, outer })
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Position of the first element of a row.
    fn start(&self, mut row: usize) -> usize {
        let mut at = 0;
        for &(size, stride) in self.outer.iter().rev() {
            at += (row % size) as isize * stride;
            row /= size;
        }
        at as usize
    }

    /// Elements `from..from + len` of a row: where they lie if they are such numbers side by side, else brought into the
    /// buffer.
    #[inline]
    pub fn get<'b, C: Real>(&self, row: usize, from: usize, len: usize, buffer: &'b mut [C]) -> &'b [C]
    where
        'a: 'b,
    {
        let at = self.start(row) + from * self.stride as usize;
        match C::slice(&self.typed) {
            Some(slice) if self.stride == 1 || len <= 1 => &slice[at..at + len],
            _ => {
                self.typed.read(at, self.stride, &mut buffer[..len]);
                &buffer[..len]
            }
        }
    }

    /// Element `column` of a row.
    pub fn element<C: Real>(&self, row: usize, column: usize) -> C {
        self.get(row, column, 1, &mut [C::zero()])[0]
    }

    /// The rows themselves if they are such numbers, one after another.
    pub fn dense<C: Real>(&self) -> Option<&'a [C]> {
        let one_run = self.outer.is_empty() || (self.outer.len() == 1 && self.outer[0].1 == self.width as isize);
        C::slice(&self.typed).filter(|_| one_run && self.stride == 1)
    }
}

/// A vector as numbers. `None` if it is written over.
pub fn vector<'a, C: Real>(input: &'a Input<'_>) -> Option<Cow<'a, [C]>> {
    let rows = Rows::of(input)?;
    let width = rows.width();
    if let Some(slice) = rows.dense() {
        return Some(Cow::Borrowed(&slice[..width]));
    }
    let mut numbers = vec![C::zero(); width];
    rows.get(0, 0, width, &mut numbers);
    Some(Cow::Owned(numbers))
}

/// All elements in row-major order as numbers. `None` if they are written over.
pub fn dense<'a, C: Real>(input: &'a Input<'_>) -> Option<Cow<'a, [C]>> {
    let typed = input.typed()?;
    if let (Some(slice), true) = (C::slice(&typed), input.layout.is_contiguous()) {
        return Some(Cow::Borrowed(&slice[..input.elements()]));
    }
    Some(Cow::Owned(super::reduce::gathered(typed, input.layout)))
}

/// The first element of an operand as a number. `None` if it is written over.
pub fn first<C: Real>(input: &Input<'_>) -> Option<C> {
    let mut number = [C::zero()];
    input.typed()?.read(0, 1, &mut number);
    Some(number[0])
}

/// Integers of an operand in row-major order. `None` if it is written over.
pub fn integers(input: &Input<'_>) -> Option<Vec<i64>> {
    let typed = input.typed()?;
    let first = input.layout.offset() as usize;
    Some(input.layout.positions().map(|at| typed.int(at - first)).collect())
}

/// Rows of so many elements that make one piece of work.
pub fn rows_per_piece(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}

/// Shares `count` items out in pieces of `per_piece`. Each output is cut along: so many elements for each item. Calls
/// `work` with the first item of a piece, their number, and the parts of the outputs.
pub fn in_pieces<const O: usize>(
    count: usize,
    per_piece: usize,
    mut outputs: [(TypedMut<'_>, usize); O],
    work: impl Fn(usize, usize, [TypedMut<'_>; O]) + Send + Sync,
) {
    if count <= per_piece {
        if count > 0 {
            work(0, count, outputs.map(|(output, _)| output));
        }
        return;
    }
    let pieces: Vec<_> = (0..count)
        .step_by(per_piece)
        .map(|first| {
            let items = per_piece.min(count - first);
            (first, items, outputs.each_mut().map(|(output, each)| output.take(items * *each)))
        })
        .collect();
    for_each(pieces, |(first, items, outputs)| work(first, items, outputs));
}

/// Shares pieces of work out to the threads.
pub fn for_each<T: Send>(pieces: Vec<T>, work: impl Fn(T) + Send + Sync) {
    if pieces.len() > 1 {
        pieces.into_par_iter().for_each(work);
    } else {
        pieces.into_iter().for_each(work);
    }
}

/// Elements `from..from + len` of an output, where they lie if they are such numbers, else a buffer: to be given to
/// [`put`] when it is full.
#[inline]
pub fn place<'b, C: Real>(output: &'b mut TypedMut<'_>, from: usize, len: usize, buffer: &'b mut [C]) -> &'b mut [C] {
    match C::slice_mut(output) {
        Some(slice) => &mut slice[from..from + len],
        None => &mut buffer[..len],
    }
}

/// Writes the buffer that [`place`] gave out; does nothing if it gave out the place itself.
#[inline]
pub fn put<C: Real>(output: &mut TypedMut<'_>, from: usize, len: usize, buffer: &[C]) {
    if C::slice_mut(output).is_none() {
        output.write(from, 1, &buffer[..len]);
    }
}

/// Runs a kernel on each row of some inputs and of the output, which is row-major. `None`, and nothing written, if an input
/// is written over.
pub fn map_rows<C: Real, const I: usize>(
    args: &mut Args<'_>,
    inputs: [usize; I],
    kernel: impl Fn([&[C]; I], &mut [C]) + Sync,
) -> Option<()> {
    let Args { inputs: all, outputs } = args;
    let rows: SmallVec<[Rows<'_>; 2]> = inputs.iter().map(|&i| Rows::of(&all[i])).collect::<Option<_>>()?;
    let width = rows[0].width();
    let count = outputs[0].elements() / width.max(1);
    if !outputs[0].layout.is_contiguous() {
        return None;
    }
    in_pieces(count, rows_per_piece(width), [(outputs[0].typed(), width)], |first, count, [mut out]| {
        let mut buffers: [Vec<C>; I] = std::array::from_fn(|_| vec![C::zero(); width]);
        let mut block = vec![C::zero(); width];
        for r in 0..count {
            let mut each = rows.iter().zip(&mut buffers);
            let x = std::array::from_fn(|_| {
                let (rows, buffer) = each.next().expect("a buffer for each input");
                rows.get(first + r, 0, width, buffer)
            });
            let y = place(&mut out, r * width, width, &mut block);
            vectorized(
                #[inline(always)]
                || kernel(x, y),
            );
            put(&mut out, r * width, width, &block);
        }
    });
    Some(())
}

/// Writes one number for each row of input 0. `None`, and nothing written, if it is written over.
pub fn fold_rows<C: Real>(args: &mut Args<'_>, kernel: impl Fn(&[C]) -> C + Sync) -> Option<()> {
    let Args { inputs, outputs } = args;
    let rows = Rows::of(&inputs[0])?;
    let (width, count) = (rows.width(), outputs[0].elements());
    in_pieces(count, rows_per_piece(width), [(outputs[0].typed(), 1)], |first, count, [mut out]| {
        let mut buffer = vec![C::zero(); width];
        for r in 0..count {
            out.write(r, 1, &[kernel(rows.get(first + r, 0, width, &mut buffer))]);
        }
    });
    Some(())
}
