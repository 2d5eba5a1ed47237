//! BERT and its kin: attention in both directions, learned positions and kinds of tokens, norms behind the residuals.
//!
//! RoBERTa, XLM-RoBERTa and CamemBERT count positions from behind the padding id; ELECTRA and ALBERT embed in a width of
//! their own, and ALBERT's blocks share their weights.

use super::classes::idle_attention;
use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, change_layers, equal, named, plain_mlp, plain_sizes, rotary,
};
use super::tasks::{self, Asked};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, BiasSource, BlockForm, BufferSpec, CountedSpec, EmbeddingSpec, HeadSpec, LayerNames,
    LayerSpec, LinearSpec, MapSpec, ModelNames, ModelSpec, NormKind, NormSpec, Piece, PositionTable, Projection,
    RelativeSpec, RotarySpec, Sequence, Task, TypeTable,
};
use tensor::DType;

/// How a family of this kind differs from BERT.
#[derive(Clone, Copy)]
pub(super) struct Kin {
    /// Module of the whole model below a head.
    pub body: &'static str,
    /// Whether the first position used is the one behind the padding id.
    pub offset: bool,
    /// Names of what stands behind the body.
    pub heads: Heads,
    /// Where norms stand.
    pub norms: Norms,
    /// Whether the embedded tokens are normalised.
    pub embed_norm: bool,
    /// Whether the reference has a fused-attention path.
    pub sdpa: bool,
    /// Activation where the file names none.
    pub act: &'static str,
    /// Kinds of tokens where the file does not say; none has none.
    pub kinds: u64,
    /// The width in which tokens are embedded, if that may differ from the stream's.
    pub narrow: Option<Narrow>,
    /// Whether the head is the table of tokens where the file does not say; `None`: never.
    pub tied: Option<bool>,
}

/// A width of embedded tokens that is mapped to the stream behind their norm.
#[derive(Clone, Copy)]
pub(super) struct Narrow {
    pub key: &'static str,
    /// Width where the file does not say; that of the stream if there is none.
    pub default: Option<u64>,
    /// Module name of the map.
    pub map: &'static str,
}

/// Heads by their names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// A map of the first position is the pooler; `cls.predictions`.
    Bert,
    /// Two maps classify; `generator_predictions`.
    Electra,
    /// Two maps classify; `lm_head`.
    Roberta,
    /// A projection to tokens alone.
    Bare,
}

/// Where the norms of a block stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    /// Behind the residuals.
    Behind,
    /// Before attention and before feed-forward, and one behind the last block, under these names.
    Before([&'static str; 3]),
}

const BERT: Kin = Kin {
    body: "bert",
    offset: false,
    heads: Heads::Bert,
    norms: Norms::Behind,
    embed_norm: true,
    sdpa: true,
    act: "gelu",
    kinds: 2,
    narrow: None,
    tied: Some(true),
};

pub(super) const ROBERTA: Kin = Kin { body: "roberta", offset: true, heads: Heads::Roberta, ..BERT };

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    encoder(r, BERT)
}

pub(super) fn read_roberta(r: &mut Reader<'_>) -> ModelSpec {
    encoder(r, ROBERTA)
}

pub(super) fn read_electra(r: &mut Reader<'_>) -> ModelSpec {
    let narrow = Some(Narrow { key: "embedding_size", default: Some(128), map: "embeddings_project" });
    encoder(r, Kin { body: "electra", heads: Heads::Electra, narrow, ..BERT })
}

/// ERNIE: tasks beside kinds of tokens, if `use_task_id` says so.
pub(super) fn read_ernie(r: &mut Reader<'_>) -> ModelSpec {
    let tasks = r.flag_or("use_task_id", false, FAMILY).then(|| r.size_or("task_type_vocab_size", 3, FAMILY));
    r.known(&["task_type_vocab_size"]);
    let mut model = encoder(r, Kin { body: "ernie", ..BERT });
    model.embedding.types.extend(tasks.map(|count| TypeTable::new("embeddings.task_type_embeddings", count)));
    model
}

pub(super) fn read_data2vec_text(r: &mut Reader<'_>) -> ModelSpec {
    encoder(r, Kin { body: "data2vec_text", ..ROBERTA })
}

pub(super) fn read_megatron(r: &mut Reader<'_>) -> ModelSpec {
    let norms = Norms::Before(["attention.ln", "ln", "encoder.ln"]);
    encoder(r, Kin { norms, embed_norm: false, sdpa: false, ..BERT })
}

pub(super) fn read_roberta_prelayernorm(r: &mut Reader<'_>) -> ModelSpec {
    let norms = Norms::Before(["attention.LayerNorm", "intermediate.LayerNorm", "LayerNorm"]);
    encoder(r, Kin { body: "roberta_prelayernorm", norms, ..ROBERTA })
}

pub(super) fn read_xlm_roberta_xl(r: &mut Reader<'_>) -> ModelSpec {
    let norms = Norms::Before(["attention.self_attn_layer_norm", "LayerNorm", "encoder.LayerNorm"]);
    let mut model = encoder(r, Kin { norms, embed_norm: false, kinds: 1, ..ROBERTA });
    change_layers(&mut model.layers, |layer| layer.feeds_whole = true);
    model
}

/// I-BERT before it is quantised, which is how it is trained: RoBERTa.
pub(super) fn read_ibert(r: &mut Reader<'_>) -> ModelSpec {
    if r.flag_or("quant_mode", false, FAMILY) {
        r.not_applied(
            "quant_mode",
            "`quant_mode` is true: weights and activations are rounded to integers at every use",
            "counted as if nothing is rounded",
            "--set quant_mode=false",
        );
    }
    r.known(&["force_dequant"]);
    let mut model = encoder(r, Kin { body: "ibert", sdpa: false, ..ROBERTA });
    model.not_modelled.push(
        "copies of weights and biases in integers with their scales, buffers that are kept for quantisation: about the bytes \
         of the parameters once more"
            .to_owned(),
    );
    model
}

/// `LayoutLM`: places on a page beside places in the text.
pub(super) fn read_layoutlm(r: &mut Reader<'_>) -> ModelSpec {
    let places = r.size_or("max_2d_position_embeddings", 1024, FAMILY);
    let mut model = encoder(r, Kin { body: "layoutlm", ..BERT });
    // Left and right, upper and lower edge of each token; its height and width.
    let table = |name, reads| TypeTable { reads, ..TypeTable::new(name, places) };
    let edges = [
        table("embeddings.x_position_embeddings", 2),
        table("embeddings.y_position_embeddings", 2),
        table("embeddings.h_position_embeddings", 1),
        table("embeddings.w_position_embeddings", 1),
    ];
    model.embedding.types.splice(0..0, edges);
    if !model.head.absent {
        // Computed below the head of tokens too, and read by nothing.
        model.pooler = pooler("layoutlm.pooler.dense", model.hidden_size);
    }
    model
}

/// The encoder of BERT as a part of models that generate: no kinds of tokens, no pooler, a projection to tokens alone.
pub(super) fn read_generation(r: &mut Reader<'_>) -> ModelSpec {
    encoder(r, Kin { heads: Heads::Bare, kinds: 0, ..BERT })
}

/// `RoFormer`: queries and keys are turned, neighbours being a pair.
pub(super) fn read_roformer(r: &mut Reader<'_>) -> ModelSpec {
    if r.flag_or("rotary_value", false, FAMILY) {
        r.not_applied(
            "rotary_value",
            "`rotary_value` is true: values are turned too",
            "counted as if they are not: elementwise work on them is missing",
            "--set rotary_value=false",
        );
    }
    let narrow = Some(Narrow { key: "embedding_size", default: None, map: "embeddings_project" });
    let mut model = encoder(r, Kin { body: "roformer", sdpa: false, narrow, ..BERT });
    let (h, table) = (model.hidden_size, model.embedding.positions.take());
    let d = model.layers.first().and_then(|layer| layer.attention()).map_or(1, |attention| attention.head_dim);
    // A table of sines that no gradient trains is a parameter all the same.
    let table = CountedSpec::new("encoder.embed_positions.weight", &[table.map_or(1, |table| table.count), d]);
    model.unused.push(CountedSpec { frozen: true, kind: crate::ParamKind::Embedding, ..table });
    model.buffers.clear();
    model.pooler.clear();
    change_layers(&mut model.layers, |layer| {
        if let Some(attention) = layer.attention_mut() {
            attention.rotary = Some(RotarySpec { interleaved: true, ..rotary(d, 10_000.0) });
        }
    });
    if let Task::Classes(classes) = model.task {
        model.head.transform = two_maps(activation(r, "hidden_act", "gelu"), h, classes);
    }
    model
}

/// `RemBERT`: tokens come in and go out in widths of their own.
pub(super) fn read_rembert(r: &mut Reader<'_>) -> ModelSpec {
    let map = "encoder.embedding_hidden_mapping_in";
    let narrow = Some(Narrow { key: "input_embedding_size", default: Some(256), map });
    let out = r.size_or("output_embedding_size", 1664, FAMILY);
    let mut model = encoder(r, Kin { body: "rembert", sdpa: false, narrow, tied: None, ..BERT });
    let h = model.hidden_size;
    if model.embedding.projection.is_none() {
        // The map is there where both widths are the same.
        model.embedding.projection = Some(LinearSpec::new(map, true));
    }
    if !model.head.absent {
        let (act, norm) = (activation(r, "hidden_act", "gelu"), layer_norm(r));
        let names = ["cls.predictions.dense", "cls.predictions.LayerNorm"];
        model.head.transform = tasks::transform(names[0], names[1], act, [h, out], &norm);
        model.head.width = Some(out);
        model.head.bias_tie = None;
    }
    r.known(&["classifier_dropout_prob"]);
    model
}

/// `MPNet`: trained position biases for all blocks, beside trained positions.
pub(super) fn read_mpnet(r: &mut Reader<'_>) -> ModelSpec {
    let mut model = encoder(r, Kin { body: "mpnet", sdpa: false, kinds: 0, ..ROBERTA });
    let relative = RelativeSpec {
        buckets: r.size_or("relative_attention_num_buckets", 32, FAMILY),
        max_distance: 128,
        from: BiasSource::Beside,
    };
    change_layers(&mut model.layers, |layer| {
        if let BlockForm::PostResidual { m1, .. } = &mut layer.form {
            m1.name = "attention.LayerNorm";
        }
        if let Some(attention) = layer.attention_mut() {
            let map = |name| LinearSpec::new(name, true);
            attention.projection = Projection::Separate { q: map("attn.q"), k: map("attn.k"), v: map("attn.v") };
            attention.out = map("attn.o");
            attention.relative = Some(relative);
        }
    });
    model
}

/// Classes from the first position by two maps.
fn two_maps(act: Activation, h: u64, classes: u64) -> Sequence {
    let dense = MapSpec::piece("classifier.dense", true, h, h);
    let out = Piece::Linear(MapSpec::head("classifier.out_proj", true, h, classes));
    vec![Piece::First, dense, Piece::Activation(act), out]
}

/// `BigBird`: each block of positions sees a few others, unless a text is so short that all are seen.
pub(super) fn read_big_bird(r: &mut Reader<'_>) -> ModelSpec {
    let sparse = r.choice("attention_type", &["block_sparse", "original_full"], FAMILY) == "block_sparse";
    let block = r.size_or("block_size", 64, FAMILY);
    let random = r.count_or("num_random_blocks", 3, FAMILY);
    let scaled = r.flag_or("rescale_embeddings", false, FAMILY);
    let biased = r.flag_or("use_bias", true, FAMILY);
    let mut model = encoder(r, Kin { sdpa: false, act: "gelu_new", ..BERT });
    let h = model.hidden_size;
    model.embedding.scale = scaled.then(|| (h as f64).sqrt());
    change_layers(&mut model.layers, |layer| {
        let projection = layer.attention_mut().map(|attention| &mut attention.projection);
        if let (Some(Projection::Separate { q, k, v }), false) = (projection, biased) {
            for map in [q, k, v] {
                map.bias = false;
            }
        }
    });
    // Computed below every head, and read by none.
    model.pooler = pooler(if model.names.body.is_empty() { "pooler" } else { "bert.pooler" }, h);
    if let Task::Classes(classes) = model.task {
        model.head.transform = two_maps(activation(r, "hidden_act", "gelu_new"), h, classes);
    }
    if sparse {
        let longest = random.saturating_mul(2).saturating_add(5).saturating_mul(block);
        model.not_modelled.push(format!(
            "block-sparse attention, which texts of more than {longest} tokens have: each token is counted as attending to all"
        ));
    }
    model
}

/// The first position through a map and tanh.
fn pooler(name: &'static str, h: u64) -> Sequence {
    vec![Piece::First, MapSpec::piece(name, true, h, h), Piece::Activation(Activation::Tanh)]
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
fn embedding(r: &mut Reader<'_>, norm: &NormSpec, offset: bool, width: Option<u64>, kinds: u64) -> EmbeddingSpec {
    let count = r.size_or("max_position_embeddings", 512, FAMILY);
    let kinds = if kinds > 0 { r.count_or("type_vocab_size", kinds, FAMILY) } else { 0 };
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
        types: (kinds > 0).then(|| TypeTable::new("embeddings.token_type_embeddings", kinds)).into_iter().collect(),
        dropout: r.float_or("hidden_dropout_prob", 0.1, FAMILY),
        ..EmbeddingSpec::default()
    }
}

pub(super) fn encoder(r: &mut Reader<'_>, kin: Kin) -> ModelSpec {
    let s = plain_sizes(r);
    let f = r.size("intermediate_size");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", kin.act);
    let norm = layer_norm(r);
    let electra = kin.heads == Heads::Electra;
    let narrow = kin.narrow.map(|one| (r.size_or(one.key, one.default.unwrap_or(s.h), FAMILY), one.map));
    let narrow = narrow.filter(|(width, _)| *width != s.h);
    let width = narrow.map(|(width, _)| width);
    let asked = Asked::of(r);

    let mut attention = both_ways(r, &s, "output.dense");
    attention.causal = r.flag("is_decoder", false);
    let mut embedding = embedding(r, &norm, kin.offset, width, kin.kinds);
    embedding.norm = embedding.norm.filter(|_| kin.embed_norm);
    embedding.projection = narrow.map(|(_, map)| LinearSpec::new(map, true));
    let form = match kin.norms {
        Norms::Behind => BlockForm::PostResidual {
            m1: named("attention.output.LayerNorm", &norm),
            m2: named("output.LayerNorm", &norm),
        },
        Norms::Before([first, second, _]) => {
            BlockForm::Sequential { n1: named(first, &norm), n2: named(second, &norm) }
        }
    };
    let mut layer = block(attention, plain_mlp(f, act, "intermediate.dense", "output.dense", true), form);
    layer.names = LayerNames { attention: "attention", feed_forward: "" };
    layer.dropout = embedding.dropout;
    layer.counted = idle_cross(r, s.h, kin.norms);
    r.known(&["tie_word_embeddings"]);
    let tied = kin.tied.is_some_and(|default| r.flag("tie_word_embeddings", default));
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.has_sdpa = kin.sdpa;
    model.names = ModelNames {
        body: if asked.has_head() { kin.body } else { "" },
        embed: "embeddings.word_embeddings",
        layers: "encoder.layer",
        embed_norm: "embeddings.LayerNorm",
        ..ModelNames::default()
    };
    if let Norms::Before([_, _, last]) = kin.norms {
        model.names.norm = last;
        model.final_norm = Some(norm.clone());
    }
    // Those without a fused path, and those without kinds of tokens, make the ids of kinds anew.
    let kept = ["embeddings.position_ids", "embeddings.token_type_ids"];
    let kinds = kin.sdpa && !model.embedding.types.is_empty();
    model.buffers = id_buffers(&model, if kinds { &kept } else { &kept[..1] });
    let inner = width.unwrap_or(s.h);
    match asked {
        Asked::Hidden => {
            if !electra && kin.heads != Heads::Bare {
                model.pooler = pooler("pooler.dense", s.h);
            }
        }
        Asked::MaskedTokens | Asked::Other => {
            let (head, bias_tie, dense, behind) = match kin.heads {
                Heads::Bert => (
                    "cls.predictions.decoder",
                    Some("cls.predictions.bias"),
                    "cls.predictions.transform.dense",
                    "cls.predictions.transform.LayerNorm",
                ),
                Heads::Electra => {
                    ("generator_lm_head", None, "generator_predictions.dense", "generator_predictions.LayerNorm")
                }
                Heads::Roberta | Heads::Bare => {
                    ("lm_head.decoder", Some("lm_head.bias"), "lm_head.dense", "lm_head.layer_norm")
                }
            };
            // RoBERTa's head has GELU whatever the blocks have, ELECTRA's too.
            let act = if kin.heads == Heads::Bert { act } else { Activation::Gelu };
            let transform = tasks::transform(dense, behind, act, [s.h, inner], &norm);
            model.names.head = head;
            // Where a class predicts the next token, the file says whether it sees those behind it.
            let next = asked == Asked::Other && tasks::names_language_model(r);
            model.task = if next { Task::NextToken } else { Task::OwnToken };
            model.head = HeadSpec {
                tied,
                bias: true,
                bias_tie,
                narrow_loss: !next,
                transform: if kin.heads == Heads::Bare { Vec::new() } else { transform },
                ..HeadSpec::default()
            };
            if next {
                return model;
            }
        }
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            model.head.absent = true;
            model.head.transform = if kin.heads == Heads::Bert {
                let mut all = pooler(pooler_of(kin.body), s.h);
                all.push(Piece::Linear(MapSpec::head("classifier", true, s.h, classes)));
                all
            } else {
                two_maps(if electra { Activation::Gelu } else { Activation::Tanh }, s.h, classes)
            };
        }
    }
    asked.warn(r, &mut model);
    model
}

/// Name of the pooler below a head.
fn pooler_of(body: &str) -> &'static str {
    match body {
        "ernie" => "ernie.pooler.dense",
        "layoutlm" => "layoutlm.pooler.dense",
        "rembert" => "rembert.pooler.dense",
        _ => "bert.pooler.dense",
    }
}

/// Attention to another model, which `add_cross_attention` adds to each block of a decoder and nothing here runs.
fn idle_cross(r: &mut Reader<'_>, h: u64, norms: Norms) -> Vec<CountedSpec> {
    if !r.flag("add_cross_attention", false) {
        return Vec::new();
    }
    r.not_applied(
        "add_cross_attention",
        "`add_cross_attention` makes each block attend to another model, which this file does not describe",
        "its parameters are counted, and nothing runs them",
        "--set add_cross_attention=false",
    );
    let maps = [
        ["crossattention.self.query.weight", "crossattention.self.query.bias"],
        ["crossattention.self.key.weight", "crossattention.self.key.bias"],
        ["crossattention.self.value.weight", "crossattention.self.value.bias"],
        ["crossattention.output.dense.weight", "crossattention.output.dense.bias"],
    ];
    let norm = match norms {
        Norms::Behind => ["crossattention.output.LayerNorm.weight", "crossattention.output.LayerNorm.bias"],
        Norms::Before(["attention.ln", ..]) => ["crossattention.ln.weight", "crossattention.ln.bias"],
        Norms::Before(["attention.LayerNorm", ..]) => {
            ["crossattention.LayerNorm.weight", "crossattention.LayerNorm.bias"]
        }
        Norms::Before(_) => ["crossattention.self_attn_layer_norm.weight", "crossattention.self_attn_layer_norm.bias"],
    };
    idle_attention(h, maps.map(|names| (names, true, h)), norm)
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
    let mut embedding = embedding(r, &norm, false, Some(width), 2);
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
    match asked {
        Asked::Hidden => model.pooler = pooler("pooler", s.h),
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            model.head.absent = true;
            model.head.transform = pooler("albert.pooler", s.h);
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
