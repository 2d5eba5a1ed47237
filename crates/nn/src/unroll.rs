//! The recording of a deep model out of those of shallow ones.
//!
//! A language model is the same block, or the same few blocks, many times over. What a step records of one more of them is what
//! it recorded of the last: the same ops on storages that lie one block further. So a model of some blocks is traced with a few
//! of them, and their part of the recording is written out as often as there are blocks.
//!
//! Nothing is taken on trust. The model is traced twice, with one repetition more the second time, and the first recording, written out
//! by one repetition, has to be the second, event by event. Where it is not (a tensor over all blocks, a random site for each), the
//! model is traced whole. What was found of a step holds for others that differ in the sizes of their batch alone, as long as their
//! first recording is the same program ([`Checked`]).

mod numbered;
mod shape;
mod sweep;
mod writer;

use crate::blocks::Blocks;
use crate::spec::{LayerSpec, ModelSpec};
use crate::step::{ParamInfo, Recorded, StepOptions, StepTrace};
use numbered::Numbered;
use shape::Shape;
use std::sync::Arc;
use tensor::meter::{OpEvent, StorageInfo, TensorRef};
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

/// How a step was found to be made of repetitions. With other sizes of its batch it is written out in the same way, as long as its
/// first recording is the same program: it need not be checked again.
pub struct Checked {
    spec: ModelSpec,
    options: StepOptions,
    few: Trace,
    shape: Shape,
    params: Vec<ParamInfo>,
    /// Bytes of buffers in the first recording, and beyond those in the step.
    buffers: (u64, u64),
    update_bytes: u64,
    steps: u64,
    /// The step itself, where nobody looks at it any longer: the next one takes its place.
    step: Option<StepTrace>,
}

impl Checked {
    /// With the step that it was found of, whose place the next one may take.
    pub fn with_step(mut self, step: Option<StepTrace>) -> Self {
        // What was changed behind the recording is none.
        self.step = step.filter(|_| !self.options.in_backward && !self.options.offload.is_any());
        self
    }

    /// How many steps were written out by it without another check.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// What was found of a step that differs in no more than the sizes of its batch.
    fn of_sizes(self, spec: &ModelSpec, options: &StepOptions) -> Option<Self> {
        let StepOptions { batch, seq_len, .. } = *options;
        (StepOptions { batch, seq_len, ..self.options } == *options && self.spec == *spec).then_some(self)
    }
}

/// What of a step is recorded, or `None` where it has to be traced whole; `record` traces a model. `known` is what was found of a
/// step before.
pub(crate) fn recorded(
    spec: &ModelSpec,
    options: &StepOptions,
    record: impl Fn(&ModelSpec) -> tensor::Result<Recorded>,
    known: Option<Checked>,
) -> Option<(Recorded, Checked)> {
    // The sites of dropout are counted over all blocks.
    let (repeated, blocks) = repeated(spec).filter(|_| !options.dropout)?;
    let short = |times: usize| record(&repeated.shortened(spec, times)).ok();
    let few = short(TRACED)?;
    if let Some(mut known) = known.and_then(|known| known.of_sizes(spec, options))
        && is_same_program(&known.few, &few.trace)
        // Those of blocks may have the sizes of a batch.
        && (known.buffers.0 == few.buffer_bytes || known.buffers.1 == 0)
    {
        let (in_few, more) = (few.buffer_bytes, known.buffers.1);
        let (trace, params) = match known.step.take() {
            Some(StepTrace { mut trace, params, .. }) => {
                known.shape.resize(&few.trace, repeated.times, &mut trace)?;
                (trace, params)
            }
            None => (known.shape.write(&few.trace, repeated.times)?, known.params.clone()),
        };
        let recorded = Recorded { trace, params, buffer_bytes: in_few + more, update_bytes: known.update_bytes };
        let checked = Checked { few: few.trace, buffers: (in_few, more), steps: known.steps + 1, ..known };
        return Some((recorded, checked));
    }
    let more = short(TRACED + 1)?;
    let shape = Shape::of(&few.trace, blocks)?;
    if !is_same(&shape.write(&few.trace, TRACED + 1)?, &more.trace) {
        return None;
    }
    // What is a sum over blocks grows by as much with each repetition.
    let sum = |few: u64, more: u64| {
        let each = more.checked_sub(few)?;
        each.checked_mul((repeated.times - TRACED) as u64)?.checked_add(few)
    };
    let recorded = Recorded {
        trace: shape.write(&few.trace, repeated.times)?,
        params: blocks.params([&few.params, &more.params], repeated.times)?,
        buffer_bytes: sum(few.buffer_bytes, more.buffer_bytes)?,
        update_bytes: sum(few.update_bytes, more.update_bytes)?,
    };
    let checked = Checked {
        spec: spec.clone(),
        options: *options,
        few: few.trace,
        shape,
        params: recorded.params.clone(),
        buffers: (few.buffer_bytes, recorded.buffer_bytes - few.buffer_bytes),
        update_bytes: recorded.update_bytes,
        steps: 0,
        step: None,
    };
    Some((recorded, checked))
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

/// Whether two recordings are the same but for sizes.
fn is_same_program(a: &Trace, b: &Trace) -> bool {
    let operand = |(a, b): (&TensorRef, &TensorRef)| (a.storage, a.dtype) == (b.storage, b.dtype);
    let operands = |a: &[TensorRef], b: &[TensorRef]| a.len() == b.len() && a.iter().zip(b).all(operand);
    let op = |a: &OpEvent, b: &OpEvent| {
        std::mem::discriminant(&a.op) == std::mem::discriminant(&b.op)
            && (a.module, a.phase, a.copy, a.reused) == (b.module, b.phase, b.copy, b.reused)
            && operands(&a.inputs, &b.inputs)
            && operands(&a.outputs, &b.outputs)
    };
    let storage = |a: &StorageInfo, b: &StorageInfo| (a.module, a.phase, a.born) == (b.module, b.phase, b.born);
    a.memory == b.memory
        && a.modules == b.modules
        && a.marks == b.marks
        && (a.storages.len(), a.ops.len()) == (b.storages.len(), b.ops.len())
        && a.storages.iter().zip(&b.storages).all(|(a, b)| storage(a, b))
        && a.ops.iter().zip(&b.ops).all(|(a, b)| op(a, b))
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
