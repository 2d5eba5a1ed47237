//! Who looks on while the ops of a step run.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use plan::reconcile::HeapPart;
use tensor::cpu::{gemm, scratch};
use tensor::{OpWatch, Runtime};

use crate::probe::heap;
use units::Bytes;

/// The clock: how long each op took.
#[derive(Debug)]
pub(super) struct Clock {
    begun: Cell<Instant>,
    seconds: RefCell<Vec<f64>>,
}

impl Clock {
    /// For a step of about so many ops.
    pub(super) fn new(ops: usize) -> Self {
        Self { begun: Cell::new(Instant::now()), seconds: RefCell::new(Vec::with_capacity(ops)) }
    }

    /// Seconds of each op so far, in order.
    pub(super) fn take(&self) -> Vec<f64> {
        self.seconds.take()
    }
}

impl OpWatch for Clock {
    fn begins(&self, _: &Runtime) {
        self.begun.set(Instant::now());
    }

    fn ends(&self, _: &Runtime) {
        self.seconds.borrow_mut().push(self.begun.get().elapsed().as_secs_f64());
    }
}

/// What lies on the heap at one moment, in the engine's own books.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Books {
    /// Bytes of tensors.
    pub tensors: u64,
    /// What aligning and rounding took.
    pub rounding: u64,
    /// Free blocks.
    pub cached: u64,
    /// Room that was never used.
    pub untouched: u64,
    /// Packed panels.
    pub packing: u64,
    /// Scratch of other kernels.
    pub scratch: u64,
    /// Tape and handles.
    pub bookkeeping: u64,
}

impl Books {
    /// Of a program; of the kernels alone without one.
    pub(super) fn now(runtime: Option<&Runtime>) -> Self {
        let kernels = Self { packing: gemm::workspace_bytes(), scratch: scratch::scratch_bytes(), ..Self::default() };
        let Some(runtime) = runtime else { return kernels };
        let held = runtime.memory();
        Self {
            tensors: runtime.live_bytes(),
            rounding: held.rounding,
            cached: held.cached(),
            untouched: held.mapped - held.reserved,
            bookkeeping: runtime.bookkeeping_bytes(),
            ..kernels
        }
    }

    /// What of the heap, all of which was counted, is in none of the books.
    pub(super) fn beside(&self, counted: u64) -> i64 {
        counted as i64 - self.tensors as i64 - self.parts().iter().map(|(_, bytes)| bytes).sum::<i64>()
    }

    /// What is in the books beside tensors.
    pub(super) fn parts(&self) -> [(HeapPart, i64); 6] {
        [
            (HeapPart::Rounding, self.rounding as i64),
            (HeapPart::Cached, self.cached as i64),
            (HeapPart::Untouched, self.untouched as i64),
            (HeapPart::Packing, self.packing as i64),
            (HeapPart::Scratch, self.scratch as i64),
            (HeapPart::Bookkeeping, self.bookkeeping as i64),
        ]
    }
}

/// The witness of the heap: keeps the fullest moment, and what the books said then.
#[derive(Debug, Default)]
pub(super) struct Fullest {
    ops: Cell<u64>,
    best: Cell<Moment>,
}

/// One moment of the heap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// Which op it was in.
    pub op: u64,
    /// Most bytes that the witness counted during it.
    pub counted: u64,
    /// Bytes that the witness counted when it ended.
    pub ended: u64,
    /// What the books said then.
    pub books: Books,
}

impl Fullest {
    /// The fullest moment so far.
    pub(super) fn get(&self) -> Moment {
        self.best.get()
    }
}

impl OpWatch for Fullest {
    fn begins(&self, _: &Runtime) {}

    fn ends(&self, runtime: &Runtime) {
        let op = self.ops.replace(self.ops.get() + 1);
        let counted = heap::peak().map_or(0, Bytes::get);
        if counted > self.best.get().counted {
            let ended = heap::live().map_or(0, Bytes::get);
            self.best.set(Moment { op, counted, ended, books: Books::now(Some(runtime)) });
        }
        // What follows counts for the next op: its inputs are all still there when it ends.
        heap::reset_peak();
    }
}
