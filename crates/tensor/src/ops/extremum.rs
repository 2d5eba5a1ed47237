//! The largest element along a dimension, and where it is.

use super::{Needs, Op, Out, Outs, Rule, Saves, traffic};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::Args;
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

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(fast::run(self.dim, args).is_some())
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

/// Values and indices of f32, all of a row at a time.
#[cfg(feature = "cpu")]
mod fast {
    use crate::cpu::Args;
    use crate::cpu::simd::vectorized;
    use crate::dtype::DType;

    pub(super) fn run(dim: usize, args: &mut Args<'_>) -> Option<()> {
        let Args { inputs, outputs } = args;
        let [values, indices] = outputs.as_mut_slice() else { return None };
        let x = Some(&inputs[0]).filter(|x| x.dtype == DType::F32)?;
        let shape = x.layout.shape();
        let (size, inner) = (shape[dim] as usize, shape[dim + 1..].iter().product::<u64>() as usize);
        let (x, values, indices) = (x.dense::<f32>()?, values.dense::<f32>()?, indices.dense::<i64>()?);
        if inner == 0 {
            return Some(());
        }
        let planes = x.chunks_exact(size * inner).zip(values.chunks_exact_mut(inner));
        for ((plane, values), indices) in planes.zip(indices.chunks_exact_mut(inner)) {
            values.copy_from_slice(&plane[..inner]);
            indices.fill(0);
            vectorized(
                #[inline(always)]
                || {
                    for (i, row) in (1..).zip(plane[inner..].chunks_exact(inner)) {
                        for ((&x, value), index) in row.iter().zip(&mut *values).zip(&mut *indices) {
                            // NaN is the largest.
                            let larger = x > *value || (x.is_nan() && !value.is_nan());
                            (*value, *index) = if larger { (x, i) } else { (*value, *index) };
                        }
                    }
                },
            );
        }
        Some(())
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
