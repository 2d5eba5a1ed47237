//! OLMo: norms without parameters; queries, keys and values clamped where `clip_qkv` says so.

use super::common::{
    activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rope_theta, rotary, sizes,
};
use crate::config::Reader;
use crate::spec::{ModelSpec, NormKind, NormSpec, RotaryPrecision, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    // The class has this number built in.
    let norm = NormSpec { kind: NormKind::LayerNormPlain, eps: 1e-5 };
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.rotary =
        Some(RotarySpec { precision: RotaryPrecision::WideTables, ..rotary(s.d, rope_theta(r, 10_000.0)) });
    attention.clip_qkv = r.opt_float("clip_qkv");
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = block(attention, gated_mlp(f, act, false), pre_norm(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
