//! A run: a model in training, its data, and where it stands.

use super::program::{self, Pair, parameter_count};
use super::settings::Settings;
use crate::checkpoint::{
    Checkpoint, DataPosition, Fields, Manifest, NamedTensor, OptimizerSettings, RandomState, Snapshot,
    Training as Saved, exact, model_tensors,
};
use crate::data::{Batch, Loader, Order, Prefetch, Sampler, Span};
use crate::reconcile::Recorder;
use nn::Training;
use nn::optim::Health;
use nn::scaler::{LossScaler, ScalerState};
use plan::model::Model;
use plan::reconcile::{Ceilings, Measured};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tensor::rng::Stream;
use tensor::{Device, Runtime};
use units::{Bytes, Diagnostic, Diagnostics};

/// What one optimizer step did and took.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Which step, from 1.
    pub step: u64,
    /// Mean loss over its tokens, before the update.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: Option<f64>,
    /// Updates that were not made before this one, because the loss scale was too large.
    pub skipped: Vec<Skip>,
    /// What rounding took from the update, where it was looked at.
    pub health: Option<Health>,
    /// Tokens of this step, and of those that were skipped.
    pub tokens: u64,
    /// Time from the first micro-batch to the end of the update.
    pub time: Duration,
    /// Of it, waiting for data.
    pub wait: Duration,
    /// Bytes allocated after the step.
    pub live: Bytes,
    /// Highest bytes allocated during the step.
    pub peak: Bytes,
    /// Bytes the allocator holds from the system.
    pub reserved: Bytes,
}

/// An update that was not made.
#[derive(Clone, Debug, PartialEq)]
pub struct Skip {
    /// The parameter whose gradient was the first not to be finite.
    pub parameter: String,
    /// The loss scale from then on.
    pub scale: f64,
}

/// A model in training on this machine.
pub struct Run {
    config: String,
    family: String,
    settings: Settings,
    runtime: Runtime,
    training: Training,
    feed: Prefetch,
    train: Span,
    validation: Option<Span>,
    loader: Loader,
    /// Updates made: what the schedule follows.
    step: u64,
    /// Batches whose update was skipped.
    skipped: u64,
    /// Steps between looks at what rounding takes from updates; 0: none.
    watch_every: u64,
    recorder: Option<Recorder>,
}

/// How to begin.
pub struct Start<'a> {
    /// The model.
    pub model: &'a Model,
    /// Text of its config, with all that the command line changed: what a checkpoint keeps.
    pub config: String,
    /// What decides the numbers.
    pub settings: Settings,
    /// Weights to begin with instead of random ones.
    pub weights: Option<&'a Checkpoint>,
    /// Data for training.
    pub train: Span,
    /// Data for validation, if there is enough.
    pub validation: Option<Span>,
    /// Peak of a step as predicted: asked for in one piece, so that no room is lost between pieces.
    pub expected: Bytes,
}

impl Run {
    /// A run before its first step.
    ///
    /// # Errors
    /// Sizes the model does not allow; data with fewer tokens than a sequence.
    pub fn new(start: Start<'_>) -> Result<Self, Diagnostics> {
        let Start { model, config, settings, weights, train, validation, expected } = start;
        let runtime = Runtime::with_seed(Device::Cpu, settings.seed);
        runtime.set_recording(false);
        runtime.expect_bytes(expected.get());
        let training = Training::new(&runtime, &model.spec, &settings.training).map_err(refused)?;
        if let Some(weights) = weights {
            weights.load_weights(&model_tensors(training.model()))?;
        }
        let sampler = sampler(&train, settings.order, &settings)?;
        let loader = Loader::new(train.clone(), sampler);
        let feed = feed(&loader, &settings, 0)?;
        let family = model.spec.family.clone();
        Ok(Self {
            config,
            family,
            settings,
            runtime,
            training,
            feed,
            train,
            validation,
            loader,
            step: 0,
            skipped: 0,
            watch_every: 0,
            recorder: None,
        })
    }

    /// The run that a checkpoint was saved from, as it then was.
    ///
    /// # Errors
    /// Everything in which the checkpoint and the run differ.
    pub fn resume(start: Start<'_>, from: &Checkpoint) -> Result<Self, Diagnostics> {
        let mut run = Self::new(start)?;
        run.restore(from)?;
        Ok(run)
    }

    fn restore(&mut self, from: &Checkpoint) -> Result<(), Diagnostics> {
        let saved = from.training()?;
        let mut problems = Diagnostics::new();
        match Settings::from_json(&from.path().display().to_string(), &saved.settings) {
            Ok(settings) => problems.extend(self.settings.differences(&settings)),
            Err(more) => problems.extend(more),
        }
        problems.extend(self.other_data(&saved.data));
        if problems.has_errors() {
            return Err(problems);
        }
        self.training.prepare().map_err(refused)?;
        from.load_model(&model_tensors(self.training.model()))?;
        from.load_optimizer(&self.state_tensors())?;
        self.training.restore_steps(saved.step);
        for state in &saved.random {
            if state.stream == DROPOUT {
                self.runtime.set_random_site(state.next_site);
            }
        }
        self.step = saved.step;
        if let Some(scaler) = self.training.scaler_mut() {
            let state = scaler_state(&from.path().display().to_string(), &saved.scaler)?;
            self.skipped = state.skipped;
            scaler.restore(state);
        }
        self.feed = feed(&self.loader, &self.settings, self.step + self.skipped)?;
        Ok(())
    }

    /// What tells this run's data from that of the checkpoint.
    fn other_data(&self, saved: &DataPosition) -> Option<Diagnostic> {
        let own = self.data_position();
        (own.hash != saved.hash || own.tokens != saved.tokens).then(|| {
            let message = format!(
                "the data is not what the run was begun with: {} tokens of `{}` (hash {}) then, {} of `{}` (hash {}) now",
                saved.tokens, saved.file, saved.hash, own.tokens, own.file, own.hash
            );
            Diagnostic::error("T0702", message).help(format!("--data {}", saved.file)).help("begin another run: --dir")
        })
    }

    /// Steps made so far.
    pub fn step_number(&self) -> u64 {
        self.step
    }

    /// Whether all steps of the schedule are made.
    pub fn is_done(&self) -> bool {
        self.step >= self.settings.schedule.steps
    }

    /// What decides its numbers.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The model in training.
    pub fn training(&self) -> &Training {
        &self.training
    }

    /// The program it runs in.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Looks at what rounding takes from every so manieth update; 0: from none.
    pub fn watch_updates(&mut self, every: u64) {
        self.watch_every = every;
    }

    /// Measures the coming steps with a recorder that was made before this run.
    pub fn record(&mut self, mut recorder: Recorder) {
        recorder.built(&self.runtime, parameter_count(&self.training));
        self.recorder = Some(recorder);
    }

    /// Ends the recording: what was measured, beside what the machine can do at most. Nothing without a recorder.
    pub fn take_record(&mut self, ceilings: Ceilings) -> Measured {
        let recorder = self.recorder.take();
        recorder.map(|recorder| recorder.finish(&self.runtime, Some(ceilings))).unwrap_or_default()
    }

    /// Makes one optimizer step. Where the gradients of a batch are not finite because the loss scale is too large, the
    /// next batch takes its place, under a smaller one.
    ///
    /// # Errors
    /// `T0703` for a loss that is no number, `T0709` for gradients that are not: parameters and states are those before
    /// the step. Data that cannot be read.
    pub fn step(&mut self) -> Result<StepReport, Diagnostics> {
        let (step, begun) = (self.step + 1, Instant::now());
        let lr = self.settings.schedule.lr(step);
        let mut wait = Duration::ZERO;
        self.runtime.reset_peak();
        if let Some(recorder) = &mut self.recorder {
            recorder.begin(&self.runtime);
        }
        let (feed, runtime) = (&mut self.feed, &self.runtime);
        let mut next = || -> Result<Pair, Problem> {
            let fetched = feed.next_batch()?;
            wait += fetched.waited;
            Ok(fetched.batch.inputs_and_targets(runtime)?)
        };
        let check =
            |loss: f64| if loss.is_finite() { Ok(()) } else { Err(Problem(not_finite("loss of", step, loss).into())) };
        let watched = self.watch_every > 0 && step.is_multiple_of(self.watch_every);
        self.training.optimizer_mut().watch(watched);
        let mut skipped = Vec::new();
        let done = loop {
            let done = program::step(&mut self.training, lr, &mut next, check).map_err(|problem| {
                // What the failed forward pass left behind must not meet a later backward pass.
                self.runtime.clear_tape();
                problem.0
            })?;
            let Some(skip) = done.skipped else { break done };
            self.skipped += 1;
            if skip.why == nn::scaler::Skip::Disaster {
                return Err(gradient_not_finite(step, &skip.parameter).into());
            }
            let scale = self.training.scaler().map_or(1.0, LossScaler::scale);
            skipped.push(Skip { parameter: skip.parameter, scale });
        };
        self.step = step;
        let time = begun.elapsed();
        if let Some(recorder) = &mut self.recorder {
            recorder.end(&self.runtime, time, wait, skipped.is_empty());
        }
        Ok(StepReport {
            step,
            loss: done.loss.unwrap_or(f64::NAN),
            lr,
            grad_norm: done.grad_norm,
            tokens: self.settings.tokens_per_step().saturating_mul(1 + skipped.len() as u64),
            skipped,
            health: self.training.optimizer().health().cloned(),
            time,
            wait,
            live: Bytes(self.runtime.live_bytes()),
            peak: Bytes(self.runtime.peak_bytes()),
            reserved: Bytes(self.runtime.reserved_bytes()),
        })
    }

    /// Mean loss over up to `batches` batches of the validation data, the same ones every time; `None` without any.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub fn evaluate(&mut self, batches: u64) -> Result<Option<f64>, Diagnostics> {
        let Some(span) = &self.validation else { return Ok(None) };
        let sampler = sampler(span, Order::Sequential, &self.settings)?;
        // One pass at most: what is seen twice tells nothing new.
        let all = sampler.windows().div_ceil(self.settings.batch).max(1);
        let loader = Loader::new(span.clone(), sampler);
        let mut sum = 0.0;
        let count = batches.clamp(1, all);
        for i in 0..count {
            let batch: Batch = loader.batch(i).map_err(Problem::from)?;
            let pair = batch.inputs_and_targets(&self.runtime).map_err(refused)?;
            sum += program::evaluate(&self.training, pair).map_err(refused)?.unwrap_or(f64::NAN);
        }
        Ok(Some(sum / count as f64))
    }

    /// All that a checkpoint holds.
    pub fn snapshot(&self, validation_loss: Option<f64>) -> Snapshot {
        let (s, t) = (&self.settings, &self.settings.training);
        let rng = self.runtime.rng();
        let json = s.to_json();
        let training = Saved {
            step: self.step,
            tokens: self.step.saturating_add(self.skipped).saturating_mul(s.tokens_per_step()),
            validation_loss,
            schedule: json["schedule"].clone(),
            optimizer: OptimizerSettings {
                kind: t.optimizer.to_string(),
                hyper: json["hyper"].clone(),
                scalars: json!({ "steps": self.training.optimizer().steps(), "lr": exact(s.schedule.lr(self.step.max(1))) }),
            },
            settings: json,
            scaler: self.training.scaler().map_or(Value::Null, |scaler| scaler_json(&scaler.state())),
            random: vec![RandomState {
                stream: DROPOUT.into(),
                seed: rng.for_stream(Stream::Dropout).seed(),
                next_site: self.runtime.random_site(),
            }],
            data: self.data_position(),
        };
        let manifest = Manifest { family: self.family.clone(), config: self.config.clone(), training: Some(training) };
        Snapshot { manifest, model: model_tensors(self.training.model()), optimizer: self.state_tensors() }
    }

    fn state_tensors(&self) -> Vec<NamedTensor> {
        let states = self.training.state_tensors();
        states.iter().map(|(param, slot, tensor)| NamedTensor::slot(param, slot, tensor)).collect()
    }

    fn data_position(&self) -> DataPosition {
        let file = self.train.file();
        let batches = (self.step + self.skipped) * self.settings.training.grad_accum_steps;
        let position = self.loader.sampler().position(batches);
        DataPosition {
            file: file.path().display().to_string(),
            tokens: file.len(),
            hash: format!("{:08x}", file.fingerprint()),
            tokenizer: file.vocabulary().map(|v| v.tokenizer.clone()).unwrap_or_default(),
            epoch: self.loader.sampler().epochs(position.next_sample) as u64,
            sampler: position.to_json(),
        }
    }
}

/// Name of the stream of dropout masks in checkpoints.
const DROPOUT: &str = "dropout";

/// Windows of a sequence and the token after it.
fn sampler(data: &Span, order: Order, s: &Settings) -> Result<Sampler, Diagnostics> {
    Sampler::new(data, order, s.seq_len + 1, s.batch, s.seed).map_err(|error| Problem::from(error).0)
}

/// Batches from optimizer step `step` on.
fn feed(loader: &Loader, s: &Settings, step: u64) -> Result<Prefetch, Diagnostics> {
    Prefetch::new(loader.clone(), step * s.training.grad_accum_steps).map_err(|error| Problem::from(error).0)
}

/// `what` is such as "loss of".
pub(super) fn not_finite(what: &str, step: u64, loss: f64) -> Diagnostic {
    Diagnostic::error("T0703", format!("the {what} step {step} is {loss}"))
        .why("parameters, gradients or activations have left the range of their type; nothing was updated or saved since")
        .help("a lower learning rate (--lr), warmup (--warmup), clipping (--clip 1.0)")
        .help("--precision fp32 tells whether the number format is the cause")
        .help("--resume goes on from the last checkpoint")
}

fn gradient_not_finite(step: u64, parameter: &str) -> Diagnostic {
    Diagnostic::error("T0709", format!("step {step}: the gradient of `{parameter}` is not finite"))
        .why("of the gradients that are not, it is the nearest to the loss; nothing was updated or saved since")
        .help("a lower learning rate (--lr), warmup (--warmup)")
        .help("--precision fp32 or bf16-mixed tells whether the number format is the cause")
        .help("--resume goes on from the last checkpoint")
}

/// What a loss scaler has come to, for a manifest.
fn scaler_json(s: &ScalerState) -> Value {
    json!({
        "scale": exact(s.scale), "good_steps": s.good_steps, "skips": s.skips, "found": s.found, "skipped": s.skipped,
    })
}

fn scaler_state(file: &str, value: &Value) -> Result<ScalerState, Diagnostics> {
    let mut f = Fields::new(file, value);
    let state = ScalerState {
        scale: f.float("scale"),
        good_steps: f.count("good_steps"),
        skips: f.count("skips"),
        found: f.flag("found"),
        skipped: f.count("skipped"),
    };
    f.finish()?;
    Ok(state)
}

/// An error of a step on its way out.
struct Problem(Diagnostics);

impl From<tensor::Error> for Problem {
    fn from(error: tensor::Error) -> Self {
        Self(refused(error))
    }
}

impl From<crate::data::DataError> for Problem {
    fn from(error: crate::data::DataError) -> Self {
        Self(error.diagnostic().into())
    }
}

impl From<Problem> for Diagnostics {
    fn from(problem: Problem) -> Self {
        problem.0
    }
}

fn refused(error: tensor::Error) -> Diagnostics {
    Diagnostic::error("T0704", error.to_string()).into()
}
