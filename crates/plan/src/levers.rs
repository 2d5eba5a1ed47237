//! What would free memory, each lever by tracing the step with it.

use nn::optim::{self, Implementation, OptimizerKind};
use nn::spec::ModelSpec;
use nn::step::StepOptions;
use nn::{HeadLoss, Objective, Offload, Profile, Recompute};
use units::{Bytes, Diagnostics};

use crate::blocks::Blocks;
use crate::ledger::{Request, steady};
use crate::model::trace;
use crate::scaling;
use crate::sharding::Sharding;
use crate::timeline::Timeline;

/// Pieces that a chunked cross-entropy works in.
const CHUNKS: u64 = 8;

/// A change with the peak of the step that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lever {
    /// The flags that ask Napkin for it.
    pub flag: String,
    /// What it does, and what it costs.
    pub effect: String,
    /// Peak of the program's own bytes with it, as [`scaling::peak`] estimates it.
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

/// What a change changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Update,
    Kernels,
    Loss,
    Sharding,
    Recompute,
    Batch,
    Offload,
}

/// A change of the step or its layout.
struct Change {
    kind: Kind,
    flag: String,
    effect: &'static str,
    options: StepOptions,
    sharding: Sharding,
}

impl Change {
    fn lever(self, spec: &ModelSpec, runtime: Bytes) -> Result<Lever, Diagnostics> {
        let peak = scaling::peak(spec, &self.options, self.sharding, runtime)?;
        Ok(Lever { flag: self.flag, effect: self.effect.to_owned(), peak })
    }
}

/// Changes from the one that costs least to the one that costs most, each applied to `options` and `sharding` alone; of a
/// kind, the last frees most.
fn changes(spec: &ModelSpec, options: StepOptions, sharding: Sharding) -> Vec<Change> {
    let mut out = Vec::new();
    let mut push =
        |kind, flag: String, effect, options, sharding| out.push(Change { kind, flag, effect, options, sharding });
    let with = |kind, implementation| StepOptions { optimizer: OptimizerKind { kind, implementation }, ..options };
    let rule = options.optimizer.kind;
    if options.optimizer.implementation != Implementation::Fused {
        let fused = with(rule, Implementation::Fused);
        let flag = format!("--optimizer {}", fused.optimizer);
        push(Kind::Update, flag, "one kernel, no temporaries of the update", fused, sharding);
    }
    let profile = |profile| StepOptions { profile, ..options };
    if options.profile == Profile::HfEager && spec.has_sdpa {
        let effect = "fused attention: scores are never stored; faster";
        push(Kind::Kernels, "--profile hf-sdpa".to_owned(), effect, profile(Profile::HfSdpa), sharding);
    }
    if options.profile != Profile::Fused {
        let effect = match options.profile {
            Profile::HfEager => "fused attention, norms and loss",
            _ => "fused norms, activation and loss",
        };
        push(Kind::Kernels, "--profile fused".to_owned(), effect, profile(Profile::Fused), sharding);
    }
    if options.objective.head == HeadLoss::Whole {
        let head = HeadLoss::Chunked(CHUNKS);
        let chunked = StepOptions { objective: Objective { head, ..options.objective }, ..options };
        let effect = "logits in pieces, one after the other, head included";
        push(Kind::Loss, format!("--loss {head}"), effect, chunked, sharding);
    }
    for zero in 1..=3 {
        if sharding.dp > 1 && zero > sharding.zero {
            let effect = match zero {
                1 => "optimizer states are divided",
                2 => "and gradients",
                _ => "and weights, which are gathered for every block",
            };
            push(Kind::Sharding, format!("--zero {zero}"), effect, options, Sharding { zero, ..sharding });
        }
    }
    let recompute = |recompute| StepOptions { recompute, ..options };
    if options.recompute == Recompute::None {
        let selective = recompute(Recompute::Selective);
        push(Kind::Recompute, "--recompute selective".to_owned(), "attention runs again", selective, sharding);
    }
    if matches!(rule, optim::Kind::Adam | optim::Kind::AdamW) {
        let bytes = with(optim::Kind::Adam8bit, Implementation::Fused);
        let flag = format!("--optimizer {}", bytes.optimizer.kind.name());
        push(Kind::Update, flag, "states of one byte each", bytes, sharding);
    }
    if options.batch > 1 {
        let batch = options.batch / 2;
        let half = StepOptions { batch, ..options };
        push(Kind::Batch, format!("--batch {batch}"), "with twice the accumulation, the same update", half, sharding);
    }
    if options.recompute != Recompute::Full {
        let effect = "a third more arithmetic in the blocks";
        push(Kind::Recompute, "--recompute full".to_owned(), effect, recompute(Recompute::Full), sharding);
    }
    if !options.offload.optimizer {
        let offload = Offload { optimizer: true, ..options.offload };
        let effect = "states and update on the host: slow";
        push(Kind::Offload, format!("--offload {offload}"), effect, StepOptions { offload, ..options }, sharding);
    }
    out
}

/// The strongest change of each kind with its peak, `runtime` included, the lowest peak first.
///
/// # Errors
/// As [`trace`].
pub fn strongest(spec: &ModelSpec, request: &Request<'_>) -> Result<Vec<Lever>, Diagnostics> {
    let mut last: Vec<Change> = Vec::new();
    for change in changes(spec, request.options, request.sharding) {
        last.retain(|known| known.kind != change.kind);
        last.push(change);
    }
    let levers = last.into_iter().map(|change| change.lever(spec, request.runtime));
    let mut levers = levers.collect::<Result<Vec<Lever>, _>>()?;
    levers.sort_by_key(|lever| lever.peak);
    Ok(levers)
}

/// Levers of a step, and whether the cheapest of them together fit `budget`, in bytes of the program's own.
///
/// # Errors
/// As [`trace`].
pub fn levers(spec: &ModelSpec, request: &Request<'_>, budget: Option<u64>) -> Result<Levers, Diagnostics> {
    // The steady state decides: what the first step lacks, the second has.
    let options = StepOptions { steps: 1, warm: true, ..request.options };
    let sharding = request.sharding;
    let phases = Timeline::of(&trace(spec, &options)?, &options, sharding, Blocks::of(&spec.names)).phases;
    let now = phases[steady(&phases)].iter().map(|phase| phase.peak_bytes).max().unwrap_or(0);
    let levers = changes(spec, options, sharding).into_iter().map(|change| change.lever(spec, Bytes::ZERO));
    let mut each = levers.collect::<Result<Vec<Lever>, _>>()?;
    // Less than a thousandth is no lever.
    each.retain(|lever| lever.peak < now - now / 1000);
    let mut out = Levers { now, each, together: None };
    if let Some(budget) = budget.filter(|budget| now > *budget && out.enough(*budget).is_none()) {
        out.together = together(spec, options, sharding, budget, now)?;
    }
    Ok(out)
}

/// Applies the changes one after the other, cheapest first, until the step fits.
fn together(
    spec: &ModelSpec,
    mut options: StepOptions,
    mut sharding: Sharding,
    budget: u64,
    mut best: u64,
) -> Result<Option<Lever>, Diagnostics> {
    let mut flags: Vec<(Kind, String)> = Vec::new();
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
        flags.retain(|(kind, _)| *kind != change.kind);
        flags.push((change.kind, change.flag));
        if best <= budget {
            let effect = "the cheapest, one after the other".to_owned();
            let flags: Vec<String> = flags.into_iter().map(|(_, flag)| flag).collect();
            return Ok(Some(Lever { flag: flags.join(" "), effect, peak: best }));
        }
    }
    Ok(None)
}

/// Most changes that are made together.
const MOST_CHANGES: usize = 24;
