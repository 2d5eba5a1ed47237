//! Losses: each position predicts the next token, or a token of its own; classes; sums of outputs.

use crate::context::Forward;
use crate::model::Model;
use crate::objective::{HeadLoss, chunked_loss};
use crate::spec::{ModelSpec, Task};
use tensor::ops::nll_loss::Reduction;
use tensor::{Combine, DType, Result, Tensor};

/// Label that counts for nothing: the last position of a sequence predicts no token.
pub const IGNORED: f64 = -100.0;

/// What the positions of a batch are to predict.
#[derive(Clone, Copy, Debug)]
pub enum Labels<'a> {
    /// The tokens themselves, `b s`: the loss shifts them, and the last position predicts nothing.
    Tokens(&'a Tensor),
    /// The next token of every position, `b s`; [`IGNORED`] for none.
    Targets(&'a Tensor),
}

impl<'a> Labels<'a> {
    fn given(self) -> &'a Tensor {
        let (Self::Tokens(given) | Self::Targets(given)) = self;
        given
    }
}

/// Positions of the stack in front of the head.
pub fn positions(spec: &ModelSpec, input: &Tensor, labels: Labels<'_>) -> u64 {
    match (spec.signal(), &spec.encoder) {
        (Some(signal), _) => signal.positions(),
        (None, Some(_)) => labels.given().size(1),
        (None, None) if !spec.stage.first && spec.ranks.sp => input.size(1) * spec.ranks.tp,
        (None, None) => input.size(1),
    }
}

/// Loss of a batch, by the task of the model; of a stage of a pipeline that is not the last, the stream behind it.
///
/// A decoder behind an encoder reads its labels shifted by one; `input` is what the encoder reads.
///
/// # Shapes
/// input `b s` (integers) or numbers `b n width`, labels `b s`, or `b` of classes -> scalar
///
/// # Errors
/// As [`Model::forward`].
pub fn loss(f: &Forward, model: &Model, input: &Tensor, labels: Labels<'_>, head: HeadLoss) -> Result<Tensor> {
    let given = labels.given();
    let (mut f, mut shifted) = (f.clone(), None);
    if let Some(encoded) = model.encode(&f, input)? {
        f.encoded = Some(encoded);
        shifted = Some(shifted_right(&f, given)?);
    }
    let f = &f;
    let hidden = model.body(f, shifted.as_ref().unwrap_or(input))?;
    if !model.spec().stage.last {
        return Ok(hidden);
    }
    let tokens = matches!(model.spec().task, Task::NextToken | Task::OwnToken);
    match head {
        HeadLoss::Whole => {}
        _ if !tokens => {}
        HeadLoss::Fused => {
            let targets = f.runtime.no_grad(|| targets(f, model.spec().task, labels)?.view(&[given.elements()]))?;
            if let Some(loss) = model.output().fused_loss(f, &hidden, &targets)? {
                return Ok(loss);
            }
        }
        HeadLoss::Parallel => {
            let targets = targets(f, model.spec().task, labels)?;
            let logits = model.logits(f, &hidden)?;
            return parallel_loss(f, logits, &targets);
        }
        HeadLoss::Chunked(parts) => {
            let targets = targets(f, model.spec().task, labels)?;
            return chunked_loss(f, model, &hidden, &targets, parts);
        }
    }
    let logits = model.logits(f, &hidden)?;
    let narrow = model.spec().head.narrow_loss;
    let mean = |targets: &Tensor| rows_loss(f, narrow, &logits, targets, Reduction::Mean);
    let loss = match (model.spec().task, labels) {
        (Task::Outputs, _) => output_loss(&logits),
        (Task::NextToken, Labels::Tokens(labels)) => {
            // The padded labels live as long as the targets cut from them.
            let padded = f.runtime.no_grad(|| shifted_left(f, labels))?;
            mean(&f.runtime.no_grad(|| padded.contiguous())?)
        }
        _ => mean(given),
    };
    // Both live until the forward pass is over, as parts of the model's output.
    drop((hidden, logits));
    loss
}

/// What each position is to predict: the labels as they are given, or those of the next position.
fn targets(f: &Forward, task: Task, labels: Labels<'_>) -> Result<Tensor> {
    if task == Task::NextToken { next_targets(f, labels) } else { Ok(labels.given().clone()) }
}

/// The next token of every position.
///
/// # Shapes
/// labels `b s` (integers) -> `b s`
pub(crate) fn next_targets(f: &Forward, labels: Labels<'_>) -> Result<Tensor> {
    match labels {
        Labels::Targets(targets) => Ok(targets.clone()),
        Labels::Tokens(tokens) => f.runtime.no_grad(|| shifted_left(f, tokens)?.contiguous()),
    }
}

/// The labels of the next positions, a view into labels with one more at the end.
fn shifted_left(f: &Forward, labels: &Tensor) -> Result<Tensor> {
    let (b, s) = (labels.size(0), labels.size(1));
    let end = f.runtime.full(&[b, 1], IGNORED, DType::I64)?;
    Tensor::cat(&[labels, &end], 1)?.narrow(1, 1, s)
}

/// Cross-entropy of rows of logits against a token or a class each; [`IGNORED`] counts for nothing.
///
/// The `hf` profiles follow transformers: logits raised to f32, unless they are to stay `narrow` and autocast raises nothing,
/// log-softmax, negative log-likelihood. The fused profile runs one kernel that keeps the logits and one number per row, and
/// writes their gradient over them.
///
/// # Shapes
/// logits `.. v`, targets `..` (integers, dense) -> scalar
///
/// # Errors
/// If shapes do not fit.
pub(crate) fn rows_loss(
    f: &Forward,
    narrow: bool,
    logits: &Tensor,
    targets: &Tensor,
    reduction: Reduction,
) -> Result<Tensor> {
    let shape = [targets.elements(), logits.size(-1)];
    let targets = f.runtime.no_grad(|| targets.view(&shape[..1]))?;
    let narrow = !f.profile.is_hf() || (narrow && f.runtime.autocast_setting().is_none());
    let raised = if narrow { logits.view(&shape)? } else { logits.to_dtype(DType::F32)?.view(&shape)? };
    if f.ranks.tp > 1 {
        return shard_loss(f, &raised, &targets, reduction);
    }
    if !f.profile.is_hf() {
        return raised.cross_entropy(&targets, reduction);
    }
    raised.log_softmax(-1)?.nll_loss(&targets, reduction)
}

/// [`rows_loss`] where each rank has the logits of a part of the vocabulary: two numbers of each row go to the others.
///
/// # Shapes
/// logits `n v / tp`, targets `n` (integers) -> scalar
fn shard_loss(f: &Forward, raised: &Tensor, targets: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let group = f.ranks.tensor();
    let lse = f.runtime.no_grad(|| {
        let own = raised.logsumexp(-1, false)?.to_dtype(DType::F32)?;
        own.unsqueeze(0)?.all_gather(group, 0)?.logsumexp(0, false)
    })?;
    let first = f.runtime.place(group.axis) * raised.size(1);
    raised.cross_entropy_shard(targets, &lse, first, reduction)?.all_reduce(group, Combine::Sum)
}

/// The same as code computes it that divides the vocabulary over ranks. The logits in f32 live until the loss is there,
/// those less the largest of their row until they are the gradient.
///
/// Source: Megatron-LM, `megatron/core/tensor_parallel/cross_entropy.py`; nanotron, `sharded_cross_entropy`.
///
/// # Shapes
/// logits `b s v / tp`, targets `b s` (integers, dense) -> scalar
fn parallel_loss(f: &Forward, logits: Tensor, targets: &Tensor) -> Result<Tensor> {
    let (rows, v) = (targets.elements(), logits.size(2));
    let targets = f.runtime.no_grad(|| targets.view(&[rows]))?;
    let wide = logits.to_dtype(DType::F32)?.view(&[rows, v])?;
    drop(logits);
    let group = f.ranks.tensor();
    let largest = f.runtime.no_grad(|| -> Result<Tensor> {
        let own = wide.max(-1, true)?.0;
        if group.is_alone() { Ok(own) } else { Ok(own.unsqueeze(0)?.all_gather(group, 0)?.max(0, false)?.0) }
    })?;
    let less = wide.sub(&largest)?;
    if group.is_alone() {
        return less.cross_entropy(&targets, Reduction::Mean);
    }
    let part = shard_loss(f, &less, &targets, Reduction::Mean);
    drop(wide);
    part
}

/// Sum of all outputs, in f32: what stands for a loss where a model has none.
///
/// # Shapes
/// any -> scalar
pub fn output_loss(outputs: &Tensor) -> Result<Tensor> {
    let dims: Vec<isize> = (0..outputs.rank() as isize).collect();
    outputs.to_dtype(DType::F32)?.sum(&dims, false)
}

/// What a decoder reads that is to produce `labels`: a start token (0), then all labels but the last.
///
/// # Shapes
/// `b s` (integers) -> `b s`
fn shifted_right(f: &Forward, labels: &Tensor) -> Result<Tensor> {
    let (b, s) = (labels.size(0), labels.size(1));
    f.runtime.no_grad(|| {
        let start = f.runtime.zeros(&[b, 1], DType::I64)?;
        Tensor::cat(&[&start, &labels.narrow(1, 0, s.saturating_sub(1))?], 1)
    })
}
