//! ERNIE 4.5: one key for all biases, heads turned in neighbours in f32; the mixtures have a softmax router whose choice a
//! frozen bias corrects.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary, sizes_or,
};
use super::experts::{counts, mixed, mixture, router_extras, shared_experts, sparse};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, Correction, ModelSpec, NormSpec, RotaryPrecision, RotarySpec, RouterSpec,
};
use std::sync::Arc;

/// What both read alike.
struct Base {
    s: Sizes,
    f: u64,
    act: Activation,
    norm: NormSpec,
    bias: bool,
    tied: bool,
    attention: AttentionSpec,
}

impl Base {
    fn read(r: &mut Reader<'_>, s: Sizes) -> Self {
        let f = intermediate_size(r, &s);
        let act = activation(r, "hidden_act", "silu");
        let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
        let bias = r.flag("use_bias", false);
        let tied = r.flag("tie_word_embeddings", true);
        let mut attention = attention(&s, bias, bias);
        attention.rotary = Some(RotarySpec {
            interleaved: true,
            widened: true,
            precision: RotaryPrecision::WideTables,
            ..rotary(s.d, rope_theta(r, 500_000.0))
        });
        Self { s, f, act, norm, bias, tied, attention }
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let sizes = sizes_or(r, Some(2), Some(128));
    let base = Base::read(r, sizes);
    let layer = block(base.attention, gated_mlp(base.f, base.act, base.bias), pre_norm(&base.norm));
    decoder(r, &base.s, equal(&base.s, layer), base.norm, base.tied)
}

/// Mixtures in every `moe_layer_interval`th layer from `moe_layer_start_index` to `moe_layer_end_index`.
pub(super) fn read_moe(r: &mut Reader<'_>) -> ModelSpec {
    let sizes = sizes_or(r, Some(4), None);
    let base = Base::read(r, sizes);
    let (s, last) = (&base.s, base.s.l.saturating_sub(1));
    let experts = r.size_or(["moe_num_experts", "num_experts", "num_local_experts"], 64, FAMILY);
    let top_k = r.size_or(["moe_k", "num_experts_per_tok"], 6, FAMILY);
    let f = r.size_or("moe_intermediate_size", 1536, FAMILY);
    let counts = counts(r, s.h, ("moe_num_experts", experts), top_k, ("moe_intermediate_size", f));
    let shared = r.count_or("moe_num_shared_experts", 2, FAMILY);
    let shared =
        (shared > 0).then(|| shared_experts(r, &counts, ("moe_num_shared_experts", shared), base.act, base.bias));
    let first = r.count_or("moe_layer_start_index", 1, FAMILY);
    // -1 stands for the last layer.
    let open = r.opt_float("moe_layer_end_index").is_none_or(|end| end < 0.0);
    let end = if open { last } else { r.count_or("moe_layer_end_index", last, FAMILY) };
    let interval = r.size_or("moe_layer_interval", 1, FAMILY);
    r.known(&["moe_norm_min"]);
    let router = RouterSpec {
        name: "gate",
        f32_map: true,
        correction: Correction::Frozen("gate.moe_statics.e_score_correction_bias"),
        normalise: true,
        stream_weights: true,
        ..RouterSpec::default()
    };
    let dense = block(base.attention.clone(), gated_mlp(base.f, base.act, base.bias), pre_norm(&base.norm));
    let sparse = sparse(base.attention, mixture(&counts, base.act, router, shared), pre_norm(&base.norm));
    let is_dense = |i: u64| i < first || i > end || !(i + 1).is_multiple_of(interval);
    let layers = mixed(s.l, dense, &Arc::new(sparse), is_dense);
    let mut spec = decoder(r, &base.s, layers, base.norm, base.tied);
    spec.head.bias = base.bias;
    router_extras(r, &mut spec.not_modelled);
    spec
}
