//! `x σ(x)`, also called swish.

use super::unary::one_like;
use super::{Needs, Op, Outs, Rule, Saves, elementwise};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map}};
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `x / (1 + e^-x)`, elementwise. Keeps its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Silu;

/// Arithmetic operations of [`silu`] and of [`silu_and_slope`].
pub(crate) const SILU_FLOPS: u128 = 4;
pub(crate) const SILU_SLOPE_FLOPS: u128 = 9;

#[inline(always)]
pub(crate) fn silu<T: Num>(x: T) -> T {
    x / (T::one() + (-x).exp())
}

/// The function and its derivative `σ (1 + x (1 - σ))`.
#[inline(always)]
pub(crate) fn silu_and_slope<T: Num>(x: T) -> (T, T) {
    let s = T::one() / (T::one() + (-x).exp());
    (x * s, s * (T::one() + x * (T::one() - s)))
}

impl Rule for Silu {
    fn name(&self) -> &'static str {
        "silu"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_like(self.name(), inputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, SILU_FLOPS * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        for (out, &x) in outputs[0].num_mut().data.iter_mut().zip(&inputs[0].num().data) {
            *out = silu(x);
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(1)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(Tensor::op(SiluBackward, &[back.grad()?, back.input(0)?])?)])
    }
}

#[cfg(feature = "cpu")]
impl Map<1, 1> for Silu {
    #[inline(always)]
    fn of<T: Num>(&self, [x]: [T; 1]) -> [T; 1] {
        [silu(x)]
    }
}

/// Gradient of [`Silu`] in one pass. Inputs: gradient, input of forward.
#[derive(Clone, Debug, PartialEq)]
pub struct SiluBackward;

impl Rule for SiluBackward {
    fn name(&self) -> &'static str {
        "silu_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_like(self.name(), inputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, (SILU_SLOPE_FLOPS + 1) * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, x) = (inputs[0].num(), inputs[1].num());
        for ((out, &g), &x) in outputs[0].num_mut().data.iter_mut().zip(&grad.data).zip(&x.data) {
            *out = g * silu_and_slope(x).1;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }
}

#[cfg(feature = "cpu")]
impl Map<2, 1> for SiluBackward {
    #[inline(always)]
    fn of<T: Num>(&self, [g, x]: [T; 2]) -> [T; 1] {
        [g * silu_and_slope(x).1]
    }
}

impl Tensor {
    /// `x σ(x)`
    pub fn silu(&self) -> Result<Self> {
        Self::op(Op::Silu(Silu), &[self])
    }
}
