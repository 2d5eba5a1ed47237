//! Llama 4, the language part: three layers with rotation and attention in chunks to one without either; mixtures that
//! transformers computes for every expert, with a shared expert.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms, rope_theta,
    rotary, sizes_or,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{
    ExpertLayout, LayerNames, LayerSpec, ModelSpec, NormKind, NormSpec, QkNorm, QkNormPlace, RotaryForm, RotarySpec,
    RouterSpec, Scores, SharedSpec,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), Some(128));
    let f = intermediate_size(r, &s);
    let dense_width = r.size_or("intermediate_size_mlp", 16_384, FAMILY);
    let experts = r.size_or(["num_local_experts", "num_experts"], 16, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 1, FAMILY);
    let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let normed = r.flag("use_qk_norm", true);
    let sparse_layers = mixtures(r, s.l);
    let has_rope = rope_layers(r, s.l);
    let chunk = super::experts::size_or_off(r, "attention_chunk_size", 8192);
    r.known(&["layer_types", "attn_scale", "floor_scale", "for_llm_compressor"]);

    let mut plain = attention(&s, bias, bias);
    plain.narrow_softmax = true;
    plain.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut roped = plain.clone();
    roped.rotary =
        Some(RotarySpec { interleaved: true, form: RotaryForm::Complex, ..rotary(s.d, rope_theta(r, 500_000.0)) });
    if normed {
        roped.qk_norm = QkNorm::PerHead(NormSpec { kind: NormKind::RmsPlain, ..norm.clone() });
        roped.qk_norm_names = ["qk_norm", "qk_norm"];
        roped.qk_norm_place = QkNormPlace::Rotated;
    }
    roped.window = chunk;
    roped.chunked = true;
    let router = RouterSpec { name: "router", scores: Scores::SigmoidOfChosen, ..RouterSpec::default() };
    let shared = SharedSpec { mlp: gated_mlp(f, act, false), name: "shared_expert", gate: None };
    let mut moe = mixture(&counts, act, router, Some(shared));
    moe.layout = ExpertLayout::InOut;
    moe.everywhere = true;

    // Four kinds of layers at most, each described once.
    let kinds: Vec<Arc<LayerSpec>> = [(&plain, false), (&plain, true), (&roped, false), (&roped, true)]
        .into_iter()
        .map(|(attention, mixture)| {
            let mut layer = if mixture {
                sparse(attention.clone(), moe.clone(), pre_norm(&norm))
            } else {
                block(attention.clone(), gated_mlp(dense_width, act, false), pre_norm(&norm))
            };
            layer.names = LayerNames { feed_forward: "feed_forward", ..LayerNames::default() };
            Arc::new(layer)
        })
        .collect();
    let kind = |(&rope, &mixture): (&bool, &bool)| kinds[2 * usize::from(rope) + usize::from(mixture)].clone();
    let layers = has_rope.iter().zip(&sparse_layers).map(kind).collect();
    let mut spec = decoder(r, &s, layers, norm, tied);
    if let Some(chunk) = chunk {
        spec.not_modelled.push(format!(
            "attention in chunks of {chunk} tokens, counted as a window of as many: equal up to {chunk} tokens, beyond \
             them at most twice the pairs of those layers"
        ));
    }
    if r.flag("attn_temperature_tuning", true) {
        spec.not_modelled.push(
            "the factor of the queries that grows with their position in layers without rotation: elementwise, one \
             temporary as large as the queries of a layer"
                .to_owned(),
        );
    }
    router_extras(r, &mut spec.not_modelled);
    spec
}

/// Which layers have a mixture: those `moe_layers` lists, or every `interleave_moe_layer_step`th.
fn mixtures(r: &mut Reader<'_>, l: u64) -> Vec<bool> {
    let step = r.size_or("interleave_moe_layer_step", 1, FAMILY);
    match r.counts("moe_layers") {
        Some(listed) => (0..l).map(|i| listed.contains(&i)).collect(),
        None => (0..l).map(|i| (i + 1).is_multiple_of(step)).collect(),
    }
}

/// Which layers turn queries and keys: the key says "no rope" and its entries say 1 where there is one.
fn rope_layers(r: &mut Reader<'_>, l: u64) -> Vec<bool> {
    let interval = r.size_or("no_rope_layer_interval", 4, FAMILY);
    match r.counts("no_rope_layers").filter(|list| !list.is_empty()) {
        Some(list) => {
            r.require_len("no_rope_layers", list.len(), "num_hidden_layers", l);
            (0..l).map(|i| list.get(i as usize).is_none_or(|&on| on != 0)).collect()
        }
        None => (0..l).map(|i| !(i + 1).is_multiple_of(interval)).collect(),
    }
}
