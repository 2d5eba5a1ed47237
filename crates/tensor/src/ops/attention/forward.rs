//! Forward: tiles of queries by tiles of keys, with running maximum and sum.

use super::heads::{Element, Heads, Numbers, put};
use super::tile::{KEYS, QUERIES, Scores, Sight, TILE, Tile, Transpose};
use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::planes::{Plane, Planes};
use crate::cpu::scratch::{Scratch, rounded};
use std::f32::consts::{LN_2, LOG2_E};

/// What all parts of the work look at.
pub(super) struct Forward<'a, T> {
    pub q: Heads<'a, T>,
    pub k: Heads<'a, T>,
    pub v: Heads<'a, T>,
    /// Query heads per key head.
    pub group: usize,
    pub sight: Sight,
    pub scores: Scores<'a>,
    /// A logit per head.
    pub sinks: Option<Numbers<'a>>,
}

/// Some tiles of the results, and their log-sum-exp.
pub(super) struct Results<'a, T> {
    pub out: Planes<'a, T>,
    pub lse: Planes<'a, f32>,
}

impl<T: Element> Results<'_, T> {
    /// About half of them and the others, if there are several.
    pub(super) fn split(self) -> (Self, Option<Self>) {
        let half = self.out.len() / 2;
        if half == 0 {
            return (self, None);
        }
        let (out, lse) = (self.out.split_at(half), self.lse.split_at(half));
        (Self { out: out.0, lse: lse.0 }, Some(Self { out: out.1, lse: lse.1 }))
    }
}

impl<T: Element> Forward<'_, T> {
    /// Numbers of scratch that [`Forward::tile`] works in.
    pub(super) fn room(&self) -> usize {
        let rows = self.q.room(QUERIES) + self.k.room(KEYS) + self.v.room(KEYS);
        let transposed = self.q.width * QUERIES;
        rows + transposed + TILE + QUERIES * rounded(self.v.width) + 3 * QUERIES
    }

    /// Results and log-sum-exp of some queries of a head.
    pub(super) fn tile<L: Lanes>(
        &self,
        l: L,
        out: &mut Plane<'_, T>,
        lse: &mut Plane<'_, f32>,
        mut scratch: Scratch<'_>,
    ) {
        let [b, h, first] = out.at;
        let (count, kv) = (out.rows, h / self.group);
        let (d, dv) = (self.q.width, self.v.width);
        let transposed = scratch.take(d * QUERIES);
        let scores = scratch.take(TILE);
        let sums = scratch.take(QUERIES * rounded(dv));
        let max = scratch.take(QUERIES);
        let sum = scratch.take(QUERIES);
        let scale = scratch.take(QUERIES);
        let q_room = scratch.take(self.q.room(QUERIES));
        let k_room = scratch.take(self.k.room(KEYS));
        let v_room = scratch.take(self.v.room(KEYS));

        let rows = self.q.load(l, out.at, count, false, q_room);
        l.call(Transpose { rows, queries: count, width: d, factor: self.scores.factor, to: transposed });
        sums.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        for tile in Tile::all(self.sight, first..first + count) {
            let at = [b, kv, tile.keys.start];
            let k = self.k.load(l, at, tile.keys.len(), false, k_room);
            tile.products(l, k, transposed, d, scores);
            if !self.scores.are_products() {
                self.scores.finish(l, &tile, [b, h], scores, &mut []);
            }
            l.call(Softmax { tile: &tile, scores, max, sum, scale });
            let v = self.v.load(l, at, tile.keys.len(), true, v_room);
            tile.add_to_queries(l, scores, v, &mut Plane::whole(sums, rounded(dv)), Some(scale));
        }
        let sink = self.sinks.as_ref().map(|sinks| sinks.at([0, 0, 0, h]) * LOG2_E);
        for i in 0..count {
            let (factor, total) = mean(max[i], sum[i], sink);
            lse.write(i, |_| total);
            put(l, out, i, &sums[i * rounded(dv)..], factor);
        }
    }
}

/// What a row of sums is multiplied by to be the mean, and the log-sum-exp of its scores, from the running maximum (in
/// units of ln 2) and sum. A row without any finite score gives zeros.
pub(super) fn mean(max: f32, sum: f32, sink: Option<f32>) -> (f32, f32) {
    let (mut shift, mut sum, mut scale) = (finite_or_zero(max), sum, 1.0);
    if let Some(sink) = sink {
        let larger = finite_or_zero(if max > sink { max } else { sink });
        scale = (shift - larger).exp2();
        sum = sum * scale + (sink - larger).exp2();
        shift = larger;
    }
    let factor = if sum == 0.0 { 0.0 } else { scale / sum };
    (factor, shift * LN_2 + sum.ln())
}

/// `x`, or zero where it is negative infinity: a row without any finite score has weights of zero, not NaN.
pub(super) fn finite_or_zero(x: f32) -> f32 {
    if x == f32::NEG_INFINITY { 0.0 } else { x }
}

/// Turns the scores of a tile into weights `2^(score - maximum)`, zero where a query does not see a key.
///
/// Takes maximum and sum of each query along, and says by what the sums so far have to be multiplied.
struct Softmax<'a> {
    tile: &'a Tile,
    scores: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
    scale: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { tile, scores, max, sum, scale } = self;
        let low = l.splat(f32::NEG_INFINITY);
        for v in 0..tile.vectors(L::COUNT) {
            let column = v * L::COUNT;
            let (keys, all) = tile.column(v, L::COUNT);
            let before = l.get(max, column);
            // Four maxima, so that one does not wait for the other.
            let mut largest = [before, low, low, low];
            if all {
                let mut j = keys.start;
                while j + 4 <= keys.end {
                    for (i, largest) in largest.iter_mut().enumerate() {
                        *largest = l.max(*largest, l.get(scores, (j + i) * QUERIES + column));
                    }
                    j += 4;
                }
                for j in j..keys.end {
                    largest[0] = l.max(largest[0], l.get(scores, j * QUERIES + column));
                }
            } else {
                for j in keys.clone() {
                    let at = j * QUERIES + column;
                    let score = l.keep(l.get(scores, at), tile.lanes(j, v, L::COUNT), low);
                    l.put(scores, at, score);
                    largest[0] = l.max(largest[0], score);
                }
            }
            let largest = l.max(l.max(largest[0], largest[1]), l.max(largest[2], largest[3]));
            let shift = l.select_less(low, largest, largest, l.splat(0.0));
            let mut total = l.splat(0.0);
            for j in 0..tile.keys.len() {
                let at = j * QUERIES + column;
                if keys.contains(&j) {
                    let weight = l.exp2(l.sub(l.get(scores, at), shift));
                    total = l.add(total, weight);
                    l.put(scores, at, weight);
                } else {
                    l.put(scores, at, l.splat(0.0));
                }
            }
            let by = l.exp2(l.sub(before, shift));
            l.put(scale, column, by);
            l.put(sum, column, l.fma(l.get(sum, column), by, total));
            l.put(max, column, largest);
        }
    }
}
