//! Encoders of BERT's form that turn queries and keys instead of adding positions: Nomic BERT, the third embedding model of
//! Jina, GTE.

use super::common::{
    FAMILY, FREE, activation, attention, block, equal, gated_mlp, named, plain_mlp, rope_theta, rotary,
};
use super::common::{head_dim, sizes_under};
use super::tasks::{self, Asked};
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, EmbeddingSpec, HeadSpec, LayerNames, MapSpec, ModelNames, ModelSpec, NormKind, NormSpec,
    Piece, Task, TypeTable,
};

/// How these differ.
struct Kin {
    /// Module of the body below a head.
    body: &'static str,
    /// Its pooler below a head, and whether the body alone has one.
    pooler: (&'static str, bool),
    /// Whether the maps of attention have biases.
    bias: bool,
    /// Whether the feed-forward part is gated; its last map has a bias where the others have none.
    gated: bool,
    /// Module names of the head: projection, a second name of its bias, map, norm.
    head: [&'static str; 4],
    /// What the file leaves out: activation, kinds of tokens, dropout of the stream and of attention.
    act: &'static str,
    kinds: u64,
    dropout: [f64; 2],
    theta: f64,
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let head = [
        "cls.predictions.decoder",
        "cls.predictions.bias",
        "cls.predictions.transform.dense",
        "cls.predictions.transform.layer_norm",
    ];
    family(
        r,
        &Kin {
            body: "nomic_bert",
            pooler: ("nomic_bert.pooler.dense", false),
            bias: false,
            gated: true,
            head,
            act: "silu",
            kinds: 2,
            dropout: [0.0, 0.0],
            theta: 1000.0,
        },
    )
}

const LM_HEAD: [&str; 4] = ["lm_head.decoder", "lm_head.bias", "lm_head.dense", "lm_head.layer_norm"];

pub(super) fn read_jina(r: &mut Reader<'_>) -> ModelSpec {
    family(
        r,
        &Kin {
            body: "roberta",
            pooler: ("", true),
            bias: true,
            gated: false,
            head: LM_HEAD,
            act: "gelu",
            kinds: 1,
            dropout: [0.1, 0.1],
            theta: 20_000.0,
        },
    )
}

pub(super) fn read_gte(r: &mut Reader<'_>) -> ModelSpec {
    let mut model = family(
        r,
        &Kin {
            body: "gte",
            pooler: ("gte.pooler.dense", false),
            bias: true,
            gated: true,
            head: LM_HEAD,
            act: "gelu",
            kinds: 1,
            dropout: [0.1, 0.0],
            theta: 160_000.0,
        },
    );
    model.head.bias_tie = None;
    model
}

fn family(r: &mut Reader<'_>, kin: &Kin) -> ModelSpec {
    let mut s = sizes_under(r, &["hidden_size"], &["num_hidden_layers"], &["num_attention_heads"]);
    s.d = head_dim(r, s.h, s.a);
    let f = r.size("intermediate_size");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", kin.act);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-12, FREE) };
    let kinds = r.count_or("type_vocab_size", kin.kinds, FAMILY);
    let dropout = r.float_or("hidden_dropout_prob", kin.dropout[0], FAMILY);
    let tied = r.flag("tie_word_embeddings", true);
    let theta = rope_theta(r, kin.theta);
    let asked = Asked::of(r);

    let mut attention = attention(&s, kin.bias, kin.bias);
    attention.causal = false;
    attention.narrow_softmax = true;
    attention.rotary = Some(rotary(s.d, theta));
    attention.dropout = r.float_or("attention_probs_dropout_prob", kin.dropout[1], FAMILY);
    let mlp = if kin.gated {
        let mut mlp = gated_mlp(f, act, false);
        mlp.down.bias = kin.bias;
        mlp.dropout = if kin.bias { dropout } else { 0.0 };
        mlp
    } else {
        plain_mlp(f, act, "fc1", "fc2", true)
    };
    let (m1, m2) = (named("post_attention_layernorm", &norm), named("post_mlp_layernorm", &norm));
    let mut layer = block(attention, mlp, BlockForm::PostResidual { m1, m2 });
    layer.names = LayerNames::default();
    layer.dropout = dropout;
    let embedding = EmbeddingSpec {
        norm: Some(norm.clone()),
        types: (kinds > 0).then(|| TypeTable::new("embeddings.token_type_embeddings", kinds)).into_iter().collect(),
        dropout,
        ..EmbeddingSpec::default()
    };
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.max_positions = r.opt_size("max_position_embeddings");
    model.names = ModelNames {
        body: if asked.has_head() { kin.body } else { "" },
        embed: "embeddings.word_embeddings",
        embed_norm: "embeddings.LayerNorm",
        ..ModelNames::default()
    };
    let pooler = |name| vec![Piece::First, MapSpec::piece(name, true, s.h, s.h), Piece::Activation(Activation::Tanh)];
    match asked {
        Asked::Hidden => {
            if kin.pooler.1 {
                model.pooler = pooler("pooler.dense");
            }
        }
        Asked::MaskedTokens | Asked::Other => {
            let [head, bias_tie, dense, behind] = kin.head;
            let act = if kin.pooler.0 == "nomic_bert.pooler.dense" { act } else { Activation::Gelu };
            model.task = Task::OwnToken;
            model.names.head = head;
            model.head = HeadSpec {
                tied,
                bias: true,
                bias_tie: Some(bias_tie),
                narrow_loss: true,
                transform: tasks::transform(dense, behind, act, [s.h, s.h], &norm),
                ..HeadSpec::default()
            };
        }
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            model.head.transform = if kin.pooler.0.is_empty() {
                let dense = MapSpec::piece("classifier.dense", true, s.h, s.h);
                let out = MapSpec::head("classifier.out_proj", true, s.h, classes);
                vec![Piece::First, dense, Piece::Activation(Activation::Tanh), Piece::Linear(out)]
            } else {
                let mut all = pooler(kin.pooler.0);
                all.push(Piece::Linear(MapSpec::head("classifier", true, s.h, classes)));
                all
            };
        }
    }
    asked.warn(r, &mut model);
    model
}
