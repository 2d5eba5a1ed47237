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
        Ok(fast::run(args, self.bias.then(|| self.bias_at())).unwrap_or(false))
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

/// Processors have no products of 8-bit floats: the factors are widened, exactly, while they are packed.
#[cfg(feature = "cpu")]
mod fast {
    use crate::cpu::gemm::{self, E4m3, E5m2, Matrix, MatrixMut, Product};
    use crate::cpu::{Args, Input};
    use crate::dtype::DType;
    use crate::layout::Layout;
    use half::{bf16, f16};

    /// The elements of an operand, in the places of `layout`. `None` of dtypes that products of f32 do not read.
    fn matrix<'a>(input: &'a Input<'_>, layout: &Layout) -> Option<Matrix<'a>> {
        Some(match input.dtype {
            DType::F32 => Matrix::of::<f32>(input.storage()?, layout),
            DType::BF16 => Matrix::of::<bf16>(input.storage()?, layout),
            DType::F16 => Matrix::of::<f16>(input.storage()?, layout),
            DType::F8E4M3 => Matrix::of::<E4m3>(input.storage()?, layout),
            DType::F8E5M2 => Matrix::of::<E5m2>(input.storage()?, layout),
            _ => return None,
        })
    }

    /// The only element.
    fn scalar(input: &Input<'_>) -> Option<f32> {
        let mut x = [0f32];
        input.typed()?.read(0, 1, &mut x);
        Some(x[0]).filter(|_| input.dtype != DType::F64)
    }

    /// Whether the product was made. `bias`: which input it is.
    pub(super) fn run(args: &mut Args<'_>, bias: Option<usize>) -> Option<bool> {
        let Args { inputs, outputs } = args;
        let scale = scalar(&inputs[2])? * scalar(&inputs[3])?;
        let (a, b) = (matrix(&inputs[0], inputs[0].layout)?, matrix(&inputs[1], inputs[1].layout)?);
        let row = |at: usize| matrix(&inputs[at], &inputs[at].layout.unsqueeze(0));
        let bias = match bias {
            Some(at) => Some(row(at)?),
            None => None,
        };
        let out = &mut outputs[0];
        let (m, n) = (out.layout.shape()[0] as usize, out.layout.shape()[1] as usize);
        if out.dtype == DType::F64 {
            return None;
        }
        Some(gemm::for_dtype!(out.dtype, T => {
            let product = Product::new(a, b.t(), MatrixMut::new(out.dense::<T>()?, (m, n), n)).scaled(scale);
            gemm::run(&mut [match bias {
                Some(bias) => product.bias(bias),
                None => product,
            }]);
        }))
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
