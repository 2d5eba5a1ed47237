//! BLOOM: linear position biases, a norm behind the embedding, one fused projection picked apart per head.

use super::common::{FAMILY, FREE, attention, block, decoder, equal, named, plain_mlp, sizes_under};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSteps, BlockForm, FusedOrder, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind,
    NormSpec, Projection,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let layers: [&str; 2] = ["n_layer", "num_hidden_layers"];
    let s = sizes_under(r, &["hidden_size", "n_embed"], &layers, &["n_head", "num_attention_heads"]);
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("hidden_size", s.h), ("4", 4)]);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let normed = r.flag("apply_residual_connection_post_layernorm", false);
    r.known(&["offset_alibi", "seq_length", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv"]);
    r.known(&["attention_softmax_in_fp32", "n_inner", "unk_token_id"]);

    let mut attention = attention(&s, true, true);
    attention.projection =
        Projection::Fused { qkv: LinearSpec::new("query_key_value", true), order: FusedOrder::PickedPerHead };
    attention.out = LinearSpec::new("dense", true);
    attention.alibi = true;
    attention.steps = AttentionSteps::Bloom;
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let (n1, n2) = (named("input_layernorm", &norm), named("post_attention_layernorm", &norm));
    let form = if normed { BlockForm::Normed { n1, n2 } } else { BlockForm::Sequential { n1, n2 } };
    // Its GELU by tanh keeps its input alone, as the one-kernel form does.
    let mlp = plain_mlp(4 * s.h, Activation::GeluTanh, "dense_h_to_4h", "dense_4h_to_h", true);
    let mut layer = block(attention, mlp, form);
    layer.names = LayerNames { attention: "self_attention", feed_forward: "mlp" };
    layer.dropout = r.float_or("hidden_dropout", 0.0, FAMILY);
    let mut model = decoder(r, &s, equal(&s, layer), norm.clone(), tied);
    model.embedding.norm = Some(norm);
    model.names = ModelNames {
        body: "transformer",
        embed: "word_embeddings",
        embed_norm: "word_embeddings_layernorm",
        layers: "h",
        norm: "ln_f",
        ..ModelNames::default()
    };
    model.has_sdpa = false;
    model
}
