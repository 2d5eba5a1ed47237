//! Helium: Llama whose heads are turned in neighbours and whose norms apply their weight in f32.

use super::common::{
    FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rope_theta, rotary,
    sizes_or,
};
use crate::config::Reader;
use crate::spec::{ModelSpec, NormKind, NormSpec, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(20), Some(128));
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps: r.float_or("rms_norm_eps", 1e-8, FREE) };
    let bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, false);
    attention.rotary = Some(RotarySpec { interleaved: true, widened: true, ..rotary(s.d, rope_theta(r, 100_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = block(attention, gated_mlp(f, act, mlp_bias), pre_norm(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
