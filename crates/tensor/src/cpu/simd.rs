//! Vector instructions: code compiled once per instruction set, chosen when it runs.
//!
//! Kernels are plain loops that the compiler vectorises. [`vectorized`] compiles the closure it is given for each level,
//! so what the closure calls must be inlined (`#[inline(always)]`) to be compiled with it.

#![allow(unsafe_code)]

/// What the processor offers, as far as kernels tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever the target has.
    Portable,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

/// Level of this processor.
pub fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        use std::sync::OnceLock;
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi2");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match (avx2, avx512) {
                (true, true) => Level::Avx512,
                (true, false) => Level::Avx2,
                _ => Level::Portable,
            }
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    Level::Portable
}

/// Runs `f` compiled for the best instruction set of this processor.
#[inline]
pub fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        fn avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        match level() {
            // SAFETY: `level` has seen that the processor has these features.
            Level::Avx512 => return unsafe { avx512(f) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(f) },
            Level::Portable => {}
        }
    }
    f()
}
