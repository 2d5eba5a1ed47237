//! Flags of a training step: sizes, precision, implementation, sharding.

use clap::Args;
use nn::optim::{self, Implementation, OptimizerKind};
use nn::step::{Precision, StepOptions, Until};
use nn::{HeadLoss, Objective, Offload, Profile, Recompute, Reference};
use plan::allocator::{Conf, Process};
use plan::filling::Filling;
use plan::hardware::{self, Hardware, Kind};
use plan::ledger::Request;
use plan::model::Model;
use plan::runtime;
use plan::sharding::{Gathering, Sharding};
use plan::work::Work;
use tensor::{CastLists, DType};
use units::{Bytes, Diagnostic, Flops, Params};

use crate::model_args::{ReadingArgs, TuningArgs};
use crate::parse::{Reader, positive_share, some};

/// The work of one token: a model, a bare count, or a number.
#[derive(Clone, Debug, Default, Args)]
pub struct WorkArgs {
    /// A config.json, its folder, a preset, - for standard input, or a bare count such as dense:70B
    pub model: Option<String>,
    /// FLOP of one trained token, instead of a model
    #[arg(long, value_name = "FLOP", conflicts_with = "model")]
    pub flops_per_token: Option<String>,
    /// Tokens in a sequence: attention grows with it [default: the model's own limit, at most 4096]
    #[arg(long, value_name = "N", requires = "model")]
    pub seq_len: Option<String>,
    /// How it is read
    #[command(flatten)]
    pub reading: ReadingArgs,
}

/// How sequences are filled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Batch")]
pub struct FillingArgs {
    /// Share of the processed tokens that are no padding, such as 70%
    #[arg(long, value_name = "SHARE")]
    pub useful_tokens: Option<String>,
    /// Sequences are packed with documents of so many tokens that do not see each other
    #[arg(long, value_name = "N")]
    pub doc_len: Option<String>,
}

impl FillingArgs {
    /// Its flags, each with whether it was given.
    pub const fn given(&self) -> [(&'static str, bool); 2] {
        [("--useful-tokens", self.useful_tokens.is_some()), ("--doc-len", self.doc_len.is_some())]
    }

    /// What was said of it.
    pub fn read(&self, read: &mut Reader<'_>) -> Filling {
        let useful = read.flag_with("--useful-tokens", self.useful_tokens.as_deref(), positive_share);
        Filling { useful, doc_len: read.flag_with("--doc-len", self.doc_len.as_deref(), some) }
    }
}

impl WorkArgs {
    /// The work of one token, with what was found on the way to it.
    pub fn read(&self, read: &mut Reader<'_>) -> Option<Work> {
        let Some(name) = &self.model else {
            self.reading.need_model(read);
            if self.flops_per_token.is_some() {
                return read.flag::<Flops>("--flops-per-token", self.flops_per_token.as_deref()).map(Work::given);
            }
            let problem = Diagnostic::error("", "which model?").help("llama-3.1-8b").help("path/to/config.json");
            read.problem(problem.help("dense:70B").help("--flops-per-token 51.47GFLOP"));
            return None;
        };
        if name.starts_with("dense:") {
            let why = "a bare count has no config, and no attention that grows with a sequence";
            self.reading.config.no_effect(read, why);
            read.no_effect(&[("--seq-len", self.seq_len.is_some())], why);
            if self.reading.tuning != TuningArgs::default() {
                read.problem(no_maps());
            }
            let parameters = read.flag_with("MODEL", Some(name), dense)?;
            return Some(Work::dense(name.as_str(), parameters));
        }
        let model = self.reading.read(read, name);
        let step = StepArgs { seq_len: self.seq_len.clone(), ..StepArgs::default() };
        let options = step.read(read, model.as_ref(), None);
        let model = model?;
        plan::flops::work(&model, &options).map_err(|problems| read.problems(problems)).ok()
    }
}

/// What is wrong with flags of fine-tuning for a bare count.
pub fn no_maps() -> Diagnostic {
    Diagnostic::error("", "a bare count has no linear maps to adapt, freeze or pack")
        .help("give a config or a preset, such as llama-3.1-8b")
}

/// A bare parameter count: `dense:70B`.
///
/// # Errors
/// A count that is none.
pub fn dense(text: &str) -> Result<Params, Diagnostic> {
    let parameters: Params = text.trim_start_matches("dense:").parse()?;
    if parameters.is_zero() {
        return Err(Diagnostic::error("", format!("`{text}` has no parameters")).help("dense:70B"));
    }
    Ok(parameters)
}

/// One training step on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Step")]
pub struct StepArgs {
    /// Sequences in a micro-batch, per device [default: 1]
    #[arg(long, visible_alias = "mbs", value_name = "N")]
    pub batch: Option<String>,
    /// Tokens in a sequence [default: the model's own limit, at most 4096]
    #[arg(long, value_name = "N")]
    pub seq_len: Option<String>,
    /// Implementation: fused, hf-sdpa, hf-eager [default: fused]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// fp32, bf16-master, bf16-master-fp32-grads, bf16-mixed, fp16-mixed, bf16-pure, fp8 [default: bf16-mixed]
    #[arg(long, value_name = "RECIPE")]
    pub precision: Option<String>,
    /// sgd, sgd-momentum, adagrad, rmsprop, adam, adamw, adafactor, adam-8bit, muon, lion; with -fused, -forloop or
    /// -foreach; adam, adamw, adam-8bit, lion also as paged-adamw, ..., as bitsandbytes pages states [default: adamw]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// none, selective, full [default: none]
    #[arg(long, value_name = "POLICY")]
    pub recompute: Option<String>,
    /// Update each parameter within backward, as soon as its gradient is complete, and free the gradient
    #[arg(long)]
    pub optimizer_in_backward: bool,
    /// Micro-batches per optimizer step [default: 1]
    #[arg(long, value_name = "N")]
    pub grad_accum: Option<String>,
    /// Whose list of ops autocast follows: cpu or cuda [default: cuda on a GPU, else cpu]
    #[arg(long, value_name = "LISTS")]
    pub autocast: Option<String>,
    /// Count dropout, with the probabilities of the config
    #[arg(long)]
    pub dropout: bool,
    /// How head and loss run: whole, fused (no logits are kept), parallel (as Megatron-LM's over a divided vocabulary), or
    /// chunked:8 (in so many parts) [default: whole]
    #[arg(long, value_name = "FORM")]
    pub loss: Option<String>,
    /// Preference optimisation (DPO) of pairs against a frozen copy (model), the model without adapters (base), or stored
    /// numbers (stored); --batch counts pairs
    #[arg(long, value_name = "REFERENCE")]
    pub dpo: Option<String>,
    /// What is kept on the host: activations, optimizer, or both separated by a comma [default: none]
    #[arg(long, value_name = "WHAT")]
    pub offload: Option<String>,
}

/// How states are spread over devices, and what else is on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Layout")]
pub struct LayoutArgs {
    /// ZeRO stage over the data-parallel devices, 0 to 3 [default: 0; in plan, 3 on several devices]
    #[arg(long, value_name = "STAGE")]
    pub zero: Option<String>,
    /// Data-parallel devices [default: the number of devices]
    #[arg(long, value_name = "N")]
    pub dp: Option<String>,
    /// What is whole for a while
    #[command(flatten)]
    pub gathering: GatheringArgs,
    /// Bytes of context, kernels and communicators per device [default: rows of data/runtime.csv on an accelerator]
    #[arg(long, value_name = "BYTES")]
    pub runtime: Option<String>,
    /// Settings of PyTorch's allocator, as its variable has them, such as `expandable_segments:True,max_split_size_mb:512`
    #[arg(long, value_name = "SETTINGS")]
    pub alloc_conf: Option<String>,
}

/// What is gathered and reduced at a time where parameters or gradients are divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Layout")]
pub struct GatheringArgs {
    /// What is gathered at a time where parameters are divided: block, or model where only the whole is wrapped
    /// [default: block]
    #[arg(long, value_name = "UNIT")]
    pub fsdp_unit: Option<String>,
    /// Gather no block while the one before it runs (zero 3)
    #[arg(long)]
    pub no_prefetch: bool,
    /// Keep parameters that were gathered for the forward pass (zero 3)
    #[arg(long, overrides_with = "reshard")]
    pub no_reshard: bool,
    /// Give them up behind the forward pass, whatever a file says
    #[arg(long, overrides_with = "no_reshard")]
    pub reshard: bool,
    /// Add up whole gradients over the micro-batches, and reduce them behind the last (zero 2 and 3)
    #[arg(long, overrides_with = "sync")]
    pub no_sync: bool,
    /// Reduce them behind every micro-batch, whatever a file says
    #[arg(long, overrides_with = "no_sync")]
    pub sync: bool,
}

impl GatheringArgs {
    /// Its flags, each with whether it was given.
    pub const fn given(&self) -> [(&'static str, bool); 6] {
        [
            ("--fsdp-unit", self.fsdp_unit.is_some()),
            ("--no-prefetch", self.no_prefetch),
            ("--no-reshard", self.no_reshard),
            ("--reshard", self.reshard),
            ("--no-sync", self.no_sync),
            ("--sync", self.sync),
        ]
    }

    /// What the flags say, over what a file says; those that have no part in such a step are refused.
    pub fn over(&self, read: &mut Reader<'_>, file: Gathering, zero: u8, micro_batches: u64) -> Gathering {
        let all = self.given();
        let (of_weights, of_gradients) = all.split_at(4);
        if zero < 3 {
            read.no_effect(of_weights, "no parameters are gathered below zero 3");
        }
        if zero < 2 {
            read.no_effect(of_gradients, "gradients are whole below zero 2");
        } else if micro_batches == 1 {
            read.no_effect(of_gradients, "a step has one micro-batch");
        }
        Gathering {
            wrap: word(read, "--fsdp-unit", self.fsdp_unit.as_deref()).unwrap_or(file.wrap),
            prefetch: file.prefetch && !self.no_prefetch,
            reshard: (file.reshard || self.reshard) && !self.no_reshard,
            sync: (file.sync || self.sync) && !self.no_sync,
        }
    }
}

/// Parses a flag whose type says what is wrong in words.
pub fn word<T: std::str::FromStr<Err = String>>(read: &mut Reader<'_>, flag: &str, text: Option<&str>) -> Option<T> {
    read.flag_with(flag, text, |text| text.parse::<T>().map_err(|message| Diagnostic::error("", message)))
}

impl StepArgs {
    /// Its flags, each with whether it was given.
    pub const fn given(&self) -> [(&'static str, bool); 13] {
        [
            ("--batch", self.batch.is_some()),
            ("--seq-len", self.seq_len.is_some()),
            ("--profile", self.profile.is_some()),
            ("--precision", self.precision.is_some()),
            ("--optimizer", self.optimizer.is_some()),
            ("--optimizer-in-backward", self.optimizer_in_backward),
            ("--recompute", self.recompute.is_some()),
            ("--grad-accum", self.grad_accum.is_some()),
            ("--autocast", self.autocast.is_some()),
            ("--dropout", self.dropout),
            ("--loss", self.loss.is_some()),
            ("--dpo", self.dpo.is_some()),
            ("--offload", self.offload.is_some()),
        ]
    }

    /// The update rule, and its implementation if that is said.
    pub fn rule(&self, read: &mut Reader<'_>) -> Option<(optim::Kind, Option<Implementation>)> {
        read.flag_with("--optimizer", self.optimizer.as_deref(), |text| {
            optim::parse(unpaged(text).unwrap_or(text)).map_err(|message| Diagnostic::error("", message))
        })
    }

    /// The arithmetic that the precision recipe multiplies matrices in: what `--dtype` is where nobody gives it.
    pub fn arithmetic(&self) -> hardware::Precision {
        let recipe = self.precision.as_deref().and_then(|text| text.parse::<Precision>().ok());
        hardware::Precision::of(recipe.unwrap_or(Precision::Bf16Mixed).matmul_dtype())
    }

    /// Whether optimizer states are paged.
    pub fn paged(&self, read: &mut Reader<'_>, options: &StepOptions) -> bool {
        self.optimizer.as_deref().is_some_and(|text| paged(read, text, options))
    }

    /// The step, with defaults that depend on the model and the device.
    pub fn read(&self, read: &mut Reader<'_>, model: Option<&Model>, hardware: Option<&Hardware>) -> StepOptions {
        let on_gpu = hardware.is_some_and(|h| h.kind == Kind::Gpu);
        let number = |read: &mut Reader<'_>, flag: &str, text: &Option<String>, default: u64| {
            read.flag_with(flag, text.as_deref(), some).unwrap_or(default)
        };
        let profile = word::<Profile>(read, "--profile", self.profile.as_deref()).unwrap_or(Profile::Fused);
        let optimizer = self.rule(read).unwrap_or((optim::Kind::AdamW, None));
        // The default of the implementation: PyTorch picks foreach on GPUs and a loop elsewhere.
        let implementation = optimizer.1.unwrap_or(match (profile, on_gpu) {
            (Profile::Fused, _) => Implementation::Fused,
            // Each parameter has an optimizer of its own.
            _ if self.optimizer_in_backward => Implementation::ForLoop,
            (_, true) => Implementation::ForEach,
            (_, false) => Implementation::ForLoop,
        });
        let lists = match self.autocast.as_deref() {
            None => {
                if on_gpu {
                    CastLists::Cuda
                } else {
                    CastLists::Cpu
                }
            }
            Some("cpu") => CastLists::Cpu,
            Some("cuda") => CastLists::Cuda,
            Some(other) => {
                read.problem(Diagnostic::error("", format!("--autocast: `{other}` is neither cpu nor cuda")));
                CastLists::Cpu
            }
        };
        let longest = model.and_then(|model| model.spec.max_positions).unwrap_or(4096).min(4096);
        let precision = self.precision.as_deref();
        let given = number(read, "--seq-len", &self.seq_len, longest);
        // The positions of an image or a sound are those of its size.
        let positions = model.and_then(|model| model.spec.signal()).map(nn::spec::SignalSpec::positions);
        let options = StepOptions {
            batch: number(read, "--batch", &self.batch, 1),
            seq_len: positions.unwrap_or(given),
            profile,
            precision: word::<Precision>(read, "--precision", precision).unwrap_or(Precision::Bf16Mixed),
            optimizer: OptimizerKind { kind: optimizer.0, implementation },
            recompute: word::<Recompute>(read, "--recompute", self.recompute.as_deref()).unwrap_or_default(),
            grad_accum_steps: number(read, "--grad-accum", &self.grad_accum, 1),
            autocast: if precision.is_some_and(|p| p.ends_with("cuda_lists")) { CastLists::Cuda } else { lists },
            steps: 2,
            warm: false,
            // Who drops inputs of adapters trains, and then the config's own dropout is on, too.
            dropout: self.dropout
                || model.and_then(|model| model.spec.tuning.lora.as_ref()).is_some_and(|lora| lora.dropout > 0.0),
            objective: Objective {
                head: word::<HeadLoss>(read, "--loss", self.loss.as_deref()).unwrap_or_default(),
                preference: word::<Reference>(read, "--dpo", self.dpo.as_deref()),
            },
            offload: word::<Offload>(read, "--offload", self.offload.as_deref()).unwrap_or_default(),
            in_backward: self.optimizer_in_backward,
            until: Until::Optimizer,
        };
        if options.in_backward {
            in_backward(read, &options);
        }
        options
    }
}

impl LayoutArgs {
    /// Its flags, each with whether it was given.
    pub fn given(&self) -> Vec<(&'static str, bool)> {
        let own = [
            ("--zero", self.zero.is_some()),
            ("--dp", self.dp.is_some()),
            ("--runtime", self.runtime.is_some()),
            ("--alloc-conf", self.alloc_conf.is_some()),
        ];
        own.into_iter().chain(self.gathering.given()).collect()
    }

    /// The memory question of a step on one of `devices`.
    pub fn read<'a>(
        &self,
        read: &mut Reader<'_>,
        options: StepOptions,
        hardware: Option<&'a Hardware>,
        devices: u64,
    ) -> Request<'a> {
        let zero = read.flag_with("--zero", self.zero.as_deref(), stage);
        let dp = read.flag_with("--dp", self.dp.as_deref(), some).unwrap_or(devices);
        // A problem with the number of devices is noted where it was read.
        if devices > 0 && !devices.is_multiple_of(dp) {
            read.problem(
                Diagnostic::error("", format!("--dp {dp} does not divide -n {devices}"))
                    .why("each group of data-parallel devices has as many as the others")
                    .help(format!("--dp {devices}")),
            );
        }
        if options.in_backward && zero.is_some_and(|stage| stage > 0) {
            read.problem(
                Diagnostic::error("", "--optimizer-in-backward with --zero: not modelled")
                    .why("what of a gradient is gathered and reduced when each parameter is updated depends on the engine")
                    .help("--zero 0"),
            );
        }
        let zero = zero.unwrap_or(0);
        let gathering = self.gathering.over(read, Gathering::USUAL, zero, options.grad_accum_steps);
        let given = read.flag::<Bytes>("--runtime", self.runtime.as_deref());
        let conf = read.flag::<Conf>("--alloc-conf", self.alloc_conf.as_deref());
        let other = hardware.filter(|hardware| hardware.kind != Kind::Gpu);
        if let (Some(_), Some(other)) = (&self.alloc_conf, other) {
            read.problem(
                Diagnostic::error("", format!("--alloc-conf: {} is no GPU", other.display))
                    .why("these are settings of PyTorch's allocator for GPUs")
                    .help("leave it out"),
            );
        }
        // On a GPU there always is one; where no device is named, if somebody asks for it.
        let process = match hardware {
            Some(hardware) if hardware.kind == Kind::Gpu => {
                let workspace = runtime::workspace(hardware);
                Some(Process { conf: conf.unwrap_or_default(), workspace, ..Process::default() })
            }
            _ => conf.map(|conf| Process { conf, ..Process::default() }),
        };
        Request {
            options,
            sharding: Sharding { gathering, ..Sharding::new(zero, dp) },
            hardware,
            runtime: given.unwrap_or(hardware.map_or(Bytes::ZERO, |hardware| runtime::bytes(hardware, dp))),
            runtime_given: given.is_some(),
            paged: false,
            process,
            depth: 1,
            timeline: false,
        }
    }
}

/// The name of a paged optimizer without that.
fn unpaged(text: &str) -> Option<&str> {
    ["paged-", "paged_", "PAGED_"].iter().find_map(|prefix| text.strip_prefix(prefix))
}

/// Whether states are paged, and a note where no optimizer of `bitsandbytes` is like that.
fn paged(read: &mut Reader<'_>, text: &str, options: &StepOptions) -> bool {
    if unpaged(text).is_none() {
        return false;
    }
    let kind = options.optimizer.kind;
    if !matches!(kind, optim::Kind::Adam | optim::Kind::AdamW | optim::Kind::Adam8bit | optim::Kind::Lion) {
        let problem = Diagnostic::error("", format!("--optimizer: bitsandbytes has no paged {}", kind.name()));
        read.problem(problem.help("paged-adamw").help("paged-adam-8bit"));
    } else if kind != optim::Kind::Adam8bit && options.precision.param_dtype() != DType::F32 {
        let problem =
            Diagnostic::error("", format!("--optimizer paged-{} with --precision {}", kind.name(), options.precision));
        read.problem(
            problem
                .why("not modelled: the states of bitsandbytes are in 32 bits whatever the parameters are")
                .help("--precision bf16-mixed")
                .help("--optimizer paged-adam-8bit"),
        );
    }
    true
}

/// Notes what an update within backward does not go with, as its source refuses it too.
fn in_backward(read: &mut Reader<'_>, options: &StepOptions) {
    let mut refuse = |with: String, why: &str, help: &str| {
        read.problem(Diagnostic::error("", format!("--optimizer-in-backward with {with}")).why(why).help(help));
    };
    if options.grad_accum_steps > 1 {
        let why = "a gradient is gone before the next micro-batch could be added to it";
        refuse(format!("--grad-accum {}", options.grad_accum_steps), why, "--grad-accum 1");
    }
    if options.precision == Precision::Fp16Mixed {
        let why = "a loss scale looks at all gradients before any parameter is updated, as clipping by their norm does";
        refuse("--precision fp16-mixed".to_owned(), why, "--precision bf16-mixed");
    }
    if options.precision.grad_dtype() != options.precision.param_dtype() {
        let why = "gradients are collected in buffers that live on";
        refuse(format!("--precision {}", options.precision), why, "--precision bf16-master");
    }
    if options.optimizer.implementation == Implementation::ForEach {
        let why = "each parameter has an optimizer of its own, and foreach updates many at once";
        refuse("a foreach optimizer".to_owned(), why, "--optimizer adamw-fused");
    }
    if options.offload.optimizer {
        let why = "not modelled: updates on the host while backward runs";
        refuse("--offload optimizer".to_owned(), why, "--offload none");
    }
}

/// A stage of ZeRO.
///
/// # Errors
/// A word that is none.
pub fn stage(text: &str) -> Result<u8, Diagnostic> {
    match text {
        "0" | "1" | "2" | "3" => Ok(text.as_bytes()[0] - b'0'),
        _ => Err(Diagnostic::error("", format!("`{text}` is no ZeRO stage: valid are 0, 1, 2, 3"))),
    }
}
