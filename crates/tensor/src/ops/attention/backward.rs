//! Backward: the scores made again tile by tile, from which come the gradients of queries, keys and values.

use super::forward::finite_or_zero;
use super::heads::{Element, Heads, Numbers, Rows, put};
use super::tile::{KEYS, QUERIES, Scores, Sight, TILE, Tile, Transpose};
use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::planes::{Plane, Planes};
use crate::cpu::scratch::{LINE, Scratch, rounded};
use crate::dtype::DType;
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// What all parts of the work look at.
pub(super) struct Backward<'a, T> {
    pub q: Heads<'a, T>,
    pub k: Heads<'a, T>,
    pub v: Heads<'a, T>,
    pub out: Heads<'a, T>,
    /// The log-sum-exp, as rows of one number.
    pub lse: Heads<'a, f32>,
    /// Gradient of the result.
    pub grad: Heads<'a, T>,
    /// Query heads per key head.
    pub group: usize,
    pub sight: Sight,
    pub scores: Scores<'a>,
    pub scale: f32,
    /// A logit per head, if they want a gradient.
    pub sinks: Option<Numbers<'a>>,
}

/// The gradients of some key heads, of the query heads that look at them, and of the sinks of those, if they want one.
pub(super) struct Gradients<'a, T> {
    pub dq: Planes<'a, T>,
    pub dk: Planes<'a, T>,
    pub dv: Planes<'a, T>,
    pub sinks: Planes<'a, f32>,
}

impl<T: Element> Gradients<'_, T> {
    /// About half of the key heads and the others, if there are several.
    pub(super) fn split(self, group: usize) -> (Self, Option<Self>) {
        let half = self.dk.len() / 2;
        if half == 0 {
            return (self, None);
        }
        let (dq, sinks) = (self.dq.split_at(half * group), self.sinks.split_at(half * group));
        let (dk, dv) = (self.dk.split_at(half), self.dv.split_at(half));
        let rest = Self { dq: dq.1, dk: dk.1, dv: dv.1, sinks: sinks.1 };
        (Self { dq: dq.0, dk: dk.0, dv: dv.0, sinks: sinks.0 }, Some(rest))
    }
}

/// Whether sums of rows of this width can be made where the result lies.
fn in_place<T: Element>(width: usize) -> bool {
    T::DTYPE == DType::F32 && width.is_multiple_of(LINE)
}

impl<T: Element> Backward<'_, T> {
    /// Numbers of scratch that [`Backward::heads`] works in.
    pub(super) fn room(&self) -> usize {
        let sums = |width| if in_place::<T>(width) { 0 } else { self.sight.keys * rounded(width) };
        self.rooms().iter().sum::<usize>() + sums(self.q.width) + sums(self.v.width)
    }

    /// Sizes of the fields of [`Room`].
    fn rooms(&self) -> [usize; 13] {
        let (d, dv) = (rounded(self.q.width), rounded(self.v.width));
        let tanh = if self.scores.cap.is_some() { TILE } else { 0 };
        let of_queries = [d, dv, LINE, d, dv, d, 1, 1].map(|width| QUERIES * width);
        let [q, grad, lse_rows, q_transposed, grad_transposed, dq, lse, delta] = of_queries;
        let k_or_out = (KEYS * d).max(QUERIES * dv);
        [q, k_or_out, KEYS * dv, grad, lse_rows, q_transposed, grad_transposed, TILE, TILE, tanh, dq, lse, delta]
    }

    /// Gradients of some key heads and their query heads.
    pub(super) fn heads<L: Lanes>(&self, l: L, grads: Gradients<'_, T>, mut scratch: Scratch<'_>) {
        let mut room = Room::new(self.rooms(), &mut scratch);
        let Gradients { mut dq, dk, dv, mut sinks } = grads;
        for (mut dk, mut dv) in dk.zip(dv) {
            let mut left = scratch.again();
            let mut k_sums = Sums::new(&mut dk, &mut left);
            let mut v_sums = Sums::new(&mut dv, &mut left);
            for mut dq in dq.by_ref().take(self.group) {
                let of_sink = self.head(l, &mut dq, &mut room, &mut k_sums.rows(), &mut v_sums.rows());
                if let Some(mut sink) = sinks.next() {
                    sink.write(0, |_| of_sink);
                }
            }
            k_sums.finish(l);
            v_sums.finish(l);
        }
    }

    /// Gradient of one query head, and of its sink; those of keys and values are added to.
    fn head<L: Lanes>(
        &self,
        l: L,
        dq: &mut Plane<'_, T>,
        room: &mut Room<'_>,
        dk: &mut Plane<'_, f32>,
        dv: &mut Plane<'_, f32>,
    ) -> f32 {
        let [b, h, _] = dq.at;
        let mut of_sink = 0.0;
        for start in (0..dq.rows).step_by(QUERIES) {
            let queries = start..dq.rows.min(start + QUERIES);
            self.queries(l, [b, h], queries.clone(), room, dk, dv);
            if let Some(sinks) = &self.sinks {
                let sink = sinks.at([0, 0, 0, h]) * LOG2_E;
                let rows = room.lse.iter().zip(&*room.delta).take(queries.len());
                // The sink has no value: its weight only takes from the others.
                of_sink = rows.fold(of_sink, |sum, (lse, delta)| sum - (sink - lse).exp2() * delta);
            }
            for (i, row) in queries.zip(room.dq.chunks_exact(rounded(self.q.width))) {
                put(l, dq, i, row, 1.0);
            }
        }
        of_sink
    }

    /// Goes through the keys of some queries: adds to the gradients of keys and values, leaves that of the queries in
    /// `room.dq`.
    fn queries<L: Lanes>(
        &self,
        l: L,
        [b, h]: [usize; 2],
        queries: Range<usize>,
        room: &mut Room<'_>,
        dk: &mut Plane<'_, f32>,
        dv: &mut Plane<'_, f32>,
    ) {
        let (at, count, kv) = ([b, h, queries.start], queries.len(), h / self.group);
        let (d, d_values) = (self.q.width, self.v.width);
        let out = self.out.load(l, at, count, true, room.k_or_out);
        let grad = self.grad.load(l, at, count, true, room.grad);
        l.call(Deltas { out, grad, count, width: rounded(d_values), to: room.delta });
        let lse = self.lse.load(l, at, count, false, room.lse_rows);
        for (i, to) in room.lse[..count].iter_mut().enumerate() {
            *to = finite_or_zero(lse.row(i, 1)[0]) * LOG2_E;
        }
        let q = self.q.load(l, at, count, true, room.q);
        let factor = self.scores.factor;
        l.call(Transpose { rows: q, queries: count, width: d, factor, to: room.q_transposed });
        l.call(Transpose { rows: grad, queries: count, width: d_values, factor: 1.0, to: room.grad_transposed });
        room.dq.fill(0.0);
        for tile in Tile::all(self.sight, queries) {
            let at = [b, kv, tile.keys.start];
            let k = self.k.load(l, at, tile.keys.len(), true, room.k_or_out);
            let v = self.v.load(l, at, tile.keys.len(), false, room.v);
            tile.products(l, k, room.q_transposed, d, room.scores);
            if !self.scores.are_products() {
                self.scores.finish(l, &tile, [b, h], room.scores, room.tanh);
            }
            tile.products(l, v, room.grad_transposed, d_values, room.slopes);
            l.call(TileGradient {
                tile: &tile,
                scores: room.scores,
                slopes: room.slopes,
                tanh: room.tanh,
                lse: room.lse,
                delta: room.delta,
                scale: self.scale,
            });
            tile.add_to_keys(l, room.scores, grad, dv, tile.keys.start);
            tile.add_to_keys(l, room.slopes, q, dk, tile.keys.start);
            tile.add_to_queries(l, room.slopes, k, &mut Plane::whole(room.dq, rounded(d)), None);
        }
    }
}

/// Scratch beside the sums of keys and values.
struct Room<'a> {
    q: &'a mut [f32],
    /// Keys of a tile, and before the first the results of the queries.
    k_or_out: &'a mut [f32],
    v: &'a mut [f32],
    grad: &'a mut [f32],
    lse_rows: &'a mut [f32],
    q_transposed: &'a mut [f32],
    grad_transposed: &'a mut [f32],
    scores: &'a mut [f32],
    slopes: &'a mut [f32],
    /// Inside the cap; empty if there is none.
    tanh: &'a mut [f32],
    dq: &'a mut [f32],
    /// In units of ln 2.
    lse: &'a mut [f32],
    delta: &'a mut [f32],
}

impl<'a> Room<'a> {
    fn new(sizes: [usize; 13], scratch: &mut Scratch<'a>) -> Self {
        let [q, k_or_out, v, grad, lse_rows, q_transposed, grad_transposed, scores, slopes, tanh, dq, lse, delta] =
            sizes.map(|count| scratch.take(count));
        Self { q, k_or_out, v, grad, lse_rows, q_transposed, grad_transposed, scores, slopes, tanh, dq, lse, delta }
    }
}

/// Sums of rows of f32 that become a result: made where it lies if they can be, else in scratch.
struct Sums<'a, 'b, T> {
    result: &'b mut Plane<'a, T>,
    scratch: &'b mut [f32],
}

impl<'a, 'b, T: Element> Sums<'a, 'b, T> {
    fn new(result: &'b mut Plane<'a, T>, scratch: &mut Scratch<'b>) -> Self {
        let room = if in_place::<T>(result.width) { 0 } else { result.rows * rounded(result.width) };
        let mut sums = Self { result, scratch: scratch.take(room) };
        let mut rows = sums.rows();
        for i in 0..rows.rows {
            rows.row(i).into_iter().for_each(|row| row.fill(0.0));
        }
        sums
    }

    fn rows(&mut self) -> Plane<'_, f32> {
        let width = self.result.width;
        match self.result.as_f32() {
            Some(rows) if in_place::<T>(width) => rows,
            _ => Plane::whole(self.scratch, rounded(width)),
        }
    }

    fn finish<L: Lanes>(self, l: L) {
        let width = self.result.width;
        for (i, row) in self.scratch.chunks_exact(rounded(width)).enumerate() {
            put(l, self.result, i, row, 1.0);
        }
    }
}

/// Of each query, the sum over the products of result and gradient.
struct Deltas<'a> {
    out: Rows<'a>,
    grad: Rows<'a>,
    count: usize,
    width: usize,
    to: &'a mut [f32],
}

impl Kernel for Deltas<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.to.fill(0.0);
        for (i, to) in self.to[..self.count].iter_mut().enumerate() {
            let (out, grad) = (self.out.row(i, self.width), self.grad.row(i, self.width));
            let mut sum = l.splat(0.0);
            for c in (0..self.width).step_by(L::COUNT) {
                sum = l.fma(l.get(out, c), l.get(grad, c), sum);
            }
            *to = l.sum(sum);
        }
    }
}

/// Turns the scores of a tile into weights, and the products of gradient and value into slopes of the scores. Both are
/// zero where a query does not see a key.
struct TileGradient<'a> {
    tile: &'a Tile,
    scores: &'a mut [f32],
    slopes: &'a mut [f32],
    /// Inside the cap; empty if there is none.
    tanh: &'a [f32],
    lse: &'a [f32],
    delta: &'a [f32],
    scale: f32,
}

impl Kernel for TileGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { tile, scores, slopes, tanh, lse, delta, scale } = self;
        let (zero, one, scale) = (l.splat(0.0), l.splat(1.0), l.splat(scale));
        for v in 0..tile.vectors(L::COUNT) {
            let column = v * L::COUNT;
            let (keys, all) = tile.column(v, L::COUNT);
            let (lse, delta) = (l.get(lse, column), l.get(delta, column));
            for j in 0..tile.keys.len() {
                let at = j * QUERIES + column;
                if !keys.contains(&j) {
                    l.put(scores, at, zero);
                    l.put(slopes, at, zero);
                    continue;
                }
                let mut weight = l.exp2(l.sub(l.get(scores, at), lse));
                if !all {
                    weight = l.keep(weight, tile.lanes(j, v, L::COUNT), zero);
                }
                let toward = l.sub(l.get(slopes, at), delta);
                let mut slope = l.mul(l.mul(weight, toward), scale);
                if !tanh.is_empty() {
                    let tanh = l.get(tanh, at);
                    slope = l.mul(slope, l.sub(one, l.mul(tanh, tanh)));
                }
                l.put(scores, at, weight);
                l.put(slopes, at, slope);
            }
        }
    }
}
