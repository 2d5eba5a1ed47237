//! A tile of the scores: some queries and some keys of one head.
//!
//! A tile is kept with the keys as rows and the queries side by side, so that the softmax goes down the columns and
//! needs no sums across a vector.

use super::Attention;
use super::heads::{Numbers, Rows};
use super::product::{Factor, Product, Start};
use crate::cpu::Input;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::planes::Plane;
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Queries of a tile: four vectors of 16.
pub(super) const QUERIES: usize = 64;
/// Keys of a tile.
pub(super) const KEYS: usize = 64;
/// Numbers of a tile.
pub(super) const TILE: usize = QUERIES * KEYS;

/// Which keys a query sees.
#[derive(Clone, Copy)]
pub(super) struct Sight {
    pub queries: usize,
    pub keys: usize,
    /// Of a causal op: how far the position of a query lies behind its index, and the window (all keys if there is none).
    causal: Option<(usize, usize)>,
}

impl Sight {
    pub(super) fn new(op: &Attention, queries: usize, keys: usize) -> Self {
        let window = op.window.map_or(keys, |w| usize::try_from(w).map_or(keys, |w| w.min(keys)));
        Self { queries, keys, causal: op.causal.then(|| (keys - queries, window)) }
    }

    /// Keys that at least one of these queries sees.
    pub(super) fn keys_of(self, queries: Range<usize>) -> Range<usize> {
        match self.causal {
            None => 0..self.keys,
            Some((behind, window)) => (queries.start + behind + 1).saturating_sub(window)..queries.end + behind,
        }
    }

    /// Queries that see at least one of these keys.
    fn queries_of(self, keys: Range<usize>) -> Range<usize> {
        match self.causal {
            None => 0..self.queries,
            Some((behind, window)) => {
                let end = (keys.end - 1 + window).saturating_sub(behind);
                keys.start.saturating_sub(behind)..end.min(self.queries)
            }
        }
    }
}

/// The part of `of` in `part`, counted from the start of `part`.
fn within(of: Range<usize>, part: &Range<usize>) -> Range<usize> {
    let start = of.start.clamp(part.start, part.end) - part.start;
    start..(of.end.clamp(part.start, part.end) - part.start).max(start)
}

/// Where a tile lies.
#[derive(Clone)]
pub(super) struct Tile {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
    pub sight: Sight,
}

impl Tile {
    /// The tiles that these queries look at.
    pub(super) fn all(sight: Sight, queries: Range<usize>) -> impl Iterator<Item = Self> {
        let seen = sight.keys_of(queries.clone());
        let end = seen.end;
        seen.step_by(KEYS).map(move |j| Self { queries: queries.clone(), keys: j..end.min(j + KEYS), sight })
    }

    /// Keys, counted from the first of the tile, that at least one of these queries, counted likewise, sees.
    pub(super) fn keys_of(&self, queries: Range<usize>) -> Range<usize> {
        let first = self.queries.start;
        within(self.sight.keys_of(first + queries.start..first + queries.end), &self.keys)
    }

    /// Queries, counted from the first of the tile, that see at least one of these keys, counted likewise.
    pub(super) fn queries_of(&self, keys: Range<usize>) -> Range<usize> {
        let first = self.keys.start;
        within(self.sight.queries_of(first + keys.start..first + keys.end), &self.queries)
    }

    /// Number of vectors of `lanes` queries.
    pub(super) fn vectors(&self, lanes: usize) -> usize {
        self.queries.len().div_ceil(lanes)
    }

    /// Keys that at least one query of vector `v` sees, and whether all of its queries see all of those.
    pub(super) fn column(&self, v: usize, lanes: usize) -> (Range<usize>, bool) {
        let queries = v * lanes..self.queries.len().min((v + 1) * lanes);
        let (first, last) = (self.keys_of(queries.start..queries.start + 1), self.keys_of(queries.end - 1..queries.end));
        (first.start..last.end, first == last)
    }

    /// Lanes of vector `v` whose queries see key `j`.
    pub(super) fn lanes(&self, j: usize, v: usize, lanes: usize) -> Range<usize> {
        within(self.queries_of(j..j + 1), &(v * lanes..(v + 1) * lanes))
    }

    /// For each key and query: the products of the rows of `a` (one per key) with the columns of `b` (one per query),
    /// where a vector has a query that sees the key.
    ///
    /// # Shapes
    /// a `keys depth`, b `depth QUERIES`, tile `KEYS QUERIES`
    pub(super) fn products<L: Lanes>(&self, l: L, a: Rows<'_>, b: &[f32], depth: usize, tile: &mut [f32]) {
        let mut c = Plane::whole(tile, QUERIES);
        for j in (0..self.keys.len()).step_by(L::ROWS) {
            let rows = L::ROWS.min(self.keys.len() - j);
            let seen = self.queries_of(j..j + rows);
            let first = seen.start / L::COUNT * L::COUNT;
            let columns = seen.end.next_multiple_of(L::COUNT) - first;
            l.call(Product {
                a: Factor { data: a.from(j).data, row: a.stride, step: 1 },
                b: Rows { data: &b[first..], stride: QUERIES },
                depth,
                rows,
                columns,
                start: Start::Zero,
                c: &mut c,
                at: (j, first),
            });
        }
    }

    /// Adds to some rows, one per key, the sums over the queries that see it of tile times a row of the query.
    ///
    /// # Shapes
    /// tile `KEYS QUERIES`, b `queries columns`, c from row `row` on `keys columns`
    pub(super) fn add_to_keys<L: Lanes>(&self, l: L, tile: &[f32], b: Rows<'_>, c: &mut Plane<'_, f32>, row: usize) {
        for j in (0..self.keys.len()).step_by(L::ROWS) {
            let rows = L::ROWS.min(self.keys.len() - j);
            let seen = self.queries_of(j..j + rows);
            l.call(Product {
                a: Factor { data: &tile[j * QUERIES + seen.start..], row: QUERIES, step: 1 },
                b: b.from(seen.start),
                depth: seen.len(),
                rows,
                columns: c.width,
                start: Start::Held,
                c,
                at: (row + j, 0),
            });
        }
    }

    /// To some rows, one per query and each first multiplied by its number, adds the sums over the keys that it sees of
    /// tile times a row of the key.
    ///
    /// # Shapes
    /// tile `KEYS QUERIES`, b `keys columns`, c `queries columns`
    pub(super) fn add_to_queries<L: Lanes>(
        &self,
        l: L,
        tile: &[f32],
        b: Rows<'_>,
        c: &mut Plane<'_, f32>,
        scale: Option<&[f32]>,
    ) {
        for i in (0..self.queries.len()).step_by(L::ROWS) {
            let rows = L::ROWS.min(self.queries.len() - i);
            let seen = self.keys_of(i..i + rows);
            l.call(Product {
                a: Factor { data: &tile[seen.start * QUERIES + i..], row: 1, step: QUERIES },
                b: b.from(seen.start),
                depth: seen.len(),
                rows,
                columns: c.width,
                start: scale.map_or(Start::Held, |by| Start::Scaled(&by[i..])),
                c,
                at: (i, 0),
            });
        }
    }
}

/// How a product of query and key becomes a score, in units of ln 2: so that weights are powers of two.
pub(super) struct Scores<'a> {
    /// What queries are multiplied by.
    pub factor: f32,
    /// Softcap, if there is one.
    pub cap: Option<f32>,
    /// Broadcasts to `(b a sq sk)`.
    bias: Option<Numbers<'a>>,
}

impl<'a> Scores<'a> {
    /// `None` if the bias is of a type or layout that only the plain kernel knows.
    pub(super) fn new(op: &Attention, inputs: &'a [Input<'a>]) -> Option<Self> {
        let bias = if op.bias { Some(Numbers::new(&inputs[3])?) } else { None };
        let factor = op.softcap.map_or(op.scale * f64::from(LOG2_E), |cap| op.scale / cap) as f32;
        Some(Self { factor, cap: op.softcap.map(|cap| cap as f32), bias })
    }

    /// Whether a product is all of a score.
    pub(super) fn are_products(&self) -> bool {
        self.cap.is_none() && self.bias.is_none()
    }

    /// The bias of one query and one key, by batch, head, query and key; 0 if there is none.
    pub(super) fn bias_at(&self, index: [usize; 4]) -> f32 {
        self.bias.as_ref().map_or(0.0, |bias| bias.at(index))
    }

    pub(super) fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// Makes scores of the products of a tile of head `[batch, head]`; the hyperbolic tangents inside the cap go to
    /// `tanh`, if it is not empty.
    pub(super) fn finish<L: Lanes>(&self, l: L, tile: &Tile, head: [usize; 2], scores: &mut [f32], tanh: &mut [f32]) {
        if let Some(cap) = self.cap {
            let limit = cap * LOG2_E;
            for v in 0..tile.vectors(L::COUNT) {
                let keys = tile.column(v, L::COUNT).0;
                l.call(Cap { limit, keys, column: v * L::COUNT, scores, tanh });
            }
        }
        if let Some(bias) = &self.bias {
            for (i, query) in tile.queries.clone().enumerate() {
                let first = bias.position([head[0], head[1], query, tile.keys.start]);
                for j in tile.keys_of(i..i + 1) {
                    scores[j * QUERIES + i] += bias.number(first + j * bias.strides[3]) * LOG2_E;
                }
            }
        }
    }
}

/// Softcap of some keys of a vector of queries.
struct Cap<'a> {
    limit: f32,
    keys: Range<usize>,
    column: usize,
    scores: &'a mut [f32],
    tanh: &'a mut [f32],
}

impl Kernel for Cap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let limit = l.splat(self.limit);
        for j in self.keys {
            let at = j * QUERIES + self.column;
            let tanh = l.tanh(l.get(self.scores, at));
            l.put(self.scores, at, l.mul(limit, tanh));
            if !self.tanh.is_empty() {
                l.put(self.tanh, at, tanh);
            }
        }
    }
}

/// Writes the rows of queries as columns, multiplied by `factor`; columns past the last are zero.
///
/// # Shapes
/// rows `queries width` -> `width QUERIES`
pub(super) struct Transpose<'a> {
    pub rows: Rows<'a>,
    pub queries: usize,
    pub width: usize,
    pub factor: f32,
    pub to: &'a mut [f32],
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { rows, queries, width, factor, to } = self;
        let (whole_queries, whole_width) = (queries / 8 * 8, width / 8 * 8);
        for i in (0..whole_queries).step_by(8) {
            for c in (0..whole_width).step_by(8) {
                let from = &rows.data[i * rows.stride + c..];
                l.transpose(from, rows.stride, &mut to[c * QUERIES + i..], QUERIES, factor);
            }
        }
        for i in 0..queries {
            let from = rows.row(i, width);
            let first = if i < whole_queries { whole_width } else { 0 };
            for c in first..width {
                to[c * QUERIES + i] = from[c] * factor;
            }
        }
        for row in to[..width * QUERIES].chunks_exact_mut(QUERIES) {
            row[queries..].fill(0.0);
        }
    }
}
