//! Which results of a checkpointed region are kept, and which of its ops need not run again because of that.

use super::Saved;
use crate::apply::Outputs;
use crate::error::Result;
use crate::meter::Role;
use crate::ops::{Op, Out};
use crate::runtime::Runtime;
use crate::storage::Storage;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Numbers of ops of a region, below [`KeepSet::LIMIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeepSet([u64; 8]);

impl KeepSet {
    /// Nothing is kept.
    pub const NONE: Self = Self([0; 8]);
    /// Ops from this number on cannot be kept.
    pub const LIMIT: usize = 512;

    /// With op number `op`.
    pub fn with(mut self, op: usize) -> Self {
        if op < Self::LIMIT {
            self.0[op / 64] |= 1 << (op % 64);
        }
        self
    }

    /// Whether op number `op` is kept.
    pub fn contains(self, op: usize) -> bool {
        op < Self::LIMIT && self.0[op / 64] & (1 << (op % 64)) != 0
    }

    /// Whether nothing is kept.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

/// What is known of one op of the region.
#[derive(Default)]
struct Note {
    /// Ops of the region that made its operands.
    producers: SmallVec<[usize; 2]>,
    /// Whether backward asks for a tensor it made.
    saved: bool,
    /// Whether it changes a storage that is there already: it always runs again.
    in_place: bool,
}

/// The kept results of one run of a region.
pub(super) struct Selection {
    keep: KeepSet,
    notes: RefCell<Vec<Note>>,
    /// Op that made a storage, by its number in the trace.
    producer: RefCell<BTreeMap<u32, usize>>,
    kept: RefCell<BTreeMap<usize, Vec<Saved>>>,
    /// Whether an op runs again; decided at the end of forward.
    again: RefCell<Vec<bool>>,
    cursor: Cell<usize>,
}

/// Whether an op has a number: casts of parameters have none.
fn is_counted(op: &Op, inputs: &[&Tensor]) -> bool {
    !(matches!(op, Op::Cast(_)) && inputs.iter().any(|t| t.is_leaf()))
}

impl Selection {
    pub(super) fn new(keep: KeepSet) -> Self {
        Self {
            keep,
            notes: RefCell::default(),
            producer: RefCell::default(),
            kept: RefCell::default(),
            again: RefCell::default(),
            cursor: Cell::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keep.is_empty()
    }

    pub(super) fn note(&self, op: &Op, inputs: &[&Tensor], outs: &[Out], outputs: &Outputs) {
        let mut producer = self.producer.borrow_mut();
        if !is_counted(op, inputs) {
            // The id may be that of a storage of the region that is gone.
            for output in outputs {
                producer.remove(&output.storage().id().0);
            }
            return;
        }
        let mut notes = self.notes.borrow_mut();
        let number = notes.len();
        let made_by = |t: &&Tensor| producer.get(&t.storage().id().0).copied();
        notes.push(Note {
            producers: inputs.iter().filter_map(made_by).collect(),
            saved: false,
            in_place: outs.iter().any(|out| matches!(out, Out::InPlace(_))),
        });
        for (out, output) in outs.iter().zip(outputs) {
            if matches!(out, Out::Fresh(_)) {
                producer.insert(output.storage().id().0, number);
            }
        }
        if self.keep.contains(number) {
            let kept = outputs.iter().map(|t| Saved::new(t, Role::Activation)).collect();
            self.kept.borrow_mut().insert(number, kept);
        }
    }

    pub(super) fn mark_saved(&self, tensor: &Tensor) {
        if let Some(&op) = self.producer.borrow().get(&tensor.storage().id().0) {
            self.notes.borrow_mut()[op].saved = true;
        }
    }

    /// Decides which ops run again: those whose result backward asks for, and what these need, up to what is kept.
    pub(super) fn decide(&self) {
        if self.is_empty() {
            return;
        }
        let notes = self.notes.borrow();
        let mut again = vec![false; notes.len()];
        for op in (0..notes.len()).rev() {
            again[op] = (again[op] || notes[op].saved || notes[op].in_place) && !self.keep.contains(op);
            if again[op] {
                for &producer in &notes[op].producers {
                    again[producer] = true;
                }
            }
        }
        *self.again.borrow_mut() = again;
        self.producer.borrow_mut().clear();
    }

    pub(super) fn rewind(&self) {
        self.cursor.set(0);
    }

    pub(super) fn release(&self) {
        let kept = std::mem::take(&mut *self.kept.borrow_mut());
        drop(kept);
    }

    pub(super) fn replay(
        &self,
        runtime: &Runtime,
        op: &Op,
        inputs: &[&Tensor],
        outs: &[Out],
    ) -> Result<Option<Outputs>> {
        if !is_counted(op, inputs) {
            return Ok(None);
        }
        let number = self.cursor.get();
        self.cursor.set(number + 1);
        if let Some(kept) = self.kept.borrow().get(&number) {
            return Ok(Some(kept.iter().map(|saved| saved.tensor.clone()).collect()));
        }
        if self.again.borrow().get(number).copied().unwrap_or(true) {
            return Ok(None);
        }
        let stand_in = |out: &Out| {
            Ok(match out {
                Out::Fresh(spec) => Tensor {
                    storage: Storage::allocate(runtime, 0, Role::Temporary)?,
                    layout: spec.layout.clone(),
                    dtype: spec.dtype,
                    grad_ref: None,
                },
                Out::View(of, layout) => Tensor { layout: layout.clone(), grad_ref: None, ..inputs[*of].clone() },
                Out::InPlace(of) => inputs[*of].clone(),
            })
        };
        outs.iter().map(stand_in).collect::<Result<_>>().map(Some)
    }
}
