//! Peak memory of a row: what the step allocates, or what PyTorch's allocator reserves for it.
//!
//! Only rows that say all of it are predicted: the layout, a precision recipe, an optimizer, what is recomputed, how long
//! sequences are, and which bytes were read.

use nn::blocks::Blocks;
use nn::offload::Offload;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::spec::{Lora, Targets, Tuning};
use nn::step::{ParamInfo, Precision, StepOptions, Until};
use nn::{HeadLoss, Objective, Profile, Recompute};
use tensor::CastLists;
use tensor::packed::Format;
use units::Bytes;

use super::architecture;
use super::facts::first;
use super::fits;
use super::judge::Compared;
use super::ranks;
use super::recipe::{self, Of};
use super::row::{Reading, Row};
use crate::allocator::{Beside, Process};
use crate::formulas::{Eval, known};
use crate::hardware::{self, Hardware, HardwareError};
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::model::Model;
use crate::runtime;
use crate::sharding::Sharding;
use crate::timeline::Device;

const GIB: f64 = (1u64 << 30) as f64;

/// Which bytes a row is about; each kind has a bound of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeakKind {
    /// A formula of the source itself.
    Formula,
    /// Live tensors.
    Allocated,
    /// The same with adapters.
    Adapters,
    /// The same with adapters beside packed weights.
    Packed,
    /// What the allocator has taken from the driver.
    Reserved,
}

impl PeakKind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Formula => "formula",
            Self::Allocated => "allocated",
            Self::Adapters => "with adapters",
            Self::Packed => "with adapters, packed",
            Self::Reserved => "reserved",
        }
    }

    /// Largest error: of each row of a formula, else of the median.
    pub const fn bound(self) -> f64 {
        match self {
            Self::Formula => 0.01,
            Self::Allocated => 0.05,
            Self::Reserved => 0.08,
            Self::Adapters | Self::Packed => 0.10,
        }
    }
}

/// A prediction beside what was printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Which bytes.
    pub kind: PeakKind,
    /// The recipe.
    pub how: String,
    /// What the row leaves open, and how it was closed.
    pub assumed: Vec<String>,
    /// The numbers, in bytes; of a formula that gives a share, in percent.
    pub compared: Compared,
}

/// Predicts the memory of a row.
///
/// # Errors
/// What the row does not say, or what is not modelled.
pub fn peak(row: &Row) -> Result<Peak, String> {
    if matches!(row.kind.as_str(), "activation_memory" | "state_memory") {
        return formula(row);
    }
    let printed = row.memory.ok_or("the unit of the printed number is not certain")?;
    let mut assumed = Vec::new();
    if let Some(rule) = recipe::find(&row.source, Of::Unknown).filter(|rule| rule.value == row.kind) {
        return Err(rule.reason.to_owned());
    }
    let reserved = reads_reserved(row)?;
    let run = prepare(row, reserved, &mut assumed)?;
    let (model, options, sharding) = (&run.model, &run.options, run.sharding);
    let (bytes, division) = if run.divided {
        let layout = ranks::layout(row, &model.spec, sharding, options, &mut assumed)?;
        let (engine, places) = (ranks::engine(row, &mut assumed), ranks::places(row, layout.pp)?);
        let each = ranks::trace(&model.spec, &layout, options, engine, places)?;
        let bytes = each.iter().map(|rank| {
            if !reserved {
                return Ok(rank.memory(&layout).peak_bytes);
            }
            let process =
                process(row, &rank.traced.params, layout.sharding(), Some(rank_stream(&run, &layout)), &mut assumed)?;
            let blocks = ranks::blocks_of(rank);
            let empty = Device::new(&rank.traced, &rank.options, layout.sharding(), blocks);
            Ok(fits::reserved(row, layout.devices(), &process, &empty))
        });
        let bytes = bytes.collect::<Result<Vec<_>, String>>()?;
        (bytes.into_iter().max().ok_or("no rank")?, layout.to_string())
    } else {
        let traced = model.trace(options).map_err(|problems| first(&problems))?;
        let names = &model.spec.names;
        let bytes = if reserved {
            let process = process(row, &traced.params, sharding, None, &mut assumed)?;
            let empty = Device::new(&traced, options, sharding, Blocks::of(names));
            fits::reserved(row, sharding.dp, &process, &empty)
        } else {
            let beside = beside(row, sharding, &traced.params, &mut assumed);
            let ledger = Ledger::of(&traced, options, sharding, names, Bytes::ZERO);
            ledger.peak_bytes + beside.held.iter().sum::<u64>()
        };
        (bytes, format!("zero {} over {}", sharding.zero, sharding.dp))
    };
    assumed.dedup();
    let kind = match (reserved, run.tuned) {
        (true, _) => PeakKind::Reserved,
        (_, true) if run.packed => PeakKind::Packed,
        (_, true) => PeakKind::Adapters,
        _ => PeakKind::Allocated,
    };
    let how = format!(
        "{}, {}, recompute {}, {division}",
        options.profile.name(),
        options.precision,
        options.recompute.name()
    );
    let compared = Compared { reported: in_bytes(printed), predicted: bytes as f64 };
    Ok(Peak { kind, how, assumed, compared })
}

/// The run of a row.
pub(super) struct Run {
    pub model: Model,
    pub options: StepOptions,
    pub sharding: Sharding,
    /// Whether ranks differ in more than in the sequences they see.
    pub divided: bool,
    tuned: bool,
    packed: bool,
}

/// Model and step of a row; two steps, from the first on, where it is about what is reserved.
pub(super) fn prepare(row: &Row, reserved: bool, assumed: &mut Vec<String>) -> Result<Run, String> {
    let tuning = tuning(row, assumed)?;
    let options = options(row, assumed)?;
    let sharding = sharding(row)?;
    let divided = ranks::is_divided(row);
    if divided && !tuning.is_plain() {
        return Err("adapters of a model that is divided are not predicted".to_owned());
    }
    let described = architecture::describe(&as_built(row, assumed)?)?;
    assumed.extend(described.assumed);
    let (tuned, packed) = (!tuning.is_plain(), tuning.packed.is_some());
    let model = architecture::model(&row.model, &described.config)?;
    let mut model = if tuned { model.tuned(tuning).map_err(|problems| first(&problems))? } else { model };
    model.spec.fused_norms = follow(row, Of::Norms, assumed).is_some();
    model.spec.gathers_again = divided && follow(row, Of::Gathered, assumed).is_some();
    // Where the reference has no fused attention for the family, it is explicit.
    let eager = options.profile == Profile::HfSdpa && !model.spec.has_sdpa;
    let profile = if eager { Profile::HfEager } else { options.profile };
    let steps = if reserved { 2 } else { 1 };
    let options = StepOptions { steps, warm: !reserved, dropout: tuned, profile, ..options };
    Ok(Run { model, options, sharding, divided, tuned, packed })
}

/// Bytes of the stream that the ranks of a matrix gather; none where they do not.
pub(super) fn rank_stream(run: &Run, layout: &Layout) -> u64 {
    let rows = layout.micro_batch.saturating_mul(run.options.seq_len / layout.cp);
    if layout.sp { NARROW.saturating_mul(rows).saturating_mul(run.model.spec.hidden_size) } else { 0 }
}

/// The allocator of a rank with these parameters.
pub(super) fn process(
    row: &Row,
    params: &[ParamInfo],
    sharding: Sharding,
    stream: Option<u64>,
    assumed: &mut Vec<String>,
) -> Result<Process, String> {
    let mut beside = beside(row, sharding, params, assumed);
    if let (Some(stream @ 1..), Some(names)) = (stream, follow(row, Of::GatherBuffers, assumed)) {
        beside.held.extend(names.split(' ').map(|_| stream));
        beside.gathers_into_held = true;
    }
    // Other jobs show no such block; why is not known, and the table says which jobs they are.
    let is_ahead = ["fast_fabric", "post_pp_fix"].iter().any(|mark| row.notes.contains(mark));
    beside.frees_late = is_ahead && follow(row, Of::Streams, assumed).is_some();
    Ok(Process { workspace: workspace(row)?, beside, ..Process::default() })
}

/// The value of a rule of the row's source, whose reason is noted.
pub(super) fn follow(row: &Row, of: Of, assumed: &mut Vec<String>) -> Option<&'static str> {
    let rule = recipe::find(&row.source, of)?;
    assumed.push(rule.reason.to_owned());
    Some(rule.value)
}

/// The row with what its source's code does to every model.
fn as_built(row: &Row, assumed: &mut Vec<String>) -> Result<Row, String> {
    let mut row = row.clone();
    if row.sizes.tied != Some(false) && follow(&row, Of::Head, assumed).is_some() {
        row.sizes.tied = Some(false);
        // No preset by the name, which may be tied.
        row.model.push_str(" as built");
    }
    if let Some(vocab) = ranks::filled_up(&row, assumed)? {
        row.sizes.vocab = Some(vocab);
    }
    Ok(row)
}

/// A number of GiB in bytes.
fn in_bytes(printed: Reading) -> Reading {
    Reading { value: printed.value * GIB, slack: printed.slack * GIB }
}

/// Whether the printed bytes are reserved; else they are allocated.
fn reads_reserved(row: &Row) -> Result<bool, String> {
    let kind = row.memory_kind.to_lowercase();
    if kind.contains("after") {
        return Err("read at another moment than the peak of a step".to_owned());
    }
    if kind.starts_with("reserved") {
        return Ok(true);
    }
    if kind.starts_with("allocated") || kind.starts_with("peak active") {
        return Ok(false);
    }
    if kind.starts_with("nvidia-smi") {
        return Err("nvidia-smi: versions of driver and libraries, which decide the context, are not stated".to_owned());
    }
    Err(format!("which memory it is, is not stated: {}", if kind.is_empty() { "nothing" } else { &kind }))
}

/// The step, but for how often it is made.
fn options(row: &Row, assumed: &mut Vec<String>) -> Result<StepOptions, String> {
    if row.notes.contains("unpacked") {
        return Err("sequences are not packed: how long they are is not stated".to_owned());
    }
    let batch = row.micro_batch.ok_or("no micro-batch in the row")?;
    let seq_len = row.seq_len.ok_or("no sequence length in the row")?;
    if row.notes.contains("is a cap") {
        assumed.push(format!("the longest sample reaches the cap of {seq_len} tokens"));
    }
    let precision = precision(row)?;
    let recompute = match row.recompute.as_str() {
        "none" => Recompute::None,
        "full" => Recompute::Full,
        "selective (attention core)" => Recompute::Selective,
        "" => follow(row, Of::Recompute, assumed).ok_or("what is recomputed is not stated")?.parse()?,
        other => return Err(format!("recomputation that is not modelled: {other}")),
    };
    let implementation = if row.optimizer.contains("fused in backward") {
        return Err("updates inside of backward are not modelled".to_owned());
    } else if row.optimizer.contains("fused") {
        Implementation::Fused
    } else {
        let named = row.optimizer.starts_with("Adam");
        let known = (row.optimizer.is_empty() || named)
            .then(|| follow(row, if named { Of::Kernels } else { Of::Optimizer }, assumed));
        match known.flatten() {
            Some("fused") => Implementation::Fused,
            Some(_) => Implementation::ForEach,
            None if named => {
                assumed.push("AdamW over all parameters at once (foreach), PyTorch's default".to_owned());
                Implementation::ForEach
            }
            None => return Err("no optimizer in the row".to_owned()),
        }
    };
    let offload = match row.offload.as_str() {
        "" | "none" => Offload::NONE,
        "activations to CPU" => Offload { activations: true, ..Offload::NONE },
        other => return Err(format!("offload that is not modelled: {other}")),
    };
    let profile = if let Some(profile) = follow(row, Of::Profile, assumed) {
        profile.parse()?
    } else {
        assumed.push("kernels are fused: profile fused".to_owned());
        Profile::Fused
    };
    let head = follow(row, Of::Loss, assumed).map_or(Ok(HeadLoss::Whole), str::parse)?;
    Ok(StepOptions {
        batch,
        seq_len,
        profile,
        precision,
        optimizer: OptimizerKind { kind: Kind::AdamW, implementation },
        recompute,
        grad_accum_steps: row.grad_accum.unwrap_or(1).clamp(1, 2),
        autocast: CastLists::Cuda,
        steps: 1,
        warm: true,
        dropout: false,
        objective: Objective { head, ..Objective::DEFAULT },
        offload,
        in_backward: false,
        until: Until::Optimizer,
    })
}

fn precision(row: &Row) -> Result<Precision, String> {
    let (text, optimizer) = (row.precision.to_lowercase(), row.optimizer.to_lowercase());
    match text.as_str() {
        "bf16 pure" | "nf4 base + bf16" => Ok(Precision::Bf16Pure),
        "bf16" if optimizer.contains("fp32 master") && optimizer.contains("fp32 grad accumulation") => {
            Ok(Precision::Bf16MasterFp32Grads)
        }
        "bf16 (fp32 grad accumulation)" => Ok(Precision::Bf16MasterFp32Grads),
        "bf16" if optimizer.contains("fp32 params/states") => Ok(Precision::Bf16Mixed),
        "" => Err("no precision recipe in the row".to_owned()),
        _ => Err(format!("precision recipe that is not stated in full, or not modelled: {}", row.precision)),
    }
}

fn sharding(row: &Row) -> Result<Sharding, String> {
    let dp = row.layout.dp.or(row.layout.devices).unwrap_or(1).max(1);
    let text = row.layout.sharding.to_lowercase();
    let zero = match text.as_str() {
        "" if dp == 1 => 0,
        "0" => 0,
        "1" => 1,
        "fsdp" => 3,
        _ if text.starts_with("fsdp2 shard") => 3,
        _ if text.contains("zero-1") => 1,
        _ if text.contains("zero-2") => 2,
        _ if text.contains("zero-3") => 3,
        "" => return Err("how states are sharded is not stated".to_owned()),
        _ => return Err(format!("sharding that is not known: {}", row.layout.sharding)),
    };
    if dp > MOST_REPLICAS {
        return Err(format!("layout: {dp} replicas"));
    }
    Ok(Sharding::new(zero, dp))
}

/// More replicas than any run has: what they gather is looked at one by one.
const MOST_REPLICAS: u64 = 1 << 20;

/// Adapters of a row: as the recipe of its source says, which is a row of `data/published/adapters.csv`.
fn tuning(row: &Row, assumed: &mut Vec<String>) -> Result<Tuning, String> {
    let packed = match (row.kind.as_str(), row.precision.as_str()) {
        ("qlora", text) if text.starts_with("NF4") => Format::find("nf4"),
        ("qlora", _) => return Err("the format of packed weights is not stated".to_owned()),
        _ => None,
    };
    if !matches!(row.kind.as_str(), "lora" | "qlora") {
        if row.kind == "adapter" || row.kind == "adapter_v2" {
            return Err("adapters that are not modelled".to_owned());
        }
        return Ok(Tuning::default());
    }
    let label = architecture::plain(&row.model);
    let lines = include_str!("../../../../data/published/adapters.csv").lines().skip(1);
    let recipe = lines.map(|line| line.split(',').collect::<Vec<_>>()).find(|fields| {
        matches!(fields[..], [source, model, kind, ..] if source == row.source && architecture::plain(model) == label && kind == row.kind)
    });
    let Some([_, _, _, rank, alpha, dropout, targets, ..]) = recipe.as_deref() else {
        return Err("rank and targets of the adapters are not stated".to_owned());
    };
    let number = |text: &str| text.parse::<f64>().map_err(|_| format!("no number in the table of adapters: {text}"));
    let targets = match *targets {
        "all" => Targets::All,
        names => Targets::Named(names.split_whitespace().filter_map(|name| name.parse().ok()).collect()),
    };
    let (alpha, dropout) = (number(alpha)?, number(dropout)?);
    let lora = Lora { alpha, dropout, targets, ..Lora::of_rank(number(rank)? as u64) };
    assumed.push(format!(
        "rank {rank} beside {}, as the recipe of the source says",
        recipe.as_deref().map_or("", |f| f[6])
    ));
    let packed_keeps_inputs = packed.is_some() && follow(row, Of::Packed, assumed).is_some();
    Ok(Tuning { lora: Some(lora), packed, packed_keeps_inputs, ..Tuning::default() })
}

/// Scratch of matrix products that lies in the allocator; a label may fit several devices with the same.
fn workspace(row: &Row) -> Result<Bytes, String> {
    let all: Vec<Bytes> = devices(row).into_iter().map(runtime::workspace).collect();
    match all.first() {
        Some(first) if all.iter().all(|other| other == first) => Ok(*first),
        _ => Err(format!("the device, which decides the workspace of matrix products, is not known: {}", row.device)),
    }
}

/// Devices that a label may mean.
pub(super) fn devices(row: &Row) -> Vec<&'static Hardware> {
    match hardware::find(&row.device) {
        Ok(hardware) => vec![hardware],
        Err(HardwareError::Ambiguous { candidates, .. }) => {
            candidates.into_iter().filter_map(|name| hardware::find(name).ok()).collect()
        }
        Err(_) => Vec::new(),
    }
}

/// Bytes of an element of a 16-bit bucket or copy.
const NARROW: u64 = 2;

/// What replicas hold beside the step, as the code of the row's source has it.
fn beside(row: &Row, sharding: Sharding, params: &[ParamInfo], assumed: &mut Vec<String>) -> Beside {
    let mut beside = Beside::default();
    if sharding.dp < 2 {
        return beside;
    }
    if let Some(sizes) = (sharding.zero == 0).then(|| follow(row, Of::Buckets, assumed)).flatten() {
        beside.held = buckets(params, sizes);
    }
    if (1..3).contains(&sharding.zero) && follow(row, Of::Gather, assumed).is_some() {
        // The shard in one piece, those of all, and these in one piece.
        let shard: u64 = params.iter().map(|param| NARROW * param.elements.div_ceil(sharding.dp)).sum();
        beside.after_update.push(shard);
        beside.after_update.extend((0..sharding.dp).map(|_| shard));
        beside.after_update.push(shard.saturating_mul(sharding.dp));
    }
    beside
}

/// Sizes of the buckets of gradients: parameters in reverse, each bucket closed once it is full. `sizes` are bytes of an element,
/// those after which the first bucket is closed, and those after which the others are (`bucket_cap_mb`).
fn buckets(params: &[ParamInfo], sizes: &str) -> Vec<u64> {
    let sizes: Vec<u64> = sizes.split(' ').filter_map(|size| size.parse().ok()).collect();
    let [element, first, others] = sizes[..] else { return Vec::new() };
    let (mut all, mut open) = (Vec::new(), 0);
    for param in params.iter().rev().filter(|param| param.trainable) {
        open += element * param.elements;
        if open >= if all.is_empty() { first } else { others } {
            all.push(std::mem::take(&mut open));
        }
    }
    all.extend(Some(open).filter(|open| *open > 0));
    all
}

/// Rows that are formulas themselves: Korthikanti et al. 2022, of the first of `p` stages.
fn formula(row: &Row) -> Result<Peak, String> {
    let s = &row.sizes;
    let need = |size: Option<u64>, name: &str| size.map(u128::from).ok_or_else(|| format!("not in the row: {name}"));
    let (l, h, a) = (need(s.layers, "n_layers")?, need(s.hidden, "d_model")?, need(s.heads, "n_heads")?);
    let (t, p) = (need(row.layout.tp, "tp")?.max(1), u128::from(row.layout.pp.unwrap_or(1).max(1)));
    let (name, predicted, reported) = if row.kind == "state_memory" {
        let printed = row.memory.ok_or("no memory in the row")?;
        let parameters = [l, h, h].iter().try_fold(12_u128, |product, size| product.checked_mul(*size));
        let parameters = parameters.ok_or("sizes that cannot be counted")? / t.saturating_mul(p);
        let blocks = exact("states", &[parameters, 2, 4, 4, 8])?;
        ("18 bytes for each parameter of the blocks", blocks as f64, in_bytes(printed))
    } else {
        let (b, n) = (need(row.micro_batch, "micro_batch")?, need(row.seq_len, "seq_len")?);
        let sequence = row.layout.sp == Some(true);
        let baseline = exact("activations-tp", &[b, n, h, a, t])?;
        let (name, each) = match (row.recompute.as_str(), sequence) {
            ("none", false) => ("activations-tp", baseline),
            ("none", true) => ("activations-sp", exact("activations-sp", &[b, n, h, a, t])?),
            (text, true) if text.starts_with("selective") => {
                ("activations-selective", exact("activations-selective", &[b, n, h, t])?)
            }
            // Without scores, norms and dropout are whole on each device.
            (text, false) if text.starts_with("selective") => {
                ("activations-tp", exact("activations-tp", &[b, n, h, 0, t])?)
            }
            ("full", _) => ("activations-full", exact("activations-full", &[b, n, h])?),
            (other, _) => return Err(format!("recomputation that is not known: {other}")),
        };
        match (row.activations, row.memory) {
            (Some(percent), _) => (name, 100.0 * each as f64 / baseline as f64, percent),
            (None, Some(printed)) => {
                // The first stage holds as many micro-batches as there are stages, interleaving a few more.
                let interleaved =
                    row.layout.vp.filter(|v| *v > 0).map_or(1.0, |v| 1.0 + (p - 1) as f64 / (p as f64 * v as f64));
                (name, l as f64 * each as f64 * interleaved, in_bytes(printed))
            }
            (None, None) => return Err("no memory in the row".to_owned()),
        }
    };
    let how = format!("formula {name}");
    Ok(Peak { kind: PeakKind::Formula, how, assumed: Vec::new(), compared: Compared { reported, predicted } })
}

fn exact(id: &'static str, values: &[u128]) -> Result<u128, String> {
    match known(id).eval {
        Eval::Exact(eval) => eval(values).ok_or_else(|| "sizes that cannot be counted".to_owned()),
        Eval::Real(_) => Err(format!("{id} is no count")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::{Layout, Sizes};
    use super::*;

    /// Rows of figures 1 and 7 of the paper: GPT-3 175B on 64 devices, 22B on 8.
    fn figure(layers: u64, hidden: u64, heads: u64, pp: u64, batch: u64) -> Row {
        Row {
            kind: "activation_memory".to_owned(),
            sizes: Sizes { layers: Some(layers), hidden: Some(hidden), heads: Some(heads), ..Sizes::default() },
            layout: Layout { tp: Some(8), pp: Some(pp), vp: (pp > 1).then_some(3), ..Layout::default() },
            micro_batch: Some(batch),
            seq_len: Some(2048),
            recompute: "none".to_owned(),
            memory: Reading::parse("1"),
            ..Row::default()
        }
    }

    #[test]
    fn formulas_are_those_of_the_figures() {
        let gib = |row: &Row| peak(row).unwrap().compared.predicted / GIB;
        assert_eq!(gib(&figure(48, 6144, 64, 1, 4)), 59.25);
        assert_eq!(gib(&figure(96, 12_288, 96, 8, 1)), 66.84375);
        let states = Row { kind: "state_memory".to_owned(), ..figure(96, 12_288, 96, 8, 1) };
        assert_eq!(gib(&states), 45.5625);
        let selective = Row { recompute: "selective (attention core)".to_owned(), ..figure(48, 6144, 64, 1, 4) };
        let both = Layout { sp: Some(true), ..selective.layout.clone() };
        assert_eq!(gib(&Row { layout: both, ..selective.clone() }), 9.5625);
        let huge = u64::MAX;
        let most = Row { sizes: Sizes { hidden: Some(huge), ..states.sizes }, ..states.clone() };
        assert!(peak(&most).unwrap_err().contains("cannot be counted"));
        // In percent of the first: 13 of 26 1/3 parts.
        let percent = Row { activations: Reading::parse("49.42"), memory: None, ..selective };
        assert!((peak(&percent).unwrap().compared.predicted - 100.0 * 13.0 / (13.0 + 40.0 / 3.0)).abs() < 1e-6);
    }

    fn run() -> Row {
        Row {
            model: "tiny".to_owned(),
            kind: "full_ft".to_owned(),
            sizes: Sizes {
                layers: Some(2),
                hidden: Some(64),
                heads: Some(4),
                intermediate: Some(128),
                gated: Some(true),
                vocab: Some(100),
                ..Sizes::default()
            },
            positions: "rope".to_owned(),
            seq_len: Some(32),
            micro_batch: Some(2),
            precision: "BF16 pure".to_owned(),
            recompute: "none".to_owned(),
            optimizer: "AdamW fused".to_owned(),
            device: "A100-80GB".to_owned(),
            memory: Reading::parse("0.5"),
            memory_kind: "allocated".to_owned(),
            ..Row::default()
        }
    }

    /// Parameters and two states of two bytes each stand all the time.
    #[test]
    fn a_row_that_says_all_is_predicted() {
        let found = peak(&run()).unwrap();
        let model = architecture::model("tiny", &architecture::describe(&run()).unwrap().config).unwrap();
        let states = 6 * crate::params::Counts::of(&crate::params::parameters(&model).unwrap()).stored.get();
        assert_eq!(found.kind, PeakKind::Allocated);
        assert!(found.compared.predicted > states as f64, "{found:?}");
        let reserved = peak(&Row { memory_kind: "reserved".to_owned(), ..run() }).unwrap();
        assert_eq!(reserved.kind, PeakKind::Reserved);
        // Segments are of 2 MiB.
        assert_eq!(reserved.compared.predicted as u64 % (2 << 20), 0);
        assert!(reserved.compared.predicted > found.compared.predicted);
    }

    #[test]
    fn what_a_row_does_not_say_is_named() {
        let layout = |layout: Layout| Row { layout, ..run() };
        for (row, why) in vec![
            (Row { memory: None, ..run() }, "not certain"),
            (layout(Layout { tp: Some(2), dp: Some(1), ..Layout::default() }), "divided with matrices is not stated"),
            (layout(Layout { pp: Some(2), dp: Some(1), ..Layout::default() }), "schedule of the pipeline"),
            (layout(Layout { cp: Some(2), dp: Some(1), ..Layout::default() }), "share a sequence"),
            (layout(Layout { ep: Some(8), dp: Some(1), ..Layout::default() }), "fullest rank of experts"),
            (layout(Layout { dp: Some(4), ..Layout::default() }), "sharded is not stated"),
            (Row { memory_kind: "unknown".to_owned(), ..run() }, "not stated: unknown"),
            (Row { memory_kind: "allocated after model init".to_owned(), ..run() }, "another moment"),
            (Row { precision: "MXFP8".to_owned(), ..run() }, "MXFP8"),
            (Row { recompute: String::new(), ..run() }, "recomputed is not stated"),
            (Row { optimizer: String::new(), ..run() }, "no optimizer"),
            (Row { kind: "lora".to_owned(), ..run() }, "rank and targets"),
            (Row { kind: "qlora".to_owned(), precision: "4-bit base".to_owned(), ..run() }, "format of packed"),
            (Row { notes: "unpacked".to_owned(), ..run() }, "not packed"),
            (Row { micro_batch: None, ..run() }, "no micro-batch"),
            (Row { memory_kind: "reserved".to_owned(), device: "B9000".to_owned(), ..run() }, "not known: B9000"),
        ] {
            let problem = peak(&row).unwrap_err();
            assert!(problem.contains(why), "{why}: {problem}");
        }
    }
}
