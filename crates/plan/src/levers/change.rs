//! What can be changed of a run to free memory, one knob at a time, and the flags that say it.

use nn::optim::{self, Implementation, OptimizerKind};
use nn::spec::ModelSpec;
use nn::step::{Precision, StepOptions};
use nn::{HeadLoss, Objective, Offload, Profile, Recompute};
use units::{Bytes, Params};

use crate::layout::{ContextParallel, Layout, Schedule, moe};
use crate::sharding::{Gathering, Sharding, Wrap};
use crate::states::{ParameterBytes, Zero};

/// Pieces that a chunked cross-entropy works in.
const CHUNKS: u64 = 8;

/// How a run is divided, and its step. Sizes of a micro-batch, accumulation, recomputation and what is on the host are those
/// of the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// How it is divided.
    pub layout: Layout,
    /// The rest of its step.
    pub step: StepOptions,
}

/// Whose flags say a set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Those of one step on data-parallel devices (`napkin ledger`).
    Step,
    /// Those of a layout (`napkin layout`).
    Layout,
}

/// A knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Knob {
    Update,
    Kernels,
    Schedule,
    Loss,
    Sequence,
    Sharding,
    Recompute,
    Batch,
    Formats,
    Tensor,
    Pipeline,
    Context,
    Experts,
    Host,
}

/// A knob turned.
pub(super) struct Change {
    pub knob: Knob,
    /// What it does, and what it costs.
    pub effect: &'static str,
    pub setup: Setup,
}

impl Setup {
    /// A step on one of data-parallel devices.
    pub fn alone(options: &StepOptions, sharding: Sharding) -> Self {
        let layout = Layout {
            dp: sharding.dp,
            zero: sharding.zero,
            gathering: sharding.gathering,
            micro_batch: options.batch,
            grad_accum: options.grad_accum_steps,
            recompute: options.recompute,
            offload: options.offload,
            ..Layout::default()
        };
        Self { layout, step: *options }
    }

    /// The step of one device.
    pub const fn options(&self) -> StepOptions {
        let Layout { micro_batch: batch, grad_accum: grad_accum_steps, recompute, offload, .. } = self.layout;
        // Micro-batches add up in gradients that live on.
        let in_backward = self.step.in_backward && grad_accum_steps == 1;
        StepOptions { batch, grad_accum_steps, recompute, offload, in_backward, ..self.step }
    }

    /// The flags that turn this set-up into `to`.
    pub fn flags(&self, to: &Self, words: Words) -> String {
        let (a, b) = (&self.layout, &to.layout);
        let mut flags = Vec::new();
        let mut set = |name: &str, changed: bool, value: String| {
            if changed {
                flags.push(format!("{name} {value}").trim_end().to_owned());
            }
        };
        let batch = if words == Words::Layout { "--micro-batch" } else { "--batch" };
        set("-n", a.devices() != b.devices(), b.devices().to_string());
        set("--tp", a.tp != b.tp, b.tp.to_string());
        set("--sp", !a.sp && b.sp, String::new());
        set("--cp", a.cp != b.cp, b.cp.to_string());
        let exchanges = b.context == ContextParallel::AllToAll && a.context != b.context;
        set("--cp-all-to-all", exchanges, String::new());
        set("--ep", a.ep != b.ep, b.ep.to_string());
        set("--pp", a.pp != b.pp, b.pp.to_string());
        set("--dp", a.dp != b.dp, b.dp.to_string());
        set("--virtual-stages", a.virtual_stages != b.virtual_stages, b.virtual_stages.to_string());
        set("--schedule", a.schedule != b.schedule, b.schedule.to_string());
        set("--zero", a.zero != b.zero, b.zero.to_string());
        set("--shard", a.shard != b.shard, b.sharing_ranks().to_string());
        let (was, is) = (a.gathering, b.gathering);
        set("--fsdp-unit", was.wrap != is.wrap, is.wrap.name().to_owned());
        set("--no-prefetch", was.prefetch && !is.prefetch, String::new());
        set("--reshard", !was.reshard && is.reshard, String::new());
        set("--sync", !was.sync && is.sync, String::new());
        set(batch, a.micro_batch != b.micro_batch, b.micro_batch.to_string());
        set("--grad-accum", a.grad_accum != b.grad_accum, b.grad_accum.to_string());
        set("--recompute", a.recompute != b.recompute, b.recompute.name().to_owned());
        set("--offload", a.offload != b.offload, b.offload.to_string());
        let (a, b) = (&self.step, &to.step);
        set("--profile", a.profile != b.profile, b.profile.to_string());
        set("--precision", a.precision != b.precision, b.precision.to_string());
        set("--loss", a.objective.head != b.objective.head, b.objective.head.to_string());
        let update = match b.optimizer.kind {
            optim::Kind::Adam8bit => b.optimizer.kind.name().to_owned(),
            _ => b.optimizer.to_string(),
        };
        set("--optimizer", a.optimizer != b.optimizer, update);
        flags.join(" ")
    }

    /// This set-up on the same devices, with everything done that lowers [`Setup::least`].
    pub(super) fn smallest(&self) -> Self {
        let offload = Offload { optimizer: true, ..self.layout.offload };
        let optimizer = OptimizerKind { kind: optim::Kind::Sgd, ..self.step.optimizer };
        Self {
            layout: Layout { zero: 3, shard: None, gathering: Gathering::USUAL, offload, ..self.layout.clone() },
            step: StepOptions { precision: Precision::Bf16Pure, optimizer, ..self.step },
        }
    }

    /// Whether losses and weights of a run come out otherwise than those of `to`, beyond the order of sums.
    pub(super) fn has_other_numbers(&self, to: &Self) -> bool {
        self.step.precision != to.step.precision || self.step.optimizer.kind != to.step.optimizer.kind
    }

    /// Bytes of parameters, gradients and states of the fullest device at least, of a model with so many parameters that all
    /// are trained: what no other change goes below. States that depend on shapes are left out.
    pub(super) fn least(&self, parameters: u64) -> Bytes {
        let layout = &self.layout;
        let (precision, kind) = (self.step.precision, self.step.optimizer.kind);
        let without_states = || {
            ParameterBytes::of(precision, optim::Kind::Sgd).map(|each| ParameterBytes { master: 0, slots: &[], ..each })
        };
        let Some(each) = ParameterBytes::of(precision, kind).or_else(without_states) else { return Bytes::ZERO };
        let each = if layout.offload.optimizer { ParameterBytes { master: 0, slots: &[], ..each } } else { each };
        let each = if self.options().in_backward { ParameterBytes { gradient: 0, ..each } } else { each };
        let held = Params(parameters / layout.tp.max(1) / layout.pp.max(1) / layout.ep.max(1));
        let zero = Zero::ALL.get(usize::from(layout.zero)).copied().unwrap_or_default();
        each.on_device(held, zero, layout.sharing_ranks().max(1))
    }
}

/// Every knob turned alone, from what costs least by rule to what costs most; of a knob, the last frees most.
pub(super) fn changes(spec: &ModelSpec, from: &Setup, words: Words) -> Vec<Change> {
    let mut out = Vec::new();
    let mut push = |knob, effect, setup: Setup| out.push(Change { knob, effect, setup });
    let step = |step| Setup { step, ..from.clone() };
    let layout = |layout| Setup { layout, ..from.clone() };
    let (now, options) = (&from.layout, from.step);
    let rule = options.optimizer.kind;
    let update =
        |kind, implementation| step(StepOptions { optimizer: OptimizerKind { kind, implementation }, ..options });

    if options.optimizer.implementation != Implementation::Fused {
        push(Knob::Update, "one kernel, no temporaries of the update", update(rule, Implementation::Fused));
    }
    let profile = |profile| step(StepOptions { profile, ..options });
    if options.profile == Profile::HfEager && spec.has_sdpa {
        push(Knob::Kernels, "fused attention: scores are never stored; faster", profile(Profile::HfSdpa));
    }
    if options.profile != Profile::Fused {
        let effect = match options.profile {
            Profile::HfEager => "fused attention, norms and loss",
            _ => "fused norms, activation and loss",
        };
        push(Knob::Kernels, effect, profile(Profile::Fused));
    }
    if now.schedule == Schedule::GPipe && now.pp > 1 {
        let effect = "a micro-batch is given up as soon as its backward pass ends";
        push(Knob::Schedule, effect, layout(Layout { schedule: Schedule::OneFOneB, ..now.clone() }));
    }
    if now.virtual_stages > 1 {
        let plain = Layout { virtual_stages: 1, schedule: Schedule::OneFOneB, blocks: None, ..now.clone() };
        push(Knob::Schedule, "fewer micro-batches in flight, a longer bubble", layout(plain));
    }
    if options.objective.head == HeadLoss::Whole {
        let objective = Objective { head: HeadLoss::Chunked(CHUNKS), ..options.objective };
        let effect = "logits in pieces, one after the other, head included";
        push(Knob::Loss, effect, step(StepOptions { objective, ..options }));
    }
    if now.tp > 1 && !now.sp {
        let effect = "what lies between shared matrices is divided, too";
        push(Knob::Sequence, effect, layout(Layout { sp: true, ..now.clone() }));
    }
    sharding(now, &mut |effect, to| push(Knob::Sharding, effect, layout(to)));
    let recompute = |recompute| layout(Layout { recompute, ..now.clone() });
    if now.recompute == Recompute::None {
        push(Knob::Recompute, "attention runs again", recompute(Recompute::Selective));
    }
    if matches!(rule, optim::Kind::Adam | optim::Kind::AdamW) {
        push(Knob::Update, "states of one byte each", update(optim::Kind::Adam8bit, Implementation::Fused));
    }
    if now.micro_batch > 1 {
        let (micro_batch, grad_accum) = (now.micro_batch / 2, now.grad_accum.saturating_mul(2));
        let effect = "with twice the accumulation, the same update";
        push(Knob::Batch, effect, layout(Layout { micro_batch, grad_accum, ..now.clone() }));
    }
    let formats = |precision| step(StepOptions { precision, ..options });
    match options.precision {
        Precision::Fp32 => push(Knob::Formats, "products and activations of two bytes", formats(Precision::Bf16Mixed)),
        Precision::Bf16MasterFp32Grads => {
            push(Knob::Formats, "gradients are added up in two bytes", formats(Precision::Bf16Master));
        }
        _ => {}
    }
    if now.recompute != Recompute::Full {
        push(Knob::Recompute, "a third more arithmetic in the blocks", recompute(Recompute::Full));
    }
    if words == Words::Layout {
        degrees(spec, now, &mut |knob, effect, to| push(knob, effect, layout(to)));
    }
    let host = |offload| layout(Layout { offload, ..now.clone() });
    if !now.offload.activations {
        let offload = Offload { activations: true, ..now.offload };
        push(Knob::Host, "what backward needs goes to the host and comes back: slow", host(offload));
    }
    if !now.offload.optimizer {
        let offload = Offload { optimizer: true, ..now.offload };
        push(Knob::Host, "states and update on the host: slow", host(offload));
    }
    if matches!(options.precision, Precision::Bf16Mixed | Precision::Bf16Master | Precision::Bf16MasterFp32Grads) {
        let effect = "no f32 masters: updates below 2^-9 of a weight are lost";
        push(Knob::Formats, effect, formats(Precision::Bf16Pure));
    }
    out
}

/// More of the states divided over the replicas.
fn sharding(now: &Layout, push: &mut dyn FnMut(&'static str, Layout)) {
    if now.sharing_ranks() > 1 {
        // Micro-batches in flight would gather and reduce once each: engines divide no more than states there.
        let most = if now.pp > 1 { 1 } else { 3 };
        for zero in now.zero + 1..=most {
            let effect = match zero {
                1 => "optimizer states are divided",
                2 => "and gradients",
                _ => "and weights, which are gathered for every block",
            };
            push(effect, Layout { zero, ..now.clone() });
        }
    }
    if now.zero > 0 && now.shard.is_some_and(|ranks| ranks < now.dp.saturating_mul(now.cp)) {
        push("states are divided over all replicas", Layout { shard: None, ..now.clone() });
    }
    // The usual is what holds least, but for units that are not fetched ahead.
    let has = now.sharding().gathering;
    let mut gather = |changed, effect, gathering| {
        if changed {
            push(effect, Layout { gathering, ..now.clone() });
        }
    };
    gather(!has.sync, "gradients are reduced behind every micro-batch", Gathering { sync: true, ..has });
    gather(has.wrap == Wrap::Model, "weights are gathered block by block", Gathering { wrap: Wrap::Block, ..has });
    gather(!has.reshard, "gathered weights are given up behind forward", Gathering { reshard: true, ..has });
    gather(
        now.sharding().gathers() && has.prefetch,
        "no block is gathered ahead: slow",
        Gathering { prefetch: false, ..has },
    );
}

/// Each degree doubled: on the same devices where the replicas can be halved, with as many sequences a step; else on twice as
/// many.
fn degrees(spec: &ModelSpec, now: &Layout, push: &mut dyn FnMut(Knob, &'static str, Layout)) {
    let halved = now.dp.is_multiple_of(2);
    let rest = |layout: Layout| {
        if !halved {
            return layout;
        }
        Layout { dp: layout.dp / 2, grad_accum: layout.grad_accum.saturating_mul(2), shard: None, ..layout }
    };
    let effect = |same, more| if halved { same } else { more };
    let tp = Layout { tp: now.tp * 2, sp: now.sp || now.tp == 1, ..now.clone() };
    push(
        Knob::Tensor,
        effect("matrices over twice the ranks, half the replicas", "matrices over twice the ranks: twice the devices"),
        rest(tp),
    );
    let pp = Layout { pp: now.pp * 2, blocks: None, ..now.clone() };
    push(
        Knob::Pipeline,
        effect("blocks over twice the stages, half the replicas", "blocks over twice the stages: twice the devices"),
        rest(pp),
    );
    // Ranks of one sequence hold the same weights, as replicas do. Not every attention goes round, and not all heads divide.
    let ways: &[ContextParallel] = match now.context {
        ContextParallel::Ring if now.cp == 1 => &[ContextParallel::Ring, ContextParallel::AllToAll],
        ContextParallel::Ring => &[ContextParallel::Ring],
        ContextParallel::AllToAll => &[ContextParallel::AllToAll],
    };
    for &context in ways {
        let around = context == ContextParallel::Ring;
        push(
            Knob::Context,
            match (halved, around) {
                (true, true) => "sequences over twice the ranks that keys and values go round, half the replicas",
                (true, false) => "sequences over twice the ranks that exchange heads, half the replicas",
                (false, true) => "sequences over twice the ranks that keys and values go round: twice the devices",
                (false, false) => "sequences over twice the ranks that exchange heads: twice the devices",
            },
            rest(Layout { cp: now.cp * 2, context, ..now.clone() }),
        );
    }
    if spec.layers.iter().any(|layer| moe(&layer.feed_forward).is_some()) {
        push(Knob::Experts, "experts over twice the ranks", Layout { ep: now.ep * 2, ..now.clone() });
    }
}
