//! DeBERTa V2 and V3: BERT whose scores may take distances from products with a table of relative positions.

use super::common::{FAMILY, FREE, activation, attention, block, equal, named, plain_mlp, plain_sizes};
use super::tasks::{self, Asked};
use crate::ParamKind;
use crate::config::Reader;
use crate::spec::{
    BlockForm, CountedSpec, EmbeddingSpec, HeadSpec, LayerNames, LinearSpec, MapSpec, ModelNames, ModelSpec, NormKind,
    NormSpec, Piece, PositionTable, Projection, Task, TypeTable,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = plain_sizes(r);
    let f = r.size("intermediate_size");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-7, FREE) };
    let positions = r.size_or("max_position_embeddings", 512, FAMILY);
    let kinds = r.count_or("type_vocab_size", 0, FAMILY);
    let placed = r.flag_or("position_biased_input", true, FAMILY);
    let width = r.opt_size("embedding_size").filter(|width| *width != s.h);
    let dropout = r.float_or("hidden_dropout_prob", 0.1, FAMILY);
    let asked = Asked::of(r);
    let tied = r.flag("tie_word_embeddings", true);
    r.known(&["legacy", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "conv_act"]);

    let mut attention = attention(&s, true, true);
    attention.projection = Projection::Separate {
        q: LinearSpec::new("self.query_proj", true),
        k: LinearSpec::new("self.key_proj", true),
        v: LinearSpec::new("self.value_proj", true),
    };
    attention.out = LinearSpec::new("output.dense", true);
    attention.causal = false;
    attention.narrow_softmax = true;
    attention.dropout = r.float_or("attention_probs_dropout_prob", 0.1, FAMILY);
    let (m1, m2) = (named("attention.output.LayerNorm", &norm), named("output.LayerNorm", &norm));
    let mlp = plain_mlp(f, act, "intermediate.dense", "output.dense", true);
    let mut layer = block(attention, mlp, BlockForm::PostResidual { m1, m2 });
    layer.names = LayerNames { attention: "attention", feed_forward: "" };
    layer.dropout = dropout;
    let relative = Relative::read(r, positions);
    layer.counted = relative.of_block(s.h);
    let embedding = EmbeddingSpec {
        width,
        projection: width.map(|_| LinearSpec::new("embeddings.embed_proj", false)),
        norm: Some(norm.clone()),
        norm_last: true,
        positions: placed.then_some(PositionTable::new("embeddings.position_embeddings", positions)),
        types: (kinds > 0).then(|| TypeTable::new("embeddings.token_type_embeddings", kinds)).into_iter().collect(),
        dropout,
        ..EmbeddingSpec::default()
    };
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.has_sdpa = false;
    model.max_positions = Some(positions);
    model.unused = relative.of_body(s.h);
    if let Some(span) = relative.span {
        model.not_modelled.push(format!(
            "scores against {} relative positions: their parameters are counted; the products with the table are at most \
             {} multiply-adds for each token, head and channel of a head beside those with the keys",
            2 * span,
            4 * span
        ));
    }
    model.names = ModelNames {
        body: if asked.has_head() { "deberta" } else { "" },
        embed: "embeddings.word_embeddings",
        layers: "encoder.layer",
        embed_norm: "embeddings.LayerNorm",
        head: "cls.predictions.decoder",
        ..ModelNames::default()
    };
    match asked {
        Asked::Hidden => {}
        Asked::MaskedTokens | Asked::Other => {
            model.task = Task::OwnToken;
            let (dense, behind) = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm");
            model.head = HeadSpec {
                tied,
                bias: true,
                bias_tie: Some("cls.predictions.bias"),
                narrow_loss: true,
                transform: tasks::transform(dense, behind, act, [s.h, width.unwrap_or(s.h)], &norm),
                ..HeadSpec::default()
            };
        }
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            model.head.transform = vec![
                Piece::First,
                MapSpec::piece("pooler.dense", true, s.h, s.h),
                Piece::Activation(act),
                Piece::Linear(MapSpec::head("classifier", true, s.h, classes)),
            ];
        }
    }
    asked.warn(r, &mut model);
    model
}

/// What a file says of relative positions and of the convolution beside the first block.
struct Relative {
    /// Distances on either side that have a row; none without relative attention.
    span: Option<u64>,
    /// Whether positions have projections of their own for keys, and for queries.
    own: [bool; 2],
    /// Whether the table has a norm.
    normed: bool,
    /// Positions the convolution spans, and its groups.
    conv: Option<[u64; 2]>,
}

impl Relative {
    fn read(r: &mut Reader<'_>, positions: u64) -> Self {
        let on = r.flag_or("relative_attention", false, FAMILY);
        r.known(&["max_relative_positions", "position_buckets"]);
        let listed = |key: &str| r.config().find(key).and_then(|found| found.value.to_string().parse::<i64>().ok());
        let above_zero = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        let (most, buckets) = (above_zero(listed("max_relative_positions")), above_zero(listed("position_buckets")));
        let span = buckets.or(most).unwrap_or(positions).min(crate::config::MAX_SIZE / 2);
        let kinds = r.config().find("pos_att_type").map(|found| found.value.to_string()).unwrap_or_default();
        let shared = r.flag_or("share_att_key", false, FAMILY);
        let normed = r.opt_text("norm_rel_ebd").is_some_and(|text| text.contains("layer_norm"));
        let conv = r.opt_count("conv_kernel_size").filter(|taps| *taps > 0);
        let groups = r.size_or("conv_groups", 1, FAMILY);
        r.known(&["pos_att_type"]);
        let own = [kinds.contains("c2p"), kinds.contains("p2c")].map(|asked| on && !shared && asked);
        Self { span: on.then_some(span), own, normed: on && normed, conv: conv.map(|taps| [taps, groups]) }
    }

    fn of_block(&self, h: u64) -> Vec<CountedSpec> {
        let names = [
            ["attention.self.pos_key_proj.weight", "attention.self.pos_key_proj.bias"],
            ["attention.self.pos_query_proj.weight", "attention.self.pos_query_proj.bias"],
        ];
        let maps = names.iter().zip(self.own).filter(|(_, own)| *own);
        maps.flat_map(|(names, _)| [CountedSpec::new(names[0], &[h, h]), CountedSpec::new(names[1], &[h])]).collect()
    }

    fn of_body(&self, h: u64) -> Vec<CountedSpec> {
        let mut all = Vec::new();
        if let Some(span) = self.span {
            let table = CountedSpec::new("encoder.rel_embeddings.weight", &[2 * span, h]);
            all.push(CountedSpec { kind: ParamKind::Embedding, ..table });
        }
        if self.normed {
            all.extend(["encoder.LayerNorm.weight", "encoder.LayerNorm.bias"].map(|name| CountedSpec::new(name, &[h])));
        }
        if let Some([taps, groups]) = self.conv {
            all.push(CountedSpec::new("encoder.conv.conv.weight", &[h, h / groups.max(1), taps]));
            let vectors = ["encoder.conv.conv.bias", "encoder.conv.LayerNorm.weight", "encoder.conv.LayerNorm.bias"];
            all.extend(vectors.map(|name| CountedSpec::new(name, &[h])));
        }
        all
    }
}
