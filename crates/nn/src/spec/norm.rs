//! Normalisations.

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
    /// Mean and variance without parameters, in the dtype of the input (data2vec).
    LayerNormBare,
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

/// A norm with its module name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedNorm {
    /// Module name.
    pub name: &'static str,
    /// The norm.
    pub spec: NormSpec,
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
