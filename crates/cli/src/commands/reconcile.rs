//! `napkin reconcile MODEL`, `napkin reconcile run.json`, `napkin reconcile MODEL run.json`, and a snapshot of PyTorch's memory:
//! `napkin reconcile --torch-snapshot snapshot.pickle MODEL`.

use std::path::Path;

use ask::Files;
use ask::commands::snapshot::Snapshot;
use ask::model_args::{ReadingArgs, TuningArgs};
use ask::parse::{Reader, rate};
use clap::Args;
use plan::model::Model;
use plan::reconcile::{Measured, Request};
use plan::report::Report;
use train::reconcile::{Record, ceilings, measure};
use train::run::{self, Predicted, Settings};
use units::{Diagnostic, Diagnostics};

use super::bench::spinner;
use crate::disk::DISK;
use crate::local::{LocalStepArgs, check_memory};

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
    /// What torch.cuda.memory wrote.
    #[command(flatten)]
    pub snapshot: SnapshotArgs,
}

/// A snapshot of PyTorch's memory, instead of steps on this machine.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Snapshot")]
pub struct SnapshotArgs {
    /// A file that `torch.cuda.memory._dump_snapshot` wrote: its live blocks are named by the model's step
    #[arg(long, value_name = "FILE")]
    pub torch_snapshot: Option<String>,
    /// ZeRO stage of that run [default: 0]
    #[arg(long, value_name = "STAGE", requires = "torch_snapshot")]
    pub zero: Option<String>,
    /// Its data-parallel devices [default: 1]
    #[arg(long, value_name = "N", requires = "torch_snapshot")]
    pub dp: Option<String>,
    /// Share of the live bytes without a name from which on the answer is no, such as 0.05
    #[arg(long, value_name = "SHARE", requires = "torch_snapshot")]
    pub tolerance: Option<String>,
}

impl Reconcile {
    /// Answers it.
    pub fn report(&self, quiet: bool) -> Result<Report, Diagnostics> {
        if let Some(file) = &self.snapshot.torch_snapshot {
            return self.explained(file);
        }
        match (&self.model, &self.record) {
            (Some(model), Some(record)) => self.recorded(Some(model), record),
            (Some(model), None) if is_record(model) => self.recorded(None, model),
            _ => {
                let pool = self.local.threads.pool()?;
                pool.run(|| self.measured(pool.count(), quiet))
            }
        }
    }

    /// Of a snapshot that PyTorch wrote.
    fn explained(&self, file: &str) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let elsewhere = "a snapshot was taken on another machine, and nothing is run on this one";
        self.local.none_is_made(&mut read, elsewhere);
        if let Some(record) = &self.record {
            let message = format!("`{record}` and --torch-snapshot are two runs: one is held against its prediction");
            read.problem(Diagnostic::error("", message).help("leave one of them out"));
        }
        let SnapshotArgs { zero, dp, tolerance, .. } = self.snapshot.clone();
        let snapshot = Snapshot {
            file: file.to_owned(),
            model: self.model.clone(),
            reading: self.local.reading.clone(),
            step: self.local.options.clone(),
            zero,
            dp,
            tolerance,
        };
        snapshot.report(read)
    }

    /// Of a run that was recorded.
    fn recorded(&self, model: Option<&str>, file: &str) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let own = "a recorded run has its own step, threads and peak";
        self.local.none_is_made(&mut read, own);
        read.no_effect(&self.local.options.given(), own);
        if model.is_none() {
            let ReadingArgs { config, tuning } = &self.local.reading;
            if !config.set.is_empty() || *tuning != TuningArgs::default() {
                read.problem(Diagnostic::error("", "a record has the config of its run, which is not changed"));
            }
        }
        let record = read.take_all(Record::read(Path::new(file)));
        let model = match (model, &record) {
            (Some(name), _) => self.local.model(&mut read, name),
            (None, Some(record)) => read.take_all(Model::from_text(
                record.model.as_str(),
                &format!("config in {file}"),
                record.config.as_bytes(),
                &[],
                self.local.reading.config.assume.as_deref(),
            )),
            (None, None) => None,
        };
        let (record, model) = read.finish(record.zip(model))?;
        let predicted = predict(&model, &record.settings)?;
        Ok(report(&model, &record.settings, &predicted, &record.measured))
    }

    /// Of steps that are made now.
    fn measured(&self, threads: usize, quiet: bool) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
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
    // A name that is none of a file is that of a preset; standard input is a config.
    name != "-" && DISK.bytes(name, START).is_ok_and(|start| Record::is_one(&start))
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
