//! The largest element along a dimension, and where it is.

use super::{Needs, Op, Out, Outs, Rule, Saves, traffic};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::sum::reduced_shape;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Maximum along `dim`. Outputs: values and i64 indices, or the indices alone. Of equal elements the first counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Extremum {
    /// Dimension.
    pub dim: usize,
    /// Whether it stays with size 1.
    pub keep: bool,
    /// Whether only the indices are made.
    pub indices_only: bool,
}

impl Rule for Extremum {
    fn name(&self) -> &'static str {
        if self.indices_only { "argmax" } else { "max" }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let shape = inputs[0].shape();
        if shape[self.dim] == 0 {
            return Err(Error::Range { op: self.name(), dim: self.dim, start: 0, len: 1, size: 0 });
        }
        let shape = reduced_shape(shape, &[self.dim as u8], self.keep);
        let indices = Out::fresh(&shape, DType::I64)?;
        if self.indices_only {
            return Ok(smallvec![indices]);
        }
        Ok(smallvec![Out::fresh(&shape, inputs[0].dtype)?, indices])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Comparisons only.
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].to_num();
        let (outer, size, inner) = x.around(self.dim);
        for o in 0..outer {
            for j in 0..inner {
                let at = |i: usize| x.data[(o * size + i) * inner + j];
                let best = (1..size).fold(0, |best, i| if at(i).greater(at(best)) { i } else { best });
                if let [values, _] = outputs {
                    values.num_mut().data[o * inner + j] = at(best);
                }
                let indices = outputs.len() - 1;
                outputs[indices].set_int(o * inner + j, best as i64);
            }
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::outputs(0b10)
    }

    fn differentiable(&self) -> u8 {
        u8::from(!self.indices_only)
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (mut grad, mut indices) = (back.grad()?.clone(), back.output(1)?.clone());
        if !self.keep {
            grad = grad.unsqueeze(self.dim as isize)?;
            indices = indices.unsqueeze(self.dim as isize)?;
        }
        Ok(smallvec![Some(back.scattered(self.dim, &indices, &grad, false)?)])
    }
}

impl Tensor {
    /// The largest elements along `dim`, and their indices (i64). NaN counts as the largest; of equal elements the first.
    ///
    /// # Shapes
    /// both: the shape without `dim`, or with size 1 there if `keep`
    ///
    /// # Errors
    /// [`Error::Range`] if the dimension is empty.
    pub fn max(&self, dim: isize, keep: bool) -> Result<(Self, Self)> {
        let dim = self.layout().dim("max", dim)?;
        let mut out = apply(Op::Extremum(Extremum { dim, keep, indices_only: false }), &[self])?;
        let values = out.swap_remove(0);
        Ok((values, out.swap_remove(0)))
    }

    /// Indices (i64) of the largest elements along `dim`.
    ///
    /// # Shapes
    /// the shape without `dim`, or with size 1 there if `keep`
    ///
    /// # Errors
    /// [`Error::Range`] if the dimension is empty.
    pub fn argmax(&self, dim: isize, keep: bool) -> Result<Self> {
        let dim = self.layout().dim("argmax", dim)?;
        Self::op(Op::Extremum(Extremum { dim, keep, indices_only: true }), &[self])
    }
}
