//! Work as it goes on, on standard error: a bar on a terminal; of training, plain lines elsewhere.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plan::model::Model;
use plan::report::Cell;
use render::{Units, cell};
use train::run::{Event, Log, Observer, Predicted, Settings, StepReport};
use units::{Bytes, Diagnostics, FlopPerSecond, Flops, TokensPerSecond};

/// Losses that the sparkline shows.
const SPARKS: usize = 24;
/// Fillings of one column of the bar, full to empty.
const BAR: &str = "█▉▊▋▌▍▎▏ ";
/// Heights of the sparkline.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How long an answer may take before anything is shown.
const NOTICED: Duration = Duration::from_secs(1);
/// How often what is shown changes.
const TICK: Duration = Duration::from_millis(100);

/// Shows a run, and writes its log.
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    quiet: bool,
    steps: u64,
    model_flop: Flops,
    peak: Option<FlopPerSecond>,
    log: Option<Log>,
    failed: Option<Diagnostics>,
    every: Duration,
    last_line: Option<Instant>,
    losses: VecDeque<f64>,
    best_peak: Bytes,
}

impl Progress {
    /// For a run that stands at `step`.
    pub fn new(
        settings: &Settings,
        step: u64,
        model_flop: Flops,
        peak: Option<FlopPerSecond>,
        log: Option<Log>,
        every: f64,
        quiet: bool,
    ) -> Self {
        let bar = ProgressBar::with_draw_target(Some(settings.schedule.steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("step {pos}/{len} {bar:10} {percent:>3} %  {msg}  eta {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars(BAR));
        bar.set_position(step);
        bar.reset_eta();
        Self {
            terminal: !bar.is_hidden(),
            bar,
            quiet,
            steps: settings.schedule.steps,
            model_flop,
            peak,
            log,
            failed: None,
            // Longer than can be counted is never.
            every: Duration::try_from_secs_f64(every).unwrap_or(Duration::MAX),
            last_line: None,
            losses: VecDeque::new(),
            best_peak: Bytes(0),
        }
    }

    /// Says what is about to be trained.
    pub fn begin(&self, model: &Model, settings: &Settings, predicted: &Predicted, dir: Option<&Path>, threads: u64) {
        let to = dir.map_or_else(|| "nowhere".to_owned(), |dir| dir.display().to_string());
        self.say(&format!(
            "{}: {} steps of {} tokens, {}, {}, {threads} threads; predicted peak {}; checkpoints to {to}",
            model.name,
            settings.schedule.steps,
            settings.tokens_per_step(),
            settings.training.precision,
            settings.training.optimizer,
            shown(predicted.peak_bytes),
        ));
    }

    /// Takes the bar away.
    ///
    /// # Errors
    /// The log could not be written.
    pub fn end(&mut self) -> Result<(), Diagnostics> {
        self.bar.finish_and_clear();
        self.failed.take().map_or(Ok(()), Err)
    }

    fn say(&self, line: &str) {
        if self.quiet {
            return;
        }
        if self.terminal { self.bar.println(line) } else { crate::output::remark(line) }
    }

    fn keep(&mut self, result: Result<(), Diagnostics>) {
        if let Err(problems) = result {
            // Training goes on: the log is not worth the run. It is said at the end.
            self.failed.get_or_insert(problems);
            self.log = None;
        }
    }

    fn step(&mut self, report: &StepReport) {
        let seconds = report.time.as_secs_f64().max(1e-9);
        let mfu = self.peak.map(|peak| self.model_flop.as_f64() / seconds / peak.get());
        if let Some(log) = &mut self.log {
            let written = log.step(report, self.model_flop.0, mfu);
            self.keep(written);
        }
        if self.losses.len() == SPARKS {
            self.losses.pop_front();
        }
        self.losses.push_back(report.loss);
        // The first step makes the states: its peak is not that of the run.
        if report.step > 1 {
            self.best_peak = self.best_peak.max(report.peak);
        }
        let state = format!(
            "{}{}  mem {} (peak {})",
            shown(TokensPerSecond::new(report.tokens as f64 / seconds).unwrap_or(TokensPerSecond::ZERO)),
            mfu.map(|mfu| format!("  MFU {:.1} %", mfu * 100.0)).unwrap_or_default(),
            shown(report.live),
            shown(self.best_peak.max(report.peak)),
        );
        if self.terminal && !self.quiet {
            self.bar.set_message(format!("loss {:.3} {}  {state}", report.loss, sparkline(&self.losses)));
            self.bar.set_position(report.step);
        } else if self.last_line.is_none_or(|at| at.elapsed() >= self.every) || report.step == self.steps {
            self.last_line = Some(Instant::now());
            let norm = report.grad_norm.map(|norm| format!("  norm {norm:.3}")).unwrap_or_default();
            let lr = report.lr;
            self.say(&format!(
                "step {}/{}  loss {:.4}  lr {lr:.2e}{norm}  {state}",
                report.step, self.steps, report.loss
            ));
        }
    }
}

impl Observer for Progress {
    fn see(&mut self, event: Event<'_>) {
        match event {
            Event::Step(report) => self.step(report),
            Event::Health(step, health) => {
                self.say(&format!("step {step}: {health}"));
                for warning in health.warnings() {
                    let why = warning.why.map(|why| format!(": {why}")).unwrap_or_default();
                    self.say(&format!("step {step}: {}{why}", warning.message));
                }
            }
            Event::Skipped(step, skip) => self.say(&format!(
                "step {step}: a batch skipped: the gradient of {} is not finite; loss scale now {}",
                skip.parameter, skip.scale
            )),
            Event::Spike(step, spike) => self.say(&format!("step {step}: {spike}")),
            Event::Validation(step, loss) => {
                if let Some(log) = &mut self.log {
                    let written = log.validation(step, loss);
                    self.keep(written);
                }
                self.say(&format!("step {step}: validation loss {loss:.4}, perplexity {:.2}", loss.exp()));
            }
            Event::Saved(step, path) => self.say(&format!("step {step}: saved {}", path.display())),
        }
    }
}

/// Shows that an answer takes its time, and how far it is where that is known: on a terminal, from the second second on. It goes
/// when it is dropped.
pub struct Working {
    over: Option<Sender<()>>,
    shown: Option<JoinHandle<()>>,
}

impl Working {
    /// An answer is begun.
    pub fn new() -> Self {
        let (over, waits) = mpsc::channel();
        let shown = std::thread::spawn(move || {
            if waits.recv_timeout(NOTICED) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let plain =
                |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(plain("{elapsed}"));
            let mut counts = false;
            while waits.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if let Some(progress) = plan::progress::now() {
                    if !counts {
                        bar.set_style(plain("{bar:10} {pos} of {len} {msg}  {elapsed}").progress_chars(BAR));
                        counts = true;
                    }
                    bar.set_message(progress.what);
                    bar.set_length(progress.all);
                    bar.set_position(progress.done);
                }
                bar.tick();
            }
            bar.finish_and_clear();
        });
        Self { over: Some(over), shown: Some(shown) }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // The thread ends when nobody is left who could tell it more.
        self.over.take();
        if let Some(shown) = self.shown.take() {
            // What it panicked with has been said by the hook.
            let _ = shown.join();
        }
    }
}

/// How far long work on bytes is: a bar on a terminal, nothing elsewhere. It goes when it is dropped.
pub struct Meter(ProgressBar);

impl Meter {
    /// Nothing is done yet.
    pub fn new(what: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix} {bar:10} {percent:>3} %  {bytes_per_sec}  eta {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars(BAR));
        bar.set_prefix(what.to_owned());
        Self(bar)
    }

    /// Says how many bytes of how many are done.
    pub fn show(&self, done: u64, of: u64) {
        self.0.set_length(of);
        self.0.set_position(done);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A quantity as text.
fn shown(quantity: impl Into<Cell>) -> String {
    cell(&quantity.into(), Units::Iec)
}

/// Losses as heights between their lowest and highest.
fn sparkline(losses: &VecDeque<f64>) -> String {
    let low = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let high = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let height = |loss: &f64| {
        let part = if high > low { (loss - low) / (high - low) } else { 0.0 };
        HEIGHTS[((part * 7.0).round() as usize).min(7)]
    };
    losses.iter().map(height).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparks_go_from_the_lowest_to_the_highest() {
        assert_eq!(sparkline(&VecDeque::from([3.0, 2.0, 1.0])), "█▅▁");
        assert_eq!(sparkline(&VecDeque::from([2.0])), "▁");
        assert_eq!(sparkline(&VecDeque::new()), "");
    }
}
