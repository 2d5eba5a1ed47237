//! What inference takes: bytes of weights and of what is kept of the tokens, how many sequences fit, how long a prompt and a
//! token take.
//!
//! | module | answers |
//! |---|---|
//! | [`cache`] | what each layer keeps of a sequence: what the model needs |
//! | [`geometry`] | the same by keys alone, for families whose modules are not known |
//! | [`paged`] | what a paged engine charges for it |
//! | [`weights`] | bytes of weights, in memory and read by a step |
//! | [`roofline`] | prompts and tokens in time |
//! | [`subject`] | all of it for one model |
//! | [`report`] | the answer |

pub mod cache;
pub mod geometry;
pub mod paged;
pub mod report;
pub mod roofline;
pub mod subject;
pub mod weights;

use nn::config::Config;
use units::{Bytes, BytesPerSecond, Diagnostic, Diagnostics, Params};

use self::geometry::Geometry;
use crate::fit::{Choice, Memory};
use crate::fleet::Fleet;
use crate::model::Model;
use crate::quant::{Format, Storage};

/// Bytes of an element of a recurrent state, if the config says its dtype (`mamba_ssm_dtype`).
pub fn stated_state(config: &Config) -> Option<u64> {
    let keys = ["mamba_ssm_dtype", "mamba_ssm_cache_dtype"];
    let text = keys.into_iter().find_map(|key| config.find(key)?.value.as_str().map(str::to_owned))?;
    state_width(&text).ok()
}

/// Bytes of an element of a recurrent state in this dtype.
///
/// # Errors
/// `T0453` for what is neither 16 nor 32 bits wide.
pub fn state_width(text: &str) -> Result<u64, Diagnostic> {
    match text.trim().trim_start_matches("torch.").to_lowercase().as_str() {
        "float32" | "fp32" | "f32" => Ok(4),
        "bfloat16" | "bf16" | "float16" | "fp16" | "f16" => Ok(2),
        _ => Err(Diagnostic::error("T0453", format!("states are not kept in `{}`", text.trim())).help("bf16, fp32")),
    }
}

/// Share of the memory that an engine takes for itself where nobody says otherwise (vLLM's `gpu_memory_utilization`).
pub const UTILIZATION: f64 = 0.9;
/// Tokens of a block where nobody says otherwise (vLLM's `block_size`).
pub const BLOCK: u64 = 16;
/// Tokens of prompts read in one step where nobody says otherwise (vLLM's `max_num_batched_tokens` on large devices).
pub const CHUNK: u64 = 8192;

/// Tensor-parallel devices where nobody says otherwise: as many of `devices` as divide them and the query heads of every
/// block evenly. More than a few nodes share no matrix, so at most 4096.
pub fn most_ranks(model: &Model, devices: u64) -> u64 {
    let heads: Vec<u64> =
        model.spec.layers.iter().filter_map(|layer| layer.attention()).map(|attention| attention.heads).collect();
    let divides =
        |ranks: &u64| devices.is_multiple_of(*ranks) && heads.iter().all(|heads| heads.is_multiple_of(*ranks));
    (1..=devices.min(1 << 12)).rev().find(divides).unwrap_or(1)
}

/// What is asked about.
#[derive(Clone, Debug)]
pub enum What<'a> {
    /// A model.
    Model(&'a Model),
    /// A config of a family whose modules are not known.
    Partial {
        /// What the user called it.
        name: String,
        /// What its layers keep.
        geometry: Geometry,
        /// All parameters and those of a token, if somebody knows them.
        params: Option<(Params, Params)>,
        /// Notes of the reader of the file.
        notes: Vec<Diagnostic>,
    },
    /// A bare count of parameters.
    Bare {
        /// What the user called it.
        name: String,
        /// All of them.
        total: Params,
        /// Those of a token.
        active: Params,
        /// Layers, key/value heads, head dim, if they are known.
        heads: Option<[u64; 3]>,
    },
}

/// Where sequences are kept.
#[derive(Clone, Debug)]
pub enum Room {
    /// Nowhere in particular: only bytes are asked.
    None,
    /// What the memory of a device leaves.
    Memory(Memory),
    /// So many bytes for keys and values on each device.
    Bytes(Bytes),
    /// So many tokens, as the engine counts them.
    Tokens(u64),
}

/// The question.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// About what.
    pub what: What<'a>,
    /// How weights are kept.
    pub weights: Choice<Storage>,
    /// Whether the config says how weights are kept: true if `weights` is that, else what was not understood.
    pub stated: Option<Result<(), String>>,
    /// How keys and values are kept.
    pub cache: Choice<&'static Format>,
    /// Bytes of an element of a recurrent state.
    pub state: Choice<u64>,
    /// Tokens of a sequence, prompt and answer.
    pub seq_len: Choice<u64>,
    /// Tokens of its prompt.
    pub prompt: Choice<u64>,
    /// Positions of the encoder, where there is one.
    pub encoder_len: Choice<u64>,
    /// Sequences at the same time.
    pub batch: Choice<u64>,
    /// Tokens of a block.
    pub block: Choice<u64>,
    /// Tokens of prompts read in one step.
    pub chunk: Choice<u64>,
    /// Devices that share the matrices.
    pub tp: Choice<u64>,
    /// Where sequences are kept.
    pub room: Room,
    /// Share of the memory that is used.
    pub utilization: Choice<f64>,
    /// Bytes of context and libraries on a device.
    pub runtime: Choice<Bytes>,
    /// The devices, if times are asked.
    pub fleet: Option<Fleet>,
    /// Share of the peak that prompts reach.
    pub mfu: Choice<f64>,
    /// Share of the bandwidth that tokens reach.
    pub mbu: Choice<f64>,
}

/// Most bytes of a parameter: far beyond those of any number, and few enough to count.
const MOST_PER_PARAMETER: f64 = 64.0;

impl Request<'_> {
    /// Collects what is wrong with it.
    fn check(&self) -> Result<(), Diagnostics> {
        let mut problems = Diagnostics::new();
        for (flag, value) in [
            ("--seq-len", self.seq_len.value),
            ("--prompt", self.prompt.value),
            ("--encoder-len", self.encoder_len.value),
            ("--batch", self.batch.value),
            ("--block-size", self.block.value),
            ("--prefill-chunk", self.chunk.value),
            ("--tp", self.tp.value),
        ] {
            if value == 0 {
                problems.push(Diagnostic::error("T0306", format!("{flag} must be at least 1")));
            } else if value > 1 << 31 {
                let problem = Diagnostic::error("T0306", format!("{flag} {value} is more than is counted"));
                problems.push(problem.why("pairs of positions are counted in 64 bits").help(format!("{flag} 131072")));
            }
        }
        if self.prompt.value > self.seq_len.value {
            let message = format!("--prompt {} is longer than --seq-len {}", self.prompt.value, self.seq_len.value);
            problems.push(
                Diagnostic::error("T0306", message)
                    .why("a sequence is its prompt and its answer")
                    .help(format!("--seq-len {}", self.prompt.value)),
            );
        }
        for (flag, share) in
            [("--gpu-memory-utilization", self.utilization.value), ("--mfu", self.mfu.value), ("--mbu", self.mbu.value)]
        {
            if !(share > 0.0 && share <= 1.0) {
                problems.push(
                    Diagnostic::error("T0461", format!("{flag} {share} is no share"))
                        .why("above 0, at most 1")
                        .help(format!("{flag} 0.9")),
                );
            }
        }
        if let Storage::PerParameter(each) = self.weights.value
            && each > MOST_PER_PARAMETER
        {
            problems.push(
                Diagnostic::error("T0306", format!("--bytes-per-param {each} is more than is counted"))
                    .why("the widest number takes 8 bytes")
                    .help("--bytes-per-param 2"),
            );
        }
        if let What::Bare { total, active, .. } | What::Partial { params: Some((total, active)), .. } = &self.what
            && active > total
        {
            problems.push(
                Diagnostic::error("T0462", format!("--active {active} is more than --params {total}"))
                    .why("a token uses some of the parameters or all"),
            );
        }
        if let What::Partial { name, params: None, .. } = &self.what
            && (self.fleet.is_some() || matches!(self.room, Room::Memory(_)))
        {
            problems.push(
                Diagnostic::error("T0465", format!("how many parameters `{name}` has is not known"))
                    .why("weights take a part of the memory, and reading them a part of the time")
                    .help("--params 8.03B")
                    .help("--kv-memory 40GiB, if that is what is left for keys and values"),
            );
        }
        problems.extend(self.check_heads());
        problems.extend(self.check_direction());
        if problems.has_errors() { Err(problems) } else { Ok(()) }
    }

    /// A model that does not say one token after another.
    fn check_direction(&self) -> Option<Diagnostic> {
        let What::Model(model) = &self.what else { return None };
        if model.spec.weighs_keys() {
            return Some(
                Diagnostic::error("T0466", format!("`{}` weights its keys by all values before", model.name))
                    .why("what that keeps of the tokens before is not counted"),
            );
        }
        if model.spec.patches.is_some() {
            return Some(
                Diagnostic::error("T0466", format!("`{}` reads bytes in patches", model.name))
                    .why("what its three stacks keep of the bytes before is not counted")
                    .help(format!("napkin flops {} says what reading a text costs", model.name)),
            );
        }
        (!model.spec.continues_text()).then(|| {
            Diagnostic::error("T0466", format!("`{}` continues no text", model.name))
                .why("what is kept of the tokens before is of use where each token is made from those before it alone")
                .help(format!("napkin flops {} says what reading a text costs", model.name))
        })
    }

    /// Positions of the encoder that the model has.
    fn encoded(&self) -> Option<u64> {
        let What::Model(model) = &self.what else { return None };
        model.spec.encoder.is_some().then_some(self.encoder_len.value)
    }

    /// Devices between which heads cannot be divided.
    fn check_heads(&self) -> Option<Diagnostic> {
        let What::Model(model) = &self.what else { return None };
        let tp = self.tp.value;
        let heads = model.spec.layers.iter().filter_map(|layer| layer.attention()).map(|attention| attention.heads);
        let uneven = heads.into_iter().find(|heads| tp > 0 && !heads.is_multiple_of(tp))?;
        let pairs = (1..=uneven.isqrt()).filter(|small| uneven.is_multiple_of(*small));
        let divisors = pairs.flat_map(|small| [small, uneven / small]);
        let near = divisors.filter(|devices| *devices < tp).max().unwrap_or(1);
        Some(
            Diagnostic::error("T0463", format!("{uneven} query heads cannot be divided evenly over --tp {tp}"))
                .why("each device computes as many heads as the others")
                .help(format!("--tp {near}")),
        )
    }

    /// The memory of one device that is planned with.
    fn capacity(&self) -> Option<Bytes> {
        match &self.room {
            Room::Memory(memory) => Some(memory.capacity()),
            _ => None,
        }
    }

    /// Copies of the model on the devices.
    fn replicas(&self) -> u64 {
        self.fleet.as_ref().map_or(1, |fleet| (fleet.devices / self.tp.value.max(1)).max(1))
    }

    /// The bandwidth between devices.
    fn link(&self) -> Option<BytesPerSecond> {
        let fleet = self.fleet.as_ref().filter(|_| self.tp.value > 1)?;
        Some(fleet.hardware.node_link().or_else(|| fleet.hardware.links.first())?.per_direction)
    }
}
