//! LFM 2: gated short convolutions in most blocks, attention in some; dense or with mixtures.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, intermediate_size, layers_called, named, rms, rope_theta,
    rotary, sizes_or,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, ConvSpec, Correction, LayerNames, LayerSpec, LinearSpec, MlpInput, MlpSpec, ModelNames,
    ModelSpec, QkNorm, RouterSpec, Scores, ShortConvSpec,
};
use std::sync::Arc;

/// Inner width as the model class adjusts it.
fn adjusted(r: &mut Reader<'_>, stated: u64) -> u64 {
    let multiple = r.size_or("block_multiple_of", 256, FAMILY);
    let factor = r.opt_float("block_ffn_dim_multiplier").or_else(|| {
        let nulled = super::common::is_null(r, "block_ffn_dim_multiplier");
        (!nulled).then_some(1.0)
    });
    if !r.flag("block_auto_adjust_ff_dim", true) {
        return stated;
    }
    let two_thirds = (2.0 * stated as f64 / 3.0) as u64;
    match factor {
        Some(factor) => {
            ((factor * two_thirds as f64) as u64).max(1).checked_next_multiple_of(multiple).unwrap_or(u64::MAX)
        }
        None => two_thirds.max(1),
    }
}

fn mlp(f: u64) -> MlpSpec {
    MlpSpec::new(
        f,
        Activation::Silu,
        MlpInput::Gated { gate: LinearSpec::new("w1", false), up: LinearSpec::new("w3", false) },
        LinearSpec::new("w2", false),
    )
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, false)
}

pub(super) fn read_moe(r: &mut Reader<'_>) -> ModelSpec {
    model(r, true)
}

fn model(r: &mut Reader<'_>, routes: bool) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let stated = if r.has("block_ff_dim") { r.size("block_ff_dim") } else { intermediate_size(r, &s) };
    r.known(&["intermediate_size"]);
    let f = if routes { stated } else { adjusted(r, stated) };
    let norm = rms(r.float_or(["norm_eps", "block_norm_eps"], 1e-5, FREE));
    let tied = r.flag(["tie_embedding", "tie_word_embeddings"], true);
    let mut attention = attention(&s, false, false);
    attention.out = LinearSpec::new("out_proj", false);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.qk_norm_names = ["q_layernorm", "k_layernorm"];
    attention.rotary = Some(rotary(s.d, rope_theta(r, 1_000_000.0)));
    let bias = r.flag("conv_bias", false);
    let conv = ShortConvSpec {
        conv: ConvSpec { name: "conv", taps: r.size_or("conv_L_cache", 3, FAMILY), bias, act: None },
        bias,
    };
    let attends = kinds(r, s.l, !routes);
    // Keys of the original code.
    r.known(&[
        "block_dim",
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_use_swiglu",
        "block_use_xavier_init",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "use_pos_enc",
        "num_heads",
        "theta",
        "full_attn_idxs",
    ]);
    let form = BlockForm::Sequential { n1: named("operator_norm", &norm), n2: named("ffn_norm", &norm) };
    let dense_layers = if routes { r.count_or("num_dense_layers", 2, FAMILY) } else { s.l };
    let moe = routes.then(|| {
        let experts = r.size_or(["num_experts", "num_local_experts"], 32, FAMILY);
        let top_k = r.size_or("num_experts_per_tok", 4, FAMILY);
        let width = r.size_or("moe_intermediate_size", 1792, FAMILY);
        let counts = counts(r, s.h, ("num_experts", experts), top_k, ("moe_intermediate_size", width));
        let corrects = r.flag("use_expert_bias", true);
        let router = RouterSpec {
            name: "gate",
            scores: Scores::Sigmoid,
            correction: if corrects { Correction::Buffer("expert_bias") } else { Correction::None },
            normalise: r.flag("norm_topk_prob", true),
            scale: Some(r.float_or("routed_scaling_factor", 1.0, FREE)),
            narrow_weights: true,
            ..RouterSpec::default()
        };
        mixture(&counts, activation(r, "hidden_act", "silu"), router, None)
    });
    let make = |attends: bool, dense: bool| {
        let mut layer = match &moe {
            Some(moe) if !dense => sparse(attention.clone(), moe.clone(), form.clone()),
            _ => block(attention.clone(), mlp(f), form.clone()),
        };
        layer.names = LayerNames { attention: "self_attn", feed_forward: "feed_forward" };
        if !attends {
            layer.mixer = conv.clone().into();
            layer.names.attention = "conv";
        }
        Arc::new(layer)
    };
    let all: [Arc<LayerSpec>; 4] = [make(false, false), make(false, true), make(true, false), make(true, true)];
    let layers = attends
        .iter()
        .zip(0..)
        .map(|(&attends, i)| all[2 * usize::from(attends) + usize::from(i < dense_layers)].clone());
    let mut model = decoder(r, &s, layers.collect(), norm, tied);
    model.names = ModelNames { norm: "embedding_norm", ..ModelNames::default() };
    router_extras(r, &mut model.not_modelled);
    model
}

/// Which blocks have attention: by `layer_types`, or the indices that are listed; without either all.
fn kinds(r: &mut Reader<'_>, l: u64, indices: bool) -> Vec<bool> {
    if let Some(listed) = layers_called(r, &["layer_types"], l, &["full_attention"], &["conv"]) {
        return listed;
    }
    match r.counts("full_attn_idxs").filter(|_| indices) {
        Some(listed) => (0..l).map(|i| listed.contains(&i)).collect(),
        None => vec![true; l as usize],
    }
}
