//! Matrix products of several Rust libraries behind one C interface, so that `matmul.py` can time them beside OpenBLAS
//! and PyTorch in one process.
//!
//! `C = A B` over f32, or bf16 where the name says so; strides are in elements, C is dense and row-major.

use half::bf16;
use std::slice::from_raw_parts;
use std::sync::OnceLock;
use tensor::cpu::gemm::{self as napkin, Element, Matrix, MatrixMut, Product};

/// A product as C sees it.
#[repr(C)]
pub struct Call {
    m: usize,
    n: usize,
    k: usize,
    a: *const u8,
    a_row: isize,
    a_col: isize,
    b: *const u8,
    b_row: isize,
    b_col: isize,
    c: *mut u8,
    threads: usize,
}

fn pool(threads: usize) -> &'static rayon::ThreadPool {
    static POOL: OnceLock<rayon::ThreadPool> = OnceLock::new();
    let pool = POOL.get_or_init(|| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool"));
    assert_eq!(pool.current_num_threads(), threads, "one process measures one number of threads");
    pool
}

/// Calls `f` `repeat` times, on a pool where there is more than one thread.
fn repeat(call: &Call, repeat: usize, f: impl Fn() + Send + Sync) {
    let all = || (0..repeat).for_each(|_| f());
    if call.threads > 1 { pool(call.threads).install(all) } else { all() }
}

struct Shared<'a>(&'a Call);
unsafe impl Send for Shared<'_> {}
unsafe impl Sync for Shared<'_> {}

fn product<T: Element>(shared: &Shared<'_>) {
    let x = shared.0;
    let reach = |rows: usize, row: isize, cols: usize, col: isize| {
        (rows - 1) * row as usize + (cols - 1) * col as usize + 1
    };
    let a = unsafe { from_raw_parts(x.a.cast::<T>(), reach(x.m, x.a_row, x.k, x.a_col)) };
    let b = unsafe { from_raw_parts(x.b.cast::<T>(), reach(x.k, x.b_row, x.n, x.b_col)) };
    let c = unsafe { std::slice::from_raw_parts_mut(x.c.cast::<T>(), x.m * x.n) };
    let a = Matrix::new(a, 0, (x.m, x.k), (x.a_row, x.a_col));
    let b = Matrix::new(b, 0, (x.k, x.n), (x.b_row, x.b_col));
    let mut products = [Product::new(a, b, MatrixMut::new(c, (x.m, x.n), x.n))];
    if x.threads > 1 { napkin::run(&mut products) } else { napkin::run_here(&mut products) }
}

/// # Safety
/// The pointers name matrices of the sizes and strides given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn napkin_f32(call: &Call, times: usize) {
    let shared = Shared(call);
    repeat(call, times, || product::<f32>(&shared));
}

/// # Safety
/// As of `napkin_f32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn napkin_bf16(call: &Call, times: usize) {
    let shared = Shared(call);
    repeat(call, times, || product::<bf16>(&shared));
}

/// # Safety
/// As of `napkin_f32`. The library takes its number of threads from `MATMUL_NUM_THREADS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matrixmultiply_f32(x: &Call, times: usize) {
    for _ in 0..times {
        unsafe {
            matrixmultiply::sgemm(
                x.m, x.k, x.n, 1.0, x.a.cast(), x.a_row, x.a_col, x.b.cast(), x.b_row, x.b_col, 0.0, x.c.cast(),
                x.n as isize, 1,
            );
        }
    }
}

/// # Safety
/// As of `napkin_f32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gemm_f32(call: &Call, times: usize) {
    let shared = Shared(call);
    let shared = &shared;
    repeat(call, times, || {
        let x = shared.0;
        let parallelism = if x.threads > 1 { gemm::Parallelism::Rayon(x.threads) } else { gemm::Parallelism::None };
        unsafe {
            gemm::gemm(
                x.m, x.n, x.k, x.c.cast::<f32>(), 1, x.n as isize, false, x.a.cast::<f32>(), x.a_col, x.a_row,
                x.b.cast::<f32>(), x.b_col, x.b_row, 0.0, 1.0, false, false, false, parallelism,
            );
        }
    });
}

/// # Safety
/// As of `napkin_f32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faer_f32(call: &Call, times: usize) {
    use faer::linalg::matmul::matmul;
    use faer::{Accum, MatMut, MatRef, Par};
    let shared = Shared(call);
    let shared = &shared;
    repeat(call, times, || {
        let x = shared.0;
        let par = if x.threads > 1 { Par::rayon(x.threads) } else { Par::Seq };
        unsafe {
            let a = MatRef::<f32>::from_raw_parts(x.a.cast(), x.m, x.k, x.a_row, x.a_col);
            let b = MatRef::<f32>::from_raw_parts(x.b.cast(), x.k, x.n, x.b_row, x.b_col);
            let c = MatMut::<f32>::from_raw_parts_mut(x.c.cast(), x.m, x.n, x.n as isize, 1);
            matmul(c, Accum::Replace, a, b, 1.0, par);
        }
    });
}
