//! The model a row describes: a preset where the label and the sizes are those of one, else a config of its family made of
//! the columns.

use std::fmt::Write;

use super::row::{Row, Sizes};
use crate::model::{Model, intermediate_size};
use crate::presets;

/// The text of the config of a row and what was assumed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// A config.
    pub config: String,
    /// What the row leaves open, and how it was closed.
    pub assumed: Vec<String>,
}

/// Letters and digits of a label, small.
pub fn plain(label: &str) -> String {
    label.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Whether the row is of a stack with state-space blocks, of which the columns do not say where they are.
fn is_hybrid(row: &Row) -> bool {
    let notes = row.notes.to_lowercase();
    let label = plain(&row.model);
    notes.contains("mamba") || (label.contains("nemotron") && !label.contains("llama") && row.sizes.gated.is_none())
}

/// The config of a row.
///
/// # Errors
/// Why there is none.
pub fn describe(row: &Row) -> Result<Described, String> {
    if is_hybrid(row) {
        return Err("blocks of more than one kind: the columns do not say which".to_owned());
    }
    if let Some(text) = preset(row) {
        return Ok(Described { config: text.to_owned(), assumed: Vec::new() });
    }
    let mut assumed = Vec::new();
    let s = completed(row, &mut assumed)?;
    let config = config(row, &s, &mut assumed)?;
    Ok(Described { config, assumed })
}

/// Builds the model of a config.
///
/// # Errors
/// The first problem of the config.
pub fn model(label: &str, config: &str) -> Result<Model, String> {
    Model::from_text(label, label, config.as_bytes(), &[], None).map_err(|problems| {
        let first = problems.iter().find(|problem| problem.is_error());
        first.map_or_else(String::new, |problem| format!("sizes that no model has: {}", problem.message))
    })
}

/// The preset of the same name, if its sizes are those of the row.
fn preset(row: &Row) -> Option<&'static str> {
    let label = plain(&row.model);
    let (name, text) = presets::PRESETS.iter().find(|(name, _)| plain(name) == label)?;
    let spec = Model::from_text(*name, name, text.as_bytes(), &[], None).ok()?.spec;
    let s = &row.sizes;
    let same = |ours: u64, theirs: Option<u64>| theirs.is_none_or(|theirs| theirs == ours);
    let attention = spec.layers.iter().find_map(|layer| layer.attention())?;
    let fits = same(spec.depth() as u64, s.layers)
        && same(spec.hidden_size, s.hidden)
        && same(spec.vocab_size, s.vocab)
        && same(attention.heads, s.heads)
        && (s.kv_rank.is_some() || same(attention.kv_heads, s.kv_heads))
        && (s.experts.is_some() || same(intermediate_size(spec.layers.first()?)?, s.intermediate));
    (fits && s.layers.is_some()).then_some(*text)
}

/// The sizes with what follows from others.
fn completed(row: &Row, assumed: &mut Vec<String>) -> Result<Sizes, String> {
    let mut s = row.sizes;
    let label = plain(&row.model);
    let mut missing: Vec<&str> = Vec::new();
    for (name, size) in [("n_layers", s.layers), ("d_model", s.hidden), ("vocab", s.vocab)] {
        if size.is_none_or(|size| size == 0) {
            missing.push(name);
        }
    }
    let hidden = s.hidden.unwrap_or(0);
    if s.gated.is_none() && (label.starts_with("gpt") || row.positions.starts_with("learned")) && s.experts.is_none() {
        s.gated = Some(false);
        assumed.push("feed-forward parts of two matrices, as GPT has".to_owned());
    }
    if s.intermediate.is_none() && s.gated == Some(false) && s.experts.is_none() && hidden > 0 {
        s.intermediate = hidden.checked_mul(4);
        assumed.push("d_ff = 4 d_model, as GPT has".to_owned());
    }
    if s.intermediate.is_none() && s.experts.is_none() {
        missing.push("d_ff");
    }
    if s.gated.is_none() {
        missing.push("ffn_gated");
    }
    if s.heads.is_none() && s.kv_heads.is_none() && s.head_dim.is_none() && hidden > 0 {
        s.heads = Some(if hidden.is_multiple_of(128) { hidden / 128 } else { 1 });
        assumed.push("heads of 128: their number changes no FLOP where keys have as many".to_owned());
    }
    if s.heads.is_none() {
        missing.push("n_heads");
    }
    if s.experts.is_some() && s.top_k.is_none() {
        missing.push("topk");
    }
    if !missing.is_empty() {
        return Err(format!("not in the row: {}", missing.join(", ")));
    }
    if s.tied.is_none() {
        let tied = s.gated == Some(false) && is_gpt(row, &s);
        s.tied = Some(tied);
        let what = if tied { "the head is the token embedding, as in GPT" } else { "the head is a matrix of its own" };
        assumed.push(what.to_owned());
    }
    s.kv_heads = s.kv_heads.or(s.heads);
    Ok(s)
}

/// Learned positions, layer norms with biases, biases on all maps.
fn is_gpt(row: &Row, s: &Sizes) -> bool {
    s.gated == Some(false) && (row.positions.starts_with("learned") || row.positions.is_empty())
}

/// Longest sequence of a model with learned positions, where the row has no sequence.
fn positions(row: &Row, assumed: &mut Vec<String>) -> u64 {
    row.seq_len.unwrap_or_else(|| {
        let count = if plain(&row.model).starts_with("gpt2") { 1024 } else { 2048 };
        assumed.push(format!("{count} learned positions, as the family has"));
        count
    })
}

/// The config, as JSON.
fn config(row: &Row, s: &Sizes, assumed: &mut Vec<String>) -> Result<String, String> {
    let label = plain(&row.model);
    let get = |size: Option<u64>| size.unwrap_or(0);
    let mut text = String::from("{");
    let mut put = |key: &str, value: &dyn std::fmt::Display| {
        let comma = if text.len() > 1 { "," } else { "" };
        let _ = write!(text, "{comma}\"{key}\":{value}");
    };
    let tied = s.tied.unwrap_or(false);
    if is_gpt(row, s) && s.experts.is_none() {
        if get(s.heads) != 0 && s.kv_heads != s.heads {
            return Err("learned positions with grouped heads: no such family".to_owned());
        }
        put("model_type", &"\"gpt2\"");
        put("n_layer", &get(s.layers));
        put("n_embd", &get(s.hidden));
        put("n_head", &get(s.heads));
        put("n_inner", &get(s.intermediate));
        put("n_positions", &positions(row, assumed));
        put("vocab_size", &get(s.vocab));
        put("tie_word_embeddings", &tied);
        text.push('}');
        return Ok(text);
    }
    let family = family(&label, s)?;
    put("model_type", &format!("\"{family}\""));
    put("num_hidden_layers", &get(s.layers));
    put("hidden_size", &get(s.hidden));
    put("num_attention_heads", &get(s.heads));
    put("num_key_value_heads", &get(s.kv_heads));
    if let Some(width) = s.head_dim.filter(|_| s.kv_rank.is_none()) {
        put("head_dim", &width);
    }
    put("vocab_size", &get(s.vocab));
    put("tie_word_embeddings", &tied);
    let width = s.expert_width.or(s.intermediate);
    match s.experts {
        None => put("intermediate_size", &get(s.intermediate)),
        Some(experts) => {
            let one_width = matches!(family, "mixtral" | "gpt_oss");
            put("intermediate_size", &get(if one_width { width } else { s.intermediate.or(width) }));
            if !one_width {
                put("moe_intermediate_size", &get(width));
            }
            put(
                if matches!(family, "deepseek_v3" | "dots1") { "n_routed_experts" } else { "num_local_experts" },
                &experts,
            );
            if family == "qwen3_moe" {
                put("num_experts", &experts);
            }
            put("num_experts_per_tok", &get(s.top_k));
            if matches!(family, "deepseek_v3" | "dots1") {
                put("n_shared_experts", &s.shared.unwrap_or(0));
                put("first_k_dense_replace", &s.dense_layers.unwrap_or(0));
                put("n_group", &1);
                put("topk_group", &1);
            }
        }
    }
    if let Some(rank) = s.kv_rank {
        put("kv_lora_rank", &rank);
        match s.q_rank {
            Some(rank) => put("q_lora_rank", &rank),
            None => put("q_lora_rank", &"null"),
        }
        put("qk_nope_head_dim", &get(s.nope_dim));
        put("qk_rope_head_dim", &get(s.rope_dim));
        put("v_head_dim", &get(s.value_dim));
    }
    text.push('}');
    Ok(text)
}

/// The family whose modules have the parts that the columns state.
fn family(label: &str, s: &Sizes) -> Result<&'static str, String> {
    let gated = s.gated == Some(true);
    let is = |names: &[&str]| names.iter().any(|name| label.starts_with(name));
    if is(&["gptoss"]) {
        return Ok("gpt_oss");
    }
    if s.experts.is_some() && !gated {
        return Err("experts of two matrices: no such family is known here".to_owned());
    }
    if s.kv_rank.is_some() {
        return match s.experts {
            Some(_) => Ok("deepseek_v3"),
            None => Err("latent attention without experts: no such family is known here".to_owned()),
        };
    }
    if s.experts.is_some() {
        let plain = s.shared.unwrap_or(0) == 0 && s.dense_layers.unwrap_or(0) == 0;
        return Ok(match (is(&["qwen3"]), plain) {
            (true, true) => "qwen3_moe",
            (false, true) => "mixtral",
            _ => "dots1",
        });
    }
    Ok(match gated {
        true if is(&["qwen3"]) => "qwen3",
        true if is(&["qwen2", "qwen15"]) => "qwen2",
        true if is(&["gemma2"]) && s.layers != Some(18) => "gemma2",
        true if is(&["gemma"]) => "gemma",
        true if is(&["phi3"]) => "phi3",
        true => "llama",
        false if is(&["falcon"]) => "falcon",
        false if is(&["phi"]) => "phi",
        false if is(&["nemotron"]) => "nemotron",
        false => "gpt_neox",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Counts, parameters};

    fn row(model: &str, sizes: &Sizes, positions: &str, seq_len: Option<u64>) -> Row {
        Row { model: model.to_owned(), sizes: *sizes, positions: positions.to_owned(), seq_len, ..Row::default() }
    }

    fn stored(row: &Row) -> u64 {
        let built = model("m", &describe(row).unwrap().config).unwrap();
        Counts::of(&parameters(&built).unwrap()).stored.get()
    }

    /// Counts that are printed by the projects themselves.
    #[test]
    fn columns_make_the_model_that_was_counted() {
        let dense = Sizes {
            layers: Some(80),
            hidden: Some(8192),
            heads: Some(64),
            kv_heads: Some(8),
            intermediate: Some(28672),
            gated: Some(true),
            vocab: Some(128_256),
            tied: Some(false),
            ..Sizes::default()
        };
        assert_eq!(stored(&row("Some Llama", &dense, "rope", None)), 70_553_706_496);
        let gpt =
            Sizes { layers: Some(12), hidden: Some(768), heads: Some(12), vocab: Some(50_257), ..Sizes::default() };
        assert_eq!(stored(&row("GPT-2 124M", &gpt, "learned", None)), 124_439_808);
        let mixture = Sizes {
            layers: Some(32),
            hidden: Some(4096),
            vocab: Some(32_000),
            intermediate: None,
            heads: Some(32),
            experts: Some(8),
            top_k: Some(2),
            expert_width: Some(14_336),
            ..dense
        };
        assert_eq!(stored(&row("8x7B", &mixture, "rope", None)), 46_702_792_704);
    }

    #[test]
    fn what_is_missing_is_named() {
        let sizes = Sizes { layers: Some(2), hidden: Some(64), ..Sizes::default() };
        let problem = describe(&row("x", &sizes, "rope", None)).unwrap_err();
        assert_eq!(problem, "not in the row: vocab, d_ff, ffn_gated");
        let hybrid = Row { notes: "hybrid Mamba-2 model".to_owned(), ..row("x", &sizes, "rope", None) };
        assert!(describe(&hybrid).unwrap_err().contains("more than one kind"));
    }
}
