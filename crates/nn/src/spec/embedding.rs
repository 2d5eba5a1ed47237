//! What stands in front of the first block: tables of tokens, positions and kinds, or numbers instead.

use super::{LinearSpec, NormSpec, Sequence};

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
    /// Tables of kinds of tokens, in the order in which they are added.
    pub types: Vec<TypeTable>,
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

impl PositionTable {
    /// A trained table of `count` rows, the first of which is the first used.
    pub fn new(name: &'static str, count: u64) -> Self {
        Self { count, offset: 0, name, per_sequence: false, trained: true, form: PositionForm::Table }
    }
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

/// A table with a row for each kind of token, added to the embedded tokens; a text of one kind uses the first row.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeTable {
    /// Rows.
    pub count: u64,
    /// Module name.
    pub name: &'static str,
    /// How many numbers of a token are looked up in it and added one after another (the edges of `LayoutLM`).
    pub reads: u64,
}

impl TypeTable {
    /// A table of `count` rows that is read once.
    pub fn new(name: &'static str, count: u64) -> Self {
        Self { count, name, reads: 1 }
    }
}

/// A token table that stands outside of the stacks that read it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedTable {
    /// Module name, from the root.
    pub name: &'static str,
    /// Names of the same tensor in the stacks.
    pub ties: Vec<&'static str>,
    /// Whether it is what they read; otherwise each has a table of its own, and this one is used by nothing.
    pub used: bool,
}

/// What the first module of a stack reads.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum SourceSpec {
    /// Token ids, looked up in a table.
    #[default]
    Tokens,
    /// Numbers: pixels of an image, or a spectrum.
    Signal(SignalSpec),
}

/// Numbers that a stack reads instead of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalSpec {
    /// What one of them is, in words: `image of 224 x 224 in patches of 16 x 16`.
    pub what: String,
    /// Pieces of one: patches.
    pub len: u64,
    /// Numbers in a piece.
    pub width: u64,
    /// From numbers to the width of the stack.
    pub pieces: Sequence,
    /// Trained vectors in front of the pieces.
    pub leading: Vec<LeadingSpec>,
    /// Name and number of trained vectors between those and the pieces, which have no positions (`DINOv2`).
    pub registers: Option<(&'static str, u64)>,
    /// Whether the reference has a gradient made for the numbers in training (wav2vec 2.0).
    pub graded: bool,
}

impl SignalSpec {
    /// Positions the stack sees of one.
    pub fn positions(&self) -> u64 {
        let registers = self.registers.map_or(0, |(_, count)| count);
        let pieces = self.pieces.iter().fold(self.len, |n, piece| piece.positions(n));
        pieces.saturating_add(self.leading.len() as u64).saturating_add(registers)
    }
}

/// A trained vector in front of the pieces of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadingSpec {
    /// Name of the parameter.
    pub name: &'static str,
    /// Whether it is stored as a plain vector, `h` instead of `1 1 h`.
    pub flat: bool,
}
