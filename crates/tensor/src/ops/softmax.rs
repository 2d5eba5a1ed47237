//! Softmax over one dimension, with its one-buffer backward.

use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, rows::map_rows, reduce::{max, sum, sums},
    typed::Real,
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `e^x / Σ e^x` over `dim`, shifted by the maximum. The result is row-major, whatever the input's strides.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// Dimension of the sum.
    pub dim: usize,
    /// dtype of the result if not the input's: the kernel converts as it reads, no widened copy of the input is made.
    pub dtype: Option<DType>,
}

/// `(g - Σ g y) y`. Inputs: gradient of the result, the result.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxBackward {
    /// Dimension of the sum.
    pub dim: usize,
    /// dtype of the gradient: that of the forward input.
    pub dtype: DType,
}

/// Shape rule of [`Softmax`] and of its logarithm.
pub(crate) fn infer_forward(op: &'static str, input: &Spec, dim: usize, dtype: Option<DType>) -> Result<Outs> {
    input.layout.dim(op, dim as isize)?;
    let dtype = dtype.unwrap_or(input.dtype);
    if let Some(&got) = [input.dtype, dtype].iter().find(|d| !d.is_float()) {
        return Err(Error::DType { op, got, expected: "a floating-point dtype" });
    }
    one_fresh(input.shape(), dtype)
}

/// Shape rule of their backwards: gradient and result must match.
pub(crate) fn infer_backward(op: &'static str, inputs: &[Spec], dim: usize, dtype: DType) -> Result<Outs> {
    let (grad, output) = (&inputs[0], &inputs[1]);
    if grad.shape() != output.shape() {
        let rule = "the gradient must have the shape of the result";
        return Err(Error::Shapes { op, a: grad.shape().into(), b: output.shape().into(), rule });
    }
    infer_forward(op, output, dim, Some(dtype))
}

/// Calls `visit` with the positions of the elements of each row along `dim`.
pub(crate) fn for_each_row<T: Copy>(array: &Array<T>, dim: usize, mut visit: impl FnMut(&[usize])) {
    let (outer, size, inner) = array.around(dim);
    let mut row = vec![0; size];
    for o in 0..outer {
        for j in 0..inner {
            for (i, at) in row.iter_mut().enumerate() {
                *at = (o * size + i) * inner + j;
            }
            visit(&row);
        }
    }
}

/// The largest of some elements; negative infinity if there are none.
pub(crate) fn largest<T: Num>(data: &[T], row: &[usize]) -> T {
    row.iter().fold(T::from_f64(f64::NEG_INFINITY), |max, &at| max.max(data[at]))
}

impl Rule for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        infer_forward(self.name(), &inputs[0], self.dim, self.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // max, subtract, exp, add, divide
        elementwise(inputs, outputs, 5 * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        for_each_row(x, self.dim, |row| {
            let max = largest(&x.data, row);
            let mut sum = T::zero();
            for &at in row {
                out.data[at] = (x.data[at] - max).exp();
                sum = sum + out.data[at];
            }
            for &at in row {
                out.data[at] = out.data[at] / sum;
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
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = C::lower((x - max).lift().exp());
                }
                let sum = sum(y);
                for y in y.iter_mut() {
                    *y /= sum;
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
        let op = SoftmaxBackward { dim: self.dim, dtype: back.spec(0).dtype };
        Ok(smallvec![Some(Tensor::op(Op::SoftmaxBackward(op), &[back.grad()?, back.output(0)?])?)])
    }
}

impl Rule for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        infer_backward(self.name(), inputs, self.dim, self.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // multiply, add; subtract, multiply
        elementwise(inputs, outputs, 4 * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, y, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        for_each_row(y, self.dim, |row| {
            let dot = row.iter().fold(T::zero(), |sum, &at| sum + grad.data[at] * y.data[at]);
            for &at in row {
                out.data[at] = (grad.data[at] - dot) * y.data[at];
            }
        });
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let last = self.dim + 1 == args.inputs[0].layout.rank();
        Ok(last
            && in_compute_dtype!(args, C => map_rows::<C, 2>(args, [0, 1], #[inline(always)] |[g, y], dx| {
                let [dot] = sums([g, y], #[inline(always)] |[g, y]| [g * y]);
                for ((dx, &g), &y) in dx.iter_mut().zip(g).zip(y) {
                    *dx = (g - dot) * y;
                }
            })))
    }
}

impl Tensor {
    /// `e^x / Σ e^x` over `dim`. Low-precision input is computed in f32 and rounded once.
    ///
    /// # Shapes
    /// `any` -> the same, row-major
    pub fn softmax(&self, dim: isize) -> Result<Self> {
        self.softmax_op(dim, None)
    }

    /// [`Tensor::softmax`] with a result of another dtype, without a widened copy of the input.
    pub fn softmax_to(&self, dim: isize, dtype: DType) -> Result<Self> {
        self.softmax_op(dim, Some(dtype))
    }

    fn softmax_op(&self, dim: isize, dtype: Option<DType>) -> Result<Self> {
        let dim = self.layout().dim("softmax", dim)?;
        Self::op(Op::Softmax(Softmax { dim, dtype }), &[self])
    }
}
