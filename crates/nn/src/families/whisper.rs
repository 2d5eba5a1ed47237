//! Whisper: an encoder of spectra behind two convolutions, and a decoder of text.

use super::bart::Side;
use super::common::{FAMILY, activation};
use super::tasks;
use crate::config::Reader;
use crate::spec::{
    Conv1dSpec, EmbeddingSpec, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, Piece, PositionForm,
    PositionTable, SignalSpec, SourceSpec, StackSpec, Task,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let h = r.size("d_model");
    let v = r.size("vocab_size");
    r.check_product("the embedding table", &[("vocab_size", v), ("d_model", h)]);
    let side = |r: &mut Reader<'_>, decoder| Side { k_bias: false, ..Side::read(r, h, decoder) };
    let (encoder, decoder) = (side(r, false), side(r, true));
    let act = activation(r, "activation_function", "gelu");
    let bins = r.size_or("num_mel_bins", 80, FAMILY);
    let [source, target] =
        [("max_source_positions", 1500), ("max_target_positions", 448)].map(|(key, n)| r.size_or(key, n, FAMILY));
    let rates = [r.float_or("dropout", 0.0, "off"), r.float_or("attention_dropout", 0.0, "off")];
    let scaled = r.flag_or("scale_embedding", false, FAMILY);
    let tied = r.flag("tie_word_embeddings", true);
    r.known(&[
        "num_hidden_layers",
        "is_encoder_decoder",
        "median_filter_width",
        "use_weighted_layer_sum",
        "apply_spec_augment",
        "mask_time_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_feature_prob",
        "mask_feature_length",
        "mask_feature_min_masks",
        "alignment_heads",
        "lang_ids",
    ]);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-5 };
    let conv = |name, input, stride| {
        let map = LinearSpec::new(name, true);
        Piece::Conv(Conv1dSpec { map, input, output: h, taps: 3, stride, padding: 1, groups: 1, normed: false })
    };
    let positions =
        |count, form, trained| Some(PositionTable { trained, form, ..PositionTable::new("embed_positions", count) });
    let frames = source.saturating_mul(2);
    let signal = SignalSpec {
        what: format!("sound of {frames} frames with {bins} mel bins"),
        len: frames,
        width: bins,
        pieces: vec![conv("conv1", bins, 1), Piece::Activation(act), conv("conv2", h, 2), Piece::Activation(act)],
        leading: Vec::new(),
        registers: None,
        graded: false,
    };
    let heard = EmbeddingSpec {
        source: SourceSpec::Signal(signal),
        positions: positions(source, PositionForm::Frozen, false),
        dropout: rates[0],
        ..EmbeddingSpec::default()
    };
    let written = EmbeddingSpec {
        scale: scaled.then(|| (h as f64).sqrt()),
        positions: positions(target, PositionForm::Table, true),
        dropout: rates[0],
        ..EmbeddingSpec::default()
    };
    let names = |body| ModelNames { body, norm: "layer_norm", head: "proj_out", ..ModelNames::default() };
    let mut model = tasks::model(&decoder.sizes(v), written, decoder.layers(act, &norm, rates));
    model.final_norm = Some(norm.clone());
    model.names = names("model.decoder");
    model.encoder = Some(Box::new(StackSpec {
        hidden_size: h,
        embedding: heard,
        layers: encoder.layers(act, &norm, rates),
        final_norm: Some(norm),
        names: names("model.encoder"),
    }));
    model.task = Task::OwnToken;
    model.head.absent = false;
    model.head.tied = tied;
    model.head.narrow_loss = true;
    model
}
