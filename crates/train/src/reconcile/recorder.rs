//! Measures the first steps of a run: each has one thing measured, so that none disturbs another.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use plan::reconcile::{Ceilings, Heap, HeapPart, Measured, Resident, ResidentPart, StepWork, TimedStep};
use tensor::cpu::work::products_flop;
use tensor::{OpWatch, Runtime};
use units::{Bytes, Flops};

use super::watch::{Books, Clock, Fullest, Moment};
use crate::probe::mappings::{Mappings, resident_in};
use crate::probe::{heap, memory};

/// What a step is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing: it makes the optimizer states, and touches all memory for the first time.
    Warm,
    /// What it does, as the engine records it.
    Work,
    /// The heap at its fullest.
    Heap,
    /// Its time, op by op.
    Time,
}

impl Stage {
    /// Steps of a run that are timed.
    const TIMED: usize = 20;

    /// What the first steps of a run are measured for.
    pub fn of_a_run() -> impl Iterator<Item = Self> {
        [Self::Warm, Self::Work, Self::Heap].into_iter().chain(std::iter::repeat_n(Self::Time, Self::TIMED))
    }
}

/// Looks at a run from before its model is built.
#[derive(Debug)]
pub struct Recorder {
    stages: VecDeque<Stage>,
    watching: Option<Watching>,
    /// What the heap had before the model was built, and what building it added; `None` where nobody counts.
    before: Option<i64>,
    model: i64,
    measured: Measured,
    timed: Vec<TimedStep>,
}

#[derive(Debug)]
enum Watching {
    Nothing,
    Work(u64),
    Heap(Rc<Fullest>, i64),
    Time(Rc<Clock>),
}

impl Recorder {
    /// Call it before the model is built: what is on the heap now is none of the model's.
    ///
    /// `stages` are those of the first steps, in order; later steps are not looked at.
    pub fn new(stages: impl IntoIterator<Item = Stage>) -> Self {
        memory::reset_peak();
        let before = heap::live().map(|bytes| Books::now(None).beside(bytes.get()));
        Self {
            stages: stages.into_iter().collect(),
            watching: None,
            before,
            model: 0,
            measured: Measured::default(),
            timed: Vec::new(),
        }
    }

    /// Call it when the model is built.
    pub fn built(&mut self, runtime: &Runtime, parameters: u64) {
        self.measured.parameters = parameters;
        self.model = beside(runtime) - self.before.unwrap_or_default();
    }

    /// Call it before a step.
    pub fn begin(&mut self, runtime: &Runtime) {
        let Some(stage) = self.stages.pop_front() else { return };
        let watching = match stage {
            Stage::Warm => Watching::Nothing,
            Stage::Work => {
                runtime.set_recording(true);
                Watching::Work(products_flop())
            }
            Stage::Heap => {
                let watch = Rc::new(Fullest::default());
                runtime.watch_ops(Some(Rc::clone(&watch) as Rc<dyn OpWatch>));
                let standing = beside(runtime);
                heap::reset_peak();
                Watching::Heap(watch, standing)
            }
            Stage::Time => {
                let ops = self.measured.work.as_ref().map_or(0, |work| work.ops.len());
                let clock = Rc::new(Clock::new(ops));
                runtime.watch_ops(Some(Rc::clone(&clock) as Rc<dyn OpWatch>));
                Watching::Time(clock)
            }
        };
        self.watching = Some(watching);
    }

    /// Call it after a step that took `time`, of which it waited for data. A step that was not `whole`, because its update
    /// was skipped, is not measured; the next one is, instead.
    pub fn end(&mut self, runtime: &Runtime, time: Duration, waiting: Duration, whole: bool) {
        let Some(watching) = self.watching.take() else { return };
        runtime.watch_ops(None);
        match watching {
            Watching::Nothing => return,
            Watching::Work(before) => {
                runtime.set_recording(false);
                self.measured.kernels = Flops((products_flop() - before).into());
                let trace = runtime.take_trace();
                self.measured.work = whole.then(|| StepWork::of(&trace));
                self.again(whole, Stage::Work);
            }
            Watching::Heap(watch, standing) => {
                self.measured.heap = self.before.filter(|_| whole).map(|before| self.heap(&watch, before, standing));
                self.again(whole, Stage::Heap);
            }
            Watching::Time(clock) => {
                let (seconds, waiting) = (time.as_secs_f64(), waiting.as_secs_f64());
                if whole {
                    self.timed.push(TimedStep { seconds, waiting, ops: clock.take(), steps: 0 });
                }
                self.again(whole, Stage::Time);
            }
        }
        self.measured.allocated = self.measured.allocated.max(Some(Bytes(runtime.peak_bytes())));
    }

    fn again(&mut self, whole: bool, stage: Stage) {
        if !whole {
            self.stages.push_front(stage);
        }
    }

    fn heap(&self, watch: &Fullest, before: i64, standing: i64) -> Heap {
        let Moment { op, counted, ended, books } = watch.get();
        let own = [
            (HeapPart::Lists, counted as i64 - ended as i64),
            (HeapPart::Model, self.model),
            (HeapPart::Earlier, standing - before - self.model),
            (HeapPart::Before, before),
        ];
        Heap {
            counted: Bytes(counted),
            op,
            tensors: Bytes(books.tensors),
            parts: books.parts().into_iter().chain(own).collect(),
        }
    }

    /// Ends it: what was measured, and what the process now holds.
    pub fn finish(mut self, runtime: &Runtime, ceilings: Option<Ceilings>) -> Measured {
        self.measured.process = process(runtime);
        self.timed.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let steps = self.timed.len() as u64;
        // A real step, not the medians of each op: its times sum to its own.
        let median = (steps > 0).then(|| self.timed.swap_remove(self.timed.len() / 2));
        self.measured.timed = median.map(|step| TimedStep { steps, ..step }).zip(ceilings);
        self.measured
    }
}

/// What of the heap is in none of the engine's books.
fn beside(runtime: &Runtime) -> i64 {
    heap::live().map_or(0, |bytes| Books::now(Some(runtime)).beside(bytes.get()))
}

/// What this process holds, if the system tells.
fn process(runtime: &Runtime) -> Option<Resident> {
    let (mappings, status) = (Mappings::of_this_process()?, memory::process()?);
    let segments = resident_in(&runtime.segments())?;
    let held = runtime.memory();
    let heap = heap::live().map_or(0, |bytes| bytes.get().saturating_sub(held.mapped));
    let parts = [
        (ResidentPart::Heap, Bytes(heap)),
        (ResidentPart::Kept, Bytes(mappings.anonymous.get().saturating_sub(segments.get() + heap))),
        (ResidentPart::Program, mappings.program),
        (ResidentPart::Libraries, mappings.libraries),
        (ResidentPart::Data, mappings.files),
        (ResidentPart::Stacks, mappings.stacks),
        (ResidentPart::System, mappings.system),
    ];
    Some(Resident {
        now: mappings.total(),
        peak: status.peak_resident,
        reserved: Bytes(held.reserved),
        parts: parts.to_vec(),
    })
}
