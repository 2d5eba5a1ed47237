//! `napkin infer llama-3.1-8b --hw h100-sxm --seq-len 8192`, or of a bare count: `napkin infer --params 125.1B --active 10B`.

use clap::Args;
use nn::config::Config;
use nn::spec::{SourceSpec, StackSpec};
use plan::fit::{Choice, Memory};
use plan::hardware::{Hardware, Kind};
use plan::inference::cache::WIDTH;
use plan::inference::{
    BLOCK, CHUNK, Request, Room, UTILIZATION, What, geometry, most_ranks, state_width, stated_state,
};
use plan::model::Model;
use plan::quant::{Format, Storage};
use plan::report::Report;
use units::{Bytes, Diagnostic, Diagnostics, Params};

use crate::args::FleetArgs;
use crate::config::{self, Text};
use crate::model_args::ConfigArgs;
use crate::parse::{Reader, count, positive, positive_share, some};
use crate::step::dense;

/// What inference takes: weights, keys and values, sequences that fit, time of a prompt and of a token.
#[derive(Debug, Args)]
pub struct Infer {
    /// A config.json, its folder, a preset, - for standard input, or a bare count such as dense:70B
    pub model: Option<String>,
    /// How the config is read
    #[command(flatten)]
    pub reading: ConfigArgs,
    /// Parameters, instead of a model, or of one whose family is not known
    #[arg(long, value_name = "N")]
    pub params: Option<String>,
    /// Parameters that a token uses, where they are fewer
    #[arg(long, value_name = "N")]
    pub active: Option<String>,
    /// Layers, key/value heads and head dim of a bare count, such as 32x8x128
    #[arg(long, value_name = "LxKxD")]
    pub kv: Option<String>,
    /// How weights are kept
    #[command(flatten)]
    pub formats: FormatArgs,
    /// Sequences
    #[command(flatten)]
    pub sequences: SequenceArgs,
    /// The engine
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Devices; without --hw only bytes are answered
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Share of the dense peak that prompts reach [default: 1, the bound]
    #[arg(long, value_name = "SHARE")]
    pub mfu: Option<String>,
    /// Share of the memory bandwidth that tokens reach [default: 1, the bound]
    #[arg(long, value_name = "SHARE")]
    pub mbu: Option<String>,
}

/// Number formats.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Formats")]
pub struct FormatArgs {
    /// bf16, fp8, int8, nf4, nf4-dq, gptq, awq, mxfp4, nvfp4, a block type of GGUF such as `Q4_K`, ... [default: bf16]
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<String>,
    /// Bytes of every parameter, instead of a format
    #[arg(long, value_name = "BYTES", conflicts_with = "weights")]
    pub bytes_per_param: Option<String>,
    /// Recurrent states: bf16 or fp32 [default: `mamba_ssm_dtype` of the config, else bf16]
    #[arg(long, visible_alias = "mamba-ssm-cache-dtype", value_name = "DTYPE")]
    pub state_dtype: Option<String>,
    /// Keys and values: bf16, fp8, int8, `Q8_0`, `Q4_0`, ... [default: bf16]
    #[arg(long, value_name = "FORMAT")]
    pub kv_dtype: Option<String>,
}

/// Sizes of sequences.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sequences")]
pub struct SequenceArgs {
    /// Tokens of a sequence, prompt and answer [default: the model's own limit, at most 8192]
    #[arg(long, visible_alias = "max-model-len", value_name = "N")]
    pub seq_len: Option<String>,
    /// Positions of the encoder of a model that has one [default: its own limit, at most 512; of a sound its own]
    #[arg(long, value_name = "N")]
    pub encoder_len: Option<String>,
    /// Tokens of its prompt [default: all of them; behind an encoder 1]
    #[arg(long, value_name = "N")]
    pub prompt: Option<String>,
    /// Sequences at the same time [default: 1]
    #[arg(long, value_name = "N")]
    pub batch: Option<String>,
}

/// How an engine divides memory.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Tokens of a block of the cache [default: 16]
    #[arg(long, value_name = "N")]
    pub block_size: Option<String>,
    /// Most tokens of prompts read in one step [default: 8192]
    #[arg(long, visible_alias = "max-num-batched-tokens", value_name = "N")]
    pub prefill_chunk: Option<String>,
    /// Devices that share each matrix [default: as many as divide the heads; the rest are replicas]
    #[arg(long, value_name = "N")]
    pub tp: Option<String>,
    /// Share of a device's memory that is used [default: 0.9 of an accelerator, 1 of --memory]
    #[arg(long, value_name = "SHARE")]
    pub gpu_memory_utilization: Option<String>,
    /// Bytes of driver context and libraries per device [default: 1GiB on an accelerator]
    #[arg(long, value_name = "BYTES")]
    pub runtime: Option<String>,
    /// Memory of one device, such as 48GB or 80GiB, instead of an accelerator's
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Memory for keys and values on one device, instead of what the weights leave
    #[arg(long, value_name = "SIZE", conflicts_with = "memory")]
    pub kv_memory: Option<String>,
    /// Tokens that the engine says its cache has room for
    #[arg(long, value_name = "N", conflicts_with_all = ["memory", "kv_memory"])]
    pub kv_tokens: Option<String>,
}

impl Infer {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let subject = self.subject(&mut read);
        let (hardware, devices) = read.device(&self.fleet.device.at_least(self.engine.tp.as_ref()));
        let request = self.request(&mut read, subject.as_ref(), hardware.as_ref(), devices);
        let (subject, request) = read.finish(subject.zip(Some(request)))?;
        let what = match &subject {
            Subject::Model(model) => What::Model(model),
            Subject::Other(what) => what.clone(),
        };
        Request { what, ..request }.report()
    }

    /// Whether the first word is a bare count.
    fn dense(&self) -> Option<&str> {
        self.model.as_deref().filter(|name| name.starts_with("dense:"))
    }

    fn subject(&self, read: &mut Reader<'_>) -> Option<Subject> {
        let Some(name) = self.model.as_ref().filter(|_| self.dense().is_none()) else {
            if self.model.is_none() && self.params.is_none() {
                let problem = Diagnostic::error("", "which model?").help("llama-3.1-8b").help("path/to/config.json");
                read.problem(problem.help("--params 125.1B --active 10B --bytes-per-param 0.58"));
                return None;
            }
            self.reading.no_effect(read, "a bare count has no config");
            return self.bare(read).map(Subject::Other);
        };
        let of_a_bare_count = |read: &mut Reader<'_>, flag: &str, given: &Option<String>| {
            if given.is_some() {
                read.problem(Diagnostic::error("", format!("{flag} is of a bare count: the config says it")));
            }
        };
        of_a_bare_count(read, "--kv", &self.kv);
        let overrides = self.reading.overrides(read);
        if overrides.len() < self.reading.set.len() {
            return None;
        }
        let text = read.take_all(config::find(read.files(), name))?;
        let assume = self.reading.assume.as_deref();
        match Model::from_text(text.name.as_str(), &text.file, &text.bytes, &overrides, assume) {
            Ok(model) => {
                of_a_bare_count(read, "--params", &self.params);
                of_a_bare_count(read, "--active", &self.active);
                if !model.spec.continues_text() {
                    read.take_all(model.require_language_model("infer"));
                }
                Some(Subject::Model(Box::new(model)))
            }
            // A family that is not known still says what its heads keep.
            Err(problems) if assume.is_none() && problems.iter().any(|p| p.code == "T0301") => {
                let partial = self.partial(read, &text, &overrides);
                if partial.is_none() {
                    read.problems(problems);
                }
                partial.map(Subject::Other)
            }
            Err(problems) => {
                read.problems(problems);
                None
            }
        }
    }

    /// What the keys of a config say whose family is not known.
    fn partial(&self, read: &mut Reader<'_>, text: &Text, overrides: &[(String, String)]) -> Option<What<'static>> {
        let (config, mut notes) = Config::parse(&text.file, &text.bytes);
        let (config, more) = config?.with_overrides(overrides);
        notes.extend(more);
        let geometry = geometry::read(&config).ok()?;
        let total = read.flag_with("--params", self.params.as_deref(), dense);
        let active = read.flag_with("--active", self.active.as_deref(), dense);
        let params = total.map(|total| (total, active.unwrap_or(total)));
        let notes = notes.iter().cloned().collect();
        Some(What::Partial { name: text.name.clone(), geometry, params, notes })
    }

    fn bare(&self, read: &mut Reader<'_>) -> Option<What<'static>> {
        let text = self.params.as_deref().or(self.dense());
        let total = read.flag_with("--params", text, dense);
        let active = read.flag_with("--active", self.active.as_deref(), dense);
        let heads = read.flag_with("--kv", self.kv.as_deref(), heads);
        let total: Params = total?;
        let name = self.dense().map_or_else(|| format!("{total} parameters"), str::to_owned);
        Some(What::Bare { name, total, active: active.unwrap_or(total), heads })
    }

    fn request<'a>(
        &self,
        read: &mut Reader<'_>,
        subject: Option<&Subject>,
        hardware: Option<&Hardware>,
        devices: u64,
    ) -> Request<'a> {
        let engine = &self.engine;
        let weights = read.flag::<Storage>("--weights", self.formats.weights.as_deref());
        let each = read.flag_with("--bytes-per-param", self.formats.bytes_per_param.as_deref(), positive);
        let weights = weights.or(each.map(Storage::PerParameter));
        let cache = read.flag_with("--kv-dtype", self.formats.kv_dtype.as_deref(), cache_format);
        let stated = subject.and_then(Subject::stated);
        let own = stated.as_ref().and_then(|format| format.as_ref().ok().copied()).unwrap_or(Format::bf16());
        let state = read.flag_with("--state-dtype", self.formats.state_dtype.as_deref(), state_width);
        let longest = subject.and_then(Subject::max_positions).unwrap_or(8192).min(8192);
        let number =
            |read: &mut Reader<'_>, flag: &str, text: &Option<String>| read.flag_with(flag, text.as_deref(), count);
        let seq_len = Choice::or(number(read, "--seq-len", &self.sequences.seq_len), longest);
        let encoder = match subject {
            Some(Subject::Model(model)) => model.spec.encoder.as_deref(),
            _ => None,
        };
        let of_prompt = if encoder.is_some() { 1 } else { seq_len.value };
        let prompt = Choice::or(number(read, "--prompt", &self.sequences.prompt), of_prompt);
        let encoder_len = self.encoder_len(read, encoder);
        let tensor_parallel = match subject {
            Some(Subject::Model(model)) => most_ranks(model, devices),
            _ => devices,
        };
        let tp = Choice::or(read.flag_with("--tp", engine.tp.as_deref(), some), tensor_parallel);
        if !devices.is_multiple_of(tp.value) {
            let problem = Diagnostic::error("", format!("--tp {} does not divide -n {devices}", tp.value));
            read.problem(problem.why("each replica has as many devices as the others").help(format!("--tp {devices}")));
        }
        let memory = read.flag::<Bytes>("--memory", engine.memory.as_deref());
        let kv_memory = read.flag::<Bytes>("--kv-memory", engine.kv_memory.as_deref());
        let kv_tokens = number(read, "--kv-tokens", &engine.kv_tokens);
        let device = hardware.filter(|_| memory.is_none());
        let of_device = device.is_some_and(|device| device.kind != Kind::Cpu);
        let room = match (kv_tokens, kv_memory, memory, hardware) {
            (Some(tokens), ..) => Room::Tokens(tokens),
            (_, Some(bytes), ..) => Room::Bytes(bytes),
            (_, _, Some(bytes), _) => Room::Memory(Memory::Given(bytes)),
            (_, _, _, Some(device)) => Room::Memory(Memory::Of(Box::new(device.clone()))),
            _ => Room::None,
        };
        let share = |read: &mut Reader<'_>, flag: &str, text: &Option<String>| {
            read.flag_with(flag, text.as_deref(), positive_share)
        };
        let utilization = share(read, "--gpu-memory-utilization", &engine.gpu_memory_utilization);
        let runtime = read.flag::<Bytes>("--runtime", engine.runtime.as_deref());
        let idle = [("--dtype", self.fleet.dtype.is_some()), ("--peak", self.fleet.peak.is_some())];
        let fleet = read.fleet_if_named(&self.fleet.at_least(engine.tp.as_ref()), &idle);
        Request {
            what: What::Bare { name: String::new(), total: Params(0), active: Params(0), heads: None },
            weights: Choice::or(weights, Storage::Format(own)),
            stated: stated.map(|format| format.map(|_| ())),
            cache: Choice::or(cache, Format::bf16()),
            state: Choice::or(state, subject.and_then(Subject::state).unwrap_or(WIDTH)),
            seq_len,
            prompt,
            encoder_len,
            batch: Choice::or(number(read, "--batch", &self.sequences.batch), 1),
            block: Choice::or(number(read, "--block-size", &engine.block_size), BLOCK),
            chunk: Choice::or(number(read, "--prefill-chunk", &engine.prefill_chunk), CHUNK),
            tp,
            room,
            utilization: Choice::or(utilization, if of_device { UTILIZATION } else { 1.0 }),
            runtime: Choice::or(runtime, device.map_or(Bytes::ZERO, |device| plan::runtime::bytes(device, tp.value))),
            fleet,
            mfu: Choice::or(share(read, "--mfu", &self.mfu), 1.0),
            mbu: Choice::or(share(read, "--mbu", &self.mbu), 1.0),
        }
    }
}

impl Infer {
    /// Positions of the encoder, as far as they are not those of a sound.
    fn encoder_len(&self, read: &mut Reader<'_>, encoder: Option<&StackSpec>) -> Choice<u64> {
        let given = read.flag_with("--encoder-len", self.sequences.encoder_len.as_deref(), count);
        let Some(encoder) = encoder else {
            let why = "the model has no encoder";
            read.no_effect(&[("--encoder-len", given.is_some())], why);
            return Choice::or(None, 1);
        };
        match &encoder.embedding.source {
            SourceSpec::Tokens => {
                let longest = encoder.embedding.positions.as_ref().map_or(512, |table| table.count.min(512));
                Choice::or(given, longest)
            }
            SourceSpec::Signal(signal) => {
                let own = signal.positions();
                if given.is_some_and(|given| given != own) {
                    read.problem(
                        Diagnostic::error(
                            "",
                            format!("--encoder-len: the encoder reads {}, always {own} positions", signal.what),
                        )
                        .help("leave it out"),
                    );
                }
                Choice::or(None, own)
            }
        }
    }
}

/// What is asked about, with what it rests on.
#[derive(Debug)]
enum Subject {
    Model(Box<Model>),
    Other(What<'static>),
}

impl Subject {
    /// The longest sequence it is made for.
    fn max_positions(&self) -> Option<u64> {
        match self {
            Self::Model(model) => model.spec.max_positions,
            Self::Other(What::Partial { geometry, .. }) => geometry.max_positions,
            Self::Other(_) => None,
        }
    }

    /// How wide its config says that states are.
    fn state(&self) -> Option<u64> {
        stated_state(&self.config()?)
    }

    fn config(&self) -> Option<Config> {
        let Self::Model(model) = self else { return None };
        Config::parse("config.json", model.config.as_bytes()).0
    }

    /// How its config says that weights are kept.
    fn stated(&self) -> Option<Result<&'static Format, String>> {
        plan::quant::stated(&self.config()?)
    }
}

/// A format that keys and values are kept in.
fn cache_format(text: &str) -> Result<&'static Format, Diagnostic> {
    let format = Format::find(text)?;
    if format.in_caches {
        return Ok(format);
    }
    let known = plan::quant::formats().iter().filter(|format| format.in_caches);
    let known: Vec<&str> = known.map(|format| format.name).collect();
    Err(Diagnostic::error("T0452", format!("no engine keeps keys and values in {}", format.name))
        .help(known.join(", ")))
}

/// `32x8x128`.
fn heads(text: &str) -> Result<[u64; 3], Diagnostic> {
    let sizes: Result<Vec<u64>, _> = text.split(['x', '×']).map(some).collect();
    sizes?.try_into().map_err(|_| {
        Diagnostic::error("", format!("`{text}` is not layers x key/value heads x head dim")).help("--kv 32x8x128")
    })
}
