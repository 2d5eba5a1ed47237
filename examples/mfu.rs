//! How much of this machine's peak a matrix product reaches, in two dtypes.
//!
//! MFU is work over time over peak. The work of a product of n x n matrices is 2 n³; the peak is measured by a loop that
//! does nothing but multiply-adds in registers, because no data sheet knows the clock this machine runs at. The same
//! product in bf16 reads half the bytes; whether it is faster depends on whether the processor multiplies bf16 itself.
//!
//! Run: `cargo run --release --example mfu`

#![allow(clippy::print_stdout)] // an example talks

use plan::hardware::Precision;
use std::error::Error;
use std::time::Instant;
use tensor::cpu::Threads;
use tensor::{DType, Device, Runtime};
use train::bench::Peak;

const N: u64 = 512;
const REPEATS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let threads = Threads::new(0)?;
    let peak = Peak::measure(threads.count()).rate_or_fp32(Precision::Fp32);
    println!("{} threads, measured fp32 peak {:.1} GFLOP/s", threads.count(), peak / 1e9);
    for dtype in [DType::F32, DType::BF16] {
        let rate = threads.run(|| rate(dtype))?;
        let share = rate / peak;
        println!("  {:<5} {:>7.1} GFLOP/s   {:>5.1} % of the fp32 peak", dtype.name(), rate / 1e9, share * 100.0);
        // Above it, somebody has counted wrong, unless the processor multiplies bf16 at a rate of its own.
        assert!(rate > 0.0 && (dtype == DType::BF16 || share < 1.2), "an MFU above 100 % is a mistake");
    }
    Ok(())
}

/// FLOP per second by the median of several products, and a check that they are right.
fn rate(dtype: DType) -> tensor::Result<f64> {
    let rt = Runtime::with_seed(Device::Cpu, 0);
    // Entries that every dtype holds exactly, with a sum that is known: n · 2 · 0.5.
    let (a, b) = (rt.full(&[N, N], 2.0, dtype)?, rt.full(&[N, N], 0.5, dtype)?);
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let begun = Instant::now();
        let c = a.matmul(&b)?;
        seconds.push(begun.elapsed().as_secs_f64());
        assert_eq!(c.narrow(0, 0, 1)?.to_vec()?[0], N as f64, "a fast product is a right one first");
    }
    seconds.sort_by(f64::total_cmp);
    Ok(2.0 * (N as f64).powi(3) / seconds[REPEATS / 2])
}
