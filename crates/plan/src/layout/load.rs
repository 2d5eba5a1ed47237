//! What a rank does in a step, as the estimate of its time takes it.

use nn::ParamKind;
use tensor::meter::OpEvent;
use tensor::{Op, Phase};

use super::Layout;
use super::rank::RankTrace;
use crate::cluster::machine::{Cost, Machine};
use crate::cluster::step::Passes;
use crate::cluster::traced::items;

/// What a rank does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(super) struct Load {
    /// Whether the first of its stages is that of the model.
    pub first: bool,
    /// Whether the last of its stages is that of the model.
    pub last: bool,
    /// Passes of a micro-batch through one of its stages, in the mean.
    pub passes: Passes,
    /// The update of all parameters that it holds.
    pub optimizer: Cost,
    /// Trained parameters that all replicas have.
    pub shared: f64,
    /// Trained parameters of its experts.
    pub experts: f64,
    /// Blocks.
    pub blocks: f64,
    /// Bytes that go to the host in a forward pass through one of its stages, and come back in the backward pass.
    pub copies: f64,
    /// Bytes of states on the host, of all replicas together.
    pub states: f64,
}

impl Load {
    /// That of a trace.
    pub(super) fn of(layout: &Layout, traced: &RankTrace, machine: &Machine) -> Self {
        let each = 1.0 / (traced.options.grad_accum_steps as f64 * layout.virtual_stages as f64);
        // What is made before the first step is no part of any.
        let trace = &traced.traced.trace;
        let begin = trace.marks.iter().find(|mark| mark.name.starts_with("fwd")).map_or(0, |mark| mark.op as usize);
        let events = &trace.ops[begin..];
        let cost = |part: Part| machine.cost(&items(events.iter().filter(|event| Part::of(event) == Some(part))));
        let passes = Passes {
            forward: cost(Part::Forward) * each,
            backward: cost(Part::Backward) * each,
            weights: cost(Part::Weights) * each,
        };
        let mut load = Self {
            first: traced.place == 0,
            last: traced.place + 1 == layout.pp,
            passes,
            optimizer: cost(Part::Optimizer),
            blocks: traced.stages.iter().map(|stage| stage.layers.len()).sum::<usize>() as f64,
            copies: traced.traced.host.activations as f64 * each,
            states: traced.traced.host.states as f64,
            ..Self::default()
        };
        for param in traced.traced.params.iter().filter(|param| param.trainable) {
            match param.kind {
                ParamKind::Expert { .. } => load.experts += param.elements as f64,
                _ => load.shared += param.elements as f64,
            }
        }
        load
    }

    /// The part of its parameters that a rank updates.
    pub(super) fn updated(&self, layout: &Layout) -> f64 {
        let all = self.shared + self.experts;
        if layout.zero == 0 || all == 0.0 {
            return 1.0;
        }
        let sharding = layout.sharding();
        (self.shared / sharding.dp as f64 + self.experts / sharding.expert_dp as f64) / all
    }
}

/// Which time of a rank an op belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Forward passes.
    Forward,
    /// Gradients of what came in, and what is run again.
    Backward,
    /// Gradients of weights.
    Weights,
    /// The update.
    Optimizer,
}

impl Part {
    /// That of an op, if it has any.
    pub(super) fn of(event: &OpEvent) -> Option<Self> {
        match event.phase {
            Phase::Forward => Some(Self::Forward),
            Phase::Backward | Phase::Recompute if makes_weight_gradient(event) => Some(Self::Weights),
            Phase::Backward | Phase::Recompute => Some(Self::Backward),
            Phase::Optimizer => Some(Self::Optimizer),
            Phase::Init | Phase::Communication => None,
        }
    }
}

/// Whether an op makes the gradient of a weight and nothing that a stage before waits for.
fn makes_weight_gradient(event: &OpEvent) -> bool {
    matches!(event.op, Op::MatMulInto(_) | Op::GroupedMatMulInto(_) | Op::GroupedWeightGrad(_))
}
