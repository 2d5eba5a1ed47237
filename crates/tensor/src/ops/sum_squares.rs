//! Sum of squares over dimensions: what norms of gradients and weights are made of, without a tensor of squares.

use super::sum::{for_each_reduced, reduced_shape};
use super::unary::need_float;
use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
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
const PARTIAL: usize = 4096;

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
