//! OLMoE: queries and keys normalised over all heads, a mixture in every block.

use super::common::{
    FAMILY, FREE, activation, attention, decoder, equal, intermediate_size, pre_norm, rms, rope_theta, rotary, sizes,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{ModelSpec, QkNorm, RouterSpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let experts = r.size_or(["num_experts", "num_local_experts"], 64, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 8, FAMILY);
    let counts = counts(r, s.h, ("num_experts", experts), top_k, ("intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::Full(norm.clone());
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.clip_qkv = r.opt_float("clip_qkv");
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let router = RouterSpec {
        name: "gate",
        normalise: r.flag("norm_topk_prob", false),
        narrow_weights: true,
        ..RouterSpec::default()
    };
    let layer = sparse(attention, mixture(&counts, act, router, None), pre_norm(&norm));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    router_extras(r, &mut spec.not_modelled);
    spec
}
