//! The weight of a linear map, stored in few bits.

use crate::context::Forward;
use crate::param::{Builder, Init};
use tensor::packed::Format;
use tensor::{Result, Tensor};

/// A frozen weight `(out in)` in codes and scales.
#[derive(Clone, Debug)]
pub struct Packed {
    format: &'static Format,
    parts: Vec<Tensor>,
    shape: [u64; 2],
    keeps_input: bool,
}

impl Packed {
    /// The parameter `weight` of the current module.
    ///
    /// # Errors
    /// If it is too large to count.
    pub fn new(b: &Builder<'_>, format: &'static Format, shape: [u64; 2], init: Init) -> Result<Self> {
        let mut parts = b.packed("weight", format, shape, init)?;
        parts.truncate(format.operands());
        let keeps_input = format.keeps_input || b.tuning().packed_keeps_inputs;
        Ok(Self { format, parts, shape, keeps_input })
    }

    /// `rows.. in -> rows.. out`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let low = f.runtime.autocast_setting().map(|(low, _)| low);
        let x = x.to_dtype(f.compute.or(low).unwrap_or(x.dtype()))?;
        x.packed_linear(self.format, &self.parts, self.shape, self.keeps_input)
    }
}
