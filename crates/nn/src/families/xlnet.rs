//! `XLNet`: attention in both directions or a causal one, with scores for distances.

use super::common::{FAMILY, FREE, activation, named, plain_mlp, sizes_under};
use super::tasks::{self, Asked};
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, CountedSpec, DistanceSpec, EmbeddingSpec, FeedForwardSpec, HeadSpec, LayerNames, LayerSpec,
    MapSpec, ModelNames, ModelSpec, NormKind, NormSpec, Piece, Task,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_under(
        r,
        &["d_model", "hidden_size"],
        &["n_layer", "num_hidden_layers"],
        &["n_head", "num_attention_heads"],
    );
    let d = r.opt_size("d_head").unwrap_or(s.d);
    let f = r.size_or("d_inner", 4096, FAMILY);
    r.check_product("an attention projection", &[("d_model", s.h), ("n_head", s.a), ("d_head", d)]);
    r.check_product("an MLP weight", &[("d_model", s.h), ("d_inner", f)]);
    let act = activation(r, "ff_activation", "gelu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-12, FREE) };
    let dropout = r.float_or("dropout", 0.1, FAMILY);
    let causal = r.choice("attn_type", &["bi", "uni"], FAMILY) == "uni";
    let clamp = r.config().find("clamp_len").and_then(|found| found.value.to_string().parse::<i64>().ok());
    let clamp = clamp.and_then(|most| u64::try_from(most).ok()).filter(|&most| most > 0);
    let summary = r.choice("summary_type", &["last", "first", "mean", "cls_index"], FAMILY);
    let projected = r.flag_or("summary_use_proj", true, FAMILY);
    let bent = r.opt_text("summary_activation").is_none_or(|name| name == "tanh");
    let memory = r.flag("use_mems_train", false);
    let tied = r.flag("tie_word_embeddings", true);
    // What one reads at inference, in question answering, or in which order a batch comes.
    r.known(&[
        "clamp_len",
        "mem_len",
        "reuse_len",
        "use_mems_eval",
        "bi_data",
        "same_length",
        "start_n_top",
        "end_n_top",
    ]);
    r.known(&["summary_last_dropout", "untie_r"]);

    let mut mlp = plain_mlp(f, act, "layer_1", "layer_2", true);
    mlp.dropout = dropout;
    let form = BlockForm::PostResidual { m1: named("rel_attn.layer_norm", &norm), m2: named("ff.layer_norm", &norm) };
    let mixer = DistanceSpec { heads: s.a, head_dim: d, causal, clamp, dropout };
    let mut layer = LayerSpec::new(mixer, FeedForwardSpec::Mlp(mlp), form);
    layer.names = LayerNames { attention: "rel_attn", feed_forward: "ff" };
    layer.dropout = dropout;
    // Read only where a batch says which of two texts a token is of.
    layer.counted =
        vec![CountedSpec::new("rel_attn.r_s_bias", &[s.a, d]), CountedSpec::new("rel_attn.seg_embed", &[2, s.a, d])];
    let layers = std::iter::repeat_n(Arc::new(layer), s.l as usize).collect();

    // Without a class the reference builds the body alone.
    let named_class = !r.config().architectures().is_empty();
    let asked = if named_class { Asked::of(r) } else { Asked::Hidden };
    let mut model = tasks::model(&s, EmbeddingSpec { dropout, ..EmbeddingSpec::default() }, layers);
    model.has_sdpa = false;
    model.names = ModelNames {
        body: if asked.has_head() { "transformer" } else { "" },
        embed: "word_embedding",
        layers: "layer",
        head: "lm_loss",
        ..ModelNames::default()
    };
    model.unused = vec![CountedSpec::new("mask_emb", &[1, 1, s.h])];
    match asked {
        Asked::Hidden => {}
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            let mut head = vec![match summary {
                "first" => Piece::First,
                "mean" => Piece::Mean,
                _ => Piece::Last,
            }];
            if projected {
                head.push(MapSpec::piece("sequence_summary.summary", true, s.h, s.h));
            }
            if bent {
                head.push(Piece::Activation(Activation::Tanh));
            }
            head.push(Piece::Linear(MapSpec::head("logits_proj", true, s.h, classes)));
            model.head.transform = head;
        }
        Asked::MaskedTokens | Asked::Other => {
            model.task = Task::OwnToken;
            model.head = HeadSpec { tied, bias: true, narrow_loss: true, ..HeadSpec::default() };
            model.not_modelled.push(
                "the second stream of pretraining by permutations (`target_mapping`): queries of the predicted positions \
                 pass every block beside the text, with maps of their own for none; predicting all positions doubles the \
                 work of the blocks but for their maps of keys, values and distances"
                    .to_owned(),
            );
        }
    }
    if memory {
        model.not_modelled.push(
            "the memory of `use_mems_train`: each block keeps up to `mem_len` positions of the batch before, and maps of keys \
             and values and the scores run on these too"
                .to_owned(),
        );
    }
    if asked == Asked::Other && !r.config().architectures().iter().any(|class| class.ends_with("LMHeadModel")) {
        asked.warn(r, &mut model);
    }
    model
}
