//! The feed-forward part.

use super::{BesideSpec, LinearSpec, MoeSpec, NamedNorm};

/// The feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForwardSpec {
    /// A dense MLP.
    Mlp(MlpSpec),
    /// A mixture of experts.
    Moe(Box<MoeSpec>),
    /// A dense MLP and a mixture of experts, added.
    Beside(Box<BesideSpec>),
    /// A part of so many inner channels that mixes in the position before (RWKV).
    ChannelMix(u64),
    /// Nothing: the block only mixes positions.
    None,
}

/// A dense MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Inner width.
    pub intermediate_size: u64,
    /// Activation.
    pub act: Activation,
    /// Input map(s).
    pub input: MlpInput,
    /// Norm before the output map (`BitNet`).
    pub norm: Option<NamedNorm>,
    /// What the gate is multiplied with before its activation, and the output (Falcon-H1).
    pub multipliers: Option<[f64; 2]>,
    /// The reference raises what goes into the output map to the dtype of its weight (T5).
    pub widened: bool,
    /// What part of the gate of each position is cut off, were it normally distributed: only what is above the quantile
    /// goes on (Gemma 3n).
    pub sparsity: Option<f64>,
    /// Gate and value are held below this, the value above its negative too (DeepSeek-V4).
    pub limit: Option<f64>,
    /// Dropout before the output map (`XLNet`).
    pub dropout: f64,
    /// Output map.
    pub down: LinearSpec,
}

impl MlpSpec {
    /// The maps and the activation, nothing more.
    pub fn new(intermediate_size: u64, act: Activation, input: MlpInput, down: LinearSpec) -> Self {
        Self {
            intermediate_size,
            act,
            input,
            norm: None,
            multipliers: None,
            widened: false,
            sparsity: None,
            limit: None,
            dropout: 0.0,
            down,
        }
    }
}

/// Input side of an MLP.
#[derive(Clone, Debug, PartialEq)]
pub enum MlpInput {
    /// `act(up(x))`
    Plain(LinearSpec),
    /// `act(gate(x)) * up(x)`
    Gated {
        /// Through the activation.
        gate: LinearSpec,
        /// The factor.
        up: LinearSpec,
    },
    /// Gate and up in one map, halves in that order.
    GatedFused(LinearSpec),
}

/// Activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x σ(x)
    Silu,
    /// σ(x)
    Sigmoid,
    /// Exact GELU.
    Gelu,
    /// GELU by tanh, one kernel.
    GeluTanh,
    /// GELU by tanh, written out in small ops (`gelu_new`).
    GeluNew,
    /// x σ(1.702 x) (CLIP).
    QuickGelu,
    /// tanh
    Tanh,
    /// max(x, 0)
    Relu,
    /// max(x, 0)²
    Relu2,
    /// `a x² + x / 2` above zero, `b (eˣ - 1 - x) + x / 2` below, with two trained slopes (xIELU).
    ///
    /// Source: Huang and Schlag 2024, arXiv 2411.13010.
    Xielu,
}

impl Activation {
    /// From the name in a config.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "sigmoid" => Self::Sigmoid,
            "gelu" => Self::Gelu,
            "gelu_pytorch_tanh" | "gelu_tanh" => Self::GeluTanh,
            "gelu_new" | "gelu_fast" => Self::GeluNew,
            "relu" => Self::Relu,
            "relu2" => Self::Relu2,
            "quick_gelu" => Self::QuickGelu,
            "tanh" => Self::Tanh,
            _ => return None,
        })
    }

    /// Names accepted in a config.
    pub const NAMES: [&'static str; 11] = [
        "silu",
        "swish",
        "gelu",
        "gelu_new",
        "gelu_fast",
        "gelu_pytorch_tanh",
        "gelu_tanh",
        "relu",
        "relu2",
        "quick_gelu",
        "tanh",
    ];
}
