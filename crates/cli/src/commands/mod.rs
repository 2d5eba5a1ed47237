//! The subcommands that need this machine: its files, its clock, its processor. Those that do not are `ask`'s.
//!
//! To add one: write `NAME.rs` with a `clap::Args` struct and `fn report(&self) -> Result<Report, Diagnostics>`, then add
//! it to [`Command`] and to [`Command::report`].

mod bench;
mod checkpoint;
mod completions;
mod generate;
mod inspect;
mod reconcile;
mod tokenize;
mod train;
mod validate;

use std::path::Path;

use ask::{Question, View};
use clap::Subcommand;
use plan::handover::Engine;
use plan::phrase;
use plan::report::{Block, KeyValue, Report, Value};
use units::Diagnostics;

pub use completions::{Completions, Manual};

use crate::args::OutputArgs;
use crate::disk::DISK;
use crate::output::{Shows, save, shows_a_step};
use crate::progress::Working;

/// What the program is asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What needs nothing of this machine
    #[command(flatten)]
    Question(Box<Question>),
    /// How far predictions are from published measurements, row by row and by source
    Validate(validate::Validate),
    /// Train a model on this machine, metered
    Train(Box<train::Train>),
    /// Sample text from a checkpoint
    Generate(generate::Generate),
    /// Show, verify, import or export a checkpoint
    Checkpoint(checkpoint::Checkpoint),
    /// What this machine can do: peak, bandwidth, matrix products, whole training steps
    Bench(bench::Bench),
    /// Hold a prediction against a step that is really made, gap by gap: bytes, FLOP, time
    Reconcile(Box<reconcile::Reconcile>),
    /// Texts to a file of token ids
    Tokenize(tokenize::Tokenize),
    /// What is in a file of token ids or in files of weights, and what is wrong with it
    Inspect(inspect::Inspect),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page: napkin man | man -l -
    Man(Manual),
}

impl Command {
    /// Flags that the question takes for granted and its parts do not.
    pub fn implied(&self) -> Vec<String> {
        match self {
            Self::Question(question) => question.implied(),
            _ => Vec::new(),
        }
    }

    /// True if `-o` names what the command makes instead of a file for its report.
    pub fn makes_a_file(&self) -> bool {
        match self {
            Self::Tokenize(_) => true,
            Self::Question(question) => question.exports().is_some(),
            _ => false,
        }
    }

    /// Whether its answer may have a drawing, and whether it may have a step moment by moment.
    pub fn shows(&self) -> Shows {
        match self {
            Self::Question(question) => {
                Shows { drawing: question.draws(), step: matches!(**question, Question::Ledger(_)) }
            }
            _ => Shows { drawing: false, step: false },
        }
    }

    /// What goes to standard output in place of a report, with what to warn about.
    ///
    /// # Errors
    /// All that is wrong with the question.
    pub fn text(&self, output: &OutputArgs) -> Result<Option<(String, Diagnostics)>, Diagnostics> {
        match self {
            Self::Completions(completions) => Ok(Some((completions.script(), Diagnostics::new()))),
            Self::Man(manual) => Ok(Some((manual.page()?, Diagnostics::new()))),
            Self::Question(question) if output.output.is_empty() && !output.json => question.configuration(&DISK),
            _ => Ok(None),
        }
    }

    /// Answers it.
    ///
    /// # Errors
    /// All that is wrong with the question.
    pub fn report(&self, output: &OutputArgs) -> Result<Report, Diagnostics> {
        match self {
            Self::Question(question) => {
                let timeline = output.output.iter().any(|file| shows_a_step(file));
                let working = Working::new();
                let mut report = question.report(&DISK, View { depth: output.depth, timeline })?;
                drop(working);
                if let Some(engine) = question.exports() {
                    write_configuration(&mut report, engine, output)?;
                }
                Ok(report)
            }
            Self::Validate(validate) => {
                let _working = Working::new();
                validate.report()
            }
            Self::Train(train) => train.report(output.force, output.quiet),
            Self::Generate(generate) => generate.report(),
            Self::Checkpoint(checkpoint) => checkpoint.report(),
            Self::Bench(bench) => bench.report(output.force, output.quiet),
            Self::Reconcile(reconcile) => reconcile.report(output.quiet),
            Self::Tokenize(tokenize) => tokenize.report(output.force),
            Self::Inspect(inspect) => inspect.report(),
            // Printed by `main`: scripts and pages are no reports.
            Self::Completions(_) | Self::Man(_) => Ok(Report::new("completions", "")),
        }
    }
}

/// Writes the configuration of an engine that a report has in it.
fn write_configuration(report: &mut Report, engine: &str, output: &OutputArgs) -> Result<(), Diagnostics> {
    let Some(Value::Text(configuration)) = report.result.get("configuration") else { return Ok(()) };
    for file in &output.output {
        save(Path::new(file), configuration, output.force)?;
    }
    let engine = engine.parse::<Engine>().map_or_else(|_| engine.to_owned(), |engine| engine.title().to_owned());
    let note = || phrase!["for ", engine.as_str()];
    let written = output.output.iter().map(|file| KeyValue::new("written", file.as_str()).note(note()));
    report.blocks.extend(written.map(|written| Block::key_values("", [written])).collect::<Vec<_>>());
    Ok(())
}
