//! What the first rank has, on all of them.

use super::{Op, Outs, Rule, one_fresh, traffic};
use crate::collective::{Collective, Group, Peers};
use crate::error::Result;
use crate::kernel::{Array, Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};

/// A copy of the tensor of the first rank. Nothing is trained through it.
#[derive(Clone, Debug, PartialEq)]
pub struct Broadcast {
    /// Ranks.
    pub group: Group,
}

impl Rule for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_fresh(inputs[0].shape(), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // A rank in the middle of the chain gets it and hands it on.
        let moved = if self.group.is_alone() { 0 } else { inputs[0].bytes() };
        Cost { sent: moved, received: moved, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        outputs[0] = inputs[0].clone();
        Ok(())
    }

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for Broadcast {
    fn group(&self) -> Group {
        self.group
    }

    fn exchange(&self, peers: &dyn Peers, input: Option<Array<f64>>) -> Result<Option<Array<f64>>> {
        let Some(x) = input else { return Ok(None) };
        Ok(Some(Array { shape: x.shape, data: peers.exchange(self.group, x.data)?.swap_remove(0) }))
    }
}

impl Tensor {
    /// What the first rank of `group` has.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn broadcast(&self, group: Group) -> Result<Self> {
        if group.is_alone() { Ok(self.clone()) } else { Self::op(Op::Broadcast(Broadcast { group }), &[self]) }
    }
}
