//! A linear recurrence with a decay for every element: the state of mamba, of gated linear recurrent units and of RWKV.

use super::{Needs, Out, Outs, Rule, Saves, elementwise, one_fresh};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `h_t = a_t h_{t-1} + x_t` along `dim`, from `h_0 = x_0`. Inputs: `a` and `x` of one shape and dtype. Keeps `a` and `h`.
///
/// The first decay is not read.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearScan {
    /// The dimension of time.
    pub dim: usize,
}

/// Gradients of both inputs of [`LinearScan`], from the last step to the first. Inputs: gradient, `a`, `h`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearScanBackward {
    /// The dimension of time.
    pub dim: usize,
}

/// Elements behind the first step.
fn later(spec: &Spec, dim: usize) -> u128 {
    let steps = spec.shape()[dim].max(1);
    u128::from(spec.elements() / steps * (steps - 1))
}

impl Rule for LinearScan {
    fn name(&self) -> &'static str {
        "linear_scan"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (a, x) = (&inputs[0], &inputs[1]);
        if a.shape() != x.shape() {
            let rule = "decays and inputs of a recurrence have one shape";
            return Err(Error::Shapes { op: "linear_scan", a: a.shape().into(), b: x.shape().into(), rule });
        }
        if a.dtype != x.dtype {
            return Err(Error::NoPromotion { op: "linear_scan", a: a.dtype, b: x.dtype });
        }
        if !a.dtype.is_float() {
            return Err(Error::DType { op: "linear_scan", got: a.dtype, expected: "a floating-point dtype" });
        }
        one_fresh(x.shape(), x.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, 2 * later(&outputs[0], self.dim))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, x, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let (outer, steps, inner) = x.around(self.dim);
        for o in 0..outer {
            for t in 0..steps {
                for j in 0..inner {
                    let at = (o * steps + t) * inner + j;
                    out.data[at] = if t == 0 { x.data[at] } else { a.data[at] * out.data[at - inner] + x.data[at] };
                }
            }
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves { inputs: 0b01, outputs: 0b1 }
    }

    fn differentiable(&self) -> u8 {
        0b11
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let inputs = [back.grad()?, back.input(0)?, back.output(0)?];
        let mut both = apply(LinearScanBackward { dim: self.dim }.into(), &inputs)?;
        let x = both.pop();
        Ok(smallvec![both.pop(), x])
    }
}

impl Rule for LinearScanBackward {
    fn name(&self) -> &'static str {
        "linear_scan_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let out = || Out::fresh(inputs[1].shape(), inputs[1].dtype);
        Ok(smallvec![out()?, out()?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, 3 * later(&outputs[0], self.dim))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, a, h) = (inputs[0].num(), inputs[1].num(), inputs[2].num());
        let (outer, steps, inner) = a.around(self.dim);
        let [decays, values] = outputs else { return Err(Error::Backward("a recurrence has two gradients")) };
        let (decays, values) = (decays.num_mut(), values.num_mut());
        for o in 0..outer {
            for t in (0..steps).rev() {
                for j in 0..inner {
                    let at = (o * steps + t) * inner + j;
                    let later = at + inner;
                    values.data[at] = if t + 1 == steps {
                        grad.data[at]
                    } else {
                        grad.data[at] + a.data[later] * values.data[later]
                    };
                    if t > 0 {
                        decays.data[at] = values.data[at] * h.data[at - inner];
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tensor {
    /// `h_t = self_t h_{t-1} + x_t` along `dim`, from `h_0 = x_0`.
    ///
    /// # Shapes
    /// self and `x` of one shape -> the same
    pub fn linear_scan(&self, x: &Self, dim: isize) -> Result<Self> {
        let dim = self.layout().dim("linear_scan", dim)?;
        Self::op(LinearScan { dim }, &[self, x])
    }
}
