//! One rank of a layout, traced: its stages of the model, its parts of their tensors, the passes of its schedule.
//!
//! Ranks of a stage are alike; those of different stages are not. The number of micro-batches that are traced is the number
//! that are ever held at once and one more: what the others add to is there by then.

use nn::blocks::Blocks;
use nn::pipeline::{Pass, Rank};
use nn::spec::{Ends, ModelSpec};
use nn::step::{StepOptions, StepTrace};
use units::{Diagnostic, Diagnostics};

use super::{Layout, Schedule, check, engine};
use crate::cluster::pipeline as cluster;
use crate::handover::Engine;
use crate::ledger::highest;
use crate::timeline::{ByRole, Timeline};

/// A rank of every stage, traced.
#[derive(Debug)]
pub struct RankTrace {
    /// Its place in the pipeline.
    pub place: u64,
    /// Its stages of the model, nearest to the tokens first.
    pub stages: Vec<ModelSpec>,
    /// Micro-batches of which it holds activations at once, through one of its stages each.
    pub in_flight: u64,
    /// The step.
    pub options: StepOptions,
    /// What it does.
    pub traced: StepTrace,
    /// Bytes that the engine holds beside that.
    pub beside: u64,
}

/// Memory of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMemory {
    /// Its place in the pipeline.
    pub place: u64,
    /// Highest allocated bytes of a step.
    pub peak_bytes: u64,
    /// By role at that moment.
    pub peak_by_role: ByRole,
    /// What the engine holds beside that, contained in the peak.
    pub beside: u64,
    /// The stretch of the step it is in.
    pub phase: String,
    /// Parameters it holds.
    pub parameters: u64,
    /// Micro-batches of which it holds activations at once.
    pub in_flight: u64,
}

/// Traces the ranks at these places of the pipeline; `step` says all that the layout does not: length of sequences, profile,
/// precision, optimizer; `engine` who runs it, where that is somebody whose ways are known.
///
/// # Errors
/// What [`check`] refuses; `T0484` for parts of models that are not divided.
pub fn trace(
    model: &ModelSpec,
    layout: &Layout,
    step: &StepOptions,
    engine: Option<Engine>,
    places: impl IntoIterator<Item = u64>,
) -> Result<Vec<RankTrace>, Diagnostics> {
    check(layout, model, step.seq_len, None)?;
    let words = |problems: Vec<String>| -> Diagnostics {
        problems.into_iter().map(|problem| Diagnostic::error("T0484", problem)).collect()
    };
    let own = model.share(layout.ranks()).map_err(words)?;
    let blocks = layout.blocks_of(model.layers.len() as u64);
    let starts: Vec<usize> = blocks
        .iter()
        .scan(0, |start, count| {
            let first = *start;
            *start += *count as usize;
            Some(first)
        })
        .collect();
    let stage =
        |index: usize| own.stage(starts[index]..starts[index] + blocks[index] as usize, Ends::of(index, blocks.len()));
    let (pp, chunks) = (layout.pp as usize, layout.virtual_stages as usize);
    let mut all = Vec::new();
    for place in places {
        let stages = (0..chunks).map(|chunk| stage(chunk * pp + place as usize)).collect::<Result<Vec<_>, _>>();
        let stages = stages.map_err(words)?;
        let in_flight = in_flight(layout, place);
        let micro_batches = traced_micro_batches(layout, in_flight);
        let options = StepOptions {
            batch: layout.micro_batch,
            // A rank sees its own positions of a sequence.
            seq_len: step.seq_len / layout.cp,
            grad_accum_steps: micro_batches,
            recompute: layout.recompute,
            offload: layout.offload,
            ..*step
        };
        let passes = passes(&schedule(layout, micro_batches), place as usize);
        let accumulation = engine::accumulation(engine);
        let rank = Rank { stages: &stages, ranks: layout.pp, options: &options, passes: &passes, accumulation };
        let traced = rank.trace().map_err(|error| Diagnostics::from(Diagnostic::error("T0484", error.to_string())))?;
        let weight = options.precision.gathered_dtype().size_in_bytes();
        let beside = engine::beside(engine, &stages, weight);
        all.push(RankTrace { place, stages, in_flight, options, traced, beside });
    }
    Ok(all)
}

/// Micro-batches that a rank holds at once: beyond some rounds of the pipeline, more of them change nothing.
pub(super) fn in_flight(layout: &Layout, place: u64) -> u64 {
    match layout.schedule {
        Schedule::GPipe => layout.grad_accum * layout.virtual_stages,
        _ => schedule(layout, layout.grad_accum.min(4 * layout.pp)).in_flight(place as usize),
    }
}

/// Micro-batches of which every moment of the memory of a step is seen.
pub(super) fn traced_micro_batches(layout: &Layout, in_flight: u64) -> u64 {
    match layout.schedule {
        // All forward passes come first.
        Schedule::GPipe => layout.grad_accum,
        // Every one goes through all stages of the rank; a round more has them all with gradients.
        Schedule::Interleaved if layout.virtual_stages > 1 => {
            let held = (in_flight + 1).div_ceil(layout.virtual_stages).next_multiple_of(layout.pp);
            (held + layout.pp).min(layout.grad_accum)
        }
        _ => (in_flight + 1).min(layout.grad_accum),
    }
}

/// The pipeline of a layout; the order of passes does not ask how long they take.
pub(super) fn schedule(layout: &Layout, micro_batches: u64) -> cluster::Pipeline {
    let time = cluster::StageTime { forward: 1.0, backward: 1.0, weights: 1.0 };
    cluster::Pipeline {
        ranks: layout.pp as usize,
        stages: vec![time; (layout.pp * layout.virtual_stages) as usize],
        micro_batches: micro_batches as usize,
        send: 0.0,
        schedule: layout.schedule,
    }
}

/// The passes of a rank. Put-off weight gradients are traced with the rest of their backward pass, where that would hold as
/// much: what they read is given up there, and ZB-H1 is built to hold no more than 1F1B.
pub(super) fn passes(pipeline: &cluster::Pipeline, place: usize) -> Vec<Pass> {
    let pass = |pass: cluster::Pass| match pass {
        cluster::Pass::Forward { chunk, micro_batch } => Some(Pass::Forward { chunk, micro_batch }),
        cluster::Pass::Backward { chunk, micro_batch } => Some(Pass::Backward { chunk, micro_batch }),
        cluster::Pass::Weights { .. } => None,
    };
    pipeline.order(place).into_iter().filter_map(pass).collect()
}

impl RankTrace {
    /// Its memory over the step.
    pub fn memory(&self, layout: &Layout) -> RankMemory {
        let blocks = Blocks::of(&self.stages[0].names);
        let phases = Timeline::of(&self.traced, &self.options, layout.sharding(), blocks).phases;
        let peak = highest(&phases).map(|i| &phases[i]);
        RankMemory {
            place: self.place,
            peak_bytes: peak.map_or(0, |peak| peak.peak_bytes).saturating_add(self.beside),
            beside: self.beside,
            peak_by_role: peak.map_or(ByRole::default(), |peak| peak.peak_by_role),
            phase: peak.map_or_else(String::new, |peak| peak.name.clone()),
            parameters: self.traced.params.iter().map(|param| param.elements).sum(),
            in_flight: self.in_flight,
        }
    }
}

/// Memory of one rank of every stage.
///
/// # Errors
/// As [`trace`].
pub fn memory(
    model: &ModelSpec,
    layout: &Layout,
    step: &StepOptions,
    engine: Option<Engine>,
) -> Result<Vec<RankMemory>, Diagnostics> {
    Ok(trace(model, layout, step, engine, 0..layout.pp)?.iter().map(|rank| rank.memory(layout)).collect())
}
