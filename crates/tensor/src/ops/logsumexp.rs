//! `ln Σ e^x` along a dimension, without overflow.

use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, rows::fold_rows, reduce::LogSumExp as Sum};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::sum::reduced_shape;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `ln Σ e^x` along `dim`, which stays with size 1 (`keep`) or disappears.
#[derive(Clone, Debug, PartialEq)]
pub struct LogSumExp {
    /// Dimension.
    pub dim: usize,
    /// Whether it stays with size 1.
    pub keep: bool,
}

impl Rule for LogSumExp {
    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if !inputs[0].dtype.is_float() {
            return Err(Error::DType { op: "logsumexp", got: inputs[0].dtype, expected: "a floating-point dtype" });
        }
        one_fresh(&reduced_shape(inputs[0].shape(), &[self.dim as u8], self.keep), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Each element: maximum, subtract, exp, add. Each result: ln, add.
        let flops = 4 * u128::from(inputs[0].elements()) + 2 * u128::from(outputs[0].elements());
        elementwise(inputs, outputs, flops)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        let (outer, size, inner) = x.around(self.dim);
        for o in 0..outer {
            for j in 0..inner {
                let at = |i: usize| x.data[(o * size + i) * inner + j];
                let top = (0..size).fold(T::from_f64(f64::NEG_INFINITY), |top, i| top.max(at(i)));
                // An infinite maximum cannot be subtracted: inf - inf is NaN.
                let shift = if top.to_f64().is_infinite() { T::zero() } else { top };
                let sum = (0..size).fold(T::zero(), |sum, i| sum + (at(i) - shift).exp());
                out.data[o * inner + j] = sum.ln() + shift;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let last = self.dim + 1 == args.inputs[0].layout.rank();
        Ok(last
            && in_compute_dtype!(args, C => fold_rows::<C>(args, |x| {
                let mut sum = Sum::none();
                sum.add(x);
                // From infinity nothing can be subtracted: inf - inf is NaN.
                if sum.max().to_f64() == f64::INFINITY { sum.max() } else { C::from_f64(sum.ln()) }
            })))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves { inputs: 1, outputs: 1 }
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (mut grad, mut out) = (back.grad()?.clone(), back.output(0)?.clone());
        if !self.keep {
            grad = grad.unsqueeze(self.dim as isize)?;
            out = out.unsqueeze(self.dim as isize)?;
        }
        // grad * softmax(x), as in the reference framework: three buffers of full size, alive together.
        Ok(smallvec![Some(grad.mul(&back.input(0)?.sub(&out)?.exp()?)?)])
    }
}

impl Tensor {
    /// `ln Σ e^x` along `dim`.
    ///
    /// # Shapes
    /// the shape without `dim`, or with size 1 there if `keep`
    pub fn logsumexp(&self, dim: isize, keep: bool) -> Result<Self> {
        let dim = self.layout().dim("logsumexp", dim)?;
        Self::op(Op::LogSumExp(LogSumExp { dim, keep }), &[self])
    }
}
