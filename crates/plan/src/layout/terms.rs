//! What the ranks of a layout exchange and how long their step takes, by the terms of a run.

use nn::step::StepOptions;
use units::{Bytes, Diagnostic, Mfu};

use super::Layout;
use super::estimate::Cluster;
use super::load::Load;
use super::overlap::{self, Exchange};
use crate::cluster::collective_time::Collective;
use crate::cluster::constants::{Family, rules};
use crate::cluster::machine::{Item, Machine, Parts, Talk};
use crate::cluster::op_time::Piece;
use crate::cluster::step::{Passes, Rank, Step, StepTime, Sync, Update};
use crate::cluster::topology::{Axis, Degrees, Order};
use crate::handover::Engine;
use crate::hardware::{self, Scope};
use crate::runtime;
use crate::sharding::{Gathering, Wrap};
use crate::states::ParameterBytes;

/// What a device has of its host.
pub(super) fn host_room() -> Bytes {
    Bytes((rules().get("host_gb") * 1e9) as u64)
}

/// All that the estimate of a layout takes of a run beside what its ranks do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub step: StepOptions,
    pub cluster: Cluster<'a>,
    pub flop_per_token: f64,
    pub hidden_size: u64,
    pub vocab_size: u64,
    pub tied: bool,
    pub engine: Option<Engine>,
}

impl Terms<'_> {
    /// Arithmetic of the matrix products.
    pub(super) fn arithmetic(&self) -> hardware::Precision {
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
        let pass = || machine.seconds(passes.backward + passes.weights) * chunks;
        passes.backward.device += when.exposed(machine, &talks, pass) / chunks * (n - 1.0) / n;
    }

    /// Weights that are gathered unit by unit in every pass, and gradients cut up behind every backward pass or that of the last
    /// micro-batch (ZeRO 3): hidden behind the pass but for one unit, as far as the pass is as long and units are fetched ahead.
    fn exchanges_in_passes(&self, layout: &Layout, load: &Load, machine: &Machine, passes: &mut Passes) {
        if layout.zero == 2 && layout.gathering.sync {
            self.reductions_in_passes(layout, load, machine, passes);
        }
        if layout.zero < 3 {
            return;
        }
        let precision = self.step.precision;
        let weight = precision.gathered_dtype().size_in_bytes() as f64;
        let Gathering { wrap, prefetch, reshard, sync } = layout.gathering;
        let units = if wrap == Wrap::Model { 1.0 } else { load.blocks.max(1.0) };
        let (chunks, n) = (layout.virtual_stages as f64, layout.grad_accum as f64);
        let talk =
            |collective, bytes: f64, axis| machine.talk(&Talk { collective, bytes: bytes / units, axis }) * units;
        let both = |collective, each: f64| {
            (talk(collective, load.shared * each, sharing(layout).0)
                + talk(collective, load.experts * each, expert_sharing(layout).0))
                / chunks
        };
        let reduce = both(Collective::ReduceScatter, precision.grad_dtype().size_in_bytes() as f64);
        let gather = both(Collective::AllGather, weight);
        // What is not fetched ahead is waited for; gradients leave behind the next unit in any case.
        let exposed = |gather: f64, reduce: f64, pass: f64| {
            let (waits, beside) = if prefetch { (0.0, gather + reduce) } else { (gather, reduce) };
            waits + (beside - pass).max(beside / units)
        };
        let forward = machine.seconds(passes.forward);
        passes.forward.device += exposed(gather, 0.0, forward);
        let again = if reshard { gather } else { 0.0 };
        let backward = machine.seconds(passes.backward + passes.weights);
        let reducing = if sync { 1.0 } else { 1.0 / n };
        passes.backward.device +=
            reducing * exposed(again, reduce, backward) + (1.0 - reducing) * exposed(again, 0.0, backward);
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
