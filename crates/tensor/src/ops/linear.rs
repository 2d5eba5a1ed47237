//! `y = x Wᵀ + b`, the affine map of every projection.

use super::{Needs, Op, Outs, Rule, Saves, matmul::MatMul, one_fresh, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{
    Args,
    gemm::{self, Strided},
};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: `x (rows.. k)`, weight, and a bias `(n)` if there is one.
///
/// The weight is `(n k)`, or `(k n)` when `transposed` (GPT-2's layout).
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Whether the weight lies as `(k n)`.
    pub transposed: bool,
}

impl Linear {
    /// `(rows, n, k)`.
    fn sizes(&self, inputs: &[Spec]) -> (u64, u64, u64) {
        let (x, w) = (inputs[0].shape(), inputs[1].shape());
        let rows = x[..x.len() - 1].iter().product();
        if self.transposed { (rows, w[1], w[0]) } else { (rows, w[0], w[1]) }
    }
}

impl Rule for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (x, w) = (inputs[0].shape(), inputs[1].shape());
        let refuse = |rule| Err(Error::Shapes { op: "linear", a: x.into(), b: w.into(), rule });
        if x.is_empty() || w.len() != 2 {
            return refuse("the input needs at least one dimension and the weight exactly two");
        }
        let (_, n, k) = self.sizes(inputs);
        if x[x.len() - 1] != k {
            return refuse("the last size of the input must equal the inner size of the weight");
        }
        if let Some(bias) = inputs.get(2)
            && bias.shape() != [n]
        {
            return Err(Error::Shapes { op: "linear", a: w.into(), b: bias.shape().into(), rule: "the bias must have one element per output" });
        }
        if let Some(other) = inputs[1..].iter().find(|s| s.dtype != inputs[0].dtype) {
            return Err(Error::NoPromotion { op: "linear", a: inputs[0].dtype, b: other.dtype });
        }
        if !inputs[0].dtype.is_float() {
            return Err(Error::DType { op: "linear", got: inputs[0].dtype, expected: "a floating-point dtype" });
        }
        let mut shape: Dims = x[..x.len() - 1].into();
        shape.push(n);
        one_fresh(&shape, inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (rows, n, k) = self.sizes(inputs);
        let flops = MatMul::flops(1, rows, n, k);
        let bias = if inputs.len() > 2 { u128::from(outputs[0].elements()) } else { 0 };
        Cost { matmul: flops, matmul_dense: flops, elementwise: bias, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, w, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let (n, k) = if self.transposed { (w.shape[1], w.shape[0]) } else { (w.shape[0], w.shape[1]) };
        let rows = x.data.len() / k.max(1);
        for r in 0..rows {
            for j in 0..n {
                let mut sum = T::zero();
                for p in 0..k {
                    let weight = if self.transposed { w.data[p * n + j] } else { w.data[j * k + p] };
                    sum = sum + x.data[r * k + p] * weight;
                }
                out.data[r * n + j] = match inputs.get(2) {
                    Some(bias) => sum + bias.num().data[j],
                    None => sum,
                };
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let [x, w] = [args.inputs[0].layout, args.inputs[1].layout];
        let x = if x.rank() == 1 { x.unsqueeze(0) } else { x.clone() };
        let w = if self.transposed { w.clone() } else { w.transpose(0, 1) }; // k n
        let mut batch: Dims = x.shape()[..x.rank() - 2].into();
        batch.extend_from_slice(w.shape());
        let w = w.expand(&batch)?;
        Ok(gemm::for_dtype!(args.outputs[0].dtype, T => {
            let (Some(x_data), Some(w_data), Some(out)) =
                (args.inputs[0].storage::<T>(), args.inputs[1].storage(), args.outputs[0].dense())
            else {
                return Ok(false);
            };
            let bias = match args.inputs.get(2).map(Strided::<T>::of) {
                Some(None) => return Ok(false),
                Some(Some(bias)) => Some(bias.row()),
                None => None,
            };
            gemm::batched(Strided { data: x_data, layout: &x }, Strided { data: w_data, layout: &w }, out, bias);
        }))
    }

    fn saves(&self, needs: Needs) -> Saves {
        Saves::inputs(needs.then(0, 0b10) | needs.then(1, 0b01))
    }

    fn differentiable(&self) -> u8 {
        0b111
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = back.grad()?;
        let (_, n, k) = self.sizes(&[back.spec(0).clone(), back.spec(1).clone()]);
        let rows: u64 = back.spec(0).elements() / k.max(1);
        let grad = grad.reshape(&[rows, n])?;
        let mut out: Grads = SmallVec::new();
        out.push(if back.wants(0) {
            let w = back.input(1)?;
            let w = if self.transposed { w.t()? } else { w.clone() }; // n k
            Some(grad.matmul(&w)?.view(back.spec(0).shape())?)
        } else {
            None
        });
        out.push(if back.wants(1) {
            let x = back.input(0)?.reshape(&[rows, k])?;
            let (a, b) = if self.transposed { (x.t()?, &grad) } else { (grad.t()?, &x) };
            match back.buffer(1) {
                Some(buffer) => {
                    buffer.add_matmul_(&a, b)?;
                    None
                }
                None => Some(a.matmul(b)?),
            }
        } else {
            None
        });
        if back.len() > 2 {
            out.push(if back.wants(2) { Some(grad.sum(&[0], false)?) } else { None });
        }
        Ok(out)
    }
}

impl Tensor {
    /// `x Wᵀ + b`.
    ///
    /// # Shapes
    /// self `rows.. k`, weight `n k`, bias `n` -> `rows.. n`
    pub fn linear(&self, weight: &Self, bias: Option<&Self>) -> Result<Self> {
        self.linear_op(weight, bias, false)
    }

    /// `x W + b` with the weight as `k n`.
    pub fn linear_transposed(&self, weight: &Self, bias: Option<&Self>) -> Result<Self> {
        self.linear_op(weight, bias, true)
    }

    fn linear_op(&self, weight: &Self, bias: Option<&Self>, transposed: bool) -> Result<Self> {
        let mut inputs: SmallVec<[&Self; 3]> = smallvec![self, weight];
        inputs.extend(bias);
        Self::op(Op::Linear(Linear { transposed }), &inputs)
    }
}
