//! Attention: heads, masks, biases, and the steps of the reference.

use super::{LinearSpec, NamedNorm, NormSpec, Projection, QkNorm, QkNormPlace, RotarySpec};

/// Self-attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// How queries, keys and values are made.
    pub projection: Projection,
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Width of queries and keys of one head.
    pub head_dim: u64,
    /// Width of values of one head.
    pub value_dim: u64,
    /// Output projection.
    pub out: LinearSpec,
    /// Map from the module's input whose sigmoid the mixed values are multiplied with (`AFMoE`).
    pub gate: Option<LinearSpec>,
    /// Keys are weighted by what a map makes of their values, and each query sees so many of most weight (Doge).
    pub keep: Option<u64>,
    /// Whether the map of the queries makes a gate beside each head's, whose sigmoid the mixed values are multiplied with
    /// (Qwen3-Next).
    pub query_gate: bool,
    /// Norm of the mixed values of all heads before the output projection (`BitNet`).
    pub out_norm: Option<NamedNorm>,
    /// Norms on queries and keys.
    pub qk_norm: QkNorm,
    /// Their module names, queries first.
    pub qk_norm_names: [&'static str; 2],
    /// When they run.
    pub qk_norm_place: QkNormPlace,
    /// Rotary position embedding.
    pub rotary: Option<RotarySpec>,
    /// Whether a position sees no later ones.
    pub causal: bool,
    /// Linear position biases.
    pub alibi: bool,
    /// Trained position biases.
    pub relative: Option<RelativeSpec>,
    /// A second attention is taken from the first, with a trained weight that starts here (`DiffLlama`).
    pub differential: Option<f64>,
    /// Norm of the values of each head (Gemma 3n).
    pub value_norm: Option<NormSpec>,
    /// Whether keys and values are those of another block.
    pub sharing: KvSharing,
    /// Values are multiplied with this (`MiMo`).
    pub value_scale: Option<f64>,
    /// Scores are multiplied with this.
    pub scale: f64,
    /// Each query sees this many keys.
    pub window: Option<u64>,
    /// Whether the window begins anew at every multiple of itself, so that a query sees its chunk only (Llama 4).
    pub chunked: bool,
    /// Scores become `cap * tanh(scores / cap)`.
    pub softcap: Option<f64>,
    /// Whether each head has a learned logit that joins the softmax denominator.
    pub sinks: bool,
    /// Queries, keys and values are clamped to this.
    pub clip_qkv: Option<f64>,
    /// Whether scores are computed in f32 whatever the precision (GPT-Neo, GPT-J).
    pub f32_scores: bool,
    /// Whether the reference takes the softmax in the dtype of the scores instead of f32 (`BioGPT`, Llama 4).
    pub narrow_softmax: bool,
    /// Whether the reference holds the masked scores from below, which keeps them (XGLM).
    pub floored_scores: bool,
    /// Whether the reference passes a mask to its fused attention where a causal flag would do (`BioGPT`).
    pub always_masked: bool,
    /// Which steps the reference takes from projections to mixed values.
    pub steps: AttentionSteps,
    /// Dropout on the attention weights.
    pub dropout: f64,
    /// Whether the reference makes a windowed mask too, though no layer may use it (Qwen 2 with experts).
    pub spare_mask: bool,
}

impl AttentionSpec {
    /// Whether trained biases are added to the scores.
    pub fn has_trained_bias(&self) -> bool {
        self.relative.is_some_and(|relative| relative.from != BiasSource::Zeros)
    }

    /// Whether some positions do not see some others.
    pub fn is_masked(&self) -> bool {
        self.causal || self.window.is_some()
    }

    /// Layers with equal keys share a mask: the window, 0 for none.
    pub fn mask_key(&self) -> u64 {
        self.mask_window().unwrap_or(0)
    }

    /// Window of the masks the reference makes: GPT-Neo's stands in a buffer of each layer.
    pub fn mask_window(&self) -> Option<u64> {
        match self.steps {
            AttentionSteps::GptNeo { .. } => None,
            _ => self.window,
        }
    }

    /// Whether one mask without position biases serves all layers of a kind.
    pub fn has_common_mask(&self) -> bool {
        !self.alibi || self.steps == AttentionSteps::Bloom
    }
}

/// Keys and values that blocks have in common, turned and normalised already (Gemma 3n).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvSharing {
    /// Each has its own.
    #[default]
    Own,
    /// Its own, which blocks behind it with the same number read.
    Gives(u8),
    /// Those of the last block before it that gives under this number; it has no maps of its own.
    Takes(u8),
}

/// Which steps the reference takes from projections to mixed values: decides copies and lifetimes, not values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AttentionSteps {
    /// Those most families share.
    #[default]
    Common,
    /// Queries are scaled right behind their projection (OPT).
    ScaledQueries,
    /// Rotated before heads and positions change places, with sines and cosines repeated at every use (GPT-J).
    GptJ,
    /// Masked by a buffer of every layer, then by the common mask (GPT-Neo).
    GptNeo {
        /// Rows and columns of the buffer.
        positions: u64,
    },
    /// Scores on top of the position biases in one product (BLOOM).
    Bloom,
    /// Scaled and biased in place, mask always made (Falcon).
    Falcon {
        /// Keys and values are repeated for the query heads of their group.
        repeats: bool,
    },
    /// Masked by filling (MPT).
    Mpt {
        /// Length of the table of position biases.
        positions: u64,
    },
}

impl AttentionSteps {
    /// Whether the reference's loop over the blocks holds the attention weights of the block before.
    pub const fn hands_out_weights(self) -> bool {
        matches!(self, Self::GptNeo { .. } | Self::Bloom | Self::Falcon { .. } | Self::Mpt { .. })
    }
}

/// Position biases of T5: a trained number for each head and bucket of distances, the same for all blocks of a stack.
///
/// Source: Raffel et al. 2020, arXiv:1910.10683.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeSpec {
    /// Buckets of distances.
    pub buckets: u64,
    /// Distances from here on share the last bucket.
    pub max_distance: u64,
    /// Where the biases of this attention come from.
    pub from: BiasSource,
}

/// Where trained position biases come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasSource {
    /// A table of this attention, for all blocks of the stack.
    Table,
    /// A table beside the blocks, for all of them (`MPNet`).
    Beside,
    /// A table of this attention, for itself alone (UMT5).
    Own,
    /// The attention of the stack that holds the table.
    Stack,
    /// There are none, and the reference adds zeros (attention to another stack).
    Zeros,
}

/// Attention of a block to another stack.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossSpec {
    /// The attention; its keys and values come from the other stack.
    pub attention: Box<AttentionSpec>,
    /// Module name.
    pub name: &'static str,
    /// Its norm: before it where the block normalises before its parts, else behind its residual.
    pub norm: NamedNorm,
    /// Width of the other stack.
    pub width: u64,
}
