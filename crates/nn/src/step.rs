//! Whole training steps under the meter.

use crate::context::{Forward, Profile, Recompute};
use crate::in_backward;
use crate::loss::Labels;
use crate::loss::output_loss;
use crate::model::{Model, Tower};
use crate::objective::Objective;
use crate::offload::{self, HostBytes, Offload};
use crate::optim::{Hyper, Implementation, Kind, OptimizerKind};
use crate::param::{Param, ParamKind};
use crate::ranks::Share;
use crate::scaler::ScalerState;
use crate::spec::{ModelSpec, SignalSpec, SourceSpec, Task, TowerSpec, Tuning};
use crate::training::{Training, TrainingOptions};
use crate::unroll;
pub use crate::unroll::Checked;
use std::fmt;
use std::str::FromStr;
use tensor::{CastLists, Cost, DType, Device, Phase, Result, Role, Runtime, Tensor, Trace};

/// Which dtypes parameters, gradients, states and arithmetic use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Everything f32: 16 bytes per parameter with AdamW.
    Fp32,
    /// bf16 weights and gradients, f32 master weights and states: 2 + 2 + 4 + 8.
    Bf16Master,
    /// The same with gradients collected in f32 buffers that live on, as Megatron does: 2 + 4 + 4 + 8.
    Bf16MasterFp32Grads,
    /// f32 parameters, gradients and states; contractions on bf16 copies.
    Bf16Mixed,
    /// The same on f16 copies; the loss scale that goes with it takes no bytes worth counting.
    Fp16Mixed,
    /// Everything bf16: 8 bytes per parameter with AdamW.
    Bf16Pure,
    /// As `bf16-mixed`, with the linear maps of blocks on 8-bit copies: E4M3 forward, E5M2 backward, a scale for each
    /// tensor.
    Fp8,
}

impl Precision {
    /// All recipes.
    pub const ALL: [Self; 7] = [
        Self::Fp32,
        Self::Bf16Master,
        Self::Bf16MasterFp32Grads,
        Self::Bf16Mixed,
        Self::Fp16Mixed,
        Self::Bf16Pure,
        Self::Fp8,
    ];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16Master => "bf16-master",
            Self::Bf16MasterFp32Grads => "bf16-master-fp32-grads",
            Self::Bf16Mixed => "bf16-mixed",
            Self::Fp16Mixed => "fp16-mixed",
            Self::Bf16Pure => "bf16-pure",
            Self::Fp8 => "fp8",
        }
    }

    /// dtype of the parameters.
    pub const fn param_dtype(self) -> DType {
        match self {
            Self::Fp32 | Self::Bf16Mixed | Self::Fp16Mixed | Self::Fp8 => DType::F32,
            Self::Bf16Master | Self::Bf16MasterFp32Grads | Self::Bf16Pure => DType::BF16,
        }
    }

    /// dtype of the gradients.
    pub const fn grad_dtype(self) -> DType {
        if matches!(self, Self::Bf16MasterFp32Grads) { DType::F32 } else { self.param_dtype() }
    }

    /// dtype of the contractions; in fp8, of the linear maps of blocks.
    pub const fn matmul_dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Fp16Mixed => DType::F16,
            Self::Fp8 => DType::F8E4M3,
            _ => DType::BF16,
        }
    }

    /// Whether the optimizer holds f32 copies of the parameters.
    pub const fn has_master(self) -> bool {
        matches!(self, Self::Bf16Master | Self::Bf16MasterFp32Grads)
    }

    /// dtype of the copies of f32 weights that contractions run on, where there are any; in fp8, of what is not on 8-bit
    /// copies.
    pub const fn copies(self) -> Option<DType> {
        match self {
            Self::Bf16Mixed | Self::Fp8 => Some(DType::BF16),
            Self::Fp16Mixed => Some(DType::F16),
            _ => None,
        }
    }

    /// dtype of parameters that are not trained. Under adapters they need no f32: their copies in the dtype of the
    /// contractions are all that is used of them.
    pub fn frozen_dtype(self, tuning: &Tuning) -> DType {
        let adapted = tuning.lora.is_some() || tuning.packed.is_some();
        let low = if adapted { self.copies() } else { None };
        tuning.frozen_dtype.or(low).unwrap_or(self.param_dtype())
    }

    /// dtype in which sharded weights are gathered.
    pub const fn gathered_dtype(self) -> DType {
        match self.copies() {
            Some(low) => low,
            None => self.param_dtype(),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase().replace('_', "-");
        let alias = match name.as_str() {
            "f32" | "float32" => "fp32",
            "bf16-autocast" | "bf16-autocast-cuda-lists" | "autocast" => "bf16-mixed",
            "bf16" | "bfloat16" => "bf16-pure",
            other => other,
        };
        Self::ALL.into_iter().find(|p| p.name() == alias).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|p| p.name()).collect();
            format!("unknown precision `{text}`: valid are {}", names.join(", "))
        })
    }
}

/// What a traced step looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOptions {
    /// Sequences in a micro-batch; of preferences, pairs of them.
    pub batch: u64,
    /// Tokens in a sequence.
    pub seq_len: u64,
    /// Implementation.
    pub profile: Profile,
    /// dtypes.
    pub precision: Precision,
    /// Update rule.
    pub optimizer: OptimizerKind,
    /// Recompute policy.
    pub recompute: Recompute,
    /// Micro-batches per optimizer step.
    pub grad_accum_steps: u64,
    /// Whose autocast lists decide under `bf16-mixed` in the `hf` profiles.
    pub autocast: CastLists,
    /// Optimizer steps; the second is the steady state, since the first makes the optimizer states.
    pub steps: u64,
    /// Makes the optimizer states before the first step, which is then the steady state already.
    pub warm: bool,
    /// Whether dropout is on; the probabilities are the model's.
    pub dropout: bool,
    /// What is minimised.
    pub objective: Objective,
    /// What is on the host. It changes the recording, not the program.
    pub offload: Offload,
    /// Each parameter is updated within the backward pass, once its gradient is complete, which is then freed. It changes the
    /// recording, not the program.
    pub in_backward: bool,
    /// Stops after the forward pass, or after the backward pass of the first step.
    pub until: Until,
}

/// How far a trace goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Until {
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer step.
    #[default]
    Optimizer,
}

/// Facts of a parameter, for counting.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamInfo {
    /// Full name.
    pub name: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Number of elements.
    pub elements: u64,
    /// What it is.
    pub kind: ParamKind,
    /// Other names of the same tensor.
    pub tied: Vec<String>,
    /// Whether it is trained.
    pub trainable: bool,
    /// Whether each rank holds all of it where matrices are divided over tensor-parallel ranks.
    pub replicated: bool,
    /// What a rank holds of it.
    pub share: Share,
    /// Bytes it is stored in, where the precision recipe does not say that: packed, with its constants.
    pub packed_bytes: Option<u64>,
}

/// A traced training run of one or two steps.
#[derive(Clone, Debug)]
pub struct StepTrace {
    /// The recording; marks are `init`, `fwd1`, `bwd1`, `opt1`, `zero1`, `fwd2`, ...
    pub trace: Trace,
    /// The parameters.
    pub params: Vec<ParamInfo>,
    /// Bytes of buffers.
    pub buffer_bytes: u64,
    /// What moves to the host and is kept there.
    pub host: HostBytes,
}

impl StepTrace {
    /// Makes of a step that has nothing on the host one that has saved activations there, as [`StepOptions::offload`] does: what
    /// is traced does not depend on it.
    pub fn offload_activations(&mut self) {
        (self.host.activations, self.host.activations_peak) = offload::move_saved(&mut self.trace);
    }
}

impl StepOptions {
    /// The steady state of a usual step: one sequence, nothing run again, fused `AdamW` whose states are there.
    pub const fn usual(seq_len: u64, profile: Profile, precision: Precision) -> Self {
        Self {
            batch: 1,
            seq_len,
            profile,
            precision,
            optimizer: OptimizerKind { kind: Kind::AdamW, implementation: Implementation::Fused },
            recompute: Recompute::None,
            grad_accum_steps: 1,
            autocast: CastLists::Cuda,
            steps: 1,
            warm: true,
            dropout: false,
            objective: Objective::DEFAULT,
            offload: Offload::NONE,
            in_backward: false,
            until: Until::Optimizer,
        }
    }

    /// One step whose states are there before it: the steady state.
    #[must_use]
    pub const fn steady(self) -> Self {
        Self { steps: 1, warm: true, ..self }
    }

    /// How the traced model is trained: its rates matter to no cost.
    pub(crate) fn training(&self) -> TrainingOptions {
        TrainingOptions {
            profile: self.profile,
            precision: self.precision,
            optimizer: self.optimizer,
            hyper: Hyper::default(),
            recompute: self.recompute,
            grad_accum_steps: self.grad_accum_steps,
            autocast: self.autocast,
            dropout: self.dropout,
            clip_norm: None,
            objective: self.objective,
            stochastic_rounding: false,
        }
    }

    /// Sequences of a micro-batch.
    pub const fn sequences(&self) -> u64 {
        if self.objective.preference.is_some() { self.batch.saturating_mul(2) } else { self.batch }
    }

    /// Tokens of all traced steps on one device: micro-batches × sequences × length of each.
    pub const fn tokens(&self) -> u64 {
        self.sequences() * self.seq_len * self.grad_accum_steps * self.steps
    }
}

/// The parameters of a model, without tracing a step.
///
/// # Errors
/// If a size is too large to count.
pub fn parameters(spec: &ModelSpec) -> Result<Vec<ParamInfo>> {
    unroll::parameters(spec, parameters_of_all).map_or_else(|| parameters_of_all(spec), Ok)
}

/// The same of a model that is built whole, with all its blocks.
///
/// # Errors
/// As [`parameters`].
pub fn parameters_of_all(spec: &ModelSpec) -> Result<Vec<ParamInfo>> {
    let runtime = Runtime::new(Device::Meta);
    runtime.set_recording(false);
    Ok(infos(Model::build(&runtime, spec, DType::F32)?.params()))
}

/// The parameters of the parts that turn images or sounds into positions of the text, one after another.
///
/// # Errors
/// If a size is too large to count.
pub fn tower_parameters(spec: &ModelSpec) -> Result<Vec<ParamInfo>> {
    let runtime = Runtime::new(Device::Meta);
    runtime.set_recording(false);
    let mut all = Vec::new();
    for tower in &spec.towers {
        all.extend(infos(Tower::build(&runtime, tower, DType::F32)?.params()));
    }
    Ok(all)
}

/// What one image or sound costs in a [`TowerSpec`].
#[derive(Clone, Debug, PartialEq)]
pub struct TowerCost {
    /// Forward pass.
    pub forward: Cost,
    /// Backward pass to all its parameters.
    pub backward: Cost,
    /// Positions of the text it becomes.
    pub positions: u64,
}

/// Traces one image or sound through a part and back.
///
/// # Errors
/// If a size is too large to count, or the sizes of the file do not fit together.
pub fn tower_cost(spec: &TowerSpec, profile: Profile) -> Result<TowerCost> {
    let rt = Runtime::new(Device::Meta);
    let tower = Tower::build(&rt, spec, DType::F32)?;
    let input = match &spec.stack.embedding.source {
        SourceSpec::Signal(signal) => numbers(&rt, signal, 1)?,
        SourceSpec::Tokens => return Err(tensor::Error::Backward("a part of a model that reads tokens")),
    };
    let f = Forward::new(&rt, profile, Recompute::None, 1, input.size(1));
    rt.begin("fwd", Phase::Forward);
    let out = tower.forward(&f, &input)?;
    let positions = out.size(1);
    let loss = output_loss(&out)?;
    drop(out);
    rt.begin("bwd", Phase::Backward);
    loss.backward()?;
    let trace = rt.take_trace();
    let of = |phase| trace.cost(|event| event.phase == phase);
    Ok(TowerCost { forward: of(Phase::Forward), backward: of(Phase::Backward), positions })
}

fn infos<'a>(params: impl IntoIterator<Item = &'a Param>) -> Vec<ParamInfo> {
    params
        .into_iter()
        .map(|p| ParamInfo {
            name: p.name.clone(),
            shape: p.shape.clone(),
            elements: p.shape.iter().product(),
            kind: p.kind,
            tied: p.tied.clone(),
            trainable: p.trainable,
            replicated: p.replicated,
            share: p.share,
            packed_bytes: (p.constants > 0).then(|| p.tensor.storage().bytes() + p.constants),
        })
        .collect()
}

/// Traces training steps of a model on the meta device: what [`run`] records there, but for the values that random parameters
/// would get.
///
/// # Errors
/// If a size is too large to count, or the sequence is longer than the model's learned positions.
pub fn trace(spec: &ModelSpec, options: &StepOptions) -> Result<StepTrace> {
    trace_again(spec, options, None).map(|(traced, _)| traced)
}

/// [`trace`] where a step was traced before, with what it found of it and to be given to the next: one that differs in no more than
/// `batch` and `seq_len` takes less time.
///
/// # Errors
/// As [`trace`].
pub fn trace_again(
    spec: &ModelSpec,
    options: &StepOptions,
    before: Option<Checked>,
) -> Result<(StepTrace, Option<Checked>)> {
    if let Some((traced, checked)) = unrolled(spec, options, before) {
        return Ok((traced, Some(checked)));
    }
    Ok((run(&Runtime::new(Device::Meta), spec, options)?, None))
}

/// [`trace_again`] of a model that is traced with a few of its blocks and written out for all of them; `None` where they do not
/// repeat, or too seldom, or not exactly: the model is then traced whole.
pub fn unrolled(spec: &ModelSpec, options: &StepOptions, before: Option<Checked>) -> Option<(StepTrace, Checked)> {
    let short = |spec: &ModelSpec| record(&Runtime::new(Device::Meta), spec, options);
    let (recorded, checked) = unroll::recorded(spec, options, short, before)?;
    Some((recorded.finish(options), checked))
}

/// Runs training steps of a model on a runtime and takes its recording.
///
/// # Errors
/// As [`trace`].
pub fn run(runtime: &Runtime, spec: &ModelSpec, options: &StepOptions) -> Result<StepTrace> {
    Ok(record(runtime, spec, options)?.finish(options))
}

fn record(rt: &Runtime, spec: &ModelSpec, options: &StepOptions) -> Result<Recorded> {
    let mut training = Training::new(rt, spec, &options.training())?;
    // The scale matters to no cost; a small one keeps the gradients of a device that computes finite, and no update is
    // skipped.
    if let Some(scaler) = training.scaler_mut() {
        scaler.restore(ScalerState { scale: 2.0, ..scaler.state() });
    }
    if options.warm {
        training.prepare()?;
    }
    let (tokens, labels) = example(rt, spec, options.sequences(), options.seq_len)?;
    let labels = if options.profile.is_hf() { Labels::Tokens(&labels) } else { Labels::Targets(&labels) };
    let share = 1.0 / options.grad_accum_steps as f64;
    for _ in 0..options.steps {
        for _ in 0..options.grad_accum_steps {
            let loss = training.forward(&tokens, labels)?;
            if options.until == Until::Forward {
                return Ok(Recorded::of(rt, &[training.model()], options));
            }
            training.backward(loss, share)?;
        }
        if options.until == Until::Backward {
            return Ok(Recorded::of(rt, &[training.model()], options));
        }
        training.update(Hyper::default().lr)?;
    }
    Ok(Recorded::of(rt, &[training.model()], options))
}

/// What the first stack reads, and labels: their values matter to no cost, and are legal and different on a device that
/// computes.
///
/// # Errors
/// If a size is too large to count.
pub fn example(runtime: &Runtime, spec: &ModelSpec, batch: u64, seq_len: u64) -> Result<(Tensor, Tensor)> {
    let ids = |shape: &[u64], below: u64| -> Result<Tensor> {
        let ramp = || (0..shape.iter().product()).map(|i: u64| (i % below.max(1)) as f64).collect();
        Ok(runtime.tensor_with(shape, DType::I64, ramp)?.with_role(Role::Input))
    };
    let input = match spec.source() {
        SourceSpec::Tokens => ids(&[batch, seq_len], spec.vocab_size)?,
        SourceSpec::Signal(signal) => numbers(runtime, signal, batch)?,
    };
    let labels = match spec.task {
        Task::NextToken | Task::OwnToken => ids(&[batch, seq_len], spec.vocab_size)?,
        // No loss reads them, but the decoder does.
        Task::Outputs if spec.encoder.is_some() => ids(&[batch, seq_len], spec.vocab_size)?,
        Task::Classes(count) => ids(&[batch], count)?,
        // A loss without labels.
        Task::Outputs => input.clone(),
    };
    Ok((input, labels))
}

/// Numbers for a stack that reads such.
///
/// # Errors
/// If a size is too large to count.
pub fn numbers(runtime: &Runtime, signal: &SignalSpec, batch: u64) -> Result<Tensor> {
    let shape = [batch, signal.len, signal.width];
    let values = || (0..shape.iter().product()).map(|i: u64| (i % 17) as f64 / 17.0 - 0.5).collect();
    Ok(runtime.tensor_with(&shape, DType::F32, values)?.with_role(Role::Input))
}

/// What a program that trained models recorded.
pub(crate) struct Recorded {
    pub(crate) trace: Trace,
    pub(crate) params: Vec<ParamInfo>,
    pub(crate) buffer_bytes: u64,
    /// Gradients that go to the host and parameters that come back, where the update runs there.
    pub(crate) update_bytes: u64,
}

impl Recorded {
    /// Takes the recording of a program that trained these models.
    pub(crate) fn of(runtime: &Runtime, models: &[&Model], options: &StepOptions) -> Self {
        let trace = runtime.take_trace();
        let params = || models.iter().flat_map(|model| model.params());
        let buffers = models.iter().flat_map(|model| model.buffers());
        Self {
            trace,
            params: infos(params()),
            buffer_bytes: buffers.map(|(_, tensor)| tensor.storage().bytes()).sum(),
            update_bytes: offload::update_bytes(params(), options.precision.grad_dtype()),
        }
    }

    /// Makes of it what a device records that updates within backward, or has something on its host.
    pub(crate) fn finish(mut self, options: &StepOptions) -> StepTrace {
        if options.in_backward {
            in_backward::apply(&mut self.trace);
        }
        let host = offload::apply(&mut self.trace, self.update_bytes, options.offload);
        StepTrace { trace: self.trace, params: self.params, buffer_bytes: self.buffer_bytes, host }
    }
}
