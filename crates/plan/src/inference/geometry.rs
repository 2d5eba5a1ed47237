//! What the layers of a model keep by the keys of its config alone: for families whose modules are not known.
//!
//! Heads, widths and windows have the same names in nearly all configs, so that keys and values can be counted where the rest
//! of a model cannot. What is not known is named.

use nn::config::{Config, Reader};
use units::{Diagnostic, Diagnostics};

use super::cache::{Kept, LayerCache, Reach};
use crate::report::{Assumption, Cell, Origin};

/// What a config says of its layers.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// `model_type`, if there is one.
    pub family: String,
    /// What each layer keeps, those that keep nothing left out.
    pub kept: Vec<LayerCache>,
    /// Layers.
    pub layers: u64,
    /// What is kept and not counted.
    pub holes: Vec<String>,
    /// Longest sequence.
    pub max_positions: Option<u64>,
    /// What was assumed because a key was absent.
    pub assumptions: Vec<Assumption>,
}

/// What a layer does with positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Full,
    Sliding,
    Chunked,
    /// A recurrent layer or a state space.
    State,
    /// Attention beside a state.
    Both,
    /// None of it: a feed-forward part.
    Nothing,
}

impl Kind {
    /// From the words in use for layers.
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "full_attention" | "attention" | "global" | "global_attention" | "self_attention" | "*" => Self::Full,
            "sliding_attention" | "sliding" | "local" | "local_attention" => Self::Sliding,
            "chunked_attention" => Self::Chunked,
            "mamba" | "mamba2" | "linear_attention" | "recurrent" | "conv" | "short_conv" | "ssm" | "M" => Self::State,
            "hybrid" => Self::Both,
            "mlp" | "moe" | "ffn" | "-" | "E" => Self::Nothing,
            _ => return None,
        })
    }
}

const LISTS: [&str; 4] = ["layer_types", "layers_block_type", "block_types", "hybrid_override_pattern"];
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];

const HEADS: [&str; 5] = ["num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"];

/// Reads what the layers of a config keep.
///
/// # Errors
/// Keys that are wrong; a config that says nothing of layers or heads.
pub fn read(config: &Config) -> Result<Geometry, Diagnostics> {
    let mut r = Reader::new(config);
    let words = words(&mut r);
    let stated = LAYERS.iter().any(|key| r.has(key)).then(|| r.layers(LAYERS));
    let Some(layers) = stated.or(words.as_ref().map(|words| words.len() as u64)) else {
        return Err(Diagnostic::error("T0301", "the config does not say how many layers there are")
            .help("--set num_hidden_layers=32")
            .into());
    };
    if stated.is_none() {
        r.assume("num_hidden_layers", layers, "the length of the list of layers");
    }
    let mut holes = Vec::new();
    let kinds = kinds(&mut r, layers, words, &mut holes);
    let attends = kinds.iter().any(|kind| !matches!(kind, Kind::State | Kind::Nothing));
    let heads = if attends { Some(Heads::read(&mut r)) } else { None };
    let state = if kinds.iter().any(|kind| matches!(kind, Kind::State | Kind::Both)) { state(&mut r) } else { None };
    let shared = r.opt_count("num_kv_shared_layers").unwrap_or(0).min(layers);
    let mut kept = Vec::new();
    let mut uncounted = 0_u64;
    for (i, kind) in kinds.iter().enumerate() {
        let own = (i as u64) < layers - shared;
        if let (Some(heads), true) = (&heads, own) {
            kept.extend(heads.layer(i, *kind));
        }
        if matches!(kind, Kind::State | Kind::Both) {
            match state {
                Some(bytes) => {
                    let kept_state = Kept::State { bytes };
                    kept.push(LayerCache { layers: 1, kept: kept_state, reach: Reach::All, reads: None });
                }
                None => uncounted += 1,
            }
        }
    }
    if uncounted > 0 {
        holes.push(format!(
            "{uncounted} recurrent or state-space layers keep a state of constant size for each sequence, and the config does not say how large"
        ));
    }
    let max_positions = r.opt_size(["max_position_embeddings", "n_positions", "max_seq_len"]);
    let family = config.model_type().unwrap_or_default().to_owned();
    kept.iter().try_for_each(LayerCache::check)?;
    // Only what is wrong with the keys that were read: the others are for the family.
    let resolved = r.finish()?;
    let assumptions = resolved.assumptions.iter().map(|a| {
        let value = Cell::Text(a.value.clone());
        Assumption::new("config", a.key.clone(), value, Origin::Default).why(format!("not in the config: {}", a.why))
    });
    Ok(Geometry { family, kept, layers, holes, max_positions, assumptions: assumptions.collect() })
}

/// The kinds of layers as a list, where a list says them.
fn words(r: &mut Reader<'_>) -> Option<Vec<String>> {
    let key = LISTS.into_iter().find(|key| r.has(key))?;
    if r.config().find(key).is_some_and(|found| found.value.as_str().is_some()) {
        return Some(r.opt_text(key)?.chars().map(String::from).collect());
    }
    r.texts(key)
}

/// What each layer is.
fn kinds(r: &mut Reader<'_>, layers: u64, words: Option<Vec<String>>, holes: &mut Vec<String>) -> Vec<Kind> {
    let window =
        r.opt_count("sliding_window").is_some_and(|most| most > 0) && r.opt_flag("use_sliding_window") != Some(false);
    let every = |kind: &dyn Fn(u64) -> Kind| (0..layers).map(kind).collect::<Vec<_>>();
    if let Some(words) = words.filter(|words| !words.is_empty()) {
        let mut unknown: Vec<&str> = Vec::new();
        let known: Vec<Kind> = words
            .iter()
            .map(|word| {
                Kind::parse(word).unwrap_or_else(|| {
                    if !unknown.contains(&word.as_str()) {
                        unknown.push(word);
                    }
                    Kind::Nothing
                })
            })
            .collect();
        if !unknown.is_empty() {
            holes.push(format!("layers of kind `{}` are not known: nothing is counted for them", unknown.join("`, `")));
        }
        // A pattern shorter than the model repeats.
        return every(&|i| known[usize::try_from(i).unwrap_or(0) % known.len()]);
    }
    if let Some(period) = r.opt_size("attn_layer_period") {
        let offset = r.count_or("attn_layer_offset", 0, "the first of each period");
        return every(&|i| if i % period == offset { Kind::Full } else { Kind::State });
    }
    if let Some(interval) = r.opt_size("full_attention_interval") {
        return every(&|i| if (i + 1) % interval == 0 { Kind::Full } else { Kind::State });
    }
    if let Some(at) = r.counts(["attn_layer_indices", "full_attn_idxs"]) {
        return every(&|i| if at.contains(&i) { Kind::Full } else { Kind::State });
    }
    if !HEADS.iter().any(|key| r.has(key)) {
        return every(&|_| Kind::State);
    }
    match r.opt_size("sliding_window_pattern").filter(|_| window) {
        Some(period) => every(&|i| if (i + 1) % period == 0 { Kind::Full } else { Kind::Sliding }),
        None => every(&|_| if window { Kind::Sliding } else { Kind::Full }),
    }
}

/// Heads of attention.
struct Heads {
    plain: Vec<Kept>,
    global: Kept,
    window: Option<u64>,
    chunk: Option<u64>,
}

impl Heads {
    fn read(r: &mut Reader<'_>) -> Self {
        let names = HEADS;
        let (window, chunk) = (
            r.opt_count(["sliding_window", "attention_window_size", "window_size"]).filter(|most| *most > 0),
            r.opt_size("attention_chunk_size"),
        );
        if let Some(rank) = r.opt_size("kv_lora_rank") {
            let rotated = r.count_or("qk_rope_head_dim", 0, "no part is rotated apart");
            let width = rank.saturating_add(rotated);
            let kept = Kept::Vector { width, index: false };
            return Self { plain: vec![kept], global: kept, window, chunk };
        }
        let list = |r: &Reader<'_>, key: &str| r.config().find(key).is_some_and(|found| found.value.items().is_some());
        let kv = ["num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"];
        let per_layer = kv.into_iter().find(|key| list(r, key)).and_then(|key| r.counts(key));
        let per_layer = per_layer.filter(|all| !all.is_empty());
        let queries = if list(r, names[0]) {
            r.sizes(names[0]).and_then(|all| all.first().copied())
        } else {
            Some(r.size(names))
        };
        let queries = queries.unwrap_or(1);
        let width = r.opt_size(["head_dim", "attention_head_dim", "kv_channels", "head_size"]).unwrap_or_else(|| {
            let width = r.size(["hidden_size", "n_embd", "d_model"]) / queries.max(1);
            r.assume("head_dim", width, "hidden_size / num_attention_heads");
            width
        });
        let value = r.opt_size("v_head_dim").unwrap_or(width);
        let kept = |kv_heads: u64, key: u64, value: u64| Kept::Heads { kv_heads, key, value };
        let one = match &per_layer {
            Some(all) => all.first().copied().unwrap_or(queries),
            None if r.opt_flag("multi_query").unwrap_or(false) => 1,
            None => r.opt_size(kv).unwrap_or_else(|| {
                r.assume("num_key_value_heads", queries, "every head has its own keys and values");
                queries
            }),
        };
        let plain = match per_layer {
            Some(all) => all.iter().map(|&heads| kept(heads, width, value)).collect(),
            None => vec![kept(one, width, value)],
        };
        let global_heads = r.opt_size("num_global_key_value_heads").unwrap_or(one);
        let global = match r.opt_size("global_head_dim") {
            Some(width) => kept(global_heads, width, width),
            None if global_heads != one => kept(global_heads, width, value),
            None => plain[0],
        };
        Self { plain, global, window, chunk }
    }

    /// What a layer keeps of tokens.
    fn layer(&self, i: usize, kind: Kind) -> Option<LayerCache> {
        let plain = if self.plain.len() == 1 { self.plain[0] } else { *self.plain.get(i)? };
        let (kept, reach) = match kind {
            Kind::State | Kind::Nothing => return None,
            Kind::Sliding => (plain, self.window.map_or(Reach::All, Reach::Window)),
            Kind::Chunked => (plain, self.chunk.map_or(Reach::All, Reach::Chunk)),
            Kind::Full | Kind::Both if self.plain.len() == 1 => (self.global, Reach::All),
            Kind::Full | Kind::Both => (plain, Reach::All),
        };
        let nothing = matches!(kept, Kept::Heads { kv_heads: 0, .. });
        (!nothing).then_some(LayerCache { layers: 1, kept, reach, reads: None })
    }
}

/// Bytes of the state of one layer, in 16 bits or in what the config says, if the config says its sizes: Mamba, Mamba 2, gated delta networks.
fn state(r: &mut Reader<'_>) -> Option<u64> {
    let width = super::stated_state(r.config()).unwrap_or(super::cache::WIDTH);
    let bytes = |state: u64, taps: u64| state.checked_mul(width)?.checked_add(taps.checked_mul(super::cache::WIDTH)?);
    let product = |sizes: &[u64]| sizes.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
    if let (Some(heads), Some(key), Some(value)) =
        (r.opt_size("linear_num_value_heads"), r.opt_size("linear_key_head_dim"), r.opt_size("linear_value_head_dim"))
    {
        let keys = r.size_or("linear_num_key_heads", heads, "one for each of the values");
        let taps = r.size_or("linear_conv_kernel_dim", 4, "the default of the family");
        let channels = product(&[2, keys, key])?.checked_add(product(&[heads, value])?)?;
        return bytes(product(&[heads, key, value])?, product(&[taps - 1, channels])?);
    }
    let n = r.opt_size(["ssm_state_size", "mamba_d_state", "state_size", "d_state"])?;
    let taps = r.opt_size(["conv_kernel", "mamba_d_conv", "d_conv"])?;
    let heads = r.opt_size(["mamba_num_heads", "mamba_n_heads", "n_mamba_heads"]);
    let width = r.opt_size(["mamba_head_dim", "mamba_d_head", "mamba_headdim"]);
    let groups = r.opt_size(["n_groups", "mamba_n_groups", "mamba_ngroups"]).filter(|_| heads.is_some()).unwrap_or(0);
    let inner = match (heads, width) {
        (Some(heads), Some(width)) => product(&[heads, width])?,
        _ => product(&[r.opt_size(["mamba_expand", "expand"])?, r.opt_size("hidden_size")?])?,
    };
    let conv = inner.checked_add(product(&[2, groups, n])?)?;
    bytes(product(&[inner, n])?, product(&[taps - 1, conv])?)
}
