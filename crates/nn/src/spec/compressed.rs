//! Attention to compressed blocks of keys, and streams that maps mix around every part (DeepSeek-V4).

use super::{IndexerSpec, NamedNorm, NormSpec, RotarySpec};

/// Attention to a window of keys and to compressed blocks of all before them, one head of keys for all queries, which are
/// their own values.
///
/// Source: `transformers`, `models/deepseek_v4` (5.24), which follows the report of DeepSeek-V4, section 2.3.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedSpec {
    /// Query heads.
    pub heads: u64,
    /// Width of a head; its last channels are turned, those of the output back.
    pub head_dim: u64,
    /// How they are turned.
    pub rotary: RotarySpec,
    /// Rank of the compressed queries.
    pub q_rank: u64,
    /// Each query sees this many keys, its own included.
    pub window: u64,
    /// The blocks.
    pub blocks: Option<BlocksSpec>,
    /// Groups of heads with output maps of their own, and the width each is brought to.
    pub out: [u64; 2],
    /// Norm of compressed queries, of keys and of blocks.
    pub norm: NormSpec,
    /// Dropout on the attention weights.
    pub dropout: f64,
}

/// Blocks of neighbouring positions, of which each is compressed into one key.
#[derive(Clone, Debug, PartialEq)]
pub struct BlocksSpec {
    /// Positions of a block.
    pub rate: u64,
    /// What chooses the blocks each query sees. Blocks then overlap: each also holds a second map of the block before.
    pub indexer: Option<IndexerSpec>,
}

impl BlocksSpec {
    /// Blocks that `s` positions make: those that are complete.
    pub const fn count(&self, s: u64) -> u64 {
        s / self.rate
    }

    /// Pairs of queries and blocks that the model needs of `s` positions behind `past`: a query sees the blocks that end with
    /// it or before, as many as the indexer lets it.
    pub fn pairs(&self, past: u64, s: u64) -> u64 {
        let most = self.indexer.as_ref().map_or(u64::MAX, |indexer| indexer.top_k);
        // The first n positions: from the end of block j on, each sees block j.
        let seen = |n: u64| {
            let (rate, blocks) = (u128::from(self.rate), u128::from(self.count(n).min(most)));
            blocks * (u128::from(n) + 1) - rate * blocks * (blocks + 1) / 2
        };
        u64::try_from(seen(past.saturating_add(s)) - seen(past)).unwrap_or(u64::MAX)
    }
}

impl CompressedSpec {
    /// Keys in the text itself that `s` positions behind `past` read.
    pub fn near(&self, past: u64, s: u64) -> u64 {
        s.saturating_add(past.min(self.window.saturating_sub(1)))
    }

    /// Pairs of a head that the model needs of `s` positions behind `past`.
    pub fn pairs(&self, past: u64, s: u64) -> u64 {
        let near = tensor::ops::attention::pairs(s, self.near(past, s), true, Some(self.window));
        near.saturating_add(self.blocks.as_ref().map_or(0, |blocks| blocks.pairs(past, s)))
    }
}

/// Streams that small maps collapse before every part of a block and mix behind it.
///
/// Source: Zhu et al. 2024, arXiv 2409.19606; Xie et al. 2025, arXiv 2512.24880.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperSpec {
    /// Streams.
    pub streams: u64,
    /// Times that rows and columns of the mixing weights are brought to the sum one.
    pub iterations: u64,
    /// Added to weights and sums.
    pub eps: f64,
    /// Added to the mean of squares of all streams.
    pub norm_eps: f64,
    /// Before attention.
    pub n1: NamedNorm,
    /// Before feed-forward.
    pub n2: NamedNorm,
}

impl HyperSpec {
    /// More streams than this are refused.
    pub const MOST_STREAMS: u64 = 64;
    /// More iterations than this are refused: each is written out.
    pub const MOST_ITERATIONS: u64 = 256;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sees_the_blocks_that_are_over() {
        for (rate, top_k) in [(1, None), (4, None), (4, Some(2)), (128, None), (3, Some(1))] {
            let indexer = top_k.map(|top_k| IndexerSpec { heads: 1, head_dim: 1, top_k });
            let blocks = BlocksSpec { rate, indexer };
            for (past, s) in [(0, 1), (0, 9), (0, 130), (5, 9), (257, 300)] {
                let each = (past + 1..=past + s).map(|n| (n / rate).min(top_k.unwrap_or(u64::MAX)));
                assert_eq!(blocks.pairs(past, s), each.sum::<u64>(), "{rate} {top_k:?} {past} {s}");
            }
        }
    }
}
