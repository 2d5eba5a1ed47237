//! The class that `architectures` names, where the reader of the family leaves that to be seen to here: bodies without a
//! head, classifiers of sequences, decoders without their encoder. What is not made of a model is said in a warning.

use super::common::change_layers;
use super::tasks;
use crate::config::Reader;
use crate::spec::{CountedSpec, CrossSpec, HeadSpec, LayerSpec, MapSpec, ModelSpec, Piece, Projection, Task};
use std::sync::Arc;

/// What a class is by the end of its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// A language model, or an encoder with its decoder.
    Whole,
    /// A language model; of an encoder and a decoder, the decoder alone.
    Decoder,
    /// What stands below a head.
    Body,
    /// One of a few classes for each sequence.
    Classifier,
    /// Something else.
    Other,
}

impl Named {
    fn of(class: &str) -> Self {
        let ends = |endings: &[&str]| endings.iter().any(|ending| class.ends_with(ending));
        match () {
            () if ends(&["ForConditionalGeneration", "LMHeadModel", "MTModel", "GenerationDecoder"]) => Self::Whole,
            () if ends(&["ForCausalLM"]) => Self::Decoder,
            // That of CTRL goes by another name than those of all others.
            () if ends(&["ForSequenceClassification"]) && !class.starts_with("CTRL") => Self::Classifier,
            () if ends(&["Model"]) && !ends(&["DoubleHeadsModel"]) => Self::Body,
            () => Self::Other,
        }
    }
}

/// Makes of a language model, or of an encoder with its decoder, what the first of `architectures` names.
pub(super) fn apply(r: &mut Reader<'_>, model: &mut ModelSpec) {
    let Some(class) = r.config().architectures().first().map(|class| (*class).to_owned()) else { return };
    let named = Named::of(&class);
    if model.predicts_next_token() {
        match named {
            Named::Whole | Named::Decoder => {}
            // Wrappers that are called a model may well have the head of their language model.
            Named::Body if r.config().sub_config().is_none() => without_head(r, model, &class),
            Named::Classifier => classifier(r, model),
            Named::Body | Named::Other => counted_otherwise(r, &class, "the language model with its head"),
        }
    } else if model.encoder.is_some() && model.task == Task::OwnToken {
        match named {
            Named::Whole => {}
            Named::Body => without_head(r, model, &class),
            Named::Decoder if model.layers.iter().all(has_idle_cross) => decoder_alone(model),
            _ => counted_otherwise(r, &class, "the encoder and the decoder with its head of tokens"),
        }
    }
}

fn counted_otherwise(r: &mut Reader<'_>, class: &str, what: &str) {
    r.not_applied(
        "architectures",
        format!("`architectures` names {class}, which is not modelled"),
        &format!("counted is {what}"),
        "compare with the class that is trained",
    );
}

/// The body under its own names: what a file of the bare class has.
fn without_head(r: &mut Reader<'_>, model: &mut ModelSpec, class: &str) {
    r.assume(
        "architectures",
        class,
        "the class has no head: its hidden states are the output, and nothing is predicted",
    );
    model.task = Task::Outputs;
    model.head = HeadSpec { absent: true, ..HeadSpec::default() };
    let inner = |name: &'static str| name.split_once('.').map_or("", |(_, rest)| rest);
    // T5's stacks lie in the root whether there is a head or not.
    if model.names.body == "decoder" {
        return;
    }
    model.names.body = inner(model.names.body);
    if let Some(encoder) = &mut model.encoder {
        encoder.names.body = inner(encoder.names.body);
    }
    if let Some(table) = &mut model.embedding.shared {
        table.name = inner(table.name);
        table.ties.iter_mut().for_each(|name| *name = inner(name));
    }
}

/// Scores of every position, those of the last being the answer.
fn classifier(r: &mut Reader<'_>, model: &mut ModelSpec) {
    let classes = tasks::classes(r);
    let width = model.embedding.width.unwrap_or(model.hidden_size);
    let scores = MapSpec::head("score", false, width, classes);
    model.task = Task::Classes(classes);
    let transform = vec![Piece::Linear(scores), Piece::Last];
    model.head = HeadSpec { absent: true, transform, ..HeadSpec::default() };
}

/// Whether a block attends to another stack as BART's do, which its class of the decoder alone builds and does not run.
fn has_idle_cross(layer: &Arc<LayerSpec>) -> bool {
    layer.cross.as_ref().is_some_and(|cross| cross.name == "encoder_attn")
}

/// The decoder as a language model. Its attention to an encoder is there, and nothing runs it.
pub(super) fn decoder_alone(model: &mut ModelSpec) {
    let h = model.hidden_size;
    change_layers(&mut model.layers, |layer| {
        let idle = layer.cross.take();
        layer.counted.extend(idle.iter().flat_map(|cross| parameters(cross, h)));
    });
    model.encoder = None;
    model.embedding.shared = None;
    model.task = Task::NextToken;
    model.head.offsets = false;
}

/// Parameters of an attention to another stack, and of its norm, under the names of BART.
fn parameters(cross: &CrossSpec, h: u64) -> Vec<CountedSpec> {
    let Projection::Separate { q, k, v } = &cross.attention.projection else { return Vec::new() };
    let maps = [
        (["encoder_attn.k_proj.weight", "encoder_attn.k_proj.bias"], k.bias, cross.width),
        (["encoder_attn.v_proj.weight", "encoder_attn.v_proj.bias"], v.bias, cross.width),
        (["encoder_attn.q_proj.weight", "encoder_attn.q_proj.bias"], q.bias, h),
        (["encoder_attn.out_proj.weight", "encoder_attn.out_proj.bias"], cross.attention.out.bias, h),
    ];
    idle_attention(h, maps, ["encoder_attn_layer_norm.weight", "encoder_attn_layer_norm.bias"])
}

/// Parameters of an attention to another stack that nothing runs, and of its norm: of each map the names of weight and bias,
/// whether it has the latter, and its inputs; `h` outputs each.
pub(super) fn idle_attention(
    h: u64,
    maps: [([&'static str; 2], bool, u64); 4],
    norm: [&'static str; 2],
) -> Vec<CountedSpec> {
    let of_map = |([weight, bias], biased, from): ([&'static str; 2], bool, u64)| {
        std::iter::once(CountedSpec::new(weight, &[h, from])).chain(biased.then(|| CountedSpec::new(bias, &[h])))
    };
    maps.into_iter().flat_map(of_map).chain(norm.map(|name| CountedSpec::new(name, &[h]))).collect()
}
