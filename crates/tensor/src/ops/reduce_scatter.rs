//! The sum of the contributions of all ranks, cut up among them.

use super::{Op, Outs, Rule, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
use crate::collective::{Collective, Combine, Group, Peers};
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::ops::all_gather::AllGather;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// The sum over the ranks, each of which gets its part along a dimension. Its gradient is gathered from them.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceScatter {
    /// Ranks.
    pub group: Group,
    /// Dimension.
    pub dim: usize,
}

/// The part of one rank of a dimension that all of them must be able to divide.
pub(crate) fn divided(op: &'static str, shape: &[u64], dim: usize, ranks: u64) -> Result<Dims> {
    let mut part: Dims = shape.into();
    if ranks == 0 || !part[dim].is_multiple_of(ranks) {
        let what = format!("dimension {dim} of {shape:?} cannot be divided over {ranks} ranks");
        return Err(Error::Argument { op, what });
    }
    part[dim] /= ranks;
    Ok(part)
}

/// The elements of part `place` of `parts` along a dimension.
pub(crate) fn part_of(x: &Array<f64>, dim: usize, place: usize, parts: usize) -> Vec<f64> {
    let (outer, size, inner) = x.around(dim);
    let run = size / parts * inner;
    let start = |o: usize| o * size * inner + place * run;
    (0..outer).flat_map(|o| &x.data[start(o)..start(o) + run]).copied().collect()
}

impl Rule for ReduceScatter {
    fn name(&self) -> &'static str {
        "reduce_scatter"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_fresh(&divided("reduce_scatter", inputs[0].shape(), self.dim, self.group.size)?, inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let moved = self.group.ring(inputs[0].bytes());
        let added = u128::from(self.group.ring(inputs[0].elements()));
        Cost { sent: moved, received: moved, ..elementwise(inputs, outputs, added) }
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

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for ReduceScatter {
    fn group(&self) -> Group {
        self.group
    }

    fn exchange(&self, peers: &dyn Peers, input: Option<Array<f64>>) -> Result<Option<Array<f64>>> {
        let Some(x) = input else { return Ok(None) };
        let (place, mut shape) = (peers.place(self.group.axis) as usize, x.shape.clone());
        let parts = peers.exchange(self.group, x.data)?;
        let sum = Array { data: Combine::Sum.all(&parts), shape: x.shape };
        shape[self.dim] /= parts.len();
        Ok(Some(Array { shape, data: part_of(&sum, self.dim, place, parts.len()) }))
    }
}

impl Tensor {
    /// The sum of what the ranks of `group` have, of which each gets its part along `dim`.
    ///
    /// # Shapes
    /// `.. (ranks n) ..` -> `.. n ..`
    ///
    /// # Errors
    /// If the ranks do not divide the dimension.
    pub fn reduce_scatter(&self, group: Group, dim: isize) -> Result<Self> {
        let dim = self.layout().dim("reduce_scatter", dim)?;
        let op = Op::ReduceScatter(ReduceScatter { group, dim });
        if group.is_alone() { Ok(self.clone()) } else { Self::op(op, &[self]) }
    }
}
