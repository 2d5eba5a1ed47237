//! DistilBERT: BERT without kinds of tokens and without a pooler, under names of its own.

use super::common::{FAMILY, activation, attention, block, equal, named, plain_mlp, sizes_under};
use super::tasks::{self, Asked};
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, EmbeddingSpec, HeadSpec, LayerNames, LinearSpec, MapSpec, ModelNames, ModelSpec, NormKind,
    NormSpec, Piece, PositionForm, PositionTable, Projection, Task,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_under(
        r,
        &["dim", "hidden_size"],
        &["n_layers", "num_hidden_layers"],
        &["n_heads", "num_attention_heads"],
    );
    let f = r.size_or("hidden_dim", 4 * 768, FAMILY);
    r.check_product("an MLP weight", &[("dim", s.h), ("hidden_dim", f)]);
    let act = activation(r, "activation", "gelu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-12 };
    let dropout = r.float_or("dropout", 0.1, FAMILY);
    let positions = r.size_or("max_position_embeddings", 512, FAMILY);
    let sines = r.flag("sinusoidal_pos_embds", false);
    let asked = Asked::of(r);
    let tied = r.flag("tie_word_embeddings", true);

    let mut attention = attention(&s, true, true);
    attention.projection = Projection::Separate {
        q: LinearSpec::new("q_lin", true),
        k: LinearSpec::new("k_lin", true),
        v: LinearSpec::new("v_lin", true),
    };
    attention.out = LinearSpec::new("out_lin", true);
    attention.causal = false;
    attention.narrow_softmax = true;
    attention.dropout = r.float_or("attention_dropout", 0.1, FAMILY);
    let form = BlockForm::PostResidual { m1: named("sa_layer_norm", &norm), m2: named("output_layer_norm", &norm) };
    let mut layer = block(attention, plain_mlp(f, act, "lin1", "lin2", true), form);
    layer.names = LayerNames { attention: "attention", feed_forward: "ffn" };
    layer.dropout = dropout;
    let embedding = EmbeddingSpec {
        norm: Some(norm.clone()),
        positions: Some(PositionTable {
            trained: !sines,
            form: if sines { PositionForm::Frozen } else { PositionForm::Table },
            ..PositionTable::new("embeddings.position_embeddings", positions)
        }),
        dropout,
        ..EmbeddingSpec::default()
    };
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.names = ModelNames {
        body: if asked.has_head() { "distilbert" } else { "" },
        embed: "embeddings.word_embeddings",
        layers: "transformer.layer",
        embed_norm: "embeddings.LayerNorm",
        head: "vocab_projector",
        ..ModelNames::default()
    };
    model.buffers = super::bert::id_buffers(&model, &["embeddings.position_ids"]);
    match asked {
        Asked::Hidden => {}
        Asked::MaskedTokens | Asked::Other => {
            model.task = Task::OwnToken;
            model.head = HeadSpec {
                tied,
                bias: true,
                narrow_loss: true,
                transform: tasks::transform("vocab_transform", "vocab_layer_norm", act, [s.h, s.h], &norm),
                ..HeadSpec::default()
            };
        }
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            model.head.transform = vec![
                Piece::First,
                MapSpec::piece("pre_classifier", true, s.h, s.h),
                Piece::Activation(Activation::Relu),
                Piece::Linear(MapSpec::head("classifier", true, s.h, classes)),
            ];
        }
    }
    asked.warn(r, &mut model);
    model
}
