//! Recurrent Gemma: gated linear recurrent units in most blocks, windowed attention with half-rotated heads in the others.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, float_or_off, gated_mlp, intermediate_size, named, rope_theta,
    rotary, rotary_dim, sizes,
};
use crate::config::{Part, Reader};
use crate::spec::{
    BlockForm, ConvSpec, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, RgLruSpec, RotaryJoin,
    RotarySpec,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = (intermediate_size(r, &s) / 2).max(1);
    let act = activation(r, "hidden_activation", "gelu_pytorch_tanh");
    let norm = NormSpec { kind: NormKind::RmsUnitOffset, eps: r.float_or("rms_norm_eps", 1e-6, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let bias = r.flag("attention_bias", false);
    let mut attention = attention(&s, bias, true);
    attention.out = LinearSpec::new("o_proj", true);
    attention.window = Some(r.size_or("attention_window_size", 2048, FAMILY));
    let turned = rotary_dim(r, s.d, 0.5);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Each, ..rotary(turned, rope_theta(r, 10_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let width = r.size_or("lru_width", s.h, "equal to hidden_size");
    r.require_divides(
        Part::new("lru_width", width, "channels of the recurrence"),
        Part::new("num_attention_heads", s.a, "heads"),
        "the maps of the gates are cut into as many blocks as there are heads",
    );
    r.check_product("a map of the recurrence", &[("lru_width", width), ("hidden_size", s.h)]);
    let taps = r.size_or("conv1d_width", 4, FAMILY);
    let recurrent =
        RgLruSpec { width, heads: s.a, conv: ConvSpec { name: "conv_1d", taps, bias: true, act: None }, act };
    let pattern = r.texts(["block_types", "_block_types"]).filter(|types| !types.is_empty());
    let pattern = pattern.unwrap_or_else(|| vec!["recurrent".into(), "recurrent".into(), "attention".into()]);
    r.require_words("block_types", &pattern, &["recurrent", "attention"]);
    let cap = float_or_off(r, "logits_soft_cap", 30.0);
    r.known(&["w_init_variance_scale", "final_w_init_variance_scale", "rescale_prenorm_residual"]);

    let form = BlockForm::Sequential { n1: named("temporal_pre_norm", &norm), n2: named("channel_pre_norm", &norm) };
    let mut full = block(attention, gated_mlp(f, act, true), form);
    full.names = LayerNames { attention: "temporal_block", feed_forward: "mlp_block" };
    let mut scans = full.clone();
    scans.mixer = recurrent.into();
    let (full, scans) = (Arc::new(full), Arc::new(scans));
    let attends = |i: u64| pattern.get(i as usize % pattern.len()).is_some_and(|t| t == "attention");
    let layers = (0..s.l).map(|i| if attends(i) { full.clone() } else { scans.clone() }).collect();
    let mut model = decoder(r, &s, layers, norm, tied);
    model.embedding.scale = Some((s.h as f64).sqrt());
    model.head.softcap = cap;
    model.names = ModelNames { norm: "final_norm", ..ModelNames::default() };
    model
}
