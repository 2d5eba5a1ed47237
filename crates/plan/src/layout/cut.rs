//! How the blocks of a model are cut over the ranks of a pipeline, and which of the pieces are alike.
//!
//! A piece of many equal blocks does what one of three of them does, and the middle one of these so many times more. The
//! pieces of all pipelines of a model so come down to a few short ones.

use nn::spec::{Ends, ModelSpec};
use std::ops::Range;
use std::sync::Arc;

use super::Layout;

/// Units of a run that a short piece keeps: the first, one between, the last.
const KEPT: usize = 3;

/// Longest pattern of blocks that is looked for.
const PATTERN: usize = 8;

/// A piece with its runs cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    /// Whether tokens come in.
    pub first: bool,
    /// Whether the loss is here.
    pub last: bool,
    /// Kind of each block that is left.
    kinds: Vec<usize>,
    /// Blocks of each run that is shorter than it was, as positions among those that are left: they stand for all that are
    /// missing.
    pub between: Vec<Range<usize>>,
}

impl Short {
    /// Blocks that are left.
    pub const fn blocks(&self) -> usize {
        self.kinds.len()
    }
}

/// A piece: one stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its short form, as a position in [`Pieces::short`].
    pub short: usize,
    /// For each of [`Short::between`], how often it is there beyond the once.
    pub more: Vec<u64>,
}

/// All pieces of a model, each once.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// Kind of each block of the model: equal ones have the same.
    kinds: Vec<usize>,
    /// Whether equal blocks may stand for each other.
    alike: bool,
    /// Pieces.
    pub all: Vec<Piece>,
    /// Their short forms.
    pub short: Vec<Short>,
    /// The first block of each short form, and positions of those that are left behind it.
    from: Vec<(usize, Vec<usize>)>,
}

/// A pipeline, rank by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Ranks that differ in their pieces.
    pub classes: Vec<Class>,
    /// Which of them each rank is.
    pub of: Vec<usize>,
}

/// Ranks of a pipeline that hold the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The first of them, which holds most micro-batches.
    pub place: u64,
    /// Their stages, as positions in [`Pieces::all`].
    pub pieces: Vec<usize>,
}

impl Pieces {
    /// Of a model, no pieces yet.
    pub fn new(model: &ModelSpec) -> Self {
        let mut kinds: Vec<usize> = Vec::with_capacity(model.layers.len());
        for (i, layer) in model.layers.iter().enumerate() {
            let same = (0..i).find(|&j| Arc::ptr_eq(&model.layers[j], layer) || model.layers[j] == *layer);
            kinds.push(same.map_or(i, |j| kinds[j]));
        }
        // Tables of every block belong to none of them.
        let tables = model.buffers.iter().any(|buffer| buffer.count > 1 && buffer.count == model.layers.len() as u64);
        let alike = model.order.is_none() && model.tuning.is_uniform() && !tables;
        Self { kinds, alike, all: Vec::new(), short: Vec::new(), from: Vec::new() }
    }

    /// Has every piece stay as long as it is.
    pub const fn leave_whole(&mut self) {
        self.alike = false;
    }

    /// Cuts the model as a layout says.
    pub fn cut(&mut self, layout: &Layout) -> Cut {
        let counts = layout.blocks_of(self.kinds.len() as u64);
        let (pp, last) = (layout.pp as usize, counts.len().saturating_sub(1));
        let mut start = 0;
        let mut pieces = Vec::with_capacity(counts.len());
        for (stage, count) in counts.iter().enumerate() {
            let end = (start + *count as usize).min(self.kinds.len());
            pieces.push(self.piece(start..end, stage == 0, stage == last));
            start = end;
        }
        let mut cut = Cut { classes: Vec::new(), of: Vec::with_capacity(pp) };
        for place in 0..pp {
            let own: Vec<usize> = pieces.iter().skip(place).step_by(pp).copied().collect();
            let known = cut.classes.iter().position(|class| class.pieces == own);
            cut.of.push(known.unwrap_or(cut.classes.len()));
            if known.is_none() {
                cut.classes.push(Class { place: place as u64, pieces: own });
            }
        }
        cut
    }

    fn piece(&mut self, blocks: Range<usize>, first: bool, last: bool) -> usize {
        let (left, between, more) = shortened(&self.kinds[blocks.clone()], self.alike);
        let kinds = left.iter().map(|i| self.kinds[blocks.start + i]).collect();
        let short = Short { first, last, kinds, between };
        let known = self.short.iter().position(|known| *known == short);
        let at = known.unwrap_or(self.short.len());
        if known.is_none() {
            self.short.push(short);
            self.from.push((blocks.start, left));
        }
        let piece = Piece { short: at, more };
        let known = self.all.iter().position(|known| *known == piece);
        known.unwrap_or_else(|| {
            self.all.push(piece);
            self.all.len() - 1
        })
    }

    /// The spec of a short form, of the model or of a rank's share of it.
    ///
    /// # Errors
    /// What cannot be cut, in words.
    pub fn spec(&self, model: &ModelSpec, short: usize) -> Result<ModelSpec, Vec<String>> {
        let (start, left) = &self.from[short];
        let Short { first, last, .. } = self.short[short];
        let end = start + left.last().map_or(0, |last| last + 1);
        let mut spec = model.stage(*start..end, Ends { first, last })?;
        spec.layers = left.iter().filter_map(|i| spec.layers.get(*i).cloned()).collect();
        Ok(spec)
    }
}

/// Of a list of kinds, which to leave, which of these stand for those that are missing, and how many times more each.
fn shortened(kinds: &[usize], alike: bool) -> (Vec<usize>, Vec<Range<usize>>, Vec<u64>) {
    let (mut left, mut between, mut more) = (Vec::new(), Vec::new(), Vec::new());
    let mut at = 0;
    while at < kinds.len() {
        let rest = &kinds[at..];
        // The pattern that goes on for longest.
        let times = |period: usize| {
            let unit = &rest[..period];
            rest.chunks_exact(period).take_while(|chunk| *chunk == unit).count()
        };
        let longest = (1..=PATTERN.min(rest.len()))
            .map(|period| (period, times(period)))
            .filter(|(_, times)| alike && *times > KEPT)
            .max_by_key(|(period, times)| (period * times, std::cmp::Reverse(*period)));
        if let Some((period, times)) = longest {
            let begin = left.len();
            left.extend(at..at + KEPT * period);
            between.push(begin + period..begin + 2 * period);
            more.push((times - KEPT) as u64);
            at += times * period;
        } else {
            left.push(at);
            at += 1;
        }
    }
    (left, between, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_short_and_counted() {
        let kinds = |text: &str| text.bytes().map(|byte| (byte - b'a') as usize).collect::<Vec<_>>();
        let all = |text: &str| {
            let (left, between, more) = shortened(&kinds(text), true);
            let letters: String = left.iter().map(|i| text.as_bytes()[*i] as char).collect();
            // What is left and what is missing are all there is.
            let missing: u64 = between.iter().zip(&more).map(|(range, more)| range.len() as u64 * more).sum();
            assert_eq!(left.len() as u64 + missing, text.len() as u64, "{text}");
            (letters, more)
        };
        assert_eq!(all("aaa"), ("aaa".to_owned(), vec![]));
        assert_eq!(all("aaaaaaa"), ("aaa".to_owned(), vec![4]));
        assert_eq!(all("aaabbbbb"), ("aaabbb".to_owned(), vec![2]));
        assert_eq!(all("abababababa"), ("abababa".to_owned(), vec![2]));
        assert_eq!(all("aaabaaabaaabaaabaa"), ("aaabaaabaaabaa".to_owned(), vec![1]));
        assert_eq!(all("abcd"), ("abcd".to_owned(), vec![]));
        assert_eq!(shortened(&kinds("aaaaaaa"), false).0.len(), 7);
    }
}
