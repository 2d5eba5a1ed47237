//! What most families read alike.

use crate::config::{Names, Part, Reader};
use crate::spec::{
    Activation, AttentionSpec, AttentionSteps, BlockForm, FeedForwardSpec, HeadSpec, KvSharing, LayerSpec, LinearSpec,
    MlpInput, MlpSpec, ModelSpec, NamedNorm, NormKind, NormSpec, Projection, QkNorm, QkNormPlace, RotaryForm,
    RotaryJoin, RotaryPrecision, RotarySpec,
};
use std::sync::Arc;

/// Widths and counts under their usual keys.
pub struct Sizes {
    /// `hidden_size`
    pub h: u64,
    /// `num_hidden_layers`
    pub l: u64,
    /// `num_attention_heads`
    pub a: u64,
    /// `num_key_value_heads`
    pub k: u64,
    /// `head_dim`
    pub d: u64,
    /// `vocab_size`
    pub v: u64,
}

/// Reads the usual sizes and checks how they fit together.
pub fn sizes(r: &mut Reader<'_>) -> Sizes {
    sizes_or(r, None, None)
}

/// The usual sizes, with the key/value heads and the head size this family has where the file names none.
pub fn sizes_or(r: &mut Reader<'_>, k: Option<u64>, d: Option<u64>) -> Sizes {
    let (h, l, a) = (r.size("hidden_size"), r.layers("num_hidden_layers"), r.size("num_attention_heads"));
    let v = r.size("vocab_size");
    heads(r, &Given { h, l, a, v, k, d })
}

/// What is known before the heads are.
pub struct Given {
    /// `hidden_size`
    pub h: u64,
    /// `num_hidden_layers`
    pub l: u64,
    /// `num_attention_heads`
    pub a: u64,
    /// `vocab_size`
    pub v: u64,
    /// Key/value heads where the key is absent; `None`: as many as query heads.
    pub k: Option<u64>,
    /// Head size where the key is absent; `None`: `hidden_size / num_attention_heads`.
    pub d: Option<u64>,
}

/// Reads key/value heads and head size, and checks how the sizes fit together.
pub fn heads(r: &mut Reader<'_>, given: &Given) -> Sizes {
    let &Given { h, l, a, v, .. } = given;
    let k = match given.k {
        Some(k) if !is_null(r, "num_key_value_heads") => r.size_or("num_key_value_heads", k, FAMILY),
        _ => r.size_or("num_key_value_heads", a, "equal to num_attention_heads"),
    };
    let query = Part::new("num_attention_heads", a, "query heads");
    r.require_divides(
        query,
        Part::new("num_key_value_heads", k, "key/value heads"),
        "each key/value head serves an equal number of query heads",
    );
    let d = match given.d {
        Some(d) => r.size_or("head_dim", d, FAMILY),
        None => head_dim(r, h, a),
    };
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    r.check_product("the query projection", &[("hidden_size", h), ("num_attention_heads", a), ("head_dim", d)]);
    Sizes { h, l, a, k, d, v }
}

/// Why a value is assumed that transformers' configuration class fills in.
pub const FAMILY: &str = "the default of the family";

/// The same, for values no cost depends on.
pub const FREE: &str = "the default of the family; changes no cost";

/// Whether the key is there and `null`, which for some keys means "none" where absence means a default.
pub fn is_null(r: &Reader<'_>, key: &str) -> bool {
    r.config().find(key).is_some_and(|found| found.value.is_null())
}

/// `sliding_window`: `null` and 0 are none, absence is `default`.
pub fn window(r: &mut Reader<'_>, default: Option<u64>) -> Option<u64> {
    let window = match default {
        Some(default) if !is_null(r, "sliding_window") => Some(r.count_or("sliding_window", default, FAMILY)),
        _ => r.opt_count("sliding_window"),
    };
    window.filter(|&w| w > 0)
}

/// A number that `null` turns off and whose absence means `default`.
pub fn float_or_off(r: &mut Reader<'_>, key: &str, default: f64) -> Option<f64> {
    if is_null(r, key) { r.opt_float(key) } else { Some(r.float_or(key, default, FAMILY)) }
}

/// Which of `l` layers are called one of `yes` in the list under `keys`, the others being called one of `no`; `None` where
/// there is no such list.
pub fn layers_called(
    r: &mut Reader<'_>,
    keys: &[&'static str],
    l: u64,
    yes: &[&str],
    no: &[&str],
) -> Option<Vec<bool>> {
    let words = r.texts(keys)?;
    r.require_len(keys[0], words.len(), "num_hidden_layers", l);
    r.require_words(keys[0], &words, &[yes, no].concat());
    Some((0..l).map(|i| words.get(i as usize).is_some_and(|word| yes.contains(&word.as_str()))).collect())
}

/// Which layers slide: by `layer_types`, or by the family's pattern where that is absent.
pub fn sliding(r: &mut Reader<'_>, l: u64, pattern: impl Fn(u64) -> bool) -> Vec<bool> {
    let listed = layers_called(r, &["layer_types"], l, &["sliding_attention"], &["full_attention"]);
    listed.unwrap_or_else(|| (0..l).map(pattern).collect())
}

/// Layers of two kinds, each kind described once.
pub fn alternate(slides: &[bool], full: LayerSpec, sliding: LayerSpec) -> Vec<Arc<LayerSpec>> {
    let (full, sliding) = (Arc::new(full), Arc::new(sliding));
    slides.iter().map(|&s| if s { sliding.clone() } else { full.clone() }).collect()
}

/// `intermediate_size`
pub fn intermediate_size(r: &mut Reader<'_>, s: &Sizes) -> u64 {
    let f = r.size("intermediate_size");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    f
}

/// `head_dim`, or `hidden_size / num_attention_heads` where it is absent or null.
pub fn head_dim(r: &mut Reader<'_>, h: u64, a: u64) -> u64 {
    if let Some(d) = r.opt_size("head_dim") {
        return d;
    }
    r.require_divides(
        Part::new("hidden_size", h, "wide"),
        Part::new("num_attention_heads", a, "query heads"),
        "without `head_dim`, each head gets hidden_size / num_attention_heads",
    );
    r.size_or("head_dim", (h / a.max(1)).max(1), "hidden_size / num_attention_heads")
}

/// The activation under `key`.
pub fn activation(r: &mut Reader<'_>, key: impl Names, default: &'static str) -> Activation {
    let mut names: Vec<&'static str> = vec![default];
    names.extend(Activation::NAMES.iter().filter(|n| **n != default));
    let name = r.choice(key, &names, "the default of the family");
    Activation::parse(name).unwrap_or(Activation::Silu)
}

/// The activation that a part of the text under `key` names.
pub fn activation_named(r: &mut Reader<'_>, key: &str, name: &str) -> Activation {
    Activation::parse(name).unwrap_or_else(|| {
        let known = Activation::NAMES.join(", ");
        r.reject(
            key,
            format!("`{key}` names the activation \"{name}\", which is not known"),
            "its cost is not known",
            &known,
        );
        Activation::Relu
    })
}

/// `attention_bias` of a family whose projections have biases, or have none, whatever it says.
pub fn fixed_bias(r: &mut Reader<'_>, biased: bool) {
    let key = "attention_bias";
    if r.opt_flag(key).is_some_and(|says| says != biased) {
        let (says, is) = if biased { ("false", "have biases") } else { ("true", "have no bias") };
        r.not_applied(
            key,
            format!("`{key}` is {says}, and the projections of this family {is}"),
            "parameters are counted as the family has them",
            "model_type llama reads it",
        );
    }
}

/// An RMS norm as Llama has it.
pub fn rms(eps: f64) -> NormSpec {
    NormSpec { kind: NormKind::Rms, eps }
}

/// A norm with its name.
pub fn named(name: &'static str, spec: &NormSpec) -> NamedNorm {
    NamedNorm { name, spec: spec.clone() }
}

/// Base of the rotary frequencies, from `rope_theta` or `rope_parameters.rope_theta`. Changes no cost.
pub fn rope_theta(r: &mut Reader<'_>, default: f64) -> f64 {
    r.known(&["rope_scaling", "rope_parameters"]);
    r.float_or(["rope_theta", "rope_parameters.rope_theta"], default, "the default of the family; changes no cost")
}

/// Width of the rotated part of a head: `partial_rotary_factor` of it.
pub fn rotary_dim(r: &mut Reader<'_>, d: u64, default: f64) -> u64 {
    rotated(r, d, "partial_rotary_factor", default).unwrap_or(d)
}

/// Rotary embedding over the part of a head of width `d` that `factor` names, with the base under one of `bases`.
pub fn partial_rotary(r: &mut Reader<'_>, d: u64, factor: &str, default: f64, bases: [&str; 2]) -> RotarySpec {
    let Some(dim) = rotated(r, d, factor, default) else { return rotary(d, 10_000.0) };
    r.known(&["rope_scaling", "rope_parameters"]);
    let theta = r.float_or(["rope_parameters.rope_theta", bases[0], bases[1]], 10_000.0, FREE);
    rotary(dim, theta)
}

/// The part of `d` channels that `factor` names; nothing if it is refused.
fn rotated(r: &mut Reader<'_>, d: u64, factor: &str, default: f64) -> Option<u64> {
    let names = ["rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor", factor];
    let part = r.float_or(names, default, FAMILY);
    // Each frequency turns two channels: of an odd number, one more is turned than was asked for.
    let dim = ((d as f64 * part) as u64).checked_next_multiple_of(2).unwrap_or(u64::MAX);
    if part > 0.0 && (2..=d).contains(&dim) {
        return Some(dim);
    }
    r.reject(
        factor,
        format!("`{factor}` is {part}, which rotates {dim} of {d} channels"),
        "a head rotates at least one pair of channels and at most all",
        &format!("--set {factor}={default}"),
    );
    None
}

/// Sizes of a family without `num_key_value_heads` and `head_dim`, under the keys of width, layers and heads.
pub fn sizes_under(r: &mut Reader<'_>, width: &[&str], layers: &[&str], heads: &[&str]) -> Sizes {
    let (h, l, a) = (r.size(width), r.layers(layers), r.size(heads));
    let v = r.size("vocab_size");
    r.require_divides(
        Part::new(width[0], h, "wide"),
        Part::new(heads[0], a, "heads"),
        "each head gets an equal part of the stream",
    );
    r.check_product("the embedding table", &[("vocab_size", v), (width[0], h)]);
    r.check_product("an attention projection", &[(width[0], h), (width[0], h)]);
    Sizes { h, l, a, k: a, d: (h / a.max(1)).max(1), v }
}

/// Sizes under GPT-2's keys.
pub fn gpt_sizes(r: &mut Reader<'_>) -> Sizes {
    sizes_under(r, &["n_embd", "hidden_size"], &["n_layer", "num_hidden_layers"], &["n_head", "num_attention_heads"])
}

/// Sizes under Llama's keys, of a family that has neither `num_key_value_heads` nor `head_dim`.
pub fn plain_sizes(r: &mut Reader<'_>) -> Sizes {
    sizes_under(r, &["hidden_size"], &["num_hidden_layers"], &["num_attention_heads"])
}

/// Rotary embedding over `dim` channels in halves.
pub fn rotary(dim: u64, theta: f64) -> RotarySpec {
    RotarySpec {
        dim,
        theta,
        turning: None,
        interleaved: false,
        table: 0,
        join: RotaryJoin::default(),
        precision: RotaryPrecision::default(),
        widened: false,
        form: RotaryForm::default(),
        reversed: false,
    }
}

/// Attention with three projections and nothing special; families change what they need.
pub fn attention(s: &Sizes, bias: bool, out_bias: bool) -> AttentionSpec {
    AttentionSpec {
        projection: Projection::Separate {
            q: LinearSpec::new("q_proj", bias),
            k: LinearSpec::new("k_proj", bias),
            v: LinearSpec::new("v_proj", bias),
        },
        heads: s.a,
        kv_heads: s.k,
        head_dim: s.d,
        value_dim: s.d,
        out: LinearSpec::new("o_proj", out_bias),
        gate: None,
        keep: None,
        query_gate: false,
        out_norm: None,
        qk_norm: QkNorm::None,
        qk_norm_names: ["q_norm", "k_norm"],
        qk_norm_place: QkNormPlace::default(),
        rotary: None,
        causal: true,
        alibi: false,
        relative: None,
        differential: None,
        value_norm: None,
        sharing: KvSharing::Own,
        value_scale: None,
        scale: 1.0 / (s.d as f64).sqrt(),
        window: None,
        chunked: false,
        softcap: None,
        sinks: false,
        clip_qkv: None,
        f32_scores: false,
        narrow_softmax: false,
        floored_scores: false,
        always_masked: false,
        steps: AttentionSteps::Common,
        dropout: 0.0,
        spare_mask: false,
    }
}

/// A gated MLP with Llama's names.
pub fn gated_mlp(intermediate_size: u64, act: Activation, bias: bool) -> MlpSpec {
    MlpSpec::new(
        intermediate_size,
        act,
        MlpInput::Gated { gate: LinearSpec::new("gate_proj", bias), up: LinearSpec::new("up_proj", bias) },
        LinearSpec::new("down_proj", bias),
    )
}

/// A gated MLP whose first two maps are one.
pub fn fused_mlp(intermediate_size: u64, act: Activation, bias: bool) -> MlpSpec {
    let input = MlpInput::GatedFused(LinearSpec::new("gate_up_proj", bias));
    MlpSpec::new(intermediate_size, act, input, LinearSpec::new("down_proj", bias))
}

/// A plain MLP under the names of its two maps.
pub fn plain_mlp(intermediate_size: u64, act: Activation, up: &'static str, down: &'static str, bias: bool) -> MlpSpec {
    MlpSpec::new(intermediate_size, act, MlpInput::Plain(LinearSpec::new(up, bias)), LinearSpec::new(down, bias))
}

/// Norms before both branches, under Llama's names.
pub fn pre_norm(norm: &NormSpec) -> BlockForm {
    BlockForm::Sequential { n1: named("input_layernorm", norm), n2: named("post_attention_layernorm", norm) }
}

/// Norms after both branches, under OLMo 2's names.
pub fn post_norm(norm: &NormSpec) -> BlockForm {
    BlockForm::PostBranch { m1: named("post_attention_layernorm", norm), m2: named("post_feedforward_layernorm", norm) }
}

/// A dense block under Llama's names.
pub fn block(attention: AttentionSpec, mlp: MlpSpec, form: BlockForm) -> LayerSpec {
    LayerSpec::new(attention, FeedForwardSpec::Mlp(mlp), form)
}

/// A model under Llama's names.
pub fn decoder(r: &mut Reader<'_>, s: &Sizes, layers: Vec<Arc<LayerSpec>>, norm: NormSpec, tied: bool) -> ModelSpec {
    ModelSpec {
        final_norm: Some(norm),
        head: HeadSpec { tied, ..HeadSpec::default() },
        max_positions: r.opt_size("max_position_embeddings"),
        ..ModelSpec::new(s.h, s.v, layers)
    }
}

/// `num_hidden_layers` equal layers.
pub fn equal(s: &Sizes, layer: LayerSpec) -> Vec<Arc<LayerSpec>> {
    std::iter::repeat_n(Arc::new(layer), s.l as usize).collect()
}

/// Changes every block; equal blocks go on sharing one description.
pub fn change_layers(layers: &mut [Arc<LayerSpec>], change: impl Fn(&mut LayerSpec)) {
    let mut last: Option<(Arc<LayerSpec>, Arc<LayerSpec>)> = None;
    for layer in layers {
        let changed = match &last {
            Some((from, to)) if Arc::ptr_eq(from, layer) => to.clone(),
            _ => {
                let mut own = (**layer).clone();
                change(&mut own);
                Arc::new(own)
            }
        };
        last = Some((std::mem::replace(layer, changed.clone()), changed));
    }
}
