//! Qwen 3: a norm on the queries and keys of every head, head size apart from the width.

use super::common::{
    FREE, activation, alternate, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, sizes_or,
};
use super::qwen2::upper_windows;
use crate::config::Reader;
use crate::spec::{ModelSpec, QkNorm};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(32), Some(128));
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let (window, slides) = upper_windows(r, s.l);
    let full = block(attention.clone(), gated_mlp(f, act, false), pre_norm(&norm));
    attention.window = window;
    let layers = alternate(&slides, full, block(attention, gated_mlp(f, act, false), pre_norm(&norm)));
    decoder(r, &s, layers, norm, tied)
}
