//! Upper and lower triangles of matrices.

use super::{Needs, Op, Outs, Rule, Saves, one_fresh, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, moves, rows::{in_pieces, rows_per_piece}};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// The last two dimensions with zeros on one side of a diagonal.
#[derive(Clone, Debug, PartialEq)]
pub struct Triangle {
    /// Whether the upper triangle stays.
    pub upper: bool,
    /// The diagonal that stays with it: 0 is the main one, 1 the one above.
    pub diagonal: i64,
}

impl Rule for Triangle {
    fn name(&self) -> &'static str {
        if self.upper { "triu" } else { "tril" }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if inputs[0].shape().len() < 2 {
            return Err(Error::Rank { op: self.name(), expected: 2, shape: inputs[0].shape().into() });
        }
        one_fresh(inputs[0].shape(), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        let (rows, cols) = (x.shape[x.shape.len() - 2], x.last());
        for (at, &value) in x.data.iter().enumerate() {
            let (i, j) = ((at / cols % rows) as i64, (at % cols) as i64);
            let above = (j - i).cmp(&self.diagonal);
            if if self.upper { above.is_ge() } else { above.is_le() } {
                out.data[at] = value;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        if !moves::copy_input(args, 0) {
            return Ok(false);
        }
        let output = &mut args.outputs[0];
        let &[.., rows, columns] = output.layout.shape() else { return Ok(false) };
        let (rows, columns) = (rows as usize, columns as usize);
        let count = output.elements() / columns.max(1);
        in_pieces(count, rows_per_piece(columns), [(output.typed(), columns)], |first, count, [mut out]| {
            for r in first..first + count {
                let mut row = out.take(columns);
                // The diagonal meets the row here; what stays of it is from there on, or up to there.
                let meets = (r % rows) as i64 + self.diagonal + i64::from(!self.upper);
                let before = meets.clamp(0, columns as i64) as usize;
                let mut left = row.take(before);
                if self.upper { left.fill_zero() } else { row.fill_zero() }
            }
        });
        Ok(true)
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(Tensor::op(Op::Triangle(self.clone()), &[back.grad()?])?)])
    }
}

impl Tensor {
    /// The upper triangle of the last two dimensions, zeros below `diagonal` (0: the main one, 1: the one above).
    ///
    /// # Errors
    /// [`Error::Rank`] below two dimensions.
    pub fn triu(&self, diagonal: i64) -> Result<Self> {
        Self::op(Op::Triangle(Triangle { upper: true, diagonal }), &[self])
    }

    /// The lower triangle of the last two dimensions, zeros above `diagonal` (0: the main one, -1: the one below).
    ///
    /// # Errors
    /// [`Error::Rank`] below two dimensions.
    pub fn tril(&self, diagonal: i64) -> Result<Self> {
        Self::op(Op::Triangle(Triangle { upper: false, diagonal }), &[self])
    }
}
