//! Qwen 2 and 3 with experts: dense layers by list or by step; Qwen 2 adds a shared expert behind a sigmoid gate. Mellum is
//! Qwen 3 with a window in the layers that its file names.

use super::common::{
    FAMILY, FREE, Sizes, activation, alternate, attention, block, decoder, gated_mlp, intermediate_size, layers_called,
    pre_norm, rms, rope_theta, rotary, sizes_or, sliding, window,
};
use super::experts::{counts, dense_by_step, extra_predictors, mixed, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, LayerSpec, LinearSpec, ModelSpec, MoeSpec, NormSpec, QkNorm, RotarySpec, RouterSpec,
    SharedSpec,
};
use std::sync::Arc;

/// What both read alike.
struct Base {
    s: Sizes,
    act: Activation,
    norm: NormSpec,
    /// Inner width of dense layers.
    dense: u64,
    /// Which layers are dense.
    is_dense: Vec<bool>,
}

/// Experts and their number per token where the file does not say.
struct Defaults {
    kv_heads: u64,
    experts: u64,
    top_k: u64,
    f: u64,
    normalise: bool,
}

fn base(r: &mut Reader<'_>, defaults: &Defaults, is_dense: fn(&mut Reader<'_>, u64) -> Vec<bool>) -> (Base, MoeSpec) {
    let s = sizes_or(r, Some(defaults.kv_heads), None);
    let dense = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let experts = r.size_or(["num_experts", "num_local_experts"], defaults.experts, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", defaults.top_k, FAMILY);
    let f = r.size_or("moe_intermediate_size", defaults.f, FAMILY);
    let counts = counts(r, s.h, ("num_experts", experts), top_k, ("moe_intermediate_size", f));
    let router = RouterSpec {
        name: "gate",
        normalise: r.flag("norm_topk_prob", defaults.normalise),
        narrow_weights: true,
        ..RouterSpec::default()
    };
    let is_dense = is_dense(r, s.l);
    (Base { s, act, norm, dense, is_dense }, mixture(&counts, act, router, None))
}

impl Base {
    fn layers(&self, attention: &AttentionSpec, moe: &MoeSpec) -> (LayerSpec, LayerSpec) {
        let dense = block(attention.clone(), gated_mlp(self.dense, self.act, false), pre_norm(&self.norm));
        (dense, sparse(attention.clone(), moe.clone(), pre_norm(&self.norm)))
    }

    fn finish(self, r: &mut Reader<'_>, layers: Vec<Arc<LayerSpec>>) -> ModelSpec {
        let tied = r.flag("tie_word_embeddings", false);
        let mut spec = decoder(r, &self.s, layers, self.norm, tied);
        router_extras(r, &mut spec.not_modelled);
        spec
    }
}

pub(super) fn read_qwen2(r: &mut Reader<'_>) -> ModelSpec {
    let (base, mut moe) =
        base(r, &Defaults { kv_heads: 16, experts: 60, top_k: 4, f: 1408, normalise: false }, dense_by_step);
    let s = &base.s;
    let shared = r.size_or("shared_expert_intermediate_size", 5632, FAMILY);
    r.check_product("the shared expert", &[("shared_expert_intermediate_size", shared), ("hidden_size", s.h)]);
    moe.shared = Some(SharedSpec {
        mlp: gated_mlp(shared, base.act, false),
        name: "shared_expert",
        gate: Some("shared_expert_gate"),
    });
    let mut attention = attention(s, r.flag("qkv_bias", true), false);
    attention.out = LinearSpec::new("o_proj", false);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let on = r.flag("use_sliding_window", false);
    let window = window(r, Some(4096)).filter(|_| on);
    let last = r.count_or("max_window_layers", 28, FAMILY);
    let slides = sliding(r, s.l, |i| window.is_some() && i.is_multiple_of(2) && i < last);
    attention.spare_mask = !slides.contains(&true);
    let (dense, sparse) = base.layers(&attention, &moe);
    attention.window = window;
    let (dense_window, sparse_window) = base.layers(&attention, &moe);
    let plain = mixed(s.l, dense, &Arc::new(sparse), |i| base.is_dense[i as usize]);
    let windowed = mixed(s.l, dense_window, &Arc::new(sparse_window), |i| base.is_dense[i as usize]);
    let layers = slides.iter().zip(plain.into_iter().zip(windowed)).map(|(&w, (p, q))| if w { q } else { p }).collect();
    base.finish(r, layers)
}

const QWEN3: Defaults = Defaults { kv_heads: 4, experts: 128, top_k: 8, f: 768, normalise: false };

pub(super) fn read_mellum(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Defaults { experts: 64, f: 896, normalise: true, ..QWEN3 };
    let listed = |r: &mut Reader<'_>, l| {
        layers_called(r, &["mlp_layer_types"], l, &["dense"], &["sparse"]).unwrap_or_else(|| vec![false; l as usize])
    };
    let (base, moe) = base(r, &defaults, listed);
    let bias = r.flag("attention_bias", false);
    let mut attention = attention(&base.s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(base.norm.clone());
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    r.known(&["rope_parameters", "mtp_layer_types", "mtp_mlp_layer_types"]);
    let window = window(r, Some(1024));
    let slides = sliding(r, base.s.l, |_| false);
    // Each kind of layer has a table of its own.
    attention.rotary = Some(rotary(base.s.d, 500_000.0));
    let (dense, sparse) = base.layers(&attention, &moe);
    attention.rotary = Some(RotarySpec { table: 1, ..rotary(base.s.d, 10_000.0) });
    attention.window = window;
    let (dense_window, sparse_window) = base.layers(&attention, &moe);
    let sparse = Arc::new(sparse);
    let plain = mixed(base.s.l, dense, &sparse, |i| base.is_dense[i as usize]);
    let windowed = mixed(base.s.l, dense_window, &Arc::new(sparse_window), |i| base.is_dense[i as usize]);
    let layers = slides.iter().zip(plain.into_iter().zip(windowed)).map(|(&w, (p, q))| if w { q } else { p }).collect();
    let mut spec = base.finish(r, layers);
    extra_predictors(r, ["num_nextn_predict_layers", "num_mtp_layers"], &mut spec, &sparse);
    spec
}

pub(super) fn read_qwen3(r: &mut Reader<'_>) -> ModelSpec {
    let (base, moe) = base(r, &QWEN3, dense_by_step);
    let bias = r.flag("attention_bias", false);
    let mut attention = attention(&base.s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(base.norm.clone());
    attention.rotary = Some(rotary(base.s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let on = r.flag("use_sliding_window", false);
    attention.window = window(r, Some(4096)).filter(|_| on);
    r.known(&["max_window_layers"]);
    let (dense, sparse) = base.layers(&attention, &moe);
    let layers = alternate(&base.is_dense, sparse, dense);
    base.finish(r, layers)
}
