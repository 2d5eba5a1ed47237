//! Vectors of f32, for kernels that place registers themselves.
//!
//! A kernel is written once over [`Lanes`] and compiled for each instruction set. A value of a type that implements
//! [`Lanes`] is the proof that the processor has the instructions: there is no other way to get one than [`dispatch`].

#![allow(unsafe_code)]
#![allow(clippy::inline_always)] // only what is inlined is compiled for the instruction set of its caller

#[cfg(target_arch = "x86_64")]
mod x86;

use super::simd::{Level, level};
use half::{bf16, f16};
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// An instruction set.
pub trait Lanes: Copy + Send + Sync {
    /// A vector.
    type F: Copy;
    /// Numbers of a vector.
    const COUNT: usize;
    /// Rows of a block of sums that stays in registers.
    const ROWS: usize;
    /// Vectors side by side in such a block.
    const COLUMNS: usize;

    /// Runs a kernel compiled for this instruction set.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    /// The vector at `from`.
    ///
    /// # Safety
    /// All its numbers are readable.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// Writes a vector.
    ///
    /// # Safety
    /// All its numbers are writable.
    unsafe fn store(self, to: *mut f32, x: Self::F);

    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::F;
    /// `x + y`
    fn add(self, x: Self::F, y: Self::F) -> Self::F;
    /// `x - y`
    fn sub(self, x: Self::F, y: Self::F) -> Self::F;
    /// `x y`
    fn mul(self, x: Self::F, y: Self::F) -> Self::F;
    /// `x / y`
    fn div(self, x: Self::F, y: Self::F) -> Self::F;
    /// `x y + z`, rounded once where the instruction set can.
    fn fma(self, x: Self::F, y: Self::F, z: Self::F) -> Self::F;
    /// The larger one; `y` if either is NaN.
    fn max(self, x: Self::F, y: Self::F) -> Self::F;
    /// The nearest whole number, ties to even.
    fn round(self, x: Self::F) -> Self::F;
    /// `2^n` of whole numbers `-127 < n < 128`, and 0 for `n = -127`.
    fn power_of_two(self, n: Self::F) -> Self::F;
    /// `below` where `x < y`, else `other`.
    fn select_less(self, x: Self::F, y: Self::F, below: Self::F, other: Self::F) -> Self::F;
    /// `x` in the lanes of the range, `other` outside.
    fn keep(self, x: Self::F, lanes: Range<usize>, other: Self::F) -> Self::F;
    /// Sum of the lanes.
    fn sum(self, x: Self::F) -> f32;
    /// The largest lane.
    fn largest(self, x: Self::F) -> f32;
    /// Exchanges rows and columns of an 8 by 8 block and multiplies it.
    ///
    /// # Safety
    /// `from` has 8 rows of 8 readable numbers, `from_row` apart; `to` such rows of writable ones.
    #[inline(always)]
    unsafe fn transpose_block(self, from: *const f32, from_row: usize, to: *mut f32, to_row: usize, factor: f32) {
        for i in 0..8 {
            for j in 0..8 {
                // SAFETY: by the caller.
                unsafe { *to.add(j * to_row + i) = *from.add(i * from_row + j) * factor };
            }
        }
    }

    /// Writes the first 8 numbers of 8 rows, `from_row` apart, as columns of rows `to_row` apart, times `factor`.
    #[inline(always)]
    fn transpose(self, from: &[f32], from_row: usize, to: &mut [f32], to_row: usize, factor: f32) {
        assert!(from.len() >= 7 * from_row + 8 && to.len() >= 7 * to_row + 8, "8 rows of 8");
        // SAFETY: so many numbers are there.
        unsafe { self.transpose_block(from.as_ptr(), from_row, to.as_mut_ptr(), to_row, factor) }
    }

    /// The values of the f16 at `from`.
    ///
    /// # Safety
    /// All of them are readable.
    unsafe fn load_f16(self, from: *const f16) -> Self::F;
    /// Writes the nearest f16, ties to even.
    ///
    /// # Safety
    /// All of them are writable.
    unsafe fn store_f16(self, to: *mut f16, x: Self::F);
    /// The values of the bf16 at `from`.
    ///
    /// # Safety
    /// All of them are readable.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::F;
    /// Writes the nearest bf16, ties to even.
    ///
    /// # Safety
    /// All of them are writable.
    unsafe fn store_bf16(self, to: *mut bf16, x: Self::F);

    /// The vector at `at` of a slice.
    #[inline(always)]
    fn get(self, from: &[f32], at: usize) -> Self::F {
        let numbers = &from[at..][..Self::COUNT];
        // SAFETY: the slice has so many numbers.
        unsafe { self.load(numbers.as_ptr()) }
    }

    /// Writes a vector at `at` of a slice.
    #[inline(always)]
    fn put(self, to: &mut [f32], at: usize, x: Self::F) {
        let numbers = &mut to[at..][..Self::COUNT];
        // SAFETY: the slice has so many numbers.
        unsafe { self.store(numbers.as_mut_ptr(), x) }
    }

    /// `2^x` for `x < 128`, within 2 units in the last place; 0 for `x <= -126.5`.
    #[inline(always)]
    fn exp2(self, x: Self::F) -> Self::F {
        // 2^x = 2^n 2^r; 2^r = 1 + r q(r) with q of least relative error for |r| <= 1/2 (Remez exchange), 4e-9.
        const Q: [f32; 6] = [0.154_030_55e-3, 1.339_074_5e-3, 9.618_239e-3, 5.550_357_4e-2, 0.240_226_5, LN_2];
        // NaN is the second operand, so that it stays.
        let x = self.max(self.splat(-127.0), x);
        let n = self.round(x);
        let r = self.sub(x, n);
        let mut q = self.splat(Q[0]);
        for c in &Q[1..] {
            q = self.fma(q, r, self.splat(*c));
        }
        self.mul(self.fma(q, r, self.splat(1.0)), self.power_of_two(n))
    }

    /// Hyperbolic tangent, within 4 units in the last place.
    #[inline(always)]
    fn tanh(self, x: Self::F) -> Self::F {
        // tanh x = x + x³ t(x²) with t of least relative error for |x| <= 0.6 (Remez exchange), 9e-8.
        const T: [f32; 5] = [-6.269_32e-3, 2.111_110_4e-2, -5.387_398_2e-2, 0.133_329_16, -0.333_333_3];
        let (zero, one) = (self.splat(0.0), self.splat(1.0));
        let magnitude = self.select_less(x, zero, self.sub(zero, x), x);
        let square = self.mul(x, x);
        let mut t = self.splat(T[0]);
        for c in &T[1..] {
            t = self.fma(t, square, self.splat(*c));
        }
        let near = self.fma(self.mul(t, square), magnitude, magnitude);
        let e = self.exp2(self.mul(magnitude, self.splat(-2.0 * LOG2_E)));
        let far = self.div(self.sub(one, e), self.add(one, e));
        let tanh = self.select_less(magnitude, self.splat(0.6), near, far);
        self.select_less(x, zero, self.sub(zero, tanh), tanh)
    }
}

/// Work compiled for each instruction set. `run` must be `#[inline(always)]`, as all that it calls.
pub trait Kernel {
    /// What it gives.
    type Output;
    /// Does the work.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs a kernel compiled for the best instruction set of this processor.
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    on(level(), kernel).unwrap_or_else(|_| unreachable!("the processor has the instructions of its level"))
}

/// Runs a kernel compiled for an instruction set; gives it back where the processor does not have it.
pub fn on<K: Kernel>(set: Level, kernel: K) -> Result<K::Output, K> {
    if set > level() {
        return Err(kernel);
    }
    Ok(match set {
        Level::Portable => Portable(()).call(kernel),
        // SAFETY: the processor has at least this level.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::Avx2::new() }.call(kernel),
        // SAFETY: the processor has at least this level.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::Avx512::new() }.call(kernel),
        #[cfg(not(target_arch = "x86_64"))]
        _ => return Err(kernel),
    })
}

/// Whatever the target has: loops over arrays, which the compiler turns into its vectors.
#[derive(Clone, Copy)]
struct Portable(());

const PORTABLE: usize = 8;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; PORTABLE] {
    std::array::from_fn(f)
}

impl Lanes for Portable {
    type F = [f32; PORTABLE];
    const COUNT: usize = PORTABLE;
    const ROWS: usize = 4;
    const COLUMNS: usize = 1;

    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: by the caller.
        unsafe { from.cast::<Self::F>().read() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: Self::F) {
        // SAFETY: by the caller.
        unsafe { to.cast::<Self::F>().write(x) };
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> Self::F {
        // SAFETY: by the caller.
        unsafe { from.cast::<[f16; PORTABLE]>().read() }.map(f16::to_f32)
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, x: Self::F) {
        // SAFETY: by the caller.
        unsafe { to.cast::<[f16; PORTABLE]>().write(x.map(f16::from_f32)) };
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Self::F {
        // SAFETY: by the caller.
        unsafe { from.cast::<[bf16; PORTABLE]>().read() }.map(bf16::to_f32)
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, x: Self::F) {
        // SAFETY: by the caller.
        unsafe { to.cast::<[bf16; PORTABLE]>().write(x.map(bf16::from_f32)) };
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; PORTABLE]
    }
    #[inline(always)]
    fn add(self, x: Self::F, y: Self::F) -> Self::F {
        each(|i| x[i] + y[i])
    }
    #[inline(always)]
    fn sub(self, x: Self::F, y: Self::F) -> Self::F {
        each(|i| x[i] - y[i])
    }
    #[inline(always)]
    fn mul(self, x: Self::F, y: Self::F) -> Self::F {
        each(|i| x[i] * y[i])
    }
    #[inline(always)]
    fn div(self, x: Self::F, y: Self::F) -> Self::F {
        each(|i| x[i] / y[i])
    }
    #[inline(always)]
    fn fma(self, x: Self::F, y: Self::F, z: Self::F) -> Self::F {
        // Without the instruction, a fused multiply-add is a call into a library.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            each(|i| x[i].mul_add(y[i], z[i]))
        } else {
            each(|i| x[i] * y[i] + z[i])
        }
    }
    #[inline(always)]
    fn max(self, x: Self::F, y: Self::F) -> Self::F {
        each(|i| if x[i] > y[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        // Adding 1.5 · 2^23 leaves no bits for a fraction; above 2^22 this does not hold, nor is it asked.
        const SHIFT: f32 = 12_582_912.0;
        each(|i| (x[i] + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn power_of_two(self, n: Self::F) -> Self::F {
        each(|i| f32::from_bits(((n[i] as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn select_less(self, x: Self::F, y: Self::F, below: Self::F, other: Self::F) -> Self::F {
        each(|i| if x[i] < y[i] { below[i] } else { other[i] })
    }
    #[inline(always)]
    fn keep(self, x: Self::F, lanes: Range<usize>, other: Self::F) -> Self::F {
        each(|i| if lanes.contains(&i) { x[i] } else { other[i] })
    }
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Map<'a>(&'a mut [f32], bool);

    impl Kernel for Map<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            for i in (0..self.0.len()).step_by(L::COUNT) {
                let x = l.get(self.0, i);
                l.put(self.0, i, if self.1 { l.tanh(x) } else { l.exp2(x) });
            }
        }
    }

    fn on_all(mut check: impl FnMut(Level)) {
        for set in [Level::Portable, Level::Avx2, Level::Avx512] {
            if set <= level() {
                check(set);
            }
        }
    }

    fn mapped(set: Level, inputs: &[f32], tanh: bool) -> Vec<f32> {
        let mut values = inputs.to_vec();
        values.resize(inputs.len().next_multiple_of(16), 0.0);
        assert!(on(set, Map(&mut values, tanh)).is_ok());
        values
    }

    #[test]
    fn exp2_and_tanh_are_within_their_bounds() {
        let inputs: Vec<f32> = (-12_600..12_700).map(|i| i as f32 / 100.0 + 0.001).collect();
        on_all(|set| {
            for (x, y) in inputs.iter().zip(mapped(set, &inputs, false)) {
                let exact = f64::from(*x).exp2();
                assert!(
                    (f64::from(y) / exact - 1.0).abs() < 2.0 * f64::from(f32::EPSILON),
                    "{set:?} 2^{x}: {y} {exact}"
                );
            }
            let small: Vec<f32> = inputs.iter().map(|x| x / 10.0).collect();
            for (x, y) in small.iter().zip(mapped(set, &small, true)) {
                let exact = f64::from(*x).tanh();
                let error = (f64::from(y) / exact - 1.0).abs();
                assert!(error < 4.0 * f64::from(f32::EPSILON), "{set:?} tanh {x}: {y} {exact}");
            }
        });
    }

    #[test]
    fn special_values() {
        let inputs = [f32::NEG_INFINITY, -200.0, -127.0, 0.0, 1.0, f32::NAN];
        on_all(|set| {
            let y = mapped(set, &inputs, false);
            assert_eq!(y[..5], [0.0, 0.0, 0.0, 1.0, 2.0], "{set:?}");
            assert!(y[5].is_nan(), "{set:?}");
            let y = mapped(set, &[f32::NEG_INFINITY, f32::INFINITY, 0.0, f32::NAN], true);
            assert_eq!(y[..3], [-1.0, 1.0, 0.0], "{set:?}");
            assert!(y[3].is_nan(), "{set:?}");
        });
    }

    /// Every f16 and every bf16, widened, and narrowed again from a little above.
    struct Halves<'a>(&'a [u16], &'a mut [f32], &'a mut [u16], bool);

    impl Kernel for Halves<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            for i in (0..self.0.len()).step_by(L::COUNT) {
                let (from, to) = (self.0[i..].as_ptr(), self.2[i..].as_mut_ptr());
                // SAFETY: the length is a multiple of the lanes.
                unsafe {
                    let x = if self.3 { l.load_bf16(from.cast()) } else { l.load_f16(from.cast()) };
                    l.put(self.1, i, x);
                    let above = l.fma(x, l.splat(1.0 / 512.0), x);
                    if self.3 { l.store_bf16(to.cast(), above) } else { l.store_f16(to.cast(), above) }
                }
            }
        }
    }

    #[test]
    fn halves_are_widened_and_rounded_as_by_their_library() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        on_all(|set| {
            for brain in [false, true] {
                let (mut wide, mut narrow) = (vec![0.0; all.len()], vec![0; all.len()]);
                assert!(on(set, Halves(&all, &mut wide, &mut narrow, brain)).is_ok());
                for (&bits, (&wide, &narrow)) in all.iter().zip(wide.iter().zip(&narrow)) {
                    let exact = if brain { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() };
                    let above = exact * (1.0 / 512.0) + exact;
                    let (back, is_nan) = if brain {
                        (bf16::from_f32(above).to_bits(), bf16::from_bits(narrow).is_nan())
                    } else {
                        (f16::from_f32(above).to_bits(), f16::from_bits(narrow).is_nan())
                    };
                    if exact.is_nan() {
                        assert!(wide.is_nan() && is_nan, "{set:?} {bits:04x}");
                    } else {
                        assert_eq!((wide.to_bits(), narrow), (exact.to_bits(), back), "{set:?} {brain} {bits:04x}");
                    }
                }
            }
        });
    }

    struct Lane<'a>(&'a mut [f32]);

    impl Kernel for Lane<'_> {
        type Output = (usize, f32, f32);
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> Self::Output {
            let x = l.get(self.0, 0);
            l.put(self.0, 16, l.keep(x, 2..5, l.splat(-1.0)));
            let (from, to) = self.0.split_at_mut(96);
            l.transpose(&from[32..], 8, to, 8, 2.0);
            (L::COUNT, l.sum(x), l.largest(x))
        }
    }

    #[test]
    fn lanes_are_kept_summed_and_transposed() {
        on_all(|set| {
            let mut values: Vec<f32> = (0..160).map(|i| i as f32).collect();
            let Ok((n, sum, largest)) = on(set, Lane(&mut values)) else { panic!("the level is there") };
            assert_eq!((sum, largest), ((n * (n - 1) / 2) as f32, (n - 1) as f32), "{set:?}");
            let kept: Vec<f32> = (0..n).map(|i| if (2..5).contains(&i) { i as f32 } else { -1.0 }).collect();
            assert_eq!(values[16..16 + n], kept, "{set:?}");
            for (i, x) in values[96..].iter().enumerate() {
                assert_eq!(*x, 2.0 * (32 + i % 8 * 8 + i / 8) as f32, "{set:?}");
            }
        });
    }
}
