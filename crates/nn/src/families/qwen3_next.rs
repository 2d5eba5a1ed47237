//! Qwen3-Next and Qwen3.5: gated delta networks in most blocks, attention with gated outputs in every fourth, mixtures or
//! dense feed-forward parts.

use super::common::Given;
use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, decoder, gated_mlp, heads, intermediate_size, layers_called,
    pre_norm, rope_theta, rotary, rotary_dim,
};
use super::experts::{counts, dense_by_step, extra_predictors, mixture, router_extras, sparse};
use crate::config::{Part, Reader};
use crate::spec::{
    Activation, ConvSpec, DeltaMaps, DeltaSpec, GateOrder, GatedNormSpec, LayerSpec, LinearSpec, Mixer, ModelSpec,
    MoeSpec, NormKind, NormSpec, QkNorm, RotaryJoin, RotarySpec, RouterSpec, SharedSpec,
};
use std::sync::Arc;

/// Keys of the heads of linear attention, and their defaults.
pub(super) struct DeltaDefaults {
    pub key_heads: u64,
    pub value_heads: u64,
    pub key_dim: u64,
    pub value_dim: u64,
}

/// Reads a gated delta network.
pub(super) fn delta(
    r: &mut Reader<'_>,
    h: u64,
    act: Activation,
    maps: DeltaMaps,
    defaults: &DeltaDefaults,
) -> DeltaSpec {
    let key_heads = r.size_or("linear_num_key_heads", defaults.key_heads, FAMILY);
    let value_heads = r.size_or("linear_num_value_heads", defaults.value_heads, FAMILY);
    let key_dim = r.size_or("linear_key_head_dim", defaults.key_dim, FAMILY);
    let value_dim = r.size_or("linear_value_head_dim", defaults.value_dim, FAMILY);
    r.require_divides(
        Part::new("linear_num_value_heads", value_heads, "heads of values"),
        Part::new("linear_num_key_heads", key_heads, "heads of queries and keys"),
        "each head of queries and keys serves an equal number of heads of values",
    );
    r.check_product(
        "the keys",
        &[("linear_num_key_heads", key_heads), ("linear_key_head_dim", key_dim), ("hidden_size", h)],
    );
    r.check_product(
        "the values",
        &[("linear_num_value_heads", value_heads), ("linear_value_head_dim", value_dim), ("hidden_size", h)],
    );
    DeltaSpec {
        maps,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        conv: ConvSpec {
            name: "conv1d",
            taps: r.size_or("linear_conv_kernel_dim", 4, FAMILY),
            bias: false,
            act: Some(act),
        },
        beta_scale: None,
        norm: GatedNormSpec {
            name: "norm",
            eps: 1e-6,
            groups: 1,
            order: GateOrder::LastNarrowWeight,
            act: Activation::Silu,
        },
        out: LinearSpec::new("out_proj", false),
        chunk: 64,
    }
}

/// Which blocks have attention: by `layer_types`, or every so many.
pub(super) fn attends(r: &mut Reader<'_>, l: u64, pattern: impl Fn(u64) -> bool) -> Vec<bool> {
    attends_by(r, ["layer_types"], l, pattern)
}

/// The same under other names of the list, by whichever words it has.
pub(super) fn attends_by<const N: usize>(
    r: &mut Reader<'_>,
    keys: [&'static str; N],
    l: u64,
    pattern: impl Fn(u64) -> bool,
) -> Vec<bool> {
    let (full, linear) = (["full_attention", "attention"], ["linear_attention", "mamba"]);
    layers_called(r, &keys, l, &full, &linear).unwrap_or_else(|| (0..l).map(pattern).collect())
}

/// What the versions read alike.
struct Base {
    s: Sizes,
    act: Activation,
    norm: NormSpec,
    attention: Mixer,
    delta: Mixer,
    attends: Vec<bool>,
}

fn base(r: &mut Reader<'_>, kv_heads: u64, maps: DeltaMaps) -> Base {
    let (h, l, a) = (r.size("hidden_size"), r.layers("num_hidden_layers"), r.size("num_attention_heads"));
    let v = r.size("vocab_size");
    let s = heads(r, &Given { h, l, a, v, k: Some(kv_heads), d: Some(256) });
    let act = activation(r, "hidden_act", "silu");
    let norm = NormSpec { kind: NormKind::RmsUnitOffset, eps: r.float_or("rms_norm_eps", 1e-6, FREE) };
    let bias = r.flag("attention_bias", false);
    let mut attention = attention(&s, bias, bias);
    attention.query_gate = true;
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    let turned = rotary_dim(r, s.d, 0.25);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary(turned, rope_theta(r, 10_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    // What transformers builds whatever they say.
    r.known(&["attn_output_gate", "mamba_ssm_dtype", "mtp_use_dedicated_embeddings", "rope_scaling"]);
    let defaults = DeltaDefaults { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };
    let mut delta = delta(r, h, act, maps, &defaults);
    delta.norm.eps = norm.eps;
    let every = r.count_or("full_attention_interval", 4, FAMILY).max(1);
    let attends = attends(r, l, |i| (i + 1).is_multiple_of(every));
    Base { s, act, norm, attention: attention.into(), delta: delta.into(), attends }
}

fn experts(r: &mut Reader<'_>, base: &Base, number: u64, top_k: u64) -> MoeSpec {
    let experts = r.size_or(["num_experts", "num_local_experts"], number, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", top_k, FAMILY);
    let f = r.size_or("moe_intermediate_size", 512, FAMILY);
    let counts = counts(r, base.s.h, ("num_experts", experts), top_k, ("moe_intermediate_size", f));
    let router = RouterSpec {
        name: "gate",
        normalise: r.flag("norm_topk_prob", true),
        narrow_weights: true,
        ..RouterSpec::default()
    };
    let shared = r.size_or("shared_expert_intermediate_size", 512, FAMILY);
    r.check_product("the shared expert", &[("shared_expert_intermediate_size", shared), ("hidden_size", base.s.h)]);
    let shared =
        SharedSpec { mlp: gated_mlp(shared, base.act, false), name: "shared_expert", gate: Some("shared_expert_gate") };
    mixture(&counts, base.act, router, Some(shared))
}

impl Base {
    /// A block of each kind that is needed, described once, by whether it has attention and is dense.
    fn finish(self, r: &mut Reader<'_>, dense: Option<u64>, moe: Option<&MoeSpec>, is_dense: &[bool]) -> ModelSpec {
        let make = |attends: bool, dense_width: Option<u64>| {
            let some = super::common::attention(&self.s, false, false);
            let mut layer = match (dense_width, moe) {
                (None, Some(moe)) => sparse(some, moe.clone(), pre_norm(&self.norm)),
                (width, _) => block(some, gated_mlp(width.unwrap_or(1), self.act, false), pre_norm(&self.norm)),
            };
            layer.mixer = if attends { self.attention.clone() } else { self.delta.clone() };
            if !attends {
                layer.names.attention = "linear_attn";
            }
            Arc::new(layer)
        };
        let kinds: Vec<Arc<LayerSpec>> = [(false, false), (false, true), (true, false), (true, true)]
            .into_iter()
            .map(|(attends, is_dense)| make(attends, dense.filter(|_| is_dense)))
            .collect();
        let kind = |(attends, dense): (&bool, &bool)| kinds[2 * usize::from(*attends) + usize::from(*dense)].clone();
        let layers: Vec<Arc<LayerSpec>> = self.attends.iter().zip(is_dense).map(kind).collect();
        let predictor = kinds[2 + usize::from(moe.is_none())].clone();
        let tied = r.flag("tie_word_embeddings", false);
        let mut spec = decoder(r, &self.s, layers, self.norm, tied);
        extra_predictors(r, ["mtp_num_hidden_layers", "num_nextn_predict_layers"], &mut spec, &predictor);
        router_extras(r, &mut spec.not_modelled);
        spec
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let base = base(r, 2, DeltaMaps::Fused);
    let moe = experts(r, &base, 512, 10);
    let is_dense = dense_by_step(r, base.s.l);
    let dense = if is_dense.contains(&true) {
        Some(intermediate_size(r, &base.s))
    } else {
        r.known(&["intermediate_size"]);
        None
    };
    base.finish(r, dense, Some(&moe), &is_dense)
}

/// Qwen3.5 with dense feed-forward parts.
pub(super) fn read_dense(r: &mut Reader<'_>) -> ModelSpec {
    let base = base(r, 4, DeltaMaps::Parts);
    let f = intermediate_size(r, &base.s);
    r.known(&["mlp_only_layers"]);
    let is_dense = vec![true; base.s.l as usize];
    base.finish(r, Some(f), None, &is_dense)
}

/// Qwen3.5 with mixtures.
pub(super) fn read_moe(r: &mut Reader<'_>) -> ModelSpec {
    let base = base(r, 2, DeltaMaps::Parts);
    let moe = experts(r, &base, 256, 8);
    r.known(&["mlp_only_layers", "intermediate_size"]);
    let is_dense = vec![false; base.s.l as usize];
    base.finish(r, None, Some(&moe), &is_dense)
}
