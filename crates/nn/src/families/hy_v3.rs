//! Hunyuan 3 (`hy_v3`): norms on queries and keys, DeepSeek-V3's router without groups, a dense first layer.

use super::common::{
    FAMILY, FREE, activation, alternate, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary, sizes_or,
};
use super::experts::{counts, dense_layers, extra_predictors, mixture, router_extras, shared_experts, sparse};
use crate::config::Reader;
use crate::spec::{Correction, ModelSpec, QkNorm, QkNormPlace, RouterSpec, Scores};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), Some(128));
    let dense_width = intermediate_size(r, &s);
    let experts = r.size_or(["num_experts", "num_local_experts"], 192, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 8, FAMILY);
    let f = r.size_or("moe_intermediate_size", 1536, FAMILY);
    let counts = counts(r, s.h, ("num_experts", experts), top_k, ("moe_intermediate_size", f));
    let shared = r.size_or("num_shared_experts", 1, FAMILY);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["enable_moe_fp32_combine"]);

    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.qk_norm_place = QkNormPlace::Heads;
    attention.rotary = Some(rotary(s.d, rope_theta(r, 11_158_840.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let router = RouterSpec {
        name: "gate",
        scores: Scores::Sigmoid,
        f32_map: true,
        correction: Correction::Buffer("e_score_correction_bias"),
        normalise: true,
        scale: Some(r.float_or("router_scaling_factor", 2.826, FREE)),
        ..RouterSpec::default()
    };
    let shared = shared_experts(r, &counts, ("num_shared_experts", shared), act, mlp_bias);
    let is_dense = dense_layers(r, s.l, 1);
    let dense = block(attention.clone(), gated_mlp(dense_width, act, mlp_bias), pre_norm(&norm));
    let sparse = sparse(attention, mixture(&counts, act, router, Some(shared)), pre_norm(&norm));
    let layers = alternate(&is_dense, sparse.clone(), dense);
    let mut spec = decoder(r, &s, layers, norm, tied);
    extra_predictors(r, "num_nextn_predict_layers", &mut spec, &Arc::new(sparse));
    router_extras(r, &mut spec.not_modelled);
    spec
}
