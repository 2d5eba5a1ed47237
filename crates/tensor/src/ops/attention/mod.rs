//! Fused attention: scores, softmax and weighted sum of values.
//!
//! The score matrix is never stored. Backward recomputes it from the saved log-sum-exp.

#![allow(clippy::inline_always)] // kernels are compiled for an instruction set by being inlined, see `cpu::lanes`

#[cfg(feature = "cpu")]
mod backward;
#[cfg(feature = "cpu")]
mod decode;
#[cfg(feature = "cpu")]
mod fast;
#[cfg(feature = "cpu")]
mod forward;
#[cfg(feature = "cpu")]
mod heads;
mod plain;
#[cfg(feature = "cpu")]
mod product;
#[cfg(feature = "cpu")]
mod tile;

use super::{Needs, Op, Out, Outs, Rule, Saves, cross_entropy::statistics, matmul::MatMul, traffic};
use crate::apply::{Outputs, apply};
use crate::autograd::{Back, Grads};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::{Layout, broadcast_shapes, checked_count, elementwise_layout};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// `softmax(scale · q kᵀ) v`.
///
/// Inputs: q `(b a sq d)`, k `(b kv sk d)`, v `(b kv sk dv)`, then the bias and the sinks, as far as there are any.
/// Outputs: `(b a sq dv)` in the memory order of q, and the log-sum-exp `(b a sq)` in the memory order b sq a, at least
/// f32. A query whose scores are all negative infinity gets zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query `i` sees keys up to `i + (sk - sq)`: the last query sees all.
    pub causal: bool,
    /// Of those, only so many that end at its own position. Needs `causal`.
    pub window: Option<u64>,
    /// Pairs of a head that a mask in the bias leaves; `None`: all that the fields above do. Counts as what is needed, and
    /// changes nothing that is computed.
    pub seen: Option<u64>,
    /// Factor of the scores.
    pub scale: f64,
    /// Scores become `cap · tanh(score / cap)` before the bias is added.
    pub softcap: Option<f64>,
    /// Whether there is a bias, added to the scores; broadcasts to `(b a sq sk)`.
    pub bias: bool,
    /// Whether there are sinks `(a)`: a logit per head that joins the denominator of the softmax and has no value.
    pub sinks: bool,
}

/// Gradients of q, k, v, and of the sinks if they want one. Inputs: those of the forward op, its outputs, and the
/// gradient of the first.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionBackward {
    /// The forward op; with sinks only if they want a gradient, for the log-sum-exp holds their part of the softmax.
    pub of: Attention,
}

/// Number of (query, key) pairs that a head looks at.
///
/// * not causal: `sq · sk`
/// * causal: query `i` sees keys up to `i + (sk - sq)`; for `sq = sk = s` that is `s (s + 1) / 2`
/// * causal with a window `w`: only the last `w` of them; for `sq = sk = s >= w` that is `s w - w (w - 1) / 2`
///
/// Exact while the square fits; the shape rule of [`Attention`] refuses larger ones.
pub fn pairs(sq: u64, sk: u64, causal: bool, window: Option<u64>) -> u64 {
    let (sq, sk) = (u128::from(sq), u128::from(sk));
    // Pairs of the first n queries of a square: the i-th sees min(i, w) keys.
    let triangle = |n: u128| {
        let w = window.map_or(n, |w| n.min(u128::from(w)));
        w * (w + 1) / 2 + (n - w) * w
    };
    let exact = if causal { triangle(sk) - triangle(sk.saturating_sub(sq)) } else { sq * sk };
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// Sizes by their letters.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    b: u64,
    a: u64,
    kv: u64,
    sq: u64,
    sk: u64,
    d: u64,
    dv: u64,
}

impl Sizes {
    fn of(inputs: &[Spec]) -> Self {
        Self::of_layouts([0, 1, 2].map(|i| &*inputs[i].layout))
    }

    /// Of queries, keys, values.
    fn of_layouts(layouts: [&Layout; 3]) -> Self {
        let [q, k, v] = layouts.map(Layout::shape);
        Self { b: q[0], a: q[1], kv: k[1], sq: q[2], sk: k[2], d: q[3], dv: v[3] }
    }

    /// FLOP of products over `pairs` pairs per head that contract or make `width` numbers per pair.
    fn products(self, pairs: u64, width: u64) -> u128 {
        MatMul::flops(self.b * self.a, pairs, width, 1)
    }

    fn square(self) -> u64 {
        self.sq * self.sk
    }

    /// Rows of scores.
    fn rows(self) -> u128 {
        u128::from(self.b) * u128::from(self.a) * u128::from(self.sq)
    }
}

impl Attention {
    /// Number of inputs: q, k, v, bias, sinks.
    fn arity(&self) -> usize {
        3 + usize::from(self.bias) + usize::from(self.sinks)
    }

    /// Position of the sinks among the inputs.
    fn sinks_at(&self) -> usize {
        3 + usize::from(self.bias)
    }

    fn pairs(&self, sizes: Sizes) -> u64 {
        pairs(sizes.sq, sizes.sk, self.causal, self.window)
    }

    /// Arithmetic that turns a dot product into a score: scale, cap (divide, tanh, multiply), bias.
    fn score_flops(&self) -> u128 {
        1 + 3 * u128::from(self.softcap.is_some()) + u128::from(self.bias)
    }

    fn check(&self, op: &'static str, inputs: &[Spec]) -> Result<Sizes> {
        if inputs.len() < self.arity() {
            return Err(Error::Argument { op, what: format!("{} inputs, expected {}", inputs.len(), self.arity()) });
        }
        if let Some(wrong) = inputs[..3].iter().find(|s| s.layout.rank() != 4) {
            return Err(Error::Rank { op, expected: 4, shape: wrong.shape().into() });
        }
        let sizes = Sizes::of(inputs);
        let (q, k, v) = (inputs[0].shape(), inputs[1].shape(), inputs[2].shape());
        let refuse = |a: &[u64], b: &[u64], rule| Err(Error::Shapes { op, a: a.into(), b: b.into(), rule });
        if q[0] != k[0] || q[3] != k[3] {
            return refuse(q, k, "batch size and head dim (first and last size) of queries and keys must be equal");
        }
        if k[..3] != v[..3] {
            return refuse(k, v, "keys and values must agree in all but the last size");
        }
        if sizes.kv == 0 || !sizes.a.is_multiple_of(sizes.kv) {
            return refuse(
                q,
                k,
                "the number of query heads must be a multiple of the number of key heads (second size)",
            );
        }
        if self.causal && sizes.sq > sizes.sk {
            return refuse(q, k, "causal attention needs at least as many keys as queries (third size)");
        }
        checked_count(&[sizes.sq, sizes.sk])?;
        if self.window.is_some_and(|w| w == 0 || !self.causal) {
            let what = "a window must be causal and at least 1: it ends at the query's own position".into();
            return Err(Error::Argument { op, what });
        }
        if !self.scale.is_finite() || self.softcap.is_some_and(|c| !c.is_finite() || c <= 0.0) {
            return Err(Error::Argument { op, what: "the scale must be finite, a softcap finite and positive".into() });
        }
        if let Some(other) = inputs[1..3].iter().find(|s| s.dtype != inputs[0].dtype) {
            return Err(Error::NoPromotion { op, a: inputs[0].dtype, b: other.dtype });
        }
        if let Some(wrong) = inputs[..self.arity()].iter().find(|s| !s.dtype.is_float()) {
            return Err(Error::DType { op, got: wrong.dtype, expected: "a floating-point dtype" });
        }
        if self.bias {
            let scores = [sizes.b, sizes.a, sizes.sq, sizes.sk];
            let bias = inputs[3].shape();
            if broadcast_shapes(op, bias, &scores)?.as_slice() != scores {
                return Err(Error::Broadcast { op, a: bias.into(), b: scores[..].into() });
            }
        }
        if self.sinks && inputs[self.sinks_at()].shape() != [sizes.a] {
            return refuse(q, inputs[self.sinks_at()].shape(), "there must be one sink per query head");
        }
        Ok(sizes)
    }
}

impl Rule for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let n = self.check(self.name(), inputs)?;
        let shape = [n.b, n.a, n.sq, n.dv];
        checked_count(&shape)?;
        // In the memory order of q, as the reference framework's fused kernels: with q a transposed (b sq a d), merging the
        // heads afterwards is a view.
        let layout = elementwise_layout(&shape, &[&inputs[0].layout]);
        let lse = Layout::dense_in_order(&[n.b, n.a, n.sq], &[0, 2, 1]);
        let fresh = |dtype: DType, layout: Layout| Out::Fresh(Spec { dtype, layout: Arc::new(layout) });
        Ok(smallvec![fresh(inputs[0].dtype, layout), fresh(statistics(inputs[0].dtype), lse)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let n = Sizes::of(inputs);
        let pairs = self.pairs(n);
        let scores = u128::from(n.b) * u128::from(n.a) * u128::from(pairs);
        Cost {
            matmul: n.products(self.seen.unwrap_or(pairs), n.d + n.dv),
            matmul_dense: n.products(n.square(), n.d + n.dv),
            // Per score: max, subtract, exp, add. Per row: ln, add, divide each value; the sink takes max, subtract, exp,
            // add.
            elementwise: (self.score_flops() + 4) * scores
                + (2 + u128::from(n.dv) + 4 * u128::from(self.sinks)) * n.rows(),
            // One row of scores.
            workspace: n.sk * outputs[1].dtype.size_in_bytes(),
            ..traffic(inputs, outputs)
        }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        plain::forward(self, inputs, outputs);
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut crate::cpu::Args<'_>) -> Result<bool> {
        Ok(fast::forward(self, args))
    }

    fn saves(&self, needs: Needs) -> Saves {
        let sinks = if self.sinks { needs.then(self.sinks_at(), 1 << self.sinks_at()) } else { 0 };
        Saves { inputs: 0b111 | u8::from(self.bias) << 3 | sinks, outputs: 0b11 }
    }

    fn differentiable(&self) -> u8 {
        // No rule for the bias: masks want none, and its gradient would be the full square.
        0b111 | u8::from(self.sinks) << self.sinks_at()
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        if back.grad_of(1).is_some() {
            return Err(Error::Backward("the log-sum-exp of attention has no gradient rule"));
        }
        let of = Self { sinks: self.sinks && back.wants(self.sinks_at()), ..self.clone() };
        let mut inputs: SmallVec<[&Tensor; 8]> = SmallVec::new();
        for i in 0..of.arity() {
            inputs.push(back.input(i)?);
        }
        inputs.extend([back.output(0)?, back.output(1)?, back.grad()?]);
        let mut made = apply(Op::AttentionBackward(AttentionBackward { of }), &inputs)?.into_iter();
        let mut grads: Grads = (0..3).map(|i| made.next().filter(|_| back.wants(i))).collect();
        if self.bias {
            grads.push(None);
        }
        if self.sinks {
            grads.push(made.next());
        }
        Ok(grads)
    }
}

impl Rule for AttentionBackward {
    fn name(&self) -> &'static str {
        "attention_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        let n = self.of.check(op, inputs)?;
        let (after, shape) = (&inputs[self.of.arity()..], [n.b, n.a, n.sq, n.dv]);
        if after.len() != 3 || after[0].shape() != shape || after[1].shape() != &shape[..3] || after[2].shape() != shape
        {
            let what = format!("result and gradient must have shape {shape:?}, the log-sum-exp {:?}", &shape[..3]);
            return Err(Error::Argument { op, what });
        }
        // Memory order b s a d whatever the inputs' order, as the reference framework's CPU kernel.
        let fresh = |s: &Spec| {
            let layout = Layout::dense_in_order(s.shape(), &[0, 2, 1, 3]);
            Out::Fresh(Spec { dtype: s.dtype, layout: Arc::new(layout) })
        };
        let mut outs: Outs = inputs[..3].iter().map(fresh).collect();
        if self.of.sinks {
            outs.push(Out::fresh(&[n.a], inputs[self.of.sinks_at()].dtype)?);
        }
        Ok(outs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let n = Sizes::of(inputs);
        let pairs = self.of.pairs(n);
        let needed = self.of.seen.unwrap_or(pairs);
        let scores = u128::from(n.b) * u128::from(n.a) * u128::from(pairs);
        let cap = 3 * u128::from(self.of.softcap.is_some());
        Cost {
            // dq, dk from the scores; dv, and the gradient of the weights.
            matmul: n.products(needed, 2 * n.d + 2 * n.dv),
            // Common counters count the recomputed scores in.
            matmul_dense: n.products(n.square(), 3 * n.d + 2 * n.dv),
            recomputed: n.products(needed, n.d),
            recomputed_dense: n.products(n.square(), n.d),
            // Per score: weight (subtract, exp), its gradient (subtract, multiply, scale), slope of the cap (multiply,
            // subtract, multiply). Per row: the product of result and gradient (multiply, add), and for a sink subtract,
            // exp, multiply, subtract.
            elementwise: (self.of.score_flops() + 5 + cap) * scores
                + (2 * u128::from(n.dv) + 4 * u128::from(self.of.sinks)) * n.rows(),
            ..traffic(inputs, outputs)
        }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        plain::backward(&self.of, inputs, outputs);
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut crate::cpu::Args<'_>) -> Result<bool> {
        Ok(fast::backward(&self.of, args))
    }
}

// --- methods

impl Tensor {
    /// Fused attention of these queries over keys and values; see [`Attention`] for masks, bias and sinks.
    ///
    /// `op.bias` and `op.sinks` are set from what is given.
    ///
    /// # Shapes
    /// self `b a sq d`, k `b kv sk d`, v `b kv sk dv`, bias broadcasting to `b a sq sk`, sinks `a` -> `b a sq dv`
    ///
    /// # Errors
    /// [`Error::NoGradient`] if the bias wants a gradient.
    pub fn attention(
        &self,
        k: &Self,
        v: &Self,
        bias: Option<&Self>,
        sinks: Option<&Self>,
        op: Attention,
    ) -> Result<Self> {
        Ok(self.attention_with_lse(k, v, bias, sinks, op)?.swap_remove(0))
    }

    /// [`Tensor::attention`] and the log-sum-exp of the scores.
    ///
    /// # Shapes
    /// as [`Tensor::attention`] -> `b a sq dv`, `b a sq`
    pub fn attention_with_lse(
        &self,
        k: &Self,
        v: &Self,
        bias: Option<&Self>,
        sinks: Option<&Self>,
        op: Attention,
    ) -> Result<Outputs> {
        let op = Attention { bias: bias.is_some(), sinks: sinks.is_some(), ..op };
        let mut inputs: SmallVec<[&Self; 5]> = smallvec![self, k, v];
        inputs.extend(bias);
        inputs.extend(sinks);
        apply(Op::Attention(op), &inputs)
    }
}

impl Attention {
    /// Plain attention: every query sees every key.
    pub fn full(scale: f64) -> Self {
        Self { causal: false, window: None, seen: None, scale, softcap: None, bias: false, sinks: false }
    }

    /// Causal attention.
    pub fn causal(scale: f64) -> Self {
        Self { causal: true, ..Self::full(scale) }
    }
}
