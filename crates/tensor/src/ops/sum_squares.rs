//! Sum of squares over dimensions: what norms of gradients and weights are made of, without a tensor of squares.

use super::sum::{for_each_reduced, reduced_shape};
use super::unary::need_float;
use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::Args;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// `Σ x²` over `dims`, which stay with size 1 (`keep`) or disappear; f32 for narrower inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct SumSquares {
    /// Dimensions summed over, ascending.
    pub dims: SmallVec<[u8; 8]>,
    /// Whether they stay with size 1.
    pub keep: bool,
}

/// Squares in a partial sum. An f32 sum of equal terms stands still at 2^24 of them, fewer than large matrices have.
const PARTIAL: usize = 256;

impl Rule for SumSquares {
    fn name(&self) -> &'static str {
        "sum_squares"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        need_float(self.name(), &inputs[0])?;
        let dtype = if inputs[0].dtype == DType::F64 { DType::F64 } else { DType::F32 };
        one_fresh(&reduced_shape(inputs[0].shape(), &self.dims, self.keep), dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Each element is squared and added, each partial sum is added.
        let (all, sums) = (u128::from(inputs[0].elements()), u128::from(outputs[0].elements()));
        let each = all.checked_div(sums).unwrap_or(0);
        elementwise(inputs, outputs, 2 * all + sums * each.div_ceil(PARTIAL as u128))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        let mut partial = vec![(T::zero(), 0); out.data.len()];
        for_each_reduced(&x.shape, &self.dims, |from, to| {
            let (sum, count) = &mut partial[to];
            *sum = *sum + x.data[from] * x.data[from];
            *count += 1;
            if *count == PARTIAL {
                out.data[to] = out.data[to] + *sum;
                partial[to] = (T::zero(), 0);
            }
        });
        for (out, (sum, _)) in out.data.iter_mut().zip(partial).filter(|(_, (_, count))| *count > 0) {
            *out = *out + sum;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(fast::run(args, &self.dims))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(1)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let x = back.input(0)?;
        let kept = reduced_shape(x.shape(), &self.dims, true);
        let grad = back.grad()?.view(&kept)?.mul_scalar(2.0)?;
        Ok(smallvec![Some(x.mul(&grad)?.to_dtype(x.dtype())?)])
    }
}

#[cfg(feature = "cpu")]
mod fast {
    use crate::cpu::elementwise::{CHUNK, compute_dtype};
    use crate::cpu::simd::vectorized;
    use crate::cpu::typed::{Real, Typed};
    use crate::cpu::{Args, Output};
    use crate::dtype::DType;
    use rayon::prelude::*;

    /// Sums side by side, and elements that are looked at together.
    const LANES: usize = 32;
    const BLOCK: usize = 2048;

    /// Sums along the last dimensions, of all elements, or down the columns of matrices.
    pub(super) fn run(args: &mut Args<'_>, dims: &[u8]) -> bool {
        match compute_dtype(args) {
            Some(DType::F64) => sums::<f64>(args, dims),
            _ => sums::<f32>(args, dims),
        }
    }

    fn sums<C: Real>(args: &mut Args<'_>, dims: &[u8]) -> bool {
        let Args { inputs, outputs } = args;
        let (input, rank) = (&inputs[0], inputs[0].layout.rank());
        let Some(x) = input.typed() else { return false };
        let count = outputs[0].elements();
        let width = input.elements().checked_div(count).unwrap_or(0);
        let all = dims.len() == rank && input.layout.is_dense();
        let trailing = dims.iter().rev().enumerate().all(|(i, &d)| usize::from(d) + i + 1 == rank);
        let sums: Vec<f64> = if all || (trailing && input.layout.is_contiguous()) {
            rows::<C>(x, count, width)
        } else if rank >= 2 && *dims == [rank as u8 - 2] && input.layout.is_contiguous() {
            let columns = input.layout.shape()[rank - 1] as usize;
            let matrices = count / columns.max(1);
            (0..matrices).flat_map(|i| self::columns::<C>(x.from(i * width * columns), width, columns)).collect()
        } else {
            return false;
        };
        write(&mut outputs[0], &sums);
        true
    }

    fn write(output: &mut Output<'_>, sums: &[f64]) {
        output.typed().write(0, 1, sums);
    }

    /// Sum of the squares of a block.
    fn block<C: Real>(x: &[C]) -> f64 {
        vectorized(
            #[inline(always)]
            || {
                let mut sums = [C::zero(); LANES];
                let (whole, rest) = x.as_chunks::<LANES>();
                for x in whole {
                    for i in 0..LANES {
                        sums[i] = sums[i] + x[i] * x[i];
                    }
                }
                for (sum, &x) in sums.iter_mut().zip(rest) {
                    *sum = *sum + x * x;
                }
                sums.iter().map(|sum| sum.to_f64()).sum()
            },
        )
    }

    /// Elements where they lie if they are such numbers, else brought into the buffer.
    fn numbers<'b, C: Real>(x: &Typed<'b>, from: usize, len: usize, buffer: &'b mut [C]) -> &'b [C] {
        if let Some(slice) = C::slice(x) {
            &slice[from..from + len]
        } else {
            x.read(from, 1, &mut buffer[..len]);
            &buffer[..len]
        }
    }

    fn stretch<C: Real>(x: Typed<'_>, from: usize, len: usize) -> f64 {
        let mut buffer = [C::zero(); BLOCK];
        let mut total = 0.0;
        for start in (from..from + len).step_by(BLOCK) {
            let len = BLOCK.min(from + len - start);
            total += block(numbers(&x, start, len, &mut buffer));
        }
        total
    }

    /// Rows that lie one after another. Long ones are cut into pieces, whose sums are added in order.
    fn rows<C: Real>(x: Typed<'_>, count: usize, width: usize) -> Vec<f64> {
        let pieces = width.div_ceil(CHUNK).max(1);
        if pieces == 1 {
            let together = (CHUNK / width.max(1)).max(1);
            return (0..count)
                .into_par_iter()
                .with_min_len(together)
                .map(|row| stretch::<C>(x, row * width, width))
                .collect();
        }
        let piece = |row: usize, i: usize| stretch::<C>(x, row * width + i * CHUNK, CHUNK.min(width - i * CHUNK));
        let row = |row| (0..pieces).into_par_iter().map(|i| piece(row, i)).collect::<Vec<f64>>().iter().sum();
        (0..count).map(row).collect()
    }

    /// Columns of a matrix of `height` rows.
    fn columns<C: Real>(x: Typed<'_>, height: usize, width: usize) -> Vec<f64> {
        const TALL: usize = 64;
        let piece = |first: usize| {
            let len = (BLOCK / 4).min(width - first);
            let mut totals = vec![0.0; len];
            let (mut buffer, mut sums) = ([C::zero(); BLOCK / 4], [C::zero(); BLOCK / 4]);
            for top in (0..height).step_by(TALL) {
                sums[..len].fill(C::zero());
                for row in top..height.min(top + TALL) {
                    let x = numbers(&x, row * width + first, len, &mut buffer);
                    vectorized(
                        #[inline(always)]
                        || {
                            for (sum, &x) in sums[..len].iter_mut().zip(x) {
                                *sum = *sum + x * x;
                            }
                        },
                    );
                }
                for (total, sum) in totals.iter_mut().zip(&sums) {
                    *total += sum.to_f64();
                }
            }
            totals
        };
        let firsts: Vec<usize> = (0..width).step_by(BLOCK / 4).collect();
        firsts.into_par_iter().flat_map_iter(piece).collect()
    }
}

impl Tensor {
    /// Sum of squares over `dims`, in f32 for narrower tensors.
    ///
    /// # Errors
    /// [`Error::Dim`](crate::Error::Dim), or [`Error::DType`](crate::Error::DType) for integers.
    pub fn sum_squares(&self, dims: &[isize], keep: bool) -> Result<Self> {
        let dims = self.dims_of("sum_squares", dims)?;
        Self::op(Op::SumSquares(SumSquares { dims, keep }), &[self])
    }

    /// Sum of the squares of all elements, a scalar; in f32 for narrower tensors.
    ///
    /// # Errors
    /// [`Error::DType`](crate::Error::DType) for integers.
    pub fn sum_squares_all(&self) -> Result<Self> {
        let dims = (0..self.rank() as u8).collect();
        Self::op(Op::SumSquares(SumSquares { dims, keep: false }), &[self])
    }
}
