//! Whole training steps under the meter.

use crate::context::{Forward, Profile, Recompute};
use crate::loss::next_token_loss;
use crate::model::Model;
use crate::optim::{Hyper, Optimizer, OptimizerKind};
use crate::param::ParamKind;
use crate::spec::ModelSpec;
use std::fmt;
use std::str::FromStr;
use tensor::{Accumulate, CastLists, DType, Device, Phase, Result, Role, Runtime, Trace};

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
}

impl Precision {
    /// All recipes.
    pub const ALL: [Self; 6] =
        [Self::Fp32, Self::Bf16Master, Self::Bf16MasterFp32Grads, Self::Bf16Mixed, Self::Fp16Mixed, Self::Bf16Pure];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16Master => "bf16-master",
            Self::Bf16MasterFp32Grads => "bf16-master-fp32-grads",
            Self::Bf16Mixed => "bf16-mixed",
            Self::Fp16Mixed => "fp16-mixed",
            Self::Bf16Pure => "bf16-pure",
        }
    }

    /// dtype of the parameters.
    pub const fn param_dtype(self) -> DType {
        match self {
            Self::Fp32 | Self::Bf16Mixed | Self::Fp16Mixed => DType::F32,
            Self::Bf16Master | Self::Bf16MasterFp32Grads | Self::Bf16Pure => DType::BF16,
        }
    }

    /// dtype of the gradients.
    pub const fn grad_dtype(self) -> DType {
        if matches!(self, Self::Bf16MasterFp32Grads) { DType::F32 } else { self.param_dtype() }
    }

    /// dtype of the contractions.
    pub const fn matmul_dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Fp16Mixed => DType::F16,
            _ => DType::BF16,
        }
    }

    /// Whether the optimizer holds f32 copies of the parameters.
    pub const fn has_master(self) -> bool {
        matches!(self, Self::Bf16Master | Self::Bf16MasterFp32Grads)
    }

    /// dtype of the copies of f32 weights that contractions run on, where there are any.
    pub const fn copies(self) -> Option<DType> {
        match self {
            Self::Bf16Mixed | Self::Fp16Mixed => Some(self.matmul_dtype()),
            _ => None,
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
    /// Sequences in a micro-batch.
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
}

impl StepOptions {
    /// Tokens of all traced steps on one device: micro-batches × sequences × length of each.
    pub const fn tokens(&self) -> u64 {
        self.batch * self.seq_len * self.grad_accum_steps * self.steps
    }
}

/// The parameters of a model, without tracing a step.
///
/// # Errors
/// If a size is too large to count.
pub fn parameters(spec: &ModelSpec) -> Result<Vec<ParamInfo>> {
    let runtime = Runtime::new(Device::Meta);
    runtime.set_recording(false);
    Ok(infos(&Model::build(&runtime, spec, DType::F32)?))
}

fn infos(model: &Model) -> Vec<ParamInfo> {
    model
        .params()
        .iter()
        .map(|p| ParamInfo {
            name: p.name.clone(),
            shape: p.tensor.shape().to_vec(),
            elements: p.tensor.elements(),
            kind: p.kind,
            tied: p.tied.clone(),
            trainable: p.trainable,
        })
        .collect()
}

/// Traces training steps of a model on the meta device.
///
/// # Errors
/// If a size is too large to count, or the sequence is longer than the model's learned positions.
pub fn trace(spec: &ModelSpec, options: &StepOptions) -> Result<StepTrace> {
    run(&Runtime::new(Device::Meta), spec, options)
}

/// Runs training steps of a model on a runtime and takes its recording.
///
/// # Errors
/// As [`trace`].
pub fn run(runtime: &Runtime, spec: &ModelSpec, options: &StepOptions) -> Result<StepTrace> {
    let rt = runtime;
    if options.profile.is_hf() {
        rt.set_accumulate(Accumulate::OutOfPlace);
        rt.set_early_stop(true);
    }
    rt.begin("init", Phase::Init);
    let model = Model::build(rt, spec, options.precision.param_dtype())?;
    let master = options.precision.has_master();
    let mut optimizer = Optimizer::new(options.optimizer, Hyper::default(), master);
    let wide_grads = options.precision.grad_dtype() != options.precision.param_dtype();
    if wide_grads {
        for param in model.params().iter().filter(|p| p.trainable) {
            let zeros = rt.no_grad(|| rt.zeros(param.tensor.shape(), options.precision.grad_dtype()))?;
            param.tensor.set_grad(Some(zeros));
        }
    }
    if options.warm {
        optimizer.prepare(model.params())?;
    }
    let (b, s) = (options.batch, options.seq_len);
    // Token values matter to no cost; a ramp keeps them legal and different on a device that computes.
    let ramp = || (0..b * s).map(|i| (i % spec.vocab_size) as f64).collect();
    let make = || Ok::<_, tensor::Error>(rt.tensor_with(&[b, s], DType::I64, ramp)?.with_role(Role::Input));
    let (tokens, labels) = (make()?, make()?);
    for step in 1..=options.steps {
        for micro in 0..options.grad_accum_steps {
            let name = |phase: &str| {
                if options.grad_accum_steps == 1 {
                    format!("{phase}{step}")
                } else {
                    format!("{phase}{step}.{}", micro + 1)
                }
            };
            rt.begin(&name("fwd"), Phase::Forward);
            let mut f = Forward::new(rt, options.profile, options.recompute, b, s);
            f.training = options.dropout;
            let forward = |f: &Forward| -> Result<tensor::Tensor> {
                let hidden = model.body(f, &tokens)?;
                let logits = model.logits(f, &hidden)?;
                let loss = next_token_loss(f, &logits, &labels)?;
                // Both live until the forward pass is over, as parts of the model's output.
                drop((hidden, logits));
                Ok(loss)
            };
            let loss = match (options.precision.copies(), options.profile) {
                (Some(low), Profile::Fused) => {
                    f.compute = Some(low);
                    rt.with_weight_cache(low, || forward(&f))?
                }
                (Some(low), _) => rt.with_autocast(low, options.autocast, || forward(&f))?,
                (None, _) => forward(&f)?,
            };
            drop(f);
            if options.until == Until::Forward {
                return Ok(finish(rt, &model));
            }
            rt.begin(&name("bwd"), Phase::Backward);
            let loss =
                if options.grad_accum_steps > 1 { loss.div_scalar(options.grad_accum_steps as f64)? } else { loss };
            loss.backward()?;
            drop(loss);
        }
        if options.until == Until::Backward {
            return Ok(finish(rt, &model));
        }
        rt.begin(&format!("opt{step}"), Phase::Optimizer);
        optimizer.step(model.params())?;
        rt.begin(&format!("zero{step}"), Phase::Optimizer);
        for param in model.params() {
            match param.tensor.grad().filter(|_| wide_grads) {
                // Buffers that live on are set to zero, not freed.
                Some(buffer) => rt.no_grad(|| buffer.copy_(&rt.zeros(&[], buffer.dtype())?)).map(drop)?,
                None => param.tensor.zero_grad(),
            }
        }
    }
    Ok(finish(rt, &model))
}

fn finish(runtime: &Runtime, model: &Model) -> StepTrace {
    StepTrace {
        params: infos(model),
        buffer_bytes: model.buffers().iter().map(|(_, t)| t.storage().bytes()).sum(),
        trace: runtime.take_trace(),
    }
}
