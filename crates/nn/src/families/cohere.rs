//! Cohere Command R: attention and MLP side by side behind one norm, layer norms without bias, scaled logits.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, named, rope_theta,
    rotary, sizes,
};
use crate::config::Reader;
use crate::spec::{BlockForm, ModelSpec, NormKind, NormSpec, QkNorm, QkNormPlace, RotaryPrecision, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = NormSpec { kind: NormKind::LayerNormUpcast, eps: r.float_or("layer_norm_eps", 1e-5, FREE) };
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", true);
    let mut attention = attention(&s, bias, bias);
    if r.flag("use_qk_norm", false) {
        attention.qk_norm = QkNorm::EveryHead(norm.clone());
        attention.qk_norm_place = QkNormPlace::Positions;
    }
    attention.rotary = Some(RotarySpec {
        interleaved: true,
        precision: RotaryPrecision::WideOperands,
        ..rotary(s.d, rope_theta(r, 500_000.0))
    });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let form = BlockForm::ParallelInto { n1: named("input_layernorm", &norm) };
    let layer = block(attention, gated_mlp(f, act, false), form);
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    spec.head.scale = Some(r.float_or("logit_scale", 0.0625, FAMILY));
    spec
}
