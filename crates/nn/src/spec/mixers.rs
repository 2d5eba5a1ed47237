//! What mixes positions other than attention, as data.

use super::{Activation, LinearSpec, NormSpec};

/// A convolution over time with one causal filter per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvSpec {
    /// Module name.
    pub name: &'static str,
    /// Taps of a filter.
    pub taps: u64,
    /// Whether it has a bias.
    pub bias: bool,
    /// Activation behind it.
    pub act: Option<Activation>,
}

/// A selective state space (Mamba).
///
/// Source: Gu and Dao 2023, arXiv 2312.00752.
#[derive(Clone, Debug, PartialEq)]
pub struct MambaSpec {
    /// Inner width.
    pub inner: u64,
    /// States of a channel.
    pub state: u64,
    /// Rank of the time steps.
    pub rank: u64,
    /// Convolution over the inner channels.
    pub conv: ConvSpec,
    /// Whether the maps in and out have biases.
    pub bias: bool,
    /// Heads with maps of their own to time steps and state (Zamba); `None`: one map for all channels.
    pub heads: Option<u64>,
    /// Norms on time steps and on both maps of the state.
    pub norms: MambaNorms,
}

/// Norms inside a selective state space.
#[derive(Clone, Debug, PartialEq)]
pub enum MambaNorms {
    /// None.
    None,
    /// Without weights (Falcon Mamba).
    Plain(NormSpec),
    /// With weights (Jamba).
    Weighted(NormSpec),
}

/// A state space with one decay per head (Mamba 2), computed in chunks.
///
/// Source: Dao and Gu 2024, arXiv 2405.21060.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Spec {
    /// Heads.
    pub heads: u64,
    /// Width of one; all heads together are the inner width.
    pub head_dim: u64,
    /// States of a channel.
    pub state: u64,
    /// Groups of heads with equal maps in and out of the state.
    pub groups: u64,
    /// Positions of a chunk.
    pub chunk: u64,
    /// Convolution over the inner channels and both maps of the state.
    pub conv: ConvSpec,
    /// Whether the map in has a bias.
    pub bias: bool,
    /// Whether the map out has a bias.
    pub out_bias: bool,
    /// Norm behind the state space; `None`: its gate alone.
    pub norm: Option<GatedNormSpec>,
    /// Least and largest time step.
    pub limits: [f64; 2],
    /// What the input is multiplied with, and the parts of its map: gate, channels, both maps of the state, time steps
    /// (Falcon-H1).
    pub multipliers: Option<(f64, [f64; 5])>,
}

impl Mamba2Spec {
    /// Width of all heads.
    pub const fn inner(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Channels of the convolution.
    pub const fn conv_channels(&self) -> u64 {
        self.inner() + 2 * self.groups * self.state
    }
}

/// A root-mean-square norm that is multiplied with the activation of a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedNormSpec {
    /// Module name.
    pub name: &'static str,
    /// Added to the mean of squares.
    pub eps: f64,
    /// Groups of channels that are normalised apart.
    pub groups: u64,
    /// When the gate joins, and in which precision the weight.
    pub order: GateOrder,
    /// Activation of the gate.
    pub act: Activation,
}

/// When the gate of a norm joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// Before the norm (Mamba 2).
    First,
    /// Behind norm and weight, all in f32 (Falcon-H1).
    Last,
    /// The same, the weight applied in the precision of the input (Qwen3-Next).
    LastNarrowWeight,
}

/// Attention and a state space on one input, added (Falcon-H1).
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelSpec {
    /// The attention.
    pub attention: super::AttentionSpec,
    /// What the input of the attention is multiplied with, and its output.
    pub attention_scales: [f64; 2],
    /// The state space.
    pub mamba: Mamba2Spec,
    /// What the output of the state space is multiplied with.
    pub mamba_scale: f64,
}

/// Linear attention whose state forgets by a gate and is corrected by the delta rule.
///
/// Source: Yang et al. 2024, arXiv 2412.06464; with a decay for every channel, Kimi Team 2025, arXiv 2510.26692.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaSpec {
    /// How everything is made from the stream.
    pub maps: DeltaMaps,
    /// Heads of queries and keys.
    pub key_heads: u64,
    /// Heads of values, a multiple.
    pub value_heads: u64,
    /// Width of queries and keys.
    pub key_dim: u64,
    /// Width of values.
    pub value_dim: u64,
    /// Convolution over queries, keys and values.
    pub conv: ConvSpec,
    /// What the strength of a correction, between 0 and 1, is multiplied with.
    pub beta_scale: Option<f64>,
    /// Norm of what is read, with its gate.
    pub norm: GatedNormSpec,
    /// Output map.
    pub out: LinearSpec,
    /// Positions of a chunk.
    pub chunk: u64,
}

/// How queries, keys, values, gates and decays are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaMaps {
    /// `in_proj_qkvz` and `in_proj_ba`, cut per key head (Qwen3-Next).
    Fused,
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b`, `in_proj_a` (Qwen3.5).
    Parts,
    /// `q_proj`, `k_proj`, `v_proj`, `a_proj`, `b_proj`, `g_proj` (OLMo Hybrid).
    Separate,
    /// The same, but decays for every channel and gates through narrow maps (Kimi Linear).
    PerChannel,
}

/// A Transformer block whose weights several blocks share, in front of a state space (Zamba).
///
/// It reads the residual stream beside the embedded tokens; a map of its own brings what it makes to the state space.
#[derive(Clone, Debug, PartialEq)]
pub struct HybridSpec {
    /// Module name of the shared part.
    pub name: &'static str,
    /// Which of the sets of shared weights.
    pub set: u64,
    /// Which of the blocks with a shared part this is.
    pub place: u64,
    /// Places at which each set is used.
    pub places: Vec<u64>,
    /// The attention, on twice the width of the stream.
    pub attention: super::AttentionSpec,
    /// The feed-forward part.
    pub mlp: super::MlpSpec,
    /// Every norm.
    pub norm: NormSpec,
    /// Maps of low rank for each place, beside the shared ones.
    pub branches: Option<BranchSpec>,
    /// The state space.
    pub mamba: Box<super::Mixer>,
}

/// Maps of low rank beside shared maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchSpec {
    /// Their rank.
    pub rank: u64,
    /// Whether queries, keys and values have them, beside the feed-forward part.
    pub attention: bool,
}

/// A gated short convolution (LFM 2): `C * conv(B * x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// The convolution.
    pub conv: ConvSpec,
    /// Whether the maps in and out have biases.
    pub bias: bool,
}

/// A gated linear recurrent unit between two maps (Griffin).
///
/// Source: De et al. 2024, arXiv 2402.19427.
#[derive(Clone, Debug, PartialEq)]
pub struct RgLruSpec {
    /// Channels of the recurrence.
    pub width: u64,
    /// Blocks of the gates' maps.
    pub heads: u64,
    /// Convolution in front of the recurrence.
    pub conv: ConvSpec,
    /// Activation of the other branch.
    pub act: Activation,
}

/// Lightning attention (`MiniMax`): linear attention in blocks, each head decaying at a fixed rate.
///
/// Source: Qin et al. 2024, arXiv 2405.17381.
#[derive(Clone, Debug, PartialEq)]
pub struct LightningSpec {
    /// Heads.
    pub heads: u64,
    /// Width of one.
    pub head_dim: u64,
    /// Positions of a block.
    pub block: u64,
    /// Activation of queries, keys and values.
    pub act: Activation,
    /// What the rates of this layer are multiplied with.
    pub slope: f64,
    /// Norm of what is read.
    pub norm: NormSpec,
}

/// A matrix memory with exponential gates (xLSTM).
///
/// Source: Beck et al. 2024, arXiv 2405.04517; Beck et al. 2025, arXiv 2503.13427.
#[derive(Clone, Debug, PartialEq)]
pub struct MlstmSpec {
    /// Heads.
    pub heads: u64,
    /// Width of queries and keys of all heads.
    pub key_width: u64,
    /// Width of values of all heads.
    pub value_width: u64,
    /// Positions of a chunk.
    pub chunk: u64,
    /// The logarithms of the gates become `cap * tanh(gate / cap)`.
    pub gate_cap: Option<f64>,
    /// Added to the variance in the norm of each head.
    pub norm_eps: f64,
    /// Added to the denominator.
    pub eps: f64,
}

/// Attention with scores for distances (Transformer-XL, `XLNet`).
///
/// Source: Dai et al. 2019, arXiv 1901.02860; Yang et al. 2019, arXiv 1906.08237.
#[derive(Clone, Debug, PartialEq)]
pub struct DistanceSpec {
    /// Heads.
    pub heads: u64,
    /// Width of one.
    pub head_dim: u64,
    /// Whether a position sees no later ones.
    pub causal: bool,
    /// Distances are held within this.
    pub clamp: Option<u64>,
    /// Dropout on the attention weights and on the table of distances.
    pub dropout: f64,
}

impl DistanceSpec {
    /// Scores are multiplied with this.
    pub fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }
}

/// Time mixing of RWKV 4: a recurrence on keys and values, and maps on the stream mixed with that of the position before.
///
/// Source: Peng et al. 2023, arXiv 2305.13048.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeMixSpec {
    /// Channels of the recurrence.
    pub width: u64,
}
