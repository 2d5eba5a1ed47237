//! Products of bf16, and of 8-bit floats as bf16, by the instruction for them: pairs along k, two products to a lane, with sums in f32.
//!
//! The instruction takes subnormal numbers for zero, and rounds the sum of a pair in a way of its own. So these sums are
//! not bit for bit those of the other kernels.

use super::super::element::{E4m3, E5m2, Kind, Single};
use super::super::kernel::{Factor, Kernel, Tile};
use super::avx512::{self, LANES, MR, NR, mask};
use half::bf16;
use std::arch::x86_64::*;
use std::mem::transmute;

/// A panel holds pairs, and so twice the depth in the same space.
pub(in super::super) const KERNEL: Kernel =
    Kernel { group: 2, kc: 2 * avx512::KERNEL.kc, tile, pack_a: pack::<MR>, pack_b: pack::<NR>, ..avx512::KERNEL };

/// Whether the processor has the instruction, besides those of [`avx512`].
pub(in super::super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Pairs of bf16 in a vector of numbers.
#[target_feature(enable = "avx512f")]
fn pairs(x: __m512) -> __m512bh {
    // SAFETY: both are 512 bits of any value.
    unsafe { transmute::<__m512, __m512bh>(x) }
}

avx512::sums_function!("avx512f,avx512bf16", |x, y, sum| _mm512_dpbf16_ps(sum, pairs(x), pairs(y)));
by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);

/// Elements whose values are those of bf16. What masks leave out is not touched, and read as zero.
trait AsBf16: Single {
    /// Up to 16 elements.
    unsafe fn load_16(from: *const Self, mask: __mmask16) -> __m256i;

    /// Up to 32 elements.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load_32(from: *const Self, mask: __mmask32) -> __m512i {
        // SAFETY: by the caller.
        unsafe {
            let low = _mm512_castsi256_si512(Self::load_16(from, mask as u16));
            _mm512_inserti64x4::<1>(low, Self::load_16(from.wrapping_add(16), (mask >> 16) as u16))
        }
    }
}

impl AsBf16 for bf16 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load_16(from: *const Self, mask: __mmask16) -> __m256i {
        // SAFETY: by the caller.
        unsafe { _mm256_maskz_loadu_epi16(mask, from.cast()) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load_32(from: *const Self, mask: __mmask32) -> __m512i {
        // SAFETY: by the caller.
        unsafe { _mm512_maskz_loadu_epi16(mask, from.cast()) }
    }
}

/// The upper halves: exact, for the lower ones are zero but for NaN.
#[target_feature(enable = "avx512f")]
fn upper_halves(x: __m512) -> __m256i {
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(x)))
}

impl AsBf16 for E4m3 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load_16(from: *const Self, mask: __mmask16) -> __m256i {
        // SAFETY: by the caller.
        upper_halves(avx512::widened_e4m3(unsafe { _mm_maskz_loadu_epi8(mask, from.cast()) }))
    }
}

impl AsBf16 for E5m2 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load_16(from: *const Self, mask: __mmask16) -> __m256i {
        // SAFETY: by the caller.
        upper_halves(avx512::widened_e5m2(unsafe { _mm_maskz_loadu_epi8(mask, from.cast()) }))
    }
}

/// Packs pairs. The last of an odd depth is completed by zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_pairs<T: AsBf16, const W: usize>(factor: Factor, lines: usize, depth: usize, panel: *mut f32) {
    debug_assert_eq!(factor.kind, T::KIND);
    let data: *const T = factor.data.cast();
    let panel: *mut i32 = panel.cast();
    let width = |v: usize| mask(W - v); // of the panel, from line v on
    let there = |v: usize| mask(lines.saturating_sub(v).min(W - v));
    // SAFETY: elements within `lines` and `depth` are read, pairs within `W * depth / 2` are written.
    unsafe {
        if factor.line == 1 {
            for p in (0..depth).step_by(2) {
                let first = data.offset(p as isize * factor.depth);
                for v in (0..W).step_by(LANES) {
                    let low = T::load_16(first.wrapping_add(v), there(v));
                    let second = if p + 1 < depth { there(v) } else { 0 };
                    let from = first.wrapping_offset(factor.depth).wrapping_add(v);
                    let high = _mm512_cvtepu16_epi32(T::load_16(from, second));
                    let x = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32::<16>(high));
                    _mm512_mask_storeu_epi32(panel.add(p / 2 * W + v), width(v), x);
                }
            }
        } else if factor.depth == 1 {
            let groups = depth.div_ceil(2);
            for v in (0..W).step_by(LANES) {
                let count = lines.saturating_sub(v).min(LANES).min(W - v);
                let first = data.wrapping_offset(v as isize * factor.line);
                for q in (0..groups).step_by(LANES) {
                    let left = depth - 2 * q;
                    let part: __mmask32 = if left >= 32 { !0 } else { (1 << left) - 1 };
                    avx512::call_for_next::<T, W>(first.wrapping_add(2 * q), factor.line);
                    // Constant bounds, so that the square stays in registers.
                    let mut square = [_mm512_setzero_ps(); LANES];
                    for i in 0..LANES {
                        let part = if i < count { part } else { 0 };
                        let from = first.wrapping_offset(i as isize * factor.line).wrapping_add(2 * q);
                        square[i] = _mm512_castsi512_ps(T::load_32(from, part));
                    }
                    let columns = avx512::transposed(&square);
                    for i in 0..LANES {
                        if i < groups - q {
                            let to = panel.add((q + i) * W + v);
                            _mm512_mask_storeu_epi32(to, width(v), _mm512_castps_si512(columns[i]));
                        }
                    }
                }
            }
        } else {
            for q in 0..depth.div_ceil(2) {
                for i in 0..W {
                    let element = |p: usize| {
                        let there = i < lines && p < depth;
                        let at = i as isize * factor.line + p as isize * factor.depth;
                        if there { ((*data.offset(at)).widen().to_bits() >> 16) as i32 } else { 0 }
                    };
                    *panel.add(q * W + i) = element(2 * q) | element(2 * q + 1) << 16;
                }
            }
        }
    }
}

unsafe fn pack<const W: usize>(factor: Factor, lines: usize, depth: usize, panel: *mut f32) {
    // SAFETY: by the caller; the elements are of the kind that the factor names.
    unsafe {
        match factor.kind {
            Kind::Bf16 => pack_pairs::<bf16, W>(factor, lines, depth, panel),
            Kind::E4m3 => pack_pairs::<E4m3, W>(factor, lines, depth, panel),
            Kind::E5m2 => pack_pairs::<E5m2, W>(factor, lines, depth, panel),
            _ => unreachable!("its values are not those of bf16"),
        }
    }
}
