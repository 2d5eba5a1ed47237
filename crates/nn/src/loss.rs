//! Losses: each position predicts the next token, or a token of its own; classes; sums of outputs.

use crate::context::Forward;
use crate::model::Model;
use crate::objective::{HeadLoss, chunked_loss};
use crate::spec::{ModelSpec, Task};
use tensor::ops::nll_loss::Reduction;
use tensor::{DType, Result, Tensor};

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
        (None, None) => input.size(1),
    }
}

/// Loss of a batch, by the task of the model.
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
        HeadLoss::Chunked(parts) => {
            let targets = targets(f, model.spec().task, labels)?;
            return chunked_loss(f, model, &hidden, &targets, parts);
        }
    }
    let logits = model.logits(f, &hidden)?;
    let loss = match (model.spec().task, labels) {
        (Task::NextToken, Labels::Tokens(labels)) => next_token_loss(f, &logits, labels),
        (Task::OwnToken, _) if model.spec().head.narrow_loss => narrow_loss(f, &logits, given),
        (Task::NextToken | Task::OwnToken, _) => target_loss(f, &logits, given),
        (Task::Classes(_), _) => class_loss(f, &logits, given),
        (Task::Outputs, _) => output_loss(&logits),
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

/// Mean cross-entropy of `logits` against the tokens shifted by one.
///
/// The `hf` profiles follow transformers: labels shifted inside the loss, logits raised to f32, log-softmax, negative
/// log-likelihood. The fused profile runs one kernel that keeps the logits and one number per row, and writes their
/// gradient over them.
///
/// # Shapes
/// logits `b s v`, labels `b s` (integers) -> scalar
pub fn next_token_loss(f: &Forward, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    // The padded labels live as long as the targets cut from them.
    let padded = f.runtime.no_grad(|| shifted_left(f, labels))?;
    let targets = f.runtime.no_grad(|| padded.contiguous())?;
    target_loss(f, logits, &targets)
}

/// Mean cross-entropy of `logits` against the token each position is to predict; [`IGNORED`] counts for nothing.
///
/// # Shapes
/// logits `b s v`, targets `b s` (integers, dense) -> scalar
pub fn target_loss(f: &Forward, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (rows, v) = (targets.elements(), logits.size(2));
    let targets = f.runtime.no_grad(|| targets.view(&[rows]))?;
    if f.profile.is_hf() {
        let wide = logits.to_dtype(DType::F32)?.view(&[rows, v])?;
        return wide.log_softmax(-1)?.nll_loss(&targets, Reduction::Mean);
    }
    logits.view(&[rows, v])?.cross_entropy(&targets, Reduction::Mean)
}

/// The same, in the reference without raising the logits to f32 first, but for what autocast raises.
fn narrow_loss(f: &Forward, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    if !f.profile.is_hf() || f.runtime.autocast_setting().is_some() {
        return target_loss(f, logits, targets);
    }
    let (rows, v) = (targets.elements(), logits.size(2));
    let targets = f.runtime.no_grad(|| targets.view(&[rows]))?;
    logits.view(&[rows, v])?.log_softmax(-1)?.nll_loss(&targets, Reduction::Mean)
}

/// Mean cross-entropy of one row of scores for each sequence against its class.
///
/// # Shapes
/// logits `b n`, classes `b` (integers) -> scalar
pub fn class_loss(f: &Forward, logits: &Tensor, classes: &Tensor) -> Result<Tensor> {
    if f.profile.is_hf() {
        return logits.to_dtype(DType::F32)?.log_softmax(-1)?.nll_loss(classes, Reduction::Mean);
    }
    logits.cross_entropy(classes, Reduction::Mean)
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
