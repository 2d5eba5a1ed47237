//! Mistral: Llama with a window over every layer; a `null` window is none, an absent one 4096.

use super::common::{
    FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, sizes_or, window,
};
use crate::config::Reader;
use crate::spec::ModelSpec;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    if r.opt_flag("attention_bias") == Some(true) {
        r.not_applied(
            "attention_bias",
            "`attention_bias` is true, and the projections of this family have no bias",
            "parameters counted without those biases",
            "model_type llama has them",
        );
    }
    let mut attention = attention(&s, false, false);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.window = window(r, Some(4096));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = block(attention, gated_mlp(f, act, false), pre_norm(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
