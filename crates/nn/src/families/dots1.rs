//! dots.llm1: Qwen 3's attention, DeepSeek-V3's mixtures.

use super::common::{
    FAMILY, FREE, activation, alternate, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary, sizes_or, sliding, window,
};
use super::experts::{corrected_router, counts, mixture, router_extras, shared_experts, sparse};
use crate::config::Reader;
use crate::spec::{LayerSpec, ModelSpec, QkNorm};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(32), None);
    let dense_width = intermediate_size(r, &s);
    // transformers has no default for the number of experts.
    let experts = r.size(["n_routed_experts", "num_local_experts"]);
    let top_k = r.size("num_experts_per_tok");
    let f = r.size_or("moe_intermediate_size", 1408, FAMILY);
    let counts = counts(r, s.h, ("n_routed_experts", experts), top_k, ("moe_intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);

    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let window = window(r, Some(4096));
    let first_window = r.count_or("max_window_layers", 62, FAMILY);
    let slides = sliding(r, s.l, |i| window.is_some() && i >= first_window);

    let router = corrected_router(r, &counts, false);
    let shared = r.size("n_shared_experts");
    let shared = shared_experts(r, &counts, ("n_shared_experts", shared), act, false);
    let moe = mixture(&counts, act, router, Some(shared));
    let first = r.count_or("first_k_dense_replace", 0, FAMILY);

    let dense: LayerSpec = block(attention.clone(), gated_mlp(dense_width, act, false), pre_norm(&norm));
    let full = sparse(attention, moe, pre_norm(&norm));
    let windowed = |layer: &LayerSpec| {
        let mut layer = layer.clone();
        if let Some(attention) = layer.attention_mut() {
            attention.window = window;
        }
        layer
    };
    let dense_layers = alternate(&slides, dense.clone(), windowed(&dense));
    let sparse_layers = alternate(&slides, full.clone(), windowed(&full));
    let layers: Vec<Arc<LayerSpec>> = dense_layers
        .into_iter()
        .zip(sparse_layers)
        .zip(0..)
        .map(|((dense, sparse), i)| if i < first { dense } else { sparse })
        .collect();
    let mut spec = decoder(r, &s, layers, norm, tied);
    router_extras(r, &mut spec.not_modelled);
    spec
}
