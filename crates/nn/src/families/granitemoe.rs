//! Granite with experts: softmax over the chosen experts only; Granite's constants.

use super::common::{
    FAMILY, FREE, activation, attention, decoder, equal, intermediate_size, pre_norm, rms, rope_theta, rotary, sizes,
};
use super::experts::{counts, mixture, router_extras, sparse};
use super::granite::scale_ends;
use crate::config::Reader;
use crate::spec::{LayerNames, ModelSpec, RouterSpec, Scores};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let experts = r.size_or(["num_local_experts", "num_experts"], 8, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 2, FAMILY);
    let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.scale = r.float_or("attention_multiplier", 1.0, FAMILY);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let router =
        RouterSpec { name: "router", scores: Scores::SoftmaxOfChosen, stream_weights: true, ..RouterSpec::default() };
    let mut layer = sparse(attention, mixture(&counts, act, router, None), pre_norm(&norm));
    layer.names = LayerNames { feed_forward: "block_sparse_moe", ..LayerNames::default() };
    layer.residual_scale = Some(r.float_or("residual_multiplier", 1.0, FAMILY));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    scale_ends(r, &mut spec);
    router_extras(r, &mut spec.not_modelled);
    spec
}
