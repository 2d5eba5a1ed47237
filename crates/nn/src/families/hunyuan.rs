//! Hunyuan V1: norms on queries and keys after the rotation; the mixtures have a shared expert as wide as a routed one.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary, sizes,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, LayerSpec, ModelSpec, NormSpec, QkNorm, QkNormPlace, RouterSpec, SharedSpec,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What both read alike.
struct Base {
    s: Sizes,
    f: u64,
    act: Activation,
    norm: NormSpec,
    tied: bool,
    attention: AttentionSpec,
}

impl Base {
    fn read(r: &mut Reader<'_>) -> Self {
        let s = sizes(r);
        let f = intermediate_size(r, &s);
        let act = activation(r, "hidden_act", "silu");
        let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
        let bias = r.flag("attention_bias", false);
        let tied = r.flag("tie_word_embeddings", false);
        r.known(&["pretraining_tp", "eod_token_id", "sep_token_id"]);
        let mut attention = attention(&s, bias, bias);
        attention.qk_norm = QkNorm::PerHead(norm.clone());
        attention.qk_norm_names = ["query_layernorm", "key_layernorm"];
        attention.qk_norm_place = QkNormPlace::Rotated;
        attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
        attention.dropout = r.float_or("attention_dropout", 0.0, "off");
        Self { s, f, act, norm, tied, attention }
    }
}

pub(super) fn read_dense(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r);
    let layer = block(base.attention, gated_mlp(base.f, base.act, false), pre_norm(&base.norm));
    decoder(r, &base.s, equal(&base.s, layer), base.norm, base.tied)
}

pub(super) fn read_moe(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r);
    let experts = r.size_or(["num_experts", "num_local_experts"], 1, FAMILY);
    let top_k = top_k(r, base.s.l);
    // Released files have these for code of their own; transformers reads none of them.
    r.known(&["moe_intermediate_size", "num_shared_expert", "moe_layer_num_skipped", "use_mixed_mlp_moe"]);
    // Layers with equally many experts per token are described once.
    let mut kinds: BTreeMap<u64, Arc<LayerSpec>> = BTreeMap::new();
    for &k in &top_k {
        kinds.entry(k).or_insert_with(|| {
            let counts = counts(r, base.s.h, ("num_experts", experts), k, ("intermediate_size", base.f));
            let mlp = gated_mlp(base.f, base.act, false);
            let shared = SharedSpec { mlp, name: "shared_mlp", gate: None };
            let router =
                RouterSpec { name: "gate", inner: Some("wg"), f32_map: true, normalise: true, ..RouterSpec::default() };
            let moe = mixture(&counts, base.act, router, Some(shared));
            Arc::new(sparse(base.attention.clone(), moe, pre_norm(&base.norm)))
        });
    }
    let layers = top_k.iter().map(|k| kinds[k].clone()).collect();
    let mut spec = decoder(r, &base.s, layers, base.norm, base.tied);
    router_extras(r, &mut spec.not_modelled);
    spec
}

/// `moe_topk`: a number, or one for every layer.
fn top_k(r: &mut Reader<'_>, l: u64) -> Vec<u64> {
    let key = ["moe_topk", "num_experts_per_tok"];
    let listed = r.config().find("moe_topk").is_some_and(|found| found.value.items().is_some());
    if !listed {
        return vec![r.size_or(key, 1, FAMILY); l as usize];
    }
    let mut each = r.sizes("moe_topk").unwrap_or_default();
    r.require_len("moe_topk", each.len(), "num_hidden_layers", l);
    each.resize(l as usize, 1);
    each
}
