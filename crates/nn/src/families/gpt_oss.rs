//! GPT-OSS: every other layer has a window, each head a learned sink, experts with biases and clamped gates.

use super::common::{
    FAMILY, FREE, alternate, attention, decoder, intermediate_size, pre_norm, rope_theta, rotary, sizes_or, sliding,
    window,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{
    Activation, ExpertGate, ExpertLayout, ModelSpec, NormKind, NormSpec, RotaryForm, RotarySpec, RouterSpec, Scores,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), Some(64));
    let f = intermediate_size(r, &s);
    let experts = r.size_or(["num_local_experts", "num_experts"], 128, FAMILY);
    let top_k = r.size_or(["num_experts_per_tok", "experts_per_token"], 4, FAMILY);
    let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps: r.float_or("rms_norm_eps", 1e-5, FREE) };
    let bias = r.flag("attention_bias", true);
    let tied = r.flag("tie_word_embeddings", false);
    // The gate is written out in the code; the key names something close.
    r.known(&["hidden_act"]);
    let mut attention = attention(&s, bias, bias);
    attention.sinks = true;
    attention.rotary = Some(RotarySpec { form: RotaryForm::Halves, ..rotary(s.d, rope_theta(r, 150_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let router = RouterSpec {
        name: "router",
        bias: true,
        scores: Scores::SoftmaxOfChosen,
        narrow_scores: true,
        ..RouterSpec::default()
    };
    let mut moe = mixture(&counts, Activation::Silu, router, None);
    moe.layout = ExpertLayout::InOut;
    moe.expert_bias = true;
    moe.gate = ExpertGate::Clamped {
        limit: r.float_or("swiglu_limit", 7.0, FREE).abs(),
        slope: r.float_or("swiglu_alpha", 1.702, FREE),
    };
    let slides = sliding(r, s.l, |i| i.is_multiple_of(2));
    let full = sparse(attention.clone(), moe.clone(), pre_norm(&norm));
    attention.window = window(r, Some(128));
    let windowed = sparse(attention, moe, pre_norm(&norm));
    let mut spec = decoder(r, &s, alternate(&slides, full, windowed), norm, tied);
    spec.has_sdpa = false;
    router_extras(r, &mut spec.not_modelled);
    spec
}
