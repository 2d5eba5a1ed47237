//! How queries, keys and values are made.

use super::{LinearSpec, NormSpec, RouterSpec};

/// How queries, keys and values are made.
#[derive(Clone, Debug, PartialEq)]
pub enum Projection {
    /// Three linear maps.
    Separate {
        /// Queries.
        q: LinearSpec,
        /// Keys.
        k: LinearSpec,
        /// Values.
        v: LinearSpec,
    },
    /// Two linear maps: values are what the map of the keys makes, before norm and rotation (Gemma 4).
    Paired {
        /// Queries.
        q: LinearSpec,
        /// Keys and values.
        k: LinearSpec,
    },
    /// One linear map.
    Fused {
        /// The map.
        qkv: LinearSpec,
        /// How its output is cut.
        order: FusedOrder,
    },
    /// Multi-head latent attention (DeepSeek).
    Latent(LatentSpec),
    /// Maps of queries and outputs that tokens are routed to (`JetMoE`).
    Routed(Box<RoutedSpec>),
}

/// How the output of a fused projection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedOrder {
    /// All queries, all keys, all values.
    Blocks,
    /// Per head: query, key, value, cut in one step (GPT-NeoX).
    PerHead,
    /// Per head: query, key, value, each picked in a step of its own (BLOOM, Falcon).
    PickedPerHead,
    /// Per key/value group: its queries, then key, value (Falcon).
    PerGroup,
    /// Per one of so many equal parts: its queries, values, keys (`CodeGen`).
    Parts(u64),
}

/// A mixture of attention heads.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedSpec {
    /// Number of experts.
    pub experts: u64,
    /// Experts per token; each makes a query for every key/value head.
    pub top_k: u64,
    /// Router.
    pub router: RouterSpec,
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentSpec {
    /// Rank of the compressed queries; `None` projects queries directly.
    pub q_rank: Option<u64>,
    /// Rank of the compressed keys and values.
    pub kv_rank: u64,
    /// Width of the part of queries and keys without rotation.
    pub nope_dim: u64,
    /// Width of the rotated part.
    pub rope_dim: u64,
    /// Norm of the compressed streams.
    pub norm: NormSpec,
    /// Whether the projections have biases.
    pub bias: bool,
    /// What chooses the keys each query attends to (DeepSeek-V3.2). It needs compressed queries.
    pub indexer: Option<IndexerSpec>,
    /// Queries, and the compressed keys and values, are multiplied with these (`LongCat`).
    pub scales: Option<[f64; 2]>,
}

/// The indexer of DeepSeek sparse attention.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexerSpec {
    /// Heads.
    pub heads: u64,
    /// Width of one; its first `rope_dim` channels are turned.
    pub head_dim: u64,
    /// Keys each query attends to.
    pub top_k: u64,
}
