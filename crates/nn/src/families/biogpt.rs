//! `BioGPT` and XGLM: OPT's blocks behind a scaled embedding; XGLM's positions are sines and cosines.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, decoder, equal, named, plain_mlp, plain_sizes, sizes_under,
};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSteps, BlockForm, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec,
    PositionTable,
};

/// What both read under names of their own.
struct Keys {
    act: &'static str,
    f: &'static str,
    attention_dropout: &'static str,
    dropout: &'static str,
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = plain_sizes(r);
    let keys = Keys {
        act: "hidden_act",
        f: "intermediate_size",
        attention_dropout: "attention_probs_dropout_prob",
        dropout: "hidden_dropout_prob",
    };
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-5 };
    r.known(&["layer_norm_eps"]);
    let positions = r.size_or("max_position_embeddings", 1024, FAMILY);
    let mut model = model(r, &s, &keys, norm, AttentionSteps::Common);
    model.embedding.positions = Some(PositionTable { offset: 2, ..PositionTable::new("embed_positions", positions) });
    model.names = ModelNames { body: "biogpt", norm: "layer_norm", head: "output_projection", ..ModelNames::default() };
    model.max_positions = Some(positions);
    model
}

pub(super) fn read_xglm(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_under(
        r,
        &["d_model", "hidden_size"],
        &["num_layers", "num_hidden_layers"],
        &["attention_heads", "num_attention_heads"],
    );
    let keys =
        Keys { act: "activation_function", f: "ffn_dim", attention_dropout: "attention_dropout", dropout: "dropout" };
    if r.flag_or("add_cross_attention", false, FAMILY) {
        r.not_applied(
            "add_cross_attention",
            "`add_cross_attention` is true, and attention to an encoder is not modelled",
            "each layer lacks an attention of its size and a norm",
            "--set add_cross_attention=false",
        );
    }
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-5 };
    r.known(&["decoder_start_token_id", "init_std"]);
    let positions = r.size_or("max_position_embeddings", 2048, FAMILY);
    let mut model = model(r, &s, &keys, norm, AttentionSteps::ScaledQueries);
    // The reference makes a longer table where one is needed.
    model.embedding.positions =
        Some(PositionTable { offset: 2, trained: false, ..PositionTable::new("embed_positions", positions) });
    model.names = ModelNames { norm: "layer_norm", ..ModelNames::default() };
    model.max_positions = Some(positions);
    model.has_sdpa = false;
    model
}

fn model(r: &mut Reader<'_>, s: &Sizes, keys: &Keys, norm: NormSpec, steps: AttentionSteps) -> ModelSpec {
    let f = r.size(keys.f);
    r.check_product("an MLP weight", &[("hidden_size", s.h), (keys.f, f)]);
    let act: Activation = activation(r, keys.act, "gelu");
    let tied = r.flag("tie_word_embeddings", true);
    let scaled = r.flag("scale_embedding", true);
    if r.float_or("layerdrop", 0.0, FAMILY) > 0.0 {
        r.not_applied(
            "layerdrop",
            "`layerdrop` is above 0: a step skips some layers at random",
            "counted as if no layer is skipped: FLOP and memory are upper bounds",
            "--set layerdrop=0",
        );
    }
    if r.float_or("activation_dropout", 0.0, FREE) > 0.0 {
        r.not_applied(
            "activation_dropout",
            "`activation_dropout` is above 0, and dropout inside the feed-forward part is not modelled",
            "one mask as wide as the feed-forward part per layer is missing",
            "--set activation_dropout=0",
        );
    }
    let mut attention = attention(s, true, true);
    attention.out = LinearSpec::new("out_proj", true);
    attention.steps = steps;
    attention.narrow_softmax = true;
    // One makes a mask of ones where none is given; the other holds masked scores from below.
    attention.always_masked = steps == AttentionSteps::Common;
    attention.floored_scores = steps == AttentionSteps::ScaledQueries;
    attention.dropout = r.float_or(keys.attention_dropout, 0.1, FAMILY);
    let form = BlockForm::Sequential { n1: named("self_attn_layer_norm", &norm), n2: named("final_layer_norm", &norm) };
    let mut layer = block(attention, plain_mlp(f, act, "fc1", "fc2", true), form);
    // The two maps lie in the layer itself.
    layer.names = LayerNames { attention: "self_attn", feed_forward: "" };
    layer.dropout = r.float_or(keys.dropout, 0.1, FAMILY);
    let dropout = layer.dropout;
    let mut model = decoder(r, s, equal(s, layer), norm, tied);
    model.embedding.scale = scaled.then(|| (s.h as f64).sqrt());
    model.embedding.dropout = dropout;
    model
}
