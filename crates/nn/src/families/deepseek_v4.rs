//! DeepSeek-V4: attention to a window and to compressed blocks, streams that maps mix around every part, the first mixtures
//! routed by a table of token ids.

use super::common::{FAMILY, FREE, Sizes, activation, decoder, gated_mlp, layers_called, named, rms, rotary};
use super::deepseek::indexer;
use super::experts::{announce_predictors, counts, mixture, router_extras};
use crate::config::{Part, Reader};
use crate::spec::{
    BlockForm, BlocksSpec, CompressedSpec, Correction, ExpertGate, FeedForwardSpec, HyperSpec, LayerSpec, ModelSpec,
    MoeSpec, NormSpec, RotarySpec, RouterSpec, Scores, SharedSpec,
};
use std::sync::Arc;

/// How a layer looks at what is behind its window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not at all.
    Sliding,
    /// At chosen blocks, which overlap.
    Sparse,
    /// At all blocks.
    Heavy,
}

const WORDS: [&str; 3] = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"];

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let (h, l) = (r.size_or("hidden_size", 4096, FAMILY), r.layers_or("num_hidden_layers", 43, FAMILY));
    let (a, v) = (r.size_or("num_attention_heads", 64, FAMILY), r.size_or("vocab_size", 129_280, FAMILY));
    let d = r.size_or("head_dim", 512, FAMILY);
    one_head_of_keys(r);
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let act = activation(r, "hidden_act", "silu");
    let s = Sizes { h, l, a, k: 1, d, v };
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    let attention = attention(r, &s, &norm);
    let kinds = kinds(r, l);
    let rates = rates(r);
    let indexer = indexer(r, 64, 512, attention.rotary.dim);
    let theta = r.float_or(["rope_parameters.compress.rope_theta", "compress_rope_theta"], 160_000.0, FREE);
    let hyper = hyper(r, h, &norm);
    let (chosen, hashed) = mixtures(r, &s, act);
    let by_table = hashed_layers(r, l);
    if r.flag("attention_bias", false) {
        r.not_applied(
            "attention_bias",
            "`attention_bias` is set, and the reference makes no biases in the attention of this family",
            "maps of attention have no biases",
            "--set attention_bias=false",
        );
    }
    let tied = r.flag("tie_word_embeddings", false);
    // In what weights are stored, and what the precision recipe says instead.
    r.known(&["expert_dtype", "topk_method", "mlp_bias"]);

    let form = BlockForm::Mixed { hyper: Arc::new(hyper) };
    let layer = |kind: Kind, hashes: bool| {
        let mut own = attention.clone();
        let blocks = |rate, indexer| Some(BlocksSpec { rate, indexer });
        own.blocks = match kind {
            Kind::Sliding => None,
            Kind::Sparse => blocks(rates[0], Some(indexer.clone())),
            Kind::Heavy => blocks(rates[1], None),
        };
        if kind != Kind::Sliding {
            own.rotary = RotarySpec { theta, table: 1, ..own.rotary };
        }
        let moe = if hashes { hashed.clone() } else { chosen.clone() };
        Arc::new(LayerSpec::new(own, FeedForwardSpec::Moe(Box::new(moe)), form.clone()))
    };
    let mut made: Vec<((Kind, bool), Arc<LayerSpec>)> = Vec::new();
    let mut layers = Vec::with_capacity(kinds.len());
    for (&kind, i) in kinds.iter().zip(0..) {
        let key = (kind, by_table(i));
        let known = made.iter().find(|(of, _)| *of == key).map(|(_, layer)| layer.clone());
        layers.push(known.unwrap_or_else(|| {
            made.push((key, layer(key.0, key.1)));
            made[made.len() - 1].1.clone()
        }));
    }
    let mut model = decoder(r, &s, layers, norm, tied);
    model.has_sdpa = false;
    model.not_modelled.push(
        "kernels that leave out what a query does not see: explicit attention computes the scores of all keys and blocks, and \
         they count as dense FLOP; what the model needs is counted apart"
            .to_owned(),
    );
    let predictors = r.opt_count("num_nextn_predict_layers").unwrap_or(0);
    let last = model.layers.last().cloned();
    announce_predictors(r, predictors, &mut model, last.as_slice());
    router_extras(r, &mut model.not_modelled);
    model
}

fn one_head_of_keys(r: &mut Reader<'_>) {
    let keys = r.size_or("num_key_value_heads", 1, FAMILY);
    if keys != 1 {
        r.not_applied(
            "num_key_value_heads",
            format!("`num_key_value_heads` is {keys}, but this family has one head of keys for all queries"),
            "keys are one head, and their own values",
            "--set num_key_value_heads=1",
        );
    }
}

/// The attention of a layer without blocks.
fn attention(r: &mut Reader<'_>, s: &Sizes, norm: &NormSpec) -> CompressedSpec {
    let rank = r.size_or("q_lora_rank", 1024, FAMILY);
    let groups = r.size_or("o_groups", 8, FAMILY);
    let group_rank = r.size_or("o_lora_rank", 1024, FAMILY);
    r.require_divides(
        Part::new("num_attention_heads", s.a, "heads"),
        Part::new("o_groups", groups, "groups"),
        "each group of heads has an output map of its own",
    );
    r.check_product("the query projection", &[("q_lora_rank", rank), ("num_attention_heads", s.a), ("head_dim", s.d)]);
    r.check_product(
        "the output projection",
        &[("o_groups", groups), ("o_lora_rank", group_rank), ("hidden_size", s.h)],
    );
    let dim = r.opt_size("qk_rope_head_dim").unwrap_or_else(|| {
        let names = ["rope_parameters.main.partial_rotary_factor", "partial_rotary_factor"];
        (s.d as f64 * r.float_or(names, 0.125, FAMILY)) as u64
    });
    if !(2..s.d).contains(&dim) || !dim.is_multiple_of(2) {
        r.reject(
            "qk_rope_head_dim",
            format!("{dim} of the {} channels of a head are to be turned", s.d),
            "an even number of channels is turned, and some are not",
            "--set qk_rope_head_dim=64",
        );
    }
    r.known(&["rope_scaling", "rope_parameters", "partial_rotary_factor"]);
    let theta = r.float_or(["rope_parameters.main.rope_theta", "rope_theta"], 10_000.0, FREE);
    CompressedSpec {
        heads: s.a,
        head_dim: s.d,
        rotary: RotarySpec { interleaved: true, ..rotary(dim.clamp(2, s.d.max(2)), theta) },
        q_rank: rank,
        window: r.size_or("sliding_window", 128, FAMILY),
        blocks: None,
        out: [groups, group_rank],
        norm: norm.clone(),
        dropout: r.float_or("attention_dropout", 0.0, "off"),
    }
}

/// What each layer looks at: `layer_types`, or the rates under `compress_ratios`, which go on behind the last layer for
/// those that predict further tokens.
fn kinds(r: &mut Reader<'_>, l: u64) -> Vec<Kind> {
    let all = [Kind::Sliding, Kind::Sparse, Kind::Heavy];
    let listed = r.counts("compress_ratios");
    if let Some(words) = r.texts("layer_types") {
        r.require_len("layer_types", words.len(), "num_hidden_layers", l);
        r.require_words("layer_types", &words, &WORDS);
        let kind = |word: &String| WORDS.iter().position(|known| known == word).map_or(Kind::Sliding, |i| all[i]);
        return (0..l as usize).map(|i| words.get(i).map_or(Kind::Sliding, kind)).collect();
    }
    if let Some(ratios) = listed {
        let wrong = ratios.iter().find(|ratio| ![0, 4, 128].contains(*ratio));
        if wrong.is_some() || (ratios.len() as u64) < l {
            r.reject(
                "compress_ratios",
                match wrong {
                    Some(ratio) => format!("`compress_ratios` holds {ratio}"),
                    None => format!("`compress_ratios` has {} entries for {l} layers", ratios.len()),
                },
                "each layer has 0 (a window alone), 4 (chosen blocks) or 128 (all blocks)",
                "one of 0, 4 and 128 for every layer",
            );
        }
        let kind = |ratio: u64| match ratio {
            4 => Kind::Sparse,
            128 => Kind::Heavy,
            _ => Kind::Sliding,
        };
        return (0..l as usize).map(|i| ratios.get(i).map_or(Kind::Sliding, |&ratio| kind(ratio))).collect();
    }
    r.assume("layer_types", "two heavily compressed layers, then both kinds in turn", FAMILY);
    (0..l).map(|i| if i < 2 || i % 2 == 0 { Kind::Heavy } else { Kind::Sparse }).collect()
}

/// Positions of a block: of those that are chosen, and of the large ones.
fn rates(r: &mut Reader<'_>) -> [u64; 2] {
    let sparse = ["compress_rates.compressed_sparse_attention", "compress_rate_csa"];
    let heavy = ["compress_rates.heavily_compressed_attention", "compress_rate_hca"];
    [r.size_or(sparse, 4, FAMILY), r.size_or(heavy, 128, FAMILY)]
}

fn hyper(r: &mut Reader<'_>, h: u64, norm: &NormSpec) -> HyperSpec {
    let streams = r.size_or("hc_mult", 4, FAMILY);
    let iterations = r.count_or("hc_sinkhorn_iters", 20, FREE);
    r.check_product("the streams", &[("hc_mult", streams), ("hidden_size", h)]);
    for (key, value, most) in
        [("hc_mult", streams, HyperSpec::MOST_STREAMS), ("hc_sinkhorn_iters", iterations, HyperSpec::MOST_ITERATIONS)]
    {
        if value > most {
            r.reject(
                key,
                format!("`{key}` is {value}"),
                "streams and the steps that mix them are written out one by one",
                &format!("--set {key}={most}"),
            );
        }
    }
    HyperSpec {
        streams: streams.min(HyperSpec::MOST_STREAMS),
        iterations: iterations.min(HyperSpec::MOST_ITERATIONS),
        eps: r.float_or("hc_eps", 1e-6, FREE),
        norm_eps: norm.eps,
        n1: named("input_layernorm", norm),
        n2: named("post_attention_layernorm", norm),
    }
}

/// The mixture whose experts are chosen by score, and the one that a table of token ids chooses.
fn mixtures(r: &mut Reader<'_>, s: &Sizes, act: crate::spec::Activation) -> (MoeSpec, MoeSpec) {
    let experts = r.size_or(["n_routed_experts", "num_local_experts"], 256, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 6, FAMILY);
    let f = r.size_or(["moe_intermediate_size", "intermediate_size"], 2048, FAMILY);
    let counts = counts(r, s.h, ("n_routed_experts", experts), top_k, ("moe_intermediate_size", f));
    let scores = match r.choice("scoring_func", &["sqrtsoftplus", "sigmoid", "softmax"], FAMILY) {
        "sigmoid" => Scores::Sigmoid,
        "softmax" => Scores::Softmax,
        _ => Scores::SqrtSoftplus,
    };
    let shared = r.size_or("n_shared_experts", 1, FAMILY);
    if shared != 1 {
        r.not_applied(
            "n_shared_experts",
            format!("`n_shared_experts` is {shared}, and the reference makes one"),
            "one expert that every token uses",
            "--set n_shared_experts=1",
        );
    }
    r.known(&["norm_topk_prob"]);
    let router = RouterSpec {
        name: "gate",
        scores,
        narrow_scores: true,
        correction: Correction::Buffer("gate.e_score_correction_bias"),
        normalise: true,
        scale: Some(r.float_or("routed_scaling_factor", 1.5, FREE)),
        ..RouterSpec::default()
    };
    let limit = r.float_or("swiglu_limit", 10.0, FREE);
    let mut mlp = gated_mlp(f, act, false);
    mlp.limit = Some(limit);
    let shared = SharedSpec { mlp, name: "shared_experts", gate: None };
    let mut chosen = mixture(&counts, act, router, Some(shared));
    chosen.gate = ExpertGate::Limited { limit };
    let mut hashed = chosen.clone();
    hashed.router.correction = Correction::None;
    hashed.router.table = Some(s.v);
    (chosen, hashed)
}

/// Which layers choose experts by a table.
fn hashed_layers(r: &mut Reader<'_>, l: u64) -> impl Fn(u64) -> bool + use<> {
    let listed = layers_called(r, &["mlp_layer_types"], l, &["hash_moe"], &["moe"]);
    let first = if listed.is_some() {
        r.known(&["num_hash_layers"]);
        0
    } else {
        r.count_or("num_hash_layers", 3, FAMILY)
    };
    move |i| listed.as_ref().map_or(i < first, |listed| listed.get(i as usize).copied().unwrap_or(false))
}
