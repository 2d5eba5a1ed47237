//! Where something that all ranks hold alike goes into maps that each has another part of.

use super::{Op, Out, Outs, Rule};
use crate::apply::apply_reusing;
use crate::autograd::{Back, Grads};
use crate::collective::{Combine, Group};
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::all_reduce::AllReduce;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// The input itself. Its gradient is the sum over the ranks: each has what came through its own part.
///
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, the operator f.
#[derive(Clone, Debug, PartialEq)]
pub struct Replicate {
    /// Ranks.
    pub group: Group,
}

impl Rule for Replicate {
    fn name(&self) -> &'static str {
        "replicate"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        Ok(smallvec![Out::View(0, inputs[0].layout.clone())])
    }

    fn cost(&self, _: &[Spec], _: &[Spec]) -> Cost {
        Cost::default()
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        outputs[0] = inputs[0].clone();
        Ok(())
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let sum = AllReduce { group: self.group, combine: Combine::Sum };
        Ok(smallvec![Some(apply_reusing(Op::AllReduce(sum), &[back.grad()?], 0)?.swap_remove(0))])
    }
}

impl Tensor {
    /// This tensor, which all ranks of `group` hold alike, on its way into maps of which each has another part.
    ///
    /// # Errors
    /// None beyond those of a view.
    pub fn replicate(&self, group: Group) -> Result<Self> {
        if group.is_alone() { Ok(self.clone()) } else { Self::op(Op::Replicate(Replicate { group }), &[self]) }
    }
}
