//! The part of one rank of what all ranks hold alike.

use super::reduce_scatter::divided;
use super::{Op, Out, Outs, Rule};
use crate::autograd::{Back, Grads};
use crate::collective::Group;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::all_gather::AllGather;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// A part along a dimension: a view. Its gradient is gathered from the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// Ranks.
    pub group: Group,
    /// Dimension.
    pub dim: usize,
    /// Which part.
    pub place: u64,
}

impl Rule for Partition {
    fn name(&self) -> &'static str {
        "partition"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let part = divided(self.name(), inputs[0].shape(), self.dim, self.group.size)?[self.dim];
        let layout = inputs[0].layout.slice(self.dim, self.place * part, part, 1)?;
        Ok(smallvec![Out::View(0, Arc::new(layout))])
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
        let op = AllGather { group: self.group, dim: self.dim };
        Ok(smallvec![Some(Tensor::op(Op::AllGather(op), &[back.grad()?])?)])
    }
}

impl Tensor {
    /// This rank's part along `dim` of a tensor that all ranks of `group` hold alike.
    ///
    /// # Shapes
    /// `.. (ranks n) .. -> .. n ..`
    ///
    /// # Errors
    /// If the ranks do not divide the dimension.
    pub fn partition(&self, group: Group, dim: isize) -> Result<Self> {
        let dim = self.layout().dim("partition", dim)?;
        let place = self.runtime().place(group.axis);
        let op = Op::Partition(Partition { group, dim, place });
        if group.is_alone() { Ok(self.clone()) } else { Self::op(op, &[self]) }
    }
}
