//! GLM-4.5 and later: grouped heads of which a part is rotated, DeepSeek-V3's router, dense first layers. Solar Open, which
//! has no dense layers, and Sarvam's mixtures, which transformers builds as GLM.

use super::common::{
    FAMILY, FREE, Given, activation, attention, block, decoder, gated_mlp, heads, intermediate_size, pre_norm, rms,
    rope_theta, rotary, rotary_dim,
};
use super::experts::{
    corrected_router_or, counts, extra_predictors, mixed, mixture, router_extras, shared_experts, sparse,
};
use crate::config::Reader;
use crate::spec::{LinearSpec, ModelSpec, QkNorm, QkNormPlace, RotaryJoin, RotarySpec};
use std::sync::Arc;

/// Where these differ if the file does not say.
struct Variant {
    kv_heads: u64,
    /// `None`: `hidden_size / num_attention_heads`, rounded down as transformers does.
    head_dim: Option<u64>,
    experts: u64,
    top_k: u64,
    f: u64,
    eps: f64,
    scale: f64,
    theta: f64,
    /// Part of a head that is rotated; `None`: all of it, in one piece.
    rotated: Option<f64>,
    /// Whether queries and keys may have norms, and have them.
    qk_norm: Option<bool>,
    /// Dense first layers; `None`: none, whatever the file says.
    dense: Option<u64>,
}

const GLM: Variant = Variant {
    kv_heads: 8,
    head_dim: None,
    experts: 128,
    top_k: 8,
    f: 1408,
    eps: 1e-5,
    scale: 1.0,
    theta: 10_000.0,
    rotated: Some(0.5),
    qk_norm: Some(false),
    dense: Some(1),
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, &GLM)
}

pub(super) fn read_solar_open(r: &mut Reader<'_>) -> ModelSpec {
    let solar =
        Variant { head_dim: Some(128), f: 1280, theta: 1_000_000.0, rotated: None, qk_norm: None, dense: None, ..GLM };
    model(r, &solar)
}

pub(super) fn read_sarvam(r: &mut Reader<'_>) -> ModelSpec {
    let sarvam = Variant {
        kv_heads: 4,
        head_dim: Some(64),
        top_k: 6,
        f: 1024,
        eps: 1e-6,
        scale: 2.5,
        theta: 8_000_000.0,
        rotated: Some(1.0),
        qk_norm: Some(true),
        ..GLM
    };
    model(r, &sarvam)
}

fn model(r: &mut Reader<'_>, variant: &Variant) -> ModelSpec {
    let (h, l, a) = (r.size("hidden_size"), r.layers("num_hidden_layers"), r.size("num_attention_heads"));
    let v = r.size("vocab_size");
    let d = variant.head_dim.unwrap_or((h / a.max(1)).max(1));
    let s = heads(r, &Given { h, l, a, v, k: Some(variant.kv_heads), d: Some(d) });
    let dense_width = variant.dense.map(|_| intermediate_size(r, &s));
    let experts = r.size_or(["n_routed_experts", "num_experts", "num_local_experts"], variant.experts, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", variant.top_k, FAMILY);
    let f = r.size_or("moe_intermediate_size", variant.f, FAMILY);
    let counts = counts(r, s.h, ("n_routed_experts", experts), top_k, ("moe_intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", variant.eps, FREE));
    let bias = r.flag(["attention_bias", "use_qkv_bias"], false);
    let tied = r.flag("tie_word_embeddings", false);

    let mut attention = attention(&s, bias, false);
    attention.out = LinearSpec::new("o_proj", false);
    if variant.qk_norm.is_some_and(|on| r.flag("use_qk_norm", on)) {
        attention.qk_norm = QkNorm::PerHead(norm.clone());
        attention.qk_norm_place = QkNormPlace::Positions;
    }
    attention.rotary = Some(match variant.rotated {
        Some(part) => {
            let dim = rotary_dim(r, s.d, part);
            RotarySpec { join: RotaryJoin::Last, ..rotary(dim, rope_theta(r, variant.theta)) }
        }
        None => rotary(s.d, rope_theta(r, variant.theta)),
    });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");

    let router = corrected_router_or(r, &counts, true, variant.scale);
    let shared = r.size_or(["n_shared_experts", "num_shared_experts"], 1, FAMILY);
    let shared = shared_experts(r, &counts, ("n_shared_experts", shared), act, false);
    let sparse = sparse(attention.clone(), mixture(&counts, act, router, Some(shared)), pre_norm(&norm));
    let sparse = Arc::new(sparse);
    let layers = if let (Some(width), Some(first)) = (dense_width, variant.dense) {
        let first = r.count_or("first_k_dense_replace", first, FAMILY);
        let dense = block(attention, gated_mlp(width, act, false), pre_norm(&norm));
        mixed(s.l, dense, &sparse, |i| i < first)
    } else {
        vec![sparse.clone(); s.l as usize]
    };
    let mut spec = decoder(r, &s, layers, norm, tied);
    extra_predictors(r, ["num_nextn_predict_layers", "num_mtp_layers"], &mut spec, &sparse);
    router_extras(r, &mut spec.not_modelled);
    spec
}
