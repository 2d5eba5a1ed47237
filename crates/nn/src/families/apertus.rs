//! Apertus: xIELU with trained slopes in a plain MLP, norms on the queries and keys of every head.

use super::common::{
    FAMILY, FREE, attention, block, decoder, equal, intermediate_size, named, plain_mlp, rms, rope_theta, rotary, sizes,
};
use crate::config::Reader;
use crate::spec::{Activation, BlockForm, ModelSpec, QkNorm, QkNormPlace};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let names: Vec<&str> = std::iter::once("xielu").chain(Activation::NAMES).collect();
    let act = Activation::parse(r.choice("hidden_act", &names, FAMILY)).unwrap_or(Activation::Xielu);
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["mlp_bias", "qk_norm", "post_norm"]);
    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.qk_norm_place = QkNormPlace::Heads;
    attention.rotary = Some(rotary(s.d, rope_theta(r, 12_000_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let form =
        BlockForm::Sequential { n1: named("attention_layernorm", &norm), n2: named("feedforward_layernorm", &norm) };
    let layer = block(attention, plain_mlp(f, act, "up_proj", "down_proj", false), form);
    decoder(r, &s, equal(&s, layer), norm, tied)
}
