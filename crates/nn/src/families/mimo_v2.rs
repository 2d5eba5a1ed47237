//! MiMo-V2-Flash: heads whose values are narrower than their keys, layers with a window that have twice the key/value heads
//! and a learned sink, DeepSeek-V3's router without shared experts.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, rotary_dim, sizes_or, sliding,
};
use super::experts::{corrected, counts, dense_layers, groups, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{LayerSpec, LinearSpec, ModelSpec, RotaryJoin, RotarySpec};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(4), Some(192));
    let value_dim = r.size_or("v_head_dim", 128, FAMILY);
    let dense_width = intermediate_size(r, &s);
    let experts = r.size_or(["n_routed_experts", "num_local_experts"], 256, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 8, FAMILY);
    let f = r.size_or("moe_intermediate_size", 2048, FAMILY);
    let counts = counts(r, s.h, ("n_routed_experts", experts), top_k, ("moe_intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or(["rms_norm_eps", "layernorm_epsilon"], 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    // Of the released file transformers takes the sizes of the full layers and derives the others.
    r.known(&["hybrid_layer_pattern", "moe_layer_freq", "attention_chunk_size", "n_shared_experts", "topk_method"]);
    r.known(&["swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"]);
    r.known(&["add_swa_attention_sink_bias", "add_full_attention_sink_bias", "scoring_func"]);

    let mut full = attention(&s, bias, false);
    full.out = LinearSpec::new("o_proj", false);
    full.narrow_softmax = true;
    full.value_dim = value_dim;
    full.value_scale = r.opt_float("attention_value_scale").or(Some(0.707));
    let dim = rotary_dim(r, s.d, 0.334);
    let (theta, local) = (rope_theta(r, 5_000_000.0), r.float_or("swa_rope_theta", 10_000.0, FREE));
    full.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary(dim, theta) });
    full.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut windowed = full.clone();
    // A query sees so many keys before it, and itself.
    windowed.window = Some(match r.opt_size("sliding_window_size") {
        Some(before) => before.saturating_add(1),
        None => r.size_or("sliding_window", 129, FAMILY),
    });
    r.known(&["sliding_window"]);
    windowed.kv_heads = 2 * s.k;
    windowed.sinks = true;
    windowed.rotary = Some(RotarySpec { table: 1, join: RotaryJoin::Last, ..rotary(dim, local) });
    if !s.a.is_multiple_of(2 * s.k) {
        r.reject(
            "num_key_value_heads",
            format!("layers with a window have {} key/value heads, and there are {} query heads", 2 * s.k, s.a),
            "each key/value head serves an equal number of query heads",
            "--set num_key_value_heads=1",
        );
    }
    let slides = sliding(r, s.l, |i| i != 0 && !(i + 1).is_multiple_of(6));

    let (count, kept) = (r.size_or("n_group", 1, FAMILY), r.size_or("topk_group", 1, FAMILY));
    let groups = groups(r, &counts, count, kept);
    let normalise = r.flag("norm_topk_prob", true);
    let router = corrected(groups, normalise, r.opt_float("routed_scaling_factor").unwrap_or(1.0));
    let moe = mixture(&counts, act, router, None);
    let is_dense = dense_layers(r, s.l, 1);

    // Four kinds of layers at most, each described once.
    let kinds: Vec<Arc<LayerSpec>> = [(&full, false), (&full, true), (&windowed, false), (&windowed, true)]
        .into_iter()
        .map(|(attention, dense)| {
            Arc::new(if dense {
                block(attention.clone(), gated_mlp(dense_width, act, false), pre_norm(&norm))
            } else {
                sparse(attention.clone(), moe.clone(), pre_norm(&norm))
            })
        })
        .collect();
    let kind = |(&slides, &dense): (&bool, &bool)| kinds[2 * usize::from(slides) + usize::from(dense)].clone();
    let layers = slides.iter().zip(&is_dense).map(kind).collect();
    let mut spec = decoder(r, &s, layers, norm, tied);
    // PyTorch's fused attention knows no sinks.
    spec.has_sdpa = false;
    router_extras(r, &mut spec.not_modelled);
    spec
}
