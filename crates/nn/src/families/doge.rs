//! Doge: attention whose keys are weighted by what their values say, residual streams with trained weights.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, named, rms, rope_theta,
    rotary, sizes,
};
use crate::config::Reader;
use crate::spec::{BlockForm, ModelSpec, QkNorm};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let (bias, mlp_bias) = (r.flag("attention_bias", false), r.flag("mlp_bias", false));
    let tied = r.flag("tie_word_embeddings", false);
    if r.flag("is_moe", false) {
        r.reject(
            "is_moe",
            "`is_moe` asks for experts that are rows of two tables",
            "this kind of mixture is not known here",
            "--set is_moe=false",
        );
    }
    r.known(&["num_experts", "num_experts_per_tok", "norm_topk_prob", "sliding_window"]);
    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.keep = Some(r.size_or("keep_window_size", 2048, FAMILY));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let form = BlockForm::WeightedResidual {
        n1: named("input_layernorm", &norm),
        n2: named("post_attention_layernorm", &norm),
        weights: ["input_residual", "post_attention_residual"],
    };
    let mut layer = block(attention, gated_mlp(f, act, mlp_bias), form);
    layer.dropout = r.float_or("hidden_dropout", 0.0, FAMILY);
    decoder(r, &s, equal(&s, layer), norm, tied)
}
