//! Updates within the backward pass, as a change of the recording of a step: each parameter is updated as soon as its gradient
//! is complete and nothing of the pass reads the parameter any more, and the gradient is freed at once.
//!
//! Source: `pytorch/torchtune`, `training/memory.py` (0.6), `OptimizerInBackwardWrapper`: one optimizer for each parameter, run
//! by a hook behind the accumulation of its gradient.

use std::collections::BTreeMap;
use tensor::Trace;
use tensor::meter::{MemoryChange, OpEvent, Phase, Role, StorageId};

/// One thing that happens in a recording.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Mark(usize),
    Op(usize),
    Memory(usize),
}

/// What is updated together: storages that ops of an update connect, as a forest of their ids.
struct Groups(Vec<u32>);

impl Groups {
    fn root(&mut self, storage: StorageId) -> u32 {
        let mut at = storage.0;
        while self.0[at as usize] != at {
            let above = self.0[self.0[at as usize] as usize];
            self.0[at as usize] = above;
            at = above;
        }
        at
    }

    fn join(&mut self, a: StorageId, b: StorageId) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[b as usize] = a;
    }
}

fn storages(op: &OpEvent) -> impl Iterator<Item = StorageId> + '_ {
    op.inputs.iter().chain(&op.outputs).map(|operand| operand.storage)
}

/// Moves every update that belongs to one parameter into the backward pass before it.
pub(crate) fn apply(trace: &mut Trace) {
    let mut groups = Groups((0..trace.storages.len() as u32).collect());
    let updates = |op: &OpEvent| op.phase == Phase::Optimizer;
    for op in trace.ops.iter().filter(|op| updates(op)) {
        let all: Vec<StorageId> = storages(op).collect();
        all.windows(2).for_each(|pair| groups.join(pair[0], pair[1]));
    }
    let items = items(trace);
    // Where each step begins to update, and where the pass before it ends with each storage.
    let mut last_use: BTreeMap<u32, usize> = BTreeMap::new();
    let mut is_gradient = vec![false; trace.storages.len()];
    let mut place: Vec<usize> = (0..items.len()).collect();
    let mut updating = false;
    for (i, item) in items.iter().enumerate() {
        match *item {
            Item::Mark(at) => {
                let name = &trace.marks[at].name;
                updating = name.starts_with("opt") || updating && name.starts_with("zero");
                if name.starts_with("bwd") {
                    last_use.clear();
                }
            }
            Item::Op(at) if updating => {
                let root = storages(&trace.ops[at]).next().map(|storage| groups.root(storage));
                if let Some(to) = root.and_then(|root| last_use.get(&root)) {
                    place[i] = *to;
                }
            }
            Item::Op(at) => {
                for storage in storages(&trace.ops[at]) {
                    let root = groups.root(storage);
                    last_use.entry(root).and_modify(|to| *to = i);
                }
            }
            Item::Memory(at) => {
                let event = trace.memory[at];
                let root = groups.root(event.storage);
                let gradient =
                    matches!(event.change, MemoryChange::Alloc(Role::Gradient) | MemoryChange::Role(Role::Gradient));
                if gradient && !updating {
                    is_gradient[event.storage.0 as usize] = true;
                    last_use.insert(root, i);
                } else if updating {
                    let own = trace.storages[event.storage.0 as usize].phase == Phase::Optimizer;
                    let ends = is_gradient[event.storage.0 as usize] && event.change == MemoryChange::Free;
                    if let Some(to) = last_use.get(&root).filter(|_| own || ends) {
                        place[i] = *to;
                    }
                }
            }
        }
    }
    // Moved items come behind the one they are moved to, in their order; a gradient goes last of its group.
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| (place[i], i));
    reorder(trace, &items, &order);
}

/// All that happens, in its order.
fn items(trace: &Trace) -> Vec<Item> {
    let mut all = Vec::with_capacity(trace.ops.len() + trace.memory.len() + trace.marks.len());
    let (mut memory, mut marks) = (0, 0);
    for op in 0..=trace.ops.len() {
        loop {
            let due = |mark: &tensor::meter::Mark| mark.op as usize <= op && mark.memory as usize <= memory;
            if trace.marks.get(marks).is_some_and(due) {
                all.push(Item::Mark(marks));
                marks += 1;
            } else if trace.memory.get(memory).is_some_and(|event| event.op as usize <= op) {
                all.push(Item::Memory(memory));
                memory += 1;
            } else {
                break;
            }
        }
        if op < trace.ops.len() {
            all.push(Item::Op(op));
        }
    }
    all
}

/// The recording in another order, with all places in it renumbered.
fn reorder(trace: &mut Trace, items: &[Item], order: &[usize]) {
    let mut ops: Vec<Option<OpEvent>> = std::mem::take(&mut trace.ops).into_iter().map(Some).collect();
    let memory = std::mem::take(&mut trace.memory);
    for &i in order {
        match items[i] {
            Item::Op(at) => trace.ops.extend(ops[at].take()),
            Item::Memory(at) => {
                let event = tensor::meter::MemoryEvent { op: trace.ops.len() as u32, ..memory[at] };
                if let MemoryChange::Alloc(_) = event.change {
                    trace.storages[event.storage.0 as usize].born = event.op;
                }
                trace.memory.push(event);
            }
            Item::Mark(at) => {
                trace.marks[at].op = trace.ops.len() as u32;
                trace.marks[at].memory = trace.memory.len() as u32;
            }
        }
    }
}
