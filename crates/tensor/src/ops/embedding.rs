//! Rows of a table picked by an index tensor.

use super::{Needs, Op, Outs, Rule, Saves, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, gather::{add_rows, pick_rows}, rows::Rows};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
#[cfg(feature = "cpu")]
use crate::ops::gather::rows_of;
use crate::ops::gather::{check_index_dtype, row};
use crate::runtime::Accumulate;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Inputs: table `v rest..` and indices of any shape. Output: `indices.. rest..`. No arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Whether the reference writes it as indexing (`table[indices]`): its gradient is then added to zeros like any other
    /// gradient ([`crate::runtime::Accumulate`]), where that of an embedding comes from one kernel.
    pub indexed: bool,
}

impl Rule for Embedding {
    fn name(&self) -> &'static str {
        if self.indexed { "index" } else { "embedding" }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (table, indices) = (&inputs[0], &inputs[1]);
        check_index_dtype(self.name(), indices)?;
        if table.shape().is_empty() {
            return Err(Error::Rank { op: self.name(), expected: 2, shape: table.shape().into() });
        }
        let shape: Dims = indices.shape().iter().chain(&table.shape()[1..]).copied().collect();
        one_fresh(&shape, table.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Of the table only the rows that are picked are read.
        let written = outputs[0].bytes();
        Cost { read: written + inputs[1].unique_bytes(), written, ..Cost::default() }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (table, out) = (inputs[0].num(), outputs[0].num_mut());
        let width: usize = table.shape[1..].iter().product();
        for (i, &value) in inputs[1].ints().iter().enumerate() {
            let from = row(self.name(), value, table.shape[0])? * width;
            out.data[i * width..(i + 1) * width].copy_from_slice(&table.data[from..from + width]);
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let rows = args.inputs[0].layout.shape()[0];
        let Some(ids) = rows_of(self.name(), &args.inputs[1], rows)? else { return Ok(false) };
        Ok(pick_rows(args, &ids))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(0b10)
    }

    fn differentiable(&self) -> u8 {
        0b01
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (grad, indices) = (back.grad()?, back.input(1)?);
        let count = indices.elements();
        let shape: Dims = std::iter::once(&count).chain(&back.spec(0).shape()[1..]).copied().collect();
        let flat = || Ok::<_, Error>((indices.reshape(&[count])?, grad.reshape(&shape)?));
        let sum = if self.indexed {
            let (indices, grad) = flat()?;
            let zeros = back.zeros_like_input(0)?;
            match zeros.runtime().accumulate() {
                Accumulate::OutOfPlace => zeros.index_add(&indices, &grad)?,
                Accumulate::InPlace => zeros.index_add_(&indices, &grad)?,
            }
        } else if let Some(collected) = back.take_collected(0) {
            // A table that is also the head of the model has the gradient of the head by now.
            let (indices, grad) = flat()?;
            collected.index_add_(&indices, &grad)?
        } else {
            let op = EmbeddingBackward { rows: back.spec(0).shape()[0] };
            Tensor::op(Op::EmbeddingBackward(op), &[grad, indices])?
        };
        Ok(smallvec![Some(sum), None])
    }
}

/// Adds rows into zeros. Inputs: gradient `indices.. rest..`, indices. Output: `rows rest..`, dense: one buffer as large
/// as the table, whatever the number of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingBackward {
    /// Rows of the table.
    pub rows: u64,
}

impl Rule for EmbeddingBackward {
    fn name(&self) -> &'static str {
        "embedding_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, indices) = (&inputs[0], inputs[1].shape());
        check_index_dtype("embedding_backward", &inputs[1])?;
        let Some(rest) = grad.shape().strip_prefix(indices) else {
            let rule = "the gradient must begin with the shape of the indices";
            let (a, b) = (grad.shape().into(), indices.into());
            return Err(Error::Shapes { op: "embedding_backward", a, b, rule });
        };
        let shape: Dims = std::iter::once(&self.rows).chain(rest).copied().collect();
        one_fresh(&shape, grad.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        super::elementwise(inputs, outputs, u128::from(inputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, out) = (inputs[0].num(), outputs[0].num_mut());
        let width: usize = out.shape[1..].iter().product();
        for (i, &value) in inputs[1].ints().iter().enumerate() {
            let to = row("embedding_backward", value, out.shape[0])? * width;
            for j in 0..width {
                out.data[to + j] = out.data[to + j] + grad.data[i * width + j];
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let Some(ids) = rows_of(self.name(), &args.inputs[1], self.rows)? else { return Ok(false) };
        Ok(in_compute_dtype!(args, C => {
            // Rows of more than one dimension are left to the plain kernel.
            let flat = args.outputs[0].layout.rank() == 2;
            let source = Rows::of(&args.inputs[0]).filter(|_| flat);
            source.map(|source| add_rows::<C>(args.outputs[0].typed(), &ids, &source, true))
        }))
    }
}

impl Tensor {
    /// Rows of this table picked by `indices` (an integer tensor of any shape).
    ///
    /// # Shapes
    /// self `v h`, `indices..` -> `indices.. h`
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the table.
    pub fn embedding(&self, indices: &Self) -> Result<Self> {
        Self::op(Op::Embedding(Embedding { indexed: false }), &[self, indices])
    }

    /// [`Tensor::embedding`] as the reference framework indexes: the gradient is added to zeros.
    ///
    /// # Shapes
    /// self `n rest..`, `indices..` -> `indices.. rest..`
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the rows.
    pub fn index(&self, indices: &Self) -> Result<Self> {
        Self::op(Op::Embedding(Embedding { indexed: true }), &[self, indices])
    }
}
