//! Products of narrow floats with a scale for each factor: `a bᵀ` times the inverse scales, summed in f32.

use super::scaled_cast::need_scalar;
use super::unary::need_float;
use super::{Needs, Op, Outs, Rule, Saves, matmul::MatMul, one_fresh, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::Args;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: `a (m k)`, `b (n k)`, their inverse scales; then, if there is a [`GradientCast`], the scale and the largest
/// magnitude of the gradient; then a bias `(n)` if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledMatMul {
    /// dtype of the result.
    pub to: DType,
    /// How the gradient is made narrow in its turn; without it, there is none.
    pub gradient: Option<GradientCast>,
    /// Whether a bias is added.
    pub bias: bool,
}

/// What becomes of the gradient of a product of narrow factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientCast {
    /// Narrow dtype of the gradient of the result.
    pub narrow: DType,
    /// dtypes of the gradients of both factors.
    pub factors: [DType; 2],
}

/// Positions of what only backward reads, and of the bias.
const GRAD_SCALE: usize = 4;
const GRAD_AMAX: usize = 5;

impl ScaledMatMul {
    fn bias_at(&self) -> usize {
        if self.gradient.is_some() { 6 } else { 4 }
    }

    /// What forward reads of the inputs.
    fn read(&self, inputs: &[Spec]) -> SmallVec<[Spec; 5]> {
        let bias = inputs.get(self.bias_at()).filter(|_| self.bias);
        inputs[..4].iter().chain(bias).cloned().collect()
    }
}

impl Rule for ScaledMatMul {
    fn name(&self) -> &'static str {
        "scaled_matmul"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        let (&[m, k], &[n, inner]) = (inputs[0].shape(), inputs[1].shape()) else {
            let rule = "both must be matrices";
            return Err(Error::Shapes { op, a: inputs[0].shape().into(), b: inputs[1].shape().into(), rule });
        };
        let bias = inputs.get(self.bias_at()).filter(|_| self.bias);
        let refuse = |other: &Spec, rule| Err(Error::Shapes { op, a: inputs[0].shape().into(), b: other.shape().into(), rule });
        if inner != k {
            return refuse(&inputs[1], "the rows of both must have one length");
        }
        if let Some(bias) = bias.filter(|bias| bias.shape() != [n]) {
            return refuse(bias, "the bias must have one element per row of the second");
        }
        for operand in inputs[..2].iter().chain(bias) {
            need_float(op, operand)?;
        }
        for scale in &inputs[2..self.bias_at()] {
            need_scalar(op, scale)?;
        }
        if !self.to.is_float() {
            return Err(Error::DType { op, got: self.to, expected: "a floating-point dtype" });
        }
        one_fresh(&[m, n], self.to)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (m, n, k) = (inputs[0].shape()[0], inputs[1].shape()[0], inputs[0].shape()[1]);
        let flops = MatMul::flops(1, m, n, k);
        let results = u128::from(outputs[0].elements());
        // One product of the scales, one with it for each result, and the bias.
        let elementwise = 1 + results * (1 + u128::from(self.bias));
        Cost { matmul: flops, matmul_dense: flops, elementwise, ..traffic(&self.read(inputs), outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let scale = inputs[2].num().data[0] * inputs[3].num().data[0];
        let bias = inputs.get(self.bias_at()).filter(|_| self.bias).map(Data::num);
        let (k, n) = (a.shape[1], b.shape[0]);
        for i in 0..a.shape[0] {
            for j in 0..n {
                let mut sum = T::zero();
                for p in 0..k {
                    sum = sum + a.data[i * k + p] * b.data[j * k + p];
                }
                let value = sum * scale;
                out.data[i * n + j] = bias.map_or(value, |bias| value + bias.data[j]);
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(fast::run(args, self.bias.then(|| self.bias_at())))
    }

    fn saves(&self, needs: Needs) -> Saves {
        let factors = needs.then(0, 0b1010) | needs.then(1, 0b0101);
        let gradient = if factors == 0 { 0 } else { 1 << GRAD_SCALE | 1 << GRAD_AMAX };
        Saves::inputs(factors | gradient)
    }

    fn differentiable(&self) -> u8 {
        if self.gradient.is_none() { 0 } else { 0b11 | u8::from(self.bias) << self.bias_at() }
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let Some(cast) = self.gradient else { return Err(Error::NoGradient { op: self.name(), input: 0 }) };
        let grad = back.grad()?;
        let mut out: Grads = smallvec![None; back.len()];
        if back.wants(0) || back.wants(1) {
            let (scale, amax) = (back.input(GRAD_SCALE)?, back.accumulator(GRAD_AMAX)?);
            let (narrow, inverse) = grad.scaled_cast(cast.narrow, scale, amax)?;
            if back.wants(0) {
                let b = back.input(1)?.t()?; // k n
                out[0] = Some(narrow.scaled_matmul(&b, &inverse, back.input(3)?, cast.factors[0])?);
            }
            if back.wants(1) {
                let a = back.input(0)?.t()?; // k m
                out[1] = Some(narrow.t()?.scaled_matmul(&a, &inverse, back.input(2)?, cast.factors[1])?);
            }
        }
        let at = self.bias_at();
        if self.bias && back.wants(at) {
            out[at] = Some(grad.sum(&[0], false)?.to_dtype(back.spec(at).dtype)?);
        }
        Ok(out)
    }
}

/// This processor has no products of 8-bit floats: the factors are widened, exactly, and the scales go into the first.
#[cfg(feature = "cpu")]
mod fast {
    use crate::cpu::elementwise::CHUNK;
    use crate::cpu::gemm::{self, Matrix, MatrixMut, Product};
    use crate::cpu::typed::Typed;
    use crate::cpu::{Args, Input};
    use crate::dtype::DType;
    use crate::float_format::convert::{F8E4M3_VALUES, F8E5M2_VALUES};
    use crate::layout::Layout;
    use rayon::prelude::*;

    /// The elements of a dense factor as they lie, times `scale`. `None` unless they are 8-bit floats without gaps.
    fn widened(input: &Input<'_>, scale: f32) -> Option<Vec<f32>> {
        let (codes, values) = match input.typed()? {
            Typed::F8E4M3(codes) => (codes, &F8E4M3_VALUES),
            Typed::F8E5M2(codes) => (codes, &F8E5M2_VALUES),
            _ => return None,
        };
        let codes = &codes[..input.elements()];
        let values = values.map(|value| value * scale);
        let mut out = vec![0f32; codes.len()];
        out.par_chunks_mut(CHUNK).zip(codes.par_chunks(CHUNK)).for_each(|(out, codes)| {
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = values[usize::from(code)];
            }
        });
        Some(out).filter(|_| input.layout.is_dense())
    }

    fn matrix<'a>(data: &'a [f32], layout: &Layout) -> Matrix<'a> {
        let (shape, strides) = (layout.shape(), layout.strides());
        let size = (shape[0] as usize, shape[1] as usize);
        Matrix::new(data, 0, size, (strides[0] as isize, strides[1] as isize))
    }

    pub(super) fn run(args: &mut Args<'_>, bias: Option<usize>) -> bool {
        let Args { inputs, outputs } = args;
        if inputs.iter().map(|x| x.dtype).chain([outputs[0].dtype]).any(|dtype| dtype == DType::F64) {
            return false;
        }
        let scalar = |i: usize| {
            let mut x = [0f32];
            inputs[i].typed().map(|t| t.read(0, 1, &mut x)).map(|()| x[0])
        };
        let (Some(inverse_a), Some(inverse_b)) = (scalar(2), scalar(3)) else { return false };
        let bias: Option<Vec<f32>> = match bias.map(|at| (inputs[at].typed(), inputs[at].layout)) {
            None => None,
            Some((Some(bias), layout)) => {
                let mut row = vec![0f32; layout.elements() as usize];
                bias.read(0, layout.strides()[0] as isize, &mut row);
                Some(row)
            }
            Some((None, _)) => return false,
        };
        let (Some(a), Some(b)) = (widened(&inputs[0], inverse_a * inverse_b), widened(&inputs[1], 1.0)) else {
            return false;
        };
        let (a, b) = (matrix(&a, inputs[0].layout), matrix(&b, inputs[1].layout).t());
        let (m, n) = (outputs[0].layout.shape()[0] as usize, outputs[0].layout.shape()[1] as usize);
        gemm::for_dtype!(outputs[0].dtype, T => {
            let Some(out) = outputs[0].dense::<T>() else { return false };
            let product = Product::new(a, b, MatrixMut::new(out, (m, n), n));
            let product = match &bias {
                Some(bias) => product.bias(Matrix::new(bias, 0, (1, n), (0, 1))),
                None => product,
            };
            gemm::run(&mut [product]);
        })
    }
}

/// What a differentiable product of narrow factors is given for the gradient of its result.
#[derive(Clone, Copy)]
pub struct GradientScale<'a> {
    /// How it is cast.
    pub cast: GradientCast,
    /// Its scale; 0: what fits it.
    pub scale: &'a Tensor,
    /// The largest magnitude seen, raised in backward.
    pub amax: &'a Tensor,
}

impl Tensor {
    /// `self otherᵀ` times both inverse scales, without a gradient.
    ///
    /// # Shapes
    /// self `m k`, other `n k` -> `m n`
    ///
    /// # Errors
    /// Operands of other shapes; integers.
    pub fn scaled_matmul(&self, other: &Self, inverse: &Self, inverse_other: &Self, to: DType) -> Result<Self> {
        let op = ScaledMatMul { to, gradient: None, bias: false };
        Self::op(Op::ScaledMatMul(op), &[self, other, inverse, inverse_other])
    }

    /// `x Wᵀ + b` of narrow `x` (self) and `W`, each with its inverse scale; in backward, the gradient is made narrow too.
    ///
    /// # Shapes
    /// self `m k`, weight `n k`, bias `n` -> `m n`
    ///
    /// # Errors
    /// Operands of other shapes; integers.
    pub fn scaled_linear(
        &self,
        inverse: &Self,
        weight: (&Self, &Self),
        bias: Option<&Self>,
        to: DType,
        gradient: GradientScale<'_>,
    ) -> Result<Self> {
        let op = ScaledMatMul { to, gradient: Some(gradient.cast), bias: bias.is_some() };
        let mut inputs: SmallVec<[&Self; 7]> =
            smallvec![self, weight.0, inverse, weight.1, gradient.scale, gradient.amax];
        inputs.extend(bias);
        Self::op(Op::ScaledMatMul(op), &inputs)
    }
}
