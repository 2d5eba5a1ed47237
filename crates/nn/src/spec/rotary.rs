//! Rotary position embedding.

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
