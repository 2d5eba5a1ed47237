//! Which window of the data is the `n`-th sample: a function of the seed and `n`, and of nothing that came before.
//!
//! So a resumed run sees the samples that the uninterrupted one would have seen, and four micro-batches of two see the
//! samples of one batch of eight.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::str::FromStr;

use serde_json::{Value, json};
use tensor::rng::{Rng, Stream};
use units::Diagnostic;

use super::error::DataError;
use super::span::Span;

/// In which order windows are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Each sample begins anywhere, independently of the others: every start is as likely as any other, the first and
    /// the last one included.
    #[default]
    Random,
    /// Passes over the data, each in another order: windows side by side, every one once in a pass. Those ids at the
    /// end that fill no window are others in each pass, as the first window begins at a random offset.
    Shuffled,
    /// From the first id to the last and on with the first: every id is a target once in a pass.
    Sequential,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Random, Self::Shuffled, Self::Sequential];

    /// Its name on the command line and in checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Shuffled => "shuffled",
            Self::Sequential => "sequential",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Order {
    type Err = Diagnostic;
    fn from_str(text: &str) -> Result<Self, Diagnostic> {
        let found = Self::ALL.into_iter().find(|order| order.name() == text.trim().to_lowercase());
        found.ok_or_else(|| {
            Diagnostic::error("", format!("`{text}` is no order of samples")).help("random, shuffled, sequential")
        })
    }
}

/// Where a run stands in its data: all that a checkpoint has to keep of a sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// In which order.
    pub order: Order,
    /// Seed of the run.
    pub seed: u64,
    /// Number of ids there are.
    pub tokens: u64,
    /// Ids of one sample.
    pub window: u64,
    /// Number of the next sample.
    pub next_sample: u64,
}

impl Position {
    /// For a manifest.
    pub fn to_json(&self) -> Value {
        json!({
            "order": self.order.name(),
            "seed": self.seed,
            "tokens": self.tokens,
            "window": self.window,
            "next_sample": self.next_sample,
        })
    }
}

/// Chooses windows of a [`Span`]. It keeps no state: every method takes the number of a sample or step.
///
/// Neighbouring windows share one id, because the last target of one is the first input of the next. A window has
/// `seq_len + 1` ids, from which inputs and targets are cut.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    order: Order,
    rng: Rng,
    tokens: u64,
    window: u64,
    batch: u64,
}

/// Sites of the random stream: one for independent starts, one for the orders of passes, one for their offsets.
const STARTS: u64 = 0;
const OFFSETS: u64 = 1;
const ORDERS: u64 = 2;

impl Sampler {
    /// Samples of `window` ids, `batch` of them in a step.
    ///
    /// # Errors
    /// The data has fewer ids than one window.
    pub fn new(data: &Span, order: Order, window: u64, batch: u64, seed: u64) -> Result<Self, DataError> {
        // A window of one id has no target.
        let window = window.max(2);
        if data.len() < window {
            return Err(data.too_short(window));
        }
        Ok(Self { order, rng: Rng::new(seed, Stream::DataOrder), tokens: data.len(), window, batch: batch.max(1) })
    }

    /// Ids of one sample.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Samples of one step.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Ids by which neighbouring windows are apart: the targets of one window.
    fn stride(&self) -> u64 {
        self.window - 1
    }

    /// Windows side by side that fit into the data.
    pub fn windows(&self) -> u64 {
        (self.tokens - 1) / self.stride()
    }

    /// First id of sample number `sample`. In sequential order a window may go over the end of the data, where
    /// [`Span::read`] goes on at its beginning.
    pub fn start(&self, sample: u64) -> u64 {
        let below = |site, index, bound| NonZeroU64::new(bound).map_or(0, |bound| self.rng.below(site, index, bound));
        match self.order {
            Order::Random => below(STARTS, sample, self.tokens - self.window + 1),
            Order::Shuffled => {
                let windows = self.windows();
                let (pass, index) = (sample / windows, sample % windows);
                let offset = below(OFFSETS, pass, (self.tokens - 1) % self.stride() + 1);
                offset + self.permuted(pass, index, windows) * self.stride()
            }
            Order::Sequential => (u128::from(sample) * u128::from(self.stride()) % u128::from(self.tokens)) as u64,
        }
    }

    /// First ids of consecutive samples.
    pub fn starts(&self, samples: Range<u64>) -> Vec<u64> {
        samples.map(|sample| self.start(sample)).collect()
    }

    /// First ids of the samples of a step.
    pub fn at(&self, step: u64) -> Vec<u64> {
        self.starts(step * self.batch..(step + 1) * self.batch)
    }

    /// Passes over the data that the samples before `sample` are; a part of one counts as its share.
    pub fn epochs(&self, sample: u64) -> f64 {
        sample as f64 * self.stride() as f64 / self.tokens as f64
    }

    /// Where a run stands before `step`.
    pub fn position(&self, step: u64) -> Position {
        Position {
            order: self.order,
            seed: self.rng.seed(),
            tokens: self.tokens,
            window: self.window,
            next_sample: step * self.batch,
        }
    }

    /// Where index `index` of `0..n` goes in the order of a pass: each index goes to another.
    ///
    /// A Feistel network on the smallest square of a power of two that holds `n`, walked until it comes back into
    /// `0..n` (J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). It takes less than four
    /// walks on average, as the square is below `4 n`.
    fn permuted(&self, pass: u64, index: u64, n: u64) -> u64 {
        const ROUNDS: u64 = 6;
        let half = (u64::BITS - (n - 1).leading_zeros()).div_ceil(2);
        let mask = (1_u64 << half) - 1;
        let mut at = index;
        loop {
            let (mut left, mut right) = (at >> half, at & mask);
            for round in 0..ROUNDS {
                // One site for each round of each pass; elements are the right halves.
                let mixed = self.rng.bits64(ORDERS + pass * ROUNDS + round, right);
                (left, right) = (right, (left ^ mixed) & mask);
            }
            at = left << half | right;
            if at < n {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::token_file::{OpenOptions, TokenFile};
    use super::*;

    fn span(tokens: u32) -> Span {
        let ids: Vec<u32> = (0..tokens).collect();
        Arc::new(TokenFile::from_ids("", &ids, &OpenOptions::default()).unwrap()).whole()
    }

    fn sampler(order: Order, tokens: u32, window: u64, seed: u64) -> Sampler {
        Sampler::new(&span(tokens), order, window, 4, seed).unwrap()
    }

    /// Chi-square of counts that should be equal, and the value that one sample in a million passes:
    /// Wilson and Hilferty's approximation of the quantile, with z = 4.753.
    fn chi_square(counts: &[u64]) -> (f64, f64) {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let sum = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
        let k = (counts.len() - 1) as f64;
        let spread = 2.0 / (9.0 * k);
        (sum, k * (1.0 - spread + 4.753 * spread.sqrt()).powi(3))
    }

    #[test]
    fn random_starts_are_uniform_and_reach_both_ends() {
        // 100 ids hold 93 windows of 8.
        for seed in 0..8 {
            let sampler = sampler(Order::Random, 100, 8, seed);
            let mut counts = vec![0_u64; 93];
            for sample in 0..93 * 200 {
                counts[sampler.start(sample) as usize] += 1;
            }
            let (sum, limit) = chi_square(&counts);
            assert!(sum < limit, "seed {seed}: {sum} against {limit}");
            assert!(counts[0] > 0 && counts[92] > 0);
        }
    }

    #[test]
    fn a_file_of_one_window_has_one_start() {
        for order in Order::ALL {
            let sampler = sampler(order, 8, 8, 1);
            let all = sampler.starts(0..5);
            match order {
                Order::Sequential => assert_eq!(all, [0, 7, 6, 5, 4]),
                _ => assert_eq!(all, [0; 5]),
            }
            assert!(Sampler::new(&span(7), order, 8, 1, 1).is_err());
        }
    }

    #[test]
    fn sequential_targets_every_id_once_in_a_pass() {
        for (tokens, window) in [(10_u32, 4_u64), (7, 7), (100, 9), (5, 2)] {
            let data = span(tokens);
            let sampler = Sampler::new(&data, Order::Sequential, window, 1, 0).unwrap();
            // As many samples as make whole passes: the targets then cover every id equally often.
            let mut counts = vec![0; tokens as usize];
            let mut previous_last = None;
            for sample in 0..u64::from(tokens) {
                let mut ids = vec![0; window as usize];
                data.read(sampler.start(sample), &mut ids).unwrap();
                if let Some(last) = previous_last {
                    assert_eq!(ids[0], last);
                }
                previous_last = ids.last().copied();
                for &target in &ids[1..] {
                    counts[target as usize] += 1;
                }
            }
            assert!(counts.iter().all(|&count| count == window - 1), "{tokens} {window}: {counts:?}");
            assert_eq!(sampler.epochs(u64::from(tokens)), (window - 1) as f64);
        }
    }

    #[test]
    fn shuffled_takes_every_window_once_in_a_pass_and_every_id_in_some_pass() {
        for (tokens, window) in [(1000_u32, 8_u64), (64, 2), (65, 2), (17, 16), (16, 16), (9, 3)] {
            let sampler = sampler(Order::Shuffled, tokens, window, 3);
            let windows = sampler.windows();
            let mut used = vec![false; tokens as usize];
            let mut orders = Vec::new();
            for pass in 0..200 {
                let starts = sampler.starts(pass * windows..(pass + 1) * windows);
                let mut sorted = starts.clone();
                sorted.sort_unstable();
                assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] == window - 1), "{tokens} {window} {pass}");
                for start in &sorted {
                    used[*start as usize..][..window as usize].fill(true);
                }
                orders.push(starts.iter().map(|start| start - sorted[0]).collect::<Vec<_>>());
            }
            assert!(used.iter().all(|&used| used), "{tokens} {window}");
            assert!(windows < 3 || orders.windows(2).any(|pair| pair[0] != pair[1]), "{tokens} {window}");
        }
    }

    #[test]
    fn shuffled_orders_are_uniform() {
        // Where the first window of each pass stands, and which follows it.
        let sampler = sampler(Order::Shuffled, 12, 2, 5);
        let windows = sampler.windows();
        let mut first = vec![0_u64; windows as usize];
        let mut pairs = vec![0_u64; (windows * windows) as usize];
        for pass in 0..20_000 {
            let [a, b] = [0, 1].map(|index| sampler.start(pass * windows + index));
            first[a as usize] += 1;
            pairs[(a * windows + b) as usize] += 1;
        }
        let (sum, limit) = chi_square(&first);
        assert!(sum < limit, "{sum} against {limit}");
        pairs.retain(|&count| count > 0);
        assert_eq!(pairs.len() as u64, windows * (windows - 1));
        let (sum, limit) = chi_square(&pairs);
        assert!(sum < limit, "{sum} against {limit}");
    }

    #[test]
    fn a_sample_depends_on_its_number_alone() {
        for order in Order::ALL {
            let sampler = sampler(order, 1000, 33, 9);
            let straight = sampler.starts(0..40);
            let steps: Vec<u64> = (0..10).rev().flat_map(|step| sampler.at(step).into_iter().rev()).collect();
            assert_eq!(straight, steps.into_iter().rev().collect::<Vec<_>>());
            let other = Sampler::new(&span(1000), order, 33, 4, 10).unwrap();
            assert_eq!(other.starts(0..40) == straight, order == Order::Sequential);
            let far = sampler.start(u64::MAX / 64);
            assert!(far < 1000);
        }
    }

    #[test]
    fn a_position_says_all_that_chooses_a_sample() {
        for order in Order::ALL {
            let position = sampler(order, 1000, 33, u64::MAX).position(17);
            assert_eq!(
                position.to_json().to_string(),
                format!(
                    r#"{{"next_sample":68,"order":"{order}","seed":18446744073709551615,"tokens":1000,"window":33}}"#
                )
            );
            assert_eq!(order.name().parse::<Order>().unwrap(), order);
        }
    }
}
