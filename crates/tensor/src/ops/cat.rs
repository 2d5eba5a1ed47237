//! Tensors one after another along a dimension.

use super::{Needs, Op, Outs, Rule, Saves, one_fresh, traffic};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, moves};
use crate::dtype::promote;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::{CopyReason, Cost};
use crate::tensor::{Spec, Tensor};

/// Concatenation along `dim`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cat {
    /// Dimension.
    pub dim: usize,
}

impl Rule for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let mut shape: Dims = inputs[0].shape().into();
        let mut dtype = inputs[0].dtype;
        for other in &inputs[1..] {
            let fits = other.shape().len() == shape.len()
                && other.shape().iter().zip(&shape).enumerate().all(|(d, (a, b))| d == self.dim || a == b);
            if !fits {
                return Err(Error::Shapes {
                    op: "cat",
                    a: inputs[0].shape().into(),
                    b: other.shape().into(),
                    rule: "all sizes but those of the dimension that is joined must be equal",
                });
            }
            shape[self.dim] = shape[self.dim].saturating_add(other.shape()[self.dim]);
            dtype =
                promote(dtype, other.dtype).map_err(|_| Error::NoPromotion { op: "cat", a: dtype, b: other.dtype })?;
        }
        one_fresh(&shape, dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let out = outputs[0].num_mut();
        let (outer, size, inner) = out.around(self.dim);
        let mut start = 0;
        for input in inputs {
            let x = input.to_num();
            let run = x.shape[self.dim] * inner;
            for o in 0..outer {
                let to = o * size * inner + start;
                out.data[to..to + run].copy_from_slice(&x.data[o * run..(o + 1) * run]);
            }
            start += run;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let Args { inputs, outputs } = args;
        let output = &mut outputs[0];
        if inputs.iter().any(|x| x.dtype != output.dtype || x.output().is_some()) {
            return Ok(false);
        }
        let mut start = 0;
        for input in inputs {
            let size = input.layout.shape()[self.dim];
            let part = output.layout.slice(self.dim, start, size, 1)?;
            moves::copy_into(input, output, &part);
            start += size;
        }
        Ok(true)
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        u8::MAX
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = back.grad()?;
        let mut start = 0;
        (0..back.len())
            .map(|i| {
                let spec = back.spec(i);
                let len = spec.shape()[self.dim];
                let piece =
                    back.wants(i).then(|| grad.narrow(self.dim as isize, start, len)?.to_dtype(spec.dtype)).transpose();
                start += len;
                piece
            })
            .collect()
    }

    fn copy_reason(&self) -> Option<CopyReason> {
        Some(CopyReason::Concatenate)
    }
}

impl Tensor {
    /// Tensors one after another along `dim`. Of different dtypes the common one is taken.
    ///
    /// # Shapes
    /// equal but for `dim` -> the same with the sum of the sizes there
    ///
    /// # Errors
    /// [`Error::Shapes`] if other sizes differ; [`Error::Argument`] without tensors.
    pub fn cat(tensors: &[&Self], dim: isize) -> Result<Self> {
        let Some(first) = tensors.first() else {
            return Err(Error::Argument { op: "cat", what: "there is no tensor to join".into() });
        };
        let dim = first.layout().dim("cat", dim)?;
        Ok(apply(Op::Cat(Cat { dim }), tensors)?.swap_remove(0))
    }

    /// Tensors of one shape along a new dimension before `dim` (`-1`: at the end).
    ///
    /// # Shapes
    /// `n` tensors `shape..` -> the shape with `n` inserted at `dim`
    ///
    /// # Errors
    /// As [`Tensor::cat`].
    pub fn stack(tensors: &[&Self], dim: isize) -> Result<Self> {
        if let Some(other) = tensors.iter().find(|t| t.shape() != tensors[0].shape()) {
            return Err(Error::Shapes {
                op: "stack",
                a: tensors[0].shape().into(),
                b: other.shape().into(),
                rule: "all shapes must be equal",
            });
        }
        let thick = tensors.iter().map(|t| t.unsqueeze(dim)).collect::<Result<Vec<_>>>()?;
        Self::cat(&thick.iter().collect::<Vec<_>>(), dim)
    }
}
