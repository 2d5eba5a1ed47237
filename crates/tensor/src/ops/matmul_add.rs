//! Batched matrix product added to a base: a weight with what an adapter makes of it.

use super::{Needs, Op, Outs, Rule, Saves, matmul::MatMul, matmul::multiply, one_fresh, traffic};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `base (b m n) + alpha a (b m k) · c (b k n) -> (b m n)`. Factors may be strided; the product has no storage of its own.
///
/// There is no fast kernel: it stands for one of a GPU (`baddbmm` of PyTorch), which Napkin's own training does without.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMulAdd {
    /// Factor of the product.
    pub alpha: f64,
}

impl Rule for MatMulAdd {
    fn name(&self) -> &'static str {
        "matmul_add"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (op, base, a, c) = (self.name(), &inputs[0], &inputs[1], &inputs[2]);
        let refuse = |x: &Spec, y: &Spec, rule| Err(Error::Shapes { op, a: x.shape().into(), b: y.shape().into(), rule });
        let (&[batch, m, k], &[others, inner, n]) = (a.shape(), c.shape()) else {
            return refuse(a, c, "both factors need three dimensions");
        };
        if batch != others || k != inner {
            return refuse(a, c, "the batch and the inner sizes of the factors must be equal");
        }
        if base.shape() != [batch, m, n] {
            return refuse(base, c, "the base must have the shape of the product");
        }
        for factor in [a, c] {
            if factor.dtype != base.dtype || !base.dtype.is_float() {
                return Err(Error::NoPromotion { op, a: base.dtype, b: factor.dtype });
            }
        }
        one_fresh(base.shape(), base.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (a, c) = (inputs[1].shape(), inputs[2].shape());
        let flops = MatMul::flops(a[0], a[1], c[2], a[2]);
        let elementwise = 2 * u128::from(outputs[0].elements());
        Cost { matmul: flops, matmul_dense: flops, elementwise, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (base, a, c, out) = (inputs[0].num(), inputs[1].num(), inputs[2].num(), outputs[0].num_mut());
        let (batch, m, k, n) = (a.shape[0], a.shape[1], a.shape[2], c.shape[2]);
        for z in 0..batch {
            multiply(&a.data[z * m * k..], &c.data[z * k * n..], &mut out.data[z * m * n..], (m, n, k));
        }
        for (out, base) in out.data.iter_mut().zip(&base.data) {
            *out = *base + T::from_f64(self.alpha) * *out;
        }
        Ok(())
    }

    fn saves(&self, needs: Needs) -> Saves {
        Saves::inputs(needs.then(1, 0b100) | needs.then(2, 0b010))
    }

    fn differentiable(&self) -> u8 {
        0b111
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = back.grad()?;
        let scaled = |product: Result<Tensor>| product?.mul_scalar(self.alpha);
        let base = back.wants(0).then(|| grad.clone());
        let da = if back.wants(1) { Some(scaled(grad.matmul(&back.input(2)?.t()?))?) } else { None };
        let dc = if back.wants(2) { Some(scaled(back.input(1)?.t()?.matmul(grad))?) } else { None };
        Ok(smallvec![base, da, dc])
    }
}

impl Tensor {
    /// `self + alpha a · c`, in one fresh tensor.
    ///
    /// # Shapes
    /// self `b m n`, a `b m k`, c `b k n` -> `b m n`
    ///
    /// # Errors
    /// If shapes or dtypes do not fit.
    pub fn add_matmul(&self, a: &Self, c: &Self, alpha: f64) -> Result<Self> {
        Self::op(Op::MatMulAdd(MatMulAdd { alpha }), &[self, a, c])
    }
}
