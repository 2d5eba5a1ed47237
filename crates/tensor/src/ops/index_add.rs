//! Rows added to where an index tensor says: how expert outputs come back to their tokens.

use super::{Needs, Op, Out, Outs, Rule, Saves, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, gather::add_rows, moves, rows::Rows};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
#[cfg(feature = "cpu")]
use crate::ops::gather::rows_of;
use crate::ops::gather::{check_index_dtype, row};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `out[indices[i]] += source[i]`. Inputs: `x (n rest..)`, indices `m`, source `m rest..`.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexAdd {
    /// Whether the result overwrites `x`.
    pub in_place: bool,
}

impl Rule for IndexAdd {
    fn name(&self) -> &'static str {
        if self.in_place { "index_add_" } else { "index_add" }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (x, indices, source) = (&inputs[0], &inputs[1], &inputs[2]);
        check_index_dtype(self.name(), indices)?;
        let fits = match (x.shape(), source.shape(), indices.shape()) {
            ([_, rest @ ..], [m, source_rest @ ..], [n]) => rest == source_rest && m == n,
            _ => false,
        };
        if !fits {
            let rule =
                "the source must have one row per index (which has one dimension), each like a row of the target";
            return Err(Error::Shapes { op: self.name(), a: x.shape().into(), b: source.shape().into(), rule });
        }
        if x.dtype != source.dtype {
            return Err(Error::NoPromotion { op: self.name(), a: x.dtype, b: source.dtype });
        }
        if self.in_place { Ok(smallvec![Out::InPlace(0)]) } else { one_fresh(x.shape(), x.dtype) }
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // In place, only the rows that are added to are touched.
        let touched = inputs[2].bytes();
        Cost {
            elementwise: u128::from(inputs[2].elements()),
            read: if self.in_place { touched } else { inputs[0].unique_bytes() }
                + inputs[1].unique_bytes()
                + inputs[2].unique_bytes(),
            written: if self.in_place { touched } else { outputs[0].bytes() },
            ..Cost::default()
        }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (source, out) = (inputs[2].num(), outputs[0].num_mut());
        if !self.in_place {
            out.data.clone_from(&inputs[0].num().data);
        }
        let width: usize = out.shape[1..].iter().product();
        for (i, &value) in inputs[1].ints().iter().enumerate() {
            let to = row(self.name(), value, out.shape[0])? * width;
            for j in 0..width {
                out.data[to + j] = out.data[to + j] + source.data[i * width + j];
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let rows = args.inputs[0].layout.shape()[0];
        let Some(ids) = rows_of(self.name(), &args.inputs[1], rows)? else { return Ok(false) };
        let flat = args.inputs[2].layout.rank() == 2 && args.outputs[0].layout.is_contiguous();
        if !flat || args.inputs[2].output().is_some() || !(self.in_place || moves::copy_input(args, 0)) {
            return Ok(false);
        }
        Ok(in_compute_dtype!(args, C => {
            let source = Rows::of(&args.inputs[2]);
            source.map(|source| add_rows::<C>(args.outputs[0].typed(), &ids, &source, false))
        }))
    }

    fn saves(&self, needs: Needs) -> Saves {
        // The reference framework keeps the source as well, although backward needs only its shape.
        Saves::inputs(needs.then(2, 0b110))
    }

    fn differentiable(&self) -> u8 {
        // In place too: what was there keeps its gradient, so nothing that backward needs is lost.
        0b101
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = back.grad()?;
        let dx = back.wants(0).then(|| grad.clone());
        let source = if back.wants(2) { Some(grad.embedding(back.input(1)?)?) } else { None };
        Ok(smallvec![dx, None, source])
    }
}

impl Tensor {
    /// A copy with row `i` of `source` added to row `indices[i]`.
    ///
    /// # Shapes
    /// self `n rest..`, indices `m`, source `m rest..` -> `n rest..`
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the rows.
    pub fn index_add(&self, indices: &Self, source: &Self) -> Result<Self> {
        Self::op(Op::IndexAdd(IndexAdd { in_place: false }), &[self, indices, source])
    }

    /// [`Tensor::index_add`], overwriting this tensor. It takes the handle, because history goes on with the result: an
    /// older handle still names the value from before.
    ///
    /// # Errors
    /// [`Error::InPlaceOnGraph`] if this is a leaf that requires a gradient.
    pub fn index_add_(self, indices: &Self, source: &Self) -> Result<Self> {
        Self::op(Op::IndexAdd(IndexAdd { in_place: true }), &[&self, indices, source])
    }
}
