//! What stands in front of the blocks of a model that reads bytes in patches.

use super::{NormSpec, StackSpec};

/// From bytes to what the blocks of the model read: a local encoder of bytes, a stack over patches, and the model that
/// cuts a text into them. The blocks of the model itself are the local decoder.
///
/// Source: Pagnoni et al. 2024, arXiv:2412.09871.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchSpec {
    /// Bytes of a patch behind the first, which has one byte; the last may be shorter.
    pub size: u64,
    /// Rows of the stream of bytes that stand for a patch.
    pub rows: u64,
    /// Tables of groups of bytes.
    pub hashes: HashSpec,
    /// Rows of the table of bytes.
    pub vocab_size: u64,
    /// Blocks over bytes; the embedding says the dropout alone.
    pub encoder: StackSpec,
    /// From bytes to patches, behind the blocks of the encoder.
    pub gather: PatchAttentionSpec,
    /// Blocks over patches; the embedding says the dropout alone.
    pub global: StackSpec,
    /// From patches to bytes, in front of the blocks of the decoder.
    pub spread: PatchAttentionSpec,
    /// Dropout in front of the decoder.
    pub dropout: f64,
    /// The frozen model whose entropies cut a text, and the rows of its table and its head.
    pub patcher: Option<(StackSpec, u64)>,
}

impl PatchSpec {
    /// Patches of `bytes` bytes.
    ///
    /// ```
    /// # use napkin_nn::spec::PatchSpec;
    /// assert_eq!([1, 2, 5, 6].map(|bytes| PatchSpec::count(bytes, 4)), [1, 2, 2, 3]);
    /// ```
    pub const fn count(bytes: u64, size: u64) -> u64 {
        1 + bytes.saturating_sub(1).div_ceil(if size == 0 { 1 } else { size })
    }
}

/// Tables whose rows are looked up by hashes of the bytes up to each position, one table for each function and length.
#[derive(Clone, Debug, PartialEq)]
pub struct HashSpec {
    /// Rows of one.
    pub rows: u64,
    /// Hash functions.
    pub functions: u64,
    /// Lengths of the groups of bytes that are hashed.
    pub lengths: Vec<u64>,
}

impl HashSpec {
    /// How many tables there are.
    pub fn tables(&self) -> u64 {
        self.functions.saturating_mul(self.lengths.len() as u64)
    }
}

/// Attention between bytes and patches, in which each byte meets the rows of one patch.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchAttentionSpec {
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Norm in front of queries, and of keys and values.
    pub norm: NormSpec,
    /// Dropout on the attention weights.
    pub dropout: f64,
    /// Whether each block has one; otherwise there is one in all.
    pub each: bool,
}
