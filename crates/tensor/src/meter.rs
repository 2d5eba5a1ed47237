//! What a program did: every op with its cost, every byte with its lifetime.
//!
//! The meter has one writer, the door in [`crate::apply`] (and the storage it allocates). Analyses read the finished
//! [`Trace`] and nothing else.

use crate::dtype::DType;
use crate::layout::Layout;
use crate::ops::Op;
use smallvec::SmallVec;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use units::Bytes;

/// What an op costs. All counts are exact integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// FLOP of the contractions the model needs: causal pairs only. One multiply-add is 2.
    pub matmul: u128,
    /// FLOP of the contractions with the full square of attention scores, as common counters count them.
    pub matmul_dense: u128,
    /// FLOP of contractions that kernels execute beyond what the model needs: scores that a fused backward does again
    /// because it did not keep them, masked pairs that explicit attention computes all the same. Hardware does
    /// `matmul + recomputed`; no model count has them.
    pub recomputed: u128,
    /// The scores done again, over the full square: contained in `matmul_dense`, in no model count.
    pub recomputed_dense: u128,
    /// Scalar additions, multiplications, divisions and special functions outside of contractions.
    pub elementwise: u128,
    /// Unique bytes read: a broadcast reads once.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes of kernel scratch, live while the op runs.
    pub workspace: u64,
    /// Bytes handed to other ranks.
    pub sent: u64,
    /// Bytes that come from other ranks.
    pub received: u64,
}

impl Cost {
    /// Bytes read and written.
    pub fn traffic(&self) -> Bytes {
        Bytes(self.read.saturating_add(self.written))
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.matmul += other.matmul;
        self.matmul_dense += other.matmul_dense;
        self.recomputed += other.recomputed;
        self.recomputed_dense += other.recomputed_dense;
        self.elementwise += other.elementwise;
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
        self.workspace = self.workspace.max(other.workspace);
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
    }
}

/// What a storage is for, decided by who holds it.
///
/// The order is the precedence when several hold one storage: a parameter saved by the tape is a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Role {
    /// A model parameter.
    Parameter,
    /// A non-trainable tensor of the model (rotary tables, router bias).
    Buffer,
    /// Moments, momentum, master weights.
    OptimizerState,
    /// Gradient of a parameter.
    Gradient,
    /// Tokens and labels.
    Input,
    /// Buffers of collectives.
    Communication,
    /// Low-precision copy of a parameter made by autocast.
    WeightCast,
    /// Held by the tape for the backward pass, or the loss.
    Activation,
    /// Held by the tape of a recomputed region.
    Recompute,
    /// Everything else: lives from one op to another.
    Temporary,
}

impl Role {
    /// All roles, in order of precedence.
    pub const ALL: [Self; 10] = [
        Self::Parameter,
        Self::Buffer,
        Self::OptimizerState,
        Self::Gradient,
        Self::Input,
        Self::Communication,
        Self::WeightCast,
        Self::Activation,
        Self::Recompute,
        Self::Temporary,
    ];

    /// Standard word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Buffer => "buffers",
            Self::OptimizerState => "optimizer_states",
            Self::Gradient => "gradients",
            Self::Input => "inputs",
            Self::Communication => "communication",
            Self::WeightCast => "weight_casts",
            Self::Activation => "activations",
            Self::Recompute => "recomputed_activations",
            Self::Temporary => "temporaries",
        }
    }
}

/// Which part of a step an op belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Building the model.
    Init,
    /// Forward pass and loss.
    Forward,
    /// Backward pass.
    Backward,
    /// Forward work done again during backward.
    Recompute,
    /// Optimizer step.
    Optimizer,
    /// Collectives.
    Communication,
}

impl Phase {
    /// Lower-case word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Recompute => "recompute",
            Self::Optimizer => "optimizer",
            Self::Communication => "communication",
        }
    }
}

/// Index of a storage in [`Trace::storages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub u32);

/// Index of a module path in [`Trace::modules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ModuleId(pub u32);

/// An operand as an event sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorRef {
    /// Storage it lies in.
    pub storage: StorageId,
    /// Element type.
    pub dtype: DType,
    /// Shape, strides, offset.
    pub layout: Arc<Layout>,
}

/// Why bytes were copied although no arithmetic asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyReason {
    /// `contiguous` was asked for on a strided tensor.
    Contiguous,
    /// `reshape` could not be expressed as a view.
    Reshape,
    /// A change of dtype.
    Cast,
    /// An explicit copy.
    Explicit,
    /// Tensors were put side by side.
    Concatenate,
}

/// One op that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct OpEvent {
    /// What ran, which is the same in every repetition of a block and then stands there once. Read as fields of the event.
    pub ran: Rc<Ran>,
    /// Module it ran in.
    pub module: ModuleId,
    /// Part of the step.
    pub phase: Phase,
    /// Operands.
    pub inputs: SmallVec<[TensorRef; 2]>,
    /// Results; a result that shares an operand's storage is a view or an in-place write.
    pub outputs: SmallVec<[TensorRef; 1]>,
}

/// What of an op that ran does not depend on where it did.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The op with its parameters.
    pub op: Op,
    /// What it cost.
    pub cost: Cost,
    /// Set if the op only moved bytes.
    pub copy: Option<CopyReason>,
    /// Whether the output took over the storage of an input whose last handle it was.
    pub reused: bool,
}

impl OpEvent {
    /// What ran, to be changed in this event alone.
    pub fn ran_mut(&mut self) -> &mut Ran {
        Rc::make_mut(&mut self.ran)
    }
}

impl Deref for OpEvent {
    type Target = Ran;

    fn deref(&self) -> &Ran {
        &self.ran
    }
}

/// What happened to a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryChange {
    /// Allocated with this role.
    Alloc(Role),
    /// Its holders changed.
    Role(Role),
    /// Freed.
    Free,
}

/// A change of a storage, in program order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// Number of op events before it: an allocation made by op `i` carries `i`, what follows carries `i + 1`.
    pub op: u32,
    /// The storage.
    pub storage: StorageId,
    /// What happened.
    pub change: MemoryChange,
}

/// Facts of a storage that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageInfo {
    /// Size.
    pub bytes: u64,
    /// Module in which it was allocated.
    pub module: ModuleId,
    /// Phase in which it was allocated.
    pub phase: Phase,
    /// Number of op events before its allocation: the index of the op that made it.
    pub born: u32,
}

/// Start of a named stretch of the program (`fwd1`, `bwd1`, `opt1`, ...).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Name.
    pub name: String,
    /// Number of op events before it.
    pub op: u32,
    /// Number of memory events before it.
    pub memory: u32,
}

/// A finished recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Ops in execution order.
    pub ops: Vec<OpEvent>,
    /// Allocations, frees and changes of role in program order.
    pub memory: Vec<MemoryEvent>,
    /// Storages by id.
    pub storages: Vec<StorageInfo>,
    /// Module paths by id; id 0 is the root.
    pub modules: Vec<String>,
    /// Starts of named stretches.
    pub marks: Vec<Mark>,
}

impl Trace {
    /// Path of a module, `""` for the root.
    pub fn module(&self, id: ModuleId) -> &str {
        &self.modules[id.0 as usize]
    }

    fn set_storage(&mut self, id: usize, info: StorageInfo) {
        if id >= self.storages.len() {
            self.storages.resize(id + 1, StorageInfo { bytes: 0, ..info });
        }
        self.storages[id] = info;
    }

    /// Sum of the costs of the ops for which `keep` holds.
    pub fn cost(&self, keep: impl Fn(&OpEvent) -> bool) -> Cost {
        let mut total = Cost::default();
        for event in self.ops.iter().filter(|e| keep(e)) {
            total += event.cost;
        }
        total
    }
}

/// Most bytes that can be live and still be counted exactly.
pub const MOST_LIVE: u64 = 1 << 62;

/// What the meter knows of a storage.
#[derive(Debug)]
struct Slot {
    info: StorageInfo,
    /// Role, while it is alive.
    role: Option<Role>,
    /// Role as the trace knows it, if it knows it alive.
    told: Option<Role>,
}

/// The recorder. Live and peak bytes are kept even when events are not.
///
/// A storage's id is its slot. A slot is used again only if the trace at hand has never named it, so that ids are unique
/// within a trace, and a program that records nothing needs no more slots than it has storages alive.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) recording: bool,
    pub(crate) trace: Trace,
    pub(crate) live: u64,
    pub(crate) peak: u64,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Whether slots may differ from what the trace knows.
    behind: bool,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { recording: true, ..Self::default() }
    }

    pub(crate) fn set_recording(&mut self, on: bool) {
        self.behind |= on && !self.recording;
        self.recording = on;
    }

    /// Storages that are alive.
    pub(crate) fn alive(&self) -> usize {
        self.slots.iter().filter(|slot| slot.role.is_some()).count()
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.live;
    }

    /// Tells the trace what changed while it was not told: storages allocated, freed, and in another role.
    fn catch_up(&mut self) {
        self.behind = false;
        let op = self.trace.ops.len() as u32;
        for (id, slot) in self.slots.iter_mut().enumerate() {
            let change = match (slot.told, slot.role) {
                (None, Some(role)) => MemoryChange::Alloc(role),
                (Some(_), None) => MemoryChange::Free,
                (Some(old), Some(new)) if old != new => MemoryChange::Role(new),
                _ => continue,
            };
            if slot.told.is_none() {
                self.trace.set_storage(id, StorageInfo { born: op, ..slot.info });
            }
            slot.told = slot.role;
            self.trace.memory.push(MemoryEvent { op, storage: StorageId(id as u32), change });
        }
    }

    fn push(&mut self, storage: StorageId, change: MemoryChange, role: Option<Role>) {
        if self.behind {
            self.catch_up();
        }
        let op = self.trace.ops.len() as u32;
        self.trace.memory.push(MemoryEvent { op, storage, change });
        self.slots[storage.0 as usize].told = role;
    }

    /// Whether so many bytes more can be live and still be counted exactly.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.live.checked_add(bytes).is_some_and(|live| live <= MOST_LIVE)
    }

    /// Bytes that are live only while an op runs.
    pub(crate) fn workspace(&mut self, bytes: u64, module: ModuleId, phase: Phase) {
        let id = self.alloc(bytes, Role::Temporary, module, phase);
        self.free(id, bytes);
    }

    pub(crate) fn alloc(&mut self, bytes: u64, role: Role, module: ModuleId, phase: Phase) -> StorageId {
        self.live += bytes;
        self.peak = self.peak.max(self.live);
        if self.recording && self.behind {
            self.catch_up();
        }
        let info = StorageInfo { bytes, module, phase, born: self.trace.ops.len() as u32 };
        let slot = Slot { info, role: Some(role), told: None };
        let id = if let Some(id) = self.vacant.pop() {
            self.slots[id as usize] = slot;
            StorageId(id)
        } else {
            self.slots.push(slot);
            StorageId(self.slots.len() as u32 - 1)
        };
        if self.recording {
            self.trace.set_storage(id.0 as usize, info);
            self.push(id, MemoryChange::Alloc(role), Some(role));
        }
        id
    }

    pub(crate) fn free(&mut self, id: StorageId, bytes: u64) {
        self.live -= bytes;
        let slot = &mut self.slots[id.0 as usize];
        slot.role = None;
        if self.recording {
            if self.behind {
                self.catch_up();
            } else {
                self.push(id, MemoryChange::Free, None);
            }
        } else if slot.told.is_none() {
            self.vacant.push(id.0);
        }
    }

    pub(crate) fn role(&mut self, id: StorageId, role: Role) {
        self.slots[id.0 as usize].role = Some(role);
        if self.recording {
            if self.behind {
                self.catch_up();
            } else {
                self.push(id, MemoryChange::Role(role), Some(role));
            }
        }
    }

    pub(crate) fn mark(&mut self, name: &str) {
        if !self.recording {
            return;
        }
        if self.behind {
            self.catch_up();
        }
        let (op, memory) = (self.trace.ops.len() as u32, self.trace.memory.len() as u32);
        self.trace.marks.push(Mark { name: name.to_owned(), op, memory });
    }

    /// Takes the trace out. The next one begins with the storages that are alive.
    pub(crate) fn take(&mut self) -> Trace {
        while self.slots.last().is_some_and(|slot| slot.role.is_none()) {
            self.slots.pop();
        }
        self.vacant.clear();
        for (id, slot) in self.slots.iter_mut().enumerate().rev() {
            slot.told = None;
            if slot.role.is_none() {
                self.vacant.push(id as u32);
            }
        }
        self.behind = !self.slots.is_empty();
        std::mem::take(&mut self.trace)
    }
}
