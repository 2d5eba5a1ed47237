//! Config files as people have them, and the counts that are right for them.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::families::{self, Loaded};
use napkin_nn::param::ParamKind;
use napkin_nn::spec::{AttentionSpec, LayerSpec};
use napkin_nn::step;

fn load(bytes: &[u8]) -> Loaded {
    let (config, problems) = Config::parse("config.json", bytes);
    families::load(&config.unwrap_or_else(|| panic!("{problems}")), None).unwrap_or_else(|e| panic!("{e}"))
}

/// Stored elements, each tensor once, and with every name counted.
fn elements(loaded: &Loaded) -> (u64, u64) {
    let params = step::parameters(&loaded.spec).unwrap();
    let stored = params.iter().map(|p| p.elements).sum();
    (stored, params.iter().map(|p| p.elements * (1 + p.tied.len() as u64)).sum())
}

fn attention(layer: &LayerSpec) -> &AttentionSpec {
    layer.attention().unwrap()
}

fn assumed(loaded: &Loaded, key: &str) -> Option<String> {
    loaded.resolved.assumptions.iter().find(|a| a.key == key).map(|a| a.value.clone())
}

/// ui-01: the language part of a model with a vision part, tied by default though no key says so.
#[test]
fn language_part_of_gemma_3() {
    let loaded = load(include_bytes!("data/cfg_nested_text.json"));
    assert_eq!(elements(&loaded), (3_880_263_168, 4_551_515_648));
    assert_eq!(assumed(&loaded, "tie_word_embeddings").as_deref(), Some("true"));
    let windows: Vec<_> = loaded.spec.layers.iter().map(|layer| attention(layer).window).collect();
    assert_eq!(windows.len(), 34);
    assert_eq!(windows.iter().filter(|w| w.is_none()).count(), 5);
    assert_eq!(windows.iter().filter(|w| **w == Some(1024)).count(), 29);
    let per_token: u64 = loaded.spec.layers.iter().map(|l| 2 * 2 * attention(l).kv_heads * attention(l).head_dim).sum();
    assert_eq!(per_token, 139_264);
}

/// ui-02: `null` is as good as absent.
#[test]
fn null_heads_mean_the_default() {
    let loaded = load(include_bytes!("data/cfg_kv_null.json"));
    assert_eq!(elements(&loaded).0, 336_611_328);
    assert_eq!(assumed(&loaded, "num_key_value_heads").as_deref(), Some("16"));
    assert_eq!(assumed(&loaded, "head_dim").as_deref(), Some("128"));
}

/// plan-09: biases that no key announces, the head not tied.
#[test]
fn biases_of_qwen_2() {
    let loaded = load(include_bytes!("data/cfg_qkvbias_untied.json"));
    let params = step::parameters(&loaded.spec).unwrap();
    let count =
        |keep: &dyn Fn(ParamKind) -> bool| params.iter().filter(|p| keep(p.kind)).map(|p| p.elements).sum::<u64>();
    assert_eq!(count(&|_| true), 72_706_203_648);
    assert_eq!(count(&|kind| kind != ParamKind::Embedding), 71_460_495_360);
    assert_eq!(count(&|kind| matches!(kind, ParamKind::Matrix | ParamKind::Head)), 71_458_357_248);
    assert!(loaded.spec.layers.iter().all(|layer| attention(layer).window.is_none()), "the window is switched off");
}

/// plan-07: heads that do not add up to the width, and a window that is `null`.
#[test]
fn mistral_with_heads_of_their_own_size() {
    let loaded = load(include_bytes!("data/cfg_headdim_not_dh.json"));
    assert_eq!(elements(&loaded).0, 23_572_403_200);
    assert_eq!(attention(&loaded.spec.layers[0]).window, None);
}

/// A Mistral file that does not mention the window has the one of the class.
#[test]
fn mistral_without_the_key_has_a_window() {
    let text = String::from_utf8(include_bytes!("data/cfg_headdim_not_dh.json").to_vec()).unwrap();
    let without = text.replace("\"sliding_window\": null,", "");
    assert_ne!(text, without);
    let loaded = load(without.as_bytes());
    assert_eq!(attention(&loaded.spec.layers[0]).window, Some(4096));
    assert_eq!(assumed(&loaded, "sliding_window").as_deref(), Some("4096"));
}

/// Numbers in quotes, one with a thousands separator: the sizes of `TinyLlama`.
#[test]
fn numbers_as_strings() {
    let loaded = load(include_bytes!("data/cfg_numbers_as_strings.json"));
    assert_eq!(elements(&loaded), (1_100_048_384, 1_100_048_384));
}

/// inference-07: a window over every layer of StarCoder 2.
#[test]
fn every_layer_slides() {
    let loaded = load(include_bytes!("data/cfg_layer_types_all_sliding.json"));
    assert_eq!(loaded.spec.layers.len(), 30);
    assert!(loaded.spec.layers.iter().all(|layer| attention(layer).window == Some(4096)));
    let per_token: u64 = loaded.spec.layers.iter().map(|l| 2 * 2 * attention(l).kv_heads * attention(l).head_dim).sum();
    assert_eq!(per_token, 30_720);
}

/// ui-04: a hybrid that lists its blocks and names neither their number nor the sizes of its state spaces.
#[test]
fn a_list_of_blocks_says_how_many_there_are() {
    let loaded = load(include_bytes!("data/cfg_hybrid_blocks_no_layers.json"));
    assert_eq!(loaded.spec.layers.len(), 6);
    let attends: Vec<_> = loaded.spec.layers.iter().filter_map(|layer| layer.attention()).collect();
    assert_eq!(attends.len(), 1);
    assert_eq!(attends.iter().map(|a| 2 * 2 * a.kv_heads * a.head_dim).sum::<u64>(), 2048);
    let gap = loaded.spec.not_modelled.iter().find(|what| what.contains("Mamba blocks")).expect("the gap is named");
    assert!(gap.contains("3 Mamba blocks (mamba_num_heads, mamba_head_dim, ssm_state_size)"), "{gap}");
    assert_eq!(assumed(&loaded, "mamba_num_heads").as_deref(), Some("128"));
}
