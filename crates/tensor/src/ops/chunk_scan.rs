//! The recurrence of linear attention over chunks of positions: what gated delta rules run one chunk after the other.

use super::{Needs, Out, Outs, Rule, Saves, traffic};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// For every row of a batch, from a state `S = 0`, chunk by chunk:
/// `v = u - w S`, `o = q S + a v`, `S = diag(g) S + kᵀ v`.
///
/// Inputs, each in f32 or f64: `q`, `k`, `w` `(r n c d)`, `u` `(r n c e)`, `a` `(r n c c)`, of which the part up to the
/// diagonal is read, and `g` `(r n d)`. Outputs: `o` and `v` `(r n c e)` and the state before each chunk `(r n d e)`.
/// `v` and the states take no gradient from outside. Keeps `q`, `k`, `w`, `a`, `g` and the last two outputs.
///
/// `matmul_dense` counts what a loop over the chunks computes: the empty state of the first chunk, the state behind the
/// last, and all of `a`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkScan;

/// Gradients of the six inputs of [`ChunkScan`]. Inputs: gradient of `o`, then `q`, `k`, `w`, `a`, `g`, `v`, states.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkScanBackward;

/// `(r, n, c, d, e)`
#[derive(Clone, Copy)]
struct Sizes {
    rows: u128,
    chunks: u128,
    c: u128,
    d: u128,
    e: u128,
}

impl Sizes {
    fn of(q: &Spec, u: &Spec) -> Self {
        let size = |spec: &Spec, dim: usize| u128::from(spec.shape()[dim]);
        Self { rows: size(q, 0), chunks: size(q, 1), c: size(q, 2), d: size(q, 3), e: size(u, 3) }
    }

    /// FLOP of a product of a chunk with the state, and of `a` with the values, as needed and in full.
    fn parts(self) -> (u128, u128, u128) {
        let Self { c, d, e, .. } = self;
        (2 * c * d * e, c * (c + 1) * e, 2 * c * c * e)
    }
}

impl Rule for ChunkScan {
    fn name(&self) -> &'static str {
        "chunk_scan"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let [q, k, w, u, a, g] = inputs else {
            return Err(Error::Argument { op: "chunk_scan", what: "needs q, k, w, u, a and g".into() });
        };
        let (&[r, n, c, d], &[.., e]) = (q.shape(), u.shape()) else {
            let what = "queries and values must be (rows, chunks, positions, width)".into();
            return Err(Error::Argument { op: "chunk_scan", what });
        };
        let expected: [(&Spec, &[u64]); 5] =
            [(k, &[r, n, c, d]), (w, &[r, n, c, d]), (u, &[r, n, c, e]), (a, &[r, n, c, c]), (g, &[r, n, d])];
        for (spec, shape) in expected {
            if spec.shape() != shape {
                let rule = "all parts must agree in rows, chunks, positions and widths";
                return Err(Error::Shapes { op: "chunk_scan", a: spec.shape().into(), b: shape.into(), rule });
            }
            if spec.dtype != q.dtype {
                return Err(Error::NoPromotion { op: "chunk_scan", a: q.dtype, b: spec.dtype });
            }
        }
        if !q.dtype.is_float() {
            return Err(Error::DType { op: "chunk_scan", got: q.dtype, expected: "a floating-point dtype" });
        }
        let out = |shape: &[u64]| Out::fresh(shape, q.dtype);
        Ok(smallvec![out(u.shape())?, out(u.shape())?, out(&[r, n, d, e])?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let sizes = Sizes::of(&inputs[0], &inputs[3]);
        let Sizes { rows, chunks, c, d, e } = sizes;
        let (state, needed, full) = sizes.parts();
        let later = chunks.saturating_sub(1);
        let matmul = rows * (chunks * needed + later * 3 * state);
        let matmul_dense = rows * chunks * (full + 3 * state);
        let elementwise = rows * (later * c * e + chunks.saturating_sub(2) * 2 * d * e);
        Cost { matmul, matmul_dense, elementwise, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let [q, k, w, u, a, g] = [0, 1, 2, 3, 4, 5].map(|i: usize| inputs[i].num());
        let [out, values, states] = outputs else { return Err(Error::Backward("a recurrence has three results")) };
        let (out, values, states) = (out.num_mut(), values.num_mut(), states.num_mut());
        let [r, n, c, d] = [q.shape[0], q.shape[1], q.shape[2], q.shape[3]];
        let e = u.shape[3];
        for chunk in 0..r * n {
            let (first, last) = (chunk % n == 0, chunk % n + 1 == n);
            let (keys, vals, state) = (chunk * c * d, chunk * c * e, chunk * d * e);
            for i in 0..c {
                for x in 0..e {
                    let at = vals + i * e + x;
                    let mut seen = T::zero();
                    if !first {
                        for y in 0..d {
                            seen = seen + w.data[keys + i * d + y] * states.data[state + y * e + x];
                        }
                    }
                    values.data[at] = if first { u.data[at] } else { u.data[at] - seen };
                }
            }
            for i in 0..c {
                for x in 0..e {
                    let mut sum = T::zero();
                    for j in 0..=i {
                        sum = sum + a.data[(chunk * c + i) * c + j] * values.data[vals + j * e + x];
                    }
                    if !first {
                        for y in 0..d {
                            sum = sum + q.data[keys + i * d + y] * states.data[state + y * e + x];
                        }
                    }
                    out.data[vals + i * e + x] = sum;
                }
            }
            if last {
                continue;
            }
            for y in 0..d {
                for x in 0..e {
                    let mut sum = T::zero();
                    for i in 0..c {
                        sum = sum + k.data[keys + i * d + y] * values.data[vals + i * e + x];
                    }
                    let at = state + y * e + x;
                    states.data[at + d * e] =
                        if first { sum } else { g.data[chunk * d + y] * states.data[at] + sum };
                }
            }
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves { inputs: 0b11_0111, outputs: 0b110 }
    }

    fn differentiable(&self) -> u8 {
        0b11_1111
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let kept = [back.input(0)?, back.input(1)?, back.input(2)?, back.input(4)?, back.input(5)?];
        let [q, k, w, a, g] = kept;
        let inputs = [back.grad()?, q, k, w, a, g, back.output(1)?, back.output(2)?];
        let grads = apply(ChunkScanBackward.into(), &inputs)?;
        Ok(grads.into_iter().map(Some).collect())
    }
}

impl Rule for ChunkScanBackward {
    fn name(&self) -> &'static str {
        "chunk_scan_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, q, a, g) = (&inputs[0], &inputs[1], &inputs[4], &inputs[5]);
        let out = |like: &Spec| Out::fresh(like.shape(), q.dtype);
        Ok(smallvec![out(q)?, out(q)?, out(q)?, out(grad)?, out(a)?, out(g)?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let sizes = Sizes::of(&inputs[1], &inputs[0]);
        let Sizes { rows, chunks, c, d, e } = sizes;
        let (state, needed, full) = sizes.parts();
        let later = chunks.saturating_sub(1);
        let matmul = rows * (chunks * 2 * needed + later * 6 * state);
        let matmul_dense = rows * (chunks * 2 * (full + state) + later * 4 * state);
        let elementwise = rows * (later * c * d + chunks.saturating_sub(2) * 4 * d * e);
        Cost { matmul, matmul_dense, elementwise, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let [grad, q, k, w, a, g, values, states] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| inputs[i].num());
        let [dq, dk, dw, du, da, dg] = outputs else { return Err(Error::Backward("a recurrence has six gradients")) };
        let (dq, dk, dw) = (dq.num_mut(), dk.num_mut(), dw.num_mut());
        let (du, da, dg) = (du.num_mut(), da.num_mut(), dg.num_mut());
        let [r, n, c, d] = [q.shape[0], q.shape[1], q.shape[2], q.shape[3]];
        let e = grad.shape[3];
        // Gradient of the state behind the chunk, then of the one before it.
        let mut behind = vec![T::zero(); d * e];
        for chunk in (0..r * n).rev() {
            let (first, last) = (chunk % n == 0, chunk % n + 1 == n);
            let (keys, vals, state) = (chunk * c * d, chunk * c * e, chunk * d * e);
            for j in 0..c {
                for x in 0..e {
                    let mut sum = T::zero();
                    for i in j..c {
                        sum = sum + a.data[(chunk * c + i) * c + j] * grad.data[vals + i * e + x];
                    }
                    if !last {
                        for y in 0..d {
                            sum = sum + k.data[keys + j * d + y] * behind[y * e + x];
                        }
                    }
                    du.data[vals + j * e + x] = sum;
                }
            }
            for i in 0..c {
                for j in 0..=i {
                    let mut sum = T::zero();
                    for x in 0..e {
                        sum = sum + grad.data[vals + i * e + x] * values.data[vals + j * e + x];
                    }
                    da.data[(chunk * c + i) * c + j] = sum;
                }
                for y in 0..d {
                    let at = keys + i * d + y;
                    let along = |rows: &[T], state: &[T]| {
                        (0..e).fold(T::zero(), |sum, x| sum + rows[i * e + x] * state[y * e + x])
                    };
                    if !first {
                        dq.data[at] = along(&grad.data[vals..], &states.data[state..]);
                        dw.data[at] = -along(&du.data[vals..], &states.data[state..]);
                    }
                    if !last {
                        dk.data[at] = along(&values.data[vals..], &behind);
                    }
                }
            }
            let mut before = vec![T::zero(); d * e];
            for y in 0..d {
                if !first && !last {
                    dg.data[chunk * d + y] = (0..e)
                        .fold(T::zero(), |sum, x| sum + behind[y * e + x] * states.data[state + y * e + x]);
                }
                for x in 0..e {
                    if first {
                        continue;
                    }
                    let mut sum = T::zero();
                    for i in 0..c {
                        sum = sum + q.data[keys + i * d + y] * grad.data[vals + i * e + x];
                        sum = sum - w.data[keys + i * d + y] * du.data[vals + i * e + x];
                    }
                    before[y * e + x] = if last { sum } else { sum + g.data[chunk * d + y] * behind[y * e + x] };
                }
            }
            behind = before;
        }
        Ok(())
    }
}

/// Parts of a recurrence over chunks: see [`ChunkScan`].
#[derive(Clone, Debug)]
pub struct Chunks {
    /// `r n c d`
    pub q: Tensor,
    /// `r n c d`
    pub k: Tensor,
    /// `r n c d`
    pub w: Tensor,
    /// `r n c e`
    pub u: Tensor,
    /// `r n c c`
    pub a: Tensor,
    /// `r n d`
    pub g: Tensor,
}

impl Chunks {
    /// What is read at every position.
    ///
    /// # Shapes
    /// `r n c e`
    ///
    /// # Errors
    /// If shapes or dtypes do not fit.
    pub fn scan(&self) -> Result<Tensor> {
        let Self { q, k, w, u, a, g } = self;
        Ok(apply(ChunkScan.into(), &[q, k, w, u, a, g])?.remove(0))
    }
}
