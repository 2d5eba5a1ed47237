//! The plain kernels: one row of scores at a time.

use super::Attention;
use crate::kernel::{Array, Data, Num};
use std::ops::Range;

/// What a row of scores is made of.
struct Scores<'a, T> {
    op: &'a Attention,
    q: &'a Array<T>,
    k: &'a Array<T>,
    bias: Option<(&'a Array<T>, [usize; 4])>,
    sinks: Option<&'a Array<T>>,
}

/// Dense strides of `shape`, aligned at the right to rank 4, 0 where it broadcasts.
fn broadcast_strides(shape: &[usize]) -> [usize; 4] {
    let mut strides = [0; 4];
    let mut step = 1;
    for (stride, &size) in strides.iter_mut().rev().zip(shape.iter().rev()) {
        *stride = if size == 1 { 0 } else { step };
        step *= size;
    }
    strides
}

impl<'a, T: Num> Scores<'a, T> {
    fn new(op: &'a Attention, inputs: &'a [Data<T>]) -> Self {
        let bias = op.bias.then(|| inputs[3].num()).map(|b| (b, broadcast_strides(&b.shape)));
        let sinks = op.sinks.then(|| inputs[op.sinks_at()].num());
        Self { op, q: inputs[0].num(), k: inputs[1].num(), bias, sinks }
    }

    /// `(batch, query head, key head as a row of k)` of every head.
    fn heads(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<T> {
        let (b, a, kv) = (self.q.shape[0], self.q.shape[1], self.k.shape[1]);
        (0..b * a).map(move |z| (z / a, z % a, z / a * kv + z % a / (a / kv)))
    }

    /// Keys that query `i` sees.
    fn keys(&self, i: usize) -> Range<usize> {
        let (sq, sk) = (self.q.shape[2], self.k.shape[2]);
        if !self.op.causal {
            return 0..sk;
        }
        let end = i + 1 + (sk - sq);
        end - self.op.window.map_or(end, |w| end.min(usize::try_from(w).unwrap_or(end)))..end
    }

    /// Score of a pair, and the hyperbolic tangent inside its cap.
    fn score(&self, at: [usize; 4], q: &[T], k: &[T]) -> (T, T) {
        let dot = q.iter().zip(k).fold(T::zero(), |sum, (&q, &k)| sum + q * k);
        let mut score = dot * T::from_f64(self.op.scale);
        let mut tanh = T::zero();
        if let Some(cap) = self.op.softcap.map(T::from_f64) {
            tanh = (score / cap).tanh();
            score = tanh * cap;
        }
        if let Some((bias, strides)) = &self.bias {
            score = score + bias.data[at.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>()];
        }
        (score, tanh)
    }
}

/// Row `i` of width `width`.
fn row<T>(data: &[T], i: usize, width: usize) -> &[T] {
    &data[i * width..][..width]
}

/// `x`, or zero where it is infinite: a row without any finite score has weights of zero, not NaN.
fn finite_or_zero<T: Num>(x: T) -> T {
    if x.to_f64() == f64::NEG_INFINITY { T::zero() } else { x }
}

pub(super) fn forward<T: Num>(op: &Attention, inputs: &[Data<T>], outputs: &mut [Data<T>]) {
    let scores = Scores::new(op, inputs);
    let (q, k, v) = (scores.q, scores.k, inputs[2].num());
    let (sq, sk, d, dv) = (q.shape[2], k.shape[2], q.shape[3], v.shape[3]);
    let mut weights = vec![T::zero(); sk];
    for (b, h, kv) in scores.heads() {
        for i in 0..sq {
            let at = (b * q.shape[1] + h) * sq + i;
            let keys = scores.keys(i);
            let mut max = T::from_f64(f64::NEG_INFINITY);
            for j in keys.clone() {
                weights[j] = scores.score([b, h, i, j], row(&q.data, at, d), row(&k.data, kv * sk + j, d)).0;
                max = max.max(weights[j]);
            }
            if let Some(sinks) = scores.sinks {
                max = max.max(sinks.data[h]);
            }
            let shift = finite_or_zero(max);
            let mut sum = T::zero();
            let out = &mut outputs[0].num_mut().data[at * dv..][..dv];
            for j in keys {
                let weight = (weights[j] - shift).exp();
                sum = sum + weight;
                for (o, &v) in out.iter_mut().zip(row(&v.data, kv * sk + j, dv)) {
                    *o = *o + weight * v;
                }
            }
            if let Some(sinks) = scores.sinks {
                sum = sum + (sinks.data[h] - shift).exp();
            }
            let empty = sum.to_f64() == 0.0;
            for o in out {
                let mean = *o / sum;
                *o = if empty { T::zero() } else { mean };
            }
            outputs[1].num_mut().data[at] = shift + sum.ln();
        }
    }
}

pub(super) fn backward<T: Num>(op: &Attention, inputs: &[Data<T>], outputs: &mut [Data<T>]) {
    let scores = Scores::new(op, inputs);
    let after = op.arity();
    let (q, k, v) = (scores.q, scores.k, inputs[2].num());
    let (out, lse, grad) = (inputs[after].num(), inputs[after + 1].num(), inputs[after + 2].num());
    let (sq, sk, d, dv) = (q.shape[2], k.shape[2], q.shape[3], v.shape[3]);
    let scale = T::from_f64(op.scale);
    for (b, h, kv) in scores.heads() {
        for i in 0..sq {
            let at = (b * q.shape[1] + h) * sq + i;
            let (query, grad) = (row(&q.data, at, d), row(&grad.data, at, dv));
            let shift = finite_or_zero(lse.data[at]);
            let delta = row(&out.data, at, dv).iter().zip(grad).fold(T::zero(), |sum, (&o, &g)| sum + o * g);
            for j in scores.keys(i) {
                let other = kv * sk + j;
                let (key, value) = (row(&k.data, other, d), row(&v.data, other, dv));
                let (score, tanh) = scores.score([b, h, i, j], query, key);
                let weight = (score - shift).exp();
                let toward = grad.iter().zip(value).fold(T::zero(), |sum, (&g, &v)| sum + g * v);
                let mut slope = weight * (toward - delta);
                if op.softcap.is_some() {
                    slope = slope * (T::one() - tanh * tanh);
                }
                slope = slope * scale;
                accumulate(&mut outputs[0], at, slope, key);
                accumulate(&mut outputs[1], other, slope, query);
                accumulate(&mut outputs[2], other, weight, grad);
            }
            if let Some(sinks) = scores.sinks {
                // The sink has no value: its weight only takes from the others.
                let total = &mut outputs[3].num_mut().data[h];
                *total = *total - (sinks.data[h] - shift).exp() * delta;
            }
        }
    }
}

/// Adds `by` times `row` to row `i` of an output.
fn accumulate<T: Num>(output: &mut Data<T>, i: usize, by: T, row: &[T]) {
    let target = &mut output.num_mut().data[i * row.len()..][..row.len()];
    for (t, &x) in target.iter_mut().zip(row) {
        *t = *t + by * x;
    }
}
