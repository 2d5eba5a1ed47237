//! Everything about a run: the answer on one screen, and behind it the questions that follow from it, each answered whole.

use units::{Diagnostic, Diagnostics};

use super::Question;
use crate::flops::{self, View};
use crate::layout::answer;
use crate::layout::estimate::{Cluster, Run};
use crate::layout::search::Wanted;
use crate::ledger;
use crate::model::Model;
use crate::report::Report;

/// What the layouts are looked for in.
#[derive(Clone, Copy, Debug)]
pub struct Searched<'a> {
    /// Where the run is made.
    pub cluster: Cluster<'a>,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Largest micro-batch that is tried.
    pub micro_batch: u64,
    /// How many of the best layouts are shown.
    pub top: usize,
}

/// The answer of [`super::report`], with ledger, FLOP and layouts as its parts. Where there is no layout to be found, that is
/// a warning: the rest stands without it.
///
/// # Errors
/// As [`super::report`].
pub fn report(model: &Model, question: &Question<'_>, searched: Option<&Searched<'_>>) -> Result<Report, Diagnostics> {
    let mut report = super::report(model, question)?;
    report.kind = "report";
    let memory = ledger::Request { timeline: true, ..question.memory.clone() };
    report.parts.push(ledger::report(model, &memory)?);
    report.parts.push(flops::report(model, &question.memory.options, View { depth: 1, ..View::default() })?);
    if let Some(searched) = searched {
        match layouts(model, question, searched) {
            Ok(part) => report.parts.push(part),
            Err(problems) => report.warnings.extend(problems.iter().map(|problem| {
                Diagnostic::warning("T0328", format!("no layouts: {}", problem.message))
                    .effect("the rest of the report stands without them")
            })),
        }
    }
    Ok(report)
}

fn layouts(model: &Model, question: &Question<'_>, searched: &Searched<'_>) -> Result<Report, Diagnostics> {
    model.require_language_model("layouts")?;
    let run = Run::new(model, question.memory.options, None, searched.cluster)?;
    let wanted = Wanted {
        devices: question.fleet.devices,
        global_batch: searched.global_batch,
        capacity: searched.cluster.hardware.capacity(),
        micro_batch: searched.micro_batch,
        engine: None,
        most: searched.top,
    };
    answer::best(&run, &wanted).map(|(report, _)| report)
}
