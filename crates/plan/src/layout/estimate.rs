//! A layout on a cluster: memory of its ranks and time of its step, from traces of the ranks.
//!
//! One of the ranks that hold the same is traced, the first in the pipeline: it holds most micro-batches.

use nn::ParamKind;
use nn::step::StepOptions;
use tensor::meter::OpEvent;
use tensor::{Op, Phase};
use units::{Bytes, Diagnostic, Diagnostics, Flops, Mfu, Seconds};

use super::cut::Pieces;
use super::overlap::{self, Exchange};
use super::rank::{RankMemory, RankTrace, trace};
use super::reserve::Reserved;
use super::{Layout, check};
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
use crate::hardware::{self, Hardware, Scope};
use crate::model::Model;
use crate::runtime;
use crate::states::ParameterBytes;

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
    /// The fullest device by its tensors: its rank, and what lies outside.
    pub device: Bytes,
    /// What the allocators reserve, where they were simulated.
    pub reserved: Option<Reserved>,
    /// What lies outside of the allocators.
    pub outside: Bytes,
    /// Activations that the fullest rank keeps on its host.
    pub host: Bytes,
    /// The step, line by line.
    pub time: StepTime,
    /// Utilization of the model's own FLOP.
    pub mfu: Mfu,
    /// Tokens of a step.
    pub tokens: u64,
}

impl Estimate {
    /// Whether its devices have room for it, and their hosts.
    pub fn fits(&self, capacity: Bytes) -> bool {
        let refused = self.reserved.is_some_and(|reserved| reserved.refused);
        self.total() <= capacity && !refused && self.host <= host_room()
    }

    /// The fullest device in all: with its allocator where that was simulated, else by its tensors.
    pub fn total(&self) -> Bytes {
        let simulated = self.reserved.map(|reserved| Bytes(reserved.bytes.get().saturating_add(self.outside.get())));
        simulated.unwrap_or(self.device)
    }

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
        // A layout is estimated by one step of its steady state.
        let step = StepOptions { steps: 1, warm: true, ..step };
        let one = StepOptions { batch: 1, grad_accum_steps: 1, recompute: nn::Recompute::None, ..step };
        let flop_per_token = flops::work(model, &one)?.flop_per_token();
        Ok(Self { model, step, engine, flop_per_token, cluster })
    }

    /// Arithmetic of the matrix products.
    pub fn arithmetic(&self) -> hardware::Precision {
        self.terms().arithmetic()
    }

    /// What the estimate of a layout takes of the run.
    pub(super) fn terms(&self) -> Terms<'a> {
        let spec = &self.model.spec;
        Terms {
            step: self.step,
            flop_per_token: self.flop_per_token.get() as f64,
            cluster: self.cluster,
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
            tied: spec.head.tied,
            engine: self.engine,
        }
    }

    /// Traces what layouts like this one share: all but the replicas and what is divided over them.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn traces(&self, layout: &Layout) -> Result<Vec<RankTrace>, Diagnostics> {
        check(layout, &self.model.spec, self.step.seq_len, None)?;
        self.traces_of(layout, &self.step)
    }

    /// A rank of every kind of stage in such a step.
    pub(super) fn traces_of(&self, layout: &Layout, step: &StepOptions) -> Result<Vec<RankTrace>, Diagnostics> {
        let cut = Pieces::new(&self.model.spec).cut(layout);
        let places = cut.classes.iter().map(|class| class.place);
        trace(&self.model.spec, layout, step, self.engine, places)
    }

    /// Memory and time of a layout, given its traces or those of one that differs in its replicas alone.
    ///
    /// # Errors
    /// If the hardware table has no rate for the arithmetic.
    pub fn estimate(&self, layout: &Layout, traces: &[RankTrace]) -> Result<Estimate, Diagnostics> {
        let terms = self.terms();
        let machine = terms.machine(layout)?;
        let memory: Vec<RankMemory> = traces.iter().map(|trace| trace.memory(layout)).collect();
        let fullest = memory.iter().map(|rank| rank.peak_bytes).max().unwrap_or(0);
        let cut = Pieces::new(&self.model.spec).cut(layout);
        let loads: Vec<Load> = traces.iter().map(|trace| Load::of(layout, trace, &machine)).collect();
        let on_host = loads.iter().zip(traces).map(|(load, trace)| terms.on_host(layout, load, trace.in_flight)).max();
        let ranks = loads.iter().map(|load| terms.rank(layout, load, &machine));
        let ranks = ranks.collect::<Result<Vec<Rank>, _>>()?;
        let place = |class: &usize| {
            let place = cut.classes[*class].place;
            traces.iter().position(|trace| trace.place == place).unwrap_or(0)
        };
        let step = terms.step(layout, cut.of.iter().map(|class| ranks[place(class)].clone()).collect());
        let time = step.time(&machine);
        let device = terms.device(layout, fullest);
        let outside = Bytes(device.get() - fullest);
        let (mfu, tokens) = (terms.mfu(layout, &time)?, terms.tokens(layout));
        Ok(Estimate { device, reserved: None, outside, memory, host: on_host.unwrap_or_default(), mfu, time, tokens })
    }
}

/// What a device has of its host.
pub(super) fn host_room() -> Bytes {
    Bytes((rules().get("host_gb") * 1e9) as u64)
}

/// What a rank does in a step, as the estimate of its time takes it.
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
    fn of(layout: &Layout, traced: &RankTrace, machine: &Machine) -> Self {
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
    fn updated(&self, layout: &Layout) -> f64 {
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

/// All that the estimate of a layout takes of a run beside what its ranks do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub step: StepOptions,
    pub cluster: Cluster<'a>,
    flop_per_token: f64,
    hidden_size: u64,
    vocab_size: u64,
    tied: bool,
    engine: Option<Engine>,
}

impl Terms<'_> {
    /// Arithmetic of the matrix products.
    fn arithmetic(&self) -> hardware::Precision {
        hardware::Precision::of(self.step.precision.matmul_dtype())
    }

    /// The degrees of a layout.
    pub(super) const fn degrees(layout: &Layout) -> Degrees {
        let Layout { tp, cp, dp, pp, ep, etp, .. } = *layout;
        Degrees { tp, cp, dp, pp, ep, etp }
    }

    /// The machine of a layout.
    pub(super) fn machine(&self, layout: &Layout) -> Result<Machine, Diagnostic> {
        let arithmetic = self.arithmetic();
        let parts = Parts {
            hardware: self.cluster.hardware,
            family: Family::of(self.cluster.hardware),
            rules: rules(),
            precision: arithmetic,
            // A device alone talks to none.
            per_node: if layout.devices() == 1 { 1 } else { self.cluster.per_node },
            network: self.cluster.network,
        };
        let machine = parts.machine(Self::degrees(layout), Order::PipelineOutermost);
        machine.ok_or_else(|| {
            let name = &self.cluster.hardware.display;
            if self.cluster.hardware.peak(arithmetic).is_some() {
                let message = format!("{name} has no link between devices of a node in the hardware table");
                return Diagnostic::error("T0486", message).help("-n 1, --devices-per-node 1, or another --hw");
            }
            let message = format!("{name} has no rate for {} in the hardware table", arithmetic.name());
            Diagnostic::error("T0486", message).help("--precision with another arithmetic, or another --hw")
        })
    }

    /// The step of these ranks.
    pub(super) fn step(&self, layout: &Layout, ranks: Vec<Rank>) -> Step {
        let positions = layout.micro_batch * self.step.seq_len / layout.cp;
        let stream = positions * self.hidden_size * self.step.precision.gathered_dtype().size_in_bytes();
        Step {
            ranks,
            schedule: layout.schedule,
            micro_batches: layout.grad_accum,
            boundary: stream as f64 / if layout.sp { layout.tp as f64 } else { 1.0 },
            waits: false,
        }
    }

    /// The device of a rank of so many bytes, with what lies outside of its allocator.
    pub(super) fn device(&self, layout: &Layout, fullest: u64) -> Bytes {
        Bytes(fullest.saturating_add(runtime::bytes(self.cluster.hardware, layout.devices()).get()))
    }

    /// Tokens of a step.
    pub(super) const fn tokens(&self, layout: &Layout) -> u64 {
        layout.global_batch().saturating_mul(self.step.seq_len)
    }

    /// Utilization of the model's own FLOP.
    pub(super) fn mfu(&self, layout: &Layout, time: &StepTime) -> Result<Mfu, Diagnostic> {
        let peak = self.cluster.hardware.peak(self.arithmetic()).map_or(0.0, |peak| peak.rate.get());
        let flop = self.flop_per_token * self.tokens(layout) as f64;
        Mfu::new(flop / (time.seconds() * peak * layout.devices() as f64))
            .map_err(|error| Diagnostic::error("T0486", error.to_string()))
    }

    /// Bytes per second and direction that copies between a device and its host reach, where its link is known.
    pub(super) fn host_link(&self) -> Option<f64> {
        let mut links = self.cluster.hardware.links.iter();
        links.find(|link| link.scope == Scope::Host).map(|link| link.per_direction.get() * rules().get("host_copy"))
    }

    /// Bytes of states of a parameter, where they do not depend on its shape.
    pub(super) fn states(&self) -> Option<u64> {
        let each = ParameterBytes::of(self.step.precision, self.step.optimizer.kind)?;
        Some(each.master + each.optimizer())
    }

    /// Gradients that go to the host for an update there, and parameters that come back: bytes of one parameter.
    fn handed_over(&self) -> u64 {
        let precision = self.step.precision;
        precision.grad_dtype().size_in_bytes() + precision.param_dtype().size_in_bytes()
    }

    /// What lies on the host of a rank: of so many micro-batches what each keeps of one of its stages; states, and room for
    /// what their update reads and writes.
    pub(super) fn on_host(&self, layout: &Layout, load: &Load, in_flight: u64) -> Bytes {
        let activations = load.copies * in_flight as f64;
        if !layout.offload.optimizer {
            return Bytes(activations as u64);
        }
        let all = load.shared + load.experts;
        let update = (load.states + all * self.handed_over() as f64) * load.updated(layout);
        Bytes((activations + update) as u64)
    }

    /// Seconds of an update on the host: gradients go there, states are read and written, parameters come back, one after the
    /// other; the devices of a node share its host.
    ///
    /// Source: Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 4, without the overlap of single blocks.
    fn update_on_host(&self, layout: &Layout, load: &Load, link: f64) -> f64 {
        let share = load.updated(layout);
        let handed_over = (load.shared + load.experts) * share * self.handed_over() as f64;
        let moved = 2.0 * load.states * share + handed_over;
        let sharing = self.cluster.per_node.min(layout.devices()) as f64;
        let memory = rules().get("host_memory_gb_s") * 1e9 * rules().get("host_update");
        handed_over / link + moved * sharing / memory
    }

    /// What a rank does, as the model of time takes it.
    ///
    /// # Errors
    /// If it moves something to the host over a link that the hardware table does not have.
    pub(super) fn rank(&self, layout: &Layout, load: &Load, machine: &Machine) -> Result<Rank, Diagnostic> {
        let mut passes = load.passes;
        let link = || {
            self.host_link().ok_or_else(|| {
                let message =
                    format!("{} has no link to its host in the hardware table", self.cluster.hardware.display);
                Diagnostic::error("T0486", message).help("no --offload")
            })
        };
        if load.copies > 0.0 {
            let link = link()?;
            // Copies run beside the passes, which wait for those that take longer.
            let copies = load.copies / link;
            passes.forward.device = passes.forward.device.max(copies);
            passes.backward.device = passes.backward.device.max(copies - passes.weights.device);
        }
        self.exchanges_in_passes(layout, load, machine, &mut passes);
        let mut update = self.update(layout, load, machine);
        if layout.offload.optimizer {
            let moves = Piece::moves(self.update_on_host(layout, load, link()?) * machine.device.bandwidth);
            update.optimizer = vec![Item::Op(moves)];
        }
        Ok(Rank { stages: vec![passes; layout.virtual_stages as usize], update })
    }

    /// What is exchanged once in a step, and the optimizer.
    fn update(&self, layout: &Layout, load: &Load, machine: &Machine) -> Update {
        let precision = self.step.precision;
        let (grad, weight) = (precision.grad_dtype().size_in_bytes(), precision.gathered_dtype().size_in_bytes());
        let talk = |collective, bytes: f64, axis| Talk { collective, bytes, axis };
        let groups = [(load.shared, sharing(layout)), (load.experts, expert_sharing(layout))];
        let mut gradients = Vec::new();
        let mut parameters = Vec::new();
        for (count, (axis, _)) in groups.into_iter().filter(|(count, _)| *count > 0.0) {
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
        let sharding = layout.sharding();
        for ((count, (_, between)), ranks) in groups.into_iter().zip([sharding.dp, sharding.expert_dp]) {
            let Some(between) = between.filter(|_| count > 0.0) else { continue };
            // What is cut up is added up with that of the other groups; where that is done block by block, so is this.
            let bytes = count * grad as f64 / ranks as f64;
            gradients.push(talk(Collective::AllReduce, bytes, between));
            if layout.zero >= 3 {
                sync = Sync::During { bucket: bytes / load.blocks.max(1.0) };
            }
        }
        if self.tied && layout.pp > 1 && (load.first || load.last) {
            // Both copies of the token table get the sum of their gradients.
            let bytes = self.vocab_size as f64 * self.hidden_size as f64 * grad as f64 / layout.tp as f64;
            gradients.push(talk(Collective::Send, bytes, Axis::Pp));
        }
        // The ops of the update, whose time is known, as one that moves as many bytes as take as long.
        let optimizer = load.optimizer * load.updated(layout);
        let moves = Piece::moves(machine.seconds(optimizer) * machine.device.bandwidth);
        Update { gradients, sync, gather, optimizer: vec![Item::Op(moves)], parameters }
    }

    /// Gradients that are cut up behind the backward pass of every micro-batch (ZeRO 2): no rank has room for all of its own. Those
    /// of the last one are part of the update.
    ///
    /// Source: deepspeedai/DeepSpeed, `deepspeed/runtime/zero/stage_1_and_2.py`, `reduce_ready_partitions_and_remove_grads` with
    /// `partition_gradients`; NVIDIA/Megatron-LM, `--data-parallel-sharding-strategy optim_grads` of its FSDP.
    fn reductions_in_passes(&self, layout: &Layout, load: &Load, machine: &Machine, passes: &mut Passes) {
        let width = self.step.precision.grad_dtype().size_in_bytes();
        let (n, chunks) = (layout.grad_accum as f64, layout.virtual_stages as f64);
        let groups = [(load.shared, sharing(layout).0), (load.experts, expert_sharing(layout).0)];
        let talk = |(count, axis): (f64, Axis)| Talk {
            collective: Collective::ReduceScatter,
            bytes: count * width as f64,
            axis,
        };
        let talks: Vec<Talk> = groups.into_iter().filter(|(count, _)| *count > 0.0).map(talk).collect();
        let replicas = layout.dp.saturating_mul(layout.cp);
        let when = overlap::sync(self.engine, layout.zero, Exchange::Gradients, replicas, width);
        let pass = machine.seconds(passes.backward + passes.weights) * chunks;
        passes.backward.device += when.exposed(machine, &talks, pass) / chunks * (n - 1.0) / n;
    }

    /// Weights that are gathered block by block in every pass, and gradients cut up behind every backward pass (ZeRO 3): hidden
    /// behind the pass but for one block, as far as the pass is as long.
    fn exchanges_in_passes(&self, layout: &Layout, load: &Load, machine: &Machine, passes: &mut Passes) {
        if layout.zero == 2 {
            self.reductions_in_passes(layout, load, machine, passes);
        }
        if layout.zero < 3 {
            return;
        }
        let precision = self.step.precision;
        let weight = precision.gathered_dtype().size_in_bytes() as f64;
        let blocks = load.blocks.max(1.0);
        let chunks = layout.virtual_stages as f64;
        let talk =
            |collective, bytes: f64, axis| machine.talk(&Talk { collective, bytes: bytes / blocks, axis }) * blocks;
        let both = |collective, each: f64| {
            (talk(collective, load.shared * each, sharing(layout).0)
                + talk(collective, load.experts * each, expert_sharing(layout).0))
                / chunks
        };
        let reduce = both(Collective::ReduceScatter, precision.grad_dtype().size_in_bytes() as f64);
        let gather = both(Collective::AllGather, weight);
        let exposed = |all: f64, pass: f64| (all - pass).max(all / blocks);
        let forward = machine.seconds(passes.forward);
        passes.forward.device += exposed(gather, forward);
        let again = if layout.reshard { gather } else { 0.0 };
        passes.backward.device += exposed(again + reduce, machine.seconds(passes.backward + passes.weights));
    }
}

/// The same of experts.
fn expert_sharing(layout: &Layout) -> (Axis, Option<Axis>) {
    let (_, Some(between)) = sharing(layout) else { return (Axis::ExpertDp, None) };
    // Ranks of the same expert are as far apart as all its ranks and those of the others are many.
    let apart = layout.ep.saturating_mul(layout.etp).div_ceil(layout.tp.max(1)).max(1);
    (Axis::Some { ranks: layout.expert_sharing_ranks(), apart }, Some(between))
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

/// Whether an op makes the gradient of a weight and nothing that a stage before waits for.
fn makes_weight_gradient(event: &OpEvent) -> bool {
    matches!(event.op, Op::MatMulInto(_) | Op::GroupedMatMulInto(_) | Op::GroupedWeightGrad(_))
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
                (run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap(), run.terms().machine(&layout).unwrap())
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

    fn mixtral() -> Model {
        let text = r#"{"model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
            "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 4096, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false}"#;
        Model::from_text("x", "x", text.as_bytes(), &[], None).unwrap()
    }

    /// Experts and all else over 8 of 32 replicas: a rank holds what one of 8 does, and parts are added up between nodes.
    #[test]
    fn states_of_experts_over_some_of_the_replicas() {
        let model = mixtral();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        for (zero, ep) in [(1, 1), (1, 4), (2, 8), (3, 4)] {
            let of = |dp, shard| {
                let layout = Layout { dp, ep, zero, shard, ..Layout::default() };
                run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap()
            };
            let (hybrid, node, all) = (of(32, Some(8)), of(8, None), of(32, None));
            assert_eq!(hybrid.memory, node.memory, "zero {zero} ep {ep}");
            assert!(hybrid.time.gradients > node.time.gradients, "zero {zero} ep {ep}");
            assert!(all.memory[0].peak_bytes <= hybrid.memory[0].peak_bytes, "zero {zero} ep {ep}");
            assert_eq!(of(32, Some(32)), all, "zero {zero} ep {ep}");
        }
        let wrong = Layout { dp: 32, ep: 8, zero: 1, shard: Some(4), ..Layout::default() };
        let problems = run.traces(&wrong).unwrap_err().to_string();
        assert!(problems.contains("T0480") && problems.contains("shard: 8"), "{problems}");
    }

    /// Gradients cut up behind every backward pass: of four micro-batches three more exchanges, where ZeRO 1 has one in all.
    #[test]
    fn gradients_of_every_micro_batch_are_cut_up() {
        let model = llama();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        let of = |zero, grad_accum| {
            let layout = Layout { dp: 16, zero, grad_accum, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap().time
        };
        let one = of(2, 1);
        assert_eq!(one, of(1, 1));
        let (cut, kept) = (of(2, 4), of(1, 4));
        assert_eq!(cut.gradients, kept.gradients);
        // The host is ahead by far, and hides nothing.
        let more = cut.passes - kept.passes;
        assert!((more / (3.0 * one.gradients) - 1.0).abs() < 0.01, "{more} {}", one.gradients);
    }

    /// An update on the host: 4 bytes of gradients and 2 of weights over the link, 12 of states read and written and those once more
    /// by processors that the devices of a node share.
    #[test]
    fn updates_on_the_host_take_their_time() {
        let model = llama();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        let of = |dp, optimizer| {
            let offload = nn::Offload { activations: false, optimizer };
            let layout = Layout { dp, zero: 1, offload, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap()
        };
        for dp in [8, 16] {
            let (host, device) = (of(dp, true), of(dp, false));
            let each = device.memory[0].parameters as f64 / dp as f64;
            let (link, memory) = (64e9 * 0.87, 614e9 * 0.5);
            let expected = each * 6.0 / link + each * 8.0 * (24.0 + 6.0) / memory;
            assert!((host.time.optimizer / expected - 1.0).abs() < 1e-3, "{} {expected}", host.time.optimizer);
            assert!(host.time.optimizer > 10.0 * device.time.optimizer && host.device < device.device);
            assert!((host.host.get() as f64 / (each * 18.0) - 1.0).abs() < 1e-6, "{:?}", host.host);
            assert_eq!(host.time.passes, device.time.passes);
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
