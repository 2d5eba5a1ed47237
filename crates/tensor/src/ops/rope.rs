//! Rotary position embedding. Source: Su et al., arXiv:2104.09864.

use super::unary::need_float;
use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, rows::{self, in_pieces, place, put, rows_per_piece}, simd::vectorized, typed::Real};
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

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(in_compute_dtype!(args, C => self.rotate::<C>(args)))
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

#[cfg(feature = "cpu")]
impl Rope {
    /// The heads in the memory order of the result.
    fn rotate<C: Real>(&self, args: &mut Args<'_>) -> Option<()> {
        let Args { inputs, outputs } = args;
        let (from, to) = (inputs[0].layout, outputs[0].layout);
        let (x, shape, steps) = (inputs[0].typed()?, from.shape(), from.strides());
        let (heads, s, d) = (shape[1] as usize, shape[2] as usize, shape[3] as usize);
        let mut order = [0, 1, 2];
        order.sort_by_key(|&dim| std::cmp::Reverse((to.strides()[dim], to.shape()[dim])));
        let inner = d <= 1 || to.strides()[3] == 1;
        if !inner || !to.is_dense() || steps.iter().any(|&step| step < 0) {
            return None;
        }
        let (cos, sin) = (rows::dense::<C>(&inputs[1])?, rows::dense::<C>(&inputs[2])?);
        let tables = inputs[1].layout.shape();
        let r = *tables.last()? as usize;
        let per_batch = tables.len() == 3 && tables[0] > 1;
        let rows = shape[0] as usize * heads * s;
        in_pieces(rows, rows_per_piece(d), [(outputs[0].typed(), d)], |first, count, [mut out]| {
            let (mut head, mut block) = (vec![C::zero(); d], vec![C::zero(); d]);
            for i in 0..count {
                let mut index = [0; 3];
                let mut left = first + i;
                for &dim in order.iter().rev() {
                    index[dim] = left % shape[dim] as usize;
                    left /= shape[dim] as usize;
                }
                let start: usize = index.iter().zip(steps).map(|(&i, &step)| i * step as usize).sum();
                x.read(start, steps[3] as isize, &mut head);
                let row = index[2] + if per_batch { index[0] * s } else { 0 };
                let [cos, sin] = [&cos, &sin].map(|table| &table[row * r..][..r]);
                let y = place(&mut out, i * d, d, &mut block);
                vectorized(
                    #[inline(always)]
                    || self.rotate_head(&head, cos, sin, y),
                );
                put(&mut out, i * d, d, &block);
            }
        });
        Some(())
    }

    #[inline(always)]
    fn rotate_head<C: Real>(&self, x: &[C], cos: &[C], sin: &[C], y: &mut [C]) {
        let rotary_dim = self.rotary_dim as usize;
        let pairs = rotary_dim / 2;
        let turn = |p: C, q: C, [cp, sp, cq, sq]: [C; 4]| {
            // The inverse is the transposed matrix, whatever the tables hold.
            if self.inverse { (p * cp + q * sq, q * cq - p * sp) } else { (p * cp - q * sp, q * cq + p * sq) }
        };
        let (x, x_rest) = x.split_at(rotary_dim);
        let (y, y_rest) = y.split_at_mut(rotary_dim);
        y_rest.copy_from_slice(x_rest);
        match self.style {
            RopeStyle::Half => {
                let ((xp, xq), (yp, yq)) = (x.split_at(pairs), y.split_at_mut(pairs));
                let [(cp, cq), (sp, sq)] = [cos, sin].map(|table| (&table[..pairs], &table[table.len() - pairs..]));
                for i in 0..pairs {
                    (yp[i], yq[i]) = turn(xp[i], xq[i], [cp[i], sp[i], cq[i], sq[i]]);
                }
            }
            RopeStyle::Interleaved => {
                // Tables by channel hold both entries of a pair side by side.
                let each = if cos.len() == rotary_dim { 2 } else { 1 };
                for i in 0..pairs {
                    let (p, q) = (i * each, i * each + each - 1);
                    (y[2 * i], y[2 * i + 1]) = turn(x[2 * i], x[2 * i + 1], [cos[p], sin[p], cos[q], sin[q]]);
                }
            }
        }
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
