//! Elements picked along a dimension by an index tensor.

use super::{Needs, Op, Outs, Rule, Saves, one_fresh};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `out[i][j][..] = x[i][index[i][j][..]][..]` (here for `dim` 1). Inputs: `x`, index.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    /// Dimension.
    pub dim: usize,
}

/// Refuses an index operand that is not of an integer dtype.
pub(crate) fn check_index_dtype(op: &'static str, index: &Spec) -> Result<()> {
    if index.dtype.is_float() || index.dtype.is_bool() {
        return Err(Error::DType { op, got: index.dtype, expected: "an integer dtype for the index" });
    }
    Ok(())
}

/// Refuses an index that does not lie inside `table`, apart from `dim`.
pub(crate) fn check_index_shape(op: &'static str, table: &[u64], index: &[u64], dim: usize) -> Result<()> {
    let inside = table.len() == index.len() && (0..table.len()).all(|d| d == dim || index[d] <= table[d]);
    if inside {
        return Ok(());
    }
    let rule = "the index must have the same rank, and be no larger outside of the dimension it picks from";
    Err(Error::Shapes { op, a: table.into(), b: index.into(), rule })
}

/// An index value as a position in a table of `size` rows.
pub(crate) fn row(op: &'static str, value: i64, size: usize) -> Result<usize> {
    usize::try_from(value).ok().filter(|&r| r < size).ok_or(Error::Index { op, value, size: size as u64 })
}

/// Index values as positions in a table of `size` rows; `None` if they lie in what is written.
#[cfg(feature = "cpu")]
pub(crate) fn rows_of(op: &'static str, index: &crate::cpu::Input<'_>, size: u64) -> Result<Option<Vec<usize>>> {
    let values = crate::cpu::rows::integers(index);
    values.map(|values| values.iter().map(|&value| row(op, value, size as usize)).collect()).transpose()
}

/// Calls `visit(position in index, position in table)` for every element of the index.
pub(crate) fn for_each_indexed(
    op: &'static str,
    (index_shape, index): (&[usize], &[i64]),
    table: &[usize],
    dim: usize,
    mut visit: impl FnMut(usize, usize),
) -> Result<()> {
    let rank = table.len();
    let mut strides = vec![1usize; rank];
    for d in (1..rank).rev() {
        strides[d - 1] = strides[d] * table[d];
    }
    let mut at = vec![0usize; rank];
    for (from, &value) in index.iter().enumerate() {
        let picked = row(op, value, table[dim])?;
        let to = (0..rank).map(|d| strides[d] * if d == dim { picked } else { at[d] }).sum();
        visit(from, to);
        for d in (0..rank).rev() {
            at[d] += 1;
            if at[d] < index_shape[d] {
                break;
            }
            at[d] = 0;
        }
    }
    Ok(())
}

impl Rule for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check_index_dtype("gather", &inputs[1])?;
        check_index_shape("gather", inputs[0].shape(), inputs[1].shape(), self.dim)?;
        one_fresh(inputs[1].shape(), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Of the table only the elements that are picked are read.
        let written = outputs[0].bytes();
        Cost { read: written + inputs[1].unique_bytes(), written, ..Cost::default() }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        let index = (inputs[1].shape(), &*inputs[1].ints());
        for_each_indexed("gather", index, &x.shape, self.dim, |to, from| out.data[to] = x.data[from])
    }

    fn saves(&self, _: Needs) -> Saves {
        // The reference framework keeps the table as well, although backward needs only its shape.
        Saves::inputs(0b11)
    }

    fn differentiable(&self) -> u8 {
        0b01
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(back.scattered(self.dim, back.input(1)?, back.grad()?, true)?), None])
    }
}

impl Tensor {
    /// Elements picked along `dim` by `index` (an integer tensor of the same rank).
    ///
    /// # Shapes
    /// index no larger than self outside of `dim` -> shape of the index
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the dimension.
    pub fn gather(&self, dim: isize, index: &Self) -> Result<Self> {
        let dim = self.layout().dim("gather", dim)?;
        Self::op(Op::Gather(Gather { dim }), &[self, index])
    }
}
