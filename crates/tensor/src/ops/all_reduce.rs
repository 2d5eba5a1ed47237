//! One result of the contributions of all ranks, on all of them.

use super::{Op, Outs, Rule, elementwise, one_fresh};
use crate::apply::apply_reusing;
use crate::autograd::{Back, Grads};
use crate::collective::{Collective, Combine, Group, Peers};
use crate::error::Result;
use crate::kernel::{Array, Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Contributions combined elementwise.
///
/// Its gradient is the incoming one: what follows runs alike on all ranks, so that each already has the whole gradient of
/// the sum.
#[derive(Clone, Debug, PartialEq)]
pub struct AllReduce {
    /// Ranks.
    pub group: Group,
    /// How.
    pub combine: Combine,
}

impl Rule for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_fresh(inputs[0].shape(), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Twice round the ring: parts are combined, then handed out. Each rank combines its part with those of the others.
        let moved = self.group.ring(inputs[0].bytes()).saturating_mul(2);
        let combined = u128::from(self.group.ring(inputs[0].elements()));
        Cost { sent: moved, received: moved, ..elementwise(inputs, outputs, combined) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        outputs[0] = inputs[0].clone();
        Ok(())
    }

    fn differentiable(&self) -> u8 {
        u8::from(self.combine == Combine::Sum)
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(back.grad()?.clone())])
    }

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for AllReduce {
    fn group(&self) -> Group {
        self.group
    }

    fn exchange(&self, peers: &dyn Peers, input: Option<Array<f64>>) -> Result<Option<Array<f64>>> {
        input
            .map(|x| Ok(Array { data: self.combine.all(&peers.exchange(self.group, x.data)?), shape: x.shape }))
            .transpose()
    }
}

impl Tensor {
    /// The contributions of all ranks of `group`, combined, on all of them; written over this tensor if nothing else holds
    /// it. A group of one changes nothing.
    ///
    /// # Shapes
    /// any -> the same
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn all_reduce(self, group: Group, combine: Combine) -> Result<Self> {
        if group.is_alone() {
            return Ok(self);
        }
        Ok(apply_reusing(Op::AllReduce(AllReduce { group, combine }), &[&self], 0)?.swap_remove(0))
    }
}
