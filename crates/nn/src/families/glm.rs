//! GLM-4 dense: half of each head rotated in neighbours, gate and up in one map; `glm4` adds norms after each branch.

use super::common::{
    FREE, activation, attention, block, decoder, equal, fused_mlp, intermediate_size, named, pre_norm, rms, rope_theta,
    rotary, rotary_dim, sizes_or,
};
use crate::config::Reader;
use crate::spec::{BlockForm, ModelSpec, NormSpec, RotaryJoin, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, pre_norm)
}

/// With norms before and after each branch.
pub(super) fn read_glm4(r: &mut Reader<'_>) -> ModelSpec {
    model(r, |norm| BlockForm::Sandwich {
        n1: named("input_layernorm", norm),
        m1: named("post_self_attn_layernorm", norm),
        n2: named("post_attention_layernorm", norm),
        m2: named("post_mlp_layernorm", norm),
    })
}

fn model(r: &mut Reader<'_>, form: impl Fn(&NormSpec) -> BlockForm) -> ModelSpec {
    let s = sizes_or(r, Some(2), Some(128));
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1.5625e-7, FREE));
    let bias = r.flag("attention_bias", true);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, false);
    let dim = rotary_dim(r, s.d, 0.5);
    attention.rotary = Some(RotarySpec {
        interleaved: true,
        widened: true,
        join: RotaryJoin::Last,
        ..rotary(dim, rope_theta(r, 10_000.0))
    });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mlp = fused_mlp(f, act, false);
    let layer = block(attention, mlp, form(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
