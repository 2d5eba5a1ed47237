//! Granite: Llama with constants on the embedding, the scores, both branches and the logits. `HyperCLOVA` X has norms behind
//! the branches as well, and multiplies its logits where Granite divides.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, named, pre_norm,
    rms, rope_theta, rotary, sizes,
};
use crate::config::Reader;
use crate::spec::{BlockForm, ModelSpec, NormSpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let mut spec = model(r, |_| 1.0, |_, norm| pre_norm(norm));
    scale_ends(r, &mut spec);
    spec
}

pub(super) fn read_hyperclovax(r: &mut Reader<'_>) -> ModelSpec {
    let root = |s: &Sizes| 1.0 / (s.d as f64).sqrt();
    let mut spec = model(r, root, |r, norm| {
        if r.flag("use_post_norm", true) {
            BlockForm::Sandwich {
                n1: named("input_layernorm", norm),
                m1: named("post_norm1", norm),
                n2: named("post_attention_layernorm", norm),
                m2: named("post_norm2", norm),
            }
        } else {
            pre_norm(norm)
        }
    });
    spec.embedding.scale = Some(r.float_or("embedding_multiplier", 1.0, FAMILY));
    spec.head.scale = Some(r.float_or("logits_scaling", 1.0, FAMILY));
    spec
}

/// The model but for the constants at its ends; `scale` of scores and `form` of blocks where the file does not say.
fn model(r: &mut Reader<'_>, scale: fn(&Sizes) -> f64, form: fn(&mut Reader<'_>, &NormSpec) -> BlockForm) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.scale = r.float_or("attention_multiplier", scale(&s), FAMILY);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut layer = block(attention, gated_mlp(f, act, mlp_bias), form(r, &norm));
    layer.residual_scale = Some(r.float_or("residual_multiplier", 1.0, FAMILY));
    decoder(r, &s, equal(&s, layer), norm, tied)
}

/// Granite's constants on the embedding and the logits.
pub(super) fn scale_ends(r: &mut Reader<'_>, spec: &mut ModelSpec) {
    spec.embedding.scale = Some(r.float_or("embedding_multiplier", 1.0, FAMILY));
    let divisor = r.float_or("logits_scaling", 1.0, FAMILY);
    spec.head.scale = Some(if divisor == 0.0 { 1.0 } else { 1.0 / divisor });
}
