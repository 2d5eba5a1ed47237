//! The tensors of a traced step that have a given size, likeliest first.

use nn::blocks::Blocks;
use nn::spec::ModelSpec;
use nn::step::{StepOptions, StepTrace};
use std::cmp::Reverse;
use tensor::meter::{MemoryChange, Phase, TensorRef};
use tensor::{Role, Trace};

use super::size::{Fit, Printed};
use crate::model::pattern;
use crate::sharding::Sharding;
use crate::timeline::{Device, Timeline};

/// Equal allocations of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// What it is, such as `logits`.
    pub name: String,
    /// Its sizes; empty where no op made it.
    pub shape: Vec<u64>,
    /// Its element type; empty where no op made it.
    pub dtype: &'static str,
    /// Part of the step.
    pub phase: Phase,
    /// The op that makes it; empty where none does.
    pub op: &'static str,
    /// Where it is made, layer numbers as `*`; empty for the loss.
    pub module: String,
    /// Bytes on one device.
    pub bytes: u64,
    /// How it has the size.
    pub fit: Fit,
    /// How many there are in a step.
    pub count: u64,
    /// Live bytes of the program before it is made, where they are nearest to those that the message states.
    pub live_before: u64,
}

/// The size that is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The size.
    pub size: &'a Printed,
    /// Whether it may be that of a segment.
    pub segments: bool,
    /// Live bytes at that moment, if the message states them.
    pub allocated: Option<u64>,
}

impl Wanted<'_> {
    /// How far a moment is from the one of the message.
    fn distance(&self, live: u64) -> u64 {
        self.allocated.map_or(0, |allocated| live.abs_diff(allocated))
    }
}

/// Allocations of a traced step that have the size, likeliest first: to the digit before by rounding to a segment, then
/// the one before which most nearly as many bytes are live as the message states, then the earliest.
pub fn of_size(
    spec: &ModelSpec,
    traced: &StepTrace,
    options: &StepOptions,
    sharding: Sharding,
    wanted: Wanted<'_>,
) -> Vec<Tensor> {
    let trace = &traced.trace;
    let points = Timeline::of(traced, options, sharding, Blocks::of(&spec.names)).points;
    let first = trace.marks.first().map_or(0, |mark| mark.memory as usize);
    let mut device = Device::new(traced, options, sharding, Blocks::of(&spec.names));
    let roles = roles(trace);
    let mut found: Vec<(Tensor, [u64; 2])> = Vec::new();
    for (i, event) in trace.memory.iter().enumerate() {
        device.apply(i);
        let MemoryChange::Alloc(_) = event.change else { continue };
        let id = event.storage.0 as usize;
        let info = trace.storages[id];
        // A gathered weight is counted with its block, so the device has no bytes of it alone.
        let held = device.live()[id].map_or(0, |(_, bytes)| bytes);
        let bytes = if held == 0 { info.bytes } else { held };
        let Some(fit) = wanted.size.fit(bytes, wanted.segments) else { continue };
        let after = i.checked_sub(first).and_then(|at| points.get(at)).map_or(0, |point| point.bytes);
        let tensor = describe(spec, options, trace, id, roles[id], (bytes, fit, after.saturating_sub(held)));
        let step = usize::from(step_of(trace, i) > 1);
        let same = |(known, _): &&mut (Tensor, _)| {
            Tensor { count: 0, live_before: 0, ..known.clone() }
                == Tensor { count: 0, live_before: 0, ..tensor.clone() }
        };
        if let Some((known, counts)) = found.iter_mut().find(same) {
            counts[step] += 1;
            if wanted.distance(tensor.live_before) < wanted.distance(known.live_before) {
                known.live_before = tensor.live_before;
            }
        } else {
            let mut counts = [0; 2];
            counts[step] = 1;
            found.push((tensor, counts));
        }
    }
    let mut out: Vec<Tensor> =
        found.into_iter().map(|(tensor, [one, two])| Tensor { count: one.max(two), ..tensor }).collect();
    // Stable: the earliest of equals stays first. What made parameters ran before any step.
    out.sort_by_key(|tensor| {
        let known = wanted.allocated.is_some();
        (tensor.fit, wanted.distance(tensor.live_before), known && tensor.phase == Phase::Init, Reverse(tensor.bytes))
    });
    out
}

/// What each storage is held as in the end: a gradient is a temporary until its parameter takes it.
fn roles(trace: &Trace) -> Vec<Role> {
    let mut roles = vec![Role::Temporary; trace.storages.len()];
    for event in &trace.memory {
        if let MemoryChange::Alloc(role) | MemoryChange::Role(role) = event.change
            && role != Role::Temporary
        {
            roles[event.storage.0 as usize] = role;
        }
    }
    roles
}

/// Number of the optimizer step that a memory event belongs to, from 1; 0 for what comes before.
fn step_of(trace: &Trace, event: usize) -> u64 {
    let mark = trace.marks.iter().rev().find(|mark| mark.memory as usize <= event);
    let digits = |name: &str| -> u64 {
        let number: String =
            name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        number.parse().unwrap_or(0)
    };
    mark.map_or(0, |mark| digits(&mark.name))
}

fn describe(
    spec: &ModelSpec,
    options: &StepOptions,
    trace: &Trace,
    id: usize,
    role: Role,
    (bytes, fit, live_before): (u64, Fit, u64),
) -> Tensor {
    let info = trace.storages[id];
    let event = trace.ops.get(info.born as usize);
    let made = event.and_then(|e| e.outputs.iter().find(|o| o.storage.0 as usize == id).map(|o| (e, o)));
    let module = pattern(trace.module(info.module));
    Tensor {
        name: name(spec, options, made.map(|(_, output)| output), &module, info.phase, role),
        shape: made.map(|(_, output)| output.layout.shape().to_vec()).unwrap_or_default(),
        dtype: made.map_or("", |(_, output)| output.dtype.name()),
        phase: info.phase,
        op: made.map_or("", |(event, _)| event.op.name()),
        module,
        bytes,
        fit,
        count: 1,
        live_before,
    }
}

/// What people call it.
fn name(
    spec: &ModelSpec,
    options: &StepOptions,
    made: Option<&TensorRef>,
    module: &str,
    phase: Phase,
    role: Role,
) -> String {
    let named = |what: &str| what.to_owned();
    match role {
        Role::Parameter => return named("parameter"),
        Role::Buffer => return named("buffer"),
        Role::OptimizerState => return named("optimizer state"),
        Role::Gradient => return named("gradient of a parameter"),
        Role::WeightCast => return named("copy of a weight in the compute type"),
        Role::Input => return named("tokens"),
        Role::Communication => return named("buffer of a collective"),
        Role::Activation | Role::Recompute | Role::Temporary => {}
    }
    if phase == Phase::Optimizer {
        return named("temporary of the update");
    }
    let backward = phase == Phase::Backward;
    let of = |what: &str| if backward { format!("gradient of the {what}") } else { what.to_owned() };
    let Some(output) = made else { return named("temporary") };
    let shape = output.layout.shape();
    let squares = shape.len() >= 3 && shape.ends_with(&[options.seq_len, options.seq_len]);
    let rows: u64 = shape.split_last().map_or(0, |(_, rest)| rest.iter().fold(1, |all, n| all.saturating_mul(*n)));
    let weight = shape.len() == 2 && shape[0] == spec.hidden_size;
    let per_token = !weight
        && rows > 0
        && rows.is_multiple_of(options.sequences().max(1))
        && rows >= options.sequences().saturating_mul(options.seq_len.saturating_sub(1));
    match shape.last() {
        Some(last) if *last == spec.vocab_size && per_token => of("logits"),
        Some(last) if *last == spec.vocab_size || shape.first() == Some(&spec.vocab_size) => {
            if backward {
                named("gradient of a weight")
            } else {
                named("copy of a weight")
            }
        }
        _ if squares => of("attention scores"),
        _ => {
            let blocks = Blocks::of(&spec.names);
            match (blocks.hold(module), blocks.part(module)) {
                (true, Some(part)) => of(&format!("result in {part}")),
                (true, None) => of("residual stream"),
                _ => of("result"),
            }
        }
    }
}

impl Tensor {
    /// `[4, 1024, 50304] f32`, or its bytes where no op made it.
    pub fn shape_words(&self) -> String {
        if self.dtype.is_empty() { format!("{} B", self.bytes) } else { format!("{:?} {}", self.shape, self.dtype) }
    }

    /// `cast in lm_head`.
    pub fn place(&self) -> String {
        let at = if self.module.is_empty() { "the loss" } else { &self.module };
        match (self.op.is_empty(), self.phase) {
            (true, _) => at.to_owned(),
            (false, Phase::Optimizer) => self.op.to_owned(),
            (false, _) => format!("{} in {at}", self.op),
        }
    }
}
