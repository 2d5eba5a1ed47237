//! Products of bf16 with sums in f32, where the processor has an instruction for them.

#![allow(unsafe_code)]

use super::peak::Work;

/// The loop of such products.
pub(super) fn bf16() -> Option<Work> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions, as was just seen.
        let run = |rounds| unsafe { x86::run(rounds) };
        return Some(Work { run, flop: x86::FLOP, vector_bits: 512 });
    }
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m512bh, _mm512_dpbf16_ps, _mm512_reduce_add_ps, _mm512_set1_epi32, _mm512_set1_ps};
    use std::hint::black_box;

    const SUMS: usize = 12;
    const UNROLLED: usize = 8;
    /// 32 products and as many additions in an instruction.
    pub(super) const FLOP: u64 = (64 * SUMS * UNROLLED) as u64;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn run(rounds: u64) {
        // Two numbers of 2^-10 each.
        let bits = _mm512_set1_epi32(black_box(0x3A80_3A80));
        // SAFETY: both are 64 bytes of any value.
        let x: __m512bh = unsafe { std::mem::transmute(bits) };
        let mut sums = [_mm512_set1_ps(black_box(1.0)); SUMS];
        for _ in 0..rounds {
            for _ in 0..UNROLLED {
                for sum in &mut sums {
                    *sum = _mm512_dpbf16_ps(*sum, x, x);
                }
            }
        }
        for sum in sums {
            black_box(_mm512_reduce_add_ps(sum));
        }
    }
}
