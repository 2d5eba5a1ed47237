//! Rows of a table: picked, and added to.

use super::args::Args;
use super::reduce::add_to;
use super::rows::{Rows, for_each, place, put, rows_per_piece};
use super::typed::{Real, TypedMut};
use bytemuck::Pod;

/// Writes row `ids[i]` of input 0 to row `i` of the output, which is row-major. `false`, and nothing written, if the rows
/// of the table do not lie in one piece each.
pub fn pick_rows(args: &mut Args<'_>, ids: &[usize]) -> bool {
    match args.inputs[0].dtype.size_in_bytes() {
        1 => pick::<u8>(args, ids),
        2 => pick::<u16>(args, ids),
        4 => pick::<u32>(args, ids),
        _ => pick::<u64>(args, ids),
    }
}

fn pick<T: Pod + Send + Sync>(args: &mut Args<'_>, ids: &[usize]) -> bool {
    let Args { inputs, outputs } = args;
    let (table, output) = (&inputs[0], &mut outputs[0]);
    let rows = ids.is_empty() || table.layout.select(0, 0).is_ok_and(|row| row.is_contiguous());
    let (Some(from), Some(to), true) = (table.storage::<T>(), output.dense::<T>(), rows) else { return false };
    let width: usize = table.layout.shape()[1..].iter().product::<u64>() as usize;
    if ids.is_empty() || width == 0 {
        return true;
    }
    let (first, stride) = (table.layout.offset() as usize, table.layout.strides()[0] as usize);
    let per_piece = rows_per_piece(width);
    let pieces: Vec<_> = to.chunks_mut(per_piece * width).zip(ids.chunks(per_piece)).collect();
    for_each(pieces, |(to, ids)| {
        for (to, &id) in to.chunks_exact_mut(width).zip(ids) {
            to.copy_from_slice(&from[first + id * stride..][..width]);
        }
    });
    true
}

/// Adds row `i` of `source` to row `ids[i]` of a row-major table: rows of equal id one after another, in order, rounded
/// once. With `zeroed`, the table counts as zeros before.
///
/// Threads share out the rows of the table, so that no two write the same.
pub fn add_rows<C: Real>(table: TypedMut<'_>, ids: &[usize], source: &Rows<'_>, zeroed: bool) {
    let width = source.width();
    if width == 0 {
        return;
    }
    let mut order: Vec<(usize, usize)> = ids.iter().copied().enumerate().map(|(i, id)| (id, i)).collect();
    order.sort_unstable();
    let rows = table.len() / width;
    let per_piece = rows_per_piece(width);
    let mut left = table;
    let pieces: Vec<_> = (0..rows).step_by(per_piece).map(|first| (first, left.take(per_piece * width))).collect();
    for_each(pieces, |(first, mut table)| {
        if zeroed {
            table.fill_zero();
        }
        let before = |bound: usize| order.partition_point(|&(id, _)| id < bound);
        let mine = &order[before(first)..before(first + per_piece)];
        if mine.is_empty() {
            return;
        }
        let (mut block, mut buffer) = (vec![C::zero(); width], vec![C::zero(); width]);
        for same in mine.chunk_by(|a, b| a.0 == b.0) {
            let at = (same[0].0 - first) * width;
            if C::slice_mut(&mut table).is_none() {
                table.as_read().read(at, 1, &mut block);
            }
            let sum = place(&mut table, at, width, &mut block);
            for &(_, i) in same {
                let row = source.get(i, 0, width, &mut buffer);
                add_to(sum, row);
            }
            put(&mut table, at, width, &block);
        }
    });
}
