//! MPT: linear position biases, norms without biases, no biases anywhere.

use super::common::{FAMILY, FREE, attention, block, decoder, equal, named, plain_mlp, sizes_under};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSteps, BlockForm, FusedOrder, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind,
    NormSpec, Projection,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let layers: [&str; 2] = ["n_layers", "num_hidden_layers"];
    let s = sizes_under(r, &["d_model", "hidden_size"], &layers, &["n_heads", "num_attention_heads"]);
    r.check_product("an MLP weight", &[("d_model", s.h), ("d_model", s.h), ("4", 4)]);
    let positions = r.size_or("max_seq_len", 2048, FAMILY);
    let norm =
        NormSpec { kind: NormKind::LayerNorm { bias: false }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let dropout = r.float_or("attn_config.attn_pdrop", 0.0, FAMILY);
    let clip = r.opt_float("attn_config.clip_qkv").filter(|c| *c > 0.0);
    deviations(r);

    let mut attention = attention(&s, false, false);
    attention.projection = Projection::Fused { qkv: LinearSpec::new("Wqkv", false), order: FusedOrder::Blocks };
    attention.out = LinearSpec::new("out_proj", false);
    attention.alibi = true;
    attention.clip_qkv = clip;
    if let Some(scale) = r.opt_float("attn_config.softmax_scale") {
        attention.scale = scale;
    }
    attention.steps = AttentionSteps::Mpt { positions };
    attention.dropout = dropout;
    let form = BlockForm::Sequential { n1: named("norm_1", &norm), n2: named("norm_2", &norm) };
    let mut layer = block(attention, plain_mlp(4 * s.h, Activation::Gelu, "up_proj", "down_proj", false), form);
    layer.names = LayerNames { attention: "attn", feed_forward: "ffn" };
    layer.dropout = dropout;
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.names =
        ModelNames { body: "transformer", embed: "wte", layers: "blocks", norm: "norm_f", ..ModelNames::default() };
    model.max_positions = Some(positions);
    model.has_sdpa = false;
    model
}

/// Keys of the original code that the reference reads and does not follow.
fn deviations(r: &mut Reader<'_>) {
    let ratio = r.size_or("expansion_ratio", 4, FAMILY);
    let kind = r.text_or("attn_config.attn_type", "multihead_attention", FAMILY);
    let (alibi, norms) = (r.flag("attn_config.alibi", true), r.flag("attn_config.qk_ln", false));
    let no_bias = r.flag("no_bias", true);
    let found = [
        ("expansion_ratio", ratio != 4, "transformers builds feed-forward parts four times as wide as the stream"),
        ("attn_config.attn_type", kind != "multihead_attention", "transformers gives every head its own keys"),
        ("attn_config.alibi", !alibi, "transformers always uses linear position biases, never learned positions"),
        ("attn_config.qk_ln", norms, "transformers builds no norms of queries and keys"),
        ("no_bias", !no_bias, "transformers builds no biases"),
    ];
    for (key, is, what) in found {
        if is {
            let effect = "counted as transformers builds the model";
            r.not_applied(key, format!("`{key}`: {what}"), effect, &format!("remove `{key}`"));
        }
    }
    r.known(&[
        "learned_pos_emb",
        "attn_config.attn_impl",
        "attn_config.prefix_lm",
        "attn_config.attn_uses_sequence_id",
    ]);
    r.known(&[
        "attn_config.alibi_bias_max",
        "embedding_fraction",
        "logit_scale",
        "norm_type",
        "verbose",
        "init_config",
    ]);
    r.known(&["emb_pdrop", "resid_pdrop", "attn_config", "init_device"]);
}
