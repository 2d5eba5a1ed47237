//! The kernel for any processor, and products of f64: the tiles are made by the `matrixmultiply` crate.

#![allow(unsafe_code)]
#![allow(clippy::cast_ptr_alignment)] // bytes of matrices are those of their elements

use super::block::Job;
use super::element::{E4m3, E5m2, Kind, Single};
use super::kernel::{self, Factor, Half, Kernel, Tile};
use half::{bf16, f16};
use std::ops::Range;

/// Large tiles, since the library packs them once more.
const MR: usize = 64;
const NR: usize = 256;

pub(super) const KERNEL: Kernel = Kernel {
    mr: MR,
    nr: NR,
    mc: 4 * MR,
    group: 1,
    kc: 512,
    narrow: None,
    few: 0,
    tile,
    pack_a: pack::<MR>,
    pack_b: pack::<NR>,
    round,
};

unsafe fn tile(t: &Tile) {
    let (before, (row, mr, nr)) = (f32::from(u8::from(t.accumulate)), (t.c_row, MR as isize, NR as isize));
    // SAFETY: by the caller, panels and tile are as `Tile` says.
    unsafe {
        matrixmultiply::sgemm(t.rows, t.depth, t.cols, 1.0, t.a, 1, mr, t.b, nr, 1, before, t.c, row, 1);
        for i in 0..t.rows {
            for j in 0..t.cols {
                let sum = t.c.offset(i as isize * row + j as isize);
                if t.scale != 1.0 {
                    *sum *= t.scale;
                }
                if !t.bias.is_null() {
                    *sum += *t.bias.add(j);
                }
            }
        }
    }
}

unsafe fn pack<const W: usize>(factor: Factor, lines: usize, depth: usize, panel: *mut f32) {
    // SAFETY: by the caller; the elements are of the kind that the factor names.
    unsafe {
        match factor.kind {
            Kind::F32 => pack_elements::<f32, W>(factor, lines, depth, panel),
            Kind::Bf16 => pack_elements::<bf16, W>(factor, lines, depth, panel),
            Kind::F16 => pack_elements::<f16, W>(factor, lines, depth, panel),
            Kind::E4m3 => pack_elements::<E4m3, W>(factor, lines, depth, panel),
            Kind::E5m2 => pack_elements::<E5m2, W>(factor, lines, depth, panel),
            Kind::F64 => unreachable!("products of f64 are not packed"),
        }
    }
}

unsafe fn round(sums: *const f32, count: usize, half: Half) {
    // SAFETY: by the caller; the elements are of the kind that the result names.
    unsafe {
        match half.kind {
            Kind::Bf16 => kernel::round::<bf16>(sums, count, half),
            Kind::F16 => kernel::round::<f16>(sums, count, half),
            _ => unreachable!("not a half type"),
        }
    }
}

/// # Safety
/// The factor has that many lines of that depth, the panel room for `W * depth` numbers.
pub(super) unsafe fn pack_elements<T: Single, const W: usize>(
    factor: Factor,
    lines: usize,
    depth: usize,
    panel: *mut f32,
) {
    let data: *const T = factor.data.cast();
    for p in 0..depth {
        for i in 0..W {
            // SAFETY: by the caller.
            unsafe {
                *panel.add(p * W + i) = if i < lines {
                    (*data.offset(p as isize * factor.depth + i as isize * factor.line)).widen()
                } else {
                    0.0
                };
            }
        }
    }
}

/// Makes rows `rows` and columns `cols` of a product of f64.
///
/// # Safety
/// As of [`super::block::run`].
pub(super) unsafe fn run_f64(job: &Job, rows: Range<usize>, cols: Range<usize>) {
    let (a, b) = (job.a.at(rows.start, 0), job.b.at(cols.start, 0));
    let c: *mut f64 = job.c_at(rows.start, cols.start).cast();
    let (m, n, before) = (rows.len(), cols.len(), f64::from(u8::from(job.accumulate)));
    // SAFETY: by the caller.
    unsafe {
        let (a_data, b_data) = (a.data.cast(), b.data.cast());
        matrixmultiply::dgemm(
            m, job.k, n, 1.0, a_data, a.line, a.depth, b_data, b.depth, b.line, before, c, job.c_row, 1,
        );
        if let Some(bias) = job.bias {
            for i in 0..m {
                for j in 0..n {
                    let bias = bias.at(cols.start + j, 0).data.cast::<f64>();
                    *c.offset(i as isize * job.c_row + j as isize) += *bias;
                }
            }
        }
    }
}
