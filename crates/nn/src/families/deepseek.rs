//! DeepSeek-V2 and V3, and Kimi K2, which is V3 by another name: latent attention, routed and shared experts, dense
//! first layers.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, decoder, gated_mlp, intermediate_size, pre_norm, rms,
    rope_theta, rotary,
};
use super::experts::{Counts, counts, extra_predictors, groups, mixed, mixture, router_extras, size_or_off, sparse};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, LatentSpec, LinearSpec, ModelSpec, NormSpec, Projection, RotaryForm, RotarySpec,
    RouterSpec, Scores, SharedSpec,
};
use std::rc::Rc;

/// What the two versions read alike.
struct Base {
    s: Sizes,
    f: u64,
    act: Activation,
    norm: NormSpec,
    attention: AttentionSpec,
}

/// Where the two versions differ if the file does not say.
struct Defaults {
    experts: u64,
    shared: u64,
    f: u64,
    dense: u64,
}

fn base(r: &mut Reader<'_>) -> Base {
    let (h, l, a) = (r.size("hidden_size"), r.layers("num_hidden_layers"), r.size("num_attention_heads"));
    let v = r.size("vocab_size");
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let latent = LatentSpec {
        q_rank: size_or_off(r, "q_lora_rank", 1536),
        kv_rank: r.size_or("kv_lora_rank", 512, FAMILY),
        nope_dim: r.size_or("qk_nope_head_dim", 128, FAMILY),
        rope_dim: r.size_or("qk_rope_head_dim", 64, FAMILY),
        norm: norm.clone(),
        bias: r.flag("attention_bias", false),
    };
    let d = latent.nope_dim.saturating_add(latent.rope_dim);
    let value_dim = r.size_or("v_head_dim", 128, FAMILY);
    let kv = r.size_or("num_key_value_heads", a, "equal to num_attention_heads");
    if kv != a {
        r.not_applied(
            "num_key_value_heads",
            format!("`num_key_value_heads` is {kv}, but latent attention makes keys and values for all {a} heads"),
            "every head has its own keys and values",
            "--set num_key_value_heads=null",
        );
    }
    // What a head holds follows from the sizes of its two parts.
    r.known(&["head_dim", "qk_head_dim"]);
    if r.opt_count("moe_layer_freq").is_some_and(|n| n != 1) {
        r.not_applied(
            "moe_layer_freq",
            "`moe_layer_freq` is not 1, and transformers' DeepSeek does not read it",
            "every layer after the dense first ones is a mixture",
            "--set moe_layer_freq=1",
        );
    }
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    r.check_product("the queries", &[("hidden_size", h), ("num_attention_heads", a), ("qk_nope_head_dim", d)]);
    r.check_product(
        "the values",
        &[("kv_lora_rank", latent.kv_rank), ("num_attention_heads", a), ("v_head_dim", value_dim)],
    );
    let s = Sizes { h, l, a, k: a, d, v };
    let f = intermediate_size(r, &s);
    let mut attention = attention(&s, false, false);
    attention.value_dim = value_dim;
    attention.out = LinearSpec::new("o_proj", latent.bias);
    attention.rotary = Some(RotarySpec { interleaved: true, ..rotary(latent.rope_dim, rope_theta(r, 10_000.0)) });
    attention.projection = Projection::Latent(latent);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    Base { s, f, act, norm, attention }
}

fn expert_counts(
    r: &mut Reader<'_>,
    h: u64,
    defaults: &Defaults,
    top_k: impl Fn(&mut Reader<'_>, u64) -> u64,
) -> Counts {
    let experts = r.size_or(["n_routed_experts", "num_experts", "num_local_experts"], defaults.experts, FAMILY);
    let top_k = top_k(r, experts);
    let f = r.size_or("moe_intermediate_size", defaults.f, FAMILY);
    counts(r, h, ("n_routed_experts", experts), top_k, ("moe_intermediate_size", f))
}

impl Base {
    fn finish(
        self,
        r: &mut Reader<'_>,
        counts: &Counts,
        router: RouterSpec,
        bias: bool,
        defaults: &Defaults,
    ) -> ModelSpec {
        let shared = r.size_or("n_shared_experts", defaults.shared, FAMILY);
        let width = r.check_product(
            "the inner width of the shared experts",
            &[("moe_intermediate_size", counts.f), ("n_shared_experts", shared)],
        );
        let shared = SharedSpec { mlp: gated_mlp(width, self.act, bias), name: "shared_experts", gate: None };
        let first = r.count_or("first_k_dense_replace", defaults.dense, FAMILY);
        let dense = block(self.attention.clone(), gated_mlp(self.f, self.act, bias), pre_norm(&self.norm));
        let sparse = sparse(self.attention, mixture(counts, self.act, router, Some(shared)), pre_norm(&self.norm));
        let sparse = Rc::new(sparse);
        let layers = mixed(self.s.l, dense, &sparse, |i| i < first);
        let tied = r.flag("tie_word_embeddings", false);
        let mut spec = decoder(r, &self.s, layers, self.norm, tied);
        extra_predictors(r, ["num_nextn_predict_layers", "num_mtp_layers"], &mut spec, &sparse);
        router_extras(r, &mut spec.not_modelled);
        spec
    }
}

pub(super) fn read_v2(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Defaults { experts: 64, shared: 2, f: 1407, dense: 0 };
    let mut base = base(r);
    if let Some(rotary) = &mut base.attention.rotary {
        rotary.form = RotaryForm::Complex;
    }
    // transformers has no default here: its own default model cannot run, and counts every expert as active.
    let counts = expert_counts(r, base.s.h, &defaults, |r, experts| {
        r.size_or("num_experts_per_tok", experts, "not given: every expert counts as active")
    });
    let limited = r.choice("topk_method", &["greedy", "group_limited_greedy"], FAMILY) == "group_limited_greedy";
    let (count, kept) = (r.opt_size("n_group"), r.opt_size("topk_group"));
    let groups = match (limited, count, kept) {
        (true, Some(count), Some(kept)) => Some(groups(r, &counts, count, kept)),
        (true, ..) => {
            r.reject(
                "topk_method",
                "group-limited routing needs `n_group` and `topk_group`",
                "how many groups there are is not said",
                "--set topk_method=greedy",
            );
            None
        }
        (false, ..) => None,
    };
    let bias = r.flag("mlp_bias", false);
    let router = RouterSpec {
        name: "gate",
        f32_map: true,
        groups,
        scale: Some(r.float_or("routed_scaling_factor", 1.0, FREE)),
        ..RouterSpec::default()
    };
    base.finish(r, &counts, router, bias, &defaults)
}

pub(super) fn read_v3(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Defaults { experts: 256, shared: 1, f: 2048, dense: 3 };
    let mut base = base(r);
    let interleaved = r.flag("rope_interleave", true);
    if let Some(rotary) = &mut base.attention.rotary {
        rotary.interleaved = interleaved;
        rotary.form = if interleaved { RotaryForm::Neighbours } else { RotaryForm::RotateHalf };
    }
    let counts = expert_counts(r, base.s.h, &defaults, |r, _| r.size_or("num_experts_per_tok", 8, FAMILY));
    let (count, kept) = (r.size_or("n_group", 8, FAMILY), r.size_or("topk_group", 4, FAMILY));
    let router = RouterSpec {
        name: "gate",
        scores: Scores::Sigmoid,
        f32_map: true,
        correction_bias: true,
        groups: Some(groups(r, &counts, count, kept)),
        normalise: r.flag("norm_topk_prob", true),
        scale: Some(r.float_or("routed_scaling_factor", 2.5, FREE)),
        ..RouterSpec::default()
    };
    r.known(&["topk_method"]);
    base.finish(r, &counts, router, false, &defaults)
}
