//! Square matrix products through the tensor core, as every model multiplies.

use super::Numbers;
use super::samples::Samples;
use plan::report::Value;
use tensor::cpu::Threads;
use tensor::{DType, Device, Result, Runtime, Tensor};

/// Samples of a product, at least and at most.
const SAMPLES: (usize, usize) = (3, 100);
/// Seconds for the samples of a product that is quick.
const SECONDS: f64 = 0.3;

/// Times of the product of two `n × n` matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// Rows and columns of each matrix.
    pub n: u64,
    /// Type of the matrices.
    pub dtype: DType,
    /// Threads.
    pub threads: usize,
    /// Times.
    pub samples: Samples,
}

impl Product {
    /// Measures the product on the threads of a pool.
    ///
    /// # Errors
    /// If the matrices do not fit into memory.
    pub fn measure(n: u64, dtype: DType, pool: &Threads) -> Result<Self> {
        let samples = pool.run(|| {
            let runtime = Runtime::new(Device::Cpu);
            runtime.set_recording(false);
            let (a, b) = (matrix(&runtime, n, dtype, 1)?, matrix(&runtime, n, dtype, 2)?);
            Samples::take(SECONDS, SAMPLES.0, SAMPLES.1, || a.matmul(&b).map(drop))
        })?;
        Ok(Self { n, dtype, threads: pool.count(), samples })
    }

    /// Additions and multiplications.
    pub fn flop(&self) -> f64 {
        2.0 * (self.n as f64).powi(3)
    }

    /// FLOP/s by the median.
    pub fn rate(&self) -> f64 {
        self.flop() / self.samples.median().get()
    }

    /// All of it, for programs.
    pub fn value(&self) -> Value {
        Value::map()
            .with("n", self.n)
            .with("dtype", self.dtype.name())
            .with("threads", self.threads)
            .with("flop_per_second", self.rate())
            .with("samples", self.samples.value())
    }
}

/// Numbers between -1 and 1 without a pattern: processors spend less on zeros, and may run faster with them.
fn matrix(runtime: &Runtime, n: u64, dtype: DType, seed: u64) -> Result<Tensor> {
    let matrix = runtime.zeros(&[n, n], dtype)?;
    let mut numbers = Numbers::new(seed);
    let mut next = || numbers.signed();
    matrix.with_bytes_mut(|bytes| match dtype {
        DType::F32 => bytes.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&next().to_ne_bytes())),
        DType::BF16 => {
            bytes.chunks_exact_mut(2).for_each(|x| x.copy_from_slice(&half::bf16::from_f32(next()).to_ne_bytes()));
        }
        DType::F16 => {
            bytes.chunks_exact_mut(2).for_each(|x| x.copy_from_slice(&half::f16::from_f32(next()).to_ne_bytes()));
        }
        _ => {}
    })?;
    Ok(matrix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_type_are_timed_on_numbers_that_are_not_zero() {
        let pool = Threads::new(2).unwrap();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let product = Product::measure(32, dtype, &pool).unwrap();
            assert_eq!((product.threads, product.flop()), (2, 65_536.0));
            assert!(product.rate() > 0.0 && product.samples.seconds.len() >= SAMPLES.0);
            let values = matrix(&Runtime::new(Device::Cpu), 32, dtype, 1).unwrap().to_vec().unwrap();
            let mean = values.iter().sum::<f64>() / 1024.0;
            assert!(
                mean.abs() < 0.1
                    && values.iter().all(|x| x.abs() <= 1.0)
                    && values.iter().filter(|x| **x == 0.0).count() < 10
            );
        }
    }
}
