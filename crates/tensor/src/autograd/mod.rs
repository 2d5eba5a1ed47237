//! Reverse-mode differentiation over a tape in execution order.
//!
//! The tape is consumed from its end: a node is taken off, its gradient rule runs, its saved tensors are dropped. There
//! is no recursion and no global map. Gradients of gradients are not recorded.

mod backward;
mod checkpoint;
mod keep;
mod remake;

pub use backward::{Back, Root};
pub use checkpoint::{checkpoint, checkpoint_keeping};
pub(crate) use checkpoint::{note, replay, stop_if_complete};
pub use keep::KeepSet;

pub(crate) use remake::note_remake;

use checkpoint::{Region, Running};
use remake::{Again, Remakes};

use crate::apply::{Outputs, needs_of};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::meter::{ModuleId, Role};
use crate::ops::{Needs, Op, Out};
use crate::runtime::Runtime;
use crate::tensor::{Spec, Tensor};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Gradients of the inputs of an op, `None` where none is wanted.
pub type Grads = SmallVec<[Option<Tensor>; 2]>;

/// Place of a tensor in the graph.
#[derive(Clone)]
pub(crate) enum GradRef {
    /// A parameter-like tensor that collects its gradient.
    Leaf(Rc<Leaf>),
    /// The value of this number, made by a node of the tape.
    Value(u64),
}

/// Where the gradient of a leaf is collected.
pub(crate) struct Leaf {
    id: u64,
    gradient: RefCell<Option<Tensor>>,
    /// Whether the gradient came from the backward pass that is running.
    fresh: Cell<bool>,
    /// Whether kernels add to a buffer of another dtype themselves.
    pub(crate) adds_to_buffer: Cell<bool>,
}

impl Leaf {
    pub(crate) fn new() -> Rc<Self> {
        // A process-wide number: leaves of different runtimes never meet, but may share a map in a test.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (fresh, adds_to_buffer) = (Cell::new(false), Cell::new(false));
        Rc::new(Self { id, gradient: RefCell::new(None), fresh, adds_to_buffer })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn gradient(&self) -> Option<Tensor> {
        self.gradient.borrow().clone()
    }

    pub(crate) fn take(&self) -> Option<Tensor> {
        self.gradient.borrow_mut().take()
    }

    pub(crate) fn set_gradient(&self, gradient: Option<Tensor>) {
        if let Some(g) = &gradient {
            g.storage.hold(Role::Gradient);
        }
        let old = std::mem::replace(&mut *self.gradient.borrow_mut(), gradient);
        drop(old);
    }
}

/// A tensor kept for backward.
struct Saved {
    tensor: Tensor,
    version: u32,
    role: Role,
}

impl Saved {
    fn new(tensor: &Tensor, role: Role) -> Self {
        tensor.storage.hold(role);
        Self { tensor: tensor.detach(), version: tensor.storage.version(), role }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.tensor.storage.release(self.role);
    }
}

/// Where a node finds a tensor it asked to keep.
enum Slot {
    /// Kept since forward.
    Kept(Saved),
    /// To be made again: the tensor of this number in a checkpointed region.
    Region(Rc<Region>, usize),
    /// To be made again by one op.
    Again(Again),
}

pub(crate) struct Node {
    op: Op,
    inputs: SmallVec<[Option<GradRef>; 2]>,
    specs: SmallVec<[Spec; 2]>,
    out_values: SmallVec<[u64; 1]>,
    out_specs: SmallVec<[Spec; 1]>,
    saved_inputs: SmallVec<[Option<Slot>; 2]>,
    saved_outputs: SmallVec<[Option<Slot>; 1]>,
    module: ModuleId,
}

/// A history that is set aside while another is recorded: that of a micro-batch whose backward pass comes later.
#[derive(Default)]
pub struct History(pub(crate) Tape);

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "history of {} ops", self.0.len())
    }
}

/// Nodes in execution order.
#[derive(Default)]
pub(crate) struct Tape {
    nodes: Vec<Node>,
    /// The checkpointed region whose forward, or recomputation, is running.
    region: Option<Running>,
    /// What need not be kept, because it can be made again.
    remakes: Remakes,
}

impl Tape {
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of the nodes and of the layouts they name, each layout once; those of leaves are the model's.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let mut layouts = HashSet::new();
        let mut spilled = 0;
        for node in &self.nodes {
            spilled += heap_of(&node.inputs) + heap_of(&node.specs) + heap_of(&node.saved_inputs);
            let leaf = |i: usize| matches!(node.inputs[i], Some(GradRef::Leaf(_)));
            let read = node.specs.iter().enumerate().filter(|(i, _)| !leaf(*i)).map(|(_, spec)| spec);
            layouts.extend(read.chain(&node.out_specs).map(|spec| Arc::as_ptr(&spec.layout)));
        }
        let layout = size_of::<Layout>() + COUNTS;
        (self.nodes.capacity() * size_of::<Node>() + spilled + layouts.len() * layout) as u64
    }
}

/// Bytes of the two counters in front of what an `Rc` or `Arc` holds.
pub(crate) const COUNTS: usize = 2 * size_of::<usize>();

fn heap_of<A: smallvec::Array>(items: &SmallVec<A>) -> usize {
    if items.spilled() { items.capacity() * size_of::<A::Item>() } else { 0 }
}

/// Which inputs want a gradient: `None` if the op need not be put on the tape.
pub(crate) fn needs(
    runtime: &Runtime,
    op: &Op,
    inputs: &[&Tensor],
    specs: &[Spec],
    outs: &[Out],
) -> Result<Option<Needs>> {
    if !runtime.grad_enabled() {
        return Ok(None);
    }
    let needs = needs_of(inputs);
    let float_result = outs.iter().any(|out| match out {
        Out::Fresh(spec) => spec.dtype.is_float(),
        Out::View(of, _) | Out::InPlace(of) => specs[*of].dtype.is_float(),
    });
    // An argmax has no gradient and needs none: its result is an integer.
    if needs.0 == 0 || !float_result {
        return Ok(None);
    }
    let with_rule = op.differentiable();
    let without_rule = if with_rule == u8::MAX { 0 } else { needs.0 & !u64::from(with_rule) };
    if without_rule != 0 {
        return Err(Error::NoGradient { op: op.name(), input: without_rule.trailing_zeros() as usize });
    }
    Ok(Some(needs))
}

/// Puts an op on the tape and makes its outputs part of the graph.
///
/// In a checkpointed region only placeholders are kept; while it is recomputed the node is on the tape already, and what
/// it asked to keep goes to the region.
pub(crate) fn push(
    runtime: &Runtime,
    op: Op,
    needs: Needs,
    inputs: &[&Tensor],
    specs: &[Spec],
    outputs: &mut Outputs,
) -> Result<()> {
    let saves = op.saves(needs);
    for output in outputs.iter_mut().filter(|o| o.dtype.is_float()) {
        output.grad_ref = Some(GradRef::Value(runtime.fresh_value()));
    }
    if checkpoint::is_recomputing(runtime) {
        return checkpoint::keep_recomputed(runtime, saves.inputs, inputs, saves.outputs, outputs);
    }
    let role = runtime.saved_role();
    let keep = |bits: u8, i: usize, t: &Tensor| {
        (i < 8 && bits & (1 << i) != 0)
            .then(|| checkpoint::placeholder(runtime, t).unwrap_or_else(|| slot(runtime, t, role)))
    };
    let node = Node {
        inputs: inputs
            .iter()
            .enumerate()
            .map(|(i, t)| if needs.wants(i) { t.grad_ref.clone() } else { None })
            .collect(),
        specs: specs.iter().cloned().collect(),
        out_values: outputs
            .iter()
            .map(|t| match t.grad_ref {
                Some(GradRef::Value(v)) => v,
                _ => NO_VALUE,
            })
            .collect(),
        out_specs: outputs.iter().map(Tensor::spec).collect(),
        saved_inputs: inputs.iter().enumerate().map(|(i, t)| keep(saves.inputs, i, t)).collect(),
        saved_outputs: outputs.iter().enumerate().map(|(i, t)| keep(saves.outputs, i, t)).collect(),
        module: runtime.module(),
        op,
    };
    runtime.tape().nodes.push(node);
    Ok(())
}

/// A tensor kept, or what it is made of.
fn slot(runtime: &Runtime, tensor: &Tensor, role: Role) -> Slot {
    let again = runtime.tape().remakes.find(tensor, role);
    again.map_or_else(|| Slot::Kept(Saved::new(tensor, role)), Slot::Again)
}

/// Value number of an integer output, which no gradient reaches.
const NO_VALUE: u64 = u64::MAX;
