//! The state of one running program: device, meter, tape, current module, phase and modes.
//!
//! A [`Runtime`] is a cheap handle. Tensors carry it, so ops need no further argument. It belongs to one thread.

use crate::arena::{Arena, Usage};
use crate::autocast::Autocast;
use crate::autograd::{COUNTS, History, Tape};
use crate::collective::{Axis, Peers};
use crate::meter::{Meter, ModuleId, Phase, Role, Trace};
use crate::rng::{Rng, Stream};
use crate::storage::Storage;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// Where tensors live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// Shapes, bytes and costs, no data.
    Meta,
    /// Real data in main memory.
    Cpu,
}

/// Which kernels run where tensors hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// The fast ones, where an op has one (and the crate was built with feature `cpu`).
    Fast,
    /// The plain ones: what the fast ones are tested against.
    Plain,
    /// The fast ones; an op that has none for its operands is an error. For tests that watch over which ops have one.
    OnlyFast,
}

/// How gradients that meet are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// Into the first contribution where it is not shared.
    InPlace,
    /// Into a fresh tensor, as the reference framework does while it records.
    OutOfPlace,
}

/// Looks on while ops run, in the order in which the meter records them: views too.
pub trait OpWatch {
    /// An op is about to allocate its outputs.
    fn begins(&self, runtime: &Runtime);
    /// Its kernel is done; its inputs are still held.
    fn ends(&self, runtime: &Runtime);
}

/// Interned module paths.
struct Paths {
    names: Vec<String>,
    children: HashMap<(u32, String), u32>,
}

struct Inner {
    device: Device,
    arena: Arena,
    meter: RefCell<Meter>,
    tape: RefCell<Tape>,
    paths: RefCell<Paths>,
    autocast: RefCell<Option<Autocast>>,
    module: Cell<ModuleId>,
    phase: Cell<Phase>,
    grad: Cell<bool>,
    accumulate: Cell<Accumulate>,
    overwrite_saved: Cell<bool>,
    early_stop: Cell<bool>,
    kernels: Cell<Kernels>,
    next_value: Cell<u64>,
    rng: Cell<Rng>,
    random_site: Cell<u64>,
    counts: RefCell<Option<Vec<u64>>>,
    watch: RefCell<Option<Rc<dyn OpWatch>>>,
    peers: RefCell<Option<Rc<dyn Peers>>>,
}

/// Handle of a running program.
#[derive(Clone)]
pub struct Runtime(Rc<Inner>);

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "runtime on {:?}", self.0.device)
    }
}

impl Runtime {
    /// A fresh program on `device`, seed 0, metering on.
    pub fn new(device: Device) -> Self {
        Self::with_seed(device, 0)
    }

    /// A fresh program on `device` whose random numbers follow from `seed`.
    pub fn with_seed(device: Device, seed: u64) -> Self {
        let paths = Paths { names: vec![String::new()], children: HashMap::new() };
        Self(Rc::new(Inner {
            device,
            arena: Arena::default(),
            meter: RefCell::new(Meter::new()),
            tape: RefCell::new(Tape::default()),
            paths: RefCell::new(paths),
            autocast: RefCell::new(None),
            module: Cell::new(ModuleId(0)),
            phase: Cell::new(Phase::Init),
            grad: Cell::new(true),
            accumulate: Cell::new(Accumulate::InPlace),
            overwrite_saved: Cell::new(true),
            early_stop: Cell::new(false),
            kernels: Cell::new(Kernels::Fast),
            next_value: Cell::new(0),
            rng: Cell::new(Rng::new(seed, Stream::Init)),
            random_site: Cell::new(0),
            counts: RefCell::new(None),
            watch: RefCell::new(None),
            peers: RefCell::new(None),
        }))
    }

    /// Device of this program.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// Whether tensors hold data.
    pub fn holds_data(&self) -> bool {
        self.0.device == Device::Cpu
    }

    /// Whether two handles name one program.
    pub fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn meter(&self) -> RefMut<'_, Meter> {
        self.0.meter.borrow_mut()
    }

    pub(crate) fn tape(&self) -> RefMut<'_, Tape> {
        self.0.tape.borrow_mut()
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// Records events, or not. Live and peak bytes are counted either way.
    ///
    /// When recording goes on after a pause, the trace first says what was allocated and freed meanwhile.
    pub fn set_recording(&self, on: bool) {
        self.meter().set_recording(on);
    }

    /// Whether events are recorded.
    pub fn is_recording(&self) -> bool {
        self.meter().recording
    }

    /// Bytes live now.
    pub fn live_bytes(&self) -> u64 {
        self.meter().live
    }

    /// Highest live bytes so far.
    pub fn peak_bytes(&self) -> u64 {
        self.meter().peak
    }

    /// From now on, `peak_bytes` is the highest since now.
    pub fn reset_peak(&self) {
        self.meter().reset_peak();
    }

    /// What the allocator holds behind the tensors: more than is live, by rounding and by free blocks it keeps.
    pub fn memory(&self) -> Usage {
        self.arena().usage()
    }

    /// Addresses of what the allocator has from the system, so that who asks the system can find it again.
    pub fn segments(&self) -> Vec<Range<usize>> {
        self.arena().segments()
    }

    /// Bytes the process holds for tensors: see [`Usage::reserved`].
    pub fn reserved_bytes(&self) -> u64 {
        self.memory().reserved
    }

    /// Tells that about so many bytes will be live at once, so that they come from the system in one piece.
    pub fn expect_bytes(&self, bytes: u64) {
        self.arena().want(bytes);
    }

    /// Whether what tensors free is kept for the next ones (the default), or each block comes from the system alone and goes
    /// back to it at once, so that who counts the system's allocations sees every tensor. Blocks that exist stay as they
    /// are.
    pub fn set_caching(&self, on: bool) {
        self.arena().set_caching(on);
    }

    /// Calls `watch` at the beginning and at the end of every op from now on; nobody with `None`.
    pub fn watch_ops(&self, watch: Option<Rc<dyn OpWatch>>) {
        *self.0.watch.borrow_mut() = watch;
    }

    pub(crate) fn op_watch(&self) -> Option<Rc<dyn OpWatch>> {
        self.0.watch.borrow().clone()
    }

    /// What carries data to the other ranks of the run from now on.
    pub fn set_peers(&self, peers: Rc<dyn Peers>) {
        *self.0.peers.borrow_mut() = Some(peers);
    }

    pub(crate) fn peers(&self) -> Option<Rc<dyn Peers>> {
        self.0.peers.borrow().clone()
    }

    /// Place of this rank along an axis; that of the first where there are no others.
    pub fn place(&self, axis: Axis) -> u64 {
        self.peers().map_or(0, |peers| peers.place(axis))
    }

    /// Gives memory that no tensor uses back to the system, as far as it came in pieces of its own.
    pub fn release_cached(&self) {
        self.arena().release_unused();
    }

    /// Takes the recording out and starts an empty one, which will begin with the storages that are alive.
    pub fn take_trace(&self) -> Trace {
        let mut trace = self.meter().take();
        trace.modules.clone_from(&self.0.paths.borrow().names);
        trace
    }

    /// From now on, runs every kernel a second time over [`Counted`](crate::kernel::Counted) and keeps how many
    /// operations it made: the proof of the cost rules. Only where there is data.
    pub fn count_arithmetic(&self) {
        *self.0.counts.borrow_mut() = Some(Vec::new());
    }

    /// Ends counting; one number for each op since it began.
    pub fn take_counts(&self) -> Vec<u64> {
        self.0.counts.take().unwrap_or_default()
    }

    pub(crate) fn is_counting(&self) -> bool {
        self.0.counts.borrow().is_some()
    }

    pub(crate) fn push_count(&self, operations: u64) {
        if let Some(counts) = &mut *self.0.counts.borrow_mut() {
            counts.push(operations);
        }
    }

    /// Starts a named stretch (`fwd1`, ...) in a phase.
    pub fn begin(&self, name: &str, phase: Phase) {
        self.meter().mark(name);
        self.0.phase.set(phase);
    }

    /// Current phase.
    pub fn phase(&self) -> Phase {
        self.0.phase.get()
    }

    pub(crate) fn set_phase(&self, phase: Phase) -> Phase {
        self.0.phase.replace(phase)
    }

    /// Current module.
    pub fn module(&self) -> ModuleId {
        self.0.module.get()
    }

    pub(crate) fn set_module(&self, module: ModuleId) -> ModuleId {
        self.0.module.replace(module)
    }

    /// Path of the current module.
    pub fn module_path(&self) -> String {
        self.0.paths.borrow().names[self.module().0 as usize].clone()
    }

    /// Enters the child module `name`; the returned guard leaves it.
    pub fn scope(&self, name: impl Into<String>) -> ScopeGuard {
        ScopeGuard { parent: self.enter(name.into()), runtime: self.clone() }
    }

    /// Enters the module at a path from the root; the returned guard goes back.
    pub fn root_scope(&self, path: &str) -> ScopeGuard {
        let parent = self.set_module(ModuleId(0));
        for part in path.split('.').filter(|part| !part.is_empty()) {
            self.enter(part.to_owned());
        }
        ScopeGuard { parent, runtime: self.clone() }
    }

    /// Makes a child the current module; gives back what was.
    fn enter(&self, name: String) -> ModuleId {
        let parent = self.module();
        let mut paths = self.0.paths.borrow_mut();
        let key = (parent.0, name);
        let id = if let Some(&id) = paths.children.get(&key) {
            id
        } else {
            let above = &paths.names[parent.0 as usize];
            let path = if above.is_empty() { key.1.clone() } else { format!("{above}.{}", key.1) };
            let id = paths.names.len() as u32;
            paths.names.push(path);
            paths.children.insert(key, id);
            id
        };
        drop(paths);
        self.set_module(ModuleId(id))
    }

    /// Whether ops are put on the tape.
    pub fn grad_enabled(&self) -> bool {
        self.0.grad.get()
    }

    pub(crate) fn set_grad_enabled(&self, on: bool) -> bool {
        self.0.grad.replace(on)
    }

    /// Runs `f` without recording history.
    pub fn no_grad<T>(&self, f: impl FnOnce() -> T) -> T {
        let before = self.set_grad_enabled(false);
        let out = f();
        self.set_grad_enabled(before);
        out
    }

    /// How gradients that meet are added. Default: in place.
    pub fn set_accumulate(&self, how: Accumulate) {
        self.0.accumulate.set(how);
    }

    pub(crate) fn accumulate(&self) -> Accumulate {
        self.0.accumulate.get()
    }

    /// Whether a gradient may take the storage of a saved tensor that nothing else holds, as that of the logits in
    /// cross-entropy does, or always gets its own, as in the reference framework. Default: it may.
    pub fn set_overwrite_saved(&self, on: bool) {
        self.0.overwrite_saved.set(on);
    }

    pub(crate) fn overwrite_saved(&self) -> bool {
        self.0.overwrite_saved.get()
    }

    /// Whether the recomputation of a checkpointed region stops once backward has all it needs (the reference
    /// framework does), or runs to its end. Default: to its end.
    pub fn set_early_stop(&self, on: bool) {
        self.0.early_stop.set(on);
    }

    pub(crate) fn early_stop(&self) -> bool {
        self.0.early_stop.get()
    }

    /// Which kernels run. Default: the fast ones.
    pub fn set_kernels(&self, kernels: Kernels) {
        self.0.kernels.set(kernels);
    }

    #[cfg(feature = "cpu")]
    pub(crate) fn kernels(&self) -> Kernels {
        self.0.kernels.get()
    }

    pub(crate) fn autocast(&self) -> RefMut<'_, Option<Autocast>> {
        self.0.autocast.borrow_mut()
    }

    pub(crate) fn fresh_value(&self) -> u64 {
        let id = self.0.next_value.get();
        self.0.next_value.set(id + 1);
        id
    }

    /// Generator of this program's random numbers.
    pub fn rng(&self) -> Rng {
        self.0.rng.get()
    }

    /// A fresh random site: each random op draws from its own.
    pub fn next_random_site(&self) -> u64 {
        let site = self.0.random_site.get();
        self.0.random_site.set(site + 1);
        site
    }

    /// The site the next random op draws from: with the seed, all the state there is of random numbers.
    pub fn random_site(&self) -> u64 {
        self.0.random_site.get()
    }

    /// Goes on from another site, as a resumed run does; gives back the site it would have been.
    pub fn set_random_site(&self, site: u64) -> u64 {
        self.0.random_site.replace(site)
    }

    /// Heap bytes of what stands behind tensors beside their elements: nodes of the tape with their layouts, and the
    /// storages' own records.
    pub fn bookkeeping_bytes(&self) -> u64 {
        let storage = (size_of::<Storage>() + COUNTS) as u64;
        self.tape().heap_bytes() + self.meter().alive() as u64 * storage
    }

    /// Drops the recorded history: a forward pass whose loss will never see `backward`.
    pub fn clear_tape(&self) {
        let nodes = std::mem::take(&mut *self.tape());
        drop(nodes);
    }

    /// Takes the recorded history out, to go on with another, and puts that in its place.
    pub fn swap_history(&self, other: History) -> History {
        History(std::mem::replace(&mut *self.tape(), other.0))
    }

    /// Number of ops on the tape.
    pub fn tape_len(&self) -> usize {
        self.tape().len()
    }

    /// Role that a tensor saved now gets.
    pub(crate) fn saved_role(&self) -> Role {
        if self.phase() == Phase::Recompute { Role::Recompute } else { Role::Activation }
    }
}

/// Leaves the module when dropped.
#[must_use = "the module is left when the guard is dropped"]
pub struct ScopeGuard {
    runtime: Runtime,
    parent: ModuleId,
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        self.runtime.set_module(self.parent);
    }
}
