//! A whole model as data: stacks, head, task, names.

use super::{EmbeddingSpec, LayerSpec, Mixer, NormSpec, PatchSpec, Sequence, SignalSpec, SourceSpec, Stage, Tuning};
use crate::param::ParamKind;
use crate::ranks::Ranks;
use std::sync::Arc;
use tensor::DType;

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
    pub layers: Vec<Arc<LayerSpec>>,
    /// Which blocks run, in order, where some run more than once: blocks that share their weights.
    pub order: Option<Vec<usize>>,
    /// The stack that blocks with a [`CrossSpec`](super::CrossSpec) attend to.
    pub encoder: Option<Box<StackSpec>>,
    /// What bytes pass before the blocks, which then read them and patches of them; the embedding is unused.
    pub patches: Option<Box<PatchSpec>>,
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
    /// Whether norms are single kernels under every profile: implementations of plain modules that take those of
    /// flash-attention or Apex.
    pub fused_norms: bool,
    /// Whether what was gathered for maps is gathered again in backward, whatever the profile.
    pub gathers_again: bool,
    /// Tables the reference keeps and no step changes.
    pub buffers: Vec<BufferSpec>,
    /// Parts of the config that are known and not modelled, each bounded in words. Printed with every answer.
    pub not_modelled: Vec<String>,
    /// What of it is trained, and what is added to that. Everything and nothing, unless the user says otherwise.
    pub tuning: Tuning,
    /// The ranks among which it is a part; see [`ModelSpec::share`].
    pub ranks: Ranks,
    /// Which of its blocks are here; see [`ModelSpec::stage`].
    pub stage: Stage,
}

impl ModelSpec {
    /// A language model under Llama's names, without a norm before its head.
    pub fn new(hidden_size: u64, vocab_size: u64, layers: Vec<Arc<LayerSpec>>) -> Self {
        Self {
            family: String::new(),
            hidden_size,
            vocab_size,
            embedding: EmbeddingSpec::default(),
            layers,
            order: None,
            encoder: None,
            patches: None,
            towers: Vec::new(),
            final_norm: None,
            unused: Vec::new(),
            pooler: Vec::new(),
            task: Task::default(),
            head: HeadSpec::default(),
            names: ModelNames::default(),
            max_positions: None,
            has_sdpa: true,
            fused_norms: false,
            gathers_again: false,
            buffers: Vec::new(),
            not_modelled: Vec::new(),
            tuning: Tuning::default(),
            ranks: Ranks::ALONE,
            stage: Stage::WHOLE,
        }
    }

    /// What the first stack reads: the encoder, where there is one.
    pub fn source(&self) -> &SourceSpec {
        self.encoder.as_ref().map_or(&self.embedding.source, |encoder| &encoder.embedding.source)
    }

    /// The numbers that the blocks in front of the head read instead of tokens: then the length of a sequence is theirs.
    pub fn signal(&self) -> Option<&SignalSpec> {
        match &self.embedding.source {
            SourceSpec::Signal(signal) => Some(signal),
            SourceSpec::Tokens => None,
        }
    }

    /// How many blocks run: those that share weights count each time.
    pub fn depth(&self) -> usize {
        self.order.as_ref().map_or(self.layers.len(), Vec::len)
    }

    /// Leaves the first `blocks` of the main stack.
    pub fn truncate(&mut self, blocks: usize) {
        match &mut self.order {
            Some(order) => order.truncate(blocks),
            None => self.layers.truncate(blocks),
        }
    }

    /// Whether it is a language model whose every position predicts the next token of the same text.
    pub fn predicts_next_token(&self) -> bool {
        self.task == Task::NextToken && self.encoder.is_none() && self.signal().is_none()
    }

    /// Whether it says one token after another: a language model, or a decoder behind an encoder. What a model over patches
    /// keeps of a text is not described.
    pub fn continues_text(&self) -> bool {
        let decodes = self.encoder.is_some() && self.task == Task::OwnToken && self.signal().is_none();
        self.predicts_next_token() && self.patches.is_none() || decodes
    }

    /// Whether a text is continued from keys and values alone: no state of another kind is to be kept.
    pub fn continues_from_keys(&self) -> bool {
        let kept = |layer: &Arc<LayerSpec>| matches!(layer.mixer, Mixer::Attention(_) | Mixer::None);
        self.predicts_next_token() && self.patches.is_none() && !self.weighs_keys() && self.layers.iter().all(kept)
    }

    /// Whether some attention weighs its keys by all values before, which are made anew for every token: those weights are in
    /// no cache (Doge).
    pub fn weighs_keys(&self) -> bool {
        self.layers.iter().any(|layer| layer.attention().is_some_and(|attention| attention.keep.is_some()))
    }
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
    /// Width of what it reads, where that is neither the width of the tokens nor of the stream (`RemBERT`).
    pub width: Option<u64>,
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

/// A stack of blocks with what stands in front of and behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct StackSpec {
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// What it reads.
    pub embedding: EmbeddingSpec,
    /// Blocks, in order.
    pub layers: Vec<Arc<LayerSpec>>,
    /// Norm behind the last block.
    pub final_norm: Option<NormSpec>,
    /// Module names; the head is unused.
    pub names: ModelNames,
}

/// A part of a model that turns images or sounds into positions of the text.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerSpec {
    /// What it is, in words: `vision`.
    pub what: &'static str,
    /// The stack.
    pub stack: StackSpec,
    /// What runs behind it, with names from the root, up to the width of the text.
    pub projector: Sequence,
    /// Parameters that are counted and not run, by name from the root, shape and kind.
    pub counted: Vec<(String, Vec<u64>, ParamKind)>,
}

/// What the outputs are held against in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Task {
    /// Each position predicts the next token.
    #[default]
    NextToken,
    /// Each position has a token of its own to predict: masked tokens, or those of a decoder behind an encoder.
    OwnToken,
    /// One of so many classes for each sequence.
    Classes(u64),
    /// There is no loss of its own: hidden states or scores are summed, as the reference does.
    Outputs,
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

/// A parameter that is counted and not run.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedSpec {
    /// Name in its module.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<u64>,
    /// What it counts as.
    pub kind: ParamKind,
    /// Whether no gradient trains it.
    pub frozen: bool,
}

impl CountedSpec {
    /// A matrix, or a vector where there is one size.
    pub fn new(name: &'static str, shape: &[u64]) -> Self {
        let kind = if shape.len() > 1 { ParamKind::Matrix } else { ParamKind::Vector };
        Self { name, shape: shape.to_vec(), kind, frozen: false }
    }
}
