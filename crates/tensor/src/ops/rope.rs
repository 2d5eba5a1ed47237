//! Rotary position embedding. Source: Su et al., arXiv:2104.09864.

use super::unary::need_float;
use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::layout::elementwise_layout;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// Which channels form a pair that is rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `i` and `i + rotary_dim / 2` (Llama, GPT-NeoX).
    Half,
    /// `2i` and `2i + 1` (GPT-J, GLM).
    Interleaved,
}

/// Rotates the first `rotary_dim` channels of each head by the angle of their position; the others pass.
///
/// Inputs: `x (b a s d)`, and cos and sin as `(s r)` or `(b s r)` (or `(1 s r)`), where `r` is `rotary_dim` (an entry
/// per channel) or half of it (an entry per pair). Keeps only cos and sin: the gradient is the rotation back.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Number of channels that are rotated, from the first.
    pub rotary_dim: u64,
    /// Which channels form a pair.
    pub style: RopeStyle,
    /// Whether to rotate back, which is the gradient.
    pub inverse: bool,
}

impl Rope {
    /// Channels of pair `i`.
    fn pair(&self, i: usize) -> (usize, usize) {
        match self.style {
            RopeStyle::Half => (i, i + self.rotary_dim as usize / 2),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        }
    }
}

impl Rule for Rope {
    fn name(&self) -> &'static str {
        if self.inverse { "rope_backward" } else { "rope" }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (op, x) = (self.name(), &inputs[0]);
        need_float(op, x)?;
        let &[b, _, s, d] = x.shape() else {
            return Err(Error::Rank { op, expected: 4, shape: x.shape().into() });
        };
        if self.rotary_dim > d || !self.rotary_dim.is_multiple_of(2) {
            let what = format!("rotary_dim must be even and at most head_dim = {d}, not {}", self.rotary_dim);
            return Err(Error::Argument { op, what });
        }
        for table in &inputs[1..] {
            need_float(op, table)?;
            let shape = table.shape();
            let fits = match *shape {
                [ts, r] => ts == s && (r == self.rotary_dim || r == self.rotary_dim / 2),
                [tb, ts, r] => (tb == 1 || tb == b) && ts == s && (r == self.rotary_dim || r == self.rotary_dim / 2),
                _ => false,
            };
            if !fits || shape != inputs[1].shape() {
                let rule = "x (b a s d) needs cos and sin alike as (s r), (1 s r) or (b s r), \
                            where r is rotary_dim or half of it";
                return Err(Error::Shapes { op, a: x.shape().into(), b: shape.into(), rule });
            }
        }
        let layout = elementwise_layout(x.shape(), &[&x.layout]);
        Ok(smallvec![Out::Fresh(Spec { dtype: x.dtype, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let rows: u128 = inputs[0].shape()[..3].iter().map(|&n| u128::from(n)).product();
        // Two products and a sum for each rotated channel.
        elementwise(inputs, outputs, 3 * rows * u128::from(self.rotary_dim))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, cos, sin, out) = (inputs[0].num(), inputs[1].num(), inputs[2].num(), outputs[0].num_mut());
        let (b, a, s, d) = (x.shape[0], x.shape[1], x.shape[2], x.shape[3]);
        let (rotary_dim, r) = (self.rotary_dim as usize, cos.last());
        let per_batch = cos.shape.len() == 3 && cos.shape[0] > 1;
        let entry = |table: &Array<T>, row: usize, channel: usize, pair: usize| {
            table.data[row * r + if r == rotary_dim { channel } else { pair }]
        };
        for row in 0..b * a * s {
            let at_table = if per_batch { row / (a * s) * s + row % s } else { row % s };
            let (x, out) = (&x.data[row * d..(row + 1) * d], &mut out.data[row * d..(row + 1) * d]);
            for i in 0..rotary_dim / 2 {
                let (p, q) = self.pair(i);
                let (cp, sp) = (entry(cos, at_table, p, i), entry(sin, at_table, p, i));
                let (cq, sq) = (entry(cos, at_table, q, i), entry(sin, at_table, q, i));
                // The inverse is the transposed matrix, whatever the tables hold.
                (out[p], out[q]) = if self.inverse {
                    (x[p] * cp + x[q] * sq, x[q] * cq - x[p] * sp)
                } else {
                    (x[p] * cp - x[q] * sp, x[q] * cq + x[p] * sq)
                };
            }
            out[rotary_dim..].copy_from_slice(&x[rotary_dim..]);
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(0b110)
    }

    fn differentiable(&self) -> u8 {
        0b001
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let op = Self { inverse: !self.inverse, ..self.clone() };
        Ok(smallvec![Some(Tensor::op(op, &[back.grad()?, back.input(1)?, back.input(2)?])?), None, None])
    }
}

impl Tensor {
    /// Rotates the first `rotary_dim` channels of each head by the angles behind `cos` and `sin`.
    ///
    /// # Shapes
    /// self `b a s d` (any strides), cos and sin `s r`, `1 s r` or `b s r` with `r` = `rotary_dim` or half of it
    /// -> `b a s d` in the memory order of self
    pub fn rope(&self, cos: &Self, sin: &Self, rotary_dim: u64, style: RopeStyle) -> Result<Self> {
        Self::op(Op::Rope(Rope { rotary_dim, style, inverse: false }), &[self, cos, sin])
    }
}
