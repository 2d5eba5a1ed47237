//! Order of the elements of a vector.

use super::{Op, Outs, Rule, one_fresh, traffic};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};

/// Indices that sort a vector ascending; equal elements keep their order. Comparisons are no FLOP.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgSort;

impl Rule for ArgSort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if inputs[0].layout.rank() != 1 {
            return Err(Error::Rank { op: "argsort", expected: 1, shape: inputs[0].shape().into() });
        }
        one_fresh(inputs[0].shape(), DType::I64)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].to_num();
        let mut order: Vec<usize> = (0..x.data.len()).collect();
        order.sort_by(|&a, &b| x.data[a].to_f64().total_cmp(&x.data[b].to_f64()));
        for (i, at) in order.into_iter().enumerate() {
            outputs[0].set_int(i, at as i64);
        }
        Ok(())
    }
}

impl Tensor {
    /// Indices that sort this vector ascending, stable.
    ///
    /// # Shapes
    /// `n -> n` (i64)
    pub fn argsort(&self) -> Result<Self> {
        Self::op(Op::ArgSort(ArgSort), &[self])
    }
}
