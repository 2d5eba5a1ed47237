//! Matrix products at the shapes of GPT-2 124M on 1,024 rows, beside the `matrixmultiply` crate, on one thread.
//!
//! `cargo bench -p napkin-tensor`. Other libraries, and more threads: `benches/peers/matmul`.
#![allow(clippy::unwrap_used, missing_docs)]

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use half::bf16;
use napkin_tensor::cpu::gemm::{self, Element, Matrix, MatrixMut, Product};

fn main() {
    divan::main();
}

/// Which of the factors lies transposed.
#[derive(Clone, Copy, Debug)]
enum Lies {
    Plain,
    First,
    Second,
}

/// `m n k`, and how the factors lie.
type Shape = (usize, usize, usize, Lies);

const SHAPES: [Shape; 8] = [
    (1024, 1024, 1024, Lies::Plain),
    (1024, 2304, 768, Lies::Second),
    (768, 2304, 1024, Lies::First),
    (1024, 3072, 768, Lies::Plain),
    (1024, 768, 3072, Lies::Second),
    (3072, 768, 1024, Lies::First),
    (256, 256, 64, Lies::Second), // scores of one head
    (1, 768, 3072, Lies::Second), // one row, as in generation
];

fn strides(rows: usize, cols: usize, transposed: bool) -> (isize, isize) {
    if transposed { (1, rows as isize) } else { (cols as isize, 1) }
}

/// Factors and room for the result.
struct Operands<T> {
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
    a_strides: (isize, isize),
    b_strides: (isize, isize),
}

impl<T: Copy> Operands<T> {
    fn new((m, n, k, lies): Shape, from: fn(f32) -> T) -> Self {
        let numbers = |count: usize| (0..count).map(|i| from((i * 37 % 101) as f32 / 50.0 - 1.0)).collect::<Vec<_>>();
        Self {
            a: numbers(m * k),
            b: numbers(k * n),
            c: numbers(m * n),
            a_strides: strides(m, k, matches!(lies, Lies::First)),
            b_strides: strides(k, n, matches!(lies, Lies::Second)),
        }
    }
}

/// Multiply-adds, the items of throughput.
fn items((m, n, k, _): Shape) -> ItemsCount {
    ItemsCount::new(m * n * k)
}

fn own<T: Element>(bencher: Bencher, shape: Shape, from: fn(f32) -> T) {
    let ((m, n, k, _), mut x) = (shape, Operands::new(shape, from));
    bencher.counter(items(shape)).bench_local(|| {
        let a = Matrix::new(black_box(&x.a), 0, (m, k), x.a_strides);
        let b = Matrix::new(&x.b, 0, (k, n), x.b_strides);
        gemm::run_here(&mut [Product::new(a, b, MatrixMut::new(&mut x.c, (m, n), n))]);
    });
}

#[divan::bench(args = SHAPES)]
fn own_f32(bencher: Bencher, shape: Shape) {
    own(bencher, shape, |x| x);
}

#[divan::bench(args = SHAPES)]
fn own_bf16(bencher: Bencher, shape: Shape) {
    own(bencher, shape, bf16::from_f32);
}

#[divan::bench(args = SHAPES)]
#[allow(unsafe_code)]
fn matrixmultiply_f32(bencher: Bencher, shape: Shape) {
    let ((m, n, k, _), mut x) = (shape, Operands::new(shape, |x| x));
    let ((a_row, a_col), (b_row, b_col)) = (x.a_strides, x.b_strides);
    bencher.counter(items(shape)).bench_local(|| {
        let (a, b, c) = (black_box(&x.a).as_ptr(), x.b.as_ptr(), x.c.as_mut_ptr());
        // SAFETY: the operands have these sizes and strides.
        unsafe { matrixmultiply::sgemm(m, k, n, 1.0, a, a_row, a_col, b, b_row, b_col, 0.0, c, n as isize, 1) };
    });
}
