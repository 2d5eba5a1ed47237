//! `DiffLlama`: Llama with differential attention.

use super::common::{
    FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms, rope_theta, rotary, sizes,
};
use crate::config::Reader;
use crate::spec::{AttentionSpec, ModelSpec};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["lambda_std_dev", "mlp_bias"]);
    if !s.k.is_multiple_of(2) {
        r.reject(
            "num_key_value_heads",
            format!("`num_key_value_heads` is {}, an odd number", s.k),
            "differential attention cuts the value heads in two halves",
            "--set num_key_value_heads=2",
        );
    }
    if r.float_or("attention_dropout", 0.0, "off") > 0.0 {
        r.reject(
            "attention_dropout",
            "`attention_dropout` is above 0, which transformers refuses for this family",
            "two attentions cannot share one dropout mask",
            "--set attention_dropout=0",
        );
    }
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    let layer = |i: u64| {
        // The weight of the second attention starts larger in later layers.
        let start = 0.8 - 0.6 * (-0.3 * i as f64).exp();
        let attention = AttentionSpec { differential: Some(start), ..attention.clone() };
        Arc::new(block(attention, gated_mlp(f, act, false), pre_norm(&norm)))
    };
    let layers = (0..s.l).map(layer).collect();
    decoder(r, &s, layers, norm, tied)
}
