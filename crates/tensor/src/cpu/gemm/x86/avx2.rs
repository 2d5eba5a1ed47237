//! 256-bit vectors with fused multiply-add: tiles of 6 x 16.

use super::super::element::{E4m3, E5m2, Kind, Single};
use super::super::kernel::{self, Factor, Half, Kernel, Round, Run, Tile};
use super::super::portable;
use super::super::workspace::Workspace;
use half::{bf16, f16};
use std::arch::x86_64::*;

/// 12 of the 16 registers hold sums, two the numbers of the second factor, one a number of the first.
const MR: usize = 6;
const NR: usize = 16;
const LANES: usize = 8;

pub(in super::super) const KERNEL: Kernel = Kernel {
    mr: MR,
    nr: NR,
    mc: 16 * MR,
    group: 1,
    kc: 512,
    narrow: Some(narrow),
    few: 4,
    tile,
    pack_a: pack::<MR>,
    pack_b: pack::<NR>,
    round,
};

/// The sums of a tile with a number of rows and vectors of columns that are known to the compiler.
#[target_feature(enable = "avx2,fma")]
unsafe fn sums<const R: usize, const V: usize>(tile: &Tile) {
    // SAFETY: panels hold `depth` groups of MR and NR numbers; the result has R rows, and V vectors of columns of which
    // masks leave out what is past the last.
    unsafe {
        let masks: [__m256i; V] = std::array::from_fn(|v| mask(tile.cols.saturating_sub(v * LANES)));
        for r in 0..R {
            _mm_prefetch::<_MM_HINT_T0>(tile.c.offset(r as isize * tile.c_row).cast());
            _mm_prefetch::<_MM_HINT_T0>(tile.c.offset(r as isize * tile.c_row + tile.cols as isize - 1).cast());
        }
        let (mut a, mut b) = (tile.a, tile.b);
        let mut acc = [[_mm256_setzero_ps(); V]; R];
        for _ in 0..tile.depth {
            let mut columns = [_mm256_setzero_ps(); V];
            for v in 0..V {
                columns[v] = _mm256_load_ps(b.add(v * LANES));
            }
            for r in 0..R {
                let x = _mm256_set1_ps(*a.add(r));
                for v in 0..V {
                    acc[r][v] = _mm256_fmadd_ps(x, columns[v], acc[r][v]);
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
                    sum = _mm256_add_ps(_mm256_maskload_ps(row.add(v * LANES), masks[v]), sum);
                }
                if tile.scale != 1.0 {
                    sum = _mm256_mul_ps(sum, _mm256_set1_ps(tile.scale));
                }
                if !tile.bias.is_null() {
                    sum = _mm256_add_ps(sum, _mm256_loadu_ps(tile.bias.add(v * LANES)));
                }
                if tile.cols >= (v + 1) * LANES {
                    _mm256_storeu_ps(row.add(v * LANES), sum);
                } else {
                    _mm256_maskstore_ps(row.add(v * LANES), masks[v], sum);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn narrow(workspace: &mut Workspace, run: &Run, round: Round) {
    // SAFETY: by the caller.
    unsafe { super::super::narrow::run(workspace, run, round) }
}

by_rows!(1 2 3 4 5 6);

#[target_feature(enable = "avx2,fma,f16c")]
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

#[target_feature(enable = "avx2,f16c")]
unsafe fn round_f16(sums: *const f32, count: usize, half: Half) {
    let whole = count / LANES * LANES;
    // SAFETY: by the caller.
    unsafe {
        for j in (0..whole).step_by(LANES) {
            let (mut sum, to) = (_mm256_loadu_ps(sums.add(j)), half.data.cast::<f16>().add(j));
            if half.accumulate {
                sum = _mm256_add_ps(f16::load(to), sum);
            }
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(sum));
        }
        kernel::round::<f16>(sums.add(whole), count - whole, half.at(0, whole));
    }
}

/// All bits set in the first `n` lanes (in all of them from 8 on).
#[target_feature(enable = "avx2")]
fn mask(n: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(LANES) as i32), lanes)
}

/// Eight elements, widened.
trait Load: Single {
    unsafe fn load(from: *const Self) -> __m256;
}

impl Load for f32 {
    #[target_feature(enable = "avx2")]
    unsafe fn load(from: *const Self) -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_loadu_ps(from) }
    }
}

impl Load for bf16 {
    #[target_feature(enable = "avx2")]
    unsafe fn load(from: *const Self) -> __m256 {
        // SAFETY: by the caller.
        let bits = unsafe { _mm_loadu_si128(from.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
    }
}

impl Load for f16 {
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const Self) -> __m256 {
        // SAFETY: by the caller.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(from.cast()) })
    }
}

impl Load for E5m2 {
    /// The upper byte of an f16.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const Self) -> __m256 {
        // SAFETY: by the caller.
        let codes = _mm_cvtepu8_epi16(unsafe { _mm_loadl_epi64(from.cast()) });
        _mm256_cvtph_ps(_mm_slli_epi16::<8>(codes))
    }
}

impl Load for E4m3 {
    /// An f16 that is smaller by 2^8, but for NaN.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const Self) -> __m256 {
        // SAFETY: by the caller.
        let codes = _mm_cvtepi8_epi16(unsafe { _mm_loadl_epi64(from.cast()) });
        let magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
        let sign = _mm_and_si128(codes, _mm_set1_epi16(i16::MIN));
        let nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)); // all ones, which is a NaN of f16 too
        let small = _mm_or_si128(_mm_or_si128(sign, _mm_slli_epi16::<7>(magnitude)), nan);
        _mm256_mul_ps(_mm256_cvtph_ps(small), _mm256_set1_ps(256.0))
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

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack_elements<T: Load, const W: usize>(factor: Factor, lines: usize, depth: usize, panel: *mut f32) {
    let data: *const T = factor.data.cast();
    let whole = depth / LANES * LANES;
    // SAFETY: elements within `lines` and `depth` are read, numbers within `W * depth` are written.
    unsafe {
        let mut done = 0; // of the depth
        if factor.line == 1 && W.is_multiple_of(LANES) && lines == W {
            for p in 0..depth {
                for v in (0..W).step_by(LANES) {
                    _mm256_storeu_ps(panel.add(p * W + v), T::load(data.offset(p as isize * factor.depth).add(v)));
                }
            }
            done = depth;
        } else if factor.depth == 1 {
            for v in (0..W).step_by(LANES) {
                let count = lines.saturating_sub(v).min(LANES);
                let width = (W - v).min(LANES);
                let first = data.wrapping_offset(v as isize * factor.line);
                for p in (0..whole).step_by(LANES) {
                    // Constant bounds, so that the square stays in registers.
                    let mut square = [_mm256_setzero_ps(); LANES];
                    for i in 0..LANES {
                        if i < count {
                            square[i] = T::load(first.offset(i as isize * factor.line).add(p));
                        }
                    }
                    let square = transposed(&square);
                    for i in 0..LANES {
                        let to = panel.add((p + i) * W + v);
                        if width == LANES {
                            _mm256_storeu_ps(to, square[i]);
                        } else {
                            _mm256_maskstore_ps(to, mask(width), square[i]);
                        }
                    }
                }
            }
            done = whole;
        }
        portable::pack_elements::<T, W>(factor.at(0, done), lines, depth - done, panel.add(done * W));
    }
}

/// A square of 8 x 8 numbers, rows and columns exchanged.
#[target_feature(enable = "avx2")]
fn transposed(r: &[__m256; 8]) -> [__m256; 8] {
    let mut t = *r;
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    // u[4 i + j]: column j of each 4-wide lane, over rows 4 i .. 4 i + 4
    let mut u = t;
    for i in 0..2 {
        u[4 * i] = _mm256_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm256_shuffle_ps::<0xee>(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm256_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm256_shuffle_ps::<0xee>(t[4 * i + 1], t[4 * i + 3]);
    }
    let mut out = u;
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(u[j], u[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(u[j], u[4 + j]);
    }
    out
}
