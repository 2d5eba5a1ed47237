//! Phi-3.5-MoE: layer norms, biases where the file says so, two experts chosen one after the other.

use super::common::{
    FAMILY, FREE, activation, attention, decoder, equal, intermediate_size, pre_norm, rope_theta, rotary, sizes_or,
    window,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{ModelSpec, NormKind, NormSpec, RouterSpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let f = intermediate_size(r, &s);
    let experts = r.size_or(["num_local_experts", "num_experts"], 16, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 2, FAMILY);
    let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("rms_norm_eps", 1e-5, FREE) };
    let bias = r.flag("attention_bias", false);
    let head_bias = r.flag("lm_head_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["original_max_position_embeddings", "hidden_dropout", "input_jitter_noise", "router_jitter_noise"]);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 1_000_000.0)));
    attention.window = window(r, None);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let router = RouterSpec { name: "router", ..RouterSpec::default() };
    let layer = sparse(attention, mixture(&counts, act, router, None), pre_norm(&norm));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    spec.head.bias = head_bias;
    spec.not_modelled.push(
        "the choice of experts one after the other (SparseMixer), counted as the choice of both at once: elementwise work \
         on one number per token and expert"
            .to_owned(),
    );
    router_extras(r, &mut spec.not_modelled);
    spec
}
