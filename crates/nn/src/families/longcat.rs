//! `LongCat`-Flash: two attentions and two dense feed-forward parts in a block, beside which a mixture runs whose router may
//! also choose experts that return their input.

use super::common::{FAMILY, FREE, block, decoder, equal, gated_mlp, named, rms};
use super::deepseek::{Base, Latent, base_under};
use super::experts::{counts, mixture, router_extras};
use crate::config::Reader;
use crate::spec::{
    BlockForm, Correction, LayerNames, LayerSpec, ModelSpec, Projection, RotaryForm, RouterSpec, Scores,
};
use std::sync::Arc;

const LATENT: Latent =
    Latent { q_rank: Some(1536), kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128, eps: 1e-5 };

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let mut base = base_under(r, &LATENT, "num_layers", &["ffn_hidden_size", "intermediate_size"]);
    let h = base.s.h;
    if let Some(rotary) = &mut base.attention.rotary {
        rotary.form = RotaryForm::Neighbours;
    }
    if let Projection::Latent(latent) = &mut base.attention.projection {
        latent.norm = rms(1e-6);
        let by = |rank: u64| (h as f64 / rank.max(1) as f64).sqrt();
        latent.scales = Some([by(latent.q_rank.unwrap_or(h)), by(latent.kv_rank)]);
    }
    let experts = r.size_or("n_routed_experts", 512, FAMILY);
    let zero = r.count_or("zero_expert_num", 256, FAMILY);
    let top_k = r.size_or(["moe_topk", "num_experts_per_tok"], 12, FAMILY);
    let f = r.size_or(["expert_ffn_hidden_size", "moe_intermediate_size"], 2048, FAMILY);
    let counts = counts(r, h, ("n_routed_experts", experts), top_k, ("expert_ffn_hidden_size", f));
    r.check_product(
        "the input weights of the experts",
        &[("zero_expert_num", zero.max(1)), ("expert_ffn_hidden_size", f), ("hidden_size", h)],
    );
    r.choice("zero_expert_type", &["identity"], FAMILY);
    r.choice("attention_method", &["MLA"], FAMILY);
    r.known(&["num_hidden_layers", "mla_scale_q_lora", "mla_scale_kv_lora"]);
    let router = RouterSpec {
        name: "router",
        inner: Some("classifier"),
        bias: r.flag("router_bias", false),
        scores: Scores::Softmax,
        f32_map: true,
        correction: Correction::Buffer("router.e_score_correction_bias"),
        scale: Some(r.float_or("routed_scaling_factor", 6.0, FREE)),
        ..RouterSpec::default()
    };
    let mut moe = mixture(&counts, base.act, router, None);
    moe.zero_experts = zero;

    let second = half(&base, ["input_layernorm.1", "post_attention_layernorm.1"], ["self_attn.1", "mlps.1"]);
    let mut first = half(&base, ["input_layernorm.0", "post_attention_layernorm.0"], ["self_attn.0", "mlps.0"]);
    if let BlockForm::Sequential { n1, n2 } = first.form.clone() {
        first.form = BlockForm::Shortcut { n1, n2, beside: Box::new(moe), name: "mlp", then: Arc::new(second) };
    }
    let tied = r.flag("tie_word_embeddings", false);
    let layers = equal(&base.s, first);
    let mut spec = decoder(r, &base.s, layers, base.norm, tied);
    if zero > 0 {
        let all = experts.saturating_add(zero);
        spec.not_modelled.push(format!(
            "how often the router chooses one of the {zero} experts that return their input, which costs nothing: all \
             {top_k} experts of a token are counted as ones with weights, the most there can be; with an even choice \
             {experts} of {all} are, and the work of routed experts is that part"
        ));
    }
    router_extras(r, &mut spec.not_modelled);
    spec
}

/// An attention and a dense feed-forward part under their names.
fn half(base: &Base, norms: [&'static str; 2], [attention, feed_forward]: [&'static str; 2]) -> LayerSpec {
    let form = BlockForm::Sequential { n1: named(norms[0], &base.norm), n2: named(norms[1], &base.norm) };
    let mut layer = block(base.attention.clone(), gated_mlp(base.f, base.act, false), form);
    layer.names = LayerNames { attention, feed_forward };
    layer
}
