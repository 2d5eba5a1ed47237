//! Copies between layouts: runs where both sides have them, tiles where rows become columns. Dtypes do not matter, only
//! the size of an element.

use super::args::{Args, Input, Output};
use super::elementwise::CHUNK;
use super::nest::{Dim, Nest};
use super::rows::for_each;
use crate::layout::Layout;
use bytemuck::Pod;
use smallvec::SmallVec;
use std::ops::Range;

/// Side of a tile: a cache line of f32.
const TILE: usize = 16;

/// Copies an input to the output, broadcasting. `false`, and nothing written, if they differ in dtype or the input is
/// written over.
pub fn copy_input(args: &mut Args<'_>, input: usize) -> bool {
    let Args { inputs, outputs } = args;
    let output = &mut outputs[0];
    let layout = output.layout;
    copy_into(&inputs[input], output, layout)
}

/// [`copy_input`] into a part of the output.
pub fn copy_into(input: &Input<'_>, output: &mut Output<'_>, part: &Layout) -> bool {
    if input.dtype != output.dtype || [input.layout, part].iter().any(|l| l.strides().iter().any(|&s| s < 0)) {
        return false;
    }
    match input.dtype.size_in_bytes() {
        1 => copy_elements::<u8>(input, output, part),
        2 => copy_elements::<u16>(input, output, part),
        4 => copy_elements::<u32>(input, output, part),
        _ => copy_elements::<u64>(input, output, part),
    }
}

fn copy_elements<T: Pod + Send + Sync>(input: &Input<'_>, output: &mut Output<'_>, part: &Layout) -> bool {
    let (Some(from), Some(to)) = (input.storage::<T>(), output.storage::<T>()) else { return false };
    let nest = Nest::new(part, [input.layout]);
    if nest.elements() > 0 {
        copy(&nest, &from[input.layout.offset() as usize..], &mut to[part.offset() as usize..]);
    }
    true
}

/// Copies along a nest of loops. Both slices begin at the first element.
fn copy<T: Pod + Send + Sync>(nest: &Nest<1>, from: &[T], to: &mut [T]) {
    let (turns, step) = nest.outermost();
    let per_turn = nest.elements() / turns;
    let together = (CHUNK / per_turn).max(1);
    let mut rest = to;
    let pieces: Vec<_> = (0..turns)
        .step_by(together)
        .map(|first| {
            let count = together.min(turns - first);
            let here = rest.split_off_mut(..(count * step).min(rest.len())).unwrap_or(&mut []);
            (first..first + count, here)
        })
        .collect();
    for_each(pieces, |(turns, to)| copy_turns(nest, turns, from, to));
}

/// The loops over rows and columns of a matrix that lies by rows in the output and by columns in the input.
fn transposed(dims: &[Dim<1>]) -> Option<(usize, usize)> {
    let columns = dims.len() - 1;
    let rows = dims[..columns].iter().rposition(|dim| dim.ins[0] == 1)?;
    (dims[columns].out == 1 && dims[columns].ins[0] != 1).then_some((rows, columns))
}

/// Copies such a matrix tile by tile, so that a cache line that is read serves all the rows of a tile.
fn copy_matrix<T: Pod>(rows: Dim<1>, columns: Dim<1>, from: &[T], to: &mut [T]) {
    let (row_step, column_step) = (rows.out as usize, columns.ins[0] as usize);
    for first_row in (0..rows.size).step_by(TILE) {
        for first in (0..columns.size).step_by(TILE) {
            let width = TILE.min(columns.size - first);
            for row in first_row..rows.size.min(first_row + TILE) {
                let to = &mut to[row * row_step + first..][..width];
                let from = &from[row + first * column_step..];
                for (i, to) in to.iter_mut().enumerate() {
                    *to = from[i * column_step];
                }
            }
        }
    }
}

/// Copies some turns of the outermost loop; `to` begins at the first of them.
fn copy_turns<T: Pod>(nest: &Nest<1>, turns: Range<usize>, from: &[T], to: &mut [T]) {
    let (_, step) = nest.outermost();
    let base = turns.start * step;
    if let Some((rows, columns)) = transposed(nest.dims()) {
        let mut dims: SmallVec<[Dim<1>; 6]> = nest.dims().into();
        dims[0].size = turns.len();
        let [rows, columns] = [rows, columns].map(|d| {
            let dim = dims[d];
            dims[d].size = 1;
            dim
        });
        let skipped = turns.start as isize * nest.dims()[0].ins[0];
        let others = Nest::from_dims(dims);
        others.for_each_run(0, others.elements(), |run| {
            let (out_stride, [in_stride]) = others.inner_strides();
            for i in 0..run.len as isize {
                let (out, input) = (run.out + i * out_stride, run.ins[0] + i * in_stride + skipped);
                copy_matrix(rows, columns, &from[input as usize..], &mut to[out as usize..]);
            }
        });
        return;
    }
    let (out_stride, [in_stride]) = nest.inner_strides();
    let per_turn = nest.elements() / nest.outermost().0;
    nest.for_each_run(turns.start * per_turn, turns.len() * per_turn, |run| {
        let (out, input) = (run.out as usize - base, run.ins[0] as usize);
        match (out_stride, in_stride) {
            (1, 1) => to[out..out + run.len].copy_from_slice(&from[input..input + run.len]),
            (1, 0) => to[out..out + run.len].fill(from[input]),
            _ => {
                for i in 0..run.len {
                    to[out + i * out_stride as usize] = from[input + i * in_stride as usize];
                }
            }
        }
    });
}
