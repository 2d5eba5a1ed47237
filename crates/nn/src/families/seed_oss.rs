//! Seed-OSS: biases on queries, keys and values, heads wider than the stream, dropout on both branches.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary, sizes_or,
};
use crate::config::Reader;
use crate::spec::ModelSpec;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), Some(128));
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let (bias, out_bias) = (r.flag("attention_bias", true), r.flag("attention_out_bias", false));
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["pretraining_tp"]);
    let mut attention = attention(&s, bias, out_bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.1, FAMILY);
    let mut layer = block(attention, gated_mlp(f, act, mlp_bias), pre_norm(&norm));
    layer.dropout = r.float_or("residual_dropout", 0.1, FAMILY);
    decoder(r, &s, equal(&s, layer), norm, tied)
}
