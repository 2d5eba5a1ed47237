//! What a step minimises, and how the head and the loss run.

use crate::context::Forward;
use crate::loss::{IGNORED, next_targets, rows_loss};
use crate::model::Model;
use crate::modules::written_out;
use std::fmt;
use std::str::FromStr;
use tensor::ops::nll_loss::Reduction;
use tensor::{DType, Outputs, Result, Tensor, checkpoint};

/// What a step minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Objective {
    /// How the head and cross-entropy run.
    pub head: HeadLoss,
    /// If there is one, sequences come in pairs of which the first is preferred (DPO).
    pub preference: Option<Reference>,
}

impl Objective {
    /// Cross-entropy over all logits at once.
    pub const DEFAULT: Self = Self { head: HeadLoss::Whole, preference: None };
}

/// How the head and cross-entropy run. The numbers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HeadLoss {
    /// All logits, then the loss.
    #[default]
    Whole,
    /// So many parts of the tokens one after another; the logits of a part are made again in backward.
    Chunked(u64),
    /// One kernel that makes the gradients of a few rows at a time in forward and keeps no logits.
    Fused,
    /// All logits in f32 less the largest of each row, whose softmax becomes their gradient: the loss of code that divides
    /// the vocabulary over ranks (Megatron-LM, nanotron), on one of them.
    Parallel,
}

/// What the log-probabilities of the trained model are held against in direct preference optimisation.
///
/// Source: Rafailov et al. 2023, arXiv:2305.18290.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reference {
    /// Those of a frozen copy of the model.
    Model,
    /// Those of the model without its adapters.
    Base,
    /// Numbers computed before.
    Stored,
}

impl fmt::Display for HeadLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.pad("whole"),
            Self::Chunked(parts) => f.pad(&format!("chunked:{parts}")),
            Self::Fused => f.pad("fused"),
            Self::Parallel => f.pad("parallel"),
        }
    }
}

impl FromStr for HeadLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "whole" => return Ok(Self::Whole),
            "fused" => return Ok(Self::Fused),
            "parallel" => return Ok(Self::Parallel),
            _ => {}
        }
        let parts = text.strip_prefix("chunked:").and_then(|parts| parts.parse().ok()).filter(|parts| *parts > 0);
        parts
            .map(Self::Chunked)
            .ok_or_else(|| format!("unknown loss `{text}`: valid are whole, fused, parallel, chunked:8"))
    }
}

impl Reference {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Base => "base",
            Self::Stored => "stored",
        }
    }
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Model, Self::Base, Self::Stored];
        all.into_iter().find(|one| one.name() == text).ok_or_else(|| {
            format!("unknown reference `{text}`: valid are model (a frozen copy), base (without adapters), stored")
        })
    }
}

/// Scale of the preference in the loss, the usual one; it matters to no cost.
const BETA: f64 = 0.1;

/// Mean cross-entropy of hidden states against targets, a part of the rows after another.
///
/// # Shapes
/// hidden `b s h`, targets `b s` (integers, dense) -> scalar
pub(crate) fn chunked_loss(
    f: &Forward,
    model: &Model,
    hidden: &Tensor,
    targets: &Tensor,
    parts: u64,
) -> Result<Tensor> {
    let (rows, h) = (targets.elements(), hidden.size(2));
    let hidden = hidden.view(&[rows, h])?;
    let flat = f.runtime.no_grad(|| targets.view(&[rows]))?;
    let narrow = model.spec().head.narrow_loss;
    written_out("chunked_loss", "parts", parts.min(rows))?;
    let size = rows.div_ceil(parts.min(rows).max(1)).max(1);
    let mut total: Option<Tensor> = None;
    for start in (0..rows).step_by(size as usize) {
        let len = size.min(rows - start);
        let (x, part) = (hidden.narrow(0, start, len)?, f.runtime.no_grad(|| flat.narrow(0, start, len))?);
        let (output, forward) = (model.output().clone(), f.clone());
        let region = move |x: &[Tensor]| -> Result<Outputs> {
            let logits = output.logits(&forward, &x[0])?;
            let loss = rows_loss(&forward, narrow, &logits, &part, Reduction::Sum)?;
            Ok(std::iter::once(loss).collect())
        };
        let loss = checkpoint(&[&x], region)?.remove(0);
        total = Some(match total {
            Some(total) => total.add(&loss)?,
            None => loss,
        });
    }
    let count = f.runtime.no_grad(|| counted(f, &flat)?.to_dtype(DType::F32)?.sum(&[0], false))?;
    match total {
        Some(total) => total.div(&count),
        None => f.runtime.zeros(&[], DType::F32),
    }
}

/// Which targets count: all but [`IGNORED`].
fn counted(f: &Forward, targets: &Tensor) -> Result<Tensor> {
    targets.not_equal(&f.runtime.full(&[], IGNORED, DType::I64)?)
}

/// Log-probability of each sequence: the sum over its tokens.
///
/// # Shapes
/// tokens `b s` (integers), targets `b s` -> `b`
fn log_probabilities(f: &Forward, model: &Model, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
    // The trainer hands logits out in f32 under mixed precision, whatever the model computes in.
    let logits = model.forward(f, tokens)?.to_dtype(DType::F32)?; // b s v
    let (index, mask) = f.runtime.no_grad(|| {
        let zero = f.runtime.zeros(&[], DType::I64)?;
        let mask = counted(f, targets)?;
        Ok::<_, tensor::Error>((mask.where_cond(targets, &zero)?.unsqueeze(-1)?, mask.to_dtype(DType::F32)?))
    })?;
    let picked = logits.gather(-1, &index)?.squeeze(-1)?; // b s
    let each = picked.sub(&logits.logsumexp(-1, false)?)?;
    each.mul(&mask)?.sum(&[1], false)
}

/// `-ln σ(β (margin - reference margin))`, the mean over pairs: the first half of the sequences is preferred to the second.
///
/// As TRL runs it: all sequences of the trained model in one pass, then those of the reference, without history.
///
/// # Shapes
/// tokens `2p s` (integers), labels `2p s` -> scalar
pub(crate) fn preference_loss(
    f: &Forward,
    model: &Model,
    (reference, kind): (Option<&Model>, Reference),
    tokens: &Tensor,
    labels: crate::Labels<'_>,
) -> Result<Tensor> {
    let targets = next_targets(f, labels)?;
    let own = log_probabilities(f, model, tokens, &targets)?; // 2p
    let sequences = own.size(0);
    // Without dropout, and without adapters where these make the difference.
    let mut plain = f.clone();
    (plain.training, plain.adapters) = (false, false);
    let theirs = f.runtime.no_grad(|| match (kind, reference) {
        (Reference::Stored, _) => Ok(f.runtime.zeros(&[sequences], DType::F32)?.with_role(tensor::Role::Input)),
        (Reference::Base, _) | (Reference::Model, None) => log_probabilities(&plain, model, tokens, &targets),
        (Reference::Model, Some(reference)) => {
            let _scope = f.runtime.scope(REFERENCE);
            log_probabilities(&plain, reference, tokens, &targets)
        }
    })?;
    let gain = own.sub(&theirs)?;
    let pairs = sequences / 2;
    let margin = gain.narrow(0, 0, pairs)?.sub(&gain.narrow(0, pairs, pairs)?)?; // p
    margin.mul_scalar(-BETA)?.softplus()?.mean(&[0], false)
}

/// The scope of a frozen copy of the model.
pub const REFERENCE: &str = "reference";
