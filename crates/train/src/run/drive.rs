//! A run from where it stands to its end.

use super::run::{Run, Skip, StepReport, not_finite};
use super::watch::{Spike, Watch};
use crate::checkpoint::Store;
use nn::optim::Health;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use units::{Bytes, Diagnostics};

/// How often what is done beside training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Steps between evaluations; 0: only at the end.
    pub eval_every: u64,
    /// Batches of an evaluation.
    pub eval_batches: u64,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Steps to make before the run is set aside, saved, though its schedule goes on.
    pub most_steps: Option<u64>,
}

/// What happens during a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step was made.
    Step(&'a StepReport),
    /// Before the step, an update was not made.
    Skipped(u64, &'a Skip),
    /// What rounding took from its update.
    Health(u64, &'a Health),
    /// Something unusual about it.
    Spike(u64, &'a Spike),
    /// Loss on the validation data after a step.
    Validation(u64, f64),
    /// A checkpoint is complete.
    Saved(u64, &'a PathBuf),
}

/// Who is told what happens.
pub trait Observer {
    /// Called as it happens.
    fn see(&mut self, event: Event<'_>);
}

/// A run at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// First step made.
    pub from: u64,
    /// Last step made.
    pub step: u64,
    /// Loss of the first step made.
    pub first_loss: Option<f64>,
    /// Mean loss of the last ten.
    pub last_loss: Option<f64>,
    /// Validation loss before the first and after the last step.
    pub validation: (Option<f64>, Option<f64>),
    /// Tokens of the steps made.
    pub tokens: u64,
    /// Time of the steps, without evaluation and saving.
    pub training: Duration,
    /// Of it, waiting for data.
    pub waiting: Duration,
    /// Time of evaluations.
    pub evaluation: Duration,
    /// Time of checkpoints.
    pub saving: Duration,
    /// Median of the step times but for the first, which makes states and reserves memory.
    pub median_step: Option<Duration>,
    /// Highest bytes allocated in a step but for the first.
    pub peak: Bytes,
    /// Bytes the allocator holds.
    pub reserved: Bytes,
    /// Last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// Makes the steps that are left; `stop` ends it after the step in progress, saving as at the end.
///
/// # Errors
/// Those of a step, an evaluation, a save. What was saved before stays.
pub fn drive(
    run: &mut Run,
    pace: Pace,
    store: Option<&Store>,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Summary, Diagnostics> {
    let mut watch = Watch::default();
    let (mut evaluation, mut saving) = (Duration::ZERO, Duration::ZERO);
    let (mut times, mut losses) = (Vec::new(), Vec::new());
    let (mut training, mut waiting, mut tokens) = (Duration::ZERO, Duration::ZERO, 0);
    let (mut peak, mut reserved) = (Bytes(0), Bytes(0));
    let from = run.step_number();
    let mut evaluate = |run: &mut Run, observer: &mut dyn Observer| {
        let begun = Instant::now();
        let loss = run.evaluate(pace.eval_batches)?;
        evaluation += begun.elapsed();
        if let Some(loss) = loss {
            observer.see(Event::Validation(run.step_number(), loss));
            if !loss.is_finite() {
                // What would be saved now could neither be trained on nor sampled from.
                return Err(not_finite("validation loss after", run.step_number(), loss).into());
            }
        }
        Ok::<_, Diagnostics>(loss)
    };
    let before = evaluate(run, observer)?;
    let mut after = before;
    let (mut evaluated, mut saved) = (from, None);
    let mut checkpoint = None;
    let ends = |run: &Run| {
        let enough = pace.most_steps.is_some_and(|most| run.step_number() - from >= most);
        run.is_done() || enough || stop.load(Ordering::Relaxed)
    };
    while !ends(run) {
        let report = run.step()?;
        for skip in &report.skipped {
            observer.see(Event::Skipped(report.step, skip));
        }
        observer.see(Event::Step(&report));
        if let Some(health) = &report.health {
            observer.see(Event::Health(report.step, health));
        }
        for spike in watch.see(report.loss, report.grad_norm) {
            observer.see(Event::Spike(report.step, &spike));
        }
        training += report.time;
        waiting += report.wait;
        tokens += report.tokens;
        losses.push(report.loss);
        times.push(report.time);
        if times.len() > 1 {
            peak = peak.max(report.peak);
        }
        reserved = report.reserved;
        let due = |every: u64| every > 0 && report.step.is_multiple_of(every);
        let last = ends(run);
        if last || due(pace.eval_every) {
            after = evaluate(run, observer)?;
            evaluated = report.step;
        }
        if let Some(store) = store.filter(|_| last || due(pace.save_every)) {
            let begun = Instant::now();
            let current = (evaluated == report.step).then_some(after).flatten();
            let path = store.save(&run.snapshot(current))?.path;
            saving += begun.elapsed();
            saved = Some(report.step);
            observer.see(Event::Saved(report.step, &path));
            checkpoint = Some(path);
        }
    }
    // The stop came between the last look at it and here.
    if let Some(store) = store.filter(|_| run.step_number() > from && saved != Some(run.step_number())) {
        checkpoint = Some(store.save(&run.snapshot(None))?.path);
    }
    let mut steady: Vec<Duration> = times.iter().skip(1).copied().collect();
    steady.sort();
    let tail = &losses[losses.len().saturating_sub(10)..];
    Ok(Summary {
        from: from + 1,
        step: run.step_number(),
        first_loss: losses.first().copied(),
        last_loss: (!tail.is_empty()).then(|| tail.iter().sum::<f64>() / tail.len() as f64),
        validation: (before, after),
        tokens,
        training,
        waiting,
        evaluation,
        saving,
        median_step: steady.get(steady.len() / 2).copied(),
        peak,
        reserved,
        checkpoint,
        stopped: !run.is_done(),
    })
}
