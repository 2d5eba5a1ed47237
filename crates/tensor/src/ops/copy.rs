//! Copies: into a dense layout, for a reshape no view can express, or into an existing tensor.

use super::{Needs, Op, Out, Outs, Rule, Saves, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map_inputs}, moves};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::broadcast_shapes;
use crate::meter::{CopyReason, Cost};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// A copy of the elements. With one input: into a fresh row-major tensor. With two (destination, source): into the
/// destination, broadcasting and converting.
#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    /// Why.
    pub reason: CopyReason,
    /// Whether input 0 is a destination.
    pub into: bool,
}

#[cfg(feature = "cpu")]
impl Map<1, 1> for Copy {
    #[inline(always)]
    fn of<T: Num>(&self, x: [T; 1]) -> [T; 1] {
        x
    }
}

impl Rule for Copy {
    fn name(&self) -> &'static str {
        match (self.into, self.reason) {
            (true, _) => "copy_",
            (_, CopyReason::Contiguous) => "contiguous",
            (_, CopyReason::Reshape) => "reshape",
            _ => "copy",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if !self.into {
            return super::one_fresh(inputs[0].shape(), inputs[0].dtype);
        }
        let (to, from) = (inputs[0].shape(), inputs[1].shape());
        if broadcast_shapes("copy_", to, from)?.as_slice() != to {
            return Err(Error::Broadcast { op: "copy_", a: to.into(), b: from.into() });
        }
        Ok(smallvec![Out::InPlace(0)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(&inputs[usize::from(self.into)..], outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        if self.into {
            super::binary::broadcast_into(&inputs[1], &mut outputs[0]);
        } else {
            outputs[0] = inputs[0].clone();
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let source = usize::from(self.into);
        Ok(moves::copy_input(args, source) || map_inputs(args, [source], self))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        u8::from(!self.into)
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(back.grad()?.clone())])
    }

    fn copy_reason(&self) -> Option<CopyReason> {
        Some(self.reason)
    }
}

impl Tensor {
    fn fresh_copy(&self, reason: CopyReason) -> Result<Self> {
        Self::op(Op::Copy(Copy { reason, into: false }), &[self])
    }

    /// A copy in row-major order.
    pub fn copy(&self) -> Result<Self> {
        self.fresh_copy(CopyReason::Explicit)
    }

    /// Itself if it is row-major, else a copy that is.
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.fresh_copy(CopyReason::Contiguous) }
    }

    pub(crate) fn copy_for_reshape(&self) -> Result<Self> {
        self.fresh_copy(CopyReason::Reshape)
    }

    /// Writes `source` (broadcast, converted) into this tensor and its base.
    ///
    /// # Errors
    /// [`Error::OverlappingWrite`] if this is an expanded view; [`Error::InPlaceOnGraph`] if it has history.
    pub fn copy_(&self, source: &Self) -> Result<Self> {
        Self::op(Op::Copy(Copy { reason: CopyReason::Explicit, into: true }), &[self, source])
    }
}
