//! 512-bit vectors: tiles of 14 x 32.

use super::super::element::{Kind, Single};
use super::super::kernel::{Factor, Kernel, Tile};
use super::super::portable;
use half::{bf16, f16};
use std::arch::x86_64::*;

/// 28 of the 32 registers hold sums, two the numbers of the second factor, one a number of the first.
const MR: usize = 14;
const NR: usize = 32;
const LANES: usize = 16;

pub(in super::super) static KERNEL: Kernel =
    Kernel { mr: MR, nr: NR, mc: 14 * 14, tile, pack_a: pack::<MR>, pack_b: pack::<NR> };

/// The sums of a tile with a number of rows and vectors of columns that are known to the compiler.
#[target_feature(enable = "avx512f")]
unsafe fn sums<const R: usize, const V: usize>(tile: &Tile) {
    // SAFETY: panels hold `depth` groups of MR and NR numbers; the result has R rows, and V vectors of columns of which
    // masks leave out what is past the last.
    unsafe {
        let masks: [__mmask16; V] = std::array::from_fn(|v| mask(tile.cols.saturating_sub(v * LANES)));
        for r in 0..R {
            _mm_prefetch::<_MM_HINT_T0>(tile.c.offset(r as isize * tile.c_row).cast());
            _mm_prefetch::<_MM_HINT_T0>(tile.c.offset(r as isize * tile.c_row + tile.cols as isize - 1).cast());
        }
        let (mut a, mut b) = (tile.a, tile.b);
        let mut acc = [[_mm512_setzero_ps(); V]; R];
        for _ in 0..tile.depth {
            let mut columns = [_mm512_setzero_ps(); V];
            for v in 0..V {
                columns[v] = _mm512_load_ps(b.add(v * LANES));
            }
            for r in 0..R {
                let x = _mm512_set1_ps(*a.add(r));
                for v in 0..V {
                    acc[r][v] = _mm512_fmadd_ps(x, columns[v], acc[r][v]);
                }
            }
            a = a.add(MR);
            b = b.add(NR);
        }
        for r in 0..R {
            let row = tile.c.offset(r as isize * tile.c_row);
            for v in 0..V {
                let mut sum = acc[r][v];
                if tile.accumulate {
                    sum = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[v], row.add(v * LANES)), sum);
                }
                if !tile.bias.is_null() {
                    sum = _mm512_add_ps(sum, _mm512_loadu_ps(tile.bias.add(v * LANES)));
                }
                _mm512_mask_storeu_ps(row.add(v * LANES), masks[v], sum);
            }
        }
    }
}

unsafe fn tile(tile: &Tile) {
    macro_rules! by_rows {
        ($vectors:literal: $($rows:literal)*) => {
            match tile.rows {
                // SAFETY: by the caller.
                $($rows => unsafe { sums::<$rows, $vectors>(tile) },)*
                _ => unreachable!("a tile has 1 to {MR} rows"),
            }
        };
    }
    if tile.cols > LANES {
        by_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    } else {
        by_rows!(1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    }
}

/// The first `n` lanes (all of them from 16 on).
fn mask(n: usize) -> __mmask16 {
    if n >= LANES { !0 } else { (1 << n) - 1 }
}

/// Up to 16 elements, widened.
trait Load: Single {
    /// Elements of lanes that are masked out are not touched, and read as zero.
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512;
}

impl Load for f32 {
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }
}

impl Load for bf16 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: by the caller.
        let bits = unsafe { _mm256_maskz_loadu_epi16(mask, from.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

impl Load for f16 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: by the caller.
        let bits = unsafe { _mm256_maskz_loadu_epi16(mask, from.cast()) };
        _mm512_cvtph_ps(bits)
    }
}

unsafe fn pack<const W: usize>(factor: Factor, lines: usize, depth: usize, panel: *mut f32) {
    // SAFETY: by the caller; the elements are of the kind that the factor names.
    unsafe {
        match factor.kind {
            Kind::F32 => pack_elements::<f32, W>(factor, lines, depth, panel),
            Kind::Bf16 => pack_elements::<bf16, W>(factor, lines, depth, panel),
            Kind::F16 => pack_elements::<f16, W>(factor, lines, depth, panel),
            Kind::F64 => unreachable!("products of f64 are not packed"),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_elements<T: Load, const W: usize>(factor: Factor, lines: usize, depth: usize, panel: *mut f32) {
    let data: *const T = factor.data.cast();
    let width = |v: usize| mask(W - v); // of the panel, from line v on
    let there = |v: usize| mask(lines.saturating_sub(v).min(W - v));
    // SAFETY: elements within `lines` and `depth` are read, numbers within `W * depth` are written.
    unsafe {
        if factor.line == 1 {
            for p in 0..depth {
                for v in (0..W).step_by(LANES) {
                    let x = T::load(data.offset(p as isize * factor.depth).add(v), there(v));
                    _mm512_mask_storeu_ps(panel.add(p * W + v), width(v), x);
                }
            }
        } else if factor.depth == 1 {
            for v in (0..W).step_by(LANES) {
                let count = lines.saturating_sub(v).min(LANES).min(W - v);
                let first = data.offset(v as isize * factor.line);
                for p in (0..depth).step_by(LANES) {
                    let part = mask(depth - p);
                    // Constant bounds, so that the square stays in registers.
                    let mut square = [_mm512_setzero_ps(); LANES];
                    for i in 0..LANES {
                        let part = if i < count { part } else { 0 };
                        square[i] = T::load(first.wrapping_offset(i as isize * factor.line).wrapping_add(p), part);
                    }
                    let square = transposed(&square);
                    for i in 0..LANES {
                        if i < depth - p {
                            _mm512_mask_storeu_ps(panel.add((p + i) * W + v), width(v), square[i]);
                        }
                    }
                }
            }
        } else {
            portable::pack_elements::<T, W>(factor, lines, depth, panel);
        }
    }
}

/// A square of 16 x 16 numbers, rows and columns exchanged.
#[target_feature(enable = "avx512f")]
fn transposed(r: &[__m512; 16]) -> [__m512; 16] {
    let pd = |x| _mm512_castps_pd(x);
    let ps = |x| _mm512_castpd_ps(x);
    let mut t = *r;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    // u[4 i + j]: column j of each 4-wide lane, over rows 4 i .. 4 i + 4
    let mut u = t;
    for i in 0..4 {
        u[4 * i] = ps(_mm512_unpacklo_pd(pd(t[4 * i]), pd(t[4 * i + 2])));
        u[4 * i + 1] = ps(_mm512_unpackhi_pd(pd(t[4 * i]), pd(t[4 * i + 2])));
        u[4 * i + 2] = ps(_mm512_unpacklo_pd(pd(t[4 * i + 1]), pd(t[4 * i + 3])));
        u[4 * i + 3] = ps(_mm512_unpackhi_pd(pd(t[4 * i + 1]), pd(t[4 * i + 3])));
    }
    let mut out = u;
    for j in 0..4 {
        let even01 = _mm512_shuffle_f32x4::<0x88>(u[j], u[4 + j]); // lanes 0, 2 of row groups 0 and 1
        let odd01 = _mm512_shuffle_f32x4::<0xdd>(u[j], u[4 + j]);
        let even23 = _mm512_shuffle_f32x4::<0x88>(u[8 + j], u[12 + j]);
        let odd23 = _mm512_shuffle_f32x4::<0xdd>(u[8 + j], u[12 + j]);
        out[j] = _mm512_shuffle_f32x4::<0x88>(even01, even23);
        out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even01, even23);
        out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd01, odd23);
        out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd01, odd23);
    }
    out
}
