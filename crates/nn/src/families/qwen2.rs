//! Qwen 2 and 2.5: biases on queries, keys and values that no key announces; windows in upper layers if switched on.

use super::common::{
    FREE, activation, alternate, attention, block, decoder, fixed_bias, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary, sizes_or, sliding, window,
};
use crate::config::Reader;
use crate::spec::{LinearSpec, ModelSpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(32), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    fixed_bias(r, true);
    let mut attention = attention(&s, true, true);
    attention.out = LinearSpec::new("o_proj", false);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let (window, slides) = upper_windows(r, s.l);
    let full = block(attention.clone(), gated_mlp(f, act, false), pre_norm(&norm));
    attention.window = window;
    let layers = alternate(&slides, full, block(attention, gated_mlp(f, act, false), pre_norm(&norm)));
    decoder(r, &s, layers, norm, tied)
}

/// The window, if `use_sliding_window` switches it on, and the layers it reaches: by default those from
/// `max_window_layers` on.
pub(super) fn upper_windows(r: &mut Reader<'_>, l: u64) -> (Option<u64>, Vec<bool>) {
    let on = r.flag("use_sliding_window", false);
    let window = window(r, Some(4096)).filter(|_| on);
    let first = r.count_or("max_window_layers", 28, super::common::FAMILY);
    (window, sliding(r, l, |i| window.is_some() && i >= first))
}
