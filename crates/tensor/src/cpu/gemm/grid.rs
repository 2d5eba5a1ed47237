//! Blocks of results, and the threads that make them.

#![allow(unsafe_code)]

use super::block::{self, Job};
use super::kernel::Kernel;
use crate::cpu::work as counts;
use rayon::prelude::*;

/// Rows and columns of a block: its part of the result, and what is packed for it, stay in the caches that are shared.
const BLOCK: (usize, usize) = (1036, 1024);

/// Work below which waking another thread costs more than it gives.
const WORTH_A_THREAD: usize = 1 << 19;

/// Work of a block below which packing its factors apart costs more than finer blocks give.
const WORTH_A_BLOCK: usize = 1 << 23;

/// Multiply-adds, and reading the factors: a number that is read costs as much as eight of them.
fn work(job: &Job) -> usize {
    job.m * job.n * job.k + 8 * (job.m * job.k + job.k * job.n)
}

/// Makes the products with at most that many threads.
pub(super) fn run(kernel_of: impl Fn(&Job) -> &'static Kernel + Sync, jobs: &[Job], threads: usize) {
    for job in jobs {
        counts::count(job.m, job.n, job.k);
    }
    counts::publish();
    let work: usize = jobs.iter().map(work).sum();
    // Two for each thread, so that one that is late keeps the others waiting for less.
    let wanted = (work / WORTH_A_BLOCK).clamp(threads, 2 * threads);
    let shares = if threads > 1 { wanted.min(work / WORTH_A_THREAD) } else { 1 };
    let blocks = |job: &Job| Blocks::of(kernel_of(job), job, shares.div_ceil(jobs.len().max(1)));
    if shares > 1 {
        jobs.par_iter().for_each(|job| {
            let blocks = blocks(job);
            (0..blocks.count()).into_par_iter().with_max_len(1).for_each(|i| blocks.run(job, i));
        });
    } else {
        for job in jobs {
            let blocks = blocks(job);
            for i in 0..blocks.count() {
                blocks.run(job, i);
            }
        }
    }
}

/// The blocks that a result is cut into: a grid of blocks of one size, but for the last of each direction.
struct Blocks {
    kernel: &'static Kernel,
    rows: usize,
    cols: usize,
    per_row: usize,
    per_col: usize,
}

impl Blocks {
    /// At least `shares` blocks, unless they would be too small.
    fn of(kernel: &'static Kernel, job: &Job, shares: usize) -> Self {
        let (mut down, mut across) = (job.m.div_ceil(BLOCK.0).max(1), job.n.div_ceil(BLOCK.1).max(1));
        while down * across < shares {
            let (rows, cols) = (job.m / down, job.n / across);
            if rows >= cols && rows > kernel.mr {
                down += 1;
            } else if cols > kernel.nr {
                across += 1;
            } else {
                break;
            }
        }
        let rows = job.m.div_ceil(down).max(1).next_multiple_of(kernel.mr);
        let cols = job.n.div_ceil(across).max(1).next_multiple_of(kernel.nr);
        Self { kernel, rows, cols, per_row: job.n.div_ceil(cols), per_col: job.m.div_ceil(rows) }
    }

    fn count(&self) -> usize {
        self.per_row * self.per_col
    }

    fn run(&self, job: &Job, i: usize) {
        let (row, col) = (i / self.per_row * self.rows, i % self.per_row * self.cols);
        // SAFETY: the kernel is one for this processor, and a job is made of checked views; blocks of a grid do not
        // overlap, nor do the results of jobs, which are borrowed for writing.
        unsafe { block::run(self.kernel, job, row..job.m.min(row + self.rows), col..job.n.min(col + self.cols)) };
    }
}
