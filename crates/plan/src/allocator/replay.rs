//! The allocations of a training step, given to the allocator.

use std::collections::BTreeSet;
use tensor::Trace;
use tensor::meter::{Mark, MemoryChange, TensorRef};
use tensor::ops::Op;
use units::Bytes;

use super::{Allocator, BlockId, Conf, OutOfMemory, Usage};
use crate::sharding::Unit;
use crate::timeline::{Device, last_step};

/// The allocator of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Its settings.
    pub conf: Conf,
    /// Workspace of the library of matrix products, which PyTorch takes from the allocator with the first product and keeps.
    pub workspace: Bytes,
    /// What the program takes of the allocator beside the step that is traced.
    pub beside: Beside,
}

/// Tensors of a program that no op of the traced step makes: those of its collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Bytes of each that is there from the first step on.
    pub held: Vec<u64>,
    /// Bytes of each that is there for a moment behind every update, all together.
    pub after_update: Vec<u64>,
    /// Whether what is gathered lies in one of `held`.
    pub gathers_into_held: bool,
    /// Whether a block that a collective reads or writes is free for others only once its pass is over. Collectives run on a
    /// stream of their own, and the host is ahead of both streams by about a pass: when the tensor is let go of, the
    /// collective has not run yet.
    ///
    /// Source: PyTorch, `torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`, `recordStream` in `collective`;
    /// `c10/cuda/CUDACachingAllocator.cpp`, `insert_events` and `process_events`.
    pub frees_late: bool,
}

/// An allocation that the device had no room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What was asked for.
    pub error: OutOfMemory,
    /// Named stretch of the step.
    pub phase: String,
}

/// What the allocator reserves for a training run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The books when most was allocated.
    pub peak: Usage,
    /// The books at the end, with the highest of all steps.
    pub end: Usage,
    /// Optimizer steps that were replayed.
    pub steps: u64,
    /// Whether the last of them changed nothing: all later ones are the same.
    pub steady: bool,
    /// The allocation that failed, if one did.
    pub refused: Option<Refused>,
}

/// Most times that a step is repeated before it is called unsteady.
const MOST_REPEATS: u64 = 6;

impl Process {
    /// Replays a traced run on a device on which nothing is allocated yet, its last step again until nothing changes; `room` is
    /// what the driver can give, without limit where it is not said.
    pub fn reserve(&self, empty: &Device<'_>, room: Option<Bytes>) -> Reserved {
        let trace = empty.trace();
        let mut replay = Replay {
            trace,
            device: empty.clone(),
            allocator: Allocator::new(self.conf.clone(), room.map(Bytes::get)),
            held: vec![None; trace.storages.len()],
            units: Vec::new(),
            place: None,
            after_update: &self.beside.after_update,
            collectives: Collectives::of(trace, &self.beside),
            late: Vec::new(),
            peak: Usage::default(),
        };
        // The first op that is no part of building the model makes the handle of the library.
        let first = trace.marks.get(1).map_or(0, |mark| mark.memory as usize);
        let mut steps = updates(trace);
        let mut steady = false;
        let result = (|| {
            replay.run(0..first)?;
            for bytes in &self.beside.held {
                replay.alloc(*bytes, first)?;
            }
            if self.workspace.get() > 0 {
                replay.alloc(self.workspace.get(), first)?;
            }
            replay.run(first..trace.memory.len())?;
            let again = repeated(trace);
            for _ in 0..MOST_REPEATS {
                let Some(again) = again.clone() else { break };
                let before = replay.allocator.usage();
                replay.run(again)?;
                steps += 1;
                let after = replay.allocator.usage();
                steady = (before.peak_reserved, before.mallocs) == (after.peak_reserved, after.mallocs);
                if steady {
                    break;
                }
            }
            Ok(())
        })();
        Reserved { peak: replay.peak, end: replay.allocator.usage(), steps, steady, refused: result.err() }
    }

    /// The same; what the device refuses is what the step would take where that much is there, and stays refused.
    pub fn wanted(&self, empty: &Device<'_>, room: Option<Bytes>) -> Reserved {
        let found = self.reserve(empty, room);
        match found.refused {
            Some(_) => Reserved { refused: found.refused, ..self.reserve(empty, None) },
            None => found,
        }
    }
}

/// Optimizer steps of a trace.
fn updates(trace: &Trace) -> u64 {
    trace.marks.iter().filter(|mark| mark.name.starts_with("zero")).count() as u64
}

/// Memory events of the last optimizer step, from the end of the one before; none where it leaves other storages behind
/// than it found.
fn repeated(trace: &Trace) -> Option<std::ops::Range<usize>> {
    trace.marks.iter().rposition(|mark| mark.name.starts_with("zero"))?;
    let first = last_step(trace.marks.len(), |i| &trace.marks[i].name).start;
    let range = trace.marks[first].memory as usize..trace.memory.len();
    let mut alive: Vec<i8> = vec![0; trace.storages.len()];
    for event in &trace.memory[range.clone()] {
        alive[event.storage.0 as usize] += match event.change {
            MemoryChange::Alloc(_) => 1,
            MemoryChange::Free => -1,
            MemoryChange::Role(_) => 0,
        };
    }
    alive.iter().all(|change| *change == 0).then_some(range)
}

/// What collectives do to storages.
#[derive(Debug, Default)]
struct Collectives {
    /// Storages whose blocks are free late; none where all are at once.
    late: Vec<bool>,
    /// Storages that lie elsewhere.
    elsewhere: Vec<bool>,
    /// Memory events at which a pass begins.
    passes: BTreeSet<usize>,
}

impl Collectives {
    fn of(trace: &Trace, beside: &Beside) -> Self {
        let mut found = Self::default();
        let mark = |all: &mut Vec<bool>, tensors: &[TensorRef]| {
            all.resize(trace.storages.len(), false);
            for tensor in tensors {
                all[tensor.storage.0 as usize] = true;
            }
        };
        for event in &trace.ops {
            let (gathers, talks) = match &event.op {
                Op::AllGather(_) => (true, true),
                Op::ReduceScatter(_) | Op::AllReduce(_) | Op::AllToAll(_) | Op::Send(_) => (false, true),
                _ => continue,
            };
            if gathers && beside.gathers_into_held {
                mark(&mut found.elsewhere, &event.outputs);
            }
            if talks && beside.frees_late {
                mark(&mut found.late, &event.inputs);
                mark(&mut found.late, &event.outputs);
            }
        }
        if beside.frees_late {
            found.passes = trace.marks.iter().map(|mark| mark.memory as usize).collect();
        }
        found
    }

    fn is(all: &[bool], storage: usize) -> bool {
        all.get(storage).copied().unwrap_or(false)
    }
}

struct Replay<'a> {
    trace: &'a Trace,
    device: Device<'a>,
    allocator: Allocator,
    /// Block of each storage.
    held: Vec<Option<BlockId>>,
    /// Blocks of what is gathered or not yet reduced.
    units: Vec<(Unit, BlockId)>,
    /// Where the last op stood that asked for them.
    place: Option<u32>,
    /// What there is for a moment behind an update.
    after_update: &'a [u64],
    collectives: Collectives,
    /// Blocks that are free once the pass is over.
    late: Vec<BlockId>,
    peak: Usage,
}

impl Replay<'_> {
    fn run(&mut self, events: std::ops::Range<usize>) -> Result<(), Refused> {
        for at in events {
            let event = self.trace.memory[at];
            let op = event.op as usize;
            let ends_update = |mark: &Mark| mark.memory as usize == at && mark.name.starts_with("zero");
            if !self.after_update.is_empty() && self.trace.marks.iter().any(ends_update) {
                self.behind_update(at)?;
            }
            let storage = event.storage.0 as usize;
            if self.collectives.passes.contains(&at) {
                self.free_late();
            }
            if Collectives::is(&self.collectives.elsewhere, storage) {
                self.device.apply(at);
                continue;
            }
            if self.device.has_units() && matches!(event.change, MemoryChange::Alloc(_)) {
                self.gather(op, at)?;
            }
            let bytes = |device: &Device<'_>| device.live()[storage].map_or(0, |(_, bytes)| bytes);
            let before = bytes(&self.device);
            self.device.apply(at);
            let after = bytes(&self.device);
            if before == after && !matches!(event.change, MemoryChange::Alloc(_)) {
                continue;
            }
            // A shard takes the place of what was whole.
            if let Some(block) = self.held[storage].take() {
                if Collectives::is(&self.collectives.late, storage) {
                    self.late.push(block);
                } else {
                    self.allocator.free(block);
                }
            }
            if after > 0 {
                self.held[storage] = Some(self.alloc(after, at)?);
            }
        }
        Ok(())
    }

    /// Frees what waits for the end of its pass.
    fn free_late(&mut self) {
        for block in self.late.drain(..) {
            self.allocator.free(block);
        }
    }

    /// Takes what there is behind an update, and lets go of it.
    fn behind_update(&mut self, at: usize) -> Result<(), Refused> {
        let sizes = self.after_update;
        let blocks = sizes.iter().map(|bytes| self.alloc(*bytes, at)).collect::<Result<Vec<_>, _>>()?;
        for block in blocks {
            self.allocator.free(block);
        }
        Ok(())
    }

    /// Lets go of the units that op `op` has no use for, and gathers those it has.
    fn gather(&mut self, op: usize, at: usize) -> Result<(), Refused> {
        let place = self.device.place(op);
        if std::mem::replace(&mut self.place, place) == place {
            return Ok(());
        }
        let wanted: Vec<(Unit, u64)> = self.device.units(op).collect();
        let allocator = &mut self.allocator;
        self.units.retain(|(unit, block)| {
            let keep = wanted.iter().any(|(other, _)| other == unit);
            if !keep {
                allocator.free(*block);
            }
            keep
        });
        for (unit, bytes) in wanted {
            if bytes > 0 && !self.units.iter().any(|(other, _)| *other == unit) {
                let block = self.alloc(bytes, at)?;
                self.units.push((unit, block));
            }
        }
        Ok(())
    }

    fn alloc(&mut self, bytes: u64, at: usize) -> Result<BlockId, Refused> {
        let mut block = self.allocator.alloc(bytes);
        if block.is_err() && !self.late.is_empty() {
            // Before it gives up, the allocator waits for the device.
            self.free_late();
            block = self.allocator.alloc(bytes);
        }
        let block = block.map_err(|error| {
            let mark = self.trace.marks.iter().rev().find(|mark| mark.memory as usize <= at);
            let phase = mark.map_or_else(String::new, |mark| mark.name.clone());
            Refused { error, phase }
        })?;
        let usage = self.allocator.usage();
        if usage.allocated > self.peak.allocated {
            self.peak = usage;
        }
        Ok(block)
    }
}
