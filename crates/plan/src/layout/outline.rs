//! A stage of a pipeline in outline: what two micro-batches of it did in a trace, so that more micro-batches, larger ones and
//! more blocks follow by multiplication.
//!
//! Bytes that are live at a moment are those that were there when its pass began and what the pass has added since; a pass
//! adds the same whatever else is held. What a run of equal blocks adds is what one of its blocks adds, so many times. Bytes
//! and sizes of a micro-batch of more sequences lie on the straight line through those of one and of two, where both do the same
//! ops; where they do not, each size is traced by itself.

mod reading;

pub use reading::read;

use std::collections::HashMap;

use super::held::Stretch;
use crate::cluster::machine::{Item, Talk};
use crate::cluster::op_time::{Piece, Work};
use crate::cluster::topology::Axis;

/// A number that grows with the sequences of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Line {
    /// With as many as were traced first.
    pub at: i64,
    /// More for each one more.
    pub more: i64,
}

impl Line {
    /// With `more` sequences than were traced first.
    pub const fn with(self, more: i64) -> i64 {
        self.at + self.more * more
    }

    const fn add(&mut self, other: Self, times: i64) {
        self.at += other.at * times;
        self.more += other.more * times;
    }

    /// Whether it is at least the other for every number of sequences.
    const fn covers(self, other: Self) -> bool {
        self.at >= other.at && self.more >= other.more
    }
}

/// Live bytes, by what divides them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// What no stage of ZeRO divides.
    pub whole: Line,
    /// Copies of weights, which are counted by unit where weights are gathered.
    pub casts: Line,
    /// Tokens and labels, which all stages of a rank share.
    pub inputs: Line,
    /// Storages of each [`Divided`].
    pub divided: Vec<i32>,
}

impl Level {
    fn add(&mut self, other: &Self, times: i64) {
        self.whole.add(other.whole, times);
        self.casts.add(other.casts, times);
        self.inputs.add(other.inputs, times);
        if self.divided.len() < other.divided.len() {
            self.divided.resize(other.divided.len(), 0);
        }
        for (own, more) in self.divided.iter_mut().zip(&other.divided) {
            *own += *more * times as i32;
        }
    }

    fn minus(&self, other: &Self) -> Self {
        let mut level = self.clone();
        level.add(other, -1);
        while level.divided.last() == Some(&0) {
            level.divided.pop();
        }
        level
    }

    /// Whether there is nothing in it that is missing.
    fn is_positive(&self) -> bool {
        let zero = Line::default();
        [self.whole, self.casts, self.inputs].into_iter().all(|line| line.covers(zero))
            && self.divided.iter().all(|count| *count >= 0)
    }
}

/// Storages of one size that a stage of ZeRO divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Divided {
    /// From which stage on.
    pub from: u8,
    /// Whether it is over the replicas of an expert.
    pub experts: bool,
    /// Bytes of one.
    pub bytes: Line,
}

/// A moment of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// More than when the pass began.
    pub level: Level,
    /// Weights gathered for it, where they are divided.
    pub gathered: i64,
    /// Gradients that are not cut up yet, where they are: from ZeRO 2 on, and with parameters that are divided, too.
    pub unreduced: [i64; 2],
    /// The runs of blocks that are behind it, by bit.
    pub behind: u64,
}

/// Memory over a stretch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Its moments, but for those that are below another whatever the layout.
    pub moments: Vec<Moment>,
    /// More at its end than when it began.
    pub end: Level,
    /// What a unit between the ends of each run adds.
    pub each: Vec<Level>,
}

/// Ops of one kind of work: positions in [`Prices`] with how often each is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Of what is left of the stage.
    pub all: Vec<(u32, u32)>,
    /// Of a unit between the ends of each run.
    pub each: Vec<Vec<(u32, u32)>>,
}

/// A number of the stage, and of a unit between the ends of each run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Total<T> {
    /// Of what is left of the stage.
    pub all: T,
    /// Of one unit.
    pub each: Vec<T>,
}

/// A stage in outline.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    /// Sequences of the micro-batch that was traced first.
    pub traced: u64,
    /// Sizes of storages that are divided.
    pub divided: Vec<Divided>,
    /// Live when a step begins.
    pub fixed: Total<Level>,
    /// Memory over the passes, in the order of [`Stretch::PASSES`], and over the update.
    pub courses: [Course; 5],
    /// Work of the same passes forward, backward and for weights, and of the update.
    pub work: [[Tally; 3]; 4],
    /// Work of the update.
    pub update: Tally,
    /// Trained parameters: those that every replica has, those of experts.
    pub trained: Total<[u64; 2]>,
    /// All parameters.
    pub parameters: Total<u64>,
    /// Blocks.
    pub blocks: Total<u64>,
    /// Bytes that one forward pass sends to the host.
    pub copies: Total<Line>,
    /// Weights outside of the blocks, gathered.
    pub root: i64,
}

/// Where the course of a stretch stands in [`Outline::courses`].
pub const fn course_of(stretch: Stretch) -> usize {
    match stretch {
        Stretch::FirstForward => 0,
        Stretch::FirstBackward => 1,
        Stretch::Forward => 2,
        Stretch::Backward => 3,
        Stretch::Update => 4,
    }
}

/// What all outlines of one share of a model are made of: each kind of op once.
#[derive(Clone, Debug, Default)]
pub struct Prices {
    /// The ops.
    pub items: Vec<Grown>,
    known: HashMap<[u64; 19], u32>,
}

impl Prices {
    fn position(&mut self, grown: Grown) -> u32 {
        let mut key = [grown.traced; 19];
        key[..9].copy_from_slice(&bits(&grown.one));
        key[9..18].copy_from_slice(&bits(&grown.two));
        let items = &mut self.items;
        *self.known.entry(key).or_insert_with(|| {
            items.push(grown);
            items.len() as u32 - 1
        })
    }
}

/// An op that grows with the sequences of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Grown {
    /// Sequences of the micro-batch that was traced first.
    traced: u64,
    /// The op in its trace.
    pub one: Item,
    /// That of twice as many, or the same where there was none.
    two: Item,
}

/// All that an item is.
fn bits(item: &Item) -> [u64; 9] {
    let mut all = [0; 9];
    let (piece, talk) = match item {
        Item::Op(piece) => (Some(piece), None),
        Item::Talk(talk) => (None, Some(talk)),
        Item::Both(piece, talk) => (Some(piece), Some(talk)),
    };
    if let Some(Piece { work, bytes, launches }) = piece {
        (all[0], all[1]) = (bytes.to_bits(), launches.to_bits());
        let (kind, sizes) = match *work {
            Work::Product { batch, m, n, k } => (1, [batch, m, n, k]),
            Work::Attention { heads, queries, keys, width, causal, backward } => {
                (2 + u64::from(causal) + 2 * u64::from(backward), [heads, queries, keys, width])
            }
            Work::Mixed { flop } => (6, [flop.to_bits(), 0, 0, 0]),
            Work::Moves => (7, [0; 4]),
        };
        all[2] = kind;
        all[3..7].copy_from_slice(&sizes);
    }
    if let Some(Talk { collective, bytes, axis }) = talk {
        all[7] = bytes.to_bits();
        let axis = Axis::ALL.iter().position(|known| known == axis).unwrap_or(Axis::ALL.len());
        all[8] = 1 + *collective as u64 * 16 + axis as u64;
    }
    all
}

impl Grown {
    /// The op of a micro-batch of so many sequences; `None` where no straight line gives its sizes.
    pub fn with(&self, batch: u64) -> Option<Item> {
        if batch == self.traced {
            return Some(self.one);
        }
        let real = |a: f64, b: f64| a + (b - a) * (batch as f64 / self.traced as f64 - 1.0);
        let piece = |a: &Piece, b: &Piece| -> Option<Piece> {
            // Sizes that do not count sequences stay, and the others are in proportion: what is rounded up is on no line.
            let size = |a: u64, b: u64| {
                let grows = b == 2 * a && a.is_multiple_of(self.traced);
                if a == b { Some(a) } else { grows.then(|| a / self.traced * batch) }
            };
            let work = match (a.work, b.work) {
                (Work::Product { batch, m, n, k }, Work::Product { batch: b2, m: m2, n: n2, k: k2 }) => {
                    Work::Product { batch: size(batch, b2)?, m: size(m, m2)?, n: size(n, n2)?, k: size(k, k2)? }
                }
                (
                    Work::Attention { heads, queries, keys, width, causal, backward },
                    Work::Attention { heads: h2, queries: q2, keys: k2, width: w2, causal: c2, backward: b2 },
                ) if (queries, keys, width, causal, backward) == (q2, k2, w2, c2, b2) => {
                    Work::Attention { heads: size(heads, h2)?, queries, keys, width, causal, backward }
                }
                (Work::Mixed { flop }, Work::Mixed { flop: f2 }) => Work::Mixed { flop: real(flop, f2) },
                (Work::Moves, Work::Moves) => Work::Moves,
                _ => return None,
            };
            (a.launches == b.launches).then(|| Piece { work, bytes: real(a.bytes, b.bytes), launches: a.launches })
        };
        let talk = |a: &Talk, b: &Talk| {
            let same = (a.collective, a.axis) == (b.collective, b.axis);
            same.then(|| Talk { bytes: real(a.bytes, b.bytes), ..*a })
        };
        match (&self.one, &self.two) {
            (Item::Op(a), Item::Op(b)) => piece(a, b).map(Item::Op),
            (Item::Talk(a), Item::Talk(b)) => talk(a, b).map(Item::Talk),
            (Item::Both(a, c), Item::Both(b, d)) => Some(Item::Both(piece(a, b)?, talk(c, d)?)),
            _ => None,
        }
    }
}
