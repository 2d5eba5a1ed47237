//! What of a sharded model is whole around each op of a step.

use nn::ParamKind;
use nn::blocks::Blocks;
use nn::step::{ParamInfo, Precision, StepOptions};
use tensor::meter::OpEvent;
use tensor::{Phase, Trace};

use super::{Gathering, Sharding, Wrap, gradient_bytes, made_bytes, weight_bytes};

/// What is gathered or reduced at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Weights outside of the blocks.
    Root,
    /// Weights of a block.
    Weights(usize),
    /// Gradients of a block.
    Gradients(usize),
    /// Gradients of a block on their way to the devices that keep parts of them.
    Reducing(usize),
    /// Gradients outside of the blocks.
    RootGradients,
    /// The same on their way.
    RootReducing,
}

/// Weights and gradients that are whole around an op: the root (embedding, final norm, head), the block it runs in, the block that
/// is fetched ahead, and what stays from op to op.
///
/// Where parameters are divided, a pass backward leaves the gradients of a block to be reduced, out of a buffer of the dtype of
/// gradients, while the next block runs; what is outside of blocks is reduced when the pass is over. Where gradients alone are,
/// those of the block that runs are whole.
///
/// Source: pytorch/pytorch, `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`, `post_backward`.
pub struct Gathered {
    gathering: Gathering,
    /// Whether parameters are divided, and not gradients alone.
    parameters: bool,
    /// Of each op of the trace where it stands. Every replay asks for it at every allocation.
    ops: Vec<At>,
    root: Whole,
    blocks: Vec<Whole>,
}

/// An op in its pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    phase: Phase,
    /// Number of its block; `None` is the root.
    block: Option<u32>,
    /// The other block that was run before it in its pass.
    previous: Option<u32>,
    /// Whether it stands behind all blocks of its pass.
    ends: bool,
    /// The first op behind its pass.
    end: u32,
    /// The first op of those around it that stand as it does: the same units are whole around them.
    since: u32,
}

/// A unit while it is whole.
#[derive(Clone, Debug, Default)]
struct Whole {
    weights: u64,
    /// Gradients as backward makes them, but for those of tables, which it makes last.
    made: u64,
    /// Gradients in their own dtype.
    gradients: u64,
    /// That less the parts that are counted as parts.
    added: u64,
    /// The first and the last op between which gathered weights stay where they are not given up behind forward.
    kept: Vec<(u32, u32)>,
    /// Those between which gradients are added up whole where they are not reduced behind every micro-batch.
    unreduced: Vec<(u32, u32)>,
}

impl Whole {
    fn of(unit: &[&ParamInfo], precision: Precision, sharding: Sharding) -> Self {
        let gradients = gradient_bytes(unit, precision);
        // Where gradients live in buffers of their own, these are there beside whole ones.
        let buffers = precision.grad_dtype() != precision.param_dtype();
        let parts = if buffers { 0 } else { parts(unit, precision, sharding) };
        let early = unit.iter().filter(|param| param.kind != ParamKind::Embedding || !param.tied.is_empty());
        Self {
            weights: weight_bytes(unit, precision),
            made: made_bytes(early, precision),
            gradients,
            added: gradients - parts,
            ..Self::default()
        }
    }

    fn is_unreduced(&self, at: usize) -> bool {
        lies_in(&self.unreduced, at)
    }
}

/// Whether a position lies in one of the stretches, which are in order.
fn lies_in(stretches: &[(u32, u32)], at: usize) -> bool {
    let after = stretches.partition_point(|(first, _)| *first as usize <= at);
    after.checked_sub(1).is_some_and(|i| at <= stretches[i].1 as usize)
}

impl Gathered {
    /// Units of a traced model.
    pub fn new(trace: &Trace, params: &[ParamInfo], options: &StepOptions, blocks: Blocks, sharding: Sharding) -> Self {
        let gathering = sharding.gathering.of_stage(sharding.zero);
        let units = blocks.units(params);
        let whole = |unit: &[&ParamInfo]| Whole::of(unit, options.precision, sharding);
        let (root, all) = match gathering.wrap {
            Wrap::Block => {
                let count = units.blocks.last_key_value().map_or(0, |(last, _)| last + 1);
                let block = |number: usize| units.blocks.get(&number).map_or_else(Whole::default, |unit| whole(unit));
                (whole(&units.root), (0..count).map(block).collect())
            }
            Wrap::Model => (whole(&params.iter().collect::<Vec<_>>()), Vec::new()),
        };
        let parameters = sharding.zero >= 3;
        let mut gathered = Self { gathering, parameters, ops: ops(trace, blocks), root, blocks: all };
        if !gathering.reshard || !gathering.sync {
            gathered.follow(trace);
        }
        gathered
    }

    /// Finds from where to where units stay whole.
    fn follow(&mut self, trace: &Trace) {
        let count = self.blocks.len();
        let mut held = vec![Held::default(); count + 1];
        for (i, mark) in trace.marks.iter().enumerate() {
            let end = trace.marks.get(i + 1).map_or(trace.ops.len(), |next| next.op as usize);
            let (forward, backward) = (mark.name.starts_with("fwd"), mark.name.starts_with("bwd"));
            let mut there = vec![None; count + 1];
            for at in (mark.op as usize..end).filter(|_| forward || backward) {
                let unit = self.ops[at].block.map_or(count, |block| count.min(block as usize));
                let span = there[unit].get_or_insert((at as u32, at as u32));
                span.1 = at as u32;
            }
            for (held, span) in held.iter_mut().zip(there).filter_map(|(held, span)| Some((held, span?))) {
                if forward { held.forward(span) } else { held.backward(span) }
            }
            if !(forward || backward) || i + 1 == trace.marks.len() {
                for held in &mut held {
                    held.end(end as u32);
                }
            }
        }
        for (unit, held) in self.blocks.iter_mut().chain([&mut self.root]).zip(held) {
            (unit.kept, unit.unreduced) = (held.kept, held.unreduced);
        }
    }

    /// A number of the place of op `at`: where it is the same, the same units are whole.
    pub fn place(&self, at: usize) -> Option<u32> {
        self.ops.get(at).map(|op| op.since)
    }

    /// Bytes of the root.
    pub const fn root(&self) -> u64 {
        self.root.weights
    }

    /// Bytes gathered while op `at` runs.
    pub fn weights(&self, at: usize) -> u64 {
        self.weight_units(at).map(|(_, bytes)| bytes).sum()
    }

    /// The units gathered while op `at` runs, with their bytes.
    pub fn weight_units(&self, at: usize) -> impl Iterator<Item = (Unit, u64)> {
        let around = self.around(at);
        let (here, ahead) = around.unwrap_or_default();
        let near = [here, ahead].into_iter().flatten().filter(|i| *i < self.blocks.len());
        let stays = if self.gathering.reshard { 0..0 } else { 0..self.blocks.len() };
        let stays = stays.filter(move |i| Some(*i) != here && Some(*i) != ahead && lies_in(&self.blocks[*i].kept, at));
        let root = around.map(|_| (Unit::Root, self.root.weights));
        root.into_iter().chain(near.chain(stays).map(|i| (Unit::Weights(i), self.blocks[i].weights)))
    }

    /// The block that op `at` runs in and the one fetched ahead; nothing where no weights are read.
    fn around(&self, at: usize) -> Option<(Option<usize>, Option<usize>)> {
        let op = *self.ops.get(at)?;
        let here = op.block.map(|block| block as usize);
        let last = self.blocks.len().checked_sub(1);
        let ahead = match op.phase {
            Phase::Init | Phase::Optimizer | Phase::Communication => return None,
            // The last one is read again at once.
            Phase::Forward => here.map_or(if op.previous.is_some() { last } else { Some(0) }, |i| Some(i + 1)),
            // What is outside of blocks is given up before its gradients are reduced.
            Phase::Backward | Phase::Recompute if op.ends => return None,
            Phase::Backward | Phase::Recompute => here.map_or(last, |i| i.checked_sub(1)),
        };
        Some((here, ahead.filter(|_| self.gathering.prefetch)))
    }

    /// Bytes of the gradients that are whole while op `at` runs.
    pub fn gradients(&self, at: usize) -> u64 {
        self.gradient_units(at).map(|(_, bytes)| bytes).sum()
    }

    /// The units whose gradients are whole while op `at` runs, with their bytes.
    pub fn gradient_units(&self, at: usize) -> impl Iterator<Item = (Unit, u64)> {
        let backward = |op: &&At| matches!(op.phase, Phase::Backward | Phase::Recompute);
        let op = self.ops.get(at).filter(backward).copied();
        let added = if self.gathering.sync { 0..0 } else { 0..self.blocks.len() };
        let added = added.filter(move |i| self.blocks[*i].is_unreduced(at));
        let added = added.map(|i| (Unit::Gradients(i), self.blocks[i].added));
        let root_added =
            (!self.gathering.sync && self.root.is_unreduced(at)).then_some((Unit::RootGradients, self.root.added));
        let passing = op.map_or([None; 3], |op| self.passing(op, at));
        passing.into_iter().flatten().chain(root_added).chain(added)
    }

    /// Gradients that are whole around an op of a pass backward, and no longer.
    fn passing(&self, op: At, at: usize) -> [Option<(Unit, u64)>; 3] {
        let block = |i: usize| self.blocks.get(i);
        let here = op.block.map(|block| block as usize);
        let sync = self.gathering.sync;
        if !self.parameters {
            let own = |i: usize| Some((Unit::Gradients(i), block(i)?.gradients));
            return [here.filter(|_| sync).and_then(own), None, None];
        }
        // What is added up whole has its place already, until it leaves.
        let previous = op.previous.map(|block| block as usize);
        let leaves = |whole: &&Whole| sync || !whole.is_unreduced(at);
        let reducing = previous.and_then(|i| Some((Unit::Reducing(i), block(i).filter(leaves)?.gradients)));
        let root = &self.root;
        // Before the blocks they are being made, and lie with the tensors of their ops, as does what is made behind them.
        let entered = here.is_some() || previous.is_some() || self.blocks.is_empty();
        let made = (sync && entered).then_some((Unit::RootGradients, root.made));
        if op.ends {
            let leaves =
                sync || root.unreduced.iter().any(|(_, last)| (at..op.end as usize).contains(&(*last as usize)));
            // One buffer at a time is on its way.
            let own = leaves.then_some((Unit::RootReducing, root.gradients));
            return [made, own.into_iter().chain(reducing).max_by_key(|(_, bytes)| *bytes), None];
        }
        let own = here.filter(|_| sync).and_then(|i| Some((Unit::Gradients(i), block(i)?.made)));
        [made, reducing, own]
    }
}

/// Where each op stands.
fn ops(trace: &Trace, blocks: Blocks) -> Vec<At> {
    let number = |path: &String| blocks.number(path).map(|number| number as u32);
    let block: Vec<Option<u32>> = trace.modules.iter().map(number).collect();
    let block = |event: &OpEvent| block[event.module.0 as usize];
    let mut all = Vec::with_capacity(trace.ops.len());
    let mut first = 0;
    let ends = trace.marks.iter().map(|mark| mark.op as usize).skip(1).chain([trace.ops.len()]);
    for end in ends {
        let pass = &trace.ops[first..end.max(first)];
        let last = pass.iter().rposition(|event| block(event).is_some());
        let (mut running, mut before, mut stood) = (None, None, None);
        all.extend(pass.iter().enumerate().map(|(i, event)| {
            let block = block(event);
            if block.is_some() && block != running {
                (running, before) = (block, running);
            }
            let previous = if block.is_some() { before } else { running };
            let at = (first + i) as u32;
            let ends = last.is_some_and(|last| i > last);
            let here = At { phase: event.phase, block, previous, ends, end: end as u32, since: at };
            let since = stood.filter(|stood: &At| At { since: at, ..*stood } == here).map_or(at, |stood| stood.since);
            *stood.insert(At { since, ..here })
        }));
        first = end.max(first);
    }
    all
}

/// Parts of the gradients of a unit on one device.
fn parts(unit: &[&ParamInfo], precision: Precision, sharding: Sharding) -> u64 {
    let each = precision.grad_dtype().size_in_bytes();
    let trained = unit.iter().filter(|param| param.trainable);
    trained.map(|param| sharding.share(param.elements * each, matches!(param.kind, ParamKind::Expert { .. }))).sum()
}

/// How long a unit stays whole, as its passes are found.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Micro-batches that went forward through it and not backward, and its first op since there are any.
    open: Option<(u32, u32)>,
    /// From the first to the last op that adds to its gradients.
    adds: Option<(u32, u32)>,
    kept: Vec<(u32, u32)>,
    unreduced: Vec<(u32, u32)>,
}

impl Held {
    fn forward(&mut self, (first, _): (u32, u32)) {
        self.open = Some(self.open.map_or((1, first), |(count, since)| (count + 1, since)));
    }

    fn backward(&mut self, (first, last): (u32, u32)) {
        self.adds = Some((self.adds.map_or(first, |(since, _)| since), last));
        if let Some((count, since)) = self.open.take() {
            if count > 1 {
                self.open = Some((count - 1, since));
            } else {
                self.kept.push((since, last));
            }
        }
    }

    /// The passes of a step are over.
    fn end(&mut self, at: u32) {
        self.unreduced.extend(self.adds.take());
        self.kept.extend(self.open.take().map(|(_, since)| (since, at)));
    }
}
