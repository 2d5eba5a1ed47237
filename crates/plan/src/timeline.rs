//! Live bytes over a traced program, from its memory events.

use tensor::meter::{MemoryChange, Trace};
use tensor::Role;

/// Bytes by role, in the order of [`Role::ALL`].
pub type ByRole = [u64; Role::ALL.len()];

/// Memory of one named stretch of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseMemory {
    /// Name of the stretch: `fwd1`, `bwd1`, `opt1`, ...
    pub name: String,
    /// Highest live bytes, taken right after an allocation in this stretch.
    pub peak_bytes: u64,
    /// Bytes by role at that moment.
    pub peak_by_role: ByRole,
    /// Index of the op that allocated at that moment.
    pub peak_op: Option<usize>,
    /// Number of memory events up to and including that allocation.
    pub peak_event: usize,
    /// Bytes by role when the stretch ends.
    pub end_by_role: ByRole,
}

impl PhaseMemory {
    /// Live bytes when the stretch ends.
    pub fn end_bytes(&self) -> u64 {
        self.end_by_role.iter().sum()
    }
}

/// The state of memory while events are replayed.
pub struct Replay<'a> {
    trace: &'a Trace,
    roles: Vec<Option<Role>>,
    by_role: ByRole,
    live: u64,
}

impl<'a> Replay<'a> {
    /// Nothing allocated yet.
    pub fn new(trace: &'a Trace) -> Self {
        Self { trace, roles: vec![None; trace.storages.len()], by_role: ByRole::default(), live: 0 }
    }

    /// Applies memory event number `i`. True if it was an allocation.
    pub fn apply(&mut self, i: usize) -> bool {
        let event = self.trace.memory[i];
        let at = event.storage.0 as usize;
        let bytes = self.trace.storages[at].bytes;
        let new = match event.change {
            MemoryChange::Alloc(role) | MemoryChange::Role(role) => Some(role),
            MemoryChange::Free => None,
        };
        if let Some(old) = std::mem::replace(&mut self.roles[at], new) {
            self.by_role[old as usize] -= bytes;
            self.live -= bytes;
        }
        if let Some(role) = new {
            self.by_role[role as usize] += bytes;
            self.live += bytes;
        }
        matches!(event.change, MemoryChange::Alloc(_))
    }

    /// Live bytes.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Live bytes by role.
    pub fn by_role(&self) -> ByRole {
        self.by_role
    }

    /// Role of a storage, if it is live.
    pub fn role(&self, storage: usize) -> Option<Role> {
        self.roles[storage]
    }
}

/// Memory of each named stretch of a trace.
pub fn phases(trace: &Trace) -> Vec<PhaseMemory> {
    let mut replay = Replay::new(trace);
    let mut out = Vec::new();
    for (i, mark) in trace.marks.iter().enumerate() {
        let start = mark.memory as usize;
        let end = trace.marks.get(i + 1).map_or(trace.memory.len(), |next| next.memory as usize);
        let mut phase = PhaseMemory {
            name: mark.name.clone(),
            peak_bytes: replay.live(),
            peak_by_role: replay.by_role(),
            peak_op: None,
            peak_event: start,
            end_by_role: ByRole::default(),
        };
        for event in start..end {
            if replay.apply(event) && replay.live() > phase.peak_bytes {
                phase.peak_bytes = replay.live();
                phase.peak_by_role = replay.by_role();
                phase.peak_op = Some(trace.memory[event].op as usize);
                phase.peak_event = event + 1;
            }
        }
        phase.end_by_role = replay.by_role();
        out.push(phase);
    }
    out
}
