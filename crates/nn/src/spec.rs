//! What a model is made of, as data: the meeting point of family files and modules.
//!
//! A family file turns the keys of its `config.json` into a [`ModelSpec`] and does nothing else; [`crate::model`] builds
//! modules from it. Sizes are exact element counts; names are the module names of the checkpoint format the family uses.

mod mixers;
mod moe;
mod parts;
mod tuning;

pub use mixers::{
    BranchSpec, ConvSpec, DeltaMaps, DeltaSpec, GateOrder, GatedNormSpec, HybridSpec, LightningSpec, Mamba2Spec,
    MambaNorms, MambaSpec, MlstmSpec, ParallelSpec, RgLruSpec, ShortConvSpec, TimeMixSpec,
};
pub use moe::{
    BesideSpec, Correction, ExpertGate, ExpertGroups, ExpertLayout, LatentExperts, MoeSpec, RouterSpec, Scores,
    SharedSpec,
};
pub use parts::{
    BiasSource, Conv1dSpec, CountedSpec, CrossSpec, LeadingSpec, MapSpec, Piece, PoolSpec, RelativeSpec, Sequence,
    SharedTable, SignalSpec, SourceSpec, StackSpec, Task, TowerSpec, TypeTable, UpdatesSpec,
};
use std::rc::Rc;
use tensor::DType;
pub use tuning::{Lora, Pattern, Tuning};

/// A model: a stack of blocks with its inputs and its head, and perhaps a stack that it attends to.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `model_type` as the config states it.
    pub family: String,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Number of token ids.
    pub vocab_size: u64,
    /// Token and position embeddings.
    pub embedding: EmbeddingSpec,
    /// Blocks, in order. Equal blocks share one description.
    pub layers: Vec<Rc<LayerSpec>>,
    /// Which blocks run, in order, where some run more than once: blocks that share their weights.
    pub order: Option<Vec<usize>>,
    /// The stack that blocks with a [`CrossSpec`] attend to.
    pub encoder: Option<Box<StackSpec>>,
    /// Parts that turn images or sounds into positions of the text.
    pub towers: Vec<TowerSpec>,
    /// Norm before the head.
    pub final_norm: Option<NormSpec>,
    /// Parameters of the body that are counted and not run, or that no loss reads.
    pub unused: Vec<CountedSpec>,
    /// What is computed from the hidden states beside what training needs: the pooler of BERT.
    pub pooler: Sequence,
    /// What the outputs are held against.
    pub task: Task,
    /// Output projection to the vocabulary.
    pub head: HeadSpec,
    /// Module names.
    pub names: ModelNames,
    /// Longest sequence the position scheme allows, if it has an end.
    pub max_positions: Option<u64>,
    /// Whether the reference implementation has a fused-attention path for this family.
    pub has_sdpa: bool,
    /// Tables the reference keeps and no step changes.
    pub buffers: Vec<BufferSpec>,
    /// Parts of the config that are known and not modelled, each bounded in words. Printed with every answer.
    pub not_modelled: Vec<String>,
    /// What of it is trained, and what is added to that. Everything and nothing, unless the user says otherwise.
    pub tuning: Tuning,
}

/// A table that is no parameter and no state, such as a mask of all positions.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferSpec {
    /// Name in the body.
    pub name: &'static str,
    /// Shape of one.
    pub shape: Vec<u64>,
    /// dtype; `None`: that of the parameters.
    pub dtype: Option<DType>,
    /// How many there are: one, or one for every layer.
    pub count: u64,
}

/// Module names of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelNames {
    /// Prefix of everything but the head: `model`, `transformer`, ...
    pub body: &'static str,
    /// Token embedding.
    pub embed: &'static str,
    /// List of blocks.
    pub layers: &'static str,
    /// Final norm.
    pub norm: &'static str,
    /// Head.
    pub head: &'static str,
    /// Norm after the embedding.
    pub embed_norm: &'static str,
}

impl ModelNames {
    /// Name of the list of blocks alone, without the modules it stands in.
    pub fn list(&self) -> &'static str {
        self.layers.rsplit('.').next().unwrap_or(self.layers)
    }
}

impl Default for ModelNames {
    fn default() -> Self {
        Self {
            body: "model",
            embed: "embed_tokens",
            layers: "layers",
            norm: "norm",
            head: "lm_head",
            embed_norm: "embed_norm",
        }
    }
}

/// Token and position embeddings.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct EmbeddingSpec {
    /// Width, where it differs from `hidden_size` (projected in and out).
    pub width: Option<u64>,
    /// Constant the embedding is multiplied with.
    pub scale: Option<f64>,
    /// Norm right after the embedding.
    pub norm: Option<NormSpec>,
    /// Table of positions that is added.
    pub positions: Option<PositionTable>,
    /// Dropout on the sum.
    pub dropout: f64,
    /// Tokens, or numbers instead.
    pub source: SourceSpec,
    /// Whether the norm stands behind that map instead of before it (DeBERTa).
    pub norm_last: bool,
    /// Rows of the token table beyond the vocabulary of the head.
    pub extra: u64,
    /// Where the token table stands outside of the stack.
    pub shared: Option<SharedTable>,
    /// Table of kinds of tokens.
    pub types: Option<TypeTable>,
    /// With a `width` of its own: the map to the stream that stands behind the norm. Otherwise tokens are projected before
    /// positions are added, and back before the head.
    pub projection: Option<LinearSpec>,
}

/// A table of positions that is added to the embedded tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionTable {
    /// Rows.
    pub count: u64,
    /// First row used (OPT starts at 2).
    pub offset: u64,
    /// Module name.
    pub name: &'static str,
    /// The reference looks positions up for every sequence of a batch, not once for all (OPT).
    pub per_sequence: bool,
    /// Whether it is trained; otherwise it is a buffer of sines and cosines (XGLM).
    pub trained: bool,
    /// What kind of table it is.
    pub form: PositionForm,
}

/// How a table of positions is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PositionForm {
    /// `weight` of a module; where it is not trained, a buffer.
    #[default]
    Table,
    /// A parameter without a module of its own (ViT).
    Bare,
    /// A parameter that is not trained (Whisper, Pegasus).
    Frozen,
    /// As [`PositionForm::Bare`], in a module that no count takes for an embedding: `n h` (Llama 4).
    Plain,
    /// A buffer of sines and cosines in their original frequencies (CTRL).
    Pairs,
}

/// The output projection.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct HeadSpec {
    /// Whether it is the token embedding.
    pub tied: bool,
    /// Whether it has a bias.
    pub bias: bool,
    /// Hidden states are multiplied with this before it.
    pub input_scale: Option<f64>,
    /// Logits become `cap * tanh(logits / cap)`.
    pub softcap: Option<f64>,
    /// Logits are multiplied with this.
    pub scale: Option<f64>,
    /// What runs on hidden states before it.
    pub transform: Sequence,
    /// A second name of the bias.
    pub bias_tie: Option<&'static str>,
    /// Whether the reference adds a row of zeros to the logits, which raises them where it is wider (BART).
    pub offsets: bool,
    /// Whether the reference takes the cross-entropy of the logits in their own dtype (BERT, T5, BART).
    pub narrow_loss: bool,
    /// Whether there is none: the outputs are hidden states, or what `transform` makes of them.
    pub absent: bool,
}

/// A normalisation.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Which one.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f64,
}

/// The normalisations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Mean and variance, weight, perhaps bias.
    LayerNorm {
        /// Whether it has a bias.
        bias: bool,
    },
    /// Layer norm computed in f32 step by step (Cohere).
    LayerNormUpcast,
    /// Layer norm whose weight is an offset from one (Nemotron).
    LayerNormUnitOffset,
    /// Mean and variance without parameters (OLMo), input raised to f32.
    LayerNormPlain,
    /// Root mean square, weight after the cast back (Llama).
    Rms,
    /// Root mean square, weight applied in f32 before the cast back (OLMo 2, GPT-OSS).
    RmsWeightInF32,
    /// Root mean square with `1 + weight` (Gemma).
    RmsUnitOffset,
    /// Root mean square without parameters (nanochat, Llama 4).
    RmsPlain,
    /// None at all (the first block of ModernBERT).
    Identity,
}

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
    /// Dropout on each branch.
    pub dropout: f64,
}

impl LayerSpec {
    /// Its attention, if positions are mixed by one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        self.mixer.attention()
    }

    /// The block inside that runs behind its own parts.
    pub fn then(&self) -> Option<&Rc<Self>> {
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

/// A norm with its module name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedNorm {
    /// Module name.
    pub name: &'static str,
    /// The norm.
    pub spec: NormSpec,
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
        then: Rc<LayerSpec>,
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
        updates: Rc<UpdatesSpec>,
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

/// A linear map by module name.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// Module name.
    pub name: &'static str,
    /// Whether it has a bias.
    pub bias: bool,
    /// Whether the weight lies as `(in out)`.
    pub transposed: bool,
    /// The reference writes it as a product with a view of the weight and adds the bias in a step of its own (Falcon).
    pub loose: bool,
}

impl LinearSpec {
    /// A linear map with weight `(out in)`.
    pub const fn new(name: &'static str, bias: bool) -> Self {
        Self { name, bias, transposed: false, loose: false }
    }
}

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

/// Norms on queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub enum QkNorm {
    /// None.
    None,
    /// One norm over `head_dim`, shared by the heads.
    PerHead(NormSpec),
    /// One norm over all heads together.
    Full(NormSpec),
    /// A weight for every head and dimension, normalised over `head_dim` (Cohere).
    EveryHead(NormSpec),
    /// A norm over `head_dim` for every head, each a module of its own (StableLM).
    Modules(NormSpec),
}

/// When the norms on queries and keys run: decides what lives meanwhile, not values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum QkNormPlace {
    /// Each right after its own projection, heads still behind positions (Qwen 3, OLMo 2).
    #[default]
    Projection,
    /// After all three projections, heads still behind positions (Cohere).
    Positions,
    /// After all three projections, on `b heads s d` (Gemma 3, EXAONE 4).
    Heads,
    /// After the rotation (Hunyuan, nanochat).
    Rotated,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RotarySpec {
    /// Width that is rotated (`<= head_dim`).
    pub dim: u64,
    /// Base of the frequencies.
    pub theta: f64,
    /// Pairs that turn, the others standing still in a table of full width; `None`: all (Gemma 4).
    pub turning: Option<u64>,
    /// Pairs are neighbours (GPT-J) instead of halves (Llama).
    pub interleaved: bool,
    /// Which table it uses: layers with equal numbers share one.
    pub table: u8,
    /// How the reference treats what is not rotated.
    pub join: RotaryJoin,
    /// In which precision the reference rotates.
    pub precision: RotaryPrecision,
    /// The reference makes its tables in halves and turns them into neighbours in every layer (GLM).
    pub widened: bool,
    /// How the reference writes the rotation.
    pub form: RotaryForm,
    /// Turned by the negative angles (nanochat).
    pub reversed: bool,
}

impl RotarySpec {
    /// What angles are multiplied with.
    pub const fn sign(&self) -> f64 {
        if self.reversed { -1.0 } else { 1.0 }
    }
}

/// How the reference writes the rotation: decides tables and copies, not values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RotaryForm {
    /// `x cos + rotate_half(x) sin` (Llama).
    #[default]
    RotateHalf,
    /// Both halves turned and joined (GPT-OSS).
    Halves,
    /// Neighbours turned and joined as halves (DeepSeek-V3).
    Neighbours,
    /// Neighbours as complex numbers (DeepSeek-V2).
    Complex,
}

/// How rotated and unrotated channels of a head are joined again: decides copies, not values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RotaryJoin {
    /// Copied together only where something stays unrotated.
    #[default]
    IfAny,
    /// Always copied together, queries before keys are rotated (Phi-3).
    Each,
    /// Always copied together, once both are rotated (GLM, Nemotron).
    Last,
}

/// Precision of rotation where the residual stream is narrower than f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RotaryPrecision {
    /// That of the residual stream.
    #[default]
    Stream,
    /// Tables stay in f32 and raise the products (OLMo).
    WideTables,
    /// Queries and keys are raised to f32 first (Cohere).
    WideOperands,
}

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
    /// Output map.
    pub down: LinearSpec,
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
