//! The head and the loss in one: `cross_entropy(x Wᵀ, targets)`, a few rows at a time. The logits of a chunk become its
//! gradient, and that the gradients of the input and of the weight, before the next chunk: no logits outlive it, and
//! nothing is left to do in backward but a multiplication with the gradient of the loss.
//!
//! Source: Hsu et al., Liger Kernel, arXiv:2410.10989, section 3.2; `fused_linear_cross_entropy_forward` of liger-kernel 0.5.

use super::nll_loss::{IGNORE_INDEX, Reduction, check_targets, columns, valid};
use super::{Needs, Op, Out, Outs, Rule, Saves, matmul::MatMul, traffic};
use crate::apply::{Outputs, apply, apply_reusing};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Layout;
use crate::meter::Cost;
use crate::ops::binary::{Binary, BinaryKind};
use crate::ops::cross_entropy::{gradient_flops, loss_flops, statistics};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// Inputs: x `(n h)`, weight `(v h)`, targets `(n)`. Outputs: the mean loss, at least f32; then the gradients of x and of the
/// weight for a loss gradient of 1, as far as they are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearCrossEntropy {
    /// Rows of a chunk.
    pub chunk: u64,
    /// Whether the gradient of x is made.
    pub dx: bool,
    /// Whether the gradient of the weight is made.
    pub dw: bool,
}

impl LinearCrossEntropy {
    /// Rows of a chunk by the rule of Liger Kernel: as many logits as the input has numbers, rounded up to a power of two.
    pub fn rows_of_chunk(rows: u64, width: u64, vocabulary: u64) -> u64 {
        let parts = vocabulary.div_ceil(width.max(1)).max(1);
        rows.div_ceil(parts).max(1).next_power_of_two()
    }
}

impl Rule for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        let (&[n, h], &[v, k]) = (inputs[0].shape(), inputs[1].shape()) else {
            let rule = "the input and the weight must be matrices";
            return Err(Error::Shapes { op, a: inputs[0].shape().into(), b: inputs[1].shape().into(), rule });
        };
        if h != k {
            let rule = "the rows of both must have one length";
            return Err(Error::Shapes { op, a: inputs[0].shape().into(), b: inputs[1].shape().into(), rule });
        }
        if inputs[0].dtype != inputs[1].dtype {
            return Err(Error::NoPromotion { op, a: inputs[0].dtype, b: inputs[1].dtype });
        }
        if self.chunk == 0 {
            return Err(Error::Argument { op, what: "a chunk has at least one row".to_owned() });
        }
        let logits = Spec { dtype: inputs[0].dtype, layout: Arc::new(Layout::contiguous(&[n, v])?) };
        check_targets(op, &logits, &inputs[2])?;
        let mut outs: Outs = smallvec![Out::fresh(&[], statistics(inputs[0].dtype))?];
        for (wanted, shape) in [(self.dx, [n, h]), (self.dw, [v, h])] {
            if wanted {
                outs.push(Out::fresh(&shape, inputs[0].dtype)?);
            }
        }
        Ok(outs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (n, h, v) = (inputs[0].shape()[0], inputs[0].shape()[1], inputs[1].shape()[0]);
        let products = 1 + u128::from(self.dx) + u128::from(self.dw);
        let matmul = products * MatMul::flops(1, n, v, h);
        let (rows, logits) = (u128::from(n), u128::from(n) * u128::from(v));
        let mean = Reduction::Mean.divisions();
        let gradient = if self.dx || self.dw { gradient_flops(logits, rows) + mean } else { 0 };
        let elementwise = loss_flops(logits, rows) + mean + gradient;
        let size = inputs[0].dtype.size_in_bytes();
        // The gradient of the weight of a chunk is a product of its own before it is added to that of the others.
        let part = if self.dw && n > self.chunk { v * h * size } else { 0 };
        let workspace = self.chunk.min(n) * v * size + part;
        Cost { matmul, matmul_dense: matmul, elementwise, workspace, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, w) = (inputs[0].num(), inputs[1].num());
        let (h, v) = (x.last(), w.shape[0]);
        let columns = columns(self.name(), &inputs[2].ints(), IGNORE_INDEX, v)?;
        let count = T::from_f64(valid(&columns));
        let share = if self.dx || self.dw { T::from_f64(1.0) / count } else { T::zero() };
        let mut total = T::zero();
        let mut row = vec![T::zero(); v];
        for (r, column) in columns.iter().enumerate() {
            let x = &x.data[r * h..][..h];
            for (logit, w) in row.iter_mut().zip(w.data.chunks(h.max(1))) {
                *logit = x.iter().zip(w).fold(T::zero(), |sum, (&x, &w)| sum + x * w);
            }
            let max = row.iter().fold(T::from_f64(f64::NEG_INFINITY), |max, &x| max.max(x));
            let sum = row.iter().fold(T::zero(), |sum, &x| sum + (x - max).exp());
            let lse = max + sum.ln();
            let loss = lse - column.map_or(T::zero(), |c| row[c]);
            total = total + if column.is_some() { loss } else { T::zero() };
            if !self.dx && !self.dw {
                continue;
            }
            for logit in &mut row {
                let slope = (*logit - lse).exp() * share;
                *logit = if column.is_some() { slope } else { T::zero() };
            }
            if v > 0 {
                let off = if column.is_some() { share } else { T::zero() };
                let target = &mut row[column.unwrap_or(0)];
                *target = *target - off;
            }
            if self.dx {
                let dx = &mut outputs[1].num_mut().data[r * h..][..h];
                for (slope, w) in row.iter().zip(w.data.chunks(h.max(1))) {
                    for (dx, &w) in dx.iter_mut().zip(w) {
                        *dx = *dx + *slope * w;
                    }
                }
            }
            if self.dw {
                let dw = &mut outputs[1 + usize::from(self.dx)].num_mut().data;
                for (slope, dw) in row.iter().zip(dw.chunks_mut(h.max(1))) {
                    for (dw, &x) in dw.iter_mut().zip(x) {
                        *dw = *dw + *slope * x;
                    }
                }
            }
        }
        outputs[0].num_mut().data[0] = total / count;
        Ok(())
    }

    fn saves(&self, needs: Needs) -> Saves {
        let dx = if self.dx { needs.then(0, 0b10) } else { 0 };
        let dw = if self.dw { needs.then(1, if self.dx { 0b100 } else { 0b10 }) } else { 0 };
        Saves::outputs(dx | dw)
    }

    fn differentiable(&self) -> u8 {
        u8::from(self.dx) | u8::from(self.dw) << 1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = back.grad()?;
        // In place, as the reference does it in all profiles: what was made for this is nobody else's.
        let scaled = |output: usize| -> Result<Tensor> {
            let mul = Op::Binary(Binary { kind: BinaryKind::Mul, in_place: false });
            Ok(apply_reusing(mul, &[back.output(output)?, grad], 0)?.swap_remove(0))
        };
        let dx = if back.wants(0) { Some(scaled(1)?) } else { None };
        let dw = if back.wants(1) { Some(scaled(1 + usize::from(self.dx))?) } else { None };
        Ok(smallvec![dx, dw, None])
    }
}

impl Tensor {
    /// Mean cross-entropy of `x Wᵀ` against `targets`, `chunk` rows at a time.
    ///
    /// # Shapes
    /// self `n h`, weight `v h`, targets `n` (integers) -> scalar
    ///
    /// # Errors
    /// Shapes and dtypes that do not belong together; a target that is no row of the weight.
    pub fn linear_cross_entropy(&self, weight: &Self, targets: &Self, chunk: u64) -> Result<Self> {
        let on = self.runtime().grad_enabled();
        let op = LinearCrossEntropy { chunk, dx: on && self.requires_grad(), dw: on && weight.requires_grad() };
        let mut outputs: Outputs = apply(Op::LinearCrossEntropy(op), &[self, weight, targets])?;
        Ok(outputs.swap_remove(0))
    }
}
