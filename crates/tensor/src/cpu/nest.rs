//! The loops over the elements of strided operands: as few and as long as the strides allow.

use crate::layout::Layout;
use smallvec::SmallVec;

/// Loops, outermost first, in the memory order of the output.
#[derive(Debug)]
pub struct Nest<const I: usize> {
    dims: SmallVec<[Dim<I>; 6]>,
}

/// One loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dim<const I: usize> {
    /// Its length.
    pub size: usize,
    /// Step of the output.
    pub out: isize,
    /// Step of each input.
    pub ins: [isize; I],
}

/// Where a run of elements begins in the output and in each input, and how long it is.
pub struct Run<const I: usize> {
    /// Number of elements.
    pub len: usize,
    /// Position in the output, from its first element.
    pub out: isize,
    /// Position in each input, from its first element.
    pub ins: [isize; I],
}

impl<const I: usize> Nest<I> {
    /// Loops over an output without overlaps, and inputs that broadcast to its shape.
    pub fn new(output: &Layout, inputs: [&Layout; I]) -> Self {
        let rank = output.rank();
        let stride = |layout: &Layout, d: usize| -> isize {
            match (d + layout.rank()).checked_sub(rank) {
                Some(at) if layout.shape()[at] != 1 => layout.strides()[at] as isize,
                _ => 0,
            }
        };
        let mut dims: SmallVec<[Dim<I>; 6]> = (0..rank)
            .filter(|&d| output.shape()[d] != 1)
            .map(|d| Dim {
                size: output.shape()[d] as usize,
                out: output.strides()[d] as isize,
                ins: inputs.map(|layout| stride(layout, d)),
            })
            .collect();
        dims.sort_by_key(|dim| std::cmp::Reverse(dim.out));
        let mut merged: SmallVec<[Dim<I>; 6]> = SmallVec::new();
        for dim in dims {
            let continues = |outer: isize, inner: isize| outer == inner * dim.size as isize;
            match merged.last_mut() {
                Some(last) if continues(last.out, dim.out) && (0..I).all(|k| continues(last.ins[k], dim.ins[k])) => {
                    *last = Dim { size: last.size * dim.size, ..dim };
                }
                _ => merged.push(dim),
            }
        }
        if merged.is_empty() {
            merged.push(Dim { size: 1, out: 1, ins: [1; I] });
        }
        Self { dims: merged }
    }

    /// These loops, as they are.
    pub fn from_dims(dims: SmallVec<[Dim<I>; 6]>) -> Self {
        Self { dims }
    }

    /// The loops, outermost first; at least one.
    pub fn dims(&self) -> &[Dim<I>] {
        &self.dims
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().map(|dim| dim.size).product()
    }

    /// Whether the elements of the output lie in the order of the loops without gaps.
    pub fn is_dense(&self) -> bool {
        let mut step = 1;
        self.dims.iter().rev().all(|dim| {
            let fits = dim.out == step;
            step *= dim.size as isize;
            fits
        })
    }

    /// Length of the outermost loop, and the step of the output there: no element of one turn lies among those of
    /// another.
    pub fn outermost(&self) -> (usize, usize) {
        (self.dims[0].size, self.dims[0].out as usize)
    }

    /// Steps along a run of the output and of each input.
    pub fn inner_strides(&self) -> (isize, [isize; I]) {
        let inner = self.dims[self.dims.len() - 1];
        (inner.out, inner.ins)
    }

    /// Calls `visit` with each run among the elements `first..first + count` in the order of the loops.
    pub fn for_each_run(&self, first: usize, count: usize, mut visit: impl FnMut(Run<I>)) {
        let (inner, outer) = (self.dims[self.dims.len() - 1], &self.dims[..self.dims.len() - 1]);
        let mut left = count;
        let mut column = first % inner.size.max(1);
        let mut row = first / inner.size.max(1);
        let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer.len());
        let (mut out, mut ins) = (0, [0; I]);
        for (at, dim) in index.iter_mut().zip(outer).rev() {
            *at = row % dim.size;
            row /= dim.size;
            out += *at as isize * dim.out;
            for (position, stride) in ins.iter_mut().zip(dim.ins) {
                *position += *at as isize * stride;
            }
        }
        while left > 0 {
            let len = (inner.size - column).min(left);
            let skip = column as isize;
            let mut run = Run { len, out: out + skip * inner.out, ins };
            for (position, stride) in run.ins.iter_mut().zip(inner.ins) {
                *position += skip * stride;
            }
            visit(run);
            left -= len;
            column = 0;
            for (at, dim) in index.iter_mut().zip(outer).rev() {
                // On to the next turn of this loop, or back to its start and on in the one around it.
                let turns = if *at + 1 < dim.size { 1 } else { -(*at as isize) };
                *at = at.wrapping_add_signed(turns);
                out += turns * dim.out;
                for (position, stride) in ins.iter_mut().zip(dim.ins) {
                    *position += turns * stride;
                }
                if turns > 0 {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[u64]) -> Layout {
        Layout::contiguous(shape).unwrap()
    }

    #[test]
    fn equal_strides_make_one_run_in_any_memory_order() {
        let x = layout(&[2, 3, 4]).transpose(0, 2);
        let nest = Nest::new(&x, [&x]);
        assert_eq!((nest.dims.len(), nest.elements(), nest.is_dense()), (1, 24, true));
        // A row vector repeats; a column stands still along the run.
        let nest = Nest::new(&layout(&[2, 3, 4]), [&layout(&[4]), &layout(&[3, 1])]);
        let dims: Vec<_> = nest.dims.iter().map(|d| (d.size, d.out, d.ins)).collect();
        assert_eq!(dims, [(2, 12, [0, 0]), (3, 4, [0, 1]), (4, 1, [1, 0])]);
    }

    #[test]
    fn runs_visit_every_position_once_whatever_the_cut() {
        let out = layout(&[3, 4, 5]).slice(1, 1, 2, 2).unwrap();
        let input = layout(&[5, 2, 3]).transpose(0, 2);
        let nest = Nest::new(&out, [&input]);
        let relative = |l: &Layout| l.positions().map(|p| p as isize - l.offset() as isize).collect::<Vec<_>>();
        let expected: Vec<_> = relative(&out).into_iter().zip(relative(&input)).collect();
        for piece in [1, 2, 7, 30] {
            let mut seen = Vec::new();
            for first in (0..30).step_by(piece) {
                nest.for_each_run(first, piece.min(30 - first), |run| {
                    let (by_out, by_in) = nest.inner_strides();
                    for i in 0..run.len as isize {
                        seen.push((run.out + i * by_out, run.ins[0] + i * by_in[0]));
                    }
                });
            }
            assert_eq!(seen, expected, "in pieces of {piece}");
        }
    }
}
