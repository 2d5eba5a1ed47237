//! Matrix products `C (+)= A B + bias` over strided factors of f32, bf16, f16 and 8-bit floats.
//!
//! The scheme is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), in the form
//! of BLIS: the result is cut into blocks, a run of k at a time is packed into panels, and a kernel in vector
//! instructions makes one tile of the result from a panel of each factor. Narrow types are widened while they are packed;
//! sums are f32 and rounded once.
//!
//! Every sum runs over k in order, in runs whose length depends on k alone. So the bits of a result depend neither on the
//! number of threads, nor on how the result is cut, nor on whether vectors have 256 or 512 bits. Where the processor has
//! an instruction for pairs of bf16, products of two factors of values that bf16 has use it, and then round as it does.

mod block;
mod element;
mod grid;
mod kernel;
mod matrix;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // no kernel there has fused multiply-adds
mod narrow;
mod portable;
mod strided;
#[cfg(test)]
mod tests;
mod tiles;
mod workspace;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use element::{E4m3, E5m2, Element};
pub use matrix::{Matrix, MatrixMut, Product};
pub use strided::{Strided, batched};
pub use workspace::workspace_bytes;

/// Runs code with `T` the element type of a float dtype that products have, and says whether there is one.
macro_rules! for_dtype {
    ($dtype:expr, $T:ident => $code:block) => {
        match $dtype {
            $crate::dtype::DType::F32 => {
                type $T = f32;
                $code;
                true
            }
            $crate::dtype::DType::BF16 => {
                type $T = half::bf16;
                $code;
                true
            }
            $crate::dtype::DType::F16 => {
                type $T = half::f16;
                $code;
                true
            }
            $crate::dtype::DType::F64 => {
                type $T = f64;
                $code;
                true
            }
            _ => false,
        }
    };
}
pub(crate) use for_dtype;

use super::simd::{self, Level};
use block::Job;
use kernel::Kernel;
use smallvec::SmallVec;

/// Kernel for products on this processor.
fn kernel() -> &'static Kernel {
    match simd::level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => &x86::avx512::KERNEL,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => &x86::avx2::KERNEL,
        _ => &portable::KERNEL,
    }
}

/// Kernel for a product on this processor.
fn kernel_of(job: &Job) -> &'static Kernel {
    #[cfg(target_arch = "x86_64")]
    if job.a.kind.fits_bf16()
        && job.b.kind.fits_bf16()
        && simd::level() == Level::Avx512
        && x86::avx512_bf16::is_there()
    {
        return &x86::avx512_bf16::KERNEL;
    }
    let _ = job;
    kernel()
}

/// Makes the products, on all threads of the pool of the caller.
pub fn run(products: &mut [Product<'_>]) {
    let jobs: SmallVec<[Job; 1]> = products.iter_mut().map(Product::job).collect();
    grid::run(kernel_of, &jobs, rayon::current_num_threads());
}

/// Makes the products on this thread alone: for kernels that fork over something else.
pub fn run_here(products: &mut [Product<'_>]) {
    let jobs: SmallVec<[Job; 1]> = products.iter_mut().map(Product::job).collect();
    grid::run(kernel_of, &jobs, 1);
}
