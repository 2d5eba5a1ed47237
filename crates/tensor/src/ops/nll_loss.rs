//! Negative log-likelihood of integer targets under given log-probabilities.

use super::{Needs, Op, Out, Outs, Rule, Saves, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, rows, rows::{in_pieces, rows_per_piece, Rows}, typed::Real};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// How the losses of the rows become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Divided by the number of targets that are not ignored; NaN if there are none.
    Mean,
    /// Added up.
    Sum,
}

impl Reduction {
    /// Divisions it takes.
    pub(crate) fn divisions(self) -> u128 {
        u128::from(self == Self::Mean)
    }

    /// Divides by `count` if it is a mean.
    pub(crate) fn finish<T: Num>(self, sum: T, count: T) -> T {
        match self {
            Self::Mean => sum / count,
            Self::Sum => sum,
        }
    }
}

/// Target that marks a row as not part of the loss: the field's default.
pub const IGNORE_INDEX: i64 = -100;

/// Inputs: log-probabilities `(n v)`, targets `(n)`. Outputs: loss, and the number of targets that count (f32).
#[derive(Clone, Debug, PartialEq)]
pub struct NllLoss {
    /// Mean or sum.
    pub reduction: Reduction,
    /// Target that is left out.
    pub ignore_index: i64,
}

/// `-g / count` at the targets, zero elsewhere. Inputs: gradient of the loss, log-probabilities (shape only), targets,
/// count.
#[derive(Clone, Debug, PartialEq)]
pub struct NllLossBackward {
    /// The forward op.
    pub of: NllLoss,
}

/// Checks scores `(n v)` against integer targets `(n)`.
pub(crate) fn check_targets(op: &'static str, scores: &Spec, targets: &Spec) -> Result<()> {
    if scores.layout.rank() != 2 {
        return Err(Error::Rank { op, expected: 2, shape: scores.shape().into() });
    }
    if targets.shape() != &scores.shape()[..1] {
        let rule = "there must be one target per row";
        return Err(Error::Shapes { op, a: scores.shape().into(), b: targets.shape().into(), rule });
    }
    if !scores.dtype.is_float() {
        return Err(Error::DType { op, got: scores.dtype, expected: "a floating-point dtype" });
    }
    if targets.dtype.is_float() || targets.dtype.is_bool() {
        return Err(Error::DType { op, got: targets.dtype, expected: "integer targets" });
    }
    Ok(())
}

/// Column of each row's target, `None` where it is ignored.
pub(crate) fn columns(op: &'static str, targets: &[i64], ignore: i64, size: usize) -> Result<Vec<Option<usize>>> {
    let column = |&t: &i64| match usize::try_from(t) {
        _ if t == ignore => Ok(None),
        Ok(at) if at < size => Ok(Some(at)),
        _ => Err(Error::Index { op, value: t, size: size as u64 }),
    };
    targets.iter().map(column).collect()
}

/// Number of targets that count. A count of integers, not arithmetic on numbers.
pub(crate) fn valid(columns: &[Option<usize>]) -> f64 {
    columns.iter().flatten().count() as f64
}

impl Rule for NllLoss {
    fn name(&self) -> &'static str {
        "nll_loss"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check_targets(self.name(), &inputs[0], &inputs[1])?;
        Ok(smallvec![Out::fresh(&[], inputs[0].dtype)?, Out::fresh(&[], DType::F32)?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let rows = inputs[1].elements();
        Cost {
            // One subtraction per row, then the mean.
            elementwise: u128::from(rows) + self.reduction.divisions(),
            // One log-probability per row is looked at.
            read: rows * inputs[0].dtype.size_in_bytes() + inputs[1].unique_bytes(),
            written: outputs.iter().map(Spec::bytes).sum(),
            ..Cost::default()
        }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].num();
        let columns = columns(self.name(), &inputs[1].ints(), self.ignore_index, x.last())?;
        let mut sum = T::zero();
        for (r, column) in columns.iter().enumerate() {
            sum = sum - column.map_or(T::zero(), |c| x.data[r * x.last() + c]);
        }
        let count = T::from_f64(valid(&columns));
        outputs[0].num_mut().data[0] = self.reduction.finish(sum, count);
        outputs[1].num_mut().data[0] = count;
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let size = args.inputs[0].layout.shape()[1] as usize;
        let Some(targets) = rows::integers(&args.inputs[1]) else { return Ok(false) };
        let columns = columns(self.name(), &targets, self.ignore_index, size)?;
        Ok(in_compute_dtype!(args, C => self.forward::<C>(args, &columns)))
    }

    fn saves(&self, _: Needs) -> Saves {
        // The log-probabilities are kept although only their shape is used: the reference framework does so, and they are
        // the result of log_softmax, which keeps them anyway.
        Saves { inputs: 0b11, outputs: 0b10 }
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let op = Op::NllLossBackward(NllLossBackward { of: self.clone() });
        let grad = Tensor::op(op, &[back.grad()?, back.input(0)?, back.input(1)?, back.output(1)?])?;
        Ok(smallvec![Some(grad), None])
    }
}

impl Rule for NllLossBackward {
    fn name(&self) -> &'static str {
        "nll_loss_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check_targets(self.name(), &inputs[1], &inputs[2])?;
        one_fresh(inputs[1].shape(), inputs[1].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost {
            // One negation, one division: every target gets the same number.
            elementwise: 1 + self.of.reduction.divisions(),
            read: inputs[0].unique_bytes() + inputs[2].unique_bytes() + inputs[3].unique_bytes(),
            written: outputs[0].bytes(),
            ..Cost::default()
        }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let out = outputs[0].num_mut();
        let size = out.last();
        let value = self.of.reduction.finish(-inputs[0].num().data[0], inputs[3].num().data[0]);
        let columns = columns(self.name(), &inputs[2].ints(), self.of.ignore_index, size)?;
        for (r, column) in columns.iter().enumerate() {
            if let Some(c) = column {
                out.data[r * size + c] = value;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let size = args.inputs[1].layout.shape()[1] as usize;
        let Some(targets) = rows::integers(&args.inputs[2]) else { return Ok(false) };
        let columns = columns(self.name(), &targets, self.of.ignore_index, size)?;
        Ok(in_compute_dtype!(args, C => self.backward::<C>(args, &columns)))
    }
}

#[cfg(feature = "cpu")]
impl NllLoss {
    fn forward<C: Real>(&self, args: &mut Args<'_>, columns: &[Option<usize>]) -> Option<()> {
        let Args { inputs, outputs } = args;
        let x = Rows::of(&inputs[0])?;
        let picked = columns.iter().enumerate().filter_map(|(r, &column)| Some(x.element::<C>(r, column?).to_f64()));
        let (sum, count) = (-picked.sum::<f64>(), valid(columns));
        outputs[0].typed().write(0, 1, &[self.reduction.finish(sum, count)]);
        outputs[1].typed().write(0, 1, &[count]);
        Some(())
    }
}

#[cfg(feature = "cpu")]
impl NllLossBackward {
    fn backward<C: Real>(&self, args: &mut Args<'_>, columns: &[Option<usize>]) -> Option<()> {
        let Args { inputs, outputs } = args;
        let number = |at: usize| rows::first::<C>(&inputs[at]);
        let value = self.of.reduction.finish(-number(0)?, number(3)?);
        let size = inputs[1].layout.shape()[1] as usize;
        in_pieces(columns.len(), rows_per_piece(size), [(outputs[0].typed(), size)], |first, count, [mut out]| {
            out.fill_zero();
            for r in 0..count {
                if let Some(c) = columns[first + r] {
                    out.write(r * size + c, 1, &[value]);
                }
            }
        });
        Some(())
    }
}

impl Tensor {
    /// Negative log-likelihood of `targets` under these log-probabilities; targets of [`IGNORE_INDEX`] do not count.
    ///
    /// # Shapes
    /// self `n v`, targets `n` -> scalar
    pub fn nll_loss(&self, targets: &Self, reduction: Reduction) -> Result<Self> {
        Self::op(Op::NllLoss(NllLoss { reduction, ignore_index: IGNORE_INDEX }), &[self, targets])
    }
}
