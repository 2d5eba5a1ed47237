//! A small Llama-like family, as a stand-in for the real ones.

use napkin_nn::config::{Config, Part, Reader, Resolved};
use units::diagnostic::Diagnostics;

/// The sizes the stand-in family reads.
#[derive(Debug, PartialEq)]
pub struct Sizes {
    pub hidden: u64,
    pub layers: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub intermediate: u64,
    pub vocab: u64,
    pub tied: bool,
}

/// Reads the sizes of a Llama-like decoder.
pub fn read(config: &Config) -> Result<(Sizes, Resolved), Diagnostics> {
    let mut r = Reader::new(config);
    let h = r.size(["hidden_size", "n_embd"]);
    let layers = match r.list_len("layers_block_type") {
        Some(len) => r.size_or("num_hidden_layers", len as u64, "length of layers_block_type"),
        None => r.size(["num_hidden_layers", "n_layer"]),
    };
    let a = r.size(["num_attention_heads", "n_head"]);
    let k = r.size_or("num_key_value_heads", a, "equal to num_attention_heads");
    let whole = Part::new("num_attention_heads", a, "query heads");
    let part = Part::new("num_key_value_heads", k, "key/value heads");
    r.require_divides(whole, part, "each key/value head serves an equal number of query heads");
    let d = r.size_or("head_dim", h / a, "hidden_size / num_attention_heads");
    let f = r.size_or(["intermediate_size", "n_inner"], 4 * h, "4 x hidden_size");
    let v = r.size("vocab_size");
    let tied = r.flag("tie_word_embeddings", true);
    r.dtype();
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    r.known(&["hidden_act", "activation_function", "max_position_embeddings"]);
    let resolved = r.finish()?;
    let sizes = Sizes { hidden: h, layers, heads: a, kv_heads: k, head_dim: d, intermediate: f, vocab: v, tied };
    Ok((sizes, resolved))
}

/// Everything that is said about `bytes`, as the user sees it.
pub fn said(bytes: &[u8]) -> String {
    let (config, mut all) = Config::parse("config.json", bytes);
    assert_eq!(config.is_none(), all.has_errors(), "{all}");
    match config.as_ref().map(read) {
        Some(Ok((_, resolved))) => all.extend(resolved.diagnostics),
        Some(Err(problems)) => {
            assert!(problems.has_errors());
            all.extend(problems);
        }
        None => {}
    }
    all.to_string()
}
