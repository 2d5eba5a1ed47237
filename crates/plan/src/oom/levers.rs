//! What would free memory, each lever by tracing the step with it.

use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::spec::ModelSpec;
use nn::step::{StepOptions, StepTrace};
use nn::{Profile, Recompute};
use tensor::Role;
use units::{Bytes, Diagnostics};

use crate::blocks::Blocks;
use crate::ledger::{Request, steady};
use crate::model::trace;
use crate::scaling;
use crate::sharding::Sharding;
use crate::timeline::{Device, Timeline};

/// A change with the peak of the step that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lever {
    /// The flags that ask Napkin for it, or words where it has none.
    pub flag: String,
    /// What it does, and what it costs.
    pub effect: String,
    /// Peak of the program's own bytes with it.
    pub peak: u64,
}

/// Levers of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levers {
    /// Peak of the program's own bytes as it is.
    pub now: u64,
    /// What lowers it, the cheapest first.
    pub each: Vec<Lever>,
    /// The fewest of the cheapest, together, that fit the budget where none alone does.
    pub together: Option<Lever>,
}

impl Levers {
    /// The cheapest that fits a budget.
    pub fn enough(&self, budget: u64) -> Option<&Lever> {
        self.each.iter().chain(&self.together).find(|lever| lever.peak <= budget)
    }
}

/// Pieces that a chunked cross-entropy works in.
const CHUNKS: u64 = 8;

/// A change of the step or its layout.
struct Change {
    flag: String,
    effect: &'static str,
    options: StepOptions,
    sharding: Sharding,
}

/// Changes from the one that costs least to the one that costs most, each applied to `options` and `sharding` alone.
fn changes(spec: &ModelSpec, options: StepOptions, sharding: Sharding) -> Vec<Change> {
    let mut out = Vec::new();
    let mut push = |flag: String, effect, options, sharding| out.push(Change { flag, effect, options, sharding });
    let with = |kind, implementation| StepOptions { optimizer: OptimizerKind { kind, implementation }, ..options };
    let kind = options.optimizer.kind;
    if options.optimizer.implementation != Implementation::Fused {
        let fused = with(kind, Implementation::Fused);
        push(format!("--optimizer {}", fused.optimizer), "one kernel, no temporaries of the update", fused, sharding);
    }
    if options.profile == Profile::HfEager && spec.has_sdpa {
        let sdpa = StepOptions { profile: Profile::HfSdpa, ..options };
        push("--profile hf-sdpa".to_owned(), "fused attention: scores are never stored; faster", sdpa, sharding);
    }
    if options.profile == Profile::HfEager {
        let fused = StepOptions { profile: Profile::Fused, ..options };
        push("--profile fused".to_owned(), "fused attention, norms and loss", fused, sharding);
    } else if options.profile == Profile::HfSdpa {
        let fused = StepOptions { profile: Profile::Fused, ..options };
        push("--profile fused".to_owned(), "fused norms, activation and loss", fused, sharding);
    }
    for zero in 1..=3 {
        if sharding.dp > 1 && zero > sharding.zero {
            let effect = match zero {
                1 => "optimizer states are divided",
                2 => "and gradients",
                _ => "and weights, which are gathered for every block",
            };
            push(format!("--zero {zero}"), effect, options, Sharding { zero, ..sharding });
        }
    }
    if options.recompute == Recompute::None {
        let selective = StepOptions { recompute: Recompute::Selective, ..options };
        push("--recompute selective".to_owned(), "attention runs again", selective, sharding);
    }
    if matches!(kind, Kind::Adam | Kind::AdamW) {
        let bytes = with(Kind::Adam8bit, Implementation::Fused);
        push(format!("--optimizer {}", bytes.optimizer.kind.name()), "states of one byte each", bytes, sharding);
    }
    if options.batch > 1 {
        let batch = options.batch / 2;
        let half = StepOptions { batch, ..options };
        push(format!("--batch {batch}"), "with twice the accumulation, the same update", half, sharding);
    }
    if options.recompute != Recompute::Full {
        let full = StepOptions { recompute: Recompute::Full, ..options };
        push("--recompute full".to_owned(), "a third more arithmetic in the blocks", full, sharding);
    }
    out
}

/// Levers of a step, and whether the cheapest of them together fit `budget`, in bytes of the program's own.
///
/// # Errors
/// As [`trace`].
pub fn levers(spec: &ModelSpec, request: &Request<'_>, budget: Option<u64>) -> Result<Levers, Diagnostics> {
    // The steady state decides: what the first step lacks, the second has.
    let options = StepOptions { steps: 1, warm: true, ..request.options };
    let sharding = request.sharding;
    let peak = |options: &StepOptions, sharding| scaling::peak(spec, options, sharding, Bytes::ZERO);
    let traced = trace(spec, &options)?;
    let (now, chunked, offloaded) = replayed(spec, &traced, &options, sharding);
    let mut each = Vec::new();
    for change in changes(spec, options, sharding) {
        let peak = peak(&change.options, change.sharding)?;
        each.push(Lever { flag: change.flag, effect: change.effect.to_owned(), peak });
    }
    let chunks = Lever {
        flag: "a chunked cross-entropy".to_owned(),
        effect: format!("logits of {CHUNKS} pieces, one after the other, head included"),
        peak: chunked,
    };
    // It costs next to nothing: before all that costs arithmetic, memory of others or a smaller batch.
    let at =
        each.iter().position(|lever| !lever.flag.starts_with("--optimizer") && !lever.flag.starts_with("--profile"));
    each.insert(at.unwrap_or(each.len()), chunks);
    each.push(Lever {
        flag: "optimizer offload".to_owned(),
        effect: "states and update on the host: slow".to_owned(),
        peak: offloaded,
    });
    // Less than a thousandth is no lever.
    each.retain(|lever| lever.peak < now - now / 1000);
    let mut out = Levers { now, each, together: None };
    if let Some(budget) = budget.filter(|budget| now > *budget && out.enough(*budget).is_none()) {
        out.together = together(spec, options, sharding, budget, now)?;
    }
    Ok(out)
}

/// Applies the changes one after the other, cheapest first, until the step fits; then halves the batch.
fn together(
    spec: &ModelSpec,
    mut options: StepOptions,
    mut sharding: Sharding,
    budget: u64,
    mut best: u64,
) -> Result<Option<Lever>, Diagnostics> {
    let mut flags: Vec<String> = Vec::new();
    // Each round takes the cheapest change not yet made that lowers the peak; the batch can be halved more than once.
    for _ in 0..MOST_CHANGES {
        let mut made = None;
        for change in changes(spec, options, sharding) {
            let peak = scaling::peak(spec, &change.options, change.sharding, Bytes::ZERO)?;
            if peak < best {
                made = Some((change, peak));
                break;
            }
        }
        let Some((change, peak)) = made else { return Ok(None) };
        (options, sharding, best) = (change.options, change.sharding, peak);
        let name = change.flag.split(' ').next().unwrap_or_default();
        flags.retain(|flag| flag.split(' ').next() != Some(name));
        flags.push(change.flag);
        if best <= budget {
            let effect = "the cheapest, one after the other".to_owned();
            return Ok(Some(Lever { flag: flags.join(" "), effect, peak: best }));
        }
    }
    Ok(None)
}

/// Most changes that are made together.
const MOST_CHANGES: usize = 24;

/// The peak as it is, with logits in pieces, and with the optimizer on the host: one replay for all three.
fn replayed(spec: &ModelSpec, traced: &StepTrace, options: &StepOptions, sharding: Sharding) -> (u64, u64, u64) {
    let trace = &traced.trace;
    let Timeline { phases, points } = Timeline::of(traced, options, sharding, Blocks::of(&spec.names));
    let first = trace.marks.first().map_or(0, |mark| mark.memory as usize);
    let logits: Vec<bool> = (0..trace.storages.len()).map(|id| are_logits(spec, traced, id)).collect();
    let mut device = Device::new(traced, options, sharding, Blocks::of(&spec.names));
    let (mut of_logits, mut of_states) = (0_u64, 0_u64);
    let (mut now, mut chunked, mut offloaded) = (0, 0, 0);
    let steady = steady(&phases);
    for (i, event) in trace.memory.iter().enumerate() {
        let id = event.storage.0 as usize;
        let before = device.live()[id];
        device.apply(i);
        let after = device.live()[id];
        let bytes = |held: Option<(Role, u64)>| held.map_or(0, |(_, bytes)| bytes);
        let states =
            |held: Option<(Role, u64)>| held.filter(|(role, _)| *role == Role::OptimizerState).map_or(0, |(_, b)| b);
        if logits[id] {
            of_logits = of_logits - bytes(before) + bytes(after);
        }
        of_states = of_states - states(before) + states(after);
        let Some(point) = i.checked_sub(first).and_then(|at| points.get(at)) else { continue };
        if !steady.contains(&point.phase) {
            continue;
        }
        now = now.max(point.bytes);
        chunked = chunked.max(point.bytes - of_logits + of_logits / CHUNKS);
        // Gradients go to the host and weights come back: nothing of the update runs here.
        if !phases[point.phase].name.starts_with("opt") {
            offloaded = offloaded.max(point.bytes - of_states);
        }
    }
    (now, chunked, offloaded)
}

/// Whether a storage holds a number for each token and word, so that it exists in pieces only where the loss is chunked.
fn are_logits(spec: &ModelSpec, traced: &StepTrace, id: usize) -> bool {
    let trace = &traced.trace;
    let info = trace.storages[id];
    let Some(event) = trace.ops.get(info.born as usize) else { return false };
    let Some(output) = event.outputs.iter().find(|output| output.storage.0 as usize == id) else { return false };
    let path = trace.module(info.module);
    let in_body = path.strip_prefix(spec.names.body).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let shape = output.layout.shape();
    // Weights and their gradients are [vocabulary, hidden] or the reverse.
    let weight = shape.len() == 2 && shape.contains(&spec.hidden_size);
    !in_body && !weight && shape.last() == Some(&spec.vocab_size)
}
