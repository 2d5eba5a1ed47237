//! A block of a product on one thread: panels are packed, tiles are made of them.

#![allow(unsafe_code)]
#![allow(clippy::cast_ptr_alignment)] // bytes of matrices are those of their elements

use super::element::{Kind, Single};
use super::kernel::{Factor, Kernel, Tile};
use super::portable;
use super::workspace::{self, Workspace};
use half::{bf16, f16};
use std::ops::Range;

/// Longest run of k between two additions to the result.
const KC: usize = 384;

/// A product `C (+)= A B + bias` of matrices that lie somewhere.
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

/// The runs that k is cut into: as few as possible, of nearly the same length. They depend on k alone, since they decide
/// how sums are rounded.
fn depth_of_run(k: usize) -> usize {
    k.div_ceil(k.div_ceil(KC).max(1)).max(1).next_multiple_of(8)
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
    let (mr, nr) = (kernel.mr, kernel.nr);
    let (kc, mc) = (depth_of_run(k), kernel.mc.min(m.next_multiple_of(mr)));
    let padded = n.next_multiple_of(nr);
    let bias = job.bias.map(|bias| {
        let packed = workspace.bias.get(padded);
        // SAFETY: the bias has one element per column.
        unsafe { widen(bias.at(cols.start, 0), &mut packed[..n]) };
        packed.as_ptr()
    });
    // Sums of a half type are kept in f32 until they are whole.
    let direct = job.c_kind == Kind::F32;
    let c = job.c_at(rows.start, cols.start);
    let (sums, sums_row): (*mut f32, isize) =
        if direct { (c.cast(), job.c_row) } else { (workspace.c.get(m * n).as_mut_ptr(), n as isize) };
    if k == 0 {
        for i in 0..m {
            for j in 0..n {
                // SAFETY: within the block.
                let to = unsafe { &mut *sums.offset(i as isize * sums_row + j as isize) };
                let before = if direct && job.accumulate { *to } else { 0.0 };
                // SAFETY: the bias has n numbers.
                *to = before + bias.map_or(0.0, |bias| unsafe { *bias.add(j) });
            }
        }
    }
    let packed_b = workspace.b.get(kc * padded).as_mut_ptr();
    let packed_a = workspace.a.get(kc * mc).as_mut_ptr();
    for p in (0..k).step_by(kc) {
        let depth = kc.min(k - p);
        let last = p + depth == k;
        for j in (0..n).step_by(nr) {
            // SAFETY: lines and depth are within the factor; panel j / nr has room for nr * kc numbers.
            unsafe {
                (kernel.pack_b)(job.b.at(cols.start + j, p), nr.min(n - j), depth, packed_b.add(j * depth));
            }
        }
        for i0 in (0..m).step_by(mc) {
            let i1 = (i0 + mc).min(m);
            for i in (i0..i1).step_by(mr) {
                // SAFETY: as above.
                unsafe {
                    let panel = packed_a.add((i - i0) * depth);
                    (kernel.pack_a)(job.a.at(rows.start + i, p), mr.min(i1 - i), depth, panel);
                }
            }
            for j in (0..n).step_by(nr) {
                for i in (i0..i1).step_by(mr) {
                    // SAFETY: the panels were packed above; the tile is within the sums.
                    unsafe {
                        (kernel.tile)(&Tile {
                            a: packed_a.add((i - i0) * depth),
                            b: packed_b.add(j * depth),
                            depth,
                            c: sums.offset(i as isize * sums_row + j as isize),
                            c_row: sums_row,
                            rows: mr.min(i1 - i),
                            cols: nr.min(n - j),
                            accumulate: p > 0 || (direct && job.accumulate),
                            bias: bias.filter(|_| last).map_or(std::ptr::null(), |bias| bias.add(j)),
                        });
                    }
                }
            }
        }
    }
    if !direct {
        for i in 0..m {
            // SAFETY: row i of the block and of its sums.
            unsafe {
                let sums = std::slice::from_raw_parts(sums.add(i * n), n);
                let row = job.c_at(rows.start + i, cols.start);
                match job.c_kind {
                    Kind::F32 | Kind::F64 => unreachable!("made in place"),
                    Kind::Bf16 => round(sums, std::slice::from_raw_parts_mut(row.cast::<bf16>(), n), job.accumulate),
                    Kind::F16 => round(sums, std::slice::from_raw_parts_mut(row.cast::<f16>(), n), job.accumulate),
                }
            }
        }
    }
}

/// Elements of a vector as f32.
unsafe fn widen(from: Factor, to: &mut [f32]) {
    for (j, to) in to.iter_mut().enumerate() {
        // SAFETY: by the caller, element j is there and of this kind.
        *to = unsafe {
            let data = from.at(j, 0).data;
            match from.kind {
                Kind::F32 => *data.cast::<f32>(),
                Kind::Bf16 => (*data.cast::<bf16>()).widen(),
                Kind::F16 => (*data.cast::<f16>()).widen(),
                Kind::F64 => unreachable!("products of f64 are not packed"),
            }
        };
    }
}

fn round<T: Single>(sums: &[f32], to: &mut [T], accumulate: bool) {
    for (to, &sum) in to.iter_mut().zip(sums) {
        *to = T::round(if accumulate { to.widen() + sum } else { sum });
    }
}
