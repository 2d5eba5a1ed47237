//! `napkin train [MODEL] --data text.txt`.

use clap::Args;
use nn::optim::{Hyper, Implementation, OptimizerKind};
use nn::step::Precision;
use nn::{Decay, Profile, Recompute, Schedule, TrainingOptions};
use plan::model::Model;
use plan::phrase;
use plan::report::Report;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tensor::{CastLists, DType};
use train::checkpoint::{self, Checkpoint, Keep, Latest, Store};
use train::data::{BUILTIN_NAME, OpenOptions, Order, Span, TokenFile};
use train::reconcile::{Record, Recorder, Stage, ceilings};
use train::run::{self, Pace, Run, Settings, Start};
use units::{Diagnostic, Diagnostics, FlopPerSecond};

use crate::disk::DISK;
use crate::local::ThreadsArgs;
use crate::local::check_memory;
use crate::output;
use crate::progress::Progress;
use ask::model_args::ConfigArgs;
use ask::parse::{Reader, count, positive, share, share_below_one, some};
use ask::step::word;

/// Trains a model on this machine, metered.
#[derive(Clone, Debug, Args)]
pub struct Train {
    /// A config.json, its folder or a preset [default: a small Llama for the data's vocabulary]
    pub model: Option<String>,
    /// How the config is read
    #[command(flatten)]
    pub config: ConfigArgs,
    /// A token file (napkin tokenize), or a text, whose bytes are then its tokens [default: a text that comes with napkin]
    #[arg(long, value_name = "FILE")]
    pub data: Option<String>,
    /// Type of the ids of a file without a header: u16 or u32
    #[arg(long, value_name = "TYPE")]
    pub ids: Option<String>,
    /// Share of the data at its end that is for validation [default: 0.1]
    #[arg(long, value_name = "SHARE")]
    pub val_fraction: Option<String>,
    /// Optimizer steps [default: 500]
    #[arg(long, value_name = "N")]
    pub steps: Option<String>,
    /// Sequences in a micro-batch [default: 16]
    #[arg(long, visible_alias = "mbs", value_name = "N")]
    pub batch: Option<String>,
    /// Tokens in a sequence [default: the model's own limit, at most 128]
    #[arg(long, value_name = "N")]
    pub seq_len: Option<String>,
    /// Micro-batches per optimizer step [default: 1]
    #[arg(long, value_name = "N")]
    pub grad_accum: Option<String>,
    /// fp32, bf16-master, bf16-master-fp32-grads, bf16-mixed, fp16-mixed, bf16-pure, fp8 [default: fp32]
    #[arg(long, value_name = "RECIPE")]
    pub precision: Option<String>,
    /// Update rule [default: adamw]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// none, selective, full [default: none]
    #[arg(long, value_name = "POLICY")]
    pub recompute: Option<String>,
    /// Only none: kernels are compiled ahead of time
    #[arg(long, value_name = "MODE")]
    pub compile: Option<String>,
    /// Highest learning rate [default: that of the optimizer]
    #[arg(long, value_name = "RATE")]
    pub lr: Option<String>,
    /// constant, linear, cosine, wsd [default: cosine]
    #[arg(long, value_name = "SHAPE")]
    pub schedule: Option<String>,
    /// Steps in which the learning rate rises [default: a tenth of the run, at most 100]
    #[arg(long, value_name = "N")]
    pub warmup: Option<String>,
    /// Learning rate at the last step [default: a tenth of --lr]
    #[arg(long, value_name = "RATE")]
    pub min_lr: Option<String>,
    /// Steps of the decay of wsd [default: a fifth of the run]
    #[arg(long, value_name = "N")]
    pub decay_steps: Option<String>,
    /// Decoupled weight decay of matrices [default: that of the optimizer]
    #[arg(long, value_name = "RATE")]
    pub weight_decay: Option<String>,
    /// Longest gradient norm; 0 clips nothing [default: 1.0]
    #[arg(long, value_name = "NORM")]
    pub clip: Option<String>,
    /// Decay of the running mean of gradients [default: that of the optimizer]
    #[arg(long, value_name = "SHARE")]
    pub beta1: Option<String>,
    /// Decay of the running mean of squares [default: that of the optimizer]
    #[arg(long, value_name = "SHARE")]
    pub beta2: Option<String>,
    /// Round bf16 parameters up or down at random, right in the mean: for bf16-pure
    #[arg(long)]
    pub stochastic_rounding: bool,
    /// Count what rounding takes from every Nth update: vanished updates, decay without effect, means that stand still
    #[arg(long, value_name = "N")]
    pub watch_updates: Option<String>,
    /// Dropout, with the probabilities of the config
    #[arg(long)]
    pub dropout: bool,
    /// Seed of every random stream [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<String>,
    /// random, shuffled, sequential [default: random]
    #[arg(long, value_name = "ORDER")]
    pub order: Option<String>,
    /// Steps between evaluations; 0: at the end [default: 100]
    #[arg(long, value_name = "N")]
    pub eval_every: Option<String>,
    /// Batches of an evaluation [default: 10]
    #[arg(long, value_name = "N")]
    pub eval_batches: Option<String>,
    /// Steps between checkpoints; 0: at the end [default: 250]
    #[arg(long, value_name = "N")]
    pub save_every: Option<String>,
    /// Set the run aside after so many steps, saved; --resume goes on
    #[arg(long, value_name = "N")]
    pub stop_after: Option<String>,
    /// Checkpoints to keep [default: 2, and the best]
    #[arg(long, value_name = "N")]
    pub keep: Option<String>,
    /// Folder for checkpoints [default: runs/MODEL, numbered]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Save nothing
    #[arg(long, conflicts_with_all = ["dir", "resume"])]
    pub no_save: bool,
    /// Go on with the run in this folder; flags that are left out are the run's own
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "dir", "set"])]
    pub resume: Option<PathBuf>,
    /// Begin with the weights of this checkpoint (napkin checkpoint import takes those of transformers)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "resume", "set"])]
    pub from: Option<PathBuf>,
    /// Measure the first steps and write them to this file, for napkin reconcile
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// One JSON object per step, appended to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Seconds between lines where standard error is no terminal [default: 5]
    #[arg(long, value_name = "SECONDS")]
    pub log_every: Option<String>,
    /// Threads
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Peak of this processor instead of a measured one, such as 180GFLOP/s
    #[arg(long, value_name = "RATE")]
    pub peak: Option<String>,
}

/// The model that is trained where none is named: small enough for two minutes on two cores.
const DEFAULT_MODEL: &str = include_str!("../../../../data/train/tiny-llama.json");
/// Its name.
const DEFAULT_NAME: &str = "tiny-llama";

impl Train {
    /// Trains.
    pub fn report(&self, force: bool, quiet: bool) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        if let Some(path) = self.record.as_deref() {
            if path.exists() && !force {
                read.problem(output::exists(path));
            }
            if self.log.as_deref() == Some(path) {
                read.problem(Diagnostic::error("", "--record and --log name the same file").help("--record run.json"));
            }
        }
        let log_every = read.flag_with("--log-every", self.log_every.as_deref(), positive).unwrap_or(5.0);
        read.finish(Some(()))?;
        let threads = self.threads.pool()?;
        threads.run(|| self.train(threads.count() as u64, log_every, force, quiet))
    }

    fn train(&self, threads: u64, log_every: f64, force: bool, quiet: bool) -> Result<Report, Diagnostics> {
        let from = self.resume.as_deref().map(newest).transpose()?;
        let weights = self.from.as_deref().map(checkpoint::at).transpose()?;
        let (train, validation, val_fraction) = self.data(from.as_ref())?;
        let model = self.read_model(from.as_ref().or(weights.as_ref()), train.file())?;
        model.require_language_model("train")?;
        let vocabulary = model.spec.vocab_size;
        let (train, validation) =
            (train.with_vocab_size(vocabulary), validation.map(|span| span.with_vocab_size(vocabulary)));
        let settings = self.settings(&model, from.as_ref(), val_fraction)?;
        let mut read = Reader::new(&DISK);
        let pace = Pace {
            eval_every: read.flag_with("--eval-every", self.eval_every.as_deref(), count).unwrap_or(100),
            eval_batches: read.flag_with("--eval-batches", self.eval_batches.as_deref(), some).unwrap_or(10),
            save_every: read.flag_with("--save-every", self.save_every.as_deref(), count).unwrap_or(250),
            most_steps: read.flag_with("--stop-after", self.stop_after.as_deref(), some),
        };
        let watch_updates = read.flag_with("--watch-updates", self.watch_updates.as_deref(), count).unwrap_or(0);
        let keep = read.flag_with("--keep", self.keep.as_deref(), some).unwrap_or(2);
        let peak = read.flag_with("--peak", self.peak.as_deref(), ask::parse::rate);
        let predicted = run::predict(&model.spec, &settings).map_err(|e| Diagnostic::error("T0704", e.to_string()));
        let predicted = read.take(predicted);
        let (predicted, peak) = read.finish(predicted.map(|predicted| (predicted, peak)))?;

        check_memory(predicted.peak_bytes, self.model.as_deref().unwrap_or("MODEL"))?;
        let precision = settings.training.precision;
        let ceilings = self.record.as_ref().map(|_| ceilings(threads as usize, precision, peak)).transpose()?;
        let peak = peak.or(ceilings.map(|ceilings| ceilings.products)).or_else(|| {
            let measured = train::bench::Peak::measure(threads as usize);
            FlopPerSecond::new(measured.rate_or_fp32(plan::hardware::Precision::of(precision.matmul_dtype()))).ok()
        });
        let recorder = self.record.as_ref().map(|_| Recorder::new(Stage::of_a_run()));
        let dir = self.folder(&model)?;
        let keep = Keep { last: usize::try_from(keep).unwrap_or(usize::MAX), best: true };
        let config = config_text(&model, from.as_ref());
        let start = Start {
            model: &model,
            config: config.clone(),
            settings,
            weights: weights.as_ref(),
            train,
            validation,
            expected: predicted.peak_bytes,
        };
        let mut run = match &from {
            Some(checkpoint) => Run::resume(start, checkpoint)?,
            None => Run::new(start)?,
        };
        run.watch_updates(watch_updates);
        if let Some(recorder) = recorder {
            run.record(recorder);
        }
        // After all that may be refused: nothing is made for a run that cannot be.
        let store = dir.map(|dir| Store::open(&dir, keep)).transpose()?;
        let log = self.log.as_deref().map(|path| train::run::Log::append(path, run.step_number())).transpose()?;
        let mut progress =
            Progress::new(&settings, run.step_number(), predicted.model_flop, peak, log, log_every, quiet);
        progress.begin(&model, &settings, &predicted, store.as_ref().map(Store::dir), threads);
        let stop = stop_flag()?;
        let summary = run::drive(&mut run, pace, store.as_ref(), &mut progress, &stop);
        progress.end()?;
        let summary = summary?;
        let mut report = run::report(&model, &settings, &predicted, peak.map(|peak| (peak, threads)), &summary);
        if let Some((path, ceilings)) = self.record.as_ref().zip(ceilings) {
            let record = Record { model: model.name.clone(), config, settings, measured: run.take_record(ceilings) };
            // The run is made and saved: that its record is not is no reason to say nothing of it.
            match output::save(path, &record.to_text(), force) {
                Ok(()) => report.notes.push(phrase![format!("napkin reconcile {}", path.display())]),
                Err(problem) => {
                    report
                        .warnings
                        .push(Diagnostic::warning("T0723", problem.message).effect("the run is not recorded"));
                }
            }
        }
        Ok(report)
    }

    /// Data for training and for validation.
    fn data(&self, from: Option<&Checkpoint>) -> Result<(Span, Option<Span>, f64), Diagnostics> {
        let mut read = Reader::new(&DISK);
        let dtype = read.flag_with("--ids", self.ids.as_deref(), str::parse);
        let fraction = read.flag_with("--val-fraction", self.val_fraction.as_deref(), share);
        read.finish(Some(()))?;
        let saved = from.map(|c| c.training()).transpose()?;
        let fraction = match (fraction, saved) {
            (Some(fraction), _) => fraction,
            (None, Some(saved)) => saved.settings["val_fraction"].as_f64().unwrap_or(0.1),
            (None, None) => 0.1,
        };
        let named = self.data.clone().or_else(|| saved.map(|s| s.data.file.clone()));
        let options = OpenOptions { dtype, vocab_size: None };
        let file = match named.filter(|name| name != BUILTIN_NAME) {
            Some(path) => TokenFile::open(path, &options),
            None => TokenFile::builtin(&options),
        };
        let file = Arc::new(file.map_err(|e| e.diagnostic())?);
        let (train, validation) = file.split(fraction).map_err(|e| e.diagnostic())?;
        Ok((train, Some(validation).filter(|span| span.len() > 1), fraction))
    }

    fn read_model(&self, from: Option<&Checkpoint>, file: &Arc<TokenFile>) -> Result<Model, Diagnostics> {
        let ids = file.vocabulary().map(|v| v.size);
        let model = match (from, &self.model) {
            (Some(checkpoint), _) => {
                let config = &checkpoint.manifest().config;
                let name = checkpoint.path().display().to_string();
                Model::from_text(name, "config.json", config.as_bytes(), &[], self.config.assume.as_deref())?
            }
            (None, Some(model)) => self.config.load(&Reader::new(&DISK), model)?,
            (None, None) => {
                let vocabulary = ids.unwrap_or(256);
                let mut set = vec![("vocab_size".to_owned(), vocabulary.to_string())];
                let mut read = Reader::new(&DISK);
                let own = self.config.overrides(&mut read);
                set.extend(read.finish(Some(own))?);
                Model::from_text(DEFAULT_NAME, "tiny-llama.json", DEFAULT_MODEL.as_bytes(), &set, None)?
            }
        };
        if let Some(ids) = ids.filter(|&ids| ids > model.spec.vocab_size) {
            let message =
                format!("the data has ids of {ids} tokens, the model a vocabulary of {}", model.spec.vocab_size);
            return Err(Diagnostic::error("T0705", message)
                .why("an id at or above vocab_size has no row in the embedding")
                .help(format!("--set vocab_size={ids}"))
                .help("tokenize the data with the model's own tokenizer: napkin tokenize")
                .into());
        }
        Ok(model)
    }

    fn settings(&self, model: &Model, from: Option<&Checkpoint>, val_fraction: f64) -> Result<Settings, Diagnostics> {
        let saved =
            from.map(|c| Settings::from_json(&c.path().display().to_string(), &c.training()?.settings)).transpose()?;
        let old = saved.as_ref();
        let mut read = Reader::new(&DISK);
        let read_ = &mut read;
        if self.compile.as_deref().is_some_and(|mode| mode != "none") {
            read_.problem(
                Diagnostic::error("", "--compile: only none: there is no compiler of graphs").help("--compile none"),
            );
        }
        let number =
            |read: &mut Reader<'_>, flag: &str, text: &Option<String>| read.flag_with(flag, text.as_deref(), some);
        let rate = |read: &mut Reader<'_>, flag: &str, text: &Option<String>| {
            read.flag_with(flag, text.as_deref(), |text| {
                text.parse::<f64>()
                    .ok()
                    .filter(|x| x.is_finite() && *x >= 0.0)
                    .ok_or_else(|| Diagnostic::error("", format!("`{text}` is no number of at least 0, such as 3e-4")))
            })
        };
        let optimizer = match word::<OptimizerKind>(read_, "--optimizer", self.optimizer.as_deref()) {
            Some(kind) => kind,
            None => old
                .map_or(OptimizerKind { kind: nn::optim::Kind::AdamW, implementation: Implementation::Fused }, |s| {
                    s.training.optimizer
                }),
        };
        let defaults = Hyper::of(optimizer.kind);
        let steps = number(read_, "--steps", &self.steps).or(old.map(|s| s.schedule.steps)).unwrap_or(500);
        let peak = rate(read_, "--lr", &self.lr).or(old.map(|s| s.schedule.peak)).unwrap_or(defaults.lr);
        let schedule = Schedule {
            peak,
            floor: rate(read_, "--min-lr", &self.min_lr).or(old.map(|s| s.schedule.floor)).unwrap_or(peak / 10.0),
            warmup_steps: read_
                .flag_with("--warmup", self.warmup.as_deref(), count)
                .or(old.map(|s| s.schedule.warmup_steps))
                .unwrap_or((steps / 10).min(100)),
            steps,
            decay: word::<Decay>(read_, "--schedule", self.schedule.as_deref())
                .or(old.map(|s| s.schedule.decay))
                .unwrap_or(Decay::Cosine),
            decay_steps: read_
                .flag_with("--decay-steps", self.decay_steps.as_deref(), count)
                .or(old.map(|s| s.schedule.decay_steps))
                .unwrap_or(steps / 5),
        };
        if schedule.decay == Decay::Constant {
            read_.no_effect(&[("--min-lr", self.min_lr.is_some())], "a constant rate does not fall");
        }
        if schedule.decay != Decay::Wsd {
            read_.no_effect(&[("--decay-steps", self.decay_steps.is_some())], "it is of --schedule wsd");
        }
        let weight_decay = rate(read_, "--weight-decay", &self.weight_decay)
            .or(old.map(|s| s.training.hyper.weight_decay))
            .unwrap_or(defaults.weight_decay);
        let clip = match rate(read_, "--clip", &self.clip) {
            Some(0.0) => Some(f64::INFINITY),
            Some(norm) => Some(norm),
            None => old.map_or(Some(1.0), |s| s.training.clip_norm),
        };
        let longest = model.spec.max_positions.unwrap_or(128);
        let mut hyper = Hyper { weight_decay, ..old.map_or(defaults, |s| s.training.hyper) };
        for (flag, text, to) in [("--beta1", &self.beta1, &mut hyper.beta1), ("--beta2", &self.beta2, &mut hyper.beta2)]
        {
            let beta = read_.flag_with(flag, text.as_deref(), |text| {
                let no_decay = || Diagnostic::error("", format!("`{text}` is no decay from 0 up to but not 1"));
                share_below_one(text).map_err(|_| no_decay().help("0.95"))
            });
            *to = beta.unwrap_or(*to);
        }
        let precision = word::<Precision>(read_, "--precision", self.precision.as_deref())
            .or(old.map(|s| s.training.precision))
            .unwrap_or(Precision::Fp32);
        let stochastic_rounding = self.stochastic_rounding || old.is_some_and(|s| s.training.stochastic_rounding);
        if stochastic_rounding && (precision.param_dtype() != DType::BF16 || precision.has_master()) {
            read_.problem(
                Diagnostic::error("", format!("--stochastic-rounding has nothing to round in {precision}"))
                    .why("only parameters that are trained in bf16 themselves lose updates to rounding")
                    .help("--precision bf16-pure"),
            );
        }
        let training = TrainingOptions {
            profile: Profile::Fused,
            precision,
            optimizer,
            hyper,
            recompute: word::<Recompute>(read_, "--recompute", self.recompute.as_deref())
                .or(old.map(|s| s.training.recompute))
                .unwrap_or_default(),
            grad_accum_steps: number(read_, "--grad-accum", &self.grad_accum)
                .or(old.map(|s| s.training.grad_accum_steps))
                .unwrap_or(1),
            autocast: CastLists::Cpu,
            dropout: self.dropout || old.is_some_and(|s| s.training.dropout),
            clip_norm: clip,
            objective: nn::Objective::DEFAULT,
            stochastic_rounding,
        };
        let settings = Settings {
            training,
            schedule,
            batch: number(read_, "--batch", &self.batch).or(old.map(|s| s.batch)).unwrap_or(16),
            seq_len: number(read_, "--seq-len", &self.seq_len).or(old.map(|s| s.seq_len)).unwrap_or(longest.min(128)),
            order: read_.flag::<Order>("--order", self.order.as_deref()).or(old.map(|s| s.order)).unwrap_or_default(),
            seed: read_.flag_with("--seed", self.seed.as_deref(), count).or(old.map(|s| s.seed)).unwrap_or(0),
            val_fraction,
        };
        if let Some(most) = model.spec.max_positions.filter(|most| *most < settings.seq_len) {
            let message = format!("--seq-len {} is longer than the {most} positions of the model", settings.seq_len);
            read.problem(Diagnostic::error("", message).help(format!("--seq-len {most}")));
        }
        read.finish(Some(settings))
    }

    /// Where checkpoints go: a folder without any, so that no run mixes with another.
    fn folder(&self, model: &Model) -> Result<Option<PathBuf>, Diagnostics> {
        if let Some(dir) = &self.resume {
            return Ok(Some(dir.clone()));
        }
        if self.no_save {
            return Ok(None);
        }
        if let Some(dir) = &self.dir {
            if checkpoint::list(dir).is_ok_and(|found| !found.is_empty()) {
                return Err(Diagnostic::error("T0706", format!("`{}` holds the checkpoints of a run", dir.display()))
                    .help(format!("go on with it: napkin train --resume {}", dir.display()))
                    .help("another --dir")
                    .into());
            }
            return Ok(Some(dir.clone()));
        }
        let name = Path::new(&model.name).file_stem().and_then(|s| s.to_str()).unwrap_or("model").to_owned();
        let free = (1..).map(|n| if n == 1 { name.clone() } else { format!("{name}-{n}") });
        Ok(free.map(|name| Path::new("runs").join(name)).find(|dir| !dir.exists()))
    }
}

/// The newest checkpoint of a folder.
fn newest(dir: &Path) -> Result<Checkpoint, Diagnostics> {
    let Latest { checkpoint, skipped } = checkpoint::latest(dir)?;
    if !skipped.is_empty() {
        // Going on from an older one is what the user wants, but not without a word.
        crate::output::problems(&skipped, false);
    }
    checkpoint.ok_or_else(|| {
        Diagnostic::error("T0707", format!("`{}` holds no checkpoint", dir.display()))
            .help("napkin train --dir DIR begins a run there")
            .into()
    })
}

/// The config that a checkpoint keeps.
fn config_text(model: &Model, from: Option<&Checkpoint>) -> String {
    from.map_or_else(|| model.config.clone(), |c| c.manifest().config.clone())
}

/// Set by the first Ctrl-C, which ends the run after its step; the second ends the program.
fn stop_flag() -> Result<Arc<AtomicBool>, Diagnostics> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            // The user does not want to wait. A save in progress leaves the last good checkpoint.
            #[allow(clippy::exit)]
            std::process::exit(130);
        }
    })
    .map_err(|error| Diagnostic::error("", format!("Ctrl-C cannot be caught: {error}")))?;
    Ok(stop)
}
