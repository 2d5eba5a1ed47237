//! What most families read alike.

use crate::config::{Part, Reader};
use crate::spec::{
    Activation, AttentionSpec, LinearSpec, MlpInput, MlpSpec, NamedNorm, NormKind, NormSpec, Projection, QkNorm,
    RotarySpec,
};

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
    let h = r.size("hidden_size");
    let l = r.size("num_hidden_layers");
    let a = r.size("num_attention_heads");
    let k = r.size_or("num_key_value_heads", a, "equal to num_attention_heads");
    let query = Part::new("num_attention_heads", a, "query heads");
    r.require_divides(
        query,
        Part::new("num_key_value_heads", k, "key/value heads"),
        "each key/value head serves an equal number of query heads",
    );
    let d = head_dim(r, h, a);
    let v = r.size("vocab_size");
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    r.check_product("the query projection", &[("hidden_size", h), ("num_attention_heads", a), ("head_dim", d)]);
    Sizes { h, l, a, k, d, v }
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
pub fn activation(r: &mut Reader<'_>, key: &str, default: &'static str) -> Activation {
    let mut names: Vec<&'static str> = vec![default];
    names.extend(Activation::NAMES.iter().filter(|n| **n != default));
    let name = r.choice(key, &names, "the default of the family");
    Activation::parse(&name).unwrap_or(Activation::Silu)
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
    r.float_or("rope_theta", default, "the default of the family; changes no cost")
}

/// Rotary embedding over `dim` channels in halves.
pub fn rotary(dim: u64, theta: f64) -> RotarySpec {
    RotarySpec { dim, theta, interleaved: false, table: 0 }
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
        qk_norm: QkNorm::None,
        rotary: None,
        alibi: false,
        scale: 1.0 / (s.d as f64).sqrt(),
        window: None,
        chunk: None,
        softcap: None,
        sinks: false,
        clip_qkv: None,
        f32_scores: false,
        dropout: 0.0,
    }
}

/// A gated MLP with Llama's names.
pub fn gated_mlp(intermediate_size: u64, act: Activation, bias: bool) -> MlpSpec {
    MlpSpec {
        intermediate_size,
        act,
        input: MlpInput::Gated { gate: LinearSpec::new("gate_proj", bias), up: LinearSpec::new("up_proj", bias) },
        down: LinearSpec::new("down_proj", bias),
    }
}
