//! Batched matrix product over strided operands.

use super::{Needs, Op, Outs, Rule, Saves, one_fresh, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{
    Args,
    gemm::{self, Strided},
};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::{Dims, broadcast_shapes};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `a (batch.. m k) · b (batch.. k n) -> (batch.. m n)`. Operands may be strided; nothing is copied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MatMul {
    /// Set for scores and values of explicit attention: of the square of queries and keys that is computed, the model
    /// needs only the pairs its mask leaves.
    pub mask: Option<Mask>,
}

/// How many of the computed pairs of queries and keys the model needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Pairs a head needs.
    pub pairs: u64,
    /// Pairs that are computed: queries times keys.
    pub square: u64,
}

impl MatMul {
    /// FLOP of `batch` products `m x k · k x n`: one multiply-add is 2.
    pub fn flops(batch: u64, m: u64, n: u64, k: u64) -> u128 {
        2 * u128::from(batch) * u128::from(m) * u128::from(n) * u128::from(k)
    }
}

/// `(batch, m, n, k)` of a product.
fn sizes(a: &[u64], b: &[u64]) -> (u64, u64, u64, u64) {
    let (ra, rb) = (a.len(), b.len());
    (a[..ra - 2].iter().product(), a[ra - 2], b[rb - 1], a[ra - 1])
}

impl Rule for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (a, b) = (inputs[0].shape(), inputs[1].shape());
        let refuse = |rule| Err(Error::Shapes { op: "matmul", a: a.into(), b: b.into(), rule });
        if a.len() < 2 || a.len() != b.len() {
            return refuse("both must have the same rank, at least 2");
        }
        let rank = a.len();
        if a[..rank - 2] != b[..rank - 2] {
            return refuse("batch dimensions must be equal");
        }
        if a[rank - 1] != b[rank - 2] {
            return refuse("the inner sizes (last of the first, second-last of the second) must be equal");
        }
        let (x, y) = (inputs[0].dtype, inputs[1].dtype);
        if x != y || !x.is_float() {
            return Err(Error::NoPromotion { op: "matmul", a: x, b: y });
        }
        let mut shape: Dims = a[..rank - 1].into();
        shape.push(b[rank - 1]);
        one_fresh(&shape, x)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (batch, m, n, k) = sizes(inputs[0].shape(), inputs[1].shape());
        let flops = Self::flops(batch, m, n, k);
        let needed = match self.mask {
            Some(Mask { pairs, square }) if square > 0 => flops / u128::from(square) * u128::from(pairs),
            _ => flops,
        };
        Cost { matmul: needed, matmul_dense: flops, recomputed: flops - needed, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let rank = a.shape.len();
        let (m, k, n) = (a.shape[rank - 2], a.shape[rank - 1], b.shape[rank - 1]);
        let batch: usize = a.shape[..rank - 2].iter().product();
        for z in 0..batch {
            multiply(&a.data[z * m * k..], &b.data[z * k * n..], &mut out.data[z * m * n..], (m, n, k));
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(gemm::for_dtype!(args.outputs[0].dtype, T => {
            let (Some(a), Some(b), Some(c)) = (
                Strided::<T>::of(&args.inputs[0]),
                Strided::of(&args.inputs[1]),
                args.outputs[0].dense(),
            ) else {
                return Ok(false);
            };
            gemm::batched(a, b, c, None);
        }))
    }

    fn saves(&self, needs: Needs) -> Saves {
        Saves::inputs(needs.then(0, 0b10) | needs.then(1, 0b01))
    }

    fn differentiable(&self) -> u8 {
        0b11
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = back.grad()?;
        // The gradients of a masked product are products over the same pairs.
        let da = if back.wants(0) { Some(grad.matmul_op(&back.input(1)?.t()?, self)?) } else { None };
        let db = if back.wants(1) { Some(back.input(0)?.t()?.matmul_op(grad, self)?) } else { None };
        Ok(smallvec![da, db])
    }
}

/// `out += a · b` over dense rows.
pub(crate) fn multiply<T: Num>(a: &[T], b: &[T], out: &mut [T], (m, n, k): (usize, usize, usize)) {
    for i in 0..m {
        for p in 0..k {
            let x = a[i * k + p];
            for j in 0..n {
                out[i * n + j] = out[i * n + j] + x * b[p * n + j];
            }
        }
    }
}

impl Tensor {
    /// Matrix product with broadcast batch dimensions; strided operands are read in place.
    ///
    /// # Shapes
    /// `batch.. m k`, `batch.. k n` -> `batch.. m n`
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        let (a, b) = (self.shape(), other.shape());
        if a.len() < 2 || b.len() < 2 || a[..a.len() - 2] == b[..b.len() - 2] {
            return self.matmul_op(other, &MatMul::default());
        }
        let batch = broadcast_shapes("matmul", &a[..a.len() - 2], &b[..b.len() - 2])?;
        let full = |t: &[u64]| -> Dims { batch.iter().chain(&t[t.len() - 2..]).copied().collect() };
        self.expand(&full(a))?.matmul_op(&other.expand(&full(b))?, &MatMul::default())
    }

    /// A product of scores or values of explicit attention, of which the model needs only some pairs.
    ///
    /// # Shapes
    /// `batch.. m k`, `batch.. k n` with equal batch -> `batch.. m n`
    pub fn matmul_masked(&self, other: &Self, mask: Mask) -> Result<Self> {
        self.matmul_op(other, &MatMul { mask: Some(mask) })
    }

    fn matmul_op(&self, other: &Self, op: &MatMul) -> Result<Self> {
        Self::op(Op::MatMul(op.clone()), &[self, other])
    }
}
