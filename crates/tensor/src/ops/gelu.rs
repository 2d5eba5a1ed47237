//! The Gaussian error linear unit, exact and by its tanh approximation. Source: Hendrycks and Gimpel, arXiv:1606.08415.

use super::unary::one_like;
use super::{Needs, Op, Outs, Rule, Saves, elementwise};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{for_variant, map}};
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// Which function of the two that go by this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeluForm {
    /// `x Φ(x)` with the normal distribution function.
    Erf,
    /// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`
    Tanh,
}

/// `x Φ(x)`, elementwise. Keeps its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Gelu {
    /// Exact or approximate.
    pub form: GeluForm,
}

/// `√(2/π)` and the cubic coefficient of the approximation.
const TANH_SCALE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
const TANH_CUBIC: f64 = 0.044_715;

impl GeluForm {
    /// Arithmetic operations of [`GeluForm::value`].
    pub(crate) const fn value_flops(self) -> u128 {
        match self {
            Self::Erf => 5,
            Self::Tanh => 9,
        }
    }

    /// Arithmetic operations of [`GeluForm::value_and_slope`].
    pub(crate) const fn slope_flops(self) -> u128 {
        match self {
            Self::Erf => 11,
            Self::Tanh => 18,
        }
    }

    #[inline(always)]
    pub(crate) fn value<T: Num>(self, x: T) -> T {
        let of = T::from_f64;
        match self {
            Self::Erf => of(0.5) * x * (T::one() + (x * of(FRAC_1_SQRT_2)).erf()),
            Self::Tanh => {
                let inner = of(TANH_SCALE) * (x + of(TANH_CUBIC) * x * (x * x));
                of(0.5) * x * (T::one() + inner.tanh())
            }
        }
    }

    /// The function and its derivative.
    #[inline(always)]
    pub(crate) fn value_and_slope<T: Num>(self, x: T) -> (T, T) {
        let of = T::from_f64;
        match self {
            Self::Erf => {
                let cdf = of(0.5) * (T::one() + (x * of(FRAC_1_SQRT_2)).erf());
                // Density of the standard normal: 1/√(2π) = (2/√π) / (2√2).
                let pdf = of(FRAC_2_SQRT_PI / (2.0 * SQRT_2)) * (of(-0.5) * (x * x)).exp();
                (x * cdf, cdf + x * pdf)
            }
            Self::Tanh => {
                let square = x * x;
                let t = (of(TANH_SCALE) * (x + of(TANH_CUBIC) * x * square)).tanh();
                let (half, right) = (of(0.5) * x, T::one() + t);
                let inner_slope = of(TANH_SCALE) * (T::one() + of(3.0 * TANH_CUBIC) * square);
                let slope = of(0.5) * right + half * (T::one() - t * t) * inner_slope;
                (half * right, slope)
            }
        }
    }
}

impl Rule for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_like(self.name(), inputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, self.form.value_flops() * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        for (out, &x) in outputs[0].num_mut().data.iter_mut().zip(&inputs[0].num().data) {
            *out = self.form.value(x);
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(for_variant!(
 self: Gelu, self.form in GeluForm { Erf, Tanh },
 |_, form, [x]| [form.value(x)], 1 to 1, f => map(args, &f)
))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(1)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let dx = Tensor::op(GeluBackward { form: self.form }, &[back.grad()?, back.input(0)?])?;
        Ok(smallvec![Some(dx)])
    }
}

/// Gradient of [`Gelu`] in one pass. Inputs: gradient, input of forward.
#[derive(Clone, Debug, PartialEq)]
pub struct GeluBackward {
    /// Exact or approximate.
    pub form: GeluForm,
}

impl Rule for GeluBackward {
    fn name(&self) -> &'static str {
        "gelu_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_like(self.name(), inputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, (self.form.slope_flops() + 1) * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, x) = (inputs[0].num(), inputs[1].num());
        for ((out, &g), &x) in outputs[0].num_mut().data.iter_mut().zip(&grad.data).zip(&x.data) {
            *out = g * self.form.value_and_slope(x).1;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(for_variant!(
 self: GeluBackward, self.form in GeluForm { Erf, Tanh },
 |_, form, [g, x]| [g * form.value_and_slope(x).1], 2 to 1, f => map(args, &f)
))
    }
}

impl Tensor {
    /// `x Φ(x)`, exact.
    pub fn gelu(&self) -> Result<Self> {
        Self::op(Op::Gelu(Gelu { form: GeluForm::Erf }), &[self])
    }

    /// The tanh approximation of [`Tensor::gelu`].
    pub fn gelu_tanh(&self) -> Result<Self> {
        Self::op(Op::Gelu(Gelu { form: GeluForm::Tanh }), &[self])
    }
}
