//! The k largest elements along a dimension.

use super::{Needs, Op, Out, Outs, Rule, Saves, traffic};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::cmp::Ordering;

/// The `k` largest elements along `dim`, largest first, and their i64 indices. Of equal elements the first comes first.
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    /// How many.
    pub k: u64,
    /// Dimension.
    pub dim: usize,
}

impl Rule for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let size = inputs[0].shape()[self.dim];
        if self.k > size {
            return Err(Error::Range { op: "topk", dim: self.dim, start: 0, len: self.k, size });
        }
        let mut shape: Dims = inputs[0].shape().into();
        shape[self.dim] = self.k;
        Ok(smallvec![Out::fresh(&shape, inputs[0].dtype)?, Out::fresh(&shape, DType::I64)?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Comparisons only.
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].to_num();
        let (outer, size, inner) = x.around(self.dim);
        let k = self.k as usize;
        let mut order: Vec<usize> = Vec::with_capacity(size);
        for o in 0..outer {
            for j in 0..inner {
                let at = |i: usize| x.data[(o * size + i) * inner + j];
                order.clear();
                order.extend(0..size);
                // Stable: equal elements stay in order of their index.
                order.sort_by(|&a, &b| match (at(a).greater(at(b)), at(b).greater(at(a))) {
                    (true, false) => Ordering::Less,
                    (false, true) => Ordering::Greater,
                    _ => Ordering::Equal,
                });
                for (rank, &i) in order[..k].iter().enumerate() {
                    let to = (o * k + rank) * inner + j;
                    outputs[0].num_mut().data[to] = at(i);
                    outputs[1].set_int(to, i as i64);
                }
            }
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::outputs(0b10)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(back.scattered(self.dim, back.output(1)?, back.grad()?, false)?)])
    }
}

impl Tensor {
    /// The `k` largest elements along `dim`, largest first, and their indices (i64). Of equal elements the one with the
    /// lowest index comes first.
    ///
    /// # Shapes
    /// both: the shape with `k` at `dim`
    ///
    /// # Errors
    /// [`Error::Range`] if the dimension has fewer than `k` elements.
    pub fn topk(&self, k: u64, dim: isize) -> Result<(Self, Self)> {
        let dim = self.layout().dim("topk", dim)?;
        let mut out = apply(Op::TopK(TopK { k, dim }), &[self])?;
        let values = out.swap_remove(0);
        Ok((values, out.swap_remove(0)))
    }
}
