//! Live bytes over a traced program, as one device of a sharded run sees them.

use nn::ParamKind;
use nn::blocks::Blocks;
use nn::step::{ParamInfo, StepOptions, StepTrace};
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use tensor::meter::MemoryChange;
use tensor::{Role, Trace, meter};
use units::Bytes;

use crate::sharding::{Gathered, Sharding, Unit};

/// Bytes by role, in the order of [`Role::ALL`].
pub type ByRole = [u64; Role::ALL.len()];

/// Memory of one named stretch on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// `fwd1`, `bwd1`, ...
    pub name: String,
    /// Highest bytes.
    pub peak_bytes: u64,
    /// By role at that moment; communication holds the gathered weights.
    pub peak_by_role: ByRole,
    /// Op at that moment.
    pub peak_op: Option<usize>,
    /// Number of memory events up to and including the allocation of the peak.
    pub peak_event: usize,
    /// By role at its end.
    pub end_by_role: ByRole,
}

impl Phase {
    /// Live bytes when the stretch ends.
    pub fn end_bytes(&self) -> u64 {
        self.end_by_role.iter().sum()
    }
}

/// A moment of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Number of ops before it.
    pub op: u32,
    /// Index of the phase.
    pub phase: usize,
    /// Live bytes.
    pub bytes: u64,
}

/// Points of a timeline.
pub const TIMELINE_POINTS: usize = 2000;

/// Replays a trace as one device of a sharded run sees it.
#[derive(Clone)]
pub struct Device<'a> {
    trace: &'a Trace,
    sharding: Sharding,
    /// Whether an update works on whole matrices, whoever holds their states.
    whole_updates: bool,
    /// Modules whose parameters are those of experts.
    experts: Rc<[bool]>,
    /// What is gathered and reduced at once, where anything is.
    units: Option<Rc<Gathered>>,
    gathers_weights: bool,
    /// What was found around the ops of a place.
    around: Cell<Option<(u32, (u64, u64))>>,
    /// Memory events that were applied.
    applied: usize,
    now: Vec<Option<(Role, u64)>>,
    by_role: ByRole,
    bytes: u64,
}

impl<'a> Device<'a> {
    /// Nothing allocated yet.
    pub fn new(traced: &'a StepTrace, options: &StepOptions, sharding: Sharding, blocks: Blocks) -> Self {
        let trace = &traced.trace;
        let units = || Rc::new(Gathered::new(trace, &traced.params, options, blocks, sharding));
        Self {
            trace,
            sharding,
            experts: expert_modules(trace, &traced.params).into(),
            whole_updates: options.optimizer.kind.needs_whole_matrices(),
            units: sharding.reduces().then(units),
            gathers_weights: sharding.gathers(),
            around: Cell::new(None),
            applied: 0,
            now: vec![None; trace.storages.len()],
            by_role: ByRole::default(),
            bytes: 0,
        }
    }

    /// Applies memory event number `i`. True if it was an allocation.
    pub fn apply(&mut self, i: usize) -> bool {
        self.applied = i + 1;
        let event = self.trace.memory[i];
        let at = event.storage.0 as usize;
        let info = self.trace.storages[at];
        let new = match event.change {
            MemoryChange::Alloc(role) | MemoryChange::Role(role) => Some(role),
            MemoryChange::Free => None,
        };
        if let Some((role, bytes)) = self.now[at].take() {
            self.by_role[role as usize] -= bytes;
            self.bytes -= bytes;
        }
        if let Some(role) = new {
            // Gathered copies of weights are counted by unit instead of by tensor.
            let whole = self.whole_updates && role == Role::Temporary && info.phase == meter::Phase::Optimizer;
            let bytes = if role == Role::WeightCast && self.gathers_weights {
                0
            } else if whole {
                info.bytes
            } else {
                let of_expert = self.experts.get(info.module.0 as usize).copied().unwrap_or(false);
                self.sharding.bytes(info.bytes, role, info.phase, of_expert)
            };
            self.by_role[role as usize] += bytes;
            self.bytes += bytes;
            self.now[at] = Some((role, bytes));
        }
        matches!(event.change, MemoryChange::Alloc(_))
    }

    /// Applies memory events up to number `end`, from where it stands.
    pub fn apply_until(&mut self, end: usize) {
        for i in self.applied..end {
            self.apply(i);
        }
    }

    /// What it replays.
    pub const fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// How states are divided.
    pub const fn sharding(&self) -> Sharding {
        self.sharding
    }

    /// Bytes gathered or not yet reduced around op `at`.
    pub fn communication(&self, at: usize) -> (u64, u64) {
        let Some(units) = self.units.as_deref() else { return (0, 0) };
        // Asked of one op after another, of which many stand at the same place.
        let place = units.place(at);
        if let Some((_, around)) = self.around.get().filter(|(last, _)| Some(*last) == place) {
            return around;
        }
        let weights = self.weight_units().map_or(0, |g| g.weights(at));
        let around = (weights, units.gradients(at));
        self.around.set(place.map(|place| (place, around)));
        around
    }

    fn weight_units(&self) -> Option<&Gathered> {
        self.units.as_deref().filter(|_| self.gathers_weights)
    }

    /// What is gathered or not yet reduced around op `at`, unit by unit.
    pub fn units(&self, at: usize) -> impl Iterator<Item = (Unit, u64)> {
        let weights = self.weight_units().map(|g| g.weight_units(at));
        let gradients = self.units.as_deref().map(|g| g.gradient_units(at));
        weights.into_iter().flatten().chain(gradients.into_iter().flatten())
    }

    /// A number of the place of op `at`, around which [`units`](Self::units) are the same.
    pub fn place(&self, at: usize) -> Option<u32> {
        self.units.as_deref()?.place(at)
    }

    /// Whether there can be [`units`](Self::units).
    pub fn has_units(&self) -> bool {
        self.units.is_some()
    }

    /// Role and bytes of each storage that is live.
    pub fn live(&self) -> &[Option<(Role, u64)>] {
        &self.now
    }
}

/// Of each module of a trace, whether its parameters are those of experts.
pub(crate) fn expert_modules(trace: &Trace, params: &[ParamInfo]) -> Vec<bool> {
    let experts = params.iter().filter(|param| matches!(param.kind, ParamKind::Expert { .. }));
    let modules: HashSet<&str> = experts.filter_map(|param| Some(param.name.rsplit_once('.')?.0)).collect();
    trace.modules.iter().map(|path| modules.contains(path.as_str())).collect()
}

/// All stretches of a trace and the bytes at every memory event.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Named stretches, in order.
    pub phases: Vec<Phase>,
    /// Every moment at which live bytes changed.
    pub points: Vec<Point>,
}

impl Timeline {
    /// Replays a trace on one device of `sharding`.
    pub fn of(traced: &StepTrace, options: &StepOptions, sharding: Sharding, blocks: Blocks) -> Self {
        Self::on(Device::new(traced, options, sharding, blocks)).0
    }

    /// Replays a trace on a device that holds nothing yet; what it holds when the last step begins is with it.
    pub fn on(mut device: Device<'_>) -> (Self, Device<'_>) {
        let trace = device.trace;
        let last = last_step(trace.marks.len(), |i| &trace.marks[i].name).start;
        let mut begins = None;
        let mut phases = Vec::with_capacity(trace.marks.len());
        let mut points = Vec::with_capacity(trace.memory.len());
        for (i, mark) in trace.marks.iter().enumerate() {
            let start = mark.memory as usize;
            let end = trace.marks.get(i + 1).map_or(trace.memory.len(), |next| next.memory as usize);
            if i == last {
                begins = Some(device.clone());
            }
            let mut phase = Phase {
                name: mark.name.clone(),
                peak_bytes: device.bytes,
                peak_by_role: device.by_role,
                peak_op: None,
                peak_event: start,
                end_by_role: ByRole::default(),
            };
            // What an allocation finds gathered stays until the next one: the frees between them still belong to its op.
            let (mut weights, mut gradients) = (0, 0);
            for event in start..end {
                let grew = device.apply(event);
                let op = trace.memory[event].op;
                if grew {
                    (weights, gradients) = device.communication(op as usize);
                }
                let live = device.bytes + weights + gradients;
                points.push(Point { op, phase: i, bytes: live });
                if grew && live > phase.peak_bytes {
                    phase.peak_bytes = live;
                    phase.peak_by_role = device.by_role;
                    phase.peak_by_role[Role::Communication as usize] += weights;
                    phase.peak_by_role[Role::Gradient as usize] += gradients;
                    phase.peak_op = Some(op as usize);
                    phase.peak_event = event + 1;
                }
            }
            phase.end_by_role = device.by_role;
            phases.push(phase);
        }
        (Self { phases, points }, begins.unwrap_or(device))
    }
}

/// Of so many stretches, each with its name, those of the last optimizer step, which is the steady state: what came before made
/// the states.
pub(crate) fn last_step<'n>(count: usize, name: impl Fn(usize) -> &'n str) -> std::ops::Range<usize> {
    let ends = |i: &usize| name(*i).starts_with("zero");
    let last = (0..count).rev().find(ends).unwrap_or(count);
    // A rank of a pipeline may update several stages, each with a stretch of its own, in one step.
    let of_this = (last < count).then(|| name(last));
    let before = |i: &usize| name(*i) == "init" || (ends(i) && Some(name(*i)) != of_this);
    let first = (0..last).rev().find(before).map_or(0, |i| i + 1);
    first..last.max(first + 1).min(count)
}

/// At most [`TIMELINE_POINTS`] of the points, the highest of each stretch, `runtime` added.
pub fn thin(points: &[Point], runtime: Bytes) -> Vec<Point> {
    let step = points.len().div_ceil(TIMELINE_POINTS).max(1);
    points
        .chunks(step)
        .filter_map(|chunk| {
            chunk.iter().max_by_key(|p| p.bytes).map(|p| Point { bytes: (Bytes(p.bytes) + runtime).get(), ..*p })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_beyond_counting_is_the_most_there_is() {
        let points = [Point { op: 0, phase: 0, bytes: 5 }, Point { op: 1, phase: 0, bytes: 7 }];
        let bytes = |runtime| thin(&points, Bytes(runtime)).iter().map(|p| p.bytes).collect::<Vec<_>>();
        assert_eq!((bytes(1), bytes(u64::MAX)), (vec![6, 8], vec![u64::MAX; 2]));
    }
}
