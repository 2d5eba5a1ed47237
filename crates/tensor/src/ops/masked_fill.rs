//! One number written where a mask says.

use super::{Needs, Op, Out, Outs, Rule, Saves, one_fresh, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map}};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::broadcast_shapes;
use crate::meter::Cost;
use crate::ops::binary::broadcast_positions;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Inputs: `x`, bool mask. Output: `value` where the mask is `when`, else `x`, broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskedFill {
    /// The number.
    pub value: f64,
    /// State of the mask where it is written.
    pub when: bool,
    /// Whether the result overwrites `x`.
    pub in_place: bool,
}

#[cfg(feature = "cpu")]
impl Map<2, 1> for MaskedFill {
    #[inline(always)]
    fn of<T: Num>(&self, [x, mask]: [T; 2]) -> [T; 1] {
        [if (mask.to_f64() != 0.0) == self.when { T::from_f64(self.value) } else { x }]
    }
}

impl Rule for MaskedFill {
    fn name(&self) -> &'static str {
        if self.in_place { "masked_fill_" } else { "masked_fill" }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (x, mask) = (&inputs[0], &inputs[1]);
        if !mask.dtype.is_bool() {
            return Err(Error::DType { op: self.name(), got: mask.dtype, expected: "a bool mask" });
        }
        if !x.dtype.is_float() && self.value.fract() != 0.0 {
            return Err(Error::DType {
                op: self.name(),
                got: x.dtype,
                expected: "a floating-point dtype for this number",
            });
        }
        let shape = broadcast_shapes(self.name(), x.shape(), mask.shape())?;
        if !self.in_place {
            return one_fresh(&shape, x.dtype);
        }
        if shape.as_slice() != x.shape() {
            return Err(Error::Broadcast { op: self.name(), a: x.shape().into(), b: mask.shape().into() });
        }
        Ok(smallvec![Out::InPlace(0)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, mask, value) = (inputs[0].num(), inputs[1].ints(), T::from_f64(self.value));
        let out = outputs[0].num_mut();
        let places = broadcast_positions(&x.shape, &out.shape);
        let places = places.into_iter().zip(broadcast_positions(inputs[1].shape(), &out.shape));
        for (target, (from, m)) in out.data.iter_mut().zip(places) {
            *target = if (mask[m] != 0) == self.when { value } else { x.data[from] };
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(0b10)
    }

    fn differentiable(&self) -> u8 {
        u8::from(!self.in_place)
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let part = back.grad()?.masked_fill_where(back.input(1)?, 0.0, self.when)?;
        Ok(smallvec![Some(part.sum_to(back.spec(0).shape())?), None])
    }
}

impl Tensor {
    pub(crate) fn masked_fill_where(&self, mask: &Self, value: f64, when: bool) -> Result<Self> {
        Self::op(Op::MaskedFill(MaskedFill { value, when, in_place: false }), &[self, mask])
    }

    /// A copy with `value` where the bool mask (broadcast) is set.
    pub fn masked_fill(&self, mask: &Self, value: f64) -> Result<Self> {
        self.masked_fill_where(mask, value, true)
    }

    /// [`Tensor::masked_fill`], overwriting this tensor.
    pub fn masked_fill_(&self, mask: &Self, value: f64) -> Result<Self> {
        Self::op(Op::MaskedFill(MaskedFill { value, when: true, in_place: true }), &[self, mask])
    }
}
