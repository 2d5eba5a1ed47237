//! GLM-4.5 and later: grouped heads of which a part is rotated, DeepSeek-V3's router, dense first layers.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, rotary_dim, sizes_or,
};
use super::experts::{
    corrected_router, counts, extra_predictors, mixed, mixture, router_extras, shared_experts, sparse,
};
use crate::config::Reader;
use crate::spec::{LinearSpec, ModelSpec, QkNorm, QkNormPlace, RotaryJoin, RotarySpec};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let dense_width = intermediate_size(r, &s);
    let experts = r.size_or(["n_routed_experts", "num_experts", "num_local_experts"], 128, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 8, FAMILY);
    let f = r.size_or("moe_intermediate_size", 1408, FAMILY);
    let counts = counts(r, s.h, ("n_routed_experts", experts), top_k, ("moe_intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);

    let mut attention = attention(&s, bias, false);
    attention.out = LinearSpec::new("o_proj", false);
    if r.flag("use_qk_norm", false) {
        attention.qk_norm = QkNorm::PerHead(norm.clone());
        attention.qk_norm_place = QkNormPlace::Positions;
    }
    let rotated = rotary_dim(r, s.d, 0.5);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary(rotated, rope_theta(r, 10_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");

    let router = corrected_router(r, &counts, true);
    let shared = r.size_or("n_shared_experts", 1, FAMILY);
    let shared = shared_experts(r, &counts, ("n_shared_experts", shared), act, false);
    let first = r.count_or("first_k_dense_replace", 1, FAMILY);
    let dense = block(attention.clone(), gated_mlp(dense_width, act, false), pre_norm(&norm));
    let sparse = sparse(attention, mixture(&counts, act, router, Some(shared)), pre_norm(&norm));
    let sparse = Arc::new(sparse);
    let mut spec = decoder(r, &s, mixed(s.l, dense, &sparse, |i| i < first), norm, tied);
    extra_predictors(r, ["num_nextn_predict_layers", "num_mtp_layers"], &mut spec, &sparse);
    router_extras(r, &mut spec.not_modelled);
    spec
}
