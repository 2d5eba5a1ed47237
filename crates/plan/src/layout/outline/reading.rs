//! Traces of a few blocks and micro-batches to an outline.

use nn::ParamKind;
use nn::blocks::Blocks;
use nn::step::{StepOptions, StepTrace};
use std::collections::HashMap;
use tensor::meter::{MemoryChange, OpEvent};
use tensor::{Role, Trace};

use super::{Course, Divided, Grown, Level, Line, Moment, Outline, Prices, Tally, Total};
use crate::cluster::traced::placed;
use crate::layout::cut::Short;
use crate::layout::load::Part;
use crate::sharding::{Gathered, Sharding};
use crate::timeline::expert_modules;

/// Whether two traces do the same ops and make, change and free the same storages.
fn same_program(one: &StepTrace, two: &StepTrace) -> bool {
    let (a, b) = (&one.trace, &two.trace);
    let same = |(a, b): (&OpEvent, &OpEvent)| (a.module, a.phase) == (b.module, b.phase) && a.op.name() == b.op.name();
    a.memory == b.memory && a.marks == b.marks && a.ops.len() == b.ops.len() && a.ops.iter().zip(&b.ops).all(same)
}

/// Reads the outline of a stage out of its trace, or out of that and one of twice the sequences; `None` where these two do
/// not do the same, or something in them is on no straight line.
///
/// # Errors
/// In words, where what a pass does is not what the others do.
pub fn read(
    (one, two): (&StepTrace, Option<&StepTrace>),
    options: &StepOptions,
    blocks: Blocks,
    (short, before): (&Short, usize),
    prices: &mut Prices,
) -> Result<Option<Outline>, String> {
    if two.is_some_and(|two| !same_program(one, two)) {
        return Ok(None);
    }
    let mut reading = Reading::new((one, two), options, blocks, (short, before));
    if !reading.tally(prices) {
        return Ok(None);
    }
    reading.count();
    reading.replay()?;
    Ok(Some(reading.outline))
}

struct Reading<'a> {
    one: &'a StepTrace,
    two: Option<&'a StepTrace>,
    short: &'a Short,
    /// Of each module, the position of its block in the stage.
    block: Vec<Option<usize>>,
    blocks: Blocks,
    before: usize,
    experts: Vec<bool>,
    /// Whether an update works on whole matrices, whoever holds their states.
    whole_updates: bool,
    /// What is whole where gradients are divided, and where parameters are.
    whole: [Gathered; 2],
    outline: Outline,
    known: HashMap<Divided, usize>,
}

impl<'a> Reading<'a> {
    fn new(
        (one, two): (&'a StepTrace, Option<&'a StepTrace>),
        options: &StepOptions,
        blocks: Blocks,
        (short, before): (&'a Short, usize),
    ) -> Self {
        let trace = &one.trace;
        let number = |path: &String| blocks.number(path).and_then(|number| number.checked_sub(before));
        Self {
            one,
            two,
            short,
            block: trace.modules.iter().map(number).collect(),
            blocks,
            before,
            experts: expert_modules(trace, &one.params),
            whole_updates: options.optimizer.kind.needs_whole_matrices(),
            // Layouts of a search gather as is usual.
            whole: [2, 3].map(|zero| Gathered::new(trace, &one.params, options, blocks, Sharding::new(zero, 2))),
            outline: Outline { traced: options.batch, ..Outline::default() },
            known: HashMap::new(),
        }
    }

    fn trace(&self) -> &'a Trace {
        &self.one.trace
    }

    /// The run between whose ends a block lies.
    fn run_of(&self, block: Option<usize>) -> Option<usize> {
        let block = block?;
        self.short.between.iter().position(|range| range.contains(&block))
    }

    /// Where the passes and the update begin, by mark; and the end of what is looked at.
    fn stretches(&self) -> (Vec<usize>, usize, usize) {
        let marks = &self.trace().marks;
        let pass = |name: &str| name.starts_with("fwd") || name.starts_with("bwd");
        let passes: Vec<usize> = (0..marks.len()).filter(|&i| pass(&marks[i].name)).collect();
        let update = passes.last().map_or(0, |last| last + 1);
        let zero = marks.iter().rposition(|mark| mark.name.starts_with("zero")).unwrap_or(marks.len());
        (passes, update, zero)
    }

    /// The pass of each of the marks.
    fn pass_of_mark(&self) -> Vec<usize> {
        let (passes, update, _) = self.stretches();
        let of = |mark: usize| passes.iter().position(|pass| *pass == mark);
        (0..self.trace().marks.len()).map(|mark| of(mark).unwrap_or(if mark >= update { 4 } else { 5 })).collect()
    }

    /// Counts the ops; whether a line gives each of them.
    fn tally(&mut self, prices: &mut Prices) -> bool {
        let trace = self.trace();
        let pass_of = self.pass_of_mark();
        let runs = self.short.between.len();
        let mut counts: HashMap<(usize, usize, Option<usize>, u32), u32> = HashMap::new();
        let mut order: Vec<(usize, usize, Option<usize>, u32)> = Vec::new();
        for (i, mark) in trace.marks.iter().enumerate() {
            let end = trace.marks.get(i + 1).map_or(trace.ops.len(), |next| next.op as usize);
            let parts = [
                (Part::Optimizer, (4, 0)),
                (Part::Forward, (pass_of[i], 0)),
                (Part::Backward, (pass_of[i], 1)),
                (Part::Weights, (pass_of[i], 2)),
            ];
            for (kind, (pass, part)) in parts.into_iter().filter(|(_, (pass, _))| *pass <= 4) {
                let at: Vec<usize> =
                    (mark.op as usize..end).filter(|at| Part::of(&trace.ops[*at]) == Some(kind)).collect();
                let ones = placed(at.iter().map(|at| &trace.ops[*at]));
                let twos = self.two.map_or_else(|| ones.clone(), |two| placed(at.iter().map(|at| &two.trace.ops[*at])));
                if ones.len() != twos.len() {
                    return false;
                }
                for ((place, one), (_, two)) in ones.into_iter().zip(twos) {
                    let run = self.run_of(self.block_of(&trace.ops[at[place]]));
                    let grown = Grown { traced: self.outline.traced, one, two };
                    if self.two.is_some() && grown.with(2 * grown.traced).is_none() {
                        return false;
                    }
                    let item = prices.position(grown);
                    for run in [None].into_iter().chain(run.map(Some)) {
                        let key = (pass, part, run, item);
                        let count = counts.entry(key).or_insert_with(|| {
                            order.push(key);
                            0
                        });
                        *count += 1;
                    }
                }
            }
        }
        let empty = Tally { all: Vec::new(), each: vec![Vec::new(); runs] };
        let mut work: [[Tally; 3]; 5] = std::array::from_fn(|_| std::array::from_fn(|_| empty.clone()));
        for key in order {
            let (pass, part, run, item) = key;
            let tally = &mut work[pass][part];
            let list = match run {
                None => &mut tally.all,
                Some(run) => &mut tally.each[run],
            };
            list.push((item, counts[&key]));
        }
        let [a, b, c, d, [update, ..]] = work;
        (self.outline.work, self.outline.update) = ([a, b, c, d], update);
        true
    }

    /// The block that an op is of: that of its module, or of the first of its operands that has one.
    fn block_of(&self, event: &OpEvent) -> Option<usize> {
        self.block[event.module.0 as usize].or_else(|| {
            let storage = event.inputs.first()?.storage;
            self.block[self.trace().storages[storage.0 as usize].module.0 as usize]
        })
    }

    /// Parameters and blocks.
    fn count(&mut self) {
        let runs = self.short.between.len();
        let mut trained = Total { all: [0; 2], each: vec![[0; 2]; runs] };
        let mut parameters = Total { all: 0, each: vec![0; runs] };
        for param in &self.one.params {
            let block = self.blocks.number(&param.name).and_then(|number| number.checked_sub(self.before));
            let kind = usize::from(matches!(param.kind, ParamKind::Expert { .. }));
            let run = self.run_of(block);
            parameters.all += param.elements;
            trained.all[kind] += if param.trainable { param.elements } else { 0 };
            if let Some(run) = run {
                parameters.each[run] += param.elements;
                trained.each[run][kind] += if param.trainable { param.elements } else { 0 };
            }
        }
        let blocks = self.short.between.iter().map(|range| range.len() as u64).collect();
        let out = &mut self.outline;
        (out.trained, out.parameters) = (trained, parameters);
        out.blocks = Total { all: self.short.blocks() as u64, each: blocks };
        out.root = self.whole[1].root() as i64;
    }

    /// Bytes of a storage.
    fn bytes(&self, storage: usize) -> Line {
        let one = self.trace().storages[storage].bytes as i64;
        let two = self.two.map_or(one, |two| two.trace.storages[storage].bytes as i64);
        Line { at: one, more: (two - one) / self.outline.traced as i64 }
    }

    /// What a storage adds to the level, in that role.
    fn add(&mut self, level: &mut Level, storage: usize, role: Role, times: i64) {
        let info = self.trace().storages[storage];
        let bytes = self.bytes(storage);
        if role == Role::WeightCast {
            level.casts.add(bytes, times);
        } else if role == Role::Input {
            level.inputs.add(bytes, times);
        } else if let Some(from) = Sharding::divided_from(role, info.phase)
            && !(self.whole_updates && role == Role::Temporary)
        {
            let experts = self.experts.get(info.module.0 as usize).copied().unwrap_or(false);
            let divided = Divided { from, experts, bytes };
            let list = &mut self.outline.divided;
            let at = *self.known.entry(divided).or_insert_with(|| {
                list.push(divided);
                list.len() - 1
            });
            if level.divided.len() <= at {
                level.divided.resize(at + 1, 0);
            }
            level.divided[at] += times as i32;
        } else {
            level.whole.add(bytes, times);
        }
    }

    /// Follows the bytes.
    fn replay(&mut self) -> Result<(), String> {
        let trace = self.trace();
        let (passes, update, zero) = self.stretches();
        let event_of = |mark: usize| trace.marks.get(mark).map_or(trace.memory.len(), |mark| mark.memory as usize);
        let op_of = |mark: usize| trace.marks.get(mark).map_or(trace.ops.len(), |mark| mark.op as usize);
        let mut roles: Vec<Option<Role>> = vec![None; trace.storages.len()];
        let mut made = vec![0u8; trace.storages.len()];
        for event in &trace.memory {
            if matches!(event.change, MemoryChange::Alloc(_)) {
                let made = &mut made[event.storage.0 as usize];
                *made = made.saturating_add(1);
            }
        }
        let mut level = Level::default();
        let begin = event_of(passes.first().copied().unwrap_or(0));
        for at in 0..begin {
            self.change(&mut level, &mut roles, at);
        }
        let runs = self.short.between.len();
        let mut fixed = Total { all: level.clone(), each: vec![Level::default(); runs] };
        for (storage, role) in roles.iter().enumerate() {
            let run = self.run_of(self.block[trace.storages[storage].module.0 as usize]);
            if let (Some(role), Some(run)) = (*role, run) {
                self.add(&mut fixed.each[run], storage, role, 1);
            }
        }
        self.outline.fixed = fixed;
        self.outline.copies.each = vec![Line::default(); runs];
        let mut spans: Vec<(usize, usize, usize)> = Vec::new();
        for (i, mark) in passes.iter().enumerate() {
            spans.push((i, *mark, mark + 1));
        }
        spans.push((4, update, zero));
        for (course, from, to) in spans {
            let forward = trace.marks.get(from).is_none_or(|mark| !mark.name.starts_with("bwd"));
            let mut walk = Walk { forward, at: None, level: level.clone(), borders: vec![(None, None); runs] };
            let mut read = Course { moments: vec![walk.moment(&level, 0, [0; 2], None)], ..Course::default() };
            let ops = op_of(from)..op_of(to);
            for at in event_of(from)..event_of(to) {
                let event = trace.memory[at];
                let op = event.op as usize;
                if ops.contains(&op)
                    && let Some(block) = self.block[trace.ops[op].module.0 as usize]
                {
                    walk.enter(block, &level, &self.short.between);
                }
                if course == 0 && event.change == MemoryChange::Free && made[event.storage.0 as usize] > 1 {
                    let storage = event.storage.0 as usize;
                    let bytes = self.bytes(storage);
                    let run = self.run_of(self.block[trace.storages[storage].module.0 as usize]);
                    self.outline.copies.all.add(bytes, 1);
                    if let Some(run) = run {
                        self.outline.copies.each[run].add(bytes, 1);
                    }
                }
                if self.change(&mut level, &mut roles, at) {
                    let gathered = self.whole[1].weights(op) as i64;
                    let unreduced = self.whole.each_ref().map(|whole| whole.gradients(op) as i64);
                    let inside = self.run_of(walk.at);
                    keep(&mut read.moments, walk.moment(&level, gathered, unreduced, None));
                    if let Some(run) = inside {
                        keep(&mut read.moments, walk.moment(&level, gathered, unreduced, Some(run)));
                    }
                }
            }
            let each = walk.borders.iter().map(|(start, end)| match (start, end) {
                (Some(start), end) => end.as_ref().unwrap_or(&level).minus(start),
                (None, _) => Level::default(),
            });
            read.each = each.collect();
            read.end = level.minus(&walk.level);
            self.outline.courses[course] = read;
        }
        let [first, first_back, later, back, _] = &self.outline.courses;
        let mut back_and_forth = later.end.clone();
        back_and_forth.add(&back.end, 1);
        // With one micro-batch there are no others.
        let alone = passes.len() < 4;
        let nothing = back_and_forth.minus(&Level::default()) == Level::default();
        let grows = first.end.minus(&later.end).is_positive() && first_back.end.minus(&back.end).is_positive();
        if alone || (nothing && grows && later.end.is_positive()) {
            Ok(())
        } else {
            Err("a backward pass does not give back what its forward pass kept".to_owned())
        }
    }

    /// Applies a change of a storage; whether it was an allocation.
    fn change(&mut self, level: &mut Level, roles: &mut [Option<Role>], at: usize) -> bool {
        let event = self.trace().memory[at];
        let storage = event.storage.0 as usize;
        let new = match event.change {
            MemoryChange::Alloc(role) | MemoryChange::Role(role) => Some(role),
            MemoryChange::Free => None,
        };
        if let Some(role) = roles[storage].take() {
            self.add(level, storage, role, -1);
        }
        if let Some(role) = new {
            self.add(level, storage, role, 1);
            roles[storage] = Some(role);
        }
        matches!(event.change, MemoryChange::Alloc(_))
    }
}

/// A way through the blocks of a stage.
struct Walk {
    forward: bool,
    /// The block it is in, once there is one.
    at: Option<usize>,
    /// Live when it began.
    level: Level,
    /// Live when it came between the ends of each run, and when it left.
    borders: Vec<(Option<Level>, Option<Level>)>,
}

impl Walk {
    fn enter(&mut self, block: usize, level: &Level, between: &[std::ops::Range<usize>]) {
        if self.at.is_some_and(|at| if self.forward { block <= at } else { block >= at }) {
            return;
        }
        self.at = Some(block);
        for (range, (start, end)) in between.iter().zip(&mut self.borders) {
            let (inside, left) = if self.forward {
                (block >= range.start, block >= range.end)
            } else {
                (block < range.end, block < range.start)
            };
            if inside && start.is_none() {
                *start = Some(level.clone());
            }
            if left && end.is_none() {
                *end = Some(level.clone());
            }
        }
    }

    /// The moment at a level; `last`: in the last of the units that a run stands for.
    fn moment(&self, level: &Level, gathered: i64, unreduced: [i64; 2], last: Option<usize>) -> Moment {
        let left = |run: usize| self.borders[run].1.is_some() || last == Some(run);
        let behind = (0..self.borders.len()).filter(|run| left(*run)).fold(0, |bits, run| bits | 1 << run);
        Moment { level: level.minus(&self.level), gathered, unreduced, behind }
    }
}

/// Adds a moment to those that matter.
fn keep(moments: &mut Vec<Moment>, new: Moment) {
    let alike = |a: &Moment, b: &Moment| {
        (a.behind, a.gathered, a.unreduced) == (b.behind, b.gathered, b.unreduced)
            && (&a.level.divided, a.level.casts, a.level.inputs) == (&b.level.divided, b.level.casts, b.level.inputs)
    };
    let covers = |a: &Moment, b: &Moment| alike(a, b) && a.level.whole.covers(b.level.whole);
    if moments.iter().any(|known| covers(known, &new)) {
        return;
    }
    moments.retain(|known| !covers(&new, known));
    moments.push(new);
}
