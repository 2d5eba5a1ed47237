//! SmolLM 3: Llama whose every fourth layer has no rotary embedding.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, sizes_or, sliding, window,
};
use crate::config::Reader;
use crate::spec::ModelSpec;
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(4), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", true);
    let mut attention = attention(&s, bias, bias);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let theta = rope_theta(r, 2_000_000.0);

    // The key says "no rope" and its entries say 1 where there is one.
    let interval = r.size_or("no_rope_layer_interval", 4, FAMILY);
    let rope = r.counts("no_rope_layers");
    if let Some(rope) = &rope {
        r.require_len("no_rope_layers", rope.len(), "num_hidden_layers", s.l);
    }
    let has_rope = |i: u64| match &rope {
        Some(list) => list.get(i as usize).is_none_or(|&on| on != 0),
        None => !(i + 1).is_multiple_of(interval),
    };
    let on = r.flag("use_sliding_window", false);
    let window = window(r, None).filter(|_| on);
    let slides = sliding(r, s.l, |i| window.is_some() && !has_rope(i));

    // Four kinds of layers at most, each described once.
    let kinds: Vec<_> = [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(roped, windowed)| {
            let mut attention = attention.clone();
            attention.rotary = roped.then(|| rotary(s.d, theta));
            attention.window = window.filter(|_| windowed);
            Arc::new(block(attention, gated_mlp(f, act, mlp_bias), pre_norm(&norm)))
        })
        .collect();
    let kind =
        |(i, &windowed): (usize, &bool)| kinds[2 * usize::from(has_rope(i as u64)) + usize::from(windowed)].clone();
    let layers = slides.iter().enumerate().map(kind).collect();
    decoder(r, &s, layers, norm, tied)
}
