//! One block: its parts, and how norms and residuals connect them.

use super::{
    Activation, AttentionSpec, CompressedSpec, CountedSpec, CrossSpec, DeltaSpec, DistanceSpec, FeedForwardSpec,
    HybridSpec, HyperSpec, LightningSpec, Mamba2Spec, MambaSpec, MlstmSpec, MoeSpec, NamedNorm, NormSpec, ParallelSpec,
    RgLruSpec, ShortConvSpec, TimeMixSpec,
};
use std::sync::Arc;

/// One block.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// What mixes positions.
    pub mixer: Mixer,
    /// Feed-forward part.
    pub feed_forward: FeedForwardSpec,
    /// Attention to another stack, between the two.
    pub cross: Option<CrossSpec>,
    /// How norms and residuals connect them.
    pub form: BlockForm,
    /// Names of the two main modules.
    pub names: LayerNames,
    /// Parameters that are counted and not run, or that no loss reads.
    pub counted: Vec<CountedSpec>,
    /// Each branch is multiplied with this before it joins the residual stream.
    pub residual_scale: Option<f64>,
    /// Names of trained factors for every channel of the branches, of attention and of feed-forward (`DINOv2`).
    ///
    /// Source: Touvron et al. 2021, arXiv:2103.17239.
    pub branch_scales: Option<[&'static str; 2]>,
    /// Dropout on each branch.
    pub dropout: f64,
    /// Whether the branch of the feed-forward part has none of it (XLM-RoBERTa XL).
    pub feeds_whole: bool,
    /// An input of the block's own, added behind its parts (Gemma 4).
    pub input: Option<Arc<InputSpec>>,
}

impl LayerSpec {
    /// A block of two parts under Llama's names.
    pub fn new(mixer: impl Into<Mixer>, feed_forward: FeedForwardSpec, form: BlockForm) -> Self {
        Self {
            mixer: mixer.into(),
            feed_forward,
            form,
            names: LayerNames::default(),
            cross: None,
            counted: Vec::new(),
            residual_scale: None,
            branch_scales: None,
            dropout: 0.0,
            feeds_whole: false,
            input: None,
        }
    }

    /// Its attention, if positions are mixed by one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        self.mixer.attention()
    }

    /// The block inside that runs behind its own parts.
    pub fn then(&self) -> Option<&Arc<Self>> {
        match &self.form {
            BlockForm::Shortcut { then, .. } => Some(then),
            _ => None,
        }
    }

    /// Its attention, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Parallel(both) => Some(&mut both.attention),
            Mixer::Hybrid(hybrid) => Some(&mut hybrid.attention),
            _ => None,
        }
    }
}

/// What mixes the positions of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Self-attention.
    Attention(Box<AttentionSpec>),
    /// A selective state space.
    Mamba(Box<MambaSpec>),
    /// A state space with one decay per head.
    Mamba2(Box<Mamba2Spec>),
    /// A gated delta network.
    Delta(Box<DeltaSpec>),
    /// Attention to compressed blocks.
    Compressed(Box<CompressedSpec>),
    /// Attention with scores for distances.
    Distance(Box<DistanceSpec>),
    /// A gated short convolution.
    ShortConv(Box<ShortConvSpec>),
    /// A gated linear recurrent unit.
    RgLru(Box<RgLruSpec>),
    /// A shared Transformer block in front of a state space.
    Hybrid(Box<HybridSpec>),
    /// Lightning attention.
    Lightning(Box<LightningSpec>),
    /// A matrix memory with exponential gates.
    Mlstm(Box<MlstmSpec>),
    /// Time mixing of RWKV.
    TimeMix(TimeMixSpec),
    /// Attention and a state space on one input.
    Parallel(Box<ParallelSpec>),
    /// Nothing: the block is a feed-forward part alone.
    None,
}

impl Mixer {
    /// The attention in it, if there is one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::Parallel(both) => Some(&both.attention),
            Self::Hybrid(hybrid) => Some(&hybrid.attention),
            _ => None,
        }
    }
}

impl From<AttentionSpec> for Mixer {
    fn from(attention: AttentionSpec) -> Self {
        Self::Attention(Box::new(attention))
    }
}

impl From<CompressedSpec> for Mixer {
    fn from(spec: CompressedSpec) -> Self {
        Self::Compressed(Box::new(spec))
    }
}

impl From<DistanceSpec> for Mixer {
    fn from(spec: DistanceSpec) -> Self {
        Self::Distance(Box::new(spec))
    }
}

impl From<MambaSpec> for Mixer {
    fn from(spec: MambaSpec) -> Self {
        Self::Mamba(Box::new(spec))
    }
}

impl From<ShortConvSpec> for Mixer {
    fn from(spec: ShortConvSpec) -> Self {
        Self::ShortConv(Box::new(spec))
    }
}

impl From<RgLruSpec> for Mixer {
    fn from(spec: RgLruSpec) -> Self {
        Self::RgLru(Box::new(spec))
    }
}

impl From<LightningSpec> for Mixer {
    fn from(spec: LightningSpec) -> Self {
        Self::Lightning(Box::new(spec))
    }
}

impl From<DeltaSpec> for Mixer {
    fn from(spec: DeltaSpec) -> Self {
        Self::Delta(Box::new(spec))
    }
}

impl From<Mamba2Spec> for Mixer {
    fn from(spec: Mamba2Spec) -> Self {
        Self::Mamba2(Box::new(spec))
    }
}

/// Module names inside a block.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNames {
    /// Attention, or what else mixes positions.
    pub attention: &'static str,
    /// Feed-forward part.
    pub feed_forward: &'static str,
}

impl Default for LayerNames {
    fn default() -> Self {
        Self { attention: "self_attn", feed_forward: "mlp" }
    }
}

/// How norms and residuals connect attention or another mixer (`A`) and feed-forward (`F`).
#[derive(Clone, Debug, PartialEq)]
pub enum BlockForm {
    /// `x += A(x)`, the mixer having its norms inside.
    Bare,
    /// `x += B(n(x))`, where `B` is the one part the block has.
    Single {
        /// Before it.
        n: NamedNorm,
        /// Whether the residual stream is held in f32 whatever the precision (Mamba).
        wide: bool,
    },
    /// `x += A(n1(x)); x += F(n2(x))`
    Sequential {
        /// Before attention.
        n1: NamedNorm,
        /// Before feed-forward.
        n2: NamedNorm,
    },
    /// `x = w1 x + A(n1(x)); x = w2 x + F(n2(x))`, with trained weights for every channel (Doge).
    WeightedResidual {
        /// Before attention.
        n1: NamedNorm,
        /// Before feed-forward.
        n2: NamedNorm,
        /// Names of the weights.
        weights: [&'static str; 2],
    },
    /// `x += m1(A(n1(x))); x += m2(F(n2(x)))`
    Sandwich {
        /// Before attention.
        n1: NamedNorm,
        /// After attention.
        m1: NamedNorm,
        /// Before feed-forward.
        n2: NamedNorm,
        /// After feed-forward.
        m2: NamedNorm,
    },
    /// `x += A(n1(x)); y = n2(x); x = B(x + F(y)) + M(y)`: a mixture beside the rest of the block, which is a second block
    /// with parts of its own (`LongCat`).
    Shortcut {
        /// Before attention.
        n1: NamedNorm,
        /// Before feed-forward and the mixture.
        n2: NamedNorm,
        /// The mixture `M`.
        beside: Box<MoeSpec>,
        /// Its module name.
        name: &'static str,
        /// The second block `B`.
        then: Arc<LayerSpec>,
    },
    /// [`BlockForm::Sandwich`] on one of several streams, the others being predicted and corrected around it.
    Alternating {
        /// Before attention.
        n1: NamedNorm,
        /// After attention.
        m1: NamedNorm,
        /// Before feed-forward.
        n2: NamedNorm,
        /// After feed-forward.
        m2: NamedNorm,
        /// What runs around it.
        updates: Arc<UpdatesSpec>,
    },
    /// `x = mix(x) + post A(n1(pre x)); x = mix(x) + post F(n2(pre x))`, `x` being several streams and the weights made of
    /// them (DeepSeek-V4).
    Mixed {
        /// Streams, weights and norms.
        hyper: Arc<HyperSpec>,
    },
    /// `x += m1(A(x)); x += m2(F(x))`
    PostBranch {
        /// After attention.
        m1: NamedNorm,
        /// After feed-forward.
        m2: NamedNorm,
    },
    /// `x = m1(x + A(x)); x = m2(x + F(x))`
    PostResidual {
        /// After the attention residual.
        m1: NamedNorm,
        /// After the feed-forward residual.
        m2: NamedNorm,
    },
    /// `x = (x + A(n1(x))) + F(n1(x))`: as [`BlockForm::Parallel`] in values, each branch joining the stream by itself.
    ParallelInto {
        /// Before both.
        n1: NamedNorm,
    },
    /// `x += A(n1(x)) + F(n2(x))`, or with one norm for both.
    Parallel {
        /// Before attention, and before feed-forward if `n2` is absent.
        n1: NamedNorm,
        /// Before feed-forward.
        n2: Option<NamedNorm>,
    },
    /// The same, the branches added to each other in place (Falcon).
    ParallelInPlace {
        /// Before attention, and before feed-forward if `n2` is absent.
        n1: NamedNorm,
        /// Before feed-forward.
        n2: Option<NamedNorm>,
    },
    /// `x = n1(x); x += A(x); x = n2(x); x += F(x)`: the residual stream goes on behind the norms (BLOOM, optional).
    Normed {
        /// Before attention.
        n1: NamedNorm,
        /// Before feed-forward.
        n2: NamedNorm,
    },
    /// The same, stream and branch multiplied with two numbers each: `x = n1(x); x = a x + b A(x)` (`MiniMax`).
    NormedScaled {
        /// Before attention.
        n1: NamedNorm,
        /// Before feed-forward.
        n2: NamedNorm,
        /// Factors of stream and attention.
        mixed: [f64; 2],
        /// Factors of stream and feed-forward.
        fed: [f64; 2],
    },
}

/// Alternating updates of several streams, with a low-rank branch and an input of its own for each block (Gemma 3n).
///
/// Source: Baykal et al. 2023, arXiv 2301.13310.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdatesSpec {
    /// Streams.
    pub streams: u64,
    /// The one that the block runs on.
    pub active: u64,
    /// The small maps between streams are held within this while training.
    pub clip: Option<f64>,
    /// Whether what reads the input of the block is scaled for every channel first.
    pub scaled: bool,
    /// Rank of the branch beside attention.
    pub rank: u64,
    /// The input of each block.
    pub input: InputSpec,
}

/// Inputs of blocks beside the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Width of the input of a block.
    pub width: u64,
    /// Rows of the table that inputs come from; tokens beyond it read the first.
    pub rows: u64,
    /// Activation of the gate it passes.
    pub act: Activation,
    /// Its norms, and those of what runs around.
    pub norm: NormSpec,
}

impl UpdatesSpec {
    /// More streams than this are refused.
    pub const MOST_STREAMS: u64 = 8;
}
