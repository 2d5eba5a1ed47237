//! Whole training steps on random tokens: the program of `napkin train`, without its data and checkpoints.

use super::samples::Samples;
use super::{Numbers, counted};
use crate::probe::memory;
use crate::run::program;
use crate::run::{Predicted, Settings, predict};
use nn::Training;
use plan::model::Model;
use plan::phrase;
use plan::report::{Block, Phrase};
use plan::report::{Cell, KeyValue, Report, Value};
use tensor::arena::Usage;
use tensor::{DType, Device, Runtime, Tensor};
use units::{Bytes, Diagnostic, Diagnostics, FlopPerSecond, Mfu, Seconds, TokensPerSecond};

/// What is measured.
#[derive(Clone, Debug)]
pub struct StepRequest<'a> {
    /// The model.
    pub model: &'a Model,
    /// How it is trained.
    pub settings: Settings,
    /// Threads of the pool it runs in.
    pub threads: usize,
    /// Steps after the first.
    pub steps: usize,
    /// Peak of the threads in the arithmetic of the products, in FLOP/s.
    pub peak: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// Times of the steps; the first makes the optimizer states and touches all memory for the first time.
    pub samples: Samples,
    /// Loss of each step, the first one among them.
    pub losses: Vec<f64>,
    /// Highest bytes allocated in the steps after the first.
    pub peak: Bytes,
    /// What the allocator holds at the end.
    pub held: Usage,
    /// Most bytes of the process in main memory.
    pub peak_resident: Option<Bytes>,
}

impl StepRequest<'_> {
    /// Makes the steps, on the threads of the pool it is called in.
    ///
    /// # Errors
    /// Sizes the model does not allow; memory or threads that the system does not have.
    pub fn run(&self) -> Result<(Steps, Predicted), Diagnostics> {
        let failed = |error: tensor::Error| Diagnostic::error("T0805", error.to_string());
        let predicted = predict(&self.model.spec, &self.settings).map_err(failed)?;
        let steps = self.measure(&predicted).map_err(failed)?;
        Ok((steps, predicted))
    }

    fn measure(&self, predicted: &Predicted) -> tensor::Result<Steps> {
        let settings = &self.settings;
        let runtime = Runtime::with_seed(Device::Cpu, settings.seed);
        runtime.set_recording(false);
        runtime.expect_bytes(predicted.peak_bytes.get());
        let mut training = Training::new(&runtime, &self.model.spec, &settings.training)?;
        // One batch again and again: what it holds matters to no time, and that it is learned shows that all is done.
        let tokens = self.tokens(&runtime, 1)?;
        let targets = self.tokens(&runtime, 2)?;
        let mut losses = Vec::new();
        let mut first = true;
        let samples = Samples::take(0.0, self.steps, self.steps, || {
            let lr = settings.training.hyper.lr;
            let pair = || Ok::<_, tensor::Error>((tokens.clone(), targets.clone()));
            losses.extend(program::step(&mut training, lr, pair, |_| Ok(()))?.loss);
            if std::mem::take(&mut first) {
                runtime.reset_peak();
            }
            Ok::<(), tensor::Error>(())
        })?;
        Ok(Steps {
            samples,
            losses,
            peak: Bytes(runtime.peak_bytes()),
            held: runtime.memory(),
            peak_resident: memory::process().map(|p| p.peak_resident),
        })
    }

    fn tokens(&self, runtime: &Runtime, seed: u64) -> tensor::Result<Tensor> {
        random_tokens(runtime, self.settings.batch, self.settings.seq_len, self.model.spec.vocab_size, seed)
    }

    /// What was measured, against what was predicted.
    pub fn report(&self, steps: &Steps, predicted: &Predicted) -> Report {
        let settings = &self.settings;
        let tokens = settings.tokens_per_step();
        let median = steps.samples.median();
        let speed = TokensPerSecond::new(tokens as f64 / median.get()).unwrap_or(TokensPerSecond::ZERO);
        let rate = predicted.model_flop.as_f64() / median.get();
        let mfu = Mfu::new(rate / self.peak).ok();
        let mut report = Report::new("bench_step", phrase![median, " per step"])
            .qualified(phrase![speed])
            .qualified(phrase!["MFU ", mfu.map(Cell::from)])
            .qualified(phrase![counted(self.threads)]);
        let shown = |rate: f64| FlopPerSecond::new(rate).map_or(Cell::Empty, Cell::Rate);
        let spread = phrase![
            "± ",
            steps.samples.spread(),
            " over ",
            steps.samples.seconds.len() as u64,
            " steps; first ",
            first(steps)
        ];
        let mut rows = vec![
            KeyValue::new("step", median).note(spread),
            KeyValue::new("work", predicted.model_flop).note(phrase!["of the model, causal, ", tokens, " tokens"]),
            KeyValue::new("MFU", mfu.map(Cell::from)).note(phrase![
                shown(rate),
                " of ",
                shown(self.peak),
                self.peak_words()
            ]),
        ];
        if let Some(cpu) = steps.samples.cpu_median() {
            rows.insert(1, KeyValue::new("processor time", cpu).note(phrase!["all threads together"]));
        }
        if let (Some(first), Some(last)) = (steps.losses.first(), steps.losses.last()) {
            rows.push(
                KeyValue::new("loss", Cell::Number { value: *last, decimals: 4 })
                    .note(phrase![format!("from {first:.4}, on one batch of random tokens")]),
            );
        }
        report.blocks.push(Block::key_values("", rows));
        report.blocks.push(Block::key_values("memory", memory_rows(steps, predicted)));
        report.inputs = Value::map().with("model", self.model.inputs());
        report.warnings = self.model.warnings();
        report.warnings.extend(self.model.precision_warning(self.settings.training.precision));
        report.warnings.extend(super::report::disturbed([steps.samples.busy(self.threads)].into_iter().flatten()));
        report.result = self.value(steps, predicted, mfu);
        report
    }

    fn peak_words(&self) -> String {
        format!(", the {} peak", plan::hardware::Precision::of(self.settings.training.precision.matmul_dtype()))
    }

    fn value(&self, steps: &Steps, predicted: &Predicted, mfu: Option<Mfu>) -> Value {
        let settings = &self.settings;
        Value::map()
            .with("engine", "napkin")
            .with("version", env!("CARGO_PKG_VERSION"))
            .with("model", self.model.name.as_str())
            .with("batch", settings.batch)
            .with("seq_len", settings.seq_len)
            .with("grad_accum_steps", settings.training.grad_accum_steps)
            .with("threads", self.threads)
            .with("precision", settings.training.precision.name())
            .with("optimizer", settings.training.optimizer.to_string())
            .with("first_seconds", steps.samples.first)
            .with("seconds", Value::list(steps.samples.seconds.iter().copied()))
            .with("cpu_seconds", Value::list(steps.samples.cpu_seconds.iter().copied()))
            .with("loss", Value::list(steps.losses.iter().copied()))
            .with("peak_rss_bytes", steps.peak_resident)
            .with("allocated_peak_bytes", steps.peak)
            .with("predicted_peak_bytes", predicted.peak_bytes)
            .with("reserved_bytes", steps.held.reserved)
            .with("model_flop_per_step", predicted.model_flop)
            .with("peak_flop_per_second", self.peak)
            .with("mfu", mfu)
    }
}

fn first(steps: &Steps) -> Cell {
    Seconds::new(steps.samples.first).map_or(Cell::Empty, Cell::Seconds)
}

fn memory_rows(steps: &Steps, predicted: &Predicted) -> Vec<KeyValue> {
    let difference = i128::from(steps.peak.get()) - i128::from(predicted.peak_bytes.get());
    let note: Phrase = match difference {
        0 => phrase!["as predicted, to the byte"],
        more => phrase!["predicted ", predicted.peak_bytes, ", ", Cell::BytesChange(more)],
    };
    let mut rows = vec![
        KeyValue::new("allocated, peak", steps.peak).note(note),
        KeyValue::new("reserved", Bytes(steps.held.reserved)).note(phrase!["held by the allocator"]),
    ];
    if let Some(resident) = steps.peak_resident {
        rows.push(
            KeyValue::new("resident, peak", resident).note(phrase!["the whole process, by the operating system"]),
        );
    }
    rows
}

/// Tokens without a pattern, the same ones for the same seed: `b s`.
pub(crate) fn random_tokens(runtime: &Runtime, b: u64, s: u64, vocab_size: u64, seed: u64) -> tensor::Result<Tensor> {
    let mut numbers = Numbers::new(seed);
    let tokens: Vec<f64> = (0..b * s).map(|_| numbers.below(vocab_size) as f64).collect();
    runtime.input(&tokens, &[b, s], DType::I64)
}
