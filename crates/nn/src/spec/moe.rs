//! Mixtures of experts, as data.

use super::{Activation, MlpSpec, NamedNorm};

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Number of routed experts.
    pub experts: u64,
    /// Experts behind them that the router may choose and that return their input (`LongCat`).
    pub zero_experts: u64,
    /// Routed experts per token.
    pub top_k: u64,
    /// Inner width of a routed expert.
    pub intermediate_size: u64,
    /// Activation of the experts.
    pub act: Activation,
    /// Router.
    pub router: RouterSpec,
    /// Experts every token passes.
    pub shared: Option<SharedSpec>,
    /// How the weights of the routed experts lie.
    pub layout: ExpertLayout,
    /// How gate and value meet.
    pub gate: ExpertGate,
    /// A narrower stream in which the experts work (Nemotron-H).
    pub latent: Option<LatentExperts>,
    /// Whether expert maps have biases.
    pub expert_bias: bool,
    /// Whether the reference runs every expert on every token, weighted with 0 where it was not chosen, and the weights
    /// of the router meet the tokens before the experts (Llama 4).
    pub everywhere: bool,
    /// Module name of the container of expert weights.
    pub name: &'static str,
}

/// How the weights of all experts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ExpertLayout {
    /// `gate_up_proj (e 2f h)`, `down_proj (e h f)`.
    #[default]
    OutIn,
    /// `gate_up_proj (e h 2f)`, `down_proj (e f h)` (GPT-OSS).
    InOut,
    /// As [`ExpertLayout::OutIn`], each the weight of a module beside the router, `input_linear` and `output_linear`, and a
    /// bias on the sum (`JetMoE`).
    Modules,
    /// `w1`, `v1`, `w2`, each `((e f) h)`, in a module `mlp` (DBRX).
    Stacked,
}

/// A stream of its own for the experts, with maps to and from it.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentExperts {
    /// Width.
    pub width: u64,
    /// Whether the maps have biases.
    pub bias: bool,
}

/// How gate and value of an expert meet.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum ExpertGate {
    /// There is no gate: `act(up)` (Nemotron-H).
    None,
    /// `act(gate) * up` of the two halves.
    #[default]
    Halves,
    /// `act(gate) * up` of the two halves, both held below `limit`, the second above its negative too (DeepSeek-V4).
    Limited {
        /// Bound.
        limit: f64,
    },
    /// Neighbouring columns, both held below `limit`: `(up + 1) * gate σ(slope gate)` (GPT-OSS).
    Clamped {
        /// Bound.
        limit: f64,
        /// Slope of the sigmoid.
        slope: f64,
    },
}

/// A router.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RouterSpec {
    /// Module name.
    pub name: &'static str,
    /// Name of a module inside that holds the map (DBRX).
    pub inner: Option<&'static str>,
    /// Whether it has a bias.
    pub bias: bool,
    /// It reads normalised rows with a trained scale for every channel, this being added to their mean square, and the
    /// weights of the chosen have a trained scale for every expert (Gemma 4).
    pub scaled: Option<f64>,
    /// How logits become weights.
    pub scores: Scores,
    /// Whether the reference computes the map in f32 (DeepSeek, GLM).
    pub f32_map: bool,
    /// Whether scores stay in the dtype of the logits instead of f32 (GPT-OSS, DBRX).
    pub narrow_scores: bool,
    /// Whether the reference casts the weights of the chosen back to the dtype of the logits (Qwen, OLMoE).
    pub narrow_weights: bool,
    /// Whether it casts them to the dtype of the residual stream (Granite).
    pub stream_weights: bool,
    /// Bias per expert that corrects the choice and that gradients do not train.
    pub correction: Correction,
    /// The choice is confined to the best groups of experts.
    pub groups: Option<ExpertGroups>,
    /// Experts are chosen by a table of so many token ids, which no gradient trains (DeepSeek-V4).
    pub table: Option<u64>,
    /// Whether the weights of the chosen experts are normalised to sum to one.
    pub normalise: bool,
    /// The weights of the chosen experts are multiplied with this.
    pub scale: Option<f64>,
}

/// Where the bias lies that corrects the choice of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Correction {
    /// There is none.
    #[default]
    None,
    /// A buffer under this path in the mixture (DeepSeek, GLM).
    Buffer(&'static str),
    /// A frozen parameter under this path in the mixture (ERNIE, `AFMoE`).
    Frozen(&'static str),
}

/// Group-limited routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: u64,
    /// Groups a token may choose from.
    pub kept: u64,
}

/// How logits of a router become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scores {
    /// Softmax over all experts, of which the largest are chosen.
    #[default]
    Softmax,
    /// The largest logits are chosen; softmax over them (Granite, GPT-OSS).
    SoftmaxOfChosen,
    /// Sigmoid of each.
    Sigmoid,
    /// Square root of the softplus of each (DeepSeek-V4).
    SqrtSoftplus,
    /// The largest logits are chosen; sigmoid of each (Llama 4).
    SigmoidOfChosen,
}

/// Shared experts of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSpec {
    /// The MLP.
    pub mlp: MlpSpec,
    /// Module name.
    pub name: &'static str,
    /// Module name of a scalar sigmoid gate on it. Where there is one, the reference runs the shared experts first.
    pub gate: Option<&'static str>,
}

/// A dense MLP on the normalised stream and a mixture of experts on the stream itself, added (Gemma 4):
/// `m1(mlp(x)) + m2(experts(n(stream)))`, experts being chosen by the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct BesideSpec {
    /// The MLP, in a module `mlp`.
    pub mlp: MlpSpec,
    /// Behind it.
    pub m1: NamedNorm,
    /// The mixture.
    pub moe: MoeSpec,
    /// Before its experts.
    pub n: NamedNorm,
    /// Behind it.
    pub m2: NamedNorm,
}
