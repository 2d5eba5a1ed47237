//! Matrix products added to what is there: the gradient of a weight into the buffer that collects it.

use super::{Op, Out, Outs, Rule};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::grouped_matmul::groups;
use crate::ops::matmul::{MatMul, multiply};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `target (m n) += a (m k) · b (k n)`, the target in a dtype of its own. Inputs: target, a, b.
///
/// There is no fast kernel: it stands for one of a GPU, which Napkin's own training does without.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMulInto;

/// The same for a weight of every group of rows: `target (e m n) += a (r m)ᵀ · b (r n)`. Inputs: target, a, b, sizes `e`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedMatMulInto;

fn infer(op: &'static str, inputs: &[Spec], shape: &[u64]) -> Result<Outs> {
    let (target, a, b) = (&inputs[0], &inputs[1], &inputs[2]);
    if target.shape() != shape {
        let rule = "the target must have the shape of the product";
        return Err(Error::Shapes { op, a: target.shape().into(), b: shape.into(), rule });
    }
    if a.dtype != b.dtype || !a.dtype.is_float() || !target.dtype.is_float() {
        return Err(Error::NoPromotion { op, a: a.dtype, b: b.dtype });
    }
    Ok(smallvec![Out::InPlace(0)])
}

/// The target is read and written, the factors read.
fn cost(inputs: &[Spec], flops: u128) -> Cost {
    let read = inputs.iter().map(Spec::unique_bytes).sum();
    Cost { matmul: flops, matmul_dense: flops, read, written: inputs[0].bytes(), ..Cost::default() }
}

impl Rule for MatMulInto {
    fn name(&self) -> &'static str {
        "matmul_into"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (&[m, k], &[inner, n]) = (inputs[1].shape(), inputs[2].shape()) else {
            return Err(Error::Rank { op: self.name(), expected: 2, shape: inputs[1].shape().into() });
        };
        if k != inner {
            let rule = "the inner sizes must be equal";
            return Err(Error::Shapes { op: self.name(), a: inputs[1].shape().into(), b: inputs[2].shape().into(), rule });
        }
        infer(self.name(), inputs, &[m, n])
    }

    fn cost(&self, inputs: &[Spec], _: &[Spec]) -> Cost {
        let (a, b) = (inputs[1].shape(), inputs[2].shape());
        cost(inputs, MatMul::flops(1, a[0], b[1], a[1]))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b) = (inputs[1].num(), inputs[2].num());
        let sizes = (a.shape[0], b.last(), a.last());
        multiply(&a.data, &b.data, &mut outputs[0].num_mut().data, sizes);
        Ok(())
    }
}

impl Rule for GroupedMatMulInto {
    fn name(&self) -> &'static str {
        "grouped_matmul_into"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (&[rows, m], &[others, n], &[experts]) = (inputs[1].shape(), inputs[2].shape(), inputs[3].shape()) else {
            return Err(Error::Rank { op: self.name(), expected: 2, shape: inputs[1].shape().into() });
        };
        if rows != others {
            let rule = "both factors must have the same rows";
            return Err(Error::Shapes { op: self.name(), a: inputs[1].shape().into(), b: inputs[2].shape().into(), rule });
        }
        infer(self.name(), inputs, &[experts, m, n])
    }

    fn cost(&self, inputs: &[Spec], _: &[Spec]) -> Cost {
        let (a, b) = (inputs[1].shape(), inputs[2].shape());
        cost(inputs, MatMul::flops(1, a[1], b[1], a[0]))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b) = (inputs[1].num(), inputs[2].num());
        let (m, n) = (a.last(), b.last());
        let out = &mut outputs[0].num_mut().data;
        for (expert, rows) in groups(self.name(), &inputs[3].ints(), a.shape[0])?.into_iter().enumerate() {
            for row in rows {
                for i in 0..m {
                    let to = (expert * m + i) * n;
                    for j in 0..n {
                        out[to + j] = out[to + j] + a.data[row * m + i] * b.data[row * n + j];
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tensor {
    /// Adds `a · b` to this tensor.
    ///
    /// # Shapes
    /// self `m n`, a `m k`, b `k n`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn add_matmul_(&self, a: &Self, b: &Self) -> Result<Self> {
        Self::op(Op::MatMulInto(MatMulInto), &[self, a, b])
    }

    /// Adds the products of groups of rows to this tensor.
    ///
    /// # Shapes
    /// self `e m n`, a `r m`, b `r n`, sizes `e` (integers)
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn add_grouped_matmul_(&self, a: &Self, b: &Self, sizes: &Self) -> Result<Self> {
        Self::op(Op::GroupedMatMulInto(GroupedMatMulInto), &[self, a, b, sizes])
    }
}
