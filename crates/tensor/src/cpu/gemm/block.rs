//! A block of a product on one thread: k is cut into runs.

#![allow(unsafe_code)]
#![allow(clippy::cast_ptr_alignment)] // bytes of matrices are those of their elements

use super::element::Kind;
use super::kernel::{Factor, Half, Kernel, Run};
use super::workspace::{self, Workspace};
use super::{narrow, portable, tiles};
use std::ops::Range;

/// A product `C (+)= scale A B + bias` of matrices that lie somewhere.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// First factor; its lines are its rows.
    pub a: Factor,
    /// Second factor; its lines are its columns.
    pub b: Factor,
    /// First element of the result; columns lie side by side.
    pub c: *mut u8,
    /// Type of the result.
    pub c_kind: Kind,
    /// From one row of the result to the next, in elements.
    pub c_row: isize,
    /// Whether the product is added to what is there.
    pub accumulate: bool,
    /// What the product is multiplied with; 1 where it is added to what is there.
    pub scale: f32,
    /// One number per column that is added last.
    pub bias: Option<Factor>,
}

// SAFETY: a job is read by the threads that run blocks of it; `super::run` sees to it that blocks do not overlap and
// that what the pointers name outlives them.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Element of the result.
    pub(super) fn c_at(&self, row: usize, col: usize) -> *mut u8 {
        let elements = row as isize * self.c_row + col as isize;
        self.c.wrapping_offset(elements * self.c_kind.bytes() as isize)
    }
}

/// Makes rows `rows` and columns `cols` of the result.
///
/// # Safety
/// The processor has the instructions of `kernel`; the pointers of `job` are right, and nobody else uses this block.
pub(super) unsafe fn run(kernel: &Kernel, job: &Job, rows: Range<usize>, cols: Range<usize>) {
    if job.c_kind == Kind::F64 {
        // SAFETY: by the caller.
        return unsafe { portable::run_f64(job, rows, cols) };
    }
    // SAFETY: by the caller.
    workspace::with(|workspace| unsafe { run_in(workspace, kernel, job, rows, cols) });
}

unsafe fn run_in(workspace: &mut Workspace, kernel: &Kernel, job: &Job, rows: Range<usize>, cols: Range<usize>) {
    let (m, n, k) = (rows.len(), cols.len(), job.k);
    if m == 0 || n == 0 {
        return;
    }
    let (kc, padded) = (kernel.depth_of_run(k), n.next_multiple_of(kernel.nr));
    let bias = job.bias.map(|bias| {
        let packed = workspace.bias.get(padded);
        for (j, to) in packed[..n].iter_mut().enumerate() {
            // SAFETY: the bias has one element per column.
            *to = unsafe { bias.at(cols.start + j, 0).value() };
        }
        packed.as_ptr()
    });
    let c = job.c_at(rows.start, cols.start);
    let half = (job.c_kind != Kind::F32).then_some(Half {
        data: c,
        kind: job.c_kind,
        row: job.c_row,
        accumulate: job.accumulate,
    });
    let (sums, sums_row): (*mut f32, isize) = match half {
        None => (c.cast(), job.c_row),
        Some(_) if k <= kc => (workspace.c.get(kernel.mr * kernel.nr).as_mut_ptr(), 0),
        Some(_) => (workspace.c.get(m * n).as_mut_ptr(), n as isize),
    };
    let narrow = kernel.narrow.filter(|_| m <= kernel.few && narrow::suits(&job.b));
    let mut p = 0;
    // A sum of nothing is a run too: it makes zeros, and adds the bias.
    loop {
        let depth = kc.min(k - p);
        let last = p + depth == k;
        let run = Run {
            rows: m,
            cols: n,
            depth,
            a: job.a.at(rows.start, p),
            b: job.b.at(cols.start, p),
            sums,
            sums_row,
            accumulate: p > 0 || (half.is_none() && job.accumulate),
            scale: if last { job.scale } else { 1.0 },
            bias: bias.filter(|_| last),
            half: half.filter(|_| last),
        };
        // SAFETY: by the caller, and the sums have room.
        unsafe {
            match narrow {
                Some(narrow) => narrow(workspace, &run, kernel.round),
                None => tiles::run(workspace, kernel, &run),
            }
        }
        if last {
            break;
        }
        p += depth;
    }
}
