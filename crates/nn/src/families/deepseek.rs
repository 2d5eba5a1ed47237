//! DeepSeek-V2 and V3, Kimi K2, which is V3 by another name, and GLM-4.7 Flash (`glm4_moe_lite`), which is V3 with other
//! sizes, as is Sarvam's, V3.2 and GLM-5, which choose the keys of each query: latent attention, routed and shared experts,
//! dense first layers. Youtu has the attention without the experts.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, decoder, equal, gated_mlp, pre_norm, rms, rope_theta, rotary,
};
use super::experts::{
    Counts, corrected, counts, dense_layers, extra_predictors, groups, mixed, mixture, router_extras, shared_experts,
    size_or_off, sparse,
};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, IndexerSpec, LatentSpec, LayerSpec, LinearSpec, ModelSpec, NormSpec, Projection,
    RotaryForm, RotarySpec, RouterSpec,
};
use std::sync::Arc;

/// What the versions read alike.
pub(super) struct Base {
    pub s: Sizes,
    pub f: u64,
    pub act: Activation,
    pub norm: NormSpec,
    pub attention: AttentionSpec,
}

/// Where the versions differ if the file does not say.
struct Defaults {
    latent: Latent,
    experts: u64,
    top_k: u64,
    shared: u64,
    f: u64,
    dense: u64,
    groups: u64,
    kept_groups: u64,
    scale: f64,
}

/// Sizes of latent attention if the file does not say.
pub(super) struct Latent {
    pub q_rank: Option<u64>,
    pub kv_rank: u64,
    pub nope_dim: u64,
    pub rope_dim: u64,
    pub value_dim: u64,
    pub eps: f64,
}

const V3: Defaults = Defaults {
    latent: Latent { q_rank: Some(1536), kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128, eps: 1e-6 },
    experts: 256,
    top_k: 8,
    shared: 1,
    f: 2048,
    dense: 3,
    groups: 8,
    kept_groups: 4,
    scale: 2.5,
};

pub(super) fn base(r: &mut Reader<'_>, defaults: &Latent) -> Base {
    base_under(r, defaults, "num_hidden_layers", &["intermediate_size"])
}

/// The same, with the keys of the number of layers and of the width of the dense feed-forward parts.
pub(super) fn base_under(r: &mut Reader<'_>, defaults: &Latent, layers: &str, width: &[&str]) -> Base {
    let (h, l, a) = (r.size("hidden_size"), r.layers(layers), r.size("num_attention_heads"));
    let v = r.size("vocab_size");
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", defaults.eps, FREE));
    let latent = LatentSpec {
        q_rank: match defaults.q_rank {
            Some(rank) => size_or_off(r, "q_lora_rank", rank),
            None => r.opt_size("q_lora_rank"),
        },
        kv_rank: r.size_or("kv_lora_rank", defaults.kv_rank, FAMILY),
        nope_dim: r.size_or("qk_nope_head_dim", defaults.nope_dim, FAMILY),
        rope_dim: r.size_or("qk_rope_head_dim", defaults.rope_dim, FAMILY),
        norm: norm.clone(),
        bias: r.flag("attention_bias", false),
        indexer: None,
        scales: None,
    };
    let d = latent.nope_dim.saturating_add(latent.rope_dim);
    let value_dim = r.size_or("v_head_dim", defaults.value_dim, FAMILY);
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
    let f = r.size(width);
    r.check_product("an MLP weight", &[("hidden_size", h), (width[0], f)]);
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
        let shared = shared_experts(r, counts, ("n_shared_experts", shared), self.act, bias);
        let dense_layers = dense_layers(r, self.s.l, defaults.dense);
        let dense = block(self.attention.clone(), gated_mlp(self.f, self.act, bias), pre_norm(&self.norm));
        let sparse = sparse(self.attention, mixture(counts, self.act, router, Some(shared)), pre_norm(&self.norm));
        let sparse = Arc::new(sparse);
        let layers = mixed(self.s.l, dense, &sparse, |i| dense_layers[i as usize]);
        let tied = r.flag("tie_word_embeddings", false);
        let mut spec = decoder(r, &self.s, layers, self.norm, tied);
        extra_predictors(r, ["num_nextn_predict_layers", "num_mtp_layers"], &mut spec, &sparse);
        router_extras(r, &mut spec.not_modelled);
        spec
    }
}

pub(super) fn read_v2(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Defaults { experts: 64, shared: 2, f: 1407, dense: 0, ..V3 };
    let mut base = base(r, &defaults.latent);
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
    third(r, &V3)
}

/// DeepSeek-V3.2: an indexer in every layer.
pub(super) fn read_v32(r: &mut Reader<'_>) -> ModelSpec {
    let mut model = third(r, &V3);
    let indexer = latent_indexer(r, &model, 64);
    index(&mut model, &indexer, |_| true);
    model
}

/// GLM-5: an indexer in every layer, or in those that `indexer_types` or a schedule names.
pub(super) fn read_glm_dsa(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Defaults {
        latent: Latent { q_rank: Some(2048), nope_dim: 192, value_dim: 256, eps: 1e-5, ..V3.latent },
        groups: 1,
        kept_groups: 1,
        ..V3
    };
    r.known(&["pretraining_tp", "indexer_rope_interleave"]);
    let mut model = third(r, &defaults);
    let indexer = latent_indexer(r, &model, 32);
    let period = r.count_or("index_topk_freq", 1, FREE).max(1);
    let offset = r.count_or("index_skip_topk_offset", 2, FREE);
    let listed = r.texts("indexer_types");
    let letters = r.opt_text("index_topk_pattern");
    let full = |i: u64| match (&listed, &letters) {
        (Some(types), _) => types.get(i as usize).is_none_or(|t| t == "full"),
        (None, Some(letters)) => letters.as_bytes().get(i as usize).is_none_or(|&c| c == b'F'),
        (None, None) => (i + 1).saturating_sub(offset).is_multiple_of(period),
    };
    index(&mut model, &indexer, full);
    model
}

/// The indexer of latent attention, whose rotary channels are those of the attention itself.
fn latent_indexer(r: &mut Reader<'_>, model: &ModelSpec, heads: u64) -> IndexerSpec {
    let turned =
        model.layers.first().and_then(|layer| layer.attention()?.rotary.as_ref()).map_or(0, |turned| turned.dim);
    indexer(r, heads, 2048, turned)
}

/// What chooses `top_k` keys, or blocks of them, with so many heads where the config does not say; `turned` channels of each
/// of its heads are turned.
pub(super) fn indexer(r: &mut Reader<'_>, heads: u64, top_k: u64, turned: u64) -> IndexerSpec {
    let spec = IndexerSpec {
        heads: r.size_or("index_n_heads", heads, FAMILY),
        head_dim: r.size_or("index_head_dim", 128, FAMILY),
        top_k: r.size_or("index_topk", top_k, FAMILY),
    };
    r.check_product("the queries of the indexer", &[("index_n_heads", spec.heads), ("index_head_dim", spec.head_dim)]);
    if spec.head_dim <= turned {
        r.reject(
            "index_head_dim",
            format!("`index_head_dim` is {}, of which {turned} channels are to be turned", spec.head_dim),
            "a head of the indexer holds the turned channels and others",
            "--set index_head_dim=128",
        );
    }
    spec
}

/// Gives the layers that `full` names an indexer.
fn index(model: &mut ModelSpec, spec: &IndexerSpec, full: impl Fn(u64) -> bool) {
    let mut done: Vec<(Arc<LayerSpec>, Arc<LayerSpec>)> = Vec::new();
    for (layer, _) in model.layers.iter_mut().zip(0..).filter(|(_, i)| full(*i)) {
        let same = done.iter().find(|(plain, _)| Arc::ptr_eq(plain, layer)).map(|(_, indexed)| indexed.clone());
        let indexed = same.unwrap_or_else(|| {
            let mut indexed = (**layer).clone();
            if let Some(Projection::Latent(latent)) = indexed.attention_mut().map(|a| &mut a.projection) {
                latent.indexer = Some(spec.clone());
            }
            let indexed = Arc::new(indexed);
            done.push((layer.clone(), indexed.clone()));
            indexed
        });
        *layer = indexed;
    }
    model.not_modelled.push(format!(
        "the mask of the keys that the indexer leaves out beyond {} tokens: their scores are computed, as in transformers, and \
         count; a kernel that skips them does less",
        spec.top_k
    ));
}

pub(super) fn read_glm4_lite(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Defaults {
        latent: Latent { q_rank: Some(768), nope_dim: 192, value_dim: 256, eps: 1e-5, ..V3.latent },
        experts: 64,
        top_k: 4,
        f: 1536,
        dense: 1,
        groups: 1,
        kept_groups: 1,
        scale: 1.8,
        ..V3
    };
    r.known(&["pretraining_tp"]);
    third(r, &defaults)
}

pub(super) fn read_sarvam(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Defaults {
        latent: Latent { q_rank: None, ..V3.latent },
        experts: 128,
        dense: 1,
        groups: 1,
        kept_groups: 1,
        ..V3
    };
    r.known(&["pretraining_tp"]);
    third(r, &defaults)
}

pub(super) fn read_youtu(r: &mut Reader<'_>) -> ModelSpec {
    let base = third_base(r, &V3.latent);
    let layers = equal(&base.s, block(base.attention, gated_mlp(base.f, base.act, false), pre_norm(&base.norm)));
    let tied = r.flag("tie_word_embeddings", true);
    decoder(r, &base.s, layers, base.norm, tied)
}

/// What V3 and its descendants read first.
fn third_base(r: &mut Reader<'_>, latent: &Latent) -> Base {
    let mut base = base(r, latent);
    let interleaved = r.flag("rope_interleave", true);
    if let Some(rotary) = &mut base.attention.rotary {
        rotary.interleaved = interleaved;
        rotary.form = if interleaved { RotaryForm::Neighbours } else { RotaryForm::RotateHalf };
    }
    base
}

fn third(r: &mut Reader<'_>, defaults: &Defaults) -> ModelSpec {
    let base = third_base(r, &defaults.latent);
    let counts = expert_counts(r, base.s.h, defaults, |r, _| r.size_or("num_experts_per_tok", defaults.top_k, FAMILY));
    let (count, kept) =
        (r.size_or("n_group", defaults.groups, FAMILY), r.size_or("topk_group", defaults.kept_groups, FAMILY));
    let groups = groups(r, &counts, count, kept);
    let normalise = r.flag("norm_topk_prob", true);
    let router = corrected(groups, normalise, r.float_or("routed_scaling_factor", defaults.scale, FREE));
    r.known(&["topk_method"]);
    base.finish(r, &counts, router, false, defaults)
}
