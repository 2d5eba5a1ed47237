//! CTRL: fixed sines and cosines of positions, norms before both parts, a tied head with a bias.

use super::common::{FAMILY, FREE, attention, block, decoder, equal, named, plain_mlp, sizes_under};
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, PositionForm,
    PositionTable, Projection,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let (width, layers, heads) =
        (["n_embd", "hidden_size"], ["n_layer", "num_hidden_layers"], ["n_head", "num_attention_heads"]);
    let s = sizes_under(r, &width, &layers, &heads);
    let f = r.size_or("dff", 8192, FAMILY);
    r.check_product("an MLP weight", &[("n_embd", s.h), ("dff", f)]);
    let positions = r.size_or(["n_positions", "n_ctx", "max_position_embeddings"], 256, FAMILY);
    let tied = r.flag("tie_word_embeddings", true);
    let dropout = r.float_or("resid_pdrop", 0.1, FAMILY);
    let embedded = r.float_or("embd_pdrop", 0.1, FAMILY);
    // Read by nothing: the norms of blocks have an epsilon of their own.
    r.known(&["attn_pdrop", "n_ctx"]);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-6 };
    let last = NormSpec { eps: r.float_or("layer_norm_epsilon", 1e-6, FREE), ..norm.clone() };
    let mut attention = attention(&s, true, true);
    attention.projection = Projection::Separate {
        q: LinearSpec::new("Wq", true),
        k: LinearSpec::new("Wk", true),
        v: LinearSpec::new("Wv", true),
    };
    attention.out = LinearSpec::new("dense", true);
    attention.narrow_softmax = true;
    let form = BlockForm::Sequential { n1: named("layernorm1", &norm), n2: named("layernorm2", &norm) };
    let mut layer = block(attention, plain_mlp(f, Activation::Relu, "0", "2", true), form);
    layer.names = LayerNames { attention: "multi_head_attention", feed_forward: "ffn" };
    layer.dropout = dropout;
    let mut model = decoder(r, &s, equal(&s, layer), last, tied);
    model.names =
        ModelNames { body: "transformer", embed: "w", layers: "h", norm: "layernorm", ..ModelNames::default() };
    model.embedding.scale = Some((s.h as f64).sqrt());
    model.embedding.positions = Some(PositionTable {
        trained: false,
        form: PositionForm::Pairs,
        ..PositionTable::new("pos_encoding", positions)
    });
    model.embedding.dropout = embedded;
    model.head.bias = true;
    model.max_positions = Some(positions);
    model
}
