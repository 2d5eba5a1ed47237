//! Granite: Llama with constants on the embedding, the scores, both branches and the logits.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary, sizes,
};
use crate::config::Reader;
use crate::spec::ModelSpec;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.scale = r.float_or("attention_multiplier", 1.0, FAMILY);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut layer = block(attention, gated_mlp(f, act, mlp_bias), pre_norm(&norm));
    layer.residual_scale = Some(r.float_or("residual_multiplier", 1.0, FAMILY));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    scale_ends(r, &mut spec);
    spec
}

/// Granite's constants on the embedding and the logits.
pub(super) fn scale_ends(r: &mut Reader<'_>, spec: &mut ModelSpec) {
    spec.embedding.scale = Some(r.float_or("embedding_multiplier", 1.0, FAMILY));
    let divisor = r.float_or("logits_scaling", 1.0, FAMILY);
    spec.head.scale = Some(if divisor == 0.0 { 1.0 } else { 1.0 / divisor });
}
