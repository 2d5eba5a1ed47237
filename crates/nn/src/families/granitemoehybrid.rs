//! Granite 4: Mamba 2 in most blocks, attention in some, a shared feed-forward part in all, beside a mixture where there are
//! experts.

use super::common::{FAMILY, FREE, activation, attention, block, decoder, pre_norm, rms, rope_theta, rotary, sizes};
use super::experts::{counts, router_extras};
use super::granite::scale_ends;
use super::granitemoe::{shared, with_shared};
use super::mamba2::{HYBRID_KEYS, expanded, state_space};
use super::qwen3_next::attends_by;
use crate::config::Reader;
use crate::spec::{LayerNames, ModelSpec};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let act = activation(r, "hidden_act", "silu");
    let eps = r.float_or("rms_norm_eps", 1e-6, FREE);
    let norm = rms(eps);
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    if r.opt_text("position_embedding_type").as_deref() == Some("rope") {
        attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    }
    attention.scale = r.float_or("attention_multiplier", 1.0, FAMILY);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let inner = expanded(r, s.h, "mamba_expand");
    let mut mamba = state_space(r, &HYBRID_KEYS, inner, &["mamba_d_head"], eps);
    mamba.conv.act = Some(act);
    let width = r.size_or("shared_intermediate_size", 1024, FAMILY);
    let shared = shared(r, s.h, width, act);
    let experts = r.count_or("num_local_experts", 8, FAMILY);
    let mut full = if experts > 0 {
        let top_k = r.size_or("num_experts_per_tok", 2, FAMILY);
        let f = r.size_or("intermediate_size", 11_008, FAMILY);
        let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
        with_shared(attention, &counts, act, shared, &norm)
    } else {
        r.known(&["intermediate_size", "num_experts_per_tok"]);
        let mut layer = block(attention, shared, pre_norm(&norm));
        layer.names = LayerNames { feed_forward: "shared_mlp", ..LayerNames::default() };
        layer
    };
    full.residual_scale = Some(r.float_or("residual_multiplier", 1.0, FAMILY));
    let mut scans = full.clone();
    scans.mixer = mamba.into();
    scans.names.attention = "mamba";
    let (full, scans) = (Arc::new(full), Arc::new(scans));
    let attends = attends_by(r, ["layer_types", "layers_block_type"], s.l, |_| false);
    let layers = attends.iter().map(|&attends| if attends { full.clone() } else { scans.clone() }).collect();
    r.known(&["init_method", "normalization_function"]);
    let mut spec = decoder(r, &s, layers, norm, tied);
    scale_ends(r, &mut spec);
    router_extras(r, &mut spec.not_modelled);
    spec
}
