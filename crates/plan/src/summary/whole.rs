//! Everything about a run: the answer on one screen, and behind it the questions that follow from it, each answered whole.

use units::Diagnostics;

use super::Question;
use crate::flops::{self, View};
use crate::ledger;
use crate::model::Model;
use crate::report::Report;

/// The answer of [`super::report`], with ledger and FLOP as its parts.
///
/// # Errors
/// As [`super::report`].
pub fn report(model: &Model, question: &Question<'_>) -> Result<Report, Diagnostics> {
    let mut report = super::report(model, question)?;
    report.kind = "report";
    let memory = ledger::Request { timeline: true, ..question.memory.clone() };
    report.parts.push(ledger::report(model, &memory, true)?);
    report.parts.push(flops::report(model, &question.memory.options, View { depth: 1, ..View::default() })?);
    Ok(report)
}
