//! Kimi Linear: delta networks with a decay for every channel, latent attention without positions in every fourth block,
//! DeepSeek-V3's mixtures.

use super::common::{FAMILY, FREE, block, decoder, gated_mlp, pre_norm};
use super::deepseek::{Latent, base};
use super::experts::{
    corrected, counts, dense_layers, extra_predictors, groups, mixture, router_extras, shared_experts, sparse,
};
use super::qwen3_next::attends;
use crate::config::Reader;
use crate::spec::{
    Activation, ConvSpec, DeltaMaps, DeltaSpec, GateOrder, GatedNormSpec, LinearSpec, ModelSpec, NormSpec, Projection,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let defaults = Latent { q_rank: None, kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128, eps: 1e-5 };
    let mut base = base(r, &defaults);
    base.attention.rotary = None;
    if let Projection::Latent(latent) = &mut base.attention.projection {
        // The norms of the compressed streams keep the default of their class.
        latent.norm = NormSpec { eps: 1e-6, ..latent.norm.clone() };
    }
    let (h, l) = (base.s.h, base.s.l);
    let heads = r.size_or(["linear_attn_config.num_heads", "linear_num_heads"], 32, FAMILY);
    let d = r.size_or(["linear_attn_config.head_dim", "linear_head_dim"], 128, FAMILY);
    let taps = r.size_or(["linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"], 4, FAMILY);
    r.check_product("the keys", &[("linear_num_heads", heads), ("linear_head_dim", d), ("hidden_size", h)]);
    let delta = DeltaSpec {
        maps: DeltaMaps::PerChannel,
        key_heads: heads,
        value_heads: heads,
        key_dim: d,
        value_dim: d,
        conv: ConvSpec { name: "conv1d", taps, bias: false, act: Some(base.act) },
        beta_scale: None,
        norm: GatedNormSpec {
            name: "o_norm",
            eps: base.norm.eps,
            groups: 1,
            order: GateOrder::Last,
            act: Activation::Sigmoid,
        },
        out: LinearSpec::new("o_proj", false),
        chunk: 64,
    };
    // The lists of released files count from one.
    let listed = r.counts("linear_attn_config.full_attn_layers");
    r.known(&["linear_attn_config.kda_layers", "linear_attn_config"]);
    let full = attends(r, l, |i| match &listed {
        Some(listed) => listed.contains(&(i + 1)),
        None => i > 0 && i % 4 == 0,
    });

    let experts = r.size_or(["num_local_experts", "num_experts", "n_routed_experts"], 256, FAMILY);
    let top_k = r.size_or(["num_experts_per_tok", "num_experts_per_token"], 8, FAMILY);
    let f = r.size_or("moe_intermediate_size", 1024, FAMILY);
    let counts = counts(r, h, ("num_local_experts", experts), top_k, ("moe_intermediate_size", f));
    let count = r.size_or(["n_group", "num_expert_group"], 1, FAMILY);
    let kept = r.size_or("topk_group", 1, FAMILY);
    let groups = groups(r, &counts, count, kept);
    let normalise = r.flag(["norm_topk_prob", "moe_renormalize"], true);
    let router = corrected(groups, normalise, r.float_or("routed_scaling_factor", 2.446, FREE));
    let shared = r.size_or(["n_shared_experts", "num_shared_experts"], 1, FAMILY);
    let shared = shared_experts(r, &counts, ("n_shared_experts", shared), base.act, false);
    let moe = mixture(&counts, base.act, router, Some(shared));
    let is_dense = dense_layers(r, l, 1);
    r.known(&["moe_router_activation_func", "use_grouped_topk", "mla_use_nope"]);

    let make = |attends: bool, dense: bool| {
        let attention = base.attention.clone();
        let mut layer = if dense {
            block(attention, gated_mlp(base.f, base.act, false), pre_norm(&base.norm))
        } else {
            sparse(attention, moe.clone(), pre_norm(&base.norm))
        };
        if !attends {
            layer.mixer = delta.clone().into();
        }
        Arc::new(layer)
    };
    let kinds = [make(false, false), make(false, true), make(true, false), make(true, true)];
    let kind = |(attends, dense): (&bool, &bool)| kinds[2 * usize::from(*attends) + usize::from(*dense)].clone();
    let layers = full.iter().zip(&is_dense).map(kind).collect();
    let tied = r.flag("tie_word_embeddings", false);
    let mut spec = decoder(r, &base.s, layers, base.norm.clone(), tied);
    extra_predictors(r, ["num_nextn_predict_layers", "num_mtp_layers"], &mut spec, &kinds[2]);
    router_extras(r, &mut spec.not_modelled);
    spec.not_modelled.push(
        "what transformers keeps of linear attention where no kernel is installed: products of all pairs of positions of a \
         chunk with all channels, 64 f32 for every channel of every token and block; counted as a kernel keeps it"
            .to_owned(),
    );
    spec
}
