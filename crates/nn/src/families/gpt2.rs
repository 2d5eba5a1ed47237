//! GPT-2: learned positions, layer norm, one fused projection with transposed weights.

use super::common::Sizes;
use super::common::{activation, attention, named};
use crate::config::{Part, Reader};
use crate::spec::{
    BlockForm, EmbeddingSpec, FeedForwardSpec, FusedOrder, HeadSpec, LayerNames, LayerSpec, LinearSpec, MlpInput,
    MlpSpec, ModelNames, ModelSpec, NormKind, NormSpec, PositionTable, Projection,
};
use std::rc::Rc;

/// GPT-2's `Conv1D`: a linear map whose weight lies as `(in out)`.
pub(super) const fn conv1d(name: &'static str) -> LinearSpec {
    LinearSpec { name, bias: true, transposed: true, loose: false }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let h = r.size(["n_embd", "hidden_size"]);
    let l = r.layers(["n_layer", "num_hidden_layers"]);
    let a = r.size(["n_head", "num_attention_heads"]);
    let v = r.size("vocab_size");
    let positions = r.size(["n_positions", "n_ctx", "max_position_embeddings"]);
    r.require_divides(
        Part::new("n_embd", h, "wide"),
        Part::new("n_head", a, "heads"),
        "each head gets n_embd / n_head",
    );
    let f = r.size_or("n_inner", 4 * h, "4 x n_embd");
    r.check_product("the embedding table", &[("vocab_size", v), ("n_embd", h)]);
    r.check_product("an MLP weight", &[("n_embd", h), ("n_inner", f)]);
    let act = activation(r, "activation_function", "gelu_new");
    let eps = r.float_or("layer_norm_epsilon", 1e-5, "the default of the family; changes no cost");
    let tied = r.flag("tie_word_embeddings", true);
    let (embd, attn, resid) = (
        r.float_or("embd_pdrop", 0.1, "the default of the family"),
        r.float_or("attn_pdrop", 0.1, "the default of the family"),
        r.float_or("resid_pdrop", 0.1, "the default of the family"),
    );
    r.known(&["n_ctx", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"]);
    r.known(&[
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ]);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps };

    let sizes = Sizes { h, l, a, k: a, d: (h / a.max(1)).max(1), v };
    let mut attention = attention(&sizes, true, true);
    attention.projection = Projection::Fused { qkv: conv1d("c_attn"), order: FusedOrder::Blocks };
    attention.out = conv1d("c_proj");
    attention.dropout = attn;
    attention.narrow_softmax = true;
    let layer = Rc::new(LayerSpec {
        names: LayerNames { attention: "attn", feed_forward: "mlp" },
        dropout: resid,
        ..LayerSpec::new(
            attention,
            FeedForwardSpec::Mlp(MlpSpec::new(f, act, MlpInput::Plain(conv1d("c_fc")), conv1d("c_proj"))),
            BlockForm::Sequential { n1: named("ln_1", &norm), n2: named("ln_2", &norm) },
        )
    });
    ModelSpec {
        embedding: EmbeddingSpec {
            positions: Some(PositionTable::new("wpe", positions)),
            dropout: embd,
            ..EmbeddingSpec::default()
        },
        final_norm: Some(norm),
        head: HeadSpec { tied, ..HeadSpec::default() },
        names: ModelNames { body: "transformer", embed: "wte", layers: "h", norm: "ln_f", ..ModelNames::default() },
        max_positions: Some(positions),
        ..ModelSpec::new(h, v, vec![layer; l as usize])
    }
}
