//! Every rank gives every other a part and gets one.

use super::{Op, Outs, Rule, one_fresh, traffic};
use crate::autograd::{Back, Grads};
use crate::collective::{Collective, Group, Peers};
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::ops::all_gather::joined;
use crate::ops::reduce_scatter::{divided, part_of};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// Parts along one dimension go to the ranks; what comes is put together along another, or the same one.
#[derive(Clone, Debug, PartialEq)]
pub struct AllToAll {
    /// Ranks.
    pub group: Group,
    /// Dimension that is cut up.
    pub split: usize,
    /// Dimension along which parts are put together.
    pub join: usize,
    /// Rows in parts of any size instead: then both dimensions are the first.
    pub rows: Option<Rows>,
}

/// Rows that differ in number from rank to rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// How many come in all.
    pub received: u64,
    /// How many go to each rank, and come from each; not known on the meta device.
    pub counts: Option<Arc<[Vec<u64>; 2]>>,
}

impl Rule for AllToAll {
    fn name(&self) -> &'static str {
        "all_to_all"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let shape = inputs[0].shape();
        if let Some(rows) = &self.rows {
            let mut shape: Dims = shape.into();
            shape[0] = rows.received;
            return one_fresh(&shape, inputs[0].dtype);
        }
        let mut part = divided("all_to_all", shape, self.split, self.group.size)?;
        let size = part[self.join].checked_mul(self.group.size);
        part[self.join] = size.ok_or_else(|| Error::TooLarge { shape: shape.into() })?;
        one_fresh(&part, inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // All but the part that stays; of rows, an equal share of them.
        let (sent, received) = (self.group.ring(inputs[0].bytes()), self.group.ring(outputs[0].bytes()));
        Cost { sent, received, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        outputs[0] = inputs[0].clone();
        Ok(())
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let rows = self.rows.as_ref().map(|rows| Rows {
            received: back.spec(0).shape()[0],
            counts: rows.counts.as_ref().map(|counts| Arc::new([counts[1].clone(), counts[0].clone()])),
        });
        let op = Self { group: self.group, split: self.join, join: self.split, rows };
        Ok(smallvec![Some(Tensor::op(Op::AllToAll(op), &[back.grad()?])?)])
    }

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for AllToAll {
    fn group(&self) -> Group {
        self.group
    }

    fn exchange(&self, peers: &dyn Peers, input: Option<Array<f64>>) -> Result<Option<Array<f64>>> {
        let Some(x) = input else { return Ok(None) };
        let (place, mut shape) = (peers.place(self.group.axis) as usize, x.shape.clone());
        let all = peers.exchange(self.group, x.data)?;
        if let Some(rows) = &self.rows {
            let counts = rows.counts.as_ref().ok_or(Error::NoData { op: "all_to_all" })?;
            let width: usize = x.shape[1..].iter().product();
            // Where my rows begin in what a rank hands in depends on how many of its rows go to those before me.
            let mine: Vec<f64> = counts[0].iter().map(|&count| count as f64).collect();
            let sent = peers.exchange(self.group, mine)?;
            let from = |rank: usize| {
                let before: f64 = sent[rank][..place].iter().sum();
                let (start, count) = (before as usize * width, sent[rank][place] as usize * width);
                all[rank][start..start + count].to_vec()
            };
            shape[0] = rows.received as usize;
            return Ok(Some(Array { shape, data: (0..all.len()).flat_map(from).collect() }));
        }
        let ranks = all.len();
        let part = |data| part_of(&Array { shape: x.shape.clone(), data }, self.split, place, ranks);
        let parts: Vec<Vec<f64>> = all.into_iter().map(part).collect();
        shape[self.split] /= ranks;
        let outer: usize = shape[..self.join].iter().product();
        let run: usize = shape[self.join..].iter().product();
        shape[self.join] *= ranks;
        Ok(Some(Array { shape, data: joined(&parts, outer, run) }))
    }
}

impl Tensor {
    /// Gives each rank of `group` its part along `split` and puts what comes together along `join`.
    ///
    /// # Shapes
    /// `.. (ranks n) .. m ..` -> `.. n .. (ranks m) ..`
    ///
    /// # Errors
    /// If the ranks do not divide the dimension.
    pub fn all_to_all(&self, group: Group, split: isize, join: isize) -> Result<Self> {
        let dim = |dim| self.layout().dim("all_to_all", dim);
        let op = AllToAll { group, split: dim(split)?, join: dim(join)?, rows: None };
        if group.is_alone() { Ok(self.clone()) } else { Self::op(Op::AllToAll(op), &[self]) }
    }

    /// The same of rows in parts of any size.
    ///
    /// # Shapes
    /// `r ..` -> `received ..`
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn all_to_all_rows(&self, group: Group, rows: Rows) -> Result<Self> {
        let op = AllToAll { group, split: 0, join: 0, rows: Some(rows) };
        if group.is_alone() { Ok(self.clone()) } else { Self::op(Op::AllToAll(op), &[self]) }
    }
}
