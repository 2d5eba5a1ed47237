//! Sums and maxima in a fixed order: the same bits for any number of threads.
//!
//! A slice is added up in [`LANES`] partial sums, which is as fast as memory and loses less than one running sum would.
//! Long sums are taken over blocks, and the sums of the blocks are added in f64, in order.

use super::args::Args;
use super::elementwise::CHUNK;
use super::rows::{in_pieces, rows_per_piece};
use super::simd::vectorized;
use super::typed::{Real, Typed, TypedMut};
use crate::kernel::Num;
use crate::layout::{Dims, Layout};
use smallvec::SmallVec;

/// Partial sums side by side.
const LANES: usize = 32;
/// Elements of a block of a long sum.
pub const BLOCK: usize = 4096;

/// `S` sums over the elements of `K` slices of one length.
#[allow(clippy::needless_range_loop)] // one index for all operands: what the compiler vectorises best
#[inline(always)]
pub fn sums<C: Real, const K: usize, const S: usize>(x: [&[C]; K], term: impl Fn([C; K]) -> [C; S]) -> [C; S] {
    let len = x[0].len();
    let mut sums = [[C::zero(); LANES]; S];
    let mut done = 0;
    while done + LANES <= len {
        let block: [&[C; LANES]; K] = x.map(|x| x[done..].first_chunk().expect("a whole block is left"));
        for i in 0..LANES {
            let terms = term(at(&block, i));
            for s in 0..S {
                sums[s][i] = sums[s][i] + terms[s];
            }
        }
        done += LANES;
    }
    let x = x.map(|x| &x[done..len]);
    for i in 0..len - done {
        let terms = term(at(&x, i));
        for s in 0..S {
            sums[s][i] = sums[s][i] + terms[s];
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for s in 0..S {
            for i in 0..half {
                sums[s][i] = sums[s][i] + sums[s][i + half];
            }
        }
        half /= 2;
    }
    sums.map(|lanes| lanes[0])
}

/// Element `i` of each slice.
#[inline(always)]
fn at<C: Real, X: AsRef<[C]>, const K: usize>(x: &[X; K], i: usize) -> [C; K] {
    let mut values = [C::zero(); K];
    for k in 0..K {
        values[k] = x[k].as_ref()[i];
    }
    values
}

/// Sum of a slice.
#[inline(always)]
pub fn sum<C: Real>(x: &[C]) -> C {
    sums(
        [x],
        #[inline(always)]
        |[x]| [x],
    )[0]
}

/// The largest element, negative infinity if there is none; NaN wins.
#[inline(always)]
pub fn max<C: Real>(x: &[C]) -> C {
    let larger = |a: C, b: C| C::lower(a.lift().max(b.lift()));
    let lowest = C::from_f64(f64::NEG_INFINITY);
    let mut lanes = [lowest; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], block[i]);
        }
    }
    let mut top = lowest;
    for &x in lanes.iter().chain(rest) {
        top = larger(top, x);
    }
    top
}

/// Maximum and `Σ e^(x - maximum)` of a row that comes in blocks, each looked at once.
#[derive(Clone, Copy, Debug)]
pub struct LogSumExp<C> {
    max: C,
    sum: f64,
}

impl<C: Real> LogSumExp<C> {
    /// Of no elements.
    pub fn none() -> Self {
        Self { max: C::from_f64(f64::NEG_INFINITY), sum: 0.0 }
    }

    /// With one more block.
    pub fn add(&mut self, block: &[C]) {
        let (max, sum) = vectorized(
            #[inline(always)]
            || {
                let top = C::lower(self.max.lift().max(max(block).lift()));
                let [sum] = sums(
                    [block],
                    #[inline(always)]
                    |[x]| [C::lower((x.lift() - top.lift()).exp())],
                );
                (top, sum)
            },
        );
        if max.to_f64() == f64::NEG_INFINITY {
            // Minus infinity from minus infinity is no number, but nothing has been added yet.
            return;
        }
        self.sum = self.sum * (self.max.to_f64() - max.to_f64()).exp() + sum.to_f64();
        self.max = max;
    }

    /// The maximum so far.
    pub fn max(&self) -> C {
        self.max
    }

    /// `Σ e^(x - maximum)` so far.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// `ln Σ e^x`
    pub fn ln(&self) -> f64 {
        self.max.to_f64() + self.sum.ln()
    }
}

/// Fewest rows of a column sum that are cut into blocks; below, its columns are cut.
const MANY_ROWS: usize = 128;
/// Blocks of rows at most, and fewest rows of one.
const ROW_BLOCKS: usize = 32;
const BLOCK_ROWS: usize = 16;

/// Writes the sums of input 0 over some dimensions, each finished by a function, to a row-major output. `None`, and
/// nothing written, if the input is written over or runs backwards.
pub fn over_dims<C: Real>(args: &mut Args<'_>, dims: &[u8], finish: impl Fn(C) -> C) -> Option<()> {
    let Args { inputs, outputs } = args;
    let (input, output) = (&inputs[0], &mut outputs[0]);
    let (typed, layout) = (input.typed()?, input.layout);
    if !output.layout.is_contiguous() || layout.strides().iter().any(|&s| s < 0) {
        return None;
    }
    // The dimensions in the order of memory, outermost first.
    let mut order: SmallVec<[usize; 6]> = (0..layout.rank()).collect();
    let packed = if layout.is_dense() {
        order.sort_by_key(|&d| std::cmp::Reverse(layout.strides()[d]));
        None
    } else {
        Some(gathered::<C>(typed, layout))
    };
    let source = packed.as_deref().map_or(typed, C::typed);
    let gone = |d: usize| dims.contains(&(d as u8));
    let mut left: SmallVec<[(usize, bool); 6]> = order.iter().map(|&d| (layout.shape()[d] as usize, gone(d))).collect();
    let mut sums: Option<Vec<C>> = None;
    // Each pass sums over the innermost of the dimensions that are left, with neighbours that go as well.
    while let Some(last) = left.iter().rposition(|&(_, gone)| gone) {
        let first = left[..last].iter().rposition(|&(_, gone)| !gone).map_or(0, |kept| kept + 1);
        let product = |range: &[(usize, bool)]| range.iter().map(|&(size, _)| size).product();
        let (outer, size, inner) = (product(&left[..first]), product(&left[first..=last]), product(&left[last + 1..]));
        let source = sums.as_deref().map_or(source, C::typed);
        sums = Some(if inner == 1 { sum_rows(source, outer, size) } else { sum_columns(source, outer, size, inner) });
        left.drain(first..=last);
    }
    let mut sums = sums.unwrap_or_else(|| {
        let mut all = vec![C::zero(); output.elements()];
        source.read(0, 1, &mut all);
        all
    });
    for sum in &mut sums {
        *sum = finish(*sum);
    }
    let kept: SmallVec<[usize; 6]> = order.into_iter().filter(|&d| !gone(d)).collect();
    if kept.is_sorted() {
        output.typed().write(0, 1, &sums);
    } else {
        // From the order of memory to that of the output.
        let mut sorted = kept.clone();
        sorted.sort_unstable();
        let shape: Dims = sorted.iter().map(|&d| layout.shape()[d]).collect();
        let rank = |d: &usize| sorted.iter().position(|s| s == d).unwrap_or(0);
        let places = Layout::dense_in_order(&shape, &kept.iter().map(rank).collect::<SmallVec<[usize; 6]>>());
        output.typed().write(0, 1, &gathered::<C>(C::typed(&sums), &places));
    }
    Some(())
}

/// Elements in row-major order as numbers; `typed` begins at the first one.
pub(super) fn gathered<C: Real>(typed: Typed<'_>, layout: &Layout) -> Vec<C> {
    let mut to = vec![C::zero(); layout.elements() as usize];
    if let Some((&width, &stride)) = layout.shape().last().zip(layout.strides().last()) {
        let starts = layout.positions().step_by((width as usize).max(1));
        for (row, at) in to.chunks_exact_mut((width as usize).max(1)).zip(starts) {
            typed.read(at - layout.offset() as usize, stride as isize, row);
        }
    } else {
        typed.read(0, 1, &mut to);
    }
    to
}

/// Sum of `len` elements from `at` on.
fn sum_run<C: Real>(source: Typed<'_>, at: usize, len: usize, buffer: &mut [C]) -> C {
    let mut block = |from: usize, len: usize| {
        let x = if let Some(slice) = C::slice(&source) {
            &slice[at + from..][..len]
        } else {
            source.read(at + from, 1, &mut buffer[..len]);
            &buffer[..len]
        };
        vectorized(
            #[inline(always)]
            || sum(x),
        )
    };
    if len <= BLOCK {
        return block(0, len);
    }
    C::from_f64((0..len).step_by(BLOCK).map(|from| block(from, BLOCK.min(len - from)).to_f64()).sum())
}

/// Sums of `outer` rows of `size` elements.
fn sum_rows<C: Real>(source: Typed<'_>, outer: usize, size: usize) -> Vec<C> {
    let mut sums = vec![C::zero(); outer];
    if size <= CHUNK {
        in_pieces(outer, rows_per_piece(size), [(C::typed_mut(&mut sums), 1)], |first, rows, [mut to]| {
            let mut buffer = vec![C::zero(); BLOCK];
            for r in 0..rows {
                to.write(r, 1, &[sum_run(source, (first + r) * size, size, &mut buffer)]);
            }
        });
        return sums;
    }
    for (row, total) in sums.iter_mut().enumerate() {
        let mut parts = vec![0.0f64; size.div_ceil(CHUNK)];
        in_pieces(parts.len(), 1, [(f64::typed_mut(&mut parts), 1)], |piece, _, [mut to]| {
            let start = piece * CHUNK;
            let part: C = sum_run(source, row * size + start, CHUNK.min(size - start), &mut [C::zero(); BLOCK]);
            to.write(0, 1, &[part.to_f64()]);
        });
        *total = C::from_f64(parts.iter().sum());
    }
    sums
}

/// Sums over the middle of `outer size inner`.
fn sum_columns<C: Real>(source: Typed<'_>, outer: usize, size: usize, inner: usize) -> Vec<C> {
    let mut sums = vec![C::zero(); outer * inner];
    if size * inner <= CHUNK {
        let each = [(C::typed_mut(&mut sums), inner)];
        in_pieces(outer, rows_per_piece(size * inner), each, |first, count, [mut to]| {
            for o in 0..count {
                add_columns::<C>(source, (first + o) * size * inner, size, inner, &mut to, o * inner);
            }
        });
        return sums;
    }
    for (o, total) in sums.chunks_exact_mut(inner).enumerate() {
        let start = o * size * inner;
        if size < MANY_ROWS {
            let per_piece = rows_per_piece(size);
            in_pieces(inner, per_piece, [(C::typed_mut(total), 1)], |first, count, [mut to]| {
                let (mut part, mut buffer) = (vec![C::zero(); count], vec![C::zero(); count]);
                for r in 0..size {
                    add_run(source, start + r * inner + first, &mut part, &mut buffer);
                }
                to.write(0, 1, &part);
            });
        } else {
            let per_block = size.div_ceil(ROW_BLOCKS).max(BLOCK_ROWS);
            let mut parts = vec![C::zero(); size.div_ceil(per_block) * inner];
            in_pieces(size.div_ceil(per_block), 1, [(C::typed_mut(&mut parts), inner)], |block, _, [mut to]| {
                let first = block * per_block;
                add_columns::<C>(source, start + first * inner, per_block.min(size - first), inner, &mut to, 0);
            });
            for part in parts.chunks_exact(inner) {
                add_to(total, part);
            }
        }
    }
    sums
}

/// Writes the sums of the columns of `rows` rows that begin at `start`.
fn add_columns<C: Real>(source: Typed<'_>, start: usize, rows: usize, inner: usize, to: &mut TypedMut<'_>, at: usize) {
    let (mut part, mut buffer) = (vec![C::zero(); inner], vec![C::zero(); inner]);
    for r in 0..rows {
        add_run(source, start + r * inner, &mut part, &mut buffer);
    }
    to.write(at, 1, &part);
}

/// Adds a run of elements to numbers.
fn add_run<C: Real>(source: Typed<'_>, at: usize, to: &mut [C], buffer: &mut [C]) {
    if let Some(slice) = C::slice(&source) {
        add_to(to, &slice[at..][..to.len()]);
    } else {
        source.read(at, 1, buffer);
        add_to(to, buffer);
    }
}

/// Adds one slice to another.
pub fn add_to<C: Real>(to: &mut [C], x: &[C]) {
    vectorized(
        #[inline(always)]
        || to.iter_mut().zip(x).for_each(|(to, &x)| *to = *to + x),
    );
}
