//! The inverse of a triangular matrix of unit diagonal, by substitution.

use super::{Needs, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `(1 + L)⁻¹`, where `L` is the part of the input `(.. c c)` below its diagonal. Keeps the inverse.
///
/// Its arithmetic counts as elementwise: programs write it as products and sums of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct LowerInverse;

/// Gradient of [`LowerInverse`]. Inputs: gradient, inverse.
#[derive(Clone, Debug, PartialEq)]
pub struct LowerInverseBackward;

/// `(matrices, rows of one)`.
fn sizes(spec: &Spec) -> (u128, u128) {
    let c = u128::from(spec.shape()[spec.shape().len() - 1]);
    (u128::from(spec.elements()) / (c * c).max(1), c)
}

impl Rule for LowerInverse {
    fn name(&self) -> &'static str {
        "lower_inverse"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let shape = inputs[0].shape();
        let square = shape.len() >= 2 && shape[shape.len() - 1] == shape[shape.len() - 2];
        if !square || !inputs[0].dtype.is_float() {
            return Err(Error::Argument { op: "lower_inverse", what: "needs square matrices of floats".into() });
        }
        one_fresh(shape, inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (count, c) = sizes(&inputs[0]);
        elementwise(inputs, outputs, count * (c * c.saturating_sub(1) * (2 * c).saturating_sub(1) / 6))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, out) = (inputs[0].num(), outputs[0].num_mut());
        let c = a.last();
        for m in 0..a.data.len() / (c * c).max(1) {
            let at = |i: usize, j: usize| (m * c + i) * c + j;
            for i in 0..c {
                out.data[at(i, i)] = T::one();
                for j in (0..i).rev() {
                    let mut sum = a.data[at(i, j)];
                    for k in j + 1..i {
                        sum = sum + a.data[at(i, k)] * out.data[at(k, j)];
                    }
                    out.data[at(i, j)] = -sum;
                }
            }
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::outputs(1)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(Tensor::op(LowerInverseBackward, &[back.grad()?, back.output(0)?])?)])
    }
}

impl Rule for LowerInverseBackward {
    fn name(&self) -> &'static str {
        "lower_inverse_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_fresh(inputs[1].shape(), inputs[1].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (count, c) = sizes(&inputs[1]);
        let (one, two) = (c.saturating_sub(1), c.saturating_sub(2));
        let flop = c * (c * c).saturating_sub(1) / 3 + c * one * two / 3 + 3 * c * one / 2;
        elementwise(inputs, outputs, count * flop)
    }

    /// `-Xᵀ G Xᵀ` below the diagonal.
    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, inverse, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let c = inverse.last();
        let mut half = vec![T::zero(); c];
        for m in 0..inverse.data.len() / (c * c).max(1) {
            let at = |i: usize, j: usize| (m * c + i) * c + j;
            for i in 0..c {
                for (j, sum) in half.iter_mut().enumerate().take(i) {
                    *sum = (i..c).fold(T::zero(), |sum, k| sum + inverse.data[at(k, i)] * grad.data[at(k, j)]);
                }
                for j in 0..i {
                    let sum = (0..=j).fold(T::zero(), |sum, k| sum + half[k] * inverse.data[at(j, k)]);
                    out.data[at(i, j)] = -sum;
                }
            }
        }
        Ok(())
    }
}

impl Tensor {
    /// `(1 + L)⁻¹`, where `L` is what lies below the diagonal.
    ///
    /// # Shapes
    /// `.. c c -> .. c c`
    pub fn unit_lower_inverse(&self) -> Result<Self> {
        Self::op(LowerInverse, &[self])
    }
}
