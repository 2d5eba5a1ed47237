//! How often each small integer occurs.

use super::{Op, Outs, Rule, one_fresh, traffic};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};

/// Counts of the values `0..bins` in an integer tensor. Counting is index arithmetic, no FLOP.
#[derive(Clone, Debug, PartialEq)]
pub struct BinCount {
    /// Number of values.
    pub bins: u64,
}

impl Rule for BinCount {
    fn name(&self) -> &'static str {
        "bincount"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if inputs[0].dtype.is_float() {
            return Err(Error::DType { op: "bincount", got: inputs[0].dtype, expected: "an integer dtype" });
        }
        one_fresh(&[self.bins], DType::I64)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let mut counts = vec![0i64; self.bins as usize];
        for value in inputs[0].ints() {
            let bin = usize::try_from(value).ok().and_then(|v| counts.get_mut(v));
            *bin.ok_or(Error::Index { op: "bincount", value, size: self.bins })? += 1;
        }
        for (i, count) in counts.into_iter().enumerate() {
            outputs[0].set_int(i, count);
        }
        Ok(())
    }
}

impl Tensor {
    /// Counts of the values `0..bins`.
    ///
    /// # Shapes
    /// any integer tensor -> `bins` (i64)
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the bins.
    pub fn bincount(&self, bins: u64) -> Result<Self> {
        Self::op(Op::BinCount(BinCount { bins }), &[self])
    }
}
