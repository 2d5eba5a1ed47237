//! The matrix products of a mixture of experts: one weight per group of rows.

use super::{Needs, Op, Outs, Rule, Saves, matmul::MatMul, one_fresh, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{
    Args,
    gemm::{self, Matrix, MatrixMut, Product},
};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::ops::Range;

/// `x (r k)`, weight `(e n k)` (or `(e k n)` when `transposed`), group sizes `(e)` -> `(r n)`: rows are sorted by
/// expert, and the first `sizes[0]` of them meet the first expert.
///
/// The cost does not depend on the sizes, which are data.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedLinear {
    /// Whether the weights lie as `(k n)`.
    pub transposed: bool,
}

/// Checks the dtypes of two factors and of the sizes.
fn check_dtypes(op: &'static str, a: &Spec, b: &Spec, sizes: &Spec) -> Result<()> {
    if a.dtype != b.dtype || !a.dtype.is_float() {
        return Err(Error::NoPromotion { op, a: a.dtype, b: b.dtype });
    }
    if sizes.dtype.is_float() || sizes.dtype.is_bool() {
        return Err(Error::DType { op, got: sizes.dtype, expected: "an integer dtype for the group sizes" });
    }
    Ok(())
}

/// Rows of each group.
pub(crate) fn groups(op: &'static str, sizes: &[i64], rows: usize) -> Result<Vec<Range<usize>>> {
    let mut start = 0usize;
    let mut out = Vec::with_capacity(sizes.len());
    for &size in sizes {
        let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size)).filter(|&end| end <= rows);
        let Some(end) = end else { break };
        out.push(start..end);
        start = end;
    }
    if out.len() == sizes.len() && start == rows {
        return Ok(out);
    }
    Err(Error::Argument { op, what: format!("group sizes {sizes:?} do not add up to the {rows} rows") })
}

impl GroupedLinear {
    /// `(rows, n, k)`.
    fn sizes(&self, inputs: &[Spec]) -> (u64, u64, u64) {
        let (x, w) = (inputs[0].shape(), inputs[1].shape());
        if self.transposed { (x[0], w[2], w[1]) } else { (x[0], w[1], w[2]) }
    }
}

impl Rule for GroupedLinear {
    fn name(&self) -> &'static str {
        "grouped_linear"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (op, x, w, sizes) = (self.name(), &inputs[0], &inputs[1], &inputs[2]);
        let refuse = |b: &Spec, rule| Err(Error::Shapes { op, a: x.shape().into(), b: b.shape().into(), rule });
        if x.layout.rank() != 2 || w.layout.rank() != 3 {
            return refuse(w, "the input needs two dimensions (r k) and the weight three, experts first");
        }
        let (rows, n, k) = self.sizes(inputs);
        if x.shape()[1] != k {
            return refuse(w, "the last size of the input must equal the inner size of the weight");
        }
        if sizes.shape() != [w.shape()[0]] {
            return refuse(sizes, "there must be one group size per expert");
        }
        check_dtypes(op, x, w, sizes)?;
        one_fresh(&[rows, n], x.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (rows, n, k) = self.sizes(inputs);
        let flops = MatMul::flops(1, rows, n, k);
        Cost { matmul: flops, matmul_dense: flops, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, w, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let (k, n) = (x.last(), out.last());
        let step = if self.transposed { (1, n) } else { (k, 1) }; // strides of n and k in a weight
        for (expert, rows) in groups(self.name(), &inputs[2].ints(), x.shape[0])?.into_iter().enumerate() {
            let w = &w.data[expert * n * k..(expert + 1) * n * k];
            for row in rows {
                for j in 0..n {
                    let products = (0..k).map(|p| x.data[row * k + p] * w[j * step.0 + p * step.1]);
                    out.data[row * n + j] = products.fold(T::zero(), |sum, x| sum + x);
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let [x, w, sizes] = [0, 1, 2].map(|i| &args.inputs[i]);
        let Some(sizes) = sizes.ints() else { return Ok(false) };
        let groups = groups(self.name(), &sizes, x.layout.shape()[0] as usize)?;
        Ok(gemm::for_dtype!(x.dtype, T => {
            let (Some(x_data), Some(w_data), Some(out)) =
                (x.storage::<T>(), w.storage::<T>(), args.outputs[0].dense::<T>())
            else {
                return Ok(false);
            };
            let mut products = Vec::with_capacity(groups.len());
            let mut rest = out;
            for (expert, rows) in groups.into_iter().enumerate() {
                let x = Matrix::of(x_data, &x.layout.slice(0, rows.start as u64, rows.len() as u64, 1)?);
                let w = Matrix::of(w_data, &w.layout.select(0, expert as u64)?);
                let w = if self.transposed { w } else { w.t() }; // k n
                let (out, after) = rest.split_at_mut(rows.len() * w.cols());
                rest = after;
                products.push(Product::new(x, w, MatrixMut::new(out, (rows.len(), w.cols()), w.cols())));
            }
            gemm::run(&mut products);
        }))
    }

    fn saves(&self, needs: Needs) -> Saves {
        Saves::inputs(needs.then(0, 0b110) | needs.then(1, 0b101))
    }

    fn differentiable(&self) -> u8 {
        0b011
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (grad, sizes) = (back.grad()?, back.input(2)?);
        let dx = if back.wants(0) {
            Some(Tensor::op(Self { transposed: !self.transposed }, &[grad, back.input(1)?, sizes])?)
        } else {
            None
        };
        let dw = if back.wants(1) {
            let x = back.input(0)?;
            let (a, b) = if self.transposed { (x, grad) } else { (grad, x) };
            match back.buffer(1) {
                Some(buffer) => {
                    buffer.add_grouped_matmul_(a, b, sizes)?;
                    None
                }
                None => Some(Tensor::op(GroupedWeightGrad, &[a, b, sizes])?),
            }
        } else {
            None
        };
        Ok(smallvec![dx, dw, None])
    }
}

/// `a (r m)`, `b (r n)`, group sizes `(e)` -> `(e m n)`: for each group the sum of the outer products of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedWeightGrad;

impl Rule for GroupedWeightGrad {
    fn name(&self) -> &'static str {
        "grouped_weight_grad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (op, a, b, sizes) = (self.name(), &inputs[0], &inputs[1], &inputs[2]);
        let refuse = |b: &Spec, rule| Err(Error::Shapes { op, a: a.shape().into(), b: b.shape().into(), rule });
        let (&[rows, m], &[other_rows, n]) = (a.shape(), b.shape()) else {
            return refuse(b, "both factors need two dimensions");
        };
        let &[experts] = sizes.shape() else {
            return refuse(sizes, "group sizes need one dimension");
        };
        if rows != other_rows {
            return refuse(b, "both factors must have the same rows");
        }
        check_dtypes(op, a, b, sizes)?;
        one_fresh(&[experts, m, n], a.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (a, b) = (inputs[0].shape(), inputs[1].shape());
        let flops = MatMul::flops(1, a[1], b[1], a[0]);
        Cost { matmul: flops, matmul_dense: flops, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let (m, n) = (a.last(), b.last());
        for (expert, rows) in groups(self.name(), &inputs[2].ints(), a.shape[0])?.into_iter().enumerate() {
            let out = &mut out.data[expert * m * n..(expert + 1) * m * n];
            for row in rows {
                for i in 0..m {
                    for j in 0..n {
                        out[i * n + j] = out[i * n + j] + a.data[row * m + i] * b.data[row * n + j];
                    }
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let [a, b, sizes] = [0, 1, 2].map(|i| &args.inputs[i]);
        let Some(sizes) = sizes.ints() else { return Ok(false) };
        let groups = groups(self.name(), &sizes, a.layout.shape()[0] as usize)?;
        Ok(gemm::for_dtype!(a.dtype, T => {
            let (Some(a_data), Some(b_data), Some(out)) =
                (a.storage::<T>(), b.storage::<T>(), args.outputs[0].dense::<T>())
            else {
                return Ok(false);
            };
            let mut products = Vec::with_capacity(groups.len());
            let (m, n) = (a.layout.shape()[1] as usize, b.layout.shape()[1] as usize);
            let mut rest = out;
            for rows in groups {
                let [start, len] = [rows.start, rows.len()].map(|i| i as u64);
                let a = Matrix::of(a_data, &a.layout.slice(0, start, len, 1)?);
                let b = Matrix::of(b_data, &b.layout.slice(0, start, len, 1)?);
                let (out, after) = rest.split_at_mut(m * n);
                rest = after;
                products.push(Product::new(a.t(), b, MatrixMut::new(out, (m, n), n)));
            }
            gemm::run(&mut products);
        }))
    }
}

impl Tensor {
    /// Rows sorted by expert times the transposed weight of their expert. No copy of any weight is made.
    ///
    /// # Shapes
    /// self `r k`, weight `e n k`, sizes `e` (integers that sum to r) -> `r n`
    pub fn grouped_linear(&self, weight: &Self, sizes: &Self) -> Result<Self> {
        Self::op(Op::GroupedLinear(GroupedLinear { transposed: false }), &[self, weight, sizes])
    }

    /// The same with weights as `e k n`.
    ///
    /// # Shapes
    /// self `r k`, weight `e k n`, sizes `e` (integers that sum to r) -> `r n`
    pub fn grouped_linear_transposed(&self, weight: &Self, sizes: &Self) -> Result<Self> {
        Self::op(Op::GroupedLinear(GroupedLinear { transposed: true }), &[self, weight, sizes])
    }
}
