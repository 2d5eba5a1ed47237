//! The recording of a deep model out of those of shallow ones.
//!
//! A language model is the same block, or the same few blocks, many times over. What a step records of one more of them is what
//! it recorded of the last: the same ops on storages that lie one block further. So a model of some blocks is traced with a few
//! of them, and their part of the recording is written out as often as there are blocks.
//!
//! Nothing is taken on trust. The model is traced twice, with one repetition more the second time, and the first recording, written out
//! by one repetition, has to be the second, event by event. Where it is not (a tensor over all blocks, a random site for each), the
//! model is traced whole.

mod numbered;
mod shape;
mod sweep;
mod writer;

use crate::blocks::Blocks;
use crate::spec::{LayerSpec, ModelSpec};
use crate::step::{ParamInfo, Recorded, StepOptions};
use numbered::Numbered;
use shape::Shape;
use std::sync::Arc;
use tensor::meter::OpEvent;
use tensor::ops::create::{Create, Fill};
use tensor::{Op, Trace};

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

/// The blocks of a model that repeat, and how their names are numbered, where the rest of the model does not look at its depth.
fn repeated(spec: &ModelSpec) -> Option<(Repeated, Numbered)> {
    // Names of blocks may pick those that are trained.
    let plain = spec.encoder.is_none() && spec.patches.is_none() && spec.order.is_none();
    let repeated = Repeated::of(&spec.layers).filter(|_| plain && spec.tuning.is_uniform())?;
    let Repeated { first, period, .. } = repeated;
    let first = spec.stage.before + first;
    Some((repeated, Numbered { blocks: Blocks::of(&spec.names), first, period, times: TRACED }))
}

/// What of a step is recorded, or `None` where it has to be traced whole; `record` traces a model.
pub(crate) fn recorded(
    spec: &ModelSpec,
    options: &StepOptions,
    record: impl Fn(&ModelSpec) -> tensor::Result<Recorded>,
) -> Option<Recorded> {
    // The sites of dropout are counted over all blocks.
    let (repeated, blocks) = repeated(spec).filter(|_| !options.dropout)?;
    let short = |times: usize| record(&repeated.shortened(spec, times)).ok();
    let (few, more) = (short(TRACED)?, short(TRACED + 1)?);
    let shape = Shape::of(&few.trace, blocks)?;
    if !is_same(&shape.write(&few.trace, TRACED + 1)?, &more.trace) {
        return None;
    }
    // What is a sum over blocks grows by as much with each repetition.
    let sum = |few: u64, more: u64| {
        let each = more.checked_sub(few)?;
        each.checked_mul((repeated.times - TRACED) as u64)?.checked_add(few)
    };
    Some(Recorded {
        trace: shape.write(&few.trace, repeated.times)?,
        params: blocks.params([&few.params, &more.params], repeated.times)?,
        buffer_bytes: sum(few.buffer_bytes, more.buffer_bytes)?,
        update_bytes: sum(few.update_bytes, more.update_bytes)?,
    })
}

/// The parameters of a model, or `None` where it has to be built whole; `build` builds a model.
pub(crate) fn parameters(
    spec: &ModelSpec,
    build: impl Fn(&ModelSpec) -> tensor::Result<Vec<ParamInfo>>,
) -> Option<Vec<ParamInfo>> {
    let (repeated, blocks) = repeated(spec)?;
    let short = |times: usize| build(&repeated.shortened(spec, times)).ok();
    blocks.params([&short(TRACED)?, &short(TRACED + 1)?], repeated.times)
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
