//! Writes the runs of a recording out for other repetitions.

use super::TRACED;
use super::shape::{Run, Shape};
use super::sweep::{Owner, Place};
use tensor::Trace;
use tensor::meter::{MOST_LIVE, MemoryChange, MemoryEvent, ModuleId, StorageId, StorageInfo};

/// Where modules stand in the list of the long model.
pub(super) struct Bases {
    pub(super) once: Vec<usize>,
    /// Of each sweep and repetition, the first.
    pub(super) each: Vec<Vec<usize>>,
}

pub(super) struct Writer<'a> {
    pub(super) shape: &'a Shape,
    pub(super) from: &'a Trace,
    pub(super) times: usize,
    pub(super) module_bases: Bases,
    /// New numbers of storages that are there once.
    pub(super) once: Vec<Option<u32>>,
    /// Of each sweep and repetition, the first storage that is allocated in it.
    pub(super) bases: Vec<Vec<Option<usize>>>,
    pub(super) live: u64,
    pub(super) out: Trace,
}

impl Writer<'_> {
    /// Which repetition is meant where repetition `named` of the recording is named at `place`.
    fn repetition(&self, place: Place, named: usize) -> Option<usize> {
        let last = TRACED - 1;
        match place {
            Place::Each { from, .. } if from == last && named == 0 => Some(0),
            Place::Each { from, .. } if from == last => Some(self.times - TRACED + named),
            Place::Each { from: 0, .. } if named == last => Some(self.times - 1),
            Place::Each { from, to, .. } => (to + named).checked_sub(from).filter(|to| *to < self.times),
            Place::Once if named == 0 => Some(0),
            Place::Once => (named == last).then_some(self.times - 1),
        }
    }

    fn storage(&self, place: Place, id: StorageId) -> Option<StorageId> {
        let new = match self.shape.storages[id.0 as usize] {
            Owner::Once(at) => self.once[at]?,
            Owner::Each { sweep, repetition, place: at } => {
                let to = self.repetition(place, repetition)?;
                (self.bases[sweep][to]? + at) as u32
            }
        };
        Some(StorageId(new))
    }

    fn module(&self, place: Place, id: ModuleId) -> Option<ModuleId> {
        let new = match self.shape.module_owners[id.0 as usize] {
            Owner::Once(at) => self.module_bases.once[at],
            Owner::Each { sweep, repetition, place: at } => {
                self.module_bases.each[sweep][self.repetition(place, repetition)?] + at
            }
        };
        Some(ModuleId(new as u32))
    }

    /// Writes a run once more.
    pub(super) fn run(&mut self, run: &Run, place: Place) -> Option<()> {
        let start = self.out.ops.len();
        let moved = |op: u32| (op as usize + start - run.ops.start) as u32;
        for event in &self.from.memory[run.memory.clone()] {
            let (old, op) = (event.storage, moved(event.op));
            if let MemoryChange::Alloc(_) = event.change {
                let info = self.from.storages[old.0 as usize];
                if let Owner::Once(at) = self.shape.storages[old.0 as usize] {
                    self.once[at] = Some(self.out.storages.len() as u32);
                }
                let module = self.module(place, info.module)?;
                self.out.storages.push(StorageInfo { module, born: op, ..info });
                self.live = self.live.checked_add(info.bytes).filter(|live| *live <= MOST_LIVE)?;
            }
            let storage = self.storage(place, old)?;
            if event.change == MemoryChange::Free {
                self.live -= self.from.storages[old.0 as usize].bytes;
            }
            self.out.memory.push(MemoryEvent { op, storage, change: event.change });
        }
        for event in &self.from.ops[run.ops.clone()] {
            let mut event = event.clone();
            event.module = self.module(place, event.module)?;
            for operand in event.inputs.iter_mut().chain(&mut event.outputs) {
                operand.storage = self.storage(place, operand.storage)?;
            }
            self.out.ops.push(event);
        }
        Some(())
    }
}
