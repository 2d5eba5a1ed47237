//! A model in training: parameters, optimizer, precision, and the parts of a step in their order.
//!
//! On the meta device this is the program that [`crate::step`] traces; on a device with data the same program trains.

use crate::context::{Forward, Profile, Recompute};
use crate::fp8::{DelayedScaling, Fp8};
pub use crate::loss::Labels;
use crate::loss::{loss, positions};
use crate::model::Model;
use crate::objective::{HeadLoss, Objective, REFERENCE, Reference, preference_loss};
use crate::optim::{GradNorm, Hyper, Optimizer, OptimizerKind};
use crate::param::Param;
use crate::scaler::{LossScaler, ScalerOptions, Skip};
use crate::spec::{ModelSpec, Pattern, Stage, Tuning};
use crate::step::Precision;
use tensor::{Accumulate, CastLists, Combine, DType, Phase, Result, Runtime, Tensor};

/// How a model is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingOptions {
    /// Implementation.
    pub profile: Profile,
    /// dtypes.
    pub precision: Precision,
    /// Update rule.
    pub optimizer: OptimizerKind,
    /// Rates and decays of the update rule.
    pub hyper: Hyper,
    /// Recompute policy.
    pub recompute: Recompute,
    /// Micro-batches per optimizer step.
    pub grad_accum_steps: u64,
    /// Whose autocast lists decide under mixed precision in the `hf` profiles.
    pub autocast: CastLists,
    /// Whether dropout is on; the probabilities are the model's.
    pub dropout: bool,
    /// Longest gradient norm; infinity clips nothing but has the norm looked at. `None`: it is not even computed, but
    /// where losses are scaled.
    pub clip_norm: Option<f64>,
    /// What is minimised.
    pub objective: Objective,
    /// Whether bf16 parameters without master copies are rounded up or down at random, right in the mean.
    pub stochastic_rounding: bool,
}

/// What an update came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Updated {
    /// Norm of all gradients together before clipping, where the options have it looked at; none on the meta device.
    pub grad_norm: Option<f64>,
    /// Set if gradients were not finite: then nothing was updated.
    pub skipped: Option<Skipped>,
}

/// An update that was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The parameter whose gradient was the first in backward not to be finite.
    pub parameter: String,
    /// Whether a smaller loss scale is the remedy.
    pub why: Skip,
}

/// A model with what trains it.
pub struct Training {
    runtime: Runtime,
    model: Model,
    /// The frozen copy that preferences are held against.
    reference: Option<Model>,
    optimizer: Optimizer,
    options: TrainingOptions,
    scaler: Option<LossScaler>,
    fp8: Option<Fp8>,
    /// Optimizer steps begun, from 1.
    step: u64,
    /// Micro-batches of this step that were begun.
    micro: u64,
}

impl Training {
    /// Builds the model; optimizer states are made at the first update, or by [`Training::prepare`].
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn new(runtime: &Runtime, spec: &ModelSpec, options: &TrainingOptions) -> Result<Self> {
        if options.profile.is_hf() {
            runtime.set_accumulate(Accumulate::OutOfPlace);
            runtime.set_overwrite_saved(false);
            runtime.set_early_stop(true);
        }
        check_ranks(spec, options)?;
        runtime.begin("init", Phase::Init);
        let precision = options.precision;
        let model = Model::build_frozen(runtime, spec, precision.param_dtype(), precision.frozen_dtype(&spec.tuning))?;
        let reference = match options.objective.preference {
            Some(Reference::Model) => Some(reference(runtime, spec, precision)?),
            _ => None,
        };
        let mut optimizer = Optimizer::new(options.optimizer, options.hyper, precision.has_master());
        optimizer.set_stochastic_rounding(options.stochastic_rounding);
        let scaler = (precision == Precision::Fp16Mixed).then(|| LossScaler::new(ScalerOptions::default()));
        let fp8 = (precision == Precision::Fp8).then(|| Fp8::new(runtime, model.params(), DelayedScaling::default()));
        let fp8 = fp8.transpose()?;
        let options = *options;
        let training =
            Self { runtime: runtime.clone(), model, reference, optimizer, options, scaler, fp8, step: 1, micro: 0 };
        if training.wide_grads() {
            for param in training.model.params().iter().filter(|p| p.trainable) {
                let _scope = runtime.root_scope(path_of(param));
                let zeros = runtime.no_grad(|| runtime.zeros(param.tensor.shape(), precision.grad_dtype()))?;
                param.tensor.set_grad(Some(zeros));
            }
        }
        Ok(training)
    }

    /// Makes the optimizer states now.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn prepare(&mut self) -> Result<()> {
        self.optimizer.prepare(self.model.params())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The optimizer, to restore its states.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// The loss scaler of `fp16-mixed`.
    pub fn scaler(&self) -> Option<&LossScaler> {
        self.scaler.as_ref()
    }

    /// The loss scaler, to restore its state.
    pub fn scaler_mut(&mut self) -> Option<&mut LossScaler> {
        self.scaler.as_mut()
    }

    /// All that training changes beside the parameters and the loss scaler, to be saved and restored in place: whose state
    /// it is, its name, the tensor. Optimizer states are there once they are made.
    pub fn state_tensors(&self) -> Vec<(String, &'static str, Tensor)> {
        let fp8 = self.fp8.iter().flat_map(Fp8::state_tensors);
        let mut all = self.optimizer.state_tensors(self.model.params());
        all.extend(fp8.map(|(name, tensor)| ("fp8".to_owned(), name, tensor)));
        all
    }

    /// Goes on as after `steps` updates, of which parameters and states have been restored.
    pub fn restore_steps(&mut self, steps: u64) {
        self.optimizer.set_steps(steps);
        self.step = steps + 1;
    }

    /// How it is trained.
    pub fn options(&self) -> &TrainingOptions {
        &self.options
    }

    /// Gradients live in buffers of their own dtype, which are set to zero, not freed.
    fn wide_grads(&self) -> bool {
        self.options.precision.grad_dtype() != self.options.precision.param_dtype()
    }

    fn begin(&self, part: &str, phase: Phase) {
        let step = self.step;
        match (phase, self.options.grad_accum_steps) {
            (Phase::Forward | Phase::Backward, 2..) => {
                self.runtime.begin(&format!("{part}{step}.{}", self.micro), phase);
            }
            _ => self.runtime.begin(&format!("{part}{step}"), phase),
        }
    }

    /// Loss of a micro-batch, with its history on the tape.
    ///
    /// `tokens` is what the first stack reads: of a model with an encoder, the tokens or numbers the encoder reads, and the
    /// decoder reads the labels shifted by one.
    ///
    /// # Shapes
    /// tokens `b s` (integers) or numbers `b n width`, labels `b s`, or `b` of classes -> scalar
    ///
    /// # Errors
    /// If the sequence is longer than the model's learned positions, or a token is not in its vocabulary.
    pub fn forward(&mut self, tokens: &Tensor, labels: Labels<'_>) -> Result<Tensor> {
        self.micro += 1;
        self.begin("fwd", Phase::Forward);
        self.loss(tokens, labels, self.options.dropout)
    }

    /// The stream behind a stage of a pipeline, or the loss where it is the last, with its history on the tape.
    ///
    /// # Shapes
    /// tokens `b s`, or a stream `b s h` -> `b s h`, or scalar
    ///
    /// # Errors
    /// As [`Training::forward`].
    pub fn stage_forward(&mut self, input: &Tensor, labels: Labels<'_>) -> Result<Tensor> {
        self.loss(input, labels, self.options.dropout)
    }

    /// [`Training::backward`] of a stage of a pipeline, whose caller says where a pass begins.
    ///
    /// # Errors
    /// As [`Training::backward`].
    pub fn stage_backward(&mut self, loss: Tensor, share: f64) -> Result<()> {
        let share = if self.options.grad_accum_steps > 1 { share } else { 1.0 };
        let factor = share * self.scaler.map_or(1.0, |scaler| scaler.scale());
        let loss = if factor == 1.0 { loss } else { loss.mul_scalar(factor)? };
        loss.backward()
    }

    /// Runs a backward pass whose gradients are added to their wide buffers once it is over, all of them: until then each is
    /// there in the dtype of its parameter.
    ///
    /// # Errors
    /// As that of the pass.
    pub fn accumulate_late(&mut self, backward: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if !self.wide_grads() {
            return backward(self);
        }
        let params = || self.model.params().iter().filter(|p| p.trainable).map(|p| p.tensor.clone());
        let all: Vec<_> = params().map(|tensor| (tensor.grad(), tensor)).collect();
        for (_, tensor) in &all {
            tensor.set_grad(None);
        }
        backward(self)?;
        self.runtime.no_grad(|| {
            for (buffer, tensor) in all {
                let narrow = tensor.grad();
                tensor.set_grad(None);
                match (buffer, narrow) {
                    (Some(buffer), Some(narrow)) => tensor.set_grad(Some(buffer.add_(&narrow)?)),
                    (buffer, narrow) => tensor.set_grad(buffer.or(narrow)),
                }
            }
            Ok(())
        })
    }

    /// dtype of the stream between blocks: the fused profile computes it in the dtype of the contractions, autocast raises it.
    pub fn stream_dtype(&self) -> DType {
        let precision = self.options.precision;
        let low = precision.copies().filter(|_| !self.options.profile.is_hf());
        low.unwrap_or(precision.param_dtype())
    }

    /// Loss of a batch without history and without dropout; of what it counts, the meter sees phase `forward`.
    ///
    /// # Errors
    /// As [`Training::forward`].
    pub fn evaluate(&self, tokens: &Tensor, labels: Labels<'_>) -> Result<Tensor> {
        self.runtime.begin("eval", Phase::Forward);
        self.runtime.no_grad(|| self.loss(tokens, labels, false))
    }

    fn loss(&self, tokens: &Tensor, labels: Labels<'_>, dropout: bool) -> Result<Tensor> {
        let (rt, options) = (&self.runtime, &self.options);
        let seq_len = positions(self.model.spec(), tokens, labels);
        let mut f = Forward::new(rt, options.profile, options.recompute, tokens.size(0), seq_len);
        f.training = dropout;
        f.ranks = self.model.spec().ranks;
        f.fused_norms = self.model.spec().fused_norms;
        f.gathers_again = self.model.spec().gathers_again;
        f.fp8 = self.fp8.as_ref().map(|fp8| fp8.casts(rt.grad_enabled())).transpose()?;
        let forward = |f: &Forward| -> Result<Tensor> {
            let loss = match options.objective.preference {
                Some(kind) => preference_loss(f, &self.model, (self.reference.as_ref(), kind), tokens, labels),
                None => loss(f, &self.model, tokens, labels, options.objective.head),
            };
            if let Some(casts) = &f.fp8 {
                casts.forget();
            }
            loss
        };
        match (options.precision.copies(), options.profile) {
            (Some(low), Profile::Fused) => {
                f.compute = Some(low);
                rt.with_weight_cache(low, || forward(&f))
            }
            (Some(low), _) => rt.with_autocast(low, options.autocast, || forward(&f)),
            (None, _) => forward(&f),
        }
    }

    /// Adds the gradients of `share` of this loss to those collected: the share of the micro-batch in the tokens of the
    /// step, so that the sum is the gradient of the mean over all of them.
    ///
    /// # Errors
    /// If the loss has no history.
    pub fn backward(&mut self, loss: Tensor, share: f64) -> Result<()> {
        self.begin("bwd", Phase::Backward);
        self.stage_backward(loss, share)
    }

    /// Updates the parameters with the gradients collected, unscaled and clipped, and forgets these. Nothing is updated
    /// where they are seen not to be finite.
    ///
    /// # Errors
    /// None for a model of this crate.
    pub fn update(&mut self, lr: f64) -> Result<Updated> {
        self.add_up_gradients()?;
        self.begin("opt", Phase::Optimizer);
        let updated = self.condition_gradients()?;
        if updated.skipped.is_none() {
            self.optimizer.set_lr(lr);
            self.optimizer.step(self.model.params())?;
            if let Some(fp8) = &self.fp8 {
                fp8.advance(self.optimizer.steps())?;
            }
        }
        self.begin("zero", Phase::Optimizer);
        let wide = self.wide_grads();
        for param in self.model.params() {
            let _scope = self.runtime.root_scope(path_of(param));
            match param.tensor.grad().filter(|_| wide) {
                Some(buffer) => {
                    self.runtime.no_grad(|| buffer.copy_(&self.runtime.zeros(&[], buffer.dtype())?)).map(drop)?;
                }
                None => param.tensor.zero_grad(),
            }
        }
        self.step += 1;
        self.micro = 0;
        Ok(updated)
    }

    /// Adds up over the ranks the gradients of what all of them hold and each has seen a part through.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn add_up_gradients(&self) -> Result<()> {
        let ranks = self.model.spec().ranks;
        if ranks.is_alone() {
            return Ok(());
        }
        self.begin("sync", Phase::Communication);
        let summed = |p: &&Param| p.trainable && p.share.is_summed(ranks);
        self.runtime.no_grad(|| {
            for param in self.model.params().iter().filter(summed) {
                if let Some(gradient) = param.tensor.grad() {
                    param.tensor.set_grad(None);
                    param.tensor.set_grad(Some(gradient.all_reduce(ranks.tensor(), Combine::Sum)?));
                }
            }
            Ok(())
        })
    }

    /// Makes of the gradients what the optimizer is to see.
    fn condition_gradients(&mut self) -> Result<Updated> {
        let mut updated = Updated::default();
        let longest = self.options.clip_norm;
        if self.scaler.is_none() && longest.is_none() {
            return Ok(updated);
        }
        let scale = self.scaler.map_or(1.0, |scaler| scaler.scale());
        let Some(norm) = GradNorm::of(self.model.params(), scale)? else { return Ok(updated) };
        if self.runtime.holds_data() {
            updated.grad_norm = longest.map(|_| norm.tensor().item()).transpose()?;
            let culprit = norm.first_non_finite()?;
            let why = match &mut self.scaler {
                Some(scaler) => scaler.note(culprit.is_none()),
                None => culprit.map(|_| Skip::Disaster),
            };
            if let Some((culprit, why)) = culprit.zip(why) {
                updated.skipped = Some(Skipped { parameter: culprit.name.clone(), why });
                return Ok(updated);
            }
        }
        norm.unscale_and_clip(longest.unwrap_or(f64::INFINITY))?;
        Ok(updated)
    }
}

/// The module of a parameter.
fn path_of(param: &Param) -> &str {
    param.name.rsplit_once('.').map_or("", |(path, _)| path)
}

/// Refuses what is not made for a part of a model.
fn check_ranks(spec: &ModelSpec, options: &TrainingOptions) -> Result<()> {
    let refused = |what: &str| {
        let what = format!("{what} is not made for a model of which each rank has a part");
        Err(tensor::Error::Argument { op: "ranks", what })
    };
    if spec.ranks.is_alone() && spec.stage == Stage::WHOLE {
        Ok(())
    } else if !matches!(options.objective.head, HeadLoss::Whole | HeadLoss::Parallel)
        || (Objective { head: HeadLoss::Whole, ..options.objective }) != Objective::DEFAULT
    {
        refused("a loss other than that of whole logits")
    } else if spec.ranks.cp > 1 && options.profile.is_hf() {
        refused("a profile of plain modules, where ranks share a sequence,")
    } else if options.clip_norm.is_some() || options.precision == Precision::Fp16Mixed {
        refused("a norm of all gradients")
    } else {
        Ok(())
    }
}

/// A frozen copy of a model, in the dtype that its products run on.
fn reference(runtime: &Runtime, spec: &ModelSpec, precision: Precision) -> Result<Model> {
    let frozen_dtype = Some(precision.gathered_dtype());
    let tuning = Tuning { frozen: vec![Pattern::everything()], frozen_dtype, ..Tuning::default() };
    let spec = ModelSpec { tuning, ..spec.clone() };
    let _scope = runtime.scope(REFERENCE);
    Model::build(runtime, &spec, precision.param_dtype())
}
