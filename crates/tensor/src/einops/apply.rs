//! Patterns on tensors. Everything is lowered to the engine's own ops, so it is metered and has gradients.
//!
//! Views are preferred over copies: splitting a dimension and moving dimensions are always views, merging is one where
//! strides allow it. What must be copied is copied by `reshape` and shows in the trace with that reason.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::cache;
use super::einsum::{Axes, Contraction, Prepare};
use super::error::PatternError;
use super::path::PairStep;
use super::plan::{Dims, PatternKind, Positions, RearrangePlan, ReduceOp};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl From<PatternError> for Error {
    fn from(error: PatternError) -> Self {
        let text = error.to_string();
        let op = error.op();
        // The message begins with the op, and so does every message of this error.
        let what = text.strip_prefix(op).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text).to_owned();
        Self::Argument { op, what }
    }
}

/// Moves, splits and merges dimensions: `rearrange(&x, "b s (heads d) -> b heads s d", &[("heads", 12)])`.
///
/// A view of `x` wherever a view can express the result; then it allocates nothing and writing to it writes to `x`.
///
/// # Errors
/// A pattern that cannot be read or does not go with the shape, with a caret under the part that is to blame.
pub fn rearrange(x: &Tensor, pattern: &str, sizes: &[(&str, u64)]) -> Result<Tensor> {
    let plan = cache::pattern(PatternKind::Rearrange, pattern)?.resolve(x.shape(), sizes)?;
    permuted(x, &plan)?.reshape(&plan.merge_shape)
}

/// Reduces the axes that are missing on the right: `reduce(&x, "b c (h 2) (w 2) -> b c h w", ReduceOp::Max, &[])`.
///
/// # Errors
/// As [`rearrange`]; the largest or smallest of no elements; a dtype the reduction does not take.
pub fn reduce(x: &Tensor, pattern: &str, op: ReduceOp, sizes: &[(&str, u64)]) -> Result<Tensor> {
    let plan = cache::pattern(PatternKind::Reduce, pattern)?.resolve(x.shape(), sizes)?;
    let mut x = permuted(x, &plan)?;
    if plan.reduced > 0 {
        let kept = x.rank() - plan.reduced;
        let dims: SmallVec<[isize; 8]> = (kept..x.rank()).map(|dim| dim as isize).collect();
        let count: u64 = x.shape()[kept..].iter().product();
        x = match op {
            ReduceOp::Sum => x.sum(&dims, false)?,
            ReduceOp::Mean => x.sum(&dims, false)?.div_scalar(count as f64)?,
            ReduceOp::Max => largest(x, plan.reduced)?,
            ReduceOp::Min => largest(x.neg()?, plan.reduced)?.neg()?,
        };
    }
    x.reshape(&plan.merge_shape)
}

/// Repeats along axes that are new on the right: `repeat(&x, "s d -> b s d", &[("b", 8)])`.
///
/// An expanded view (stride 0) wherever that can express the result; a new axis inside a bracket is copied.
///
/// # Errors
/// As [`rearrange`].
pub fn repeat(x: &Tensor, pattern: &str, sizes: &[(&str, u64)]) -> Result<Tensor> {
    let plan = cache::pattern(PatternKind::Repeat, pattern)?.resolve(x.shape(), sizes)?;
    let mut x = permuted(x, &plan)?;
    if !plan.repeats.is_empty() {
        let mut ones: Dims = plan.expanded_shape.clone();
        for &(position, _) in &plan.repeats {
            ones[position] = 1;
        }
        x = x.view(&ones)?.expand(&plan.expanded_shape)?;
    }
    x.reshape(&plan.merge_shape)
}

/// The first two steps of a plan, both views.
fn permuted(x: &Tensor, plan: &RearrangePlan) -> Result<Tensor> {
    let split = if x.shape() == plan.split_shape.as_slice() { x.clone() } else { x.view(&plan.split_shape)? };
    if plan.is_in_order() { Ok(split) } else { split.permute(&plan.permutation) }
}

/// The largest over the last `dims` dimensions, by halving: each round compares one half of a dimension with the other.
/// In a dimension of odd size the halves share the middle, which is harmless for the largest.
fn largest(mut x: Tensor, dims: usize) -> Result<Tensor> {
    for _ in 0..dims {
        while x.size(-1) > 1 {
            let (size, half) = (x.size(-1), x.size(-1).div_ceil(2));
            x = x.narrow(-1, 0, half)?.maximum(&x.narrow(-1, size - half, half)?)?;
        }
        if x.size(-1) == 0 {
            let what = "max and min of no elements have no value: an axis that is reduced has size 0".to_owned();
            return Err(Error::Argument { op: "reduce", what });
        }
        x = x.squeeze(-1)?;
    }
    Ok(x)
}

/// A sum over products of named axes: `einsum("b s1 h, b s2 h -> b s1 s2", &[&q, &k])`, or in letters,
/// `einsum("bqh,bkh->bqk", &[&q, &k])`.
///
/// Axes of one operand alone are summed first; then pairs are contracted in the order that needs the fewest FLOP, each
/// pair as one batched `matmul` over strided views (as `mul` if nothing is summed over). Axes that act as one matrix
/// dimension are merged in the order of their strides, so that a copy happens only where no order allows a view. The
/// result may be a permuted view, and of a single operand a view of that operand.
///
/// # Errors
/// As [`rearrange`]. An axis has one size: size 1 is not stretched, except under `...`.
pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
    let shapes: SmallVec<[&[u64]; 4]> = operands.iter().map(|x| x.shape()).collect();
    let plan = cache::contraction(equation, &shapes)?;
    let prepare = |(x, how): (&&Tensor, &Prepare)| Held::operand(x, how).map(Some);
    let mut held = operands.iter().zip(&plan.operands).map(prepare).collect::<Result<Vec<_>>>()?;
    for step in &plan.path.steps {
        // Taken, not borrowed: an intermediate is freed as soon as it has been used.
        let (Some(lhs), Some(rhs)) = (held[step.lhs].take(), held[step.rhs].take()) else { break };
        let result = if step.k.is_empty() { product(&lhs, &rhs, step)? } else { contract(&lhs, &rhs, step, &plan)? };
        held.push(Some(result));
    }
    match held.pop().flatten() {
        Some(result) => result.ordered(&plan.output),
        None => Err(Error::Argument { op: "einsum", what: "needs at least one operand".into() }),
    }
}

/// A tensor and the index of each of its dimensions.
struct Held {
    x: Tensor,
    axes: Axes,
}

impl Held {
    /// An operand after its views and its own sum.
    fn operand(x: &Tensor, how: &Prepare) -> Result<Self> {
        let mut x = x.clone();
        for &dim in &how.squeeze {
            x = x.select(dim as isize, 0)?;
        }
        for &(first, second) in &how.diagonals {
            x = x.diagonal(first as isize, second as isize)?;
        }
        if !how.sum.is_empty() {
            let dims: SmallVec<[isize; 8]> = how.sum.iter().map(|&dim| dim as isize).collect();
            x = x.sum(&dims, false)?;
        }
        Ok(Self { x, axes: how.axes.clone() })
    }

    fn dim_of(&self, axis: u8) -> usize {
        // The plan names only axes that are there.
        self.axes.iter().position(|other| *other == axis).unwrap_or(0)
    }

    /// The tensor with its dimensions in the order of `axes`, a view.
    fn ordered(&self, axes: &[u8]) -> Result<Tensor> {
        if self.axes.as_slice() == axes {
            return Ok(self.x.clone());
        }
        let order: Positions = axes.iter().map(|&axis| self.dim_of(axis)).collect();
        self.x.permute(&order)
    }

    /// `axes` from the largest stride to the smallest: the order in which they can be merged, if they can be at all.
    fn by_stride(&self, axes: &[u8]) -> Axes {
        let mut axes: Axes = axes.into();
        axes.sort_by_key(|&axis| Reverse(self.x.stride()[self.dim_of(axis)].unsigned_abs()));
        axes
    }

    /// Whether `axes`, in this order, are one dimension to a reader of this tensor.
    fn merges(&self, axes: &[u8]) -> bool {
        let dims = axes.iter().map(|&axis| self.dim_of(axis)).filter(|&dim| self.x.shape()[dim] != 1);
        let dims: Positions = dims.collect();
        let (shape, stride) = (self.x.shape(), self.x.stride());
        dims.windows(2).all(|pair| stride[pair[0]] == stride[pair[1]] * shape[pair[1]] as i64)
    }

    /// Bytes that a copy of this tensor writes.
    fn bytes(&self) -> u64 {
        self.x.spec().bytes()
    }
}

/// One pair as a batched matrix product. Batch dimensions stay apart, so they never force a copy.
fn contract(lhs: &Held, rhs: &Held, step: &PairStep, plan: &Contraction) -> Result<Held> {
    let (m, n) = (lhs.by_stride(&step.m), rhs.by_stride(&step.n));
    let copied = |k: &Axes| {
        let lhs_copy = if lhs.merges(&m) && lhs.merges(k) { 0 } else { lhs.bytes() };
        let rhs_copy = if rhs.merges(&n) && rhs.merges(k) { 0 } else { rhs.bytes() };
        lhs_copy + rhs_copy
    };
    // Both operands must merge the contracted axes in one order: take the one that copies less.
    let (mut k, other) = (lhs.by_stride(&step.k), rhs.by_stride(&step.k));
    if copied(&other) < copied(&k) {
        k = other;
    }
    let size = |axes: &[u8]| -> Dims { axes.iter().map(|&axis| plan.indices[axis as usize].size).collect() };
    let count = |axes: &[u8]| size(axes).iter().product::<u64>();
    let batch = size(&step.batch);
    let (left, right): (Axes, Axes) = (chain(&[&step.batch, &m, &k]), chain(&[&step.batch, &k, &n]));
    let left = lhs.ordered(&left)?.reshape(&[&batch[..], &[count(&m), count(&k)]].concat())?;
    let right = rhs.ordered(&right)?.reshape(&[&batch[..], &[count(&k), count(&n)]].concat())?;
    let axes = chain(&[&step.batch, &m, &n]);
    let x = left.matmul(&right)?.reshape(&size(&axes))?;
    Ok(Held { x, axes })
}

/// One pair without anything to sum over: an elementwise product, broadcast by views.
fn product(lhs: &Held, rhs: &Held, step: &PairStep) -> Result<Held> {
    let left = lhs.ordered(&chain(&[&step.batch, &step.m]))?;
    let right = rhs.ordered(&chain(&[&step.batch, &step.n]))?;
    let (batch, m) = (step.batch.len(), step.m.len());
    let mut left_shape: Dims = left.shape().into();
    left_shape.extend(step.n.iter().map(|_| 1));
    let mut right_shape: Dims = right.shape().into();
    right_shape.insert_many(batch, (0..m).map(|_| 1));
    let x = left.reshape(&left_shape)?.mul(&right.reshape(&right_shape)?)?;
    Ok(Held { x, axes: step.output.clone() })
}

fn chain(groups: &[&Axes]) -> Axes {
    groups.iter().flat_map(|axes| axes.iter().copied()).collect()
}
