//! Systems of equations with a triangular matrix of unit diagonal.

use super::{Needs, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `X` of `(1 + L) X = B`, or of `(1 + L)ᵀ X = B` if `transposed`, where `L` is the part of `a` below its diagonal.
/// Inputs: `a (.. c c)`, `B (.. c d)`. Keeps `a` and the solution. The transposed system has no gradient.
///
/// Its arithmetic counts as elementwise, as common counters do not see it.
#[derive(Clone, Debug, PartialEq)]
pub struct SolveTriangular {
    /// Whether the matrix is transposed.
    pub transposed: bool,
}

impl Rule for SolveTriangular {
    fn name(&self) -> &'static str {
        "solve_triangular"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (a, b) = (inputs[0].shape(), inputs[1].shape());
        let rank = a.len();
        let fits = rank >= 2 && b.len() == rank && a[rank - 1] == a[rank - 2] && a[..rank - 1] == b[..rank - 1];
        if !fits {
            let rule = "the matrix must be square, and as high as the right-hand side";
            return Err(Error::Shapes { op: "solve_triangular", a: a.into(), b: b.into(), rule });
        }
        if inputs[0].dtype != inputs[1].dtype || !inputs[0].dtype.is_float() {
            return Err(Error::NoPromotion { op: "solve_triangular", a: inputs[0].dtype, b: inputs[1].dtype });
        }
        one_fresh(b, inputs[1].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let rows = u128::from(inputs[0].shape()[inputs[0].shape().len() - 1]);
        elementwise(inputs, outputs, u128::from(outputs[0].elements()) * rows.saturating_sub(1))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let (c, d) = (a.last(), b.last());
        for m in 0..a.data.len() / (c * c).max(1) {
            for step in 0..c {
                let i = if self.transposed { c - 1 - step } else { step };
                let others = if self.transposed { i + 1..c } else { 0..i };
                for x in 0..d {
                    let mut sum = b.data[(m * c + i) * d + x];
                    for j in others.clone() {
                        let (row, column) = if self.transposed { (j, i) } else { (i, j) };
                        sum = sum - a.data[(m * c + row) * c + column] * out.data[(m * c + j) * d + x];
                    }
                    out.data[(m * c + i) * d + x] = sum;
                }
            }
        }
        Ok(())
    }

    fn saves(&self, needs: Needs) -> Saves {
        Saves { inputs: 0b01, outputs: needs.then(0, 0b1) }
    }

    fn differentiable(&self) -> u8 {
        if self.transposed { 0 } else { 0b11 }
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let b = Tensor::op(Self { transposed: true }, &[back.input(0)?, back.grad()?])?;
        let a = if back.wants(0) { Some(b.matmul(&back.output(0)?.t()?)?.neg()?.tril(-1)?) } else { None };
        Ok(smallvec![a, back.wants(1).then_some(b)])
    }
}

impl Tensor {
    /// `X` of `(1 + L) X = self`, where `L` is what lies below the diagonal of `matrix`.
    ///
    /// # Shapes
    /// self `.. c d`, matrix `.. c c` -> `.. c d`
    pub fn solve_unit_lower(&self, matrix: &Self) -> Result<Self> {
        Self::op(SolveTriangular { transposed: false }, &[matrix, self])
    }
}
