//! The modules a model is made of. Each holds its parameters and has `forward`.
//!
//! Where the implementation profiles differ in which small ops run, the difference stands in the module; the ops that
//! follow transformers' own code step by step are in [`hf`].

pub mod adapter;
pub mod attention;
pub mod beside;
pub mod block;
pub mod block_input;
pub mod causal_conv;
pub mod compressed;
mod compressor;
pub mod conv;
pub mod delta;
pub mod differential;
mod dispatch;
pub mod distance;
pub mod embedding;
mod expert_map;
pub mod gated_norm;
pub mod hf;
pub mod hybrid;
pub mod hyper;
pub mod indexer;
pub mod key_weights;
pub mod latent;
pub mod lightning;
pub mod linear;
pub mod mamba;
pub mod mamba2;
pub mod mlp;
pub mod mlstm;
pub mod moe;
pub mod norm;
pub mod packed;
pub mod parallel;
pub mod patches;
pub mod pool;
pub mod relative;
pub mod rg_lru;
pub mod rotary;
pub mod routed_heads;
pub mod router;
pub mod sequence;
pub mod short_conv;
pub mod stack;
pub mod steps;
pub mod time_mix;
pub mod updates;

use tensor::{Error, Result};

/// Most pieces that a module writes out op by op: taps of a convolution, heads with maps of their own, chunks of a text.
const MOST_PIECES: u64 = 1 << 14;

/// Refuses more pieces than are written out one after another.
///
/// # Errors
/// [`Error::Argument`] that says what there is too much of.
pub(crate) fn written_out(op: &'static str, what: &str, count: u64) -> Result<()> {
    if count <= MOST_PIECES {
        return Ok(());
    }
    Err(Error::Argument { op, what: format!("{count} {what} are written out one by one, at most {MOST_PIECES}") })
}

pub use adapter::Adapter;
pub use attention::Attention;
pub use beside::Beside;
pub use block::Block;
pub use block_input::{BlockInput, BlockInputs};
pub use causal_conv::CausalConv;
pub use compressed::CompressedAttention;
pub use conv::Conv;
pub use delta::Delta;
pub use differential::Differential;
pub use distance::Distance;
pub use embedding::Embedding;
pub use gated_norm::GatedNorm;
pub use hybrid::Hybrid;
pub use hyper::{Connection, HyperHead};
pub use indexer::Indexer;
pub use key_weights::KeyWeights;
pub use latent::Latent;
pub use lightning::Lightning;
pub use linear::Linear;
pub use mamba::Mamba;
pub use mamba2::Mamba2;
pub use mlp::Mlp;
pub use mlstm::Mlstm;
pub use moe::Moe;
pub use norm::Norm;
pub use packed::Packed;
pub use parallel::Parallel;
pub use patches::Patches;
pub use pool::AttentionPool;
pub use rg_lru::RgLru;
pub use routed_heads::RoutedHeads;
pub use router::Router;
pub use sequence::Sequence;
pub use short_conv::ShortConv;
pub use stack::Stack;
pub use time_mix::{ChannelMix, TimeMix};
pub use updates::{Streams, Updates};
