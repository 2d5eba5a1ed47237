//! BERT and its kin: attention in both directions, learned positions and kinds of tokens, norms behind the residuals.
//!
//! RoBERTa, XLM-RoBERTa and CamemBERT count positions from behind the padding id; ELECTRA and ALBERT embed in a width of
//! their own, and ALBERT's blocks share their weights.

use super::common::{FAMILY, FREE, Sizes, activation, attention, block, equal, named, plain_mlp, plain_sizes};
use super::tasks::{self, Asked};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, BlockForm, BufferSpec, EmbeddingSpec, HeadSpec, LayerNames, LayerSpec, LinearSpec,
    MapSpec, ModelNames, ModelSpec, NormKind, NormSpec, Piece, PositionTable, Projection, Task, TypeTable,
};
use tensor::DType;

/// Names of a family in the style of BERT.
struct Style {
    /// Module of the whole model below a head.
    prefix: &'static str,
    /// Body with a head, and without.
    bodies: [&'static str; 2],
    /// Whether the first position used is the one behind the padding id.
    offset: bool,
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    encoder(r, &Style { prefix: "bert", bodies: ["bert", ""], offset: false })
}

pub(super) fn read_roberta(r: &mut Reader<'_>) -> ModelSpec {
    encoder(r, &Style { prefix: "roberta", bodies: ["roberta", ""], offset: true })
}

pub(super) fn read_electra(r: &mut Reader<'_>) -> ModelSpec {
    encoder(r, &Style { prefix: "electra", bodies: ["electra", ""], offset: false })
}

/// Layer norm with weight and bias.
fn layer_norm(r: &mut Reader<'_>) -> NormSpec {
    NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-12, FREE) }
}

/// Attention in both directions with BERT's names and steps.
fn both_ways(r: &mut Reader<'_>, s: &Sizes, out: &'static str) -> AttentionSpec {
    let mut attention = attention(s, true, true);
    attention.projection = Projection::Separate {
        q: LinearSpec::new("self.query", true),
        k: LinearSpec::new("self.key", true),
        v: LinearSpec::new("self.value", true),
    };
    attention.out = LinearSpec::new(out, true);
    attention.causal = false;
    attention.narrow_softmax = true;
    attention.dropout = r.float_or("attention_probs_dropout_prob", 0.1, FAMILY);
    attention
}

/// Tables of tokens, kinds and positions, and their norm.
fn embedding(r: &mut Reader<'_>, norm: &NormSpec, offset: bool, width: Option<u64>) -> EmbeddingSpec {
    let count = r.size_or("max_position_embeddings", 512, FAMILY);
    let kinds = r.count_or("type_vocab_size", 2, FAMILY);
    let pad = if offset { r.count_or("pad_token_id", 1, FAMILY) + 1 } else { 0 };
    r.known(&["pad_token_id", "position_embedding_type"]);
    EmbeddingSpec {
        width,
        norm: Some(norm.clone()),
        positions: Some(PositionTable {
            offset: pad,
            per_sequence: offset,
            ..PositionTable::new("embeddings.position_embeddings", count.saturating_sub(pad).max(1))
        }),
        types: (kinds > 0).then_some(TypeTable { count: kinds, name: "embeddings.token_type_embeddings" }),
        dropout: r.float_or("hidden_dropout_prob", 0.1, FAMILY),
        ..EmbeddingSpec::default()
    }
}

fn encoder(r: &mut Reader<'_>, style: &Style) -> ModelSpec {
    let s = plain_sizes(r);
    let f = r.size("intermediate_size");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu");
    let norm = layer_norm(r);
    let electra = style.prefix == "electra";
    let width = electra.then(|| r.size_or("embedding_size", 128, FAMILY)).filter(|width| *width != s.h);
    let asked = Asked::of(r);
    tasks::refuse_decoder(r);

    let attention = both_ways(r, &s, "output.dense");
    let mut embedding = embedding(r, &norm, style.offset, width);
    if width.is_some() {
        embedding.projection = Some(LinearSpec::new("embeddings_project", true));
    }
    let mut layer = block(
        attention,
        plain_mlp(f, act, "intermediate.dense", "output.dense", true),
        BlockForm::PostResidual {
            m1: named("attention.output.LayerNorm", &norm),
            m2: named("output.LayerNorm", &norm),
        },
    );
    layer.names = LayerNames { attention: "attention", feed_forward: "" };
    layer.dropout = embedding.dropout;
    let tied = r.flag("tie_word_embeddings", true);
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.names = ModelNames {
        body: style.bodies[usize::from(!asked.has_head())],
        embed: "embeddings.word_embeddings",
        layers: "encoder.layer",
        embed_norm: "embeddings.LayerNorm",
        ..ModelNames::default()
    };
    model.buffers = id_buffers(&model, &["embeddings.position_ids", "embeddings.token_type_ids"]);
    let pooler = |name| vec![Piece::First, MapSpec::piece(name, true, s.h, s.h), Piece::Activation(Activation::Tanh)];
    let inner = width.unwrap_or(s.h);
    match asked {
        Asked::Hidden => {
            if !electra {
                model.pooler = pooler("pooler.dense");
            }
        }
        Asked::MaskedTokens | Asked::Other => {
            let (head, bias_tie, dense, behind) = match style.prefix {
                "bert" => (
                    "cls.predictions.decoder",
                    Some("cls.predictions.bias"),
                    "cls.predictions.transform.dense",
                    "cls.predictions.transform.LayerNorm",
                ),
                "electra" => {
                    ("generator_lm_head", None, "generator_predictions.dense", "generator_predictions.LayerNorm")
                }
                _ => ("lm_head.decoder", Some("lm_head.bias"), "lm_head.dense", "lm_head.layer_norm"),
            };
            // RoBERTa's head has GELU whatever the blocks have, ELECTRA's too.
            let act = if style.prefix == "bert" { act } else { Activation::Gelu };
            model.names.head = head;
            model.task = Task::OwnToken;
            model.head = HeadSpec {
                tied,
                bias: true,
                bias_tie,
                narrow_loss: true,
                transform: tasks::transform(dense, behind, act, [s.h, inner], &norm),
                ..HeadSpec::default()
            };
        }
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            model.head.absent = true;
            let dense = MapSpec::piece("classifier.dense", true, s.h, s.h);
            let out = |name| Piece::Linear(MapSpec::head(name, true, s.h, classes));
            model.head.transform = if style.prefix == "bert" {
                let mut all = pooler("bert.pooler.dense");
                all.push(out("classifier"));
                all
            } else {
                let act = if electra { Activation::Gelu } else { Activation::Tanh };
                vec![Piece::First, dense, Piece::Activation(act), out("classifier.out_proj")]
            };
        }
    }
    asked.warn(r, &mut model);
    model
}

/// Ids of positions and of kinds that the reference holds for all positions of the table.
pub(super) fn id_buffers(model: &ModelSpec, names: &[&'static str]) -> Vec<BufferSpec> {
    let rows = model.embedding.positions.as_ref().map_or(0, |p| p.count + p.offset);
    let buffer = |name: &&'static str| BufferSpec { name, shape: vec![1, rows], dtype: Some(DType::I64), count: 1 };
    names.iter().map(buffer).collect()
}

/// ALBERT: blocks in groups that share their weights, tokens embedded in a narrower width.
pub(super) fn read_albert(r: &mut Reader<'_>) -> ModelSpec {
    let s = plain_sizes(r);
    let f = r.size("intermediate_size");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu_new");
    let norm = layer_norm(r);
    let width = r.size_or("embedding_size", 128, FAMILY);
    let groups = r.size_or("num_hidden_groups", 1, FAMILY);
    let inner = r.size_or("inner_group_num", 1, FAMILY);
    let asked = Asked::of(r);
    let tied = r.flag("tie_word_embeddings", true);

    let mut attention = both_ways(r, &s, "dense");
    attention.projection = Projection::Separate {
        q: LinearSpec::new("query", true),
        k: LinearSpec::new("key", true),
        v: LinearSpec::new("value", true),
    };
    let mut embedding = embedding(r, &norm, false, Some(width));
    embedding.projection = Some(LinearSpec::new("encoder.embedding_hidden_mapping_in", true));
    let form =
        BlockForm::PostResidual { m1: named("attention.LayerNorm", &norm), m2: named("full_layer_layer_norm", &norm) };
    let mut layer: LayerSpec = block(attention, plain_mlp(f, act, "ffn", "ffn_output", true), form);
    layer.names = LayerNames { attention: "attention", feed_forward: "" };
    let (blocks, run) = (groups.saturating_mul(inner), s.l.saturating_mul(inner));
    let most = crate::config::MAX_LAYERS;
    if blocks.max(run) > most {
        r.reject(
            "inner_group_num",
            format!("{blocks} blocks, of which {run} run"),
            "a model has at most 1,024 blocks",
            "--set inner_group_num=1",
        );
    }
    let blocks = blocks.min(most);
    let mut model = tasks::model(&s, embedding, equal(&Sizes { l: blocks, ..s }, layer));
    // Layer i of the file runs all blocks of group i / (layers / groups).
    let group = |i: u64| (u128::from(i) * u128::from(groups) / u128::from(s.l.max(1))) as u64;
    let inner = inner.min(blocks);
    let of = |i: u64| (0..inner).map(move |j| (group(i) * inner + j).min(blocks.saturating_sub(1)) as usize);
    model.order = Some((0..s.l).flat_map(of).take(most as usize).collect());
    model.names = ModelNames {
        body: if asked.has_head() { "albert" } else { "" },
        embed: "embeddings.word_embeddings",
        layers: if inner == 1 { "encoder.albert_layer_groups" } else { "encoder.albert_layers" },
        embed_norm: "embeddings.LayerNorm",
        ..ModelNames::default()
    };
    model.buffers = id_buffers(&model, &["embeddings.position_ids", "embeddings.token_type_ids"]);
    let pooler = |name| vec![Piece::First, MapSpec::piece(name, true, s.h, s.h), Piece::Activation(Activation::Tanh)];
    match asked {
        Asked::Hidden => model.pooler = pooler("pooler"),
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            model.head.absent = true;
            model.head.transform = pooler("albert.pooler");
            model.head.transform.push(Piece::Linear(MapSpec::head("classifier", true, s.h, classes)));
        }
        Asked::MaskedTokens | Asked::Other => {
            model.task = Task::OwnToken;
            model.names.head = "predictions.decoder";
            model.head = HeadSpec {
                tied,
                bias: true,
                bias_tie: Some("predictions.bias"),
                narrow_loss: true,
                transform: tasks::transform("predictions.dense", "predictions.LayerNorm", act, [s.h, width], &norm),
                ..HeadSpec::default()
            };
        }
    }
    asked.warn(r, &mut model);
    model
}
