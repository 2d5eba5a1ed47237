//! Several windows of the data, as a model takes them.

use tensor::{DType, Runtime, Tensor};

use super::error::DataError;
use super::sampler::Sampler;
use super::span::Span;

/// The samples of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Which step.
    pub step: u64,
    /// First id of each sample in the data.
    pub starts: Vec<u64>,
    /// Ids of one sample.
    pub window: u64,
    /// All ids, sample by sample: `b window`.
    pub ids: Vec<u32>,
}

impl Batch {
    /// Number of samples.
    pub fn rows(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        size_of_val(&self.ids[..]) as u64 + size_of_val(&self.starts[..]) as u64
    }

    /// The ids and, for each, the one that follows.
    ///
    /// # Shapes
    /// -> `b (window-1)` and `b (window-1)`, i64
    pub fn inputs_and_targets(&self, runtime: &Runtime) -> tensor::Result<(Tensor, Tensor)> {
        Ok((self.columns(runtime, 0, self.window - 1)?, self.columns(runtime, 1, self.window)?))
    }

    fn columns(&self, runtime: &Runtime, from: u64, to: u64) -> tensor::Result<Tensor> {
        let rows = self.ids.chunks_exact(self.window as usize);
        let ids = rows.flat_map(|row| &row[from as usize..to as usize]);
        let values: Vec<f64> = ids.map(|&id| f64::from(id)).collect();
        runtime.tensor(&values, &[self.rows(), to - from], DType::I64)
    }
}

/// Reads the batches that a sampler chooses.
#[derive(Clone, Debug)]
pub struct Loader {
    data: Span,
    sampler: Sampler,
}

impl Loader {
    /// Batches of `data`, for which the sampler was made.
    pub fn new(data: Span, sampler: Sampler) -> Self {
        Self { data, sampler }
    }

    /// What chooses.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// What is read.
    pub fn data(&self) -> &Span {
        &self.data
    }

    /// The batch of a step.
    ///
    /// # Errors
    /// An id is none of the vocabulary.
    pub fn batch(&self, step: u64) -> Result<Batch, DataError> {
        let (starts, window) = (self.sampler.at(step), self.sampler.window());
        let mut ids = vec![0; starts.len() * window as usize];
        for (start, row) in starts.iter().zip(ids.chunks_exact_mut(window as usize)) {
            self.data.read(*start, row)?;
        }
        Ok(Batch { step, starts, window, ids })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensor::Device;

    use super::super::sampler::Order;
    use super::super::token_file::{OpenOptions, TokenFile};
    use super::*;

    #[test]
    fn targets_are_what_follows() {
        let ids: Vec<u32> = (100..150).collect();
        let data = Arc::new(TokenFile::from_ids("", &ids, &OpenOptions::default()).unwrap()).whole();
        let sampler = Sampler::new(&data, Order::Random, 5, 3, 1).unwrap();
        let batch = Loader::new(data, sampler).batch(2).unwrap();
        assert_eq!((batch.rows(), batch.window), (3, 5));
        let runtime = Runtime::new(Device::Cpu);
        let (inputs, targets) = batch.inputs_and_targets(&runtime).unwrap();
        assert_eq!((inputs.dtype(), targets.dtype()), (DType::I64, DType::I64));
        assert_eq!((inputs.shape(), targets.shape()), (&[3, 4][..], &[3, 4][..]));
        let (inputs, targets) = (inputs.to_vec().unwrap(), targets.to_vec().unwrap());
        for row in 0..3 {
            let start = 100.0 + batch.starts[row] as f64;
            for column in 0..4 {
                assert_eq!(inputs[row * 4 + column], start + column as f64);
                assert_eq!(targets[row * 4 + column], inputs[row * 4 + column] + 1.0);
            }
        }
    }
}
