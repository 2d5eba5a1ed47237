//! Cross-entropy where each rank has the logits of a part of the vocabulary.

use super::nll_loss::{IGNORE_INDEX, Reduction, check_targets};
use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::cross_entropy::{gradient_flops, statistics};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// The part of the loss that lies in these columns: the losses of the rows whose target is one of them. The sum over the
/// ranks is the loss.
///
/// Inputs: logits `(n v)` of the columns from `first`, targets `(n)` in the whole vocabulary, the logarithm of the sum of
/// exponentials of each whole row `(n)`. That last one is taken for a constant: the gradient of the logits is `softmax -
/// onehot` over these columns, which is all of it.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropyShard {
    /// First column.
    pub first: u64,
    /// Mean over all rows that count, or sum.
    pub reduction: Reduction,
    /// Target that is left out.
    pub ignore_index: i64,
}

/// `(softmax - onehot) g`, in the logits' dtype. Inputs: logits, targets, log-sum-exp, gradient of the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropyShardBackward {
    /// The forward op.
    pub of: CrossEntropyShard,
}

impl CrossEntropyShard {
    /// Of each row, whether it counts, and its target if that is one of the columns.
    fn targets(&self, targets: &[i64], width: usize) -> Vec<(bool, Option<usize>)> {
        let column = |target: i64| {
            let at = target.checked_sub(i64::try_from(self.first).ok()?)?;
            usize::try_from(at).ok().filter(|&at| at < width)
        };
        targets.iter().map(|&t| if t == self.ignore_index { (false, None) } else { (true, column(t)) }).collect()
    }

    fn finish<T: Num>(&self, sum: T, targets: &[(bool, Option<usize>)]) -> T {
        let rows = targets.iter().filter(|(counts, _)| *counts).count();
        self.reduction.finish(sum, T::from_f64(rows as f64))
    }
}

fn check(op: &'static str, inputs: &[Spec]) -> Result<()> {
    check_targets(op, &inputs[0], &inputs[1])?;
    if inputs[2].shape() == inputs[1].shape() {
        return Ok(());
    }
    let rule = "there must be one logarithm of the sum of exponentials per row";
    Err(Error::Shapes { op, a: inputs[2].shape().into(), b: inputs[1].shape().into(), rule })
}

impl Rule for CrossEntropyShard {
    fn name(&self) -> &'static str {
        "cross_entropy_shard"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check(self.name(), inputs)?;
        Ok(smallvec![Out::fresh(&[], statistics(inputs[0].dtype))?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Per row: subtract the target, add to the loss. Of the logits only the targets are looked at.
        let rows = inputs[1].elements();
        let read = rows.saturating_mul(inputs[0].dtype.size_in_bytes());
        let of_rows = elementwise(&inputs[1..], outputs, 2 * u128::from(rows) + self.reduction.divisions());
        Cost { read: of_rows.read.saturating_add(read), ..of_rows }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, lse) = (inputs[0].num(), inputs[2].num());
        let size = x.last();
        let targets = self.targets(&inputs[1].ints(), size);
        let mut total = T::zero();
        for (r, (_, column)) in targets.iter().enumerate() {
            let loss = lse.data[r] - column.map_or(T::zero(), |c| x.data[r * size + c]);
            total = total + if column.is_some() { loss } else { T::zero() };
        }
        outputs[0].num_mut().data[0] = self.finish(total, &targets);
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(0b111)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let op = CrossEntropyShardBackward { of: self.clone() };
        let inputs = [back.input(0)?, back.input(1)?, back.input(2)?, back.grad()?];
        Ok(smallvec![Some(back.apply_over(op, &inputs, 0)?), None, None])
    }
}

impl Rule for CrossEntropyShardBackward {
    fn name(&self) -> &'static str {
        "cross_entropy_shard_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check(self.name(), inputs)?;
        one_fresh(inputs[0].shape(), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (logits, rows) = (u128::from(inputs[0].elements()), u128::from(inputs[1].elements()));
        elementwise(inputs, outputs, gradient_flops(logits, rows) + self.of.reduction.divisions())
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, lse, out) = (inputs[0].num(), inputs[2].num(), outputs[0].num_mut());
        let size = x.last();
        let targets = self.of.targets(&inputs[1].ints(), size);
        let loss = self.of.finish(inputs[3].num().data[0], &targets);
        for (r, (counts, column)) in targets.iter().enumerate() {
            for i in r * size..(r + 1) * size {
                let slope = (x.data[i] - lse.data[r]).exp() * loss;
                out.data[i] = if *counts { slope } else { T::zero() };
            }
            if size > 0 {
                let target = &mut out.data[r * size + column.unwrap_or(0)];
                *target = *target - if column.is_some() { loss } else { T::zero() };
            }
        }
        Ok(())
    }
}

impl Tensor {
    /// The part of the cross-entropy of `targets` that lies in these logits, those of the tokens from `first`; `lse` is the
    /// logarithm of the sum of exponentials of each whole row.
    ///
    /// # Shapes
    /// self `n v`, targets `n`, lse `n` -> scalar
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn cross_entropy_shard(&self, targets: &Self, lse: &Self, first: u64, reduction: Reduction) -> Result<Self> {
        let op = CrossEntropyShard { first, reduction, ignore_index: IGNORE_INDEX };
        Self::op(Op::CrossEntropyShard(op), &[self, targets, lse])
    }
}
