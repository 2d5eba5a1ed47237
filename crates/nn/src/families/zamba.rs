//! Zamba and Zamba 2: state spaces in every block, in front of some a Transformer block whose weights all of these share.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, decoder, fused_mlp, gated_mlp, layers_called, named, rms, rope_theta,
    rotary,
};
use super::jamba;
use super::mamba;
use super::mamba2::{Keys, expanded, state_space};
use crate::config::{Part, Reader};
use crate::spec::{
    AttentionSpec, BlockForm, BranchSpec, FeedForwardSpec, HybridSpec, LayerNames, LayerSpec, LinearSpec, Mixer,
    MlpSpec, ModelNames, ModelSpec, NormSpec,
};
use std::sync::Arc;

const KEYS: Keys = Keys {
    heads: (&["n_mamba_heads"], 8),
    state: (&["mamba_d_state"], 64),
    groups: (&["mamba_ngroups"], 1),
    chunk: (&["chunk_size"], 256),
    taps: &["mamba_d_conv"],
    conv_bias: &[],
    bias: &["add_bias_linear"],
};

/// What both read alike.
struct Base {
    s: Sizes,
    norm: NormSpec,
    attention: AttentionSpec,
    tied: bool,
}

fn base(r: &mut Reader<'_>) -> Base {
    let (h, l, a) = (r.size("hidden_size"), r.layers("num_hidden_layers"), r.size("num_attention_heads"));
    let v = r.size("vocab_size");
    let k = r.size_or("num_key_value_heads", a, "equal to num_attention_heads");
    r.require_divides(
        Part::new("num_attention_heads", a, "query heads"),
        Part::new("num_key_value_heads", k, "key/value heads"),
        "each key/value head serves an equal number of query heads",
    );
    let d = r.size_or("attention_head_dim", (2 * h / a).max(1), "2 x hidden_size / num_attention_heads");
    if r.opt_size("attention_hidden_size").is_some_and(|width| width != 2 * h) {
        r.reject(
            "attention_hidden_size",
            format!("`attention_hidden_size` is not twice the width of the stream, {h}"),
            "the shared blocks read the stream beside the embedded tokens",
            &format!("--set attention_hidden_size={}", 2 * h),
        );
    }
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    r.check_product("the query projection", &[("hidden_size", 2 * h), ("num_attention_heads", a), ("head_dim", d)]);
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let s = Sizes { h, l, a, k, d, v };
    let mut attention = attention(&s, false, false);
    attention.out = LinearSpec::new("o_proj", false);
    // The queries meet keys of which half stems from the embedded tokens.
    attention.scale = (2.0 / d as f64).sqrt();
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    r.known(&[
        "num_logits_to_keep",
        "use_mamba_kernels",
        "use_conv_bias",
        "kv_channels",
        "num_query_groups",
        "ffn_hidden_size",
    ]);
    Base { s, norm, attention, tied: r.flag("tie_word_embeddings", true) }
}

/// Which blocks have a shared part: by `layers_block_type`, or as the family places them.
fn hybrids(r: &mut Reader<'_>, l: u64, place: impl Fn(u64) -> bool) -> Vec<bool> {
    let keys = ["layers_block_type", "layer_types"];
    let listed = layers_called(r, &keys, l, &["hybrid"], &["mamba", "linear_attention"]);
    listed.unwrap_or_else(|| (0..l).map(place).collect())
}

impl Base {
    fn finish(
        self,
        r: &mut Reader<'_>,
        hybrids: &[bool],
        sets: u64,
        shared: (&'static str, MlpSpec, Option<BranchSpec>),
        mamba: &Mixer,
    ) -> ModelSpec {
        let (name, mlp, branches) = shared;
        let plain = LayerSpec {
            names: LayerNames { attention: "mamba", feed_forward: "" },
            ..LayerSpec::new(
                mamba.clone(),
                FeedForwardSpec::None,
                BlockForm::Single { n: named("input_layernorm", &self.norm), wide: false },
            )
        };
        let plain = Arc::new(plain);
        let count = hybrids.iter().filter(|hybrid| **hybrid).count() as u64;
        let mut place = 0;
        let mut layers = Vec::new();
        for &hybrid in hybrids {
            if !hybrid {
                layers.push(plain.clone());
                continue;
            }
            let spec = HybridSpec {
                name,
                set: place % sets,
                place,
                places: (0..count).filter(|other| other % sets == place % sets).collect(),
                attention: self.attention.clone(),
                mlp: mlp.clone(),
                norm: self.norm.clone(),
                branches,
                mamba: Box::new(mamba.clone()),
            };
            layers.push(Arc::new(LayerSpec {
                mixer: Mixer::Hybrid(Box::new(spec)),
                form: BlockForm::Bare,
                names: LayerNames { attention: "", feed_forward: "" },
                ..(*plain).clone()
            }));
            place += 1;
        }
        let mut model = decoder(r, &self.s, layers, self.norm, self.tied);
        model.names = ModelNames { norm: "final_layernorm", ..ModelNames::default() };
        model
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let base = base(r);
    let f = r.size_or("intermediate_size", 14_848, FAMILY);
    r.check_product("an MLP weight", &[("hidden_size", base.s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu");
    let period = r.size_or("attn_layer_period", 6, FAMILY);
    let offset = r.count_or("attn_layer_offset", 4, FAMILY);
    let hybrids = hybrids(r, base.s.l, |i| i == 2 || (i > 2 && (i - 3) % period == offset));
    let mut mamba = mamba::state_space(r, base.s.h, &jamba::KEYS, "hidden_mamba_act");
    let heads = r.size_or("n_mamba_heads", 2, FAMILY);
    r.require_divides(
        Part::new("mamba_expand", mamba.inner, "inner channels"),
        Part::new("n_mamba_heads", heads, "heads"),
        "each head has an equal part of the channels",
    );
    mamba.heads = Some(heads);
    base.finish(r, &hybrids, 1, ("shared_transf", gated_mlp(f, act, false), None), &mamba.into())
}

pub(super) fn read_zamba2(r: &mut Reader<'_>) -> ModelSpec {
    let mut base = base(r);
    let h = base.s.h;
    let f = r.size_or("intermediate_size", h.saturating_mul(4), "4 x hidden_size");
    r.check_product("an MLP weight", &[("hidden_size", h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu");
    if r.flag("use_mem_rope", false) {
        base.attention.rotary = Some(rotary(base.s.d, rope_theta(r, 10_000.0)));
    }
    let bias = r.flag("add_bias_linear", false);
    let sets = r.size_or("num_mem_blocks", 1, FAMILY);
    let branches = BranchSpec {
        rank: r.size_or(["adapter_rank", "lora_rank"], 128, FAMILY),
        attention: r.flag("use_shared_attention_adapter", false),
    };
    if branches.attention && (base.s.k != base.s.a || base.s.a.saturating_mul(base.s.d) != 2 * h) {
        r.reject(
            "use_shared_attention_adapter",
            "the maps of low rank beside keys and values are as wide as the stream beside the embedded tokens",
            "they are added to what the shared maps make",
            "--set use_shared_attention_adapter=false",
        );
    }
    r.known(&[
        "use_shared_mlp_adapter",
        "use_long_context",
        "hybrid_layer_ids",
        "mamba_headdim",
        "use_conv_bias",
        "use_mem_eff_path",
    ]);
    let inner = expanded(r, h, "mamba_expand");
    let mut mamba = state_space(r, &KEYS, inner, &["mamba_headdim"], 1e-5);
    mamba.conv.bias = true;
    mamba.limits[0] = r.float_or("time_step_min", 0.001, FREE);
    let mlp = fused_mlp(f, act, bias);
    // Of 54 blocks the seventh, then every sixth to the 43rd, the 48th and the 52nd.
    let default = |i: u64| ((6..=42).contains(&i) && i.is_multiple_of(6)) || i == 47 || i == 51;
    let hybrids = hybrids(r, base.s.l, default);
    base.finish(r, &hybrids, sets, ("shared_transformer", mlp, Some(branches)), &mamba.into())
}
