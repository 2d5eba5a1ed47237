//! `napkin reconcile MODEL`, `napkin reconcile run.json`, `napkin reconcile MODEL run.json`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::Args;
use plan::model::Model;
use plan::reconcile::{Measured, Request};
use plan::report::Report;
use train::reconcile::{Record, ceilings, measure};
use train::run::{self, Predicted, Settings};
use units::{Diagnostic, Diagnostics};

use super::bench::spinner;
use crate::parse::{Reader, rate};
use crate::step::{LocalStepArgs, check_memory};

/// A prediction held against a step that is really made, gap by gap.
#[derive(Clone, Debug, Args)]
pub struct Reconcile {
    /// A config.json, its folder or a preset; or a record, of the model that it names [default: gpt2]
    pub model: Option<String>,
    /// A run that napkin train --record wrote, instead of steps on random tokens
    pub record: Option<String>,
    /// The step.
    #[command(flatten)]
    pub local: LocalStepArgs,
}

impl Reconcile {
    /// Answers it.
    pub fn report(&self, quiet: bool) -> Result<Report, Diagnostics> {
        match (&self.model, &self.record) {
            (Some(model), Some(record)) => self.recorded(Some(model), record),
            (Some(model), None) if is_record(model) => self.recorded(None, model),
            _ => {
                let pool = self.local.pool()?;
                pool.run(|| self.measured(pool.count(), quiet))
            }
        }
    }

    /// Of a run that was recorded.
    fn recorded(&self, model: Option<&str>, file: &str) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        if self.local.is_given() {
            let problem = Diagnostic::error("", "a recorded run has its own step, threads and peak");
            read.problem(problem.help("leave the flags of the step away, or the record"));
        }
        let record = read.take_all(Record::read(Path::new(file)));
        let model = match (model, &record) {
            (Some(name), _) => self.local.model(&mut read, name),
            (None, Some(record)) => read.take_all(Model::from_text(
                record.model.as_str(),
                &format!("config in {file}"),
                record.config.as_bytes(),
                &[],
                self.local.reading.assume.as_deref(),
            )),
            (None, None) => None,
        };
        let (record, model) = read.finish(record.zip(model))?;
        let predicted = predict(&model, &record.settings)?;
        Ok(report(&model, &record.settings, &predicted, &record.measured))
    }

    /// Of steps that are made now.
    fn measured(&self, threads: usize, quiet: bool) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        let model = self.local.model(&mut read, self.model.as_deref().unwrap_or("gpt2"));
        let (steps, settings) = self.local.read(&mut read, model.as_ref());
        let peak = read.flag_with("--peak", self.local.peak.as_deref(), rate);
        let model = read.finish(model)?;
        let predicted = predict(&model, &settings)?;
        check_memory(predicted.peak_bytes, &model.name)?;

        let spinner = spinner(quiet);
        spinner.set_message("what this machine can do");
        let ceilings = ceilings(threads, settings.training.precision, peak)?;
        spinner.set_message(format!("{} steps of {}", steps + 4, model.name));
        let measured = measure(&model.spec, &settings, &predicted, steps as usize, ceilings);
        spinner.finish_and_clear();
        let measured = measured.map_err(|error| Diagnostic::error("T0704", error.to_string()))?;
        Ok(report(&model, &settings, &predicted, &measured))
    }
}

/// Whether a name is that of a file which is a record.
fn is_record(name: &str) -> bool {
    let mut start = Vec::new();
    let read = File::open(name).and_then(|file| file.take(START).read_to_end(&mut start));
    read.is_ok() && Record::is_one(&start)
}

/// So many bytes tell a record.
const START: u64 = 64;

/// Most micro-batches of a step whose ops are all held against those of a run.
const MOST_MICRO_BATCHES: u64 = 256;

fn predict(model: &Model, settings: &Settings) -> Result<Predicted, Diagnostics> {
    let count = settings.training.grad_accum_steps;
    if count > MOST_MICRO_BATCHES {
        let message = format!("{count} micro-batches are too many: every op of a step is held against the run");
        return Err(Diagnostic::error("", message).help(format!("--grad-accum {MOST_MICRO_BATCHES} at most")).into());
    }
    run::predict_whole(&model.spec, settings).map_err(|error| Diagnostic::error("T0704", error.to_string()).into())
}

fn report(model: &Model, settings: &Settings, predicted: &Predicted, measured: &Measured) -> Report {
    let request = Request {
        parameters: predicted.parameters,
        trace: &predicted.trace,
        model_flop: predicted.model_flop,
        precision: settings.training.precision,
        measured,
    };
    let mut report = request.report();
    report.inputs = settings.inputs(model);
    report.warnings.splice(0..0, model.warnings());
    report
}
