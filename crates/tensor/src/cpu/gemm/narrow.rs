//! Results of few rows, as in generation: packing the second factor would cost more than the product. Its rows are
//! read where they lie, a few at a time, each number once for all rows of the result.

#![allow(unsafe_code)]
#![allow(clippy::inline_always)] // what is not inlined is not compiled for the instruction set of the caller
#![allow(clippy::cast_ptr_alignment)] // bytes of matrices are those of their elements

use super::element::{Kind, Single};
use super::kernel::{Factor, Round, Run};
use super::workspace::Workspace;
use half::bf16;

/// Rows of the second factor that are read side by side.
const DEPTH: usize = 8;

/// Columns of them that stay in the L1 cache while they meet all rows of the first factor.
const COLUMNS: usize = 512;

/// Whether these products can be made here. The sums are the same as those of tiles.
pub(super) fn suits(b: &Factor) -> bool {
    b.line == 1 && matches!(b.kind, Kind::F32 | Kind::Bf16) // others the compiler does not widen in vectors
}

/// Makes a run. It must be called from code for an instruction set that has fused multiply-adds.
///
/// # Safety
/// As of [`super::block::run`], and the second factor suits.
#[inline(always)]
pub(super) unsafe fn run(workspace: &mut Workspace, run: &Run, round: Round) {
    // SAFETY: by the caller; the elements are of the kind that the factor names.
    unsafe {
        match run.b.kind {
            Kind::F32 => run_elements::<f32>(workspace, run, round),
            Kind::Bf16 => run_elements::<bf16>(workspace, run, round),
            _ => unreachable!("does not suit"),
        }
    }
}

#[inline(always)]
unsafe fn run_elements<T: Single>(workspace: &mut Workspace, run: &Run, round: Round) {
    let Run { rows, cols, depth, .. } = *run;
    let a = &mut workspace.a.get(rows * depth)[..rows * depth];
    for i in 0..rows {
        for p in 0..depth {
            // SAFETY: an element of the first factor.
            a[i * depth + p] = unsafe { run.a.at(i, p).value() };
        }
    }
    let sums = &mut workspace.b.get(rows * cols)[..rows * cols];
    sums.fill(0.0);
    for p in (0..depth).step_by(DEPTH) {
        // SAFETY: rows of the second factor, of which columns lie side by side.
        let row = |d: usize| unsafe { std::slice::from_raw_parts(run.b.at(0, p + d).data.cast::<T>(), cols) };
        if p + DEPTH <= depth {
            add(sums, &a[p..], depth, std::array::from_fn::<_, DEPTH, _>(row));
        } else {
            for d in 0..depth - p {
                add(sums, &a[p + d..], depth, [row(d)]);
            }
        }
    }
    for (i, sums) in sums.chunks_exact_mut(cols).enumerate() {
        let before = |j: usize| run.sums.wrapping_offset(i as isize * run.sums_row + j as isize);
        for (j, sum) in sums.iter_mut().enumerate() {
            // SAFETY: within the sums of the block; the bias has one number per column.
            unsafe {
                if run.accumulate {
                    *sum += *before(j);
                }
                *sum *= run.scale;
                if let Some(bias) = run.bias {
                    *sum += *bias.add(j);
                }
                if run.half.is_none() {
                    *before(j) = *sum;
                }
            }
        }
        if let Some(half) = &run.half {
            // SAFETY: a row of the result.
            unsafe { round(sums.as_ptr(), cols, half.at(i, 0)) };
        }
    }
}

/// Adds the products of `D` columns of the first factor, whose rows are `a_row` apart, and `D` rows of the second.
#[inline(always)]
fn add<T: Single, const D: usize>(sums: &mut [f32], a: &[f32], a_row: usize, b: [&[T]; D]) {
    let cols = b[0].len();
    for start in (0..cols).step_by(COLUMNS) {
        let range = start..cols.min(start + COLUMNS);
        let b = b.map(|row| &row[range.clone()]);
        for (sums, a) in sums.chunks_exact_mut(cols).zip(a.chunks(a_row)) {
            let x: [f32; D] = std::array::from_fn(|d| a[d]);
            for (j, sum) in sums[range.clone()].iter_mut().enumerate() {
                for d in 0..D {
                    *sum = x[d].mul_add(b[d][j].widen(), *sum);
                }
            }
        }
    }
}
