//! The recording of a deep model out of those of shallow ones.
//!
//! A language model is the same block, or the same few blocks, many times over. What a step records of one more of them is what
//! it recorded of the last: the same ops on storages that lie one block further. So a model of some blocks is traced with a few
//! of them, and their part of the recording is written out as often as there are blocks.
//!
//! Nothing is taken on trust. The model is traced twice, with one repetition more the second time, and the first recording, written out
//! by one repetition, has to be the second, event by event. Where it is not (a tensor over all blocks, a random site for each), the
//! model is traced whole.

use crate::spec::{LayerSpec, ModelSpec, Stage};
use crate::step::{ParamInfo, Recorded, StepOptions};
use std::ops::Range;
use std::sync::Arc;
use tensor::meter::{Mark, MemoryChange, MemoryEvent, ModuleId, OpEvent, StorageId, StorageInfo};
use tensor::ops::create::{Create, Fill};
use tensor::{Op, Phase, Trace};

/// Repetitions that are traced: the first, the last, and one between that stands for all others.
const TRACED: usize = 3;

/// Most blocks of a repetition.
const LONGEST_PERIOD: usize = 8;

/// Blocks that repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repeated {
    /// Blocks in front of them.
    first: usize,
    /// Blocks of one repetition.
    period: usize,
    /// How often it is there.
    times: usize,
}

impl Repeated {
    /// Those of a model by which the most blocks need not be traced.
    fn of(layers: &[Arc<LayerSpec>]) -> Option<Self> {
        let same = |a: &Arc<LayerSpec>, b: &Arc<LayerSpec>| Arc::ptr_eq(a, b) || a == b;
        let mut best: Option<Self> = None;
        for period in 1..=LONGEST_PERIOD.min(layers.len() / 2) {
            let mut start = 0;
            for at in period..=layers.len() {
                if at < layers.len() && same(&layers[at], &layers[at - period]) {
                    continue;
                }
                // The stretch from `start` to `at` repeats what is one period before.
                let found = Self { first: start, period, times: (at - start) / period };
                if best.is_none_or(|best| found.spared() > best.spared()) {
                    best = Some(found);
                }
                start = at + 1 - period;
            }
        }
        // Two short recordings of which one is checked against the other take as long as a whole one of twice their blocks.
        best.filter(|best| best.spared() > layers.len() / 2)
    }

    fn spared(self) -> usize {
        self.period * self.times.saturating_sub(TRACED + 1)
    }

    /// The model with so many repetitions.
    fn shortened(self, spec: &ModelSpec, times: usize) -> ModelSpec {
        let mut short = spec.clone();
        let gone = self.first + times * self.period..self.first + self.times * self.period;
        short.layers.drain(gone);
        short
    }
}

/// What of a step is recorded, or `None` where it has to be traced whole; `record` traces a model.
pub(crate) fn recorded(
    spec: &ModelSpec,
    options: &StepOptions,
    record: impl Fn(&ModelSpec) -> tensor::Result<Recorded>,
) -> Option<Recorded> {
    // Random sites are counted over all ops, and names of blocks may pick those that are trained.
    let plain = spec.encoder.is_none() && spec.patches.is_none() && spec.order.is_none() && spec.stage == Stage::WHOLE;
    if !plain || options.dropout || !spec.tuning.is_uniform() {
        return None;
    }
    let repeated = Repeated::of(&spec.layers)?;
    let short = |times: usize| record(&repeated.shortened(spec, times)).ok();
    let (few, more) = (short(TRACED)?, short(TRACED + 1)?);
    let blocks = Numbered { list: spec.names.list(), first: repeated.first, period: repeated.period, times: TRACED };
    let shape = Shape::of(&few, blocks)?;
    let again = shape.write(&few, TRACED + 1)?;
    if !is_same(&again, &more.trace) || shape.params(&few, TRACED + 1) != more.params {
        return None;
    }
    let trace = shape.write(&few, repeated.times)?;
    // What is a sum over blocks grows by as much with each repetition.
    let sum = |few: u64, more: u64| {
        let each = more.checked_sub(few)?;
        each.checked_mul((repeated.times - TRACED) as u64)?.checked_add(few)
    };
    Some(Recorded {
        trace,
        params: shape.params(&few, repeated.times),
        buffer_bytes: sum(few.buffer_bytes, more.buffer_bytes)?,
        update_bytes: sum(few.update_bytes, more.update_bytes)?,
    })
}

/// Whether two recordings are the same but for the values of random parameters, which depend on how many there are.
fn is_same(a: &Trace, b: &Trace) -> bool {
    let op = |a: &OpEvent, b: &OpEvent| {
        let random = |op: &Op| match op {
            Op::Create(Create { shape, dtype, fill: Fill::Random { .. } }) => Some((shape.clone(), *dtype)),
            _ => None,
        };
        let same = a.op == b.op || random(&a.op).is_some_and(|one| Some(one) == random(&b.op));
        same && (a.module, a.phase, &a.inputs, &a.outputs) == (b.module, b.phase, &b.inputs, &b.outputs)
            && (a.cost, a.copy, a.reused) == (b.cost, b.copy, b.reused)
    };
    a.memory == b.memory
        && a.storages == b.storages
        && a.modules == b.modules
        && a.marks == b.marks
        && a.ops.len() == b.ops.len()
        && a.ops.iter().zip(&b.ops).all(|(a, b)| op(a, b))
}

/// Which repetition a name stands in.
#[derive(Clone, Copy)]
struct Numbered {
    list: &'static str,
    first: usize,
    period: usize,
    times: usize,
}

impl Numbered {
    /// Where the number of a block stands in a path, and the number.
    fn number(self, path: &str) -> Option<(Range<usize>, usize)> {
        let mut at = 0;
        let mut parts = path.split('.').map(|part| {
            let here = at;
            at += part.len() + 1;
            (here, part)
        });
        parts.find(|(_, part)| *part == self.list)?;
        let (start, digits) = parts.next()?;
        Some((start..start + digits.len(), digits.parse().ok()?))
    }

    fn repetition(self, path: &str) -> Option<usize> {
        let (_, number) = self.number(path)?;
        let within = number.checked_sub(self.first)? / self.period;
        (within < self.times).then_some(within)
    }

    /// The path of the same module where there are more repetitions: in repetition `to`, or behind all of them.
    fn renamed(self, path: &str, from: Option<usize>, to: usize, times: usize) -> String {
        let Some((digits, number)) = self.number(path) else { return path.to_owned() };
        let number = match from {
            Some(from) => number + self.period * to - self.period * from,
            None if number < self.first => number,
            None => number + self.period * times - self.period * self.times,
        };
        format!("{}{number}{}", &path[..digits.start], &path[digits.end..])
    }
}

/// Something of a list: of no repetition, or of one, and there the `place`-th of its run.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Once(usize),
    Each { sweep: usize, repetition: usize, place: usize },
}

/// A run of a recording in which nothing tells repetitions apart, or a sweep over all of them.
enum Part<T> {
    Once(T),
    /// By repetition; whether the last one comes first.
    Each {
        runs: Vec<T>,
        backwards: bool,
    },
}

/// Puts runs, each with its repetition, together to sweeps. What goes over some repetitions only is there once.
fn sweeps<T>(runs: Vec<(Option<usize>, T)>, times: usize) -> Vec<Part<T>> {
    let labels: Vec<Option<usize>> = runs.iter().map(|(label, _)| *label).collect();
    let is_sweep = |at: usize, backwards: bool| {
        let expected = in_order(times, backwards).map(Some);
        labels.get(at..at + times).is_some_and(|labels| labels.iter().copied().eq(expected))
    };
    let mut parts = Vec::new();
    let mut at = 0;
    let mut runs = runs.into_iter().map(|(_, run)| run);
    while let Some(run) = runs.next() {
        let backwards = is_sweep(at, true);
        if backwards || is_sweep(at, false) {
            let mut all: Vec<T> = std::iter::once(run).chain(runs.by_ref().take(times - 1)).collect();
            if backwards {
                all.reverse();
            }
            parts.push(Part::Each { runs: all, backwards });
            at += times;
        } else {
            parts.push(Part::Once(run));
            at += 1;
        }
    }
    parts
}

/// Neighbours of the same repetition as one run.
fn runs(labels: impl Iterator<Item = Option<usize>>) -> Vec<(Option<usize>, Range<usize>)> {
    let mut all: Vec<(Option<usize>, Range<usize>)> = Vec::new();
    for (i, label) in labels.enumerate() {
        match all.last_mut() {
            Some((last, range)) if *last == label => range.end = i + 1,
            _ => all.push((label, i..i + 1)),
        }
    }
    all
}

/// A run of ops with the memory events around them.
#[derive(Clone, Debug)]
struct Run {
    ops: Range<usize>,
    memory: Range<usize>,
}

/// How a recording is made of repetitions.
struct Shape {
    blocks: Numbered,
    /// Of each mark, what follows it.
    stretches: Vec<Vec<Part<Run>>>,
    storages: Vec<Owner>,
    modules: Vec<Part<Range<usize>>>,
    module_owners: Vec<Owner>,
    params: Vec<Part<Range<usize>>>,
}

impl Shape {
    fn of(recorded: &Recorded, blocks: Numbered) -> Option<Self> {
        let trace = &recorded.trace;
        let labels: Vec<Option<usize>> = trace.modules.iter().map(|path| blocks.repetition(path)).collect();
        let (ops, storages) = labelled(trace, &labels);
        let modules = sweeps(runs(labels.iter().copied()), blocks.times);
        let params = recorded.params.iter().map(|param| blocks.repetition(&param.name));
        let mut shape = Self {
            blocks,
            stretches: Vec::with_capacity(trace.marks.len()),
            storages: Vec::with_capacity(trace.storages.len()),
            module_owners: owners(&modules, trace.modules.len()),
            modules,
            params: sweeps(runs(params), blocks.times),
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
    fn note_storages(&mut self, trace: &Trace, parts: &[Part<Run>], mut before: usize) -> Option<usize> {
        for part in parts {
            let in_order: Vec<(Option<usize>, &Run)> = match part {
                Part::Once(run) => vec![(None, run)],
                Part::Each { runs, backwards } => {
                    in_order(runs.len(), *backwards).map(|i| (Some(i), &runs[i])).collect()
                }
            };
            for (repetition, run) in in_order {
                let made = trace.memory[run.memory.clone()].iter();
                for (place, event) in made.filter(|e| matches!(e.change, MemoryChange::Alloc(_))).enumerate() {
                    // Storages are numbered as they are allocated, where nothing was left out of the recording.
                    if event.storage.0 as usize != self.storages.len() {
                        return None;
                    }
                    self.storages.push(match repetition {
                        Some(repetition) => Owner::Each { sweep: before, repetition, place },
                        None => Owner::Once(self.storages.len()),
                    });
                }
            }
            before += usize::from(matches!(part, Part::Each { .. }));
        }
        Some(before)
    }

    /// The recording with `times` repetitions.
    fn write(&self, recorded: &Recorded, times: usize) -> Option<Trace> {
        let (modules, module_bases) = self.write_modules(&recorded.trace.modules, times);
        let factor = times.div_ceil(self.blocks.times);
        let trace = &recorded.trace;
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
            for part in parts {
                match part {
                    Part::Once(run) => writer.run(run, Place { from: None, to: 0 })?,
                    Part::Each { runs, backwards } => {
                        writer.bases.push(vec![None; times]);
                        for to in in_order(times, *backwards) {
                            let from = stands_for(to, runs.len(), times);
                            let base = writer.out.storages.len();
                            if let Some(bases) = writer.bases.last_mut() {
                                bases[to] = Some(base);
                            }
                            writer.run(&runs[from], Place { from: Some(from), to })?;
                        }
                    }
                }
            }
        }
        Some(writer.out)
    }

    /// Module paths with `times` repetitions, and where those of each begin.
    fn write_modules(&self, paths: &[String], times: usize) -> (Vec<String>, Bases) {
        let mut out = Vec::new();
        let mut bases = Bases { once: vec![0; paths.len()], each: Vec::new() };
        for part in &self.modules {
            match part {
                Part::Once(range) => {
                    for i in range.clone() {
                        bases.once[i] = out.len();
                        out.push(self.blocks.renamed(&paths[i], None, 0, times));
                    }
                }
                Part::Each { runs, backwards } => {
                    let mut starts = vec![0; times];
                    for to in in_order(times, *backwards) {
                        let from = stands_for(to, runs.len(), times);
                        starts[to] = out.len();
                        let names = paths[runs[from].clone()].iter();
                        out.extend(names.map(|path| self.blocks.renamed(path, Some(from), to, times)));
                    }
                    bases.each.push(starts);
                }
            }
        }
        (out, bases)
    }

    /// Parameters with `times` repetitions.
    fn params(&self, recorded: &Recorded, times: usize) -> Vec<ParamInfo> {
        let renamed = |param: &ParamInfo, from: Option<usize>, to: usize| ParamInfo {
            name: self.blocks.renamed(&param.name, from, to, times),
            tied: param.tied.iter().map(|name| self.blocks.renamed(name, from, to, times)).collect(),
            ..param.clone()
        };
        let mut out = Vec::new();
        for part in &self.params {
            match part {
                Part::Once(range) => {
                    out.extend(recorded.params[range.clone()].iter().map(|param| renamed(param, None, 0)));
                }
                Part::Each { runs, backwards } => {
                    for to in in_order(times, *backwards) {
                        let from = stands_for(to, runs.len(), times);
                        let of_block = recorded.params[runs[from].clone()].iter();
                        out.extend(of_block.map(|param| renamed(param, Some(from), to)));
                    }
                }
            }
        }
        out
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

fn in_order(times: usize, backwards: bool) -> impl Iterator<Item = usize> {
    (0..times).map(move |i| if backwards { times - 1 - i } else { i })
}

/// Which of the traced repetitions one of `times` is like: the first, the last, or any between.
fn stands_for(to: usize, traced: usize, times: usize) -> usize {
    if to == 0 {
        0
    } else if to + 1 == times {
        traced - 1
    } else {
        1
    }
}

fn owners(parts: &[Part<Range<usize>>], len: usize) -> Vec<Owner> {
    let mut owners: Vec<Owner> = (0..len).map(Owner::Once).collect();
    let each = parts.iter().filter_map(|part| if let Part::Each { runs, .. } = part { Some(runs) } else { None });
    for (sweep, runs) in each.enumerate() {
        for (repetition, run) in runs.iter().enumerate() {
            for (place, i) in run.clone().enumerate() {
                owners[i] = Owner::Each { sweep, repetition, place };
            }
        }
    }
    owners
}

/// Where modules stand in the list of the long model.
struct Bases {
    once: Vec<usize>,
    /// Of each sweep and repetition, the first.
    each: Vec<Vec<usize>>,
}

/// What is written: repetition `to` after the model of `from`, or something that is there once.
#[derive(Clone, Copy)]
struct Place {
    from: Option<usize>,
    to: usize,
}

struct Writer<'a> {
    shape: &'a Shape,
    from: &'a Trace,
    times: usize,
    module_bases: Bases,
    /// New numbers of storages that are there once.
    once: Vec<Option<u32>>,
    /// Of each sweep and repetition, the first storage that is allocated in it.
    bases: Vec<Vec<Option<usize>>>,
    live: u64,
    out: Trace,
}

impl Writer<'_> {
    /// Which repetition is meant where repetition `named` of the recording is named at `place`.
    fn repetition(&self, place: Place, named: usize) -> Option<usize> {
        let last = TRACED - 1;
        match place.from {
            Some(from) if from == last && named == 0 => Some(0),
            Some(from) if from == last => Some(self.times - TRACED + named),
            Some(0) if named == last => Some(self.times - 1),
            Some(from) => (place.to + named).checked_sub(from).filter(|to| *to < self.times),
            None if named == 0 => Some(0),
            None => (named == last).then_some(self.times - 1),
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
    fn run(&mut self, run: &Run, place: Place) -> Option<()> {
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
                self.live = self.live.checked_add(info.bytes).filter(|live| *live <= tensor::meter::MOST_LIVE)?;
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
