//! wav2vec 2.0: convolutions over the samples of a sound, then an encoder whose positions are a convolution too.

use super::common::{FAMILY, FREE, activation, attention, block, equal, named, plain_mlp};
use super::{bart, tasks, vision};
use crate::config::Reader;
use crate::spec::{
    BlockForm, Conv1dSpec, CountedSpec, EmbeddingSpec, LayerNames, LinearSpec, MapSpec, ModelNames, ModelSpec,
    NormKind, NormSpec, Piece, Sequence, SignalSpec, SourceSpec,
};

/// Samples of a sound: one second at 16 kHz.
const SAMPLES: u64 = 16_000;

/// Module names of the first convolutions: a list with an index in each name.
const CONVS: [&str; 8] = [
    "feature_extractor.conv_layers.0.conv",
    "feature_extractor.conv_layers.1.conv",
    "feature_extractor.conv_layers.2.conv",
    "feature_extractor.conv_layers.3.conv",
    "feature_extractor.conv_layers.4.conv",
    "feature_extractor.conv_layers.5.conv",
    "feature_extractor.conv_layers.6.conv",
    "feature_extractor.conv_layers.7.conv",
];

/// Those of their norms.
const NORMS: [&str; 8] = [
    "feature_extractor.conv_layers.0.layer_norm",
    "feature_extractor.conv_layers.1.layer_norm",
    "feature_extractor.conv_layers.2.layer_norm",
    "feature_extractor.conv_layers.3.layer_norm",
    "feature_extractor.conv_layers.4.layer_norm",
    "feature_extractor.conv_layers.5.layer_norm",
    "feature_extractor.conv_layers.6.layer_norm",
    "feature_extractor.conv_layers.7.layer_norm",
];

/// Those of the convolutions that make positions, where there are several.
const PLACES: [&str; 8] = [
    "encoder.pos_conv_embed.layers.0.conv",
    "encoder.pos_conv_embed.layers.1.conv",
    "encoder.pos_conv_embed.layers.2.conv",
    "encoder.pos_conv_embed.layers.3.conv",
    "encoder.pos_conv_embed.layers.4.conv",
    "encoder.pos_conv_embed.layers.5.conv",
    "encoder.pos_conv_embed.layers.6.conv",
    "encoder.pos_conv_embed.layers.7.conv",
];

/// How a family differs from wav2vec 2.0.
struct Kin {
    /// Module of the body below a head.
    body: &'static str,
    /// Whether a norm stands in front of the projection to the stream.
    normed: bool,
    /// Whether positions are made by several convolutions with norms without weights, and all others have norms too.
    several: bool,
}

const WAV2VEC2: Kin = Kin { body: "wav2vec2", normed: true, several: false };

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    family(r, &WAV2VEC2)
}

/// `HuBERT`: the same, but for the norm in front of the projection, which may be left out.
pub(super) fn read_hubert(r: &mut Reader<'_>) -> ModelSpec {
    let normed = r.flag_or("feat_proj_layer_norm", true, FAMILY);
    if r.flag_or("conv_pos_batch_norm", false, FAMILY) {
        r.not_applied(
            "conv_pos_batch_norm",
            "`conv_pos_batch_norm` normalises over a batch what positions are made of",
            "counted as if the weight of that convolution were a direction and a length for each tap",
            "--set conv_pos_batch_norm=false",
        );
    }
    r.known(&["classifier_proj_size"]);
    family(r, &Kin { body: "hubert", normed, ..WAV2VEC2 })
}

pub(super) fn read_unispeech(r: &mut Reader<'_>) -> ModelSpec {
    r.known(&["classifier_proj_size", "num_ctc_classes", "replace_prob"]);
    family(r, &Kin { body: "unispeech", ..WAV2VEC2 })
}

pub(super) fn read_unispeech_sat(r: &mut Reader<'_>) -> ModelSpec {
    r.known(&["classifier_proj_size", "num_clusters"]);
    family(r, &Kin { body: "unispeech_sat", ..WAV2VEC2 })
}

/// `data2vec` on sounds: a norm behind every convolution, and positions made by several of them.
pub(super) fn read_data2vec(r: &mut Reader<'_>) -> ModelSpec {
    r.known(&["classifier_proj_size"]);
    family(r, &Kin { body: "data2vec_audio", several: true, ..WAV2VEC2 })
}

fn family(r: &mut Reader<'_>, kin: &Kin) -> ModelSpec {
    let mut s = vision::vision_sizes(r);
    s.v = r.size_or("vocab_size", 32, FAMILY);
    let f = r.size_or("intermediate_size", 3072, FAMILY);
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-5, FREE) };
    let stable = !kin.several && r.flag_or("do_stable_layer_norm", false, FAMILY);
    let dropout = r.float_or("hidden_dropout", 0.1, FAMILY);
    let (mut pieces, width) = extractor(r, &norm, kin.several);
    let projected = |name| named(name, &norm);
    if kin.normed {
        pieces.push(Piece::Norm(projected("feature_projection.layer_norm"), width));
    }
    pieces.push(MapSpec::piece("feature_projection.projection", true, width, s.h));
    let around = activation(r, "feat_extract_activation", "gelu");
    let (taps, count) = if kin.several {
        (r.size_or("conv_pos_kernel_size", 19, FAMILY), r.size_or("num_conv_pos_embeddings", 5, FAMILY))
    } else {
        (r.size_or("num_conv_pos_embeddings", 128, FAMILY), 1)
    };
    let groups = r.size_or("num_conv_pos_embedding_groups", 16, FAMILY);
    let channels = crate::config::Part::new("hidden_size", s.h, "wide");
    let parts = crate::config::Part::new("num_conv_pos_embedding_groups", groups, "groups");
    r.require_divides(channels, parts, "each group has an equal number of channels");
    if count > PLACES.len() as u64 {
        r.reject(
            "num_conv_pos_embeddings",
            format!("`num_conv_pos_embeddings` is {count}"),
            "at most 8 convolutions are known",
            "--set num_conv_pos_embeddings=5",
        );
    }
    let mut positions = Vec::new();
    for name in PLACES.into_iter().take(count as usize) {
        let name = if kin.several { name } else { "encoder.pos_conv_embed.conv" };
        positions.push(Piece::Conv(Conv1dSpec {
            map: LinearSpec::new(name, true),
            input: s.h,
            output: s.h,
            taps,
            stride: 1,
            padding: taps / 2,
            groups,
            normed: !kin.several,
        }));
        if taps.is_multiple_of(2) {
            positions.push(Piece::WithoutLast);
        }
        if kin.several {
            let plain = NormSpec { kind: NormKind::LayerNormBare, eps: 1e-5 };
            positions.push(Piece::Norm(named("encoder.pos_conv_embed.layer_norm", &plain), s.h));
        }
        positions.push(Piece::Activation(around));
    }
    pieces.push(Piece::Residual(positions));
    r.known(KNOWN);

    let mut attention = attention(&s, true, true);
    bart::projections(&mut attention, true);
    attention.causal = false;
    attention.dropout = r.float_or("attention_dropout", 0.1, FAMILY);
    let (n1, n2) = (named("layer_norm", &norm), named("final_layer_norm", &norm));
    let form = if stable { BlockForm::Sequential { n1, n2 } } else { BlockForm::PostResidual { m1: n1, m2: n2 } };
    let mut layer = block(attention, plain_mlp(f, act, "intermediate_dense", "output_dense", true), form);
    layer.names = LayerNames { attention: "attention", feed_forward: "feed_forward" };
    layer.dropout = dropout;
    let embedding = EmbeddingSpec {
        source: SourceSpec::Signal(SignalSpec {
            what: format!("sound of {SAMPLES} samples"),
            len: SAMPLES,
            width: 1,
            pieces,
            leading: Vec::new(),
            registers: None,
            graded: true,
        }),
        norm: (!stable).then(|| norm.clone()),
        dropout,
        ..EmbeddingSpec::default()
    };
    let vocabulary = s.v;
    s.v = 0;
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.final_norm = stable.then(|| norm.clone());
    let class = r.config().architectures().first().map(|class| (*class).to_owned()).unwrap_or_default();
    let headless = class.ends_with("Model");
    model.names = ModelNames {
        body: if headless { "" } else { kin.body },
        layers: "encoder.layers",
        norm: "encoder.layer_norm",
        embed_norm: "encoder.layer_norm",
        ..ModelNames::default()
    };
    // Stands in for masked positions; a loss without masks does not use it.
    let masks = [r.float_or("mask_time_prob", 0.05, FAMILY), r.float_or("mask_feature_prob", 0.0, "off")];
    if masks.iter().any(|part| *part > 0.0) {
        model.unused.push(CountedSpec::new("masked_spec_embed", &[s.h]));
    }
    if !headless {
        if !class.is_empty() && !class.ends_with("ForCTC") {
            model.not_modelled.push(format!("the head of {class}: that of ForCTC stands in its place"));
        }
        let head = MapSpec::head("lm_head", true, s.h, vocabulary);
        model.head.transform = vec![Piece::Linear(head)];
    }
    if let (Some(d), true) = (r.opt_size("adapter_attn_dim"), stable) {
        model.not_modelled.push(format!(
            "the adapter of each block: a norm, and two maps with biases between {} and {d} channels",
            model.hidden_size
        ));
    }
    if r.flag_or("add_adapter", false, FAMILY) {
        model.not_modelled.push("the adapter behind the encoder: convolutions of stride 2".to_owned());
    }
    model
}

/// Keys that change no size of what is modelled.
const KNOWN: &[&str] = &[
    "activation_dropout",
    "adapter_kernel_size",
    "adapter_stride",
    "apply_spec_augment",
    "codevector_dim",
    "contrastive_logits_temperature",
    "ctc_loss_reduction",
    "ctc_zero_infinity",
    "diversity_loss_weight",
    "feat_quantizer_dropout",
    "feat_proj_dropout",
    "final_dropout",
    "layerdrop",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_time_length",
    "mask_time_min_masks",
    "num_adapter_layers",
    "num_codevector_groups",
    "num_codevectors_per_group",
    "num_feat_extract_layers",
    "num_negatives",
    "output_hidden_size",
    "proj_codevector_dim",
    "tdnn_dilation",
    "tdnn_dim",
    "tdnn_kernel",
    "use_weighted_layer_sum",
    "xvector_output_dim",
];

/// The convolutions over samples, and the channels behind them.
fn extractor(r: &mut Reader<'_>, norm: &NormSpec, every: bool) -> (Sequence, u64) {
    let dims = r.sizes("conv_dim").unwrap_or_else(|| vec![512; 7]);
    let taps = r.sizes("conv_kernel").unwrap_or_else(|| vec![10, 3, 3, 3, 3, 2, 2]);
    let strides = r.sizes("conv_stride").unwrap_or_else(|| vec![5, 2, 2, 2, 2, 2, 2]);
    r.require_len("conv_kernel", taps.len(), "conv_dim", dims.len() as u64);
    r.require_len("conv_stride", strides.len(), "conv_dim", dims.len() as u64);
    let bias = r.flag_or("conv_bias", false, FAMILY);
    let act = activation(r, "feat_extract_activation", "gelu");
    let every = every || r.choice("feat_extract_norm", &["group", "layer"], FAMILY) == "layer";
    if dims.len() > CONVS.len() {
        r.reject(
            "conv_dim",
            format!("`conv_dim` has {} entries", dims.len()),
            "at most 8 convolutions are known",
            "the released models have 7",
        );
    }
    let (mut pieces, mut input) = (Vec::new(), 1);
    for (i, ((&output, &taps), &stride)) in dims.iter().zip(&taps).zip(&strides).take(CONVS.len()).enumerate() {
        let map = LinearSpec::new(CONVS[i], bias);
        pieces.push(Piece::Conv(Conv1dSpec { map, input, output, taps, stride, padding: 0, groups: 1, normed: false }));
        if every {
            pieces.push(Piece::Norm(named(NORMS[i], norm), output));
        } else if i == 0 {
            pieces.push(Piece::ChannelNorm(named(NORMS[i], norm), output));
        }
        pieces.push(Piece::Activation(act));
        input = output;
    }
    (pieces, input)
}
