//! 256-bit and 512-bit vectors.

use super::{Kernel, Lanes};
use half::{bf16, f16};
#[allow(clippy::wildcard_imports)] // some fifty instructions
use std::arch::x86_64::*;
use std::ops::Range;

/// 256-bit vectors with fused multiply-add: 16 registers.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor is of [`Level::Avx2`](super::Level::Avx2) at least.
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

/// 512-bit vectors: 32 registers.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor is of [`Level::Avx512`](super::Level::Avx512).
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

/// Rows and columns of eight vectors exchanged.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transposed(r: [__m256; 8]) -> [__m256; 8] {
    let pairs = |i: usize| (_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
    let ((a, b), (c, d), (e, f), (g, h)) = (pairs(0), pairs(2), pairs(4), pairs(6));
    // Quarters of four rows: the low half holds columns 0 to 3, the high half 4 to 7.
    let upper = [
        _mm256_shuffle_ps::<0x44>(a, c),
        _mm256_shuffle_ps::<0xEE>(a, c),
        _mm256_shuffle_ps::<0x44>(b, d),
        _mm256_shuffle_ps::<0xEE>(b, d),
    ];
    let lower = [
        _mm256_shuffle_ps::<0x44>(e, g),
        _mm256_shuffle_ps::<0xEE>(e, g),
        _mm256_shuffle_ps::<0x44>(f, h),
        _mm256_shuffle_ps::<0xEE>(f, h),
    ];
    std::array::from_fn(|i| {
        if i < 4 {
            _mm256_permute2f128_ps::<0x20>(upper[i], lower[i])
        } else {
            _mm256_permute2f128_ps::<0x31>(upper[i - 4], lower[i - 4])
        }
    })
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize, factor: f32) {
    let factor = _mm256_set1_ps(factor);
    // SAFETY: by the caller, as in `Lanes::transpose`.
    let rows = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(from.add(i * from_row)) });
    for (j, column) in transposed(rows).into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to.add(j * to_row), _mm256_mul_ps(column, factor)) };
    }
}

/// Methods that are one instruction each.
///
/// SAFETY of all blocks: a value of the type proves that the processor has the instructions; memory is as the caller of
/// an unsafe method promises.
macro_rules! instructions {
    ($($method:ident($($x:ident: $t:ty),*) -> $out:ty = $body:expr;)*) => {
        $(#[inline(always)]
        fn $method(self, $($x: $t),*) -> $out {
            // SAFETY: as above.
            unsafe { $body }
        })*
    };
}

impl Lanes for Avx2 {
    type F = __m256;
    const COUNT: usize = 8;
    const ROWS: usize = 6;
    const COLUMNS: usize = 2;

    #[inline]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        fn inner<K: Kernel>(lanes: Avx2, kernel: K) -> K::Output {
            kernel.run(lanes)
        }
        // SAFETY: as above.
        unsafe { inner(self, kernel) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m256) {
        // SAFETY: by the caller.
        unsafe { _mm256_storeu_ps(to, x) };
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, x: __m256) {
        // SAFETY: by the caller.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) };
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m256 {
        // SAFETY: by the caller.
        let wide = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())) };
        // SAFETY: as above.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, x: __m256) {
        // SAFETY: by the caller.
        unsafe {
            let bits = _mm256_castps_si256(x);
            // Half a place, less where the last bit is even: the carry rounds. NaN keeps a bit of its own.
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(nearest, quiet, nan));
            let packed = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(upper, upper));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }
    instructions! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        add(x: __m256, y: __m256) -> __m256 = _mm256_add_ps(x, y);
        sub(x: __m256, y: __m256) -> __m256 = _mm256_sub_ps(x, y);
        mul(x: __m256, y: __m256) -> __m256 = _mm256_mul_ps(x, y);
        div(x: __m256, y: __m256) -> __m256 = _mm256_div_ps(x, y);
        fma(x: __m256, y: __m256, z: __m256) -> __m256 = _mm256_fmadd_ps(x, y, z);
        max(x: __m256, y: __m256) -> __m256 = _mm256_max_ps(x, y);
        round(x: __m256) -> __m256 = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        power_of_two(n: __m256) -> __m256 = {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        select_less(x: __m256, y: __m256, below: __m256, other: __m256) -> __m256 =
            _mm256_blendv_ps(other, below, _mm256_cmp_ps::<_CMP_LT_OQ>(x, y));
        keep(x: __m256, lanes: Range<usize>, other: __m256) -> __m256 = {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let from = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lanes.start as i32 - 1));
            let before = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes.end as i32), lane);
            _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_and_si256(from, before)))
        };
        sum(x: __m256) -> f32 = {
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        };
        largest(x: __m256) -> f32 = {
            let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        };
    }
    #[inline(always)]
    unsafe fn transpose_block(self, from: *const f32, from_row: usize, to: *mut f32, to_row: usize, factor: f32) {
        // SAFETY: by the caller.
        unsafe { transpose(from, from_row, to, to_row, factor) };
    }
}

impl Lanes for Avx512 {
    type F = __m512;
    const COUNT: usize = 16;
    const ROWS: usize = 6;
    const COLUMNS: usize = 4;

    #[inline]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
        fn inner<K: Kernel>(lanes: Avx512, kernel: K) -> K::Output {
            kernel.run(lanes)
        }
        // SAFETY: as above.
        unsafe { inner(self, kernel) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m512) {
        // SAFETY: by the caller.
        unsafe { _mm512_storeu_ps(to, x) };
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, x: __m512) {
        // SAFETY: by the caller.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) };
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m512 {
        // SAFETY: by the caller.
        let wide = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) };
        // SAFETY: as above.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, x: __m512) {
        // SAFETY: by the caller.
        unsafe {
            let bits = _mm512_castps_si512(x);
            // As for 256 bits.
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let rounded = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), nearest, quiet);
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded)));
        }
    }
    instructions! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(x: __m512, y: __m512) -> __m512 = _mm512_add_ps(x, y);
        sub(x: __m512, y: __m512) -> __m512 = _mm512_sub_ps(x, y);
        mul(x: __m512, y: __m512) -> __m512 = _mm512_mul_ps(x, y);
        div(x: __m512, y: __m512) -> __m512 = _mm512_div_ps(x, y);
        fma(x: __m512, y: __m512, z: __m512) -> __m512 = _mm512_fmadd_ps(x, y, z);
        max(x: __m512, y: __m512) -> __m512 = _mm512_max_ps(x, y);
        round(x: __m512) -> __m512 = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        power_of_two(n: __m512) -> __m512 = {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        };
        select_less(x: __m512, y: __m512, below: __m512, other: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, y), other, below);
        keep(x: __m512, lanes: Range<usize>, other: __m512) -> __m512 = {
            let first = |n: usize| if n < 16 { (1u16 << n) - 1 } else { !0 };
            _mm512_mask_blend_ps(first(lanes.end) & !first(lanes.start), other, x)
        };
        sum(x: __m512) -> f32 = _mm512_reduce_add_ps(x);
        largest(x: __m512) -> f32 = _mm512_reduce_max_ps(x);
    }
    #[inline(always)]
    unsafe fn transpose_block(self, from: *const f32, from_row: usize, to: *mut f32, to_row: usize, factor: f32) {
        // SAFETY: by the caller.
        unsafe { transpose(from, from_row, to, to_row, factor) };
    }
}
