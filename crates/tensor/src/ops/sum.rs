//! Sum over dimensions.

use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, reduce::over_dims};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Sum over `dims`, which stay with size 1 (`keep`) or disappear. Integers and booleans are summed as i64.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Dimensions summed over, ascending.
    pub dims: SmallVec<[u8; 8]>,
    /// Whether they stay with size 1.
    pub keep: bool,
}

/// Shape of a reduction over `dims` of `shape`.
pub(crate) fn reduced_shape(shape: &[u64], dims: &[u8], keep: bool) -> Dims {
    let gone = |d: usize| dims.contains(&(d as u8));
    shape.iter().enumerate().filter(|&(d, _)| keep || !gone(d)).map(|(d, &n)| if gone(d) { 1 } else { n }).collect()
}

/// Calls `visit(input position, output position)` for every element of an array reduced over `dims`.
pub(crate) fn for_each_reduced(shape: &[usize], dims: &[u8], mut visit: impl FnMut(usize, usize)) {
    let mut out_strides = vec![0usize; shape.len()];
    let mut step = 1;
    for d in (0..shape.len()).rev() {
        if !dims.contains(&(d as u8)) {
            out_strides[d] = step;
            step *= shape[d];
        }
    }
    let mut index = vec![0usize; shape.len()];
    for at in 0..shape.iter().product() {
        visit(at, index.iter().zip(&out_strides).map(|(i, s)| i * s).sum());
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
}

impl Rule for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let dtype = if inputs[0].dtype.is_float() { inputs[0].dtype } else { DType::I64 };
        one_fresh(&reduced_shape(inputs[0].shape(), &self.dims, self.keep), dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Each element is added once, to an accumulator that starts at zero.
        elementwise(inputs, outputs, u128::from(inputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].num();
        let out = outputs[0].num_mut();
        for_each_reduced(&x.shape, &self.dims, |from, to| out.data[to] = out.data[to] + x.data[from]);
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(in_compute_dtype!(args, C => over_dims::<C>(args, &self.dims, |sum| sum)))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let shape = back.spec(0).shape();
        let kept = reduced_shape(shape, &self.dims, true);
        // A view: the gradient of every summand is the same number.
        Ok(smallvec![Some(back.grad()?.view(&kept)?.expand(shape)?)])
    }
}

impl Tensor {
    /// Resolves dimension indices to ascending, distinct ones.
    pub(crate) fn dims_of(&self, op: &'static str, dims: &[isize]) -> Result<SmallVec<[u8; 8]>> {
        let mut out: SmallVec<[u8; 8]> = SmallVec::new();
        for &d in dims {
            out.push(self.layout().dim(op, d)? as u8);
        }
        out.sort_unstable();
        out.dedup();
        Ok(out)
    }

    /// Sum over `dims`.
    pub fn sum(&self, dims: &[isize], keep: bool) -> Result<Self> {
        let dims = self.dims_of("sum", dims)?;
        Self::op(Op::Sum(Sum { dims, keep }), &[self])
    }

    /// Sum of all elements, a scalar.
    pub fn sum_all(&self) -> Result<Self> {
        let dims = (0..self.rank() as u8).collect();
        Self::op(Op::Sum(Sum { dims, keep: false }), &[self])
    }

    /// Sums broadcast dimensions away, so that the result has `shape`.
    pub fn sum_to(&self, shape: &[u64]) -> Result<Self> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let extra = self.rank() - shape.len();
        let stretched = |d: usize| d < extra || (shape[d - extra] == 1 && self.shape()[d] != 1);
        let dims: SmallVec<[u8; 8]> = (0..self.rank()).filter(|&d| stretched(d)).map(|d| d as u8).collect();
        let summed = if dims.is_empty() { self.clone() } else { Self::op(Op::Sum(Sum { dims, keep: true }), &[self])? };
        summed.view(shape)
    }
}
