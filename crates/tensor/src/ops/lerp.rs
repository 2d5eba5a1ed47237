//! Moving averages in place.

use super::unary::need_float;
use super::{Op, Out, Outs, Rule, elementwise};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map}};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::broadcast_shapes;
use crate::meter::Cost;
use crate::ops::binary::broadcast_positions;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `x + weight (end - x)`, written over `x`. Inputs: x, end.
#[derive(Clone, Debug, PartialEq)]
pub struct Lerp {
    /// Fraction of the way to `end`.
    pub weight: f64,
}

/// Checks of an op that writes over its first input: all float, the others broadcast into it.
pub(super) fn check_into(op: &'static str, inputs: &[Spec]) -> Result<Outs> {
    let to = &inputs[0];
    for from in inputs {
        need_float(op, from)?;
        if broadcast_shapes(op, to.shape(), from.shape())?.as_slice() != to.shape() {
            return Err(Error::Broadcast { op, a: to.shape().into(), b: from.shape().into() });
        }
    }
    Ok(smallvec![Out::InPlace(0)])
}

impl Lerp {
    #[inline(always)]
    fn between<T: Num>(&self, x: T, end: T) -> T {
        // From the nearer end, so that a weight of 1 gives `end` exactly.
        if self.weight.abs() < 0.5 {
            x + T::from_f64(self.weight) * (end - x)
        } else {
            end - (end - x) * T::from_f64(1.0 - self.weight)
        }
    }
}

#[cfg(feature = "cpu")]
impl Map<2, 1> for Lerp {
    #[inline(always)]
    fn of<T: Num>(&self, [x, end]: [T; 2]) -> [T; 1] {
        [self.between(x, end)]
    }
}

impl Rule for Lerp {
    fn name(&self) -> &'static str {
        "lerp_"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check_into(self.name(), inputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, 3 * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (end, out) = (inputs[1].num(), outputs[0].num_mut());
        let positions = broadcast_positions(&end.shape, &out.shape);
        for (x, at) in out.data.iter_mut().zip(positions) {
            *x = self.between(*x, end.data[at]);
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }
}

impl Tensor {
    /// Moves this tensor the fraction `weight` of the way to `end`, in place.
    ///
    /// # Errors
    /// [`Error::InPlaceOnGraph`] if it has history; [`Error::OverlappingWrite`] if it is expanded.
    pub fn lerp_(&self, end: &Self, weight: f64) -> Result<Self> {
        Self::op(Op::Lerp(Lerp { weight }), &[self, end])
    }
}
