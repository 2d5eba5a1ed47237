//! What models beside language models are asked for: by the class that `architectures` names.

use super::common::{FAMILY, Sizes};
use crate::config::Reader;
use crate::spec::{
    Activation, EmbeddingSpec, HeadSpec, LayerSpec, MapSpec, ModelSpec, NamedNorm, NormSpec, Piece, Sequence, Task,
};
use std::sync::Arc;

/// Which outputs a model of several has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Hidden states: the class ends in `Model`.
    Hidden,
    /// A token for each masked position.
    MaskedTokens,
    /// One of so many classes for each sequence.
    Classes(u64),
    /// A head that is not modelled; that of masked tokens stands for it.
    Other,
}

impl Asked {
    /// What the first of `architectures` says; masked tokens, which such models are trained on, if there is none.
    pub fn of(r: &mut Reader<'_>) -> Self {
        let Some(class) = r.config().architectures().first().map(|class| (*class).to_owned()) else {
            r.assume("architectures", "ForMaskedLM", "what models of this family are trained as");
            return Self::MaskedTokens;
        };
        if class.ends_with("ForMaskedLM") {
            Self::MaskedTokens
        } else if class.ends_with("Model") && !class.ends_with("LMHeadModel") && !class.ends_with("DoubleHeadsModel") {
            Self::Hidden
        } else if class.ends_with("ForSequenceClassification") || class.ends_with("ForImageClassification") {
            Self::Classes(classes(r))
        } else {
            Self::Other
        }
    }

    /// Whether the model stands below a head.
    pub fn has_head(self) -> bool {
        self != Self::Hidden
    }

    /// Says so where a head is not modelled.
    pub fn warn(self, r: &Reader<'_>, model: &mut ModelSpec) {
        if let (Self::Other, Some(class)) = (self, r.config().architectures().first()) {
            model.not_modelled.push(format!(
                "the head of {class}: that of masked tokens stands in its place, {} parameters",
                if model.head.tied {
                    "a map of the stream, a norm and a bias for every token in"
                } else {
                    "a map of the stream, a norm and a projection to every token in"
                }
            ));
        }
    }
}

/// Number of classes: `num_labels`, or the entries of `id2label`, or 2.
pub fn classes(r: &mut Reader<'_>) -> u64 {
    let listed = r.config().find("id2label").map(|found| found.value.members().len() as u64).filter(|n| *n > 0);
    match (r.opt_size("num_labels"), listed) {
        (Some(given), _) => given,
        (None, Some(listed)) => listed,
        (None, None) => {
            r.assume("num_labels", 2, FAMILY);
            2
        }
    }
}

/// Whether the first of `architectures` predicts the next token of a text.
pub fn names_language_model(r: &Reader<'_>) -> bool {
    let first = r.config().architectures().first().copied().unwrap_or_default();
    ["ForCausalLM", "LMHeadModel", "GenerationDecoder"].iter().any(|ending| first.ends_with(ending))
}

/// A model without a head and without names.
pub fn model(s: &Sizes, embedding: EmbeddingSpec, layers: Vec<Arc<LayerSpec>>) -> ModelSpec {
    let max_positions = embedding.positions.as_ref().map(|p| p.count);
    ModelSpec {
        embedding,
        task: Task::Outputs,
        head: HeadSpec { absent: true, ..HeadSpec::default() },
        max_positions,
        ..ModelSpec::new(s.h, s.v, layers)
    }
}

/// What stands in front of the projection to tokens: a map, an activation, a norm.
pub fn transform(
    dense: &'static str,
    norm: &'static str,
    act: Activation,
    [input, output]: [u64; 2],
    spec: &NormSpec,
) -> Sequence {
    vec![
        MapSpec::piece(dense, true, input, output),
        Piece::Activation(act),
        Piece::Norm(NamedNorm { name: norm, spec: spec.clone() }, output),
    ]
}
