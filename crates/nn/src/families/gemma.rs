//! Gemma: norm weights count from one, the embedding is scaled by the root of the width, heads of 256.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rope_theta,
    rotary, sizes_or,
};
use crate::config::Reader;
use crate::spec::{Activation, ModelSpec, NormKind, NormSpec};

/// RMS norm with `1 + weight`.
pub(super) fn norm(r: &mut Reader<'_>) -> NormSpec {
    NormSpec { kind: NormKind::RmsUnitOffset, eps: r.float_or("rms_norm_eps", 1e-6, FREE) }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(16), Some(256));
    let f = intermediate_size(r, &s);
    let mut act = activation(r, "hidden_act", "gelu_pytorch_tanh");
    if act == Activation::Gelu {
        r.assume("hidden_act", "gelu_pytorch_tanh", "what \"gelu\" means in the first Gemma files");
        act = Activation::GeluTanh;
    }
    r.known(&["hidden_activation"]);
    let norm = norm(r);
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", true);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    causal(r);
    let layer = block(attention, gated_mlp(f, act, false), pre_norm(&norm));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    spec.embedding.scale = Some((s.h as f64).sqrt());
    spec
}

/// Says so where a model attends both ways: it costs the same here, where masked pairs are computed, and twice the
/// pairs in a kernel that skips them.
pub(super) fn causal(r: &mut Reader<'_>) {
    if r.flag_or("use_bidirectional_attention", false, FAMILY) {
        r.not_applied(
            "use_bidirectional_attention",
            "every token attends to every other",
            "attention is counted as causal",
            "leave it out for a language model",
        );
    }
}
