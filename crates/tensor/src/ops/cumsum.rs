//! Running sum along a dimension.

use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Running sum along `dim`. Integers and booleans are summed as i64.
#[derive(Clone, Debug, PartialEq)]
pub struct Cumsum {
    /// Dimension.
    pub dim: usize,
    /// Whether it runs from the last element to the first.
    pub reverse: bool,
}

impl Rule for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let dtype = if inputs[0].dtype.is_float() { inputs[0].dtype } else { DType::I64 };
        one_fresh(inputs[0].shape(), dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Each element is added once, to a sum that starts at zero.
        elementwise(inputs, outputs, u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        let (outer, size, inner) = x.around(self.dim);
        for o in 0..outer {
            for j in 0..inner {
                let mut sum = T::zero();
                for i in 0..size {
                    let i = if self.reverse { size - 1 - i } else { i };
                    let at = (o * size + i) * inner + j;
                    sum = sum + x.data[at];
                    out.data[at] = sum;
                }
            }
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        // The reference framework flips, sums and flips again: three buffers where this needs one.
        let op = Cumsum { dim: self.dim, reverse: !self.reverse };
        Ok(smallvec![Some(Tensor::op(Op::Cumsum(op), &[back.grad()?])?)])
    }
}

impl Tensor {
    /// Running sum along `dim`; the shape stays.
    pub fn cumsum(&self, dim: isize) -> Result<Self> {
        let dim = self.layout().dim("cumsum", dim)?;
        Self::op(Op::Cumsum(Cumsum { dim, reverse: false }), &[self])
    }
}
