//! Mixtral: Mistral's attention, a mixture in every block.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, decoder, equal, intermediate_size, pre_norm, rms, rope_theta, rotary,
    sizes_or, window,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{ModelSpec, MoeSpec, RouterSpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let moe = experts(r, &s);
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, false, false);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 1_000_000.0)));
    attention.window = window(r, None);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = sparse(attention, moe, pre_norm(&norm));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    router_extras(r, &mut spec.not_modelled);
    spec
}

/// The mixture of every block.
pub(super) fn experts(r: &mut Reader<'_>, s: &Sizes) -> MoeSpec {
    let f = intermediate_size(r, s);
    let experts = r.size_or(["num_local_experts", "num_experts"], 8, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 2, FAMILY);
    let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    mixture(&counts, act, RouterSpec { name: "gate", normalise: true, ..RouterSpec::default() }, None)
}
