//! What a step keeps on the host instead of the device, as a change of its recording.
//!
//! A saved tensor leaves the device after its last use in forward and comes back before its first use in backward; copies
//! in flight are not counted. Optimizer states, masters and what an update makes on its way live on the host, where the
//! update runs.
//!
//! Source: `torchtune.training.OffloadActivations` (tensors from 1,024 bytes on are moved); `DeepSpeed` ZeRO-Offload, Ren et
//! al. 2021, arXiv:2101.06840.

use crate::param::Param;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use tensor::meter::{Mark, MemoryChange, MemoryEvent, Phase, Role, StorageId};
use tensor::{DType, Trace};

/// What is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Offload {
    /// Tensors that are saved for backward.
    pub activations: bool,
    /// Optimizer states, and the update.
    pub optimizer: bool,
}

/// What a step moves between host and device, and what the host holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostBytes {
    /// Saved tensors that leave the device and come back, over all micro-batches that were traced of the last step.
    pub activations: u64,
    /// Most bytes of these on the host at once.
    pub activations_peak: u64,
    /// Optimizer states and masters on the host.
    pub states: u64,
    /// Gradients that go to the host for an update, and parameters that come back.
    pub update: u64,
}

impl Offload {
    /// Nothing.
    pub const NONE: Self = Self { activations: false, optimizer: false };

    /// Whether anything is on the host.
    pub const fn is_any(self) -> bool {
        self.activations || self.optimizer
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match (self.activations, self.optimizer) {
            (false, false) => "none",
            (true, false) => "activations",
            (false, true) => "optimizer",
            (true, true) => "activations,optimizer",
        })
    }
}

impl FromStr for Offload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::NONE;
        for part in text.split(',').map(str::trim) {
            match part {
                "none" => {}
                "activations" => all.activations = true,
                "optimizer" => all.optimizer = true,
                _ => return Err(format!("`{part}` is nothing to offload: valid are none, activations, optimizer")),
            }
        }
        Ok(all)
    }
}

/// Smallest saved tensor that is moved.
const SMALLEST: u64 = 1024;

/// Changes the recording of a step to one on a device with `offload` on its host.
pub(crate) fn apply(trace: &mut Trace, update_bytes: u64, offload: Offload) -> HostBytes {
    let mut host = HostBytes::default();
    if offload.activations {
        (host.activations, host.activations_peak) = move_saved(trace);
    }
    if offload.optimizer {
        host.states = drop_updates(trace);
        host.update = update_bytes;
    }
    host
}

/// Bytes of the gradients that an update on the host reads, and of the parameters that it gives back.
pub(crate) fn update_bytes<'a>(params: impl Iterator<Item = &'a Param>, gradients: DType) -> u64 {
    let bytes = |p: &Param| p.tensor.elements() * (gradients.size_in_bytes() + p.tensor.dtype().size_in_bytes());
    params.filter(|param| param.trainable).map(bytes).sum()
}

/// When a storage is used.
#[derive(Clone, Copy, Default)]
struct Uses {
    last_forward: Option<u32>,
    first_backward: Option<u32>,
}

/// Has saved tensors leave and come back; bytes of the last step, and most at once.
pub(crate) fn move_saved(trace: &mut Trace) -> (u64, u64) {
    let mut uses = vec![Uses::default(); trace.storages.len()];
    for (i, event) in trace.ops.iter().enumerate() {
        for operand in event.inputs.iter().chain(&event.outputs) {
            let used = &mut uses[operand.storage.0 as usize];
            match event.phase {
                Phase::Forward => used.last_forward = Some(i as u32),
                Phase::Backward | Phase::Recompute => used.first_backward = used.first_backward.or(Some(i as u32)),
                _ => {}
            }
        }
    }
    let moved = |event: &MemoryEvent| {
        let at = event.storage.0 as usize;
        let saved =
            matches!(event.change, MemoryChange::Alloc(Role::Activation) | MemoryChange::Role(Role::Activation));
        saved && trace.storages[at].bytes >= SMALLEST && uses[at].last_forward.is_some()
    };
    let saved: BTreeSet<StorageId> = trace.memory.iter().filter(|e| moved(e)).map(|e| e.storage).collect();
    // Where each group of events with the same number of ops begins, and its first allocation.
    let start = |op: u32| trace.memory.partition_point(|e| e.op < op);
    let mut inserted: Vec<(usize, MemoryEvent)> = Vec::new();
    let mut away: Vec<(StorageId, u32, u32)> = Vec::new();
    for &storage in &saved {
        let Uses { last_forward: Some(last), first_backward } = uses[storage.0 as usize] else { continue };
        // What is saved and never read again stays away until it is freed.
        let Some(first) = first_backward.filter(|first| *first > last + 1) else { continue };
        inserted.push((start(last + 1), MemoryEvent { op: last + 1, storage, change: MemoryChange::Free }));
        let (from, end) = (start(first), start(first + 1));
        let made = trace.memory[from..end].iter().position(|e| matches!(e.change, MemoryChange::Alloc(_)));
        let back = MemoryEvent { op: first, storage, change: MemoryChange::Alloc(Role::Activation) };
        inserted.push((made.map_or(end, |i| from + i), back));
        away.push((storage, last, first));
    }
    inserted.sort_by_key(|(at, event)| (*at, matches!(event.change, MemoryChange::Alloc(_))));
    let gone = |event: &MemoryEvent| {
        let role = matches!(event.change, MemoryChange::Role(_));
        role && away.binary_search_by_key(&event.storage, |a| a.0).is_ok_and(|i| {
            let (_, last, first) = away[i];
            event.op > last && event.op < first
        })
    };
    let keep: Vec<bool> = trace.memory.iter().map(|event| !gone(event)).collect();
    rebuild(trace, &keep, &inserted);
    let bytes = |storage: StorageId| trace.storages[storage.0 as usize].bytes;
    let last_step = trace.marks.iter().rposition(|m| m.name.starts_with("zero")).unwrap_or(trace.marks.len());
    // The stages of a rank are updated one after another in one step.
    let name = trace.marks.get(last_step).map(|m| m.name.as_str());
    let ends = |m: &&Mark| m.name == "init" || (m.name.starts_with("zero") && Some(m.name.as_str()) != name);
    let before = trace.marks[..last_step].iter().rev().find(ends);
    let since = before.map_or(0, |mark| mark.op);
    let total = away.iter().filter(|(_, last, _)| *last >= since).map(|(storage, ..)| bytes(*storage)).sum();
    let mut changes: Vec<(u32, bool, u64)> = Vec::new();
    for &(storage, last, first) in &away {
        changes.push((last + 1, true, bytes(storage)));
        changes.push((first, false, bytes(storage)));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0u64, 0u64);
    for (_, leaves, bytes) in changes {
        now = if leaves { now + bytes } else { now - bytes };
        most = most.max(now);
    }
    (total, most)
}

/// Takes states, masters and what updates make on their way off the device; bytes of the first two.
fn drop_updates(trace: &mut Trace) -> u64 {
    let state = |e: &MemoryEvent| {
        matches!(e.change, MemoryChange::Alloc(Role::OptimizerState) | MemoryChange::Role(Role::OptimizerState))
    };
    let states: BTreeSet<StorageId> = trace.memory.iter().filter(|e| state(e)).map(|e| e.storage).collect();
    let made_by_update = |storage: StorageId| trace.storages[storage.0 as usize].phase == Phase::Optimizer;
    let keep = |e: &MemoryEvent| !states.contains(&e.storage) && !made_by_update(e.storage);
    let keep: Vec<bool> = trace.memory.iter().map(keep).collect();
    rebuild(trace, &keep, &[]);
    states.iter().map(|storage| trace.storages[storage.0 as usize].bytes).sum()
}

/// The memory events that are kept, with others inserted before those at their positions; marks follow.
fn rebuild(trace: &mut Trace, keep: &[bool], inserted: &[(usize, MemoryEvent)]) {
    let old = std::mem::take(&mut trace.memory);
    let mut at = Vec::with_capacity(old.len() + 1);
    let mut next = inserted.iter().peekable();
    for (i, event) in old.iter().enumerate() {
        at.push(trace.memory.len() as u32);
        while let Some((_, event)) = next.next_if(|(position, _)| *position <= i) {
            trace.memory.push(*event);
        }
        if keep[i] {
            trace.memory.push(*event);
        }
    }
    at.push(trace.memory.len() as u32);
    trace.memory.extend(next.map(|(_, event)| *event));
    for mark in &mut trace.marks {
        mark.memory = at[mark.memory as usize];
    }
}
