//! A layout on a cluster: memory of its ranks and time of its step, from traces of the ranks.
//!
//! Ranks of the first, a middle and the last stage are traced; those between are like the middle one.

use nn::ParamKind;
use nn::step::StepOptions;
use tensor::meter::OpEvent;
use tensor::{Op, Phase};
use units::{Bytes, Diagnostic, Diagnostics, Flops, Mfu, Seconds};

use super::overlap::{self, Exchange};
use super::rank::{RankMemory, RankTrace, trace};
use super::{Layout, Schedule, moe};
use crate::cluster::collective_time::Collective;
use crate::cluster::constants::{Family, rules};
use crate::cluster::machine::{Cost, Item, Machine, Parts, Talk};
use crate::cluster::network::NetworkKind;
use crate::cluster::op_time::Piece;
use crate::cluster::step::{Passes, Rank, Step, StepTime, Sync, Update};
use crate::cluster::topology::{Axis, Degrees, Order};
use crate::cluster::traced::items;
use crate::flops;
use crate::handover::Engine;
use crate::hardware::{self, Hardware};
use crate::model::Model;
use crate::runtime;

/// Where a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// The accelerator.
    pub hardware: &'a Hardware,
    /// Devices of a node.
    pub per_node: u64,
    /// What is between nodes.
    pub network: &'a NetworkKind,
}

/// What is divided, apart from how.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The model.
    pub model: &'a Model,
    /// Length of sequences, precision, optimizer, profile: all that a layout does not say.
    pub step: StepOptions,
    /// Who runs it.
    pub engine: Option<Engine>,
    /// FLOP of the model for one token, causal.
    pub flop_per_token: Flops,
    /// Where.
    pub cluster: Cluster<'a>,
}

/// Memory and time of a layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Memory of the traced ranks, without what lies outside of the allocator.
    pub memory: Vec<RankMemory>,
    /// The fullest device: its rank, and what lies outside.
    pub device: Bytes,
    /// The step, line by line.
    pub time: StepTime,
    /// Utilization of the model's own FLOP.
    pub mfu: Mfu,
    /// Tokens of a step.
    pub tokens: u64,
}

impl Estimate {
    /// Seconds of a step.
    pub fn seconds(&self) -> Seconds {
        Seconds::new(self.time.seconds()).unwrap_or_default()
    }
}

impl<'a> Run<'a> {
    /// A run of a model on a cluster.
    ///
    /// # Errors
    /// If the model cannot be traced, or the hardware table has no rate for its arithmetic.
    pub fn new(
        model: &'a Model,
        step: StepOptions,
        engine: Option<Engine>,
        cluster: Cluster<'a>,
    ) -> Result<Self, Diagnostics> {
        let one = StepOptions { batch: 1, grad_accum_steps: 1, recompute: nn::Recompute::None, ..step };
        let flop_per_token = flops::work(model, &one)?.flop_per_token();
        Ok(Self { model, step, engine, flop_per_token, cluster })
    }

    /// Arithmetic of the matrix products.
    pub fn arithmetic(&self) -> hardware::Precision {
        hardware::Precision::of(self.step.precision.matmul_dtype())
    }

    /// The machine of a layout.
    fn machine(&self, layout: &Layout) -> Result<Machine, Diagnostic> {
        let arithmetic = self.arithmetic();
        let parts = Parts {
            hardware: self.cluster.hardware,
            family: Family::of(self.cluster.hardware),
            rules: rules(),
            precision: arithmetic,
            per_node: self.cluster.per_node,
            network: self.cluster.network,
        };
        let Layout { tp, cp, dp, pp, ep, etp, .. } = *layout;
        let machine = parts.machine(Degrees { tp, cp, dp, pp, ep, etp }, Order::PipelineOutermost);
        machine.ok_or_else(|| {
            let message = format!(
                "{} has no rate for {}, or no link in a node, in the hardware table",
                self.cluster.hardware.display,
                arithmetic.name()
            );
            Diagnostic::error("T0486", message).help("--precision with another arithmetic, or another --hw")
        })
    }

    /// Traces what layouts like this one share: all but the replicas and what is divided over them.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn traces(&self, layout: &Layout) -> Result<Vec<RankTrace>, Diagnostics> {
        let experts = self.model.spec.layers.iter().any(|layer| moe(&layer.feed_forward).is_some());
        if let (Some(shard), true) = (layout.shard, experts) {
            let message = format!("states of experts over {shard} of the replicas are not modelled");
            return Err(Diagnostics::from(Diagnostic::error("T0485", message).help("no --shard")));
        }
        let mut places: Vec<u64> = match layout.blocks {
            // Stages that somebody chose are no two alike.
            Some(_) => (0..layout.pp).collect(),
            None => vec![0, layout.pp / 2, layout.pp - 1],
        };
        places.dedup();
        trace(&self.model.spec, layout, &self.step, self.engine, places)
    }

    /// Memory and time of a layout, given its traces or those of one that differs in its replicas alone.
    ///
    /// # Errors
    /// If the hardware table has no rate for the arithmetic.
    pub fn estimate(&self, layout: &Layout, traces: &[RankTrace]) -> Result<Estimate, Diagnostics> {
        let machine = self.machine(layout)?;
        let memory: Vec<RankMemory> = traces.iter().map(|trace| trace.memory(layout)).collect();
        let fullest = memory.iter().map(|rank| rank.peak_bytes).max().unwrap_or(0);
        let outside = runtime::bytes(self.cluster.hardware, layout.devices());
        let ranks: Vec<Rank> = traces.iter().map(|trace| self.rank(layout, trace, &machine)).collect();
        let place = |place: u64| traces.iter().position(|trace| trace.place == place).unwrap_or(ranks.len() / 2);
        let positions = layout.micro_batch * self.step.seq_len / layout.cp;
        let stream = positions * self.model.spec.hidden_size * self.step.precision.gathered_dtype().size_in_bytes();
        let step = Step {
            ranks: (0..layout.pp).map(|rank| ranks[place(rank)].clone()).collect(),
            schedule: layout.schedule,
            micro_batches: layout.grad_accum,
            boundary: stream as f64 / if layout.sp { layout.tp as f64 } else { 1.0 },
            waits: false,
        };
        let time = step.time(&machine);
        let tokens = layout.global_batch().saturating_mul(self.step.seq_len);
        let peak = self.cluster.hardware.peak(self.arithmetic()).map_or(0.0, |peak| peak.rate.get());
        let flop = self.flop_per_token.get() as f64 * tokens as f64;
        let mfu = flop / (time.seconds() * peak * layout.devices() as f64);
        let mfu = Mfu::new(mfu).map_err(|error| Diagnostic::error("T0486", error.to_string()))?;
        Ok(Estimate { device: Bytes(fullest.saturating_add(outside.get())), memory, time, mfu, tokens })
    }

    /// What a rank does, as the model of time takes it.
    fn rank(&self, layout: &Layout, traced: &RankTrace, machine: &Machine) -> Rank {
        let each = 1.0 / (traced.options.grad_accum_steps as f64 * layout.virtual_stages as f64);
        let events = &traced.traced.trace.ops;
        let cost =
            |wanted: &dyn Fn(&OpEvent) -> bool| machine.cost(&items(events.iter().filter(|event| wanted(event))));
        let back = |event: &OpEvent| matches!(event.phase, Phase::Backward | Phase::Recompute);
        let mut passes = Passes {
            forward: cost(&|event| event.phase == Phase::Forward) * each,
            backward: cost(&|event| back(event) && !makes_weight_gradient(event)) * each,
            weights: cost(&|event| back(event) && makes_weight_gradient(event)) * each,
        };
        let held = Held::of(traced);
        if layout.zero >= 3 {
            self.gather_in_passes(layout, &held, machine, &mut passes, traced);
        }
        let optimizer = cost(&|event| event.phase == Phase::Optimizer) * held.updated(layout);
        Rank {
            stages: vec![passes; layout.virtual_stages as usize],
            update: self.update(layout, traced, &held, optimizer, machine),
        }
    }

    /// What is exchanged once in a step, and the optimizer.
    fn update(&self, layout: &Layout, traced: &RankTrace, held: &Held, optimizer: Cost, machine: &Machine) -> Update {
        let precision = self.step.precision;
        let (grad, weight) = (precision.grad_dtype().size_in_bytes(), precision.gathered_dtype().size_in_bytes());
        let talk = |collective, bytes: f64, axis| Talk { collective, bytes, axis };
        let (within, between) = sharing(layout);
        let groups = [(held.shared, within), (held.experts, Axis::ExpertDp)];
        let mut gradients = Vec::new();
        let mut parameters = Vec::new();
        for (count, axis) in groups.into_iter().filter(|(count, _)| *count > 0.0) {
            let bytes = count * grad as f64;
            match layout.zero {
                0 => gradients.push(talk(Collective::AllReduce, bytes, axis)),
                // From the second on gradients are cut up as they come; ZeRO 3 does so in every pass.
                3.. => {}
                _ => {
                    gradients.push(talk(Collective::ReduceScatter, bytes, axis));
                    parameters.push(talk(Collective::AllGather, count * weight as f64, axis));
                }
            }
        }
        let replicas = layout.dp.saturating_mul(layout.cp);
        let when = |exchange, width| overlap::sync(self.engine, layout.zero, exchange, replicas, width);
        let (mut sync, gather) = (when(Exchange::Gradients, grad), when(Exchange::Parameters, weight));
        if let Some(between) = between {
            // What is cut up is added up with that of the other groups; where that is done block by block, so is this.
            let bytes = held.shared * grad as f64 / layout.sharing_ranks() as f64;
            gradients.push(talk(Collective::AllReduce, bytes, between));
            if layout.zero >= 3 {
                sync = Sync::During { bucket: bytes / traced.blocks() };
            }
        }
        let spec = &self.model.spec;
        if spec.head.tied && layout.pp > 1 && (traced.place == 0 || traced.place + 1 == layout.pp) {
            // Both copies of the token table get the sum of their gradients.
            let bytes = spec.vocab_size as f64 * spec.hidden_size as f64 * grad as f64 / layout.tp as f64;
            gradients.push(talk(Collective::Send, bytes, Axis::Pp));
        }
        // The ops of the update, whose time is known, as one that moves as many bytes as take as long.
        let moves = Piece::moves(machine.seconds(optimizer) * machine.device.bandwidth);
        Update { gradients, sync, gather, optimizer: vec![Item::Op(moves)], parameters }
    }

    /// Weights that are gathered block by block in every pass, and gradients cut up behind every backward pass: hidden behind
    /// the pass but for one block, as far as the pass is as long.
    fn gather_in_passes(
        &self,
        layout: &Layout,
        held: &Held,
        machine: &Machine,
        passes: &mut Passes,
        traced: &RankTrace,
    ) {
        let precision = self.step.precision;
        let weight = precision.gathered_dtype().size_in_bytes() as f64;
        let blocks = traced.blocks();
        let chunks = layout.virtual_stages as f64;
        let talk =
            |collective, bytes: f64, axis| machine.talk(&Talk { collective, bytes: bytes / blocks, axis }) * blocks;
        let both = |collective, each: f64| {
            (talk(collective, held.shared * each, sharing(layout).0)
                + talk(collective, held.experts * each, Axis::ExpertDp))
                / chunks
        };
        let gather = both(Collective::AllGather, weight);
        let reduce = both(Collective::ReduceScatter, precision.grad_dtype().size_in_bytes() as f64);
        let exposed = |all: f64, pass: f64| (all - pass).max(all / blocks);
        let forward = machine.seconds(passes.forward);
        passes.forward.device += exposed(gather, forward);
        let again = if layout.reshard { gather } else { 0.0 };
        passes.backward.device += exposed(again + reduce, machine.seconds(passes.backward + passes.weights));
    }
}

/// The ranks that states are divided over, and those of the same part where there are several groups of the former. Neighbours
/// share states, as in a mesh of replicas by shards.
///
/// Source: pytorch/pytorch, `torch/distributed/fsdp/_runtime_utils.py`, `_reduce_grad`: reduce-scatter within, all-reduce between.
fn sharing(layout: &Layout) -> (Axis, Option<Axis>) {
    let (shard, replicas) = (layout.sharing_ranks(), layout.dp.saturating_mul(layout.cp));
    if layout.zero == 0 || shard >= replicas || shard == 0 {
        return (Axis::Replicas, None);
    }
    let between = Axis::Some { ranks: replicas / shard, apart: shard };
    (Axis::Some { ranks: shard, apart: 1 }, Some(between))
}

/// Parameters that a rank holds: those that all replicas have, and those of its experts.
struct Held {
    shared: f64,
    experts: f64,
}

impl Held {
    /// The part of its parameters that a rank updates.
    fn updated(&self, layout: &Layout) -> f64 {
        let all = self.shared + self.experts;
        if layout.zero == 0 || all == 0.0 {
            return 1.0;
        }
        let sharding = layout.sharding();
        (self.shared / sharding.dp as f64 + self.experts / sharding.expert_dp as f64) / all
    }

    fn of(traced: &RankTrace) -> Self {
        let mut held = Self { shared: 0.0, experts: 0.0 };
        for param in traced.traced.params.iter().filter(|param| param.trainable) {
            match param.kind {
                ParamKind::Expert { .. } => held.experts += param.elements as f64,
                _ => held.shared += param.elements as f64,
            }
        }
        held
    }
}

/// Whether an op makes the gradient of a weight and nothing that a stage before waits for.
fn makes_weight_gradient(event: &OpEvent) -> bool {
    matches!(event.op, Op::MatMulInto(_) | Op::GroupedMatMulInto(_) | Op::GroupedWeightGrad(_))
}

/// Layouts whose traces are the same: they differ in their replicas and in what is divided over these.
pub(super) fn same_traces(a: &Layout, b: &Layout) -> bool {
    let of = |layout: &Layout| {
        let in_flight =
            if layout.schedule == Schedule::GPipe { layout.grad_accum } else { layout.grad_accum.min(layout.pp + 1) };
        (
            (layout.tp, layout.sp, layout.cp, layout.context, layout.ep, layout.etp),
            (layout.pp, layout.virtual_stages, layout.schedule, layout.blocks.clone()),
            (layout.micro_batch, layout.recompute, layout.offload, in_flight),
        )
    };
    of(a) == of(b) && a.imbalance == b.imbalance && a.virtual_stages == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::network;
    use crate::layout::ContextParallel;
    use crate::presets;
    use nn::Profile;
    use nn::step::Precision;

    fn llama() -> Model {
        let (name, text) = presets::find("llama-3.1-8b").unwrap();
        Model::from_text(name, name, text.as_bytes(), &[], None).unwrap()
    }

    fn cluster(per_node: u64) -> Cluster<'static> {
        let (hardware, network) = (hardware::find("h100-sxm").unwrap(), network::find(network::USUAL).unwrap());
        Cluster { hardware, per_node, network }
    }

    /// Keys and values that go round leave the heads where they are: what attention makes is what the map behind it reads, where
    /// ranks that exchange heads hold both. Between nodes that takes longer than inside of one.
    #[test]
    fn keys_and_values_go_round() {
        let model = llama();
        let step = StepOptions::usual(32768, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let of = |context, per_node| {
            let run = Run::new(&model, step, None, cluster(per_node)).unwrap();
            let layout = Layout { cp: 4, context, zero: 1, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap()
        };
        let (ring, exchange) = (of(ContextParallel::Ring, 8), of(ContextParallel::AllToAll, 8));
        let activations = |one: &Estimate| one.memory[0].peak_by_role[tensor::Role::Activation as usize];
        // 32 blocks, 8,192 positions of a rank, a width of 4,096 in two bytes.
        assert_eq!(activations(&exchange) - activations(&ring), 32 * 8192 * 4096 * 2);
        let slow = of(ContextParallel::Ring, 1);
        assert_eq!(slow.memory, ring.memory);
        assert!(slow.time.passes > ring.time.passes, "{:?} {:?}", slow.time, ring.time);
    }

    /// States over 8 of 64 replicas: a device holds what one of 8 does; gradients are cut up inside of a node and an eighth of
    /// them is added up between nodes.
    #[test]
    fn states_over_some_of_the_replicas() {
        let model = llama();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        for zero in 1..=3 {
            let of = |dp, shard| {
                let layout = Layout { dp, zero, shard, ..Layout::default() };
                (run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap(), run.machine(&layout).unwrap())
            };
            let ((hybrid, machine), (node, _)) = (of(64, Some(8)), of(8, None));
            assert_eq!(hybrid.memory, node.memory, "zero {zero}");
            assert_eq!(of(64, Some(64)).0, of(64, None).0, "zero {zero}");
            let parameters = hybrid.memory[0].parameters as f64;
            let seconds = |collective, bytes, ranks, apart| {
                machine.talk(&Talk { collective, bytes, axis: Axis::Some { ranks, apart } })
            };
            let within = seconds(Collective::ReduceScatter, 4.0 * parameters, 8, 1);
            let between = seconds(Collective::AllReduce, 4.0 * parameters / 8.0, 8, 8);
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            if zero < 3 {
                assert!(close(hybrid.time.gradients, within + between), "zero {zero}: {:?}", hybrid.time);
                let back = seconds(Collective::AllGather, 2.0 * parameters, 8, 1);
                assert!(close(hybrid.time.parameters, back), "zero {zero}: {:?}", hybrid.time);
            } else {
                // In every pass inside of the node, as eight replicas alone do; between nodes beside the last pass.
                assert!(close(hybrid.time.passes, node.time.passes));
                assert!(hybrid.time.gradients > 0.0 && hybrid.time.gradients < between);
                assert_eq!(node.time.gradients, 0.0);
            }
        }
    }

    /// An engine that exchanges beside passes waits for less of it, and no engine for more.
    #[test]
    fn exchanges_beside_passes_are_waited_for_less() {
        let (name, text) = presets::find("llama-3.1-8b").unwrap();
        let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
        let cluster = Cluster {
            hardware: hardware::find("h100-sxm").unwrap(),
            per_node: 8,
            network: network::find(network::USUAL).unwrap(),
        };
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let time = |engine, zero| {
            let run = Run::new(&model, step, engine, cluster).unwrap();
            let layout = Layout { dp: 16, zero, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap().time
        };
        let behind = time(None, 1);
        let megatron = time(Some(Engine::Megatron), 1);
        assert!(megatron.gradients < 0.5 * behind.gradients && megatron.parameters < 0.5 * behind.parameters);
        let deepspeed = time(Some(Engine::DeepSpeed), 1);
        assert!(deepspeed.gradients < 0.5 * behind.gradients && deepspeed.parameters == behind.parameters);
        let nanotron = time(Some(Engine::Nanotron), 1);
        assert_eq!([nanotron.gradients, nanotron.parameters], [behind.gradients, behind.parameters]);
    }
}
