//! Llama 1 to 3.3 and everything that declares itself Llama.

use super::common::{
    FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, sizes,
};
use crate::config::Reader;
use crate::spec::ModelSpec;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let attention_bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let theta = rope_theta(r, 10_000.0);
    r.known(&["pretraining_tp"]);

    let mut attention = attention(&s, attention_bias, attention_bias);
    attention.rotary = Some(rotary(s.d, theta));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = block(attention, gated_mlp(f, act, mlp_bias), pre_norm(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
