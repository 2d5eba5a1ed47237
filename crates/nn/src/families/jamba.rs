//! Jamba: Mamba in most blocks, attention without positions in every eighth, mixtures in every second.

use super::bamba;
use super::common::{FAMILY, FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, rms, sizes_or};
use super::experts::{counts, mixture, router_extras, sparse};
use super::mamba::{Keys, state_space};
use crate::config::Reader;
use crate::spec::{LayerNames, MambaNorms, ModelNames, ModelSpec, RouterSpec};
use std::sync::Arc;

pub(super) const KEYS: Keys = Keys {
    state: &["mamba_d_state"],
    taps: &["mamba_d_conv"],
    expand: &["mamba_expand"],
    rank: &["mamba_dt_rank"],
    conv_bias: &["mamba_conv_bias"],
    bias: &["mamba_proj_bias"],
};

/// Every so many layers from an offset, under two keys.
fn periodic(r: &mut Reader<'_>, keys: [&'static str; 2], defaults: [u64; 2], l: u64) -> Vec<bool> {
    let period = r.size_or(keys[0], defaults[0], FAMILY);
    let offset = r.count_or(keys[1], defaults[1], FAMILY);
    if offset >= period {
        r.reject(
            keys[1],
            format!("`{}` is {offset}, and the period is {period}", keys[1]),
            "the offset counts within a period",
            &format!("--set {}=0", keys[1]),
        );
    }
    (0..l).map(|i| i % period == offset).collect()
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    let attends = periodic(r, ["attn_layer_period", "attn_layer_offset"], [8, 4], s.l);
    let routes = periodic(r, ["expert_layer_period", "expert_layer_offset"], [2, 1], s.l);
    let experts = r.size_or(["num_experts", "num_local_experts"], 16, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 2, FAMILY);
    let counts = counts(r, s.h, ("num_experts", experts), top_k, ("intermediate_size", f));
    let mut mamba = state_space(r, s.h, &KEYS, "hidden_act");
    mamba.norms = MambaNorms::Weighted(norm.clone());
    r.known(&["num_logits_to_keep", "calc_logits_for_entire_prompt", "mamba_inner_layernorms"]);
    let mut attention = attention(&s, false, false);
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);

    let make = |attends: bool, routes: bool| {
        // One expert is a dense part.
        let mut layer = if routes && experts > 1 {
            let router = RouterSpec { name: "router", stream_weights: true, ..RouterSpec::default() };
            sparse(attention.clone(), mixture(&counts, act, router, None), bamba::form(&norm))
        } else {
            block(attention.clone(), gated_mlp(f, act, false), bamba::form(&norm))
        };
        layer.names = LayerNames { attention: "self_attn", feed_forward: "feed_forward" };
        if !attends {
            layer.mixer = mamba.clone().into();
            layer.names.attention = "mamba";
        }
        Arc::new(layer)
    };
    let kinds = [make(false, false), make(false, true), make(true, false), make(true, true)];
    let kind = |(attends, routes): (&bool, &bool)| kinds[2 * usize::from(*attends) + usize::from(*routes)].clone();
    let layers = attends.iter().zip(&routes).map(kind).collect();
    let mut model = decoder(r, &s, layers, norm, tied);
    model.names = ModelNames { norm: "final_layernorm", ..ModelNames::default() };
    router_extras(r, &mut model.not_modelled);
    model
}
