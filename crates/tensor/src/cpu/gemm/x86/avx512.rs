//! 512-bit vectors: tiles of 14 x 32.

use super::super::element::{E4m3, E5m2, Kind, Single};
use super::super::kernel::{self, Factor, Half, Kernel, Round, Run, Tile};
use super::super::portable;
use super::super::workspace::Workspace;
use half::{bf16, f16};
use std::arch::x86_64::*;

/// 28 of the 32 registers hold sums, two the numbers of the second factor, one a number of the first.
pub(super) const MR: usize = 14;
pub(super) const NR: usize = 32;
pub(super) const LANES: usize = 16;

pub(in super::super) const KERNEL: Kernel = Kernel {
    mr: MR,
    nr: NR,
    mc: 14 * 14,
    group: 1,
    kc: 512,
    narrow: Some(narrow),
    few: 4,
    tile,
    pack_a: pack::<MR>,
    pack_b: pack::<NR>,
    round,
};

/// The function `sums` of a kernel: the sums of a tile with a number of rows and vectors of columns that are known to the
/// compiler.
macro_rules! sums_function {
    ($features:literal, $multiply_add:expr) => {
        #[target_feature(enable = $features)]
        unsafe fn sums<const R: usize, const V: usize>(tile: &Tile) {
            // SAFETY: panels hold `depth` groups of MR and NR numbers; the result has R rows, and V vectors of columns of
            // which masks leave out what is past the last.
            unsafe {
                let row = |r: usize| tile.c.offset(r as isize * tile.c_row);
                for r in 0..R {
                    _mm_prefetch::<_MM_HINT_T0>(row(r).cast());
                    _mm_prefetch::<_MM_HINT_T0>(row(r).add(tile.cols - 1).cast());
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
                            acc[r][v] = $multiply_add(x, columns[v], acc[r][v]);
                        }
                    }
                    a = a.add(MR);
                    b = b.add(NR);
                }
                for v in 0..V {
                    let part = mask(tile.cols - v * LANES);
                    for r in 0..R {
                        let to = row(r).add(v * LANES);
                        let mut sum = acc[r][v];
                        if tile.accumulate {
                            sum = _mm512_add_ps(_mm512_maskz_loadu_ps(part, to), sum);
                        }
                        if tile.scale != 1.0 {
                            sum = _mm512_mul_ps(sum, _mm512_set1_ps(tile.scale));
                        }
                        if !tile.bias.is_null() {
                            sum = _mm512_add_ps(sum, _mm512_loadu_ps(tile.bias.add(v * LANES)));
                        }
                        _mm512_mask_storeu_ps(to, part, sum);
                    }
                }
            }
        }
    };
}
pub(super) use sums_function;

sums_function!("avx512f", |x, y, sum| _mm512_fmadd_ps(x, y, sum));
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
unsafe fn narrow(workspace: &mut Workspace, run: &Run, round: Round) {
    // SAFETY: by the caller.
    unsafe { super::super::narrow::run(workspace, run, round) }
}

by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
unsafe fn round(sums: *const f32, count: usize, half: Half) {
    // SAFETY: by the caller; the elements are of the kind that the result names.
    unsafe {
        match half.kind {
            Kind::Bf16 => kernel::round::<bf16>(sums, count, half),
            Kind::F16 => round_f16(sums, count, half),
            _ => unreachable!("not a half type"),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn round_f16(sums: *const f32, count: usize, half: Half) {
    for j in (0..count).step_by(LANES) {
        let part = mask(count - j);
        // SAFETY: by the caller, and what is past the last element is masked out.
        unsafe {
            let (mut sum, to) = (_mm512_maskz_loadu_ps(part, sums.add(j)), half.data.cast::<f16>().add(j));
            if half.accumulate {
                sum = _mm512_add_ps(f16::load(to, part), sum);
            }
            _mm256_mask_storeu_epi16(to.cast(), part, _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(sum));
        }
    }
}

/// The first `n` lanes (all of them from 16 on).
pub(super) fn mask(n: usize) -> __mmask16 {
    if n >= LANES { !0 } else { (1 << n) - 1 }
}

/// Up to 16 elements, widened.
trait Load: Single {
    /// Elements of lanes that are masked out are not touched, and read as zero.
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512;

    /// The columns of a square of 16 x 16 elements whose rows lie `row` apart.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load_columns(from: *const Self, row: isize) -> [__m512; 16] {
        let mut square = [_mm512_setzero_ps(); LANES];
        for i in 0..LANES {
            // SAFETY: by the caller.
            square[i] = unsafe { Self::load(from.offset(i as isize * row), !0) };
        }
        transposed(&square)
    }
}

impl Load for f32 {
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    /// Half of the exchange is made by loads: each vector takes four numbers of every fourth row.
    #[target_feature(enable = "avx512f")]
    unsafe fn load_columns(from: *const Self, row: isize) -> [__m512; 16] {
        let mut out = [_mm512_setzero_ps(); LANES];
        for part in 0..4 {
            let mut v = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                // SAFETY: by the caller.
                let at =
                    |lane: usize| unsafe { _mm_loadu_ps(from.offset((4 * lane + i) as isize * row).add(4 * part)) };
                let x = _mm512_castps128_ps512(at(0));
                let x = _mm512_mask_broadcast_f32x4(x, 0x00f0, at(1));
                let x = _mm512_mask_broadcast_f32x4(x, 0x0f00, at(2));
                v[i] = _mm512_mask_broadcast_f32x4(x, 0xf000, at(3));
            }
            let columns = columns_of_lanes(&v);
            for i in 0..4 {
                out[4 * part + i] = columns[i];
            }
        }
        out
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

/// Numbers of E5M2: their codes are the upper bytes of f16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn widened_e5m2(codes: __m128i) -> __m512 {
    _mm512_cvtph_ps(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(codes)))
}

/// Numbers of E4M3: as f16 they are smaller by 2^8, but for NaN.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn widened_e4m3(codes: __m128i) -> __m512 {
    let codes = _mm256_cvtepi8_epi16(codes);
    let magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
    let sign = _mm256_and_si256(codes, _mm256_set1_epi16(i16::MIN));
    let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)); // all ones, which is a NaN of f16 too
    let small = _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16::<7>(magnitude)), nan);
    _mm512_mul_ps(_mm512_cvtph_ps(small), _mm512_set1_ps(256.0))
}

impl Load for E5m2 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: by the caller.
        widened_e5m2(unsafe { _mm_maskz_loadu_epi8(mask, from.cast()) })
    }
}

impl Load for E4m3 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(from: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: by the caller.
        widened_e4m3(unsafe { _mm_maskz_loadu_epi8(mask, from.cast()) })
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
                    call_for_next::<T, W>(first.wrapping_add(p), factor.line);
                    let columns = if count == LANES && part == !0 {
                        T::load_columns(first.add(p), factor.line)
                    } else {
                        // Constant bounds, so that the square stays in registers.
                        let mut square = [_mm512_setzero_ps(); LANES];
                        for i in 0..LANES {
                            let part = if i < count { part } else { 0 };
                            square[i] = T::load(first.wrapping_offset(i as isize * factor.line).wrapping_add(p), part);
                        }
                        transposed(&square)
                    };
                    for i in 0..LANES {
                        if i < depth - p {
                            _mm512_mask_storeu_ps(panel.add((p + i) * W + v), width(v), columns[i]);
                        }
                    }
                }
            }
        } else {
            portable::pack_elements::<T, W>(factor, lines, depth, panel);
        }
    }
}

/// Calls for the lines of the next panel: each is read for a short while only, too short for the processor to foresee.
#[target_feature(enable = "avx512f")]
pub(super) fn call_for_next<T, const W: usize>(from: *const T, line: isize) {
    for i in 0..LANES {
        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_offset((W + i) as isize * line).cast());
    }
}

/// Four rows of lanes of four numbers: rows and columns exchanged within each lane.
#[target_feature(enable = "avx512f")]
fn columns_of_lanes(r: &[__m512; 4]) -> [__m512; 4] {
    let t = [
        _mm512_unpacklo_ps(r[0], r[1]),
        _mm512_unpackhi_ps(r[0], r[1]),
        _mm512_unpacklo_ps(r[2], r[3]),
        _mm512_unpackhi_ps(r[2], r[3]),
    ]
    .map(|x| _mm512_castps_pd(x));
    [
        _mm512_unpacklo_pd(t[0], t[2]),
        _mm512_unpackhi_pd(t[0], t[2]),
        _mm512_unpacklo_pd(t[1], t[3]),
        _mm512_unpackhi_pd(t[1], t[3]),
    ]
    .map(|x| _mm512_castpd_ps(x))
}

/// A square of 16 x 16 numbers, rows and columns exchanged.
#[target_feature(enable = "avx512f")]
pub(super) fn transposed(r: &[__m512; 16]) -> [__m512; 16] {
    let mut u = *r; // u[4 i + j]: column j of each 4-wide lane, over rows 4 i .. 4 i + 4
    for i in 0..4 {
        let columns = columns_of_lanes(&[r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]]);
        for j in 0..4 {
            u[4 * i + j] = columns[j];
        }
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
