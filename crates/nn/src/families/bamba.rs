//! Bamba: Mamba 2 in most blocks, attention with half-rotated heads in some, a gated feed-forward part in all.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, named, rms, rope_theta, rotary,
    sizes_or,
};
use super::mamba2::{HYBRID_KEYS, expanded, state_space};
use crate::config::Reader;
use crate::spec::{BlockForm, LayerNames, ModelNames, ModelSpec, NormSpec};
use std::sync::Arc;

/// Norms before both parts.
pub(super) fn form(norm: &NormSpec) -> BlockForm {
    BlockForm::Sequential { n1: named("input_layernorm", norm), n2: named("pre_ff_layernorm", norm) }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let eps = r.float_or("rms_norm_eps", 1e-5, FREE);
    let norm = rms(eps);
    let (attention_bias, mlp_bias) = (r.flag("attention_bias", false), r.flag("mlp_bias", false));
    let tied = r.flag("tie_word_embeddings", false);
    let inner = expanded(r, s.h, "mamba_expand");
    let mut mamba = state_space(r, &HYBRID_KEYS, inner, &["mamba_d_head"], eps);
    mamba.conv.act = Some(act);

    let mut attention = attention(&s, attention_bias, attention_bias);
    // transformers rotates half of each head whatever the file says.
    r.known(&["partial_rotary_factor", "attn_rotary_emb", "num_logits_to_keep"]);
    attention.rotary = Some(rotary(s.d / 2, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);

    let attends = r.counts("attn_layer_indices").unwrap_or_default();
    let mut full = block(attention, gated_mlp(f, act, mlp_bias), form(&norm));
    full.names = LayerNames { attention: "self_attn", feed_forward: "feed_forward" };
    let mut scans = full.clone();
    scans.mixer = mamba.into();
    scans.names.attention = "mamba";
    let (full, scans) = (Arc::new(full), Arc::new(scans));
    let layers = (0..s.l).map(|i| if attends.contains(&i) { full.clone() } else { scans.clone() }).collect();
    let mut model = decoder(r, &s, layers, norm, tied);
    model.names = ModelNames { norm: "final_layernorm", ..ModelNames::default() };
    if r.float_or("z_loss_coefficient", 0.0, FREE) > 0.0 {
        model.not_modelled.push("the z-loss (`z_loss_coefficient`): elementwise work on the logits".to_owned());
    }
    model
}
