//! Nemotron-H and Nemotron 3: each block is one part, Mamba 2, attention without positions, a plain feed-forward part or
//! a mixture, by a list or a pattern of letters.

use super::common::{FAMILY, FREE, activation, attention, decoder, named, plain_mlp};
use super::common::{Sizes, intermediate_size};
use super::experts::{announce_predictors, corrected_router, counts, mixture, router_extras};
use super::mamba2::{Keys, gated_norm, state_space};
use crate::config::{MAX_LAYERS, Reader};
use crate::spec::{
    BlockForm, ExpertGate, FeedForwardSpec, LatentExperts, LayerNames, LayerSpec, LinearSpec, Mamba2Spec, Mixer,
    ModelNames, ModelSpec, MoeSpec, NormKind, NormSpec, SharedSpec,
};
use std::sync::Arc;

const KEYS: Keys = Keys {
    heads: (&["mamba_num_heads"], 128),
    state: (&["ssm_state_size"], 128),
    groups: (&["mamba_n_groups", "n_groups"], 8),
    chunk: (&["mamba_chunk_size", "chunk_size"], 128),
    taps: &["mamba_d_conv", "conv_kernel"],
    conv_bias: &["mamba_conv_bias", "use_conv_bias"],
    bias: &["use_bias"],
};

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mamba,
    Attention,
    Mlp,
    Moe,
}

impl Kind {
    fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "mamba" | "mamba2" | "linear_attention" => Self::Mamba,
            "attention" | "full_attention" => Self::Attention,
            "mlp" => Self::Mlp,
            "moe" => Self::Moe,
            _ => return None,
        })
    }

    fn of_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'M' => Self::Mamba,
            '*' => Self::Attention,
            '-' => Self::Mlp,
            'E' => Self::Moe,
            _ => return None,
        })
    }
}

/// The kinds of blocks under a key with a list of words or one with a pattern of letters.
fn kinds(r: &mut Reader<'_>, words: &'static str, letters: &'static str) -> Option<Vec<Kind>> {
    let (key, read, known) = if let Some(listed) = r.texts(words) {
        r.known(&[letters]);
        let read: Option<Vec<Kind>> = listed.iter().map(|word| Kind::of_word(word)).collect();
        (words, read, "mamba, attention, mlp, moe")
    } else {
        let pattern = r.opt_text(letters)?;
        (letters, pattern.chars().map(Kind::of_letter).collect(), "M (mamba), * (attention), - (mlp), E (moe)")
    };
    match read {
        Some(kinds) if !kinds.is_empty() && kinds.len() as u64 <= MAX_LAYERS => Some(kinds),
        Some(kinds) => {
            r.reject(
                key,
                format!("`{key}` has {} blocks", kinds.len()),
                "a model has at least one block and at most 1,024",
                "list the kind of every block",
            );
            None
        }
        None => {
            r.reject(
                key,
                format!("`{key}` has a kind of block that this family does not have"),
                "what such a block costs cannot be said",
                &format!("known: {known}"),
            );
            None
        }
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let listed = kinds(r, "layers_block_type", "hybrid_override_pattern");
    let listed = listed.or_else(|| kinds(r, "layer_types", "hybrid_override_pattern"));
    let kinds_of = listed.unwrap_or_else(|| {
        r.assume("layers_block_type", "mamba, moe, attention, mlp", FAMILY);
        vec![Kind::Mamba, Kind::Moe, Kind::Attention, Kind::Mlp]
    });
    // The list says how many there are.
    let l = kinds_of.len() as u64;
    if let Some(stated) = r.opt_size("num_hidden_layers").filter(|stated| *stated != l) {
        r.not_applied(
            "num_hidden_layers",
            format!("`num_hidden_layers` is {stated}, but {l} blocks are listed"),
            "the list is used, as in transformers",
            &format!("--set num_hidden_layers={l}"),
        );
    }
    let (h, a, v) = (r.size("hidden_size"), r.size("num_attention_heads"), r.size("vocab_size"));
    let k =
        if super::common::is_null(r, "num_key_value_heads") { a } else { r.size_or("num_key_value_heads", 8, FAMILY) };
    let d = r.size_or(["head_dim", "attention_head_dim"], 128, FAMILY);
    r.require_divides(
        crate::config::Part::new("num_attention_heads", a, "query heads"),
        crate::config::Part::new("num_key_value_heads", k, "key/value heads"),
        "each key/value head serves an equal number of query heads",
    );
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    r.check_product("the query projection", &[("hidden_size", h), ("num_attention_heads", a), ("head_dim", d)]);
    let s = Sizes { h, l, a, k, d, v };
    let eps = r.float_or(["layer_norm_epsilon", "rms_norm_eps", "norm_eps"], 1e-5, FREE);
    let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps };
    let act = activation(r, "mlp_hidden_act", "relu2");
    let bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);

    let has = |kind| kinds_of.contains(&kind);
    let mut layers = Layers { norm: norm.clone(), all: Vec::new() };
    let (mut unsaid, mut extras) = (Vec::new(), Vec::new());
    if has(Kind::Mamba) {
        unsaid.extend(["mamba_num_heads", "mamba_head_dim", "ssm_state_size"].into_iter().filter(|key| !r.has(key)));
        layers.add(Kind::Mamba, mamba(r, eps).into(), FeedForwardSpec::None);
    }
    if has(Kind::Mlp) {
        let f = intermediate_size(r, &s);
        let mlp = plain_mlp(f, act, "up_proj", "down_proj", bias);
        layers.add(Kind::Mlp, Mixer::None, FeedForwardSpec::Mlp(mlp));
    } else {
        r.known(&["intermediate_size"]);
    }
    let predicted = r.opt_count("num_nextn_predict_layers").unwrap_or(0);
    let predictor = kinds(r, "mtp_layers_block_type", "mtp_hybrid_override_pattern");
    let predictor = predictor.unwrap_or_else(|| vec![Kind::Attention, Kind::Moe]);
    if has(Kind::Moe) || (predicted > 0 && predictor.contains(&Kind::Moe)) {
        layers.add(Kind::Moe, Mixer::None, FeedForwardSpec::Moe(Box::new(experts(r, &s, act, bias))));
        router_extras(r, &mut extras);
    }
    let mut attends = attention(&s, false, false);
    attends.out = LinearSpec::new("o_proj", false);
    attends.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    layers.add(Kind::Attention, attends.into(), FeedForwardSpec::None);
    // Read by nothing in transformers' code.
    r.known(&[
        "attention_bias",
        "sliding_window",
        "mamba_proj_bias",
        "mamba_ssm_cache_dtype",
        "num_logits_to_keep",
        "expand",
        "mamba_expand",
        "use_mamba_kernels",
        "moe_shared_expert_overlap",
        "residual_in_fp32",
        "partial_rotary_factor",
        "rope_theta",
        "mamba_dt_min",
        "mamba_dt_max",
        "mamba_dt_limit",
        "mamba_dt_init_floor",
        "n_groups",
        "conv_kernel",
        "chunk_size",
        "use_conv_bias",
    ]);
    let blocks = kinds_of.iter().filter_map(|kind| layers.get(*kind)).collect();
    let mut model = decoder(r, &s, blocks, norm, tied);
    model.not_modelled = extras;
    model.names = ModelNames { embed: "embeddings", norm: "norm_f", ..ModelNames::default() };
    if !unsaid.is_empty() {
        model.not_modelled.push(format!(
            "what the file does not say of its {} Mamba blocks ({}): they are counted with the defaults of the family, so \
             their parameters are an assumption and the total is no more certain than it",
            kinds_of.iter().filter(|kind| **kind == Kind::Mamba).count(),
            unsaid.join(", ")
        ));
    }
    if predicted > 0 {
        let blocks: Vec<Arc<LayerSpec>> = predictor.iter().filter_map(|kind| layers.get(*kind)).collect();
        announce_predictors(r, predicted, &mut model, &blocks);
    }
    model
}

fn mamba(r: &mut Reader<'_>, eps: f64) -> Mamba2Spec {
    let heads = r.size_or("mamba_num_heads", 128, FAMILY);
    let width = r.size_or("mamba_head_dim", 64, FAMILY);
    let inner = r.check_product("the inner width", &[("mamba_num_heads", heads), ("mamba_head_dim", width)]);
    let mut mamba = state_space(r, &KEYS, inner, &["mamba_head_dim"], eps);
    mamba.conv.act = Some(activation(r, "mamba_hidden_act", "silu"));
    mamba.norm = Some(gated_norm(mamba.groups, eps));
    mamba.limits[0] = r.float_or(["mamba_dt_min", "time_step_min"], 0.001, FREE);
    mamba
}

fn experts(r: &mut Reader<'_>, s: &Sizes, act: crate::spec::Activation, bias: bool) -> MoeSpec {
    let experts = r.size_or(["n_routed_experts", "num_local_experts"], 8, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 2, FAMILY);
    let f = r.size_or("moe_intermediate_size", 7688, FAMILY);
    let counts = counts(r, s.h, ("n_routed_experts", experts), top_k, ("moe_intermediate_size", f));
    let router = corrected_router(r, &counts, true);
    let width = r.size_or("moe_shared_expert_intermediate_size", 7688, FAMILY);
    // One wide MLP, whatever their number.
    r.known(&["n_shared_experts"]);
    let mlp = plain_mlp(width, act, "up_proj", "down_proj", bias);
    let mut moe = mixture(&counts, act, router, Some(SharedSpec { mlp, name: "shared_experts", gate: None }));
    moe.gate = ExpertGate::None;
    moe.latent = r.opt_size("moe_latent_size").map(|width| LatentExperts { width, bias });
    moe
}

/// Blocks of one part, each kind described once.
struct Layers {
    norm: NormSpec,
    all: Vec<(Kind, Arc<LayerSpec>)>,
}

impl Layers {
    fn add(&mut self, kind: Kind, mixer: Mixer, feed_forward: FeedForwardSpec) {
        let layer = LayerSpec {
            names: LayerNames { attention: "mixer", feed_forward: "mixer" },
            ..LayerSpec::new(mixer, feed_forward, BlockForm::Single { n: named("norm", &self.norm), wide: false })
        };
        self.all.push((kind, Arc::new(layer)));
    }

    fn get(&self, kind: Kind) -> Option<Arc<LayerSpec>> {
        self.all.iter().find(|(own, _)| *own == kind).map(|(_, layer)| layer.clone())
    }
}
