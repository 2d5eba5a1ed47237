//! Logarithm of softmax over one dimension, with its one-buffer backward.

use super::softmax::{for_each_row, infer_backward, infer_forward, largest};
use super::{Needs, Op, Outs, Rule, Saves, elementwise};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, rows::map_rows, reduce::{max, sum, sums},
    typed::Real,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `x - ln Σ e^x` over `dim`, shifted by the maximum. The result is row-major, whatever the input's strides.
#[derive(Clone, Debug, PartialEq)]
pub struct LogSoftmax {
    /// Dimension of the sum.
    pub dim: usize,
    /// dtype of the result if not the input's: the kernel converts as it reads, no widened copy of the input is made.
    pub dtype: Option<DType>,
}

/// `g - e^y Σ g`. Inputs: gradient of the result, the result.
#[derive(Clone, Debug, PartialEq)]
pub struct LogSoftmaxBackward {
    /// Dimension of the sum.
    pub dim: usize,
    /// dtype of the gradient: that of the forward input.
    pub dtype: DType,
}

impl Rule for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        infer_forward(self.name(), &inputs[0], self.dim, self.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let size = outputs[0].shape()[self.dim];
        let rows = outputs[0].elements() / size.max(1);
        // max, subtract, exp, add, subtract; a logarithm per row
        elementwise(inputs, outputs, 5 * u128::from(outputs[0].elements()) + u128::from(rows))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        if x.data.is_empty() {
            return Ok(());
        }
        for_each_row(x, self.dim, |row| {
            let max = largest(&x.data, row);
            let mut sum = T::zero();
            for &at in row {
                out.data[at] = x.data[at] - max;
                sum = sum + out.data[at].exp();
            }
            let log = sum.ln();
            for &at in row {
                out.data[at] = out.data[at] - log;
            }
        });
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let last = self.dim + 1 == args.inputs[0].layout.rank();
        Ok(last
            && in_compute_dtype!(args, C => map_rows::<C, 1>(args, [0], #[inline(always)] |[x], y| {
                let max = max(x);
                let [sum] = sums([x], #[inline(always)] |[x]| [C::lower((x - max).lift().exp())]);
                let log = sum.ln();
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = x - max - log;
                }
            })))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::outputs(1)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let op = LogSoftmaxBackward { dim: self.dim, dtype: back.spec(0).dtype };
        Ok(smallvec![Some(Tensor::op(Op::LogSoftmaxBackward(op), &[back.grad()?, back.output(0)?])?)])
    }
}

impl Rule for LogSoftmaxBackward {
    fn name(&self) -> &'static str {
        "log_softmax_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        infer_backward(self.name(), inputs, self.dim, self.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // add; exp, multiply, subtract
        elementwise(inputs, outputs, 4 * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, y, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        for_each_row(y, self.dim, |row| {
            let sum = row.iter().fold(T::zero(), |sum, &at| sum + grad.data[at]);
            for &at in row {
                out.data[at] = grad.data[at] - y.data[at].exp() * sum;
            }
        });
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let last = self.dim + 1 == args.inputs[0].layout.rank();
        Ok(last
            && in_compute_dtype!(args, C => map_rows::<C, 2>(args, [0, 1], #[inline(always)] |[g, y], dx| {
                let sum = sum(g);
                for ((dx, &g), &y) in dx.iter_mut().zip(g).zip(y) {
                    *dx = g - C::lower(y.lift().exp()) * sum;
                }
            })))
    }
}

impl Tensor {
    /// `x - ln Σ e^x` over `dim`. Low-precision input is computed in f32 and rounded once.
    ///
    /// # Shapes
    /// `any` -> the same, row-major
    pub fn log_softmax(&self, dim: isize) -> Result<Self> {
        self.log_softmax_op(dim, None)
    }

    /// [`Tensor::log_softmax`] with a result of another dtype, without a widened copy of the input.
    pub fn log_softmax_to(&self, dim: isize, dtype: DType) -> Result<Self> {
        self.log_softmax_op(dim, Some(dtype))
    }

    fn log_softmax_op(&self, dim: isize, dtype: Option<DType>) -> Result<Self> {
        let dim = self.layout().dim("log_softmax", dim)?;
        Self::op(Op::LogSoftmax(LogSoftmax { dim, dtype }), &[self])
    }
}
