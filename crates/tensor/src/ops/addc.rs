//! Scaled additions in place: the inner steps of optimizers, without temporaries.

use super::lerp::check_into;
use super::{Op, Outs, Rule, elementwise};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map}};
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::binary::broadcast_positions;
use crate::tensor::{Spec, Tensor};

/// Adds `value` times a term to the first input, in place. Inputs: x, a, and b for products and quotients.
#[derive(Clone, Debug, PartialEq)]
pub struct Addc {
    /// The term.
    pub kind: AddcKind,
    /// Its factor.
    pub value: f64,
}

/// Terms of [`Addc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddcKind {
    /// `a`
    One,
    /// `a b`
    Mul,
    /// `a / b`
    Div,
}

impl Addc {
    #[inline(always)]
    fn added<T: Num>(&self, x: T, a: T, b: T) -> T {
        let a = T::from_f64(self.value) * a;
        x + match self.kind {
            AddcKind::One => a,
            AddcKind::Mul => a * b,
            AddcKind::Div => a / b,
        }
    }
}

#[cfg(feature = "cpu")]
impl Map<2, 1> for Addc {
    #[inline(always)]
    fn of<T: Num>(&self, [x, a]: [T; 2]) -> [T; 1] {
        [self.added(x, a, T::one())]
    }
}

#[cfg(feature = "cpu")]
impl Map<3, 1> for Addc {
    #[inline(always)]
    fn of<T: Num>(&self, [x, a, b]: [T; 3]) -> [T; 1] {
        [self.added(x, a, b)]
    }
}

impl Rule for Addc {
    fn name(&self) -> &'static str {
        match self.kind {
            AddcKind::One => "add_scaled_",
            AddcKind::Mul => "addcmul_",
            AddcKind::Div => "addcdiv_",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check_into(self.name(), inputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let per_element = if self.kind == AddcKind::One { 2 } else { 3 };
        elementwise(inputs, outputs, per_element * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b, out) = (inputs[1].num(), inputs.get(2).map(Data::num), outputs[0].num_mut());
        let at_a = broadcast_positions(&a.shape, &out.shape);
        let at_b = b.map(|b| broadcast_positions(&b.shape, &out.shape));
        for (i, x) in out.data.iter_mut().enumerate() {
            let b = b.zip(at_b.as_ref()).map_or(T::one(), |(b, at)| b.data[at[i]]);
            *x = self.added(*x, a.data[at_a[i]], b);
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(if self.kind == AddcKind::One { map::<2, 1>(args, self) } else { map::<3, 1>(args, self) })
    }
}

impl Tensor {
    /// `self + alpha other`, in place.
    ///
    /// # Errors
    /// [`Error::InPlaceOnGraph`] if it has history; [`Error::OverlappingWrite`] if it is expanded.
    pub fn add_scaled_(&self, other: &Self, alpha: f64) -> Result<Self> {
        Self::op(Op::Addc(Addc { kind: AddcKind::One, value: alpha }), &[self, other])
    }

    /// `self + value a b`, in place.
    ///
    /// # Errors
    /// As [`Tensor::add_scaled_`].
    pub fn addcmul_(&self, a: &Self, b: &Self, value: f64) -> Result<Self> {
        Self::op(Op::Addc(Addc { kind: AddcKind::Mul, value }), &[self, a, b])
    }

    /// `self + value a / b`, in place.
    ///
    /// # Errors
    /// As [`Tensor::add_scaled_`].
    pub fn addcdiv_(&self, a: &Self, b: &Self, value: f64) -> Result<Self> {
        Self::op(Op::Addc(Addc { kind: AddcKind::Div, value }), &[self, a, b])
    }
}
