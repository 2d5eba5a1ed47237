//! `MiniMax` (Text-01, M1): lightning attention in most blocks, softmax attention in some, a mixture in every block.

use super::common::{FAMILY, FREE, attention, decoder, named, rms, rope_theta, rotary, rotary_dim, sizes_or, window};
use super::experts::{router_extras, sparse};
use super::mixtral;
use super::qwen3_next::attends;
use crate::config::Reader;
use crate::spec::{BlockForm, LightningSpec, ModelSpec, NormSpec, RotaryJoin, RotarySpec};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let moe = mixtral::experts(r, &s);
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, false, false);
    let turned = rotary_dim(r, s.d, 1.0);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary(turned, rope_theta(r, 1_000_000.0)) });
    if turned == s.d {
        attention.rotary = Some(rotary(s.d, attention.rotary.map_or(1_000_000.0, |rotary| rotary.theta)));
    }
    attention.window = window(r, None);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let block = r.size_or("block_size", 256, FAMILY);
    r.check_product(
        "the scores of a block",
        &[("num_attention_heads", s.a), ("block_size", block), ("block_size", block)],
    );
    let mut factor = |keys: [&'static str; 2]| keys.map(|key| r.float_or(key, 1.0, FREE));
    let full_factors = factor(["full_attn_alpha_factor", "full_attn_beta_factor"]);
    let linear_factors = factor(["linear_attn_alpha_factor", "linear_attn_beta_factor"]);
    let mlp_factors = factor(["mlp_alpha_factor", "mlp_beta_factor"]);
    let attends = attends(r, s.l, |i| i % 2 == 0);
    let form = |factors: [f64; 2]| BlockForm::NormedScaled {
        n1: named("input_layernorm", &norm),
        n2: named("post_attention_layernorm", &norm),
        mixed: factors,
        fed: mlp_factors,
    };
    let full = Arc::new(sparse(attention.clone(), moe.clone(), form(full_factors)));
    let layers = attends.iter().enumerate().map(|(i, &attends)| {
        if attends {
            return full.clone();
        }
        // Rates fall from layer to layer.
        let slope = 1.0 - i as f64 / (s.l as f64 - 1.0 + 1e-5) + 1e-5;
        let norm = NormSpec { eps: 1e-6, ..norm.clone() };
        let mut layer = sparse(attention.clone(), moe.clone(), form(linear_factors));
        layer.mixer = LightningSpec { heads: s.a, head_dim: s.d, block, act: moe.act, slope, norm }.into();
        Arc::new(layer)
    });
    let layers = layers.collect();
    let mut spec = decoder(r, &s, layers, norm.clone(), tied);
    router_extras(r, &mut spec.not_modelled);
    spec
}
