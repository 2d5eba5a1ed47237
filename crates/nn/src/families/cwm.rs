//! CWM: Llama with a full layer, then three with a window.

use super::common::{
    FREE, activation, alternate, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, sizes_or, sliding, window,
};
use crate::config::Reader;
use crate::spec::ModelSpec;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), Some(128));
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["pretraining_tp"]);
    let mut attention = attention(&s, false, false);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 1_000_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let slides = sliding(r, s.l, |i| !i.is_multiple_of(4));
    let full = block(attention.clone(), gated_mlp(f, act, mlp_bias), pre_norm(&norm));
    attention.window = window(r, Some(8192));
    let layers = alternate(&slides, full, block(attention, gated_mlp(f, act, mlp_bias), pre_norm(&norm)));
    decoder(r, &s, layers, norm, tied)
}
