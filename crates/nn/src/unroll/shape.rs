//! How the recording of a step is made of repetitions.

use super::numbered::Numbered;
use super::sweep::{Owner, Part, Place, count, owners, runs, sweeps, written};
use super::writer::{Bases, Writer};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use tensor::meter::{MOST_LIVE, Mark, MemoryChange};
use tensor::{Phase, Trace};

/// A run of ops with the memory events around them.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) ops: Range<usize>,
    pub(super) memory: Range<usize>,
}

/// How a recording is made of repetitions.
pub(super) struct Shape {
    pub(super) blocks: Numbered,
    /// Of each mark, what follows it.
    pub(super) stretches: Vec<Vec<Part<Run>>>,
    pub(super) storages: Vec<Owner>,
    pub(super) modules: Vec<Part<Range<usize>>>,
    pub(super) module_owners: Vec<Owner>,
}

impl Shape {
    pub(super) fn of(trace: &Trace, blocks: Numbered) -> Option<Self> {
        let labels: Vec<Option<usize>> = trace.modules.iter().map(|path| blocks.repetition(path)).collect();
        let (ops, storages) = labelled(trace, &labels);
        let modules = sweeps(runs(labels.iter().copied()), blocks.times);
        let mut shape = Self {
            blocks,
            stretches: Vec::with_capacity(trace.marks.len()),
            storages: Vec::with_capacity(trace.storages.len()),
            module_owners: owners(&modules, trace.modules.len()),
            modules,
        };
        if trace.marks.first().is_none_or(|mark| (mark.op, mark.memory) != (0, 0)) {
            return None;
        }
        let mut sweeps_before = 0;
        for (i, mark) in trace.marks.iter().enumerate() {
            let next = trace.marks.get(i + 1);
            let end = next.map_or(trace.ops.len(), |next| next.op as usize);
            let memory_end = next.map_or(trace.memory.len(), |next| next.memory as usize);
            let mut at = mark.memory as usize;
            let mut found = Vec::new();
            for (label, run) in runs(ops[mark.op as usize..end].iter().copied()) {
                let ops = run.start + mark.op as usize..run.end + mark.op as usize;
                let behind = trace.memory[at..memory_end].partition_point(|event| (event.op as usize) < ops.end);
                found.push((label, Run { ops, memory: at..at + behind }));
                at += behind;
            }
            // What is freed or changes hands behind the last op goes by who made it.
            let tail = at..memory_end;
            let whose = trace.memory[tail.clone()].iter().map(|event| storages[event.storage.0 as usize]);
            let behind = runs(whose).into_iter().map(|(label, run)| {
                (label, Run { ops: end..end, memory: run.start + tail.start..run.end + tail.start })
            });
            let mut parts = sweeps(found, blocks.times);
            parts.extend(sweeps(behind.collect(), blocks.times));
            sweeps_before = shape.note_storages(trace, &parts, sweeps_before)?;
            shape.stretches.push(parts);
        }
        Some(shape)
    }

    /// Notes whose the storages are that are allocated in these parts, of which `before` sweeps come before. How many there are then.
    fn note_storages(&mut self, trace: &Trace, parts: &[Part<Run>], before: usize) -> Option<usize> {
        for (place, run) in written(parts, self.blocks.times) {
            let made = trace.memory[run.memory.clone()].iter();
            for (at, event) in made.filter(|e| matches!(e.change, MemoryChange::Alloc(_))).enumerate() {
                // Storages are numbered as they are allocated, where nothing was left out of the recording.
                if event.storage.0 as usize != self.storages.len() {
                    return None;
                }
                self.storages.push(match place {
                    Place::Each { sweep, to, .. } => Owner::Each { sweep: before + sweep, repetition: to, place: at },
                    Place::Once => Owner::Once(self.storages.len()),
                });
            }
        }
        Some(before + count(parts))
    }

    /// The recording with `times` repetitions.
    pub(super) fn write(&self, trace: &Trace, times: usize) -> Option<Trace> {
        let (modules, module_bases) = self.write_modules(&trace.modules, times);
        let factor = times.div_ceil(self.blocks.times);
        let out = Trace {
            ops: Vec::with_capacity(trace.ops.len() * factor),
            memory: Vec::with_capacity(trace.memory.len() * factor),
            storages: Vec::with_capacity(trace.storages.len() * factor),
            modules,
            marks: Vec::with_capacity(trace.marks.len()),
        };
        let once = vec![None; trace.storages.len()];
        let mut writer =
            Writer { shape: self, from: trace, times, module_bases, once, bases: Vec::new(), live: 0, out };
        for (mark, parts) in trace.marks.iter().zip(&self.stretches) {
            let (op, memory) = (writer.out.ops.len() as u32, writer.out.memory.len() as u32);
            writer.out.marks.push(Mark { name: mark.name.clone(), op, memory });
            let before = writer.bases.len();
            writer.bases.resize_with(before + count(parts), || vec![None; times]);
            for (place, run) in written(parts, times) {
                let place = match place {
                    Place::Each { sweep, from, to } => {
                        writer.bases[before + sweep][to] = Some(writer.out.storages.len());
                        Place::Each { sweep: before + sweep, from, to }
                    }
                    Place::Once => Place::Once,
                };
                writer.run(run, place)?;
            }
        }
        Some(writer.out)
    }

    /// Makes of a recording with `times` repetitions, written of another recording of the same program, that of this one. Only sizes
    /// differ: who ran where on which storages stays.
    pub(super) fn resize(&self, trace: &Trace, times: usize, out: &mut Trace) -> Option<()> {
        let mut ops = out.ops.iter_mut();
        let mut storages = out.storages.iter_mut();
        let mut live: u64 = 0;
        for run in self.stretches.iter().flat_map(|parts| written(parts, times)).map(|(_, run)| run) {
            for event in &trace.memory[run.memory.clone()] {
                let bytes = trace.storages[event.storage.0 as usize].bytes;
                match event.change {
                    MemoryChange::Alloc(_) => {
                        storages.next()?.bytes = bytes;
                        live = live.checked_add(bytes).filter(|live| *live <= MOST_LIVE)?;
                    }
                    MemoryChange::Free => live -= bytes,
                    MemoryChange::Role(_) => {}
                }
            }
            for event in &trace.ops[run.ops.clone()] {
                let to = ops.next()?;
                to.ran = Rc::clone(&event.ran);
                let from = event.inputs.iter().chain(&event.outputs);
                for (to, from) in to.inputs.iter_mut().chain(&mut to.outputs).zip(from) {
                    to.layout = Arc::clone(&from.layout);
                }
            }
        }
        (ops.next().is_none() && storages.next().is_none()).then_some(())
    }

    /// Module paths with `times` repetitions, and where those of each begin.
    fn write_modules(&self, paths: &[String], times: usize) -> (Vec<String>, Bases) {
        let mut out = Vec::new();
        let mut bases = Bases { once: vec![0; paths.len()], each: vec![vec![0; times]; count(&self.modules)] };
        for (place, range) in written(&self.modules, times) {
            match place {
                Place::Once => range.clone().zip(out.len()..).for_each(|(from, to)| bases.once[from] = to),
                Place::Each { sweep, to, .. } => bases.each[sweep][to] = out.len(),
            }
            out.extend(paths[range.clone()].iter().map(|path| self.blocks.renamed(path, place, times)));
        }
        (out, bases)
    }
}

/// The repetition of each op and of each storage: that of the module an op runs in, or of what it updates, and of the op that
/// allocates a storage.
fn labelled(trace: &Trace, modules: &[Option<usize>]) -> (Vec<Option<usize>>, Vec<Option<usize>>) {
    let mut storages = vec![None; trace.storages.len()];
    let mut ops: Vec<Option<usize>> = Vec::with_capacity(trace.ops.len());
    // Ops that read nothing belong to the next one that does.
    let mut waiting = 0;
    for (i, event) in trace.ops.iter().enumerate() {
        let mut label = modules[event.module.0 as usize];
        if label.is_none() && event.phase == Phase::Optimizer {
            label = event.inputs.iter().find_map(|input| storages[input.storage.0 as usize]);
            if event.inputs.is_empty() {
                waiting += 1;
            } else if waiting > 0 {
                ops.truncate(i - waiting);
                for waited in &trace.ops[i - waiting..i] {
                    ops.push(label);
                    for output in &waited.outputs {
                        storages[output.storage.0 as usize] = label;
                    }
                }
                waiting = 0;
            }
        } else {
            waiting = 0;
        }
        for output in &event.outputs {
            let at = output.storage.0 as usize;
            if trace.storages[at].born as usize == i {
                storages[at] = label;
            }
        }
        ops.push(label);
    }
    (ops, storages)
}
