//! Cross-entropy of integer targets straight from logits: neither probabilities nor their logarithms are stored.

use super::nll_loss::{IGNORE_INDEX, Reduction, check_targets, columns, valid};
use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise, one_fresh};
use crate::apply::{Outputs, apply};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, reduce::LogSumExp, rows, rows::Rows, simd::vectorized, typed::Real};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: logits `(n v)`, targets `(n)`. Outputs: loss, and the logarithm of the sum of exponentials of each row `(n)`,
/// both at least f32.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Mean or sum.
    pub reduction: Reduction,
    /// Target that is left out.
    pub ignore_index: i64,
}

/// `(softmax - onehot) g`, in the logits' dtype. Inputs: logits, targets, log-sum-exp, then the gradient of the loss and of
/// the log-sum-exp, as far as there are any.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropyBackward {
    /// The forward op.
    pub of: CrossEntropy,
    /// Whether a gradient reached the loss.
    pub loss: bool,
    /// Whether a gradient reached the log-sum-exp (a z-loss does this).
    pub lse: bool,
}

/// dtype of sums over `dtype`: at least f32.
pub(crate) fn statistics(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Elementwise FLOP of the losses of `rows` rows with `logits` numbers in all, and of their sum. Per logit: max, subtract,
/// exp, add. Per row: ln, add the maximum back, subtract the target, add to the loss.
pub(super) fn loss_flops(logits: u128, rows: u128) -> u128 {
    4 * logits + 4 * rows
}

/// Elementwise FLOP of their gradients. Per logit: subtract, exp, multiply. Per row: subtract at the target.
pub(super) fn gradient_flops(logits: u128, rows: u128) -> u128 {
    3 * logits + rows
}

impl Rule for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check_targets(self.name(), &inputs[0], &inputs[1])?;
        let dtype = statistics(inputs[0].dtype);
        Ok(smallvec![Out::fresh(&[], dtype)?, Out::fresh(inputs[1].shape(), dtype)?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (logits, rows) = (u128::from(inputs[0].elements()), u128::from(inputs[1].elements()));
        elementwise(inputs, outputs, loss_flops(logits, rows) + self.reduction.divisions())
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].num();
        let size = x.last();
        let columns = columns(self.name(), &inputs[1].ints(), self.ignore_index, size)?;
        let mut total = T::zero();
        for (r, column) in columns.iter().enumerate() {
            let row = &x.data[r * size..][..size];
            let max = row.iter().fold(T::from_f64(f64::NEG_INFINITY), |max, &x| max.max(x));
            let sum = row.iter().fold(T::zero(), |sum, &x| sum + (x - max).exp());
            let lse = max + sum.ln();
            outputs[1].num_mut().data[r] = lse;
            let loss = lse - column.map_or(T::zero(), |c| row[c]);
            total = total + if column.is_some() { loss } else { T::zero() };
        }
        let count = T::from_f64(valid(&columns));
        outputs[0].num_mut().data[0] = self.reduction.finish(total, count);
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let Some(columns) = fast_columns(self.name(), args, self.ignore_index)? else { return Ok(false) };
        Ok(in_compute_dtype!(args, C => forward::<C>(self, args, &columns)))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves { inputs: 0b11, outputs: 0b10 }
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (loss, lse) = (back.grad_of(0), back.grad_of(1));
        let op = CrossEntropyBackward { of: self.clone(), loss: loss.is_some(), lse: lse.is_some() };
        let mut inputs: SmallVec<[&Tensor; 5]> = smallvec![back.input(0)?, back.input(1)?, back.output(1)?];
        inputs.extend(loss);
        inputs.extend(lse);
        // The gradient of the logits is as large as they are, and these two are the largest tensors of many a step.
        Ok(smallvec![Some(back.apply_over(op, &inputs, 0)?), None])
    }
}

impl Rule for CrossEntropyBackward {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        check_targets(self.name(), &inputs[0], &inputs[1])?;
        one_fresh(inputs[0].shape(), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Per row, the gradients of loss and log-sum-exp are added.
        let (logits, rows) = (u128::from(inputs[0].elements()), u128::from(inputs[1].elements()));
        let mean = if self.loss { self.of.reduction.divisions() } else { 0 };
        elementwise(inputs, outputs, gradient_flops(logits, rows) + u128::from(self.lse) * rows + mean)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, lse, out) = (inputs[0].num(), inputs[2].num(), outputs[0].num_mut());
        let size = x.last();
        let columns = columns(self.name(), &inputs[1].ints(), self.of.ignore_index, size)?;
        let loss = if self.loss {
            self.of.reduction.finish(inputs[3].num().data[0], T::from_f64(valid(&columns)))
        } else {
            T::zero()
        };
        for (r, column) in columns.iter().enumerate() {
            let loss = if column.is_some() { loss } else { T::zero() };
            let scale = if self.lse { loss + inputs[inputs.len() - 1].num().data[r] } else { loss };
            // An ignored row gets zeros even if its logits are infinite.
            let used = column.is_some() || self.lse;
            for i in r * size..(r + 1) * size {
                let slope = (x.data[i] - lse.data[r]).exp() * scale;
                out.data[i] = if used { slope } else { T::zero() };
            }
            if size > 0 {
                let target = &mut out.data[r * size + column.unwrap_or(0)];
                *target = *target - loss;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let Some(columns) = fast_columns(self.name(), args, self.of.ignore_index)? else { return Ok(false) };
        Ok(in_compute_dtype!(args, C => backward::<C>(self, args, &columns)))
    }
}

/// Elements of a row that are looked at together: they stay in the first-level cache between maximum and sum.
#[cfg(feature = "cpu")]
const BLOCK: usize = 2048;

/// Columns of the targets; `None` if they lie in what is written.
#[cfg(feature = "cpu")]
fn fast_columns(op: &'static str, args: &Args<'_>, ignore: i64) -> Result<Option<Vec<Option<usize>>>> {
    let size = args.inputs[0].layout.shape()[1] as usize;
    rows::integers(&args.inputs[1]).map(|targets| columns(op, &targets, ignore, size)).transpose()
}

/// Each row in one pass; the losses are added in order.
#[cfg(feature = "cpu")]
fn forward<C: Real>(op: &CrossEntropy, args: &mut Args<'_>, columns: &[Option<usize>]) -> Option<()> {
    let Args { inputs, outputs } = args;
    let logits = Rows::of(&inputs[0])?;
    let size = logits.width();
    let mut lse = vec![C::zero(); columns.len()];
    rows::in_pieces(lse.len(), rows::rows_per_piece(size), [(C::typed_mut(&mut lse), 1)], |first, count, [mut lse]| {
        let mut buffer = vec![C::zero(); BLOCK];
        for r in 0..count {
            let mut sum = LogSumExp::<C>::none();
            for from in (0..size).step_by(BLOCK) {
                sum.add(logits.get(first + r, from, BLOCK.min(size - from), &mut buffer));
            }
            lse.write(r, 1, &[sum.ln()]);
        }
    });
    let losses = columns.iter().enumerate().filter_map(|(r, &column)| Some((r, column?)));
    let total: f64 = losses.map(|(r, c)| (lse[r] - logits.element(r, c)).to_f64()).sum();
    outputs[0].typed().write(0, 1, &[op.reduction.finish(total, valid(columns))]);
    outputs[1].typed().write(0, 1, &lse);
    Some(())
}

/// Each row in one pass.
#[cfg(feature = "cpu")]
fn backward<C: Real>(op: &CrossEntropyBackward, args: &mut Args<'_>, columns: &[Option<usize>]) -> Option<()> {
    let Args { inputs, outputs } = args;
    // `None`: the gradient is written over the logits, row-major both.
    let logits = match inputs[0].output() {
        None => Some(Rows::of(&inputs[0])?),
        Some(_) => None,
    };
    let lse = rows::vector::<C>(&inputs[2])?;
    let number = |at: usize| rows::vector::<C>(&inputs[at]);
    let loss = if op.loss {
        op.of.reduction.finish(rows::first(&inputs[3])?, C::from_f64(valid(columns)))
    } else {
        C::zero()
    };
    let by_row = if op.lse { Some(number(inputs.len() - 1)?) } else { None };
    let size = inputs[0].layout.shape()[1] as usize;
    let target = (outputs[0].typed(), size);
    rows::in_pieces(columns.len(), rows::rows_per_piece(size), [target], |first, count, [mut out]| {
        let (mut buffer, mut block) = (vec![C::zero(); BLOCK], vec![C::zero(); BLOCK]);
        for r in 0..count {
            let row = first + r;
            let column = columns[row];
            let loss = if column.is_some() { loss } else { C::zero() };
            let scale = by_row.as_ref().map_or(loss, |by_row| loss + by_row[row]);
            // An ignored row gets zeros even if its logits are infinite.
            let used = column.is_some() || op.lse;
            for from in (0..size).step_by(BLOCK) {
                let len = BLOCK.min(size - from);
                let x = if let Some(logits) = &logits {
                    logits.get(row, from, len, &mut buffer)
                } else {
                    out.as_read().read(r * size + from, 1, &mut buffer[..len]);
                    &buffer[..len]
                };
                let dx = rows::place(&mut out, r * size + from, len, &mut block);
                slopes(x, lse[row], used.then_some(scale), dx);
                if let Some(c) = column.filter(|c| (from..from + len).contains(c)) {
                    dx[c - from] = dx[c - from] - loss;
                }
                rows::put(&mut out, r * size + from, len, &block);
            }
        }
    });
    Some(())
}

/// `e^(x - lse) scale`, or zeros.
#[cfg(feature = "cpu")]
fn slopes<C: Real>(x: &[C], lse: C, scale: Option<C>, dx: &mut [C]) {
    let Some(scale) = scale else {
        dx.fill(C::zero());
        return;
    };
    vectorized(
        #[inline(always)]
        || {
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = C::lower((x.lift() - lse.lift()).exp()) * scale;
            }
        },
    );
}

impl Tensor {
    /// Cross-entropy of `targets` under these logits; targets of [`IGNORE_INDEX`] do not count.
    ///
    /// # Shapes
    /// self `n v`, targets `n` -> scalar (f32, or f64 for f64 logits)
    pub fn cross_entropy(&self, targets: &Self, reduction: Reduction) -> Result<Self> {
        Ok(self.cross_entropy_with_lse(targets, reduction)?.swap_remove(0))
    }

    /// [`Tensor::cross_entropy`] and the logarithm of the sum of exponentials of each row, for a z-loss.
    ///
    /// # Shapes
    /// self `n v`, targets `n` -> scalar, `n`
    pub fn cross_entropy_with_lse(&self, targets: &Self, reduction: Reduction) -> Result<Outputs> {
        apply(Op::CrossEntropy(CrossEntropy { reduction, ignore_index: IGNORE_INDEX }), &[self, targets])
    }
}
