//! Forward of few queries, as when a model writes token by token: a query at a time over rows of keys as they lie.

use super::forward::{Forward, finite_or_zero, mean};
use super::heads::{Element, Rows, put};
use super::product::{Factor, Product, Start};
use super::tile::Scores;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::planes::Plane;
use crate::cpu::scratch::{Scratch, rounded};
use crate::cpu::work;
use std::f32::consts::LOG2_E;

/// Up to so many queries it is faster to go through the keys for each than to fill vectors with queries.
pub(super) const FEW: usize = 4;

/// Keys at a time.
const KEYS: usize = 128;

impl<T: Element> Forward<'_, T> {
    /// Numbers of scratch that [`Forward::few`] works in.
    pub(super) fn room_of_few(&self) -> usize {
        self.q.room(1) + self.k.room(KEYS) + self.v.room(KEYS) + rounded(KEYS) + rounded(self.v.width)
    }

    /// Results and log-sum-exp of some queries of a head, a query at a time.
    pub(super) fn few<L: Lanes>(
        &self,
        l: L,
        out: &mut Plane<'_, T>,
        lse: &mut Plane<'_, f32>,
        mut scratch: Scratch<'_>,
    ) {
        let [b, h, first] = out.at;
        let kv = h / self.group;
        let (d, dv) = (rounded(self.q.width), rounded(self.v.width));
        let weights = scratch.take(KEYS);
        let sums = scratch.take(dv);
        let q_room = scratch.take(self.q.room(1));
        let k_room = scratch.take(self.k.room(KEYS));
        let v_room = scratch.take(self.v.room(KEYS));
        let sink = self.sinks.as_ref().map(|sinks| sinks.at([0, 0, 0, h]) * LOG2_E);
        for i in 0..out.rows {
            let q = self.q.load(l, [b, h, first + i], 1, true, q_room).row(0, d);
            let seen = self.sight.keys_of(first + i..first + i + 1);
            let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
            sums.fill(0.0);
            for start in seen.clone().step_by(KEYS) {
                let count = KEYS.min(seen.end - start);
                let k = self.k.load(l, [b, kv, start], count, true, k_room);
                l.call(Dots { q, k, count, scores: &self.scores, to: weights });
                if self.scores.has_bias() {
                    for (j, score) in weights[..count].iter_mut().enumerate() {
                        *score += self.scores.bias_at([b, h, first + i, start + j]) * LOG2_E;
                    }
                }
                let (largest, by, total) = l.call(Weights { scores: weights, max });
                (max, sum) = (largest, sum * by + total);
                let v = self.v.load(l, [b, kv, start], count, true, v_room);
                l.call(Product {
                    a: Factor { data: weights, row: 0, step: 1 },
                    b: v,
                    depth: count,
                    rows: 1,
                    columns: dv,
                    start: Start::Scaled(&[by]),
                    c: &mut Plane::whole(sums, dv),
                    at: (0, 0),
                });
            }
            let (factor, total) = mean(max, sum, sink);
            lse.write(i, |_| total);
            put(l, out, i, sums, factor);
        }
    }
}

/// Scores without bias of one query with `count` keys; negative infinity after them.
struct Dots<'a> {
    q: &'a [f32],
    k: Rows<'a>,
    count: usize,
    scores: &'a Scores<'a>,
    to: &'a mut [f32],
}

impl Kernel for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { q, k, count, scores, to } = self;
        work::count(1, count, q.len());
        let mut j = 0;
        while j < count {
            // Four keys side by side, so that their sums do not wait for each other.
            let rows: [&[f32]; 4] = std::array::from_fn(|i| k.row((j + i).min(count - 1), q.len()));
            let mut dots = [l.splat(0.0); 4];
            for c in (0..q.len()).step_by(L::COUNT) {
                let x = l.get(q, c);
                for (dot, row) in dots.iter_mut().zip(rows) {
                    *dot = l.fma(x, l.get(row, c), *dot);
                }
            }
            for (to, dot) in to[j..].iter_mut().zip(dots) {
                *to = l.sum(dot) * scores.factor;
            }
            j += 4;
        }
        to[count..].fill(f32::NEG_INFINITY);
        if let Some(cap) = scores.cap {
            let cap = l.splat(cap * LOG2_E);
            for j in (0..count).step_by(L::COUNT) {
                let capped = l.mul(cap, l.tanh(l.get(to, j)));
                l.put(to, j, capped);
            }
            to[count..].fill(f32::NEG_INFINITY);
        }
    }
}

/// Turns scores into weights; gives the new maximum, by what to multiply the sums so far, and the sum of the weights.
struct Weights<'a> {
    scores: &'a mut [f32],
    max: f32,
}

impl Kernel for Weights<'_> {
    type Output = (f32, f32, f32);

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        let mut largest = l.splat(self.max);
        for j in (0..self.scores.len()).step_by(L::COUNT) {
            largest = l.max(largest, l.get(self.scores, j));
        }
        let max = l.largest(largest);
        let shift = finite_or_zero(max);
        let mut total = l.splat(0.0);
        for j in (0..self.scores.len()).step_by(L::COUNT) {
            let weight = l.exp2(l.sub(l.get(self.scores, j), l.splat(shift)));
            total = l.add(total, weight);
            l.put(self.scores, j, weight);
        }
        (max, (self.max - shift).exp2(), l.sum(total))
    }
}
