//! Every kernel against sums in f64, bit for bit against each other, and on any number of threads.

use super::block::Job;
use super::kernel::Kernel;
use super::*;
use crate::float_format::convert;
use half::{bf16, f16};
use proptest::prelude::*;

/// Kernels that run on this processor.
fn kernels() -> Vec<(&'static str, &'static Kernel)> {
    let mut all = vec![("portable", &portable::KERNEL)];
    #[cfg(target_arch = "x86_64")]
    {
        if simd::level() >= Level::Avx2 {
            all.push(("avx2", &x86::avx2::KERNEL));
        }
        if simd::level() >= Level::Avx512 {
            all.push(("avx512", &x86::avx512::KERNEL));
        }
    }
    all
}

/// The kernel for pairs of bf16, if this processor has it.
fn pairs() -> Option<&'static Kernel> {
    #[cfg(target_arch = "x86_64")]
    if simd::level() >= Level::Avx512 && x86::avx512_bf16::is_there() {
        return Some(&x86::avx512_bf16::KERNEL);
    }
    None
}

/// Numbers whose products and sums are inexact. splitmix64: independent of the generator of the library.
fn numbers(count: usize, mut seed: u64) -> Vec<f32> {
    let next = || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / 16_777_216.0 - 0.5
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// An element type of the tests.
trait Test: Element {
    /// Distance of neighbouring values around 1.
    const SPACING: f64;
    fn nearest(x: f32) -> Self;
    fn value(self) -> f64;
}

macro_rules! test_element {
    ($($t:ty, $spacing:expr, $from:expr;)*) => {$(
        impl Test for $t {
            const SPACING: f64 = $spacing;
            fn nearest(x: f32) -> Self {
                $from(x)
            }
            fn value(self) -> f64 {
                f64::from(self)
            }
        }
    )*};
}
macro_rules! test_factor {
    ($($t:ident, $spacing:expr, $encode:expr, $values:expr;)*) => {$(
        impl Test for $t {
            const SPACING: f64 = $spacing;
            fn nearest(x: f32) -> Self {
                Self($encode(x))
            }
            fn value(self) -> f64 {
                f64::from($values[usize::from(self.0)])
            }
        }
    )*};
}
test_factor! {
    E4m3, 0.125, convert::f32_to_f8e4m3_bits_saturating, convert::F8E4M3_VALUES;
    E5m2, 0.25, convert::f32_to_f8e5m2_bits_saturating, convert::F8E5M2_VALUES;
}
test_element! {
    f32, 1.2e-7, |x| x;
    f64, 2.3e-16, f64::from;
    bf16, 7.9e-3, bf16::from_f32;
    f16, 9.8e-4, f16::from_f32;
}

/// Where the elements of a matrix lie.
#[derive(Clone, Copy, Debug)]
struct Place {
    shape: (usize, usize),
    strides: (isize, isize),
    offset: usize,
    len: usize,
}

impl Place {
    /// `order`: rows together, columns together, or both apart; `gap` elements lie between; `flipped`: rows run backwards.
    fn new(shape: (usize, usize), order: u8, gap: usize, flipped: bool) -> Self {
        let (rows, cols) = shape;
        let strides = match order {
            0 => (cols + gap, 1),
            1 => (1, rows + gap),
            _ => ((cols + gap) * 2, 2),
        };
        let reach = rows.saturating_sub(1) * strides.0 + cols.saturating_sub(1) * strides.1;
        let row = strides.0 as isize;
        let (row, offset) = if flipped { (-row, gap + rows.saturating_sub(1) * strides.0) } else { (row, gap) };
        Self { shape, strides: (row, strides.1 as isize), offset, len: reach + gap + 1 }
    }

    fn matrix<T: Element>(self, data: &[T]) -> Matrix<'_> {
        Matrix::new(data, self.offset, self.shape, self.strides)
    }

    fn at(self, i: usize, j: usize) -> usize {
        (self.offset as isize + i as isize * self.strides.0 + j as isize * self.strides.1) as usize
    }
}

/// A product to be made and looked at.
#[derive(Clone, Copy, Debug)]
struct Case {
    a: Place,
    b: Place,
    gap: usize,
    accumulate: bool,
    scale: f32,
    bias: bool,
    seed: u64,
}

impl Case {
    fn sizes(&self) -> (usize, usize, usize) {
        (self.a.shape.0, self.b.shape.1, self.a.shape.1)
    }

    /// Runs `f` with the jobs of this case and returns the storage of the result.
    fn run<A: Test, B: Test, C: Test>(&self, f: impl Fn(&[Job])) -> Vec<C> {
        let (m, n, _) = self.sizes();
        let a: Vec<A> = numbers(self.a.len, self.seed).into_iter().map(A::nearest).collect();
        let b: Vec<B> = numbers(self.b.len, self.seed + 1).into_iter().map(B::nearest).collect();
        let bias: Vec<C> = numbers(n, self.seed + 2).into_iter().map(C::nearest).collect();
        let mut c = self.before::<C>();
        let result = MatrixMut::new(&mut c, (m, n), n + self.gap);
        let mut product = Product::new(self.a.matrix(&a), self.b.matrix(&b), result);
        if self.accumulate {
            product = product.accumulate();
        } else if C::KIND != element::Kind::F64 {
            product = product.scaled(self.scale);
        }
        if self.bias {
            product = product.bias(Matrix::new(&bias, 0, (1, n), (0, 1)));
        }
        f(&[product.job()]);
        c
    }

    fn before<C: Test>(&self) -> Vec<C> {
        let (m, n, _) = self.sizes();
        numbers(m * (n + self.gap), self.seed + 3).into_iter().map(C::nearest).collect()
    }

    /// Holds the result of `f` against sums in f64.
    fn check<A: Test, B: Test, C: Test>(&self, f: impl Fn(&[Job])) {
        let (m, n, k) = self.sizes();
        let value = |place: Place, data: &[f32], i, j, from: fn(f32) -> f64| from(data[place.at(i, j)]);
        let (a, b) = (numbers(self.a.len, self.seed), numbers(self.b.len, self.seed + 1));
        let bias = numbers(n, self.seed + 2);
        let (before, got) = (self.before::<C>(), self.run::<A, B, C>(f));
        for i in 0..m {
            let at = i * (n + self.gap);
            let old_and_new = |j: usize| (before[at + j].value(), got[at + j].value());
            for j in n..n + self.gap {
                let (old, new) = old_and_new(j);
                assert_eq!(old, new, "between rows, at {i} {j}: {self:?}");
            }
            for (j, &bias) in bias.iter().enumerate() {
                let (old, new) = old_and_new(j);
                let products = (0..k).map(|p| {
                    value(self.a, &a, i, p, |x| A::nearest(x).value())
                        * value(self.b, &b, p, j, |x| B::nearest(x).value())
                });
                let mut want = products.sum::<f64>();
                if self.accumulate {
                    want += old;
                } else if C::KIND != element::Kind::F64 {
                    want *= f64::from(self.scale);
                }
                want += if self.bias { C::nearest(bias).value() } else { 0.0 };
                // Sums are of numbers below 1/4, in f32 at least; then rounded to the type of the result.
                let sums = if C::SPACING < 1e-10 { C::SPACING } else { f32::SPACING };
                let allowed = sums * (k + 4) as f64 + C::SPACING * want.abs();
                assert!((new - want).abs() <= allowed, "at {i} {j}: {new}, not {want}: {self:?}");
            }
        }
    }
}

fn place(shape: (usize, usize)) -> impl Strategy<Value = Place> {
    (0u8..3, 0usize..3, any::<bool>()).prop_map(move |(order, gap, flipped)| Place::new(shape, order, gap, flipped))
}

fn case(size: std::ops::Range<usize>) -> impl Strategy<Value = Case> {
    (size.clone(), size.clone(), size).prop_flat_map(|(m, n, k)| {
        let switches = (0usize..3, any::<bool>(), any::<bool>(), any::<bool>(), any::<u32>());
        (place((m, k)), place((k, n)), switches).prop_map(|(a, b, (gap, accumulate, scaled, bias, seed))| Case {
            a,
            b,
            gap,
            accumulate,
            scale: if scaled { 0.3 } else { 1.0 },
            bias,
            seed: seed.into(),
        })
    })
}

fn alone(kernel: &'static Kernel) -> impl Fn(&[Job]) {
    move |jobs| grid::run(|_| kernel, jobs, 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_are_sums(case in case(0..70)) {
        for (_, kernel) in kernels() {
            case.check::<f32, f32, f32>(alone(kernel));
            case.check::<bf16, bf16, bf16>(alone(kernel));
            case.check::<f16, f16, f16>(alone(kernel));
            case.check::<bf16, f32, f16>(alone(kernel));
            case.check::<E4m3, E5m2, f32>(alone(kernel));
            case.check::<E5m2, E4m3, bf16>(alone(kernel));
            case.check::<f64, f64, f64>(alone(kernel));
        }
        if let Some(kernel) = pairs() {
            case.check::<bf16, bf16, f32>(alone(kernel));
            case.check::<bf16, bf16, bf16>(alone(kernel));
            case.check::<E4m3, E4m3, bf16>(alone(kernel));
            case.check::<E5m2, E4m3, f32>(alone(kernel));
        }
    }

    #[test]
    fn lengths_of_vectors_do_not_show(case in case(0..70)) {
        let bits: Vec<_> = kernels().into_iter().skip(1).map(|(_, kernel)| {
            let x = case.run::<f32, bf16, f32>(alone(kernel));
            x.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        }).collect();
        prop_assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

/// Shapes that are cut into several blocks and several runs of k.
fn large() -> Vec<Case> {
    let case = |m, n, k, order, bias: bool, seed| Case {
        a: Place::new((m, k), order, 0, false),
        b: Place::new((k, n), 1 - order, 1, false),
        gap: 1,
        accumulate: !bias,
        scale: 0.7,
        bias,
        seed,
    };
    vec![case(97, 211, 1201, 0, true, 1), case(1, 1500, 769, 1, true, 2), case(1100, 33, 390, 1, false, 3)]
}

#[test]
fn large_products_are_sums() {
    for case in large() {
        for (_, kernel) in kernels() {
            case.check::<f32, f32, f32>(alone(kernel));
        }
        case.check::<f16, bf16, bf16>(alone(kernel()));
        case.check::<E4m3, E5m2, bf16>(alone(kernel()));
        if let Some(kernel) = pairs() {
            case.check::<bf16, bf16, f32>(alone(kernel));
            case.check::<E5m2, E4m3, f32>(alone(kernel));
        }
    }
}

#[test]
fn threads_do_not_show() {
    fn bits<C: Test>(case: &Case, kernel: &'static Kernel, threads: usize) -> Vec<u64> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let c = pool.install(|| case.run::<C, C, C>(|jobs| grid::run(|_| kernel, jobs, threads)));
        c.into_iter().map(|x| x.value().to_bits()).collect()
    }
    for case in large() {
        if let Some(kernel) = pairs() {
            assert!(bits::<bf16>(&case, kernel, 1) == bits::<bf16>(&case, kernel, 3), "pairs");
        }
        for (name, kernel) in kernels() {
            for threads in [2, 3, 8] {
                assert!(bits::<f32>(&case, kernel, 1) == bits::<f32>(&case, kernel, threads), "f32 {name} {threads}");
                assert!(bits::<bf16>(&case, kernel, 1) == bits::<bf16>(&case, kernel, threads), "{name} {threads}");
            }
        }
        assert!(bits::<f64>(&case, kernel(), 1) == bits::<f64>(&case, kernel(), 3), "f64");
    }
}

#[test]
fn rows_do_not_depend_on_each_other() {
    let (k, n) = (777, 700);
    let (a, b) = (numbers(30 * k, 1), numbers(k * n, 2));
    for (name, kernel) in kernels().into_iter().skip(1) {
        for strides in [(n as isize, 1), (1, k as isize)] {
            let rows = |count: usize| {
                let mut c = vec![0.0f32; count * n];
                let a = Matrix::new(&a, 0, (count, k), (k as isize, 1));
                let b = Matrix::new(&b, 0, (k, n), strides);
                grid::run(|_| kernel, &[Product::new(a, b, MatrixMut::new(&mut c, (count, n), n)).job()], 1);
                c
            };
            let all = rows(30);
            for count in [1, 3, 4, 5, 17] {
                assert!(rows(count) == all[..count * n], "{name}, {count} rows, {strides:?}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_so() {
    for (name, kernel) in kernels() {
        let mut a = vec![1.0f32; 40 * 50];
        (a[3 * 50 + 7], a[20 * 50]) = (f32::NAN, f32::INFINITY);
        let b = vec![2.0f32; 50 * 60];
        let mut c = vec![f32::NAN; 40 * 60]; // not read
        let mut half = vec![bf16::NAN; 40 * 60];
        let (a, b) = (Matrix::new(&a, 0, (40, 50), (50, 1)), Matrix::new(&b, 0, (50, 60), (60, 1)));
        grid::run(|_| kernel, &[Product::new(a, b, MatrixMut::new(&mut c, (40, 60), 60)).job()], 1);
        grid::run(|_| kernel, &[Product::new(a, b, MatrixMut::new(&mut half, (40, 60), 60)).job()], 1);
        for (i, row) in c.chunks(60).enumerate() {
            let right = match i {
                3 => row.iter().all(|x| x.is_nan()),
                20 => row.iter().all(|&x| x == f32::INFINITY),
                _ => row.iter().all(|&x| x == 100.0),
            };
            assert!(right, "{name}: row {i}: {row:?}");
        }
        assert!(half.iter().zip(&c).all(|(h, c)| h.to_f32().total_cmp(c).is_eq() || (h.is_nan() && c.is_nan())));
    }
}

/// Every code comes out of packing as the number that the format gives it, however the factor lies.
#[test]
fn every_code_is_widened_exactly() {
    fn check<T: Test>(codes: &[T; 256], name: &str, kernel: &'static Kernel) {
        let one = [1.0f32].map(T::nearest);
        for strides in [(16, 1), (1, 16)] {
            let codes_at = Matrix::new(codes, 0, (16, 16), strides);
            // Each row of the diagonal keeps one column, so that a sum is one code and zeros; NaN shows everywhere.
            for p in 0..16 {
                let (mut c, mut line) = (vec![0f32; 16], vec![T::nearest(0.0); 16]);
                line[p] = one[0];
                let b = Matrix::new(&line, 0, (16, 1), (1, 1));
                grid::run(|_| kernel, &[Product::new(codes_at, b, MatrixMut::new(&mut c, (16, 1), 1)).job()], 1);
                for (i, got) in c.into_iter().enumerate() {
                    let row = |p: usize| codes[i * strides.0 as usize + p * strides.1 as usize].value();
                    let want = if (0..16).any(|p| !row(p).is_finite()) { f64::NAN } else { row(p) };
                    assert!(f64::from(got) == want || (got.is_nan() && want.is_nan()), "{name}: {got}, not {want}");
                }
            }
        }
    }
    let all: [u8; 256] = std::array::from_fn(|i| i as u8);
    for (name, kernel) in kernels().into_iter().chain(pairs().map(|kernel| ("pairs", kernel))) {
        check(&all.map(E4m3), name, kernel);
        check(&all.map(E5m2), name, kernel);
    }
}

#[test]
fn a_workspace_is_counted_while_its_thread_lives() {
    // Other tests run beside this one, so only this thread's part can be seen: in a pool of its own, more than nothing.
    let product = || {
        let a = vec![1.0f32; 64 * 64];
        let mut c = vec![0.0f32; 64 * 64];
        let a = Matrix::new(&a, 0, (64, 64), (64, 1));
        run_here(&mut [Product::new(a, a.t(), MatrixMut::new(&mut c, (64, 64), 64))]);
        workspace_bytes()
    };
    assert!(std::thread::spawn(product).join().unwrap() >= 64 * 64 * 4); // the first factor, packed
}
