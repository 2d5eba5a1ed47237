//! The parts of all ranks, one after another, on all of them.

use super::{Op, Outs, Rule, one_fresh, traffic};
use crate::autograd::{Back, Grads, note_remake};
use crate::collective::{Collective, Group, Peers};
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::ops::reduce_scatter::ReduceScatter;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Concatenation along a dimension over the ranks. Its gradient is summed over them and cut up again.
#[derive(Clone, Debug, PartialEq)]
pub struct AllGather {
    /// Ranks.
    pub group: Group,
    /// Dimension.
    pub dim: usize,
}

impl Rule for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let mut shape: Dims = inputs[0].shape().into();
        let size = shape[self.dim].checked_mul(self.group.size);
        shape[self.dim] = size.ok_or_else(|| Error::TooLarge { shape: inputs[0].shape().into() })?;
        one_fresh(&shape, inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let moved = self.group.ring(outputs[0].bytes());
        Cost { sent: moved, received: moved, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        outputs[0] = inputs[0].clone();
        Ok(())
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let op = ReduceScatter { group: self.group, dim: self.dim };
        Ok(smallvec![Some(Tensor::op(Op::ReduceScatter(op), &[back.grad()?])?)])
    }

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for AllGather {
    fn group(&self) -> Group {
        self.group
    }

    fn exchange(&self, peers: &dyn Peers, input: Option<Array<f64>>) -> Result<Option<Array<f64>>> {
        let Some(x) = input else { return Ok(None) };
        let (outer, size, inner) = x.around(self.dim);
        let mut shape = x.shape.clone();
        let parts = peers.exchange(self.group, x.data)?;
        shape[self.dim] *= parts.len();
        Ok(Some(Array { shape, data: joined(&parts, outer, size * inner) }))
    }
}

/// Runs of `run` elements of each part in turn, `outer` times.
pub(crate) fn joined(parts: &[Vec<f64>], outer: usize, run: usize) -> Vec<f64> {
    (0..outer).flat_map(|o| parts.iter().flat_map(move |part| &part[o * run..(o + 1) * run])).copied().collect()
}

impl Tensor {
    /// The parts that the ranks of `group` have of a tensor divided along `dim`, put together on each.
    ///
    /// # Shapes
    /// `.. n ..` -> `.. (ranks n) ..`
    ///
    /// # Errors
    /// On a dimension that is not there, or a size that cannot be counted.
    pub fn all_gather(&self, group: Group, dim: isize) -> Result<Self> {
        let dim = self.layout().dim("all_gather", dim)?;
        if group.is_alone() { Ok(self.clone()) } else { Self::op(Op::AllGather(AllGather { group, dim }), &[self]) }
    }

    /// The same, gathered once more in backward where something asks to keep the result: only the part is kept.
    ///
    /// Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    ///
    /// # Errors
    /// As [`Tensor::all_gather`].
    pub fn all_gather_again(&self, group: Group, dim: isize) -> Result<Self> {
        let whole = self.all_gather(group, dim)?;
        if !group.is_alone() && self.runtime().grad_enabled() {
            let dim = self.layout().dim("all_gather", dim)?;
            note_remake(self.runtime(), &whole, Op::AllGather(AllGather { group, dim }), self);
        }
        Ok(whole)
    }
}
