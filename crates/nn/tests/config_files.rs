//! Configurations that people really have: what is read from them and what is said about them.

mod support;

use napkin_nn::config::{Config, Reader, looks_like_llama};
use support::{Sizes, read, said};

fn parse(bytes: &[u8]) -> Config {
    let (config, problems) = Config::parse("config.json", bytes);
    config.unwrap_or_else(|| panic!("{problems}"))
}

fn sizes(bytes: &[u8]) -> Sizes {
    match read(&parse(bytes)) {
        Ok((sizes, _)) => sizes,
        Err(problems) => panic!("{problems}"),
    }
}

#[test]
fn open_cases_are_read() {
    let table: &[(&[u8], [u64; 7], bool)] = &[
        (include_bytes!("data/cfg_gpt2_names.json"), [768, 12, 12, 12, 64, 3072, 50_257], true),
        (include_bytes!("data/cfg_gptq4.json"), [4096, 32, 32, 8, 128, 14_336, 128_256], false),
        (include_bytes!("data/cfg_headdim_not_dh.json"), [5120, 40, 32, 8, 128, 32_768, 131_072], false),
        (include_bytes!("data/cfg_hybrid_blocks_no_layers.json"), [2048, 6, 16, 4, 128, 8192, 32_000], false),
        (include_bytes!("data/cfg_kv_null.json"), [2048, 4, 16, 16, 128, 5632, 32_000], false),
        (include_bytes!("data/cfg_layer_types_all_sliding.json"), [3072, 30, 24, 2, 128, 12_288, 49_152], true),
        (include_bytes!("data/cfg_mla_moe.json"), [7168, 61, 128, 128, 56, 18_432, 129_280], false),
        (include_bytes!("data/cfg_moe_mixtral_names.json"), [4096, 32, 32, 8, 128, 14_336, 32_000], false),
        (include_bytes!("data/cfg_nested_text.json"), [2560, 34, 8, 4, 256, 10_240, 262_208], true),
        (include_bytes!("data/cfg_numbers_as_strings.json"), [2048, 22, 32, 4, 64, 5632, 32_000], false),
        (include_bytes!("data/cfg_qkvbias_untied.json"), [8192, 80, 64, 8, 128, 29_568, 152_064], false),
    ];
    for (bytes, [hidden, layers, heads, kv_heads, head_dim, intermediate, vocab], tied) in table {
        let (hidden, layers, heads) = (*hidden, *layers, *heads);
        let (kv_heads, head_dim, intermediate) = (*kv_heads, *head_dim, *intermediate);
        let (vocab, tied) = (*vocab, *tied);
        let expected = Sizes { hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, tied };
        assert_eq!(sizes(bytes), expected);
    }
}

#[test]
fn null_is_absent_and_the_default_is_an_assumption() {
    let config = parse(include_bytes!("data/cfg_kv_null.json"));
    let (_, resolved) = read(&config).unwrap_or_else(|problems| panic!("{problems}"));
    let assumed: Vec<String> =
        resolved.assumptions.iter().map(|a| format!("{} = {} ({}; {})", a.key, a.value, a.why, a.flag)).collect();
    assert_eq!(
        assumed,
        [
            "num_key_value_heads = 16 (equal to num_attention_heads; --set num_key_value_heads=16)",
            "head_dim = 128 (hidden_size / num_attention_heads; --set head_dim=128)",
        ]
    );
    let readings: Vec<String> =
        resolved.readings.iter().map(|r| format!("{} = {} from {}", r.key, r.value, r.origin)).collect();
    assert_eq!(readings[0], "hidden_size = 2048 from config.json:6:18");
    assert_eq!(readings.len(), 7);
    assert!(resolved.diagnostics.is_empty());
}

#[test]
fn the_text_part_is_chosen_and_named() {
    let config = parse(include_bytes!("data/cfg_nested_text.json"));
    assert_eq!(config.sub_config().as_deref(), Some("text_config"));
    assert_eq!(config.not_counted(), ["vision_config"]);
    assert_eq!(config.model_type(), Some("gemma3_text"));
    assert_eq!(config.wrapper_model_type(), Some("gemma3"));
    assert_eq!(config.architectures(), ["Gemma3ForConditionalGeneration"]);
    assert!(looks_like_llama(&config));
    let mut r = Reader::new(&config);
    assert_eq!(r.dtype().as_deref(), Some("bfloat16"));
    assert_eq!(r.size("hidden_size"), 2560);
    assert_eq!(r.opt_size("mm_tokens_per_image"), None);
}

#[test]
fn the_part_is_found_wherever_it_is() {
    let table = [
        (r#"{"hidden_size": 8}"#, None),
        (r#"{"hidden_size": 8, "text_config": null}"#, None),
        (r#"{"hidden_size": 8, "text_config": {}}"#, None),
        (r#"{"llm_config": {"hidden_size": 8}}"#, Some("llm_config")),
        (r#"{"language_config": {"vocab_size": 8, "hidden_size": 8}}"#, Some("language_config")),
        (
            r#"{"thinker_config": {"audio_config": {}, "text_config": {"hidden_size": 8}}, "talker_config": {"text_config": {"hidden_size": 4}}}"#,
            Some("thinker_config.text_config"),
        ),
        (
            r#"{"hidden_size": 9, "text_config": {"hidden_size": 8}, "vision_config": {"hidden_size": 9}}"#,
            Some("text_config"),
        ),
    ];
    for (text, part) in table {
        let config = parse(text.as_bytes());
        assert_eq!(config.sub_config().as_deref(), part, "{text}");
        assert_eq!(Reader::new(&config).size("hidden_size"), 8, "{text}");
    }
}

#[test]
fn paths_reach_into_objects_and_lists() {
    let text = br#"{"attn_config": {"kv_n_heads": 2, "odd": 1}, "a.b": 3, "blocks": [{"w": 5, "x": 1}, {"w": "6"}]}"#;
    let config = parse(text);
    let mut r = Reader::new(&config);
    assert_eq!(r.size("attn_config.kv_n_heads"), 2);
    assert_eq!(r.size("a.b"), 3);
    let blocks = r.list_len("blocks").unwrap_or(0);
    let widths: Vec<u64> = (0..blocks).map(|i| r.size(&format!("blocks.{i}.w"))).collect();
    assert_eq!(widths, [5, 6]);
    assert_eq!(r.opt_size("blocks.7.w"), None);
    let said = r.finish().map_or_else(|all| all, |resolved| resolved.diagnostics);
    let heads: Vec<String> = said.iter().map(|d| d.message.clone()).collect();
    assert_eq!(
        heads,
        [
            "`attn_config.odd` = 1 is not understood",
            "`blocks.0.x` = 1 is not understood",
            "`blocks.1.w` is a string: \"6\"",
        ]
    );
}

#[test]
fn overrides_replace_add_and_reach_in() {
    let config = parse(include_bytes!("data/cfg_nested_text.json"));
    let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (config, problems) = config.with_overrides(&[
        set("num_key_value_heads", "2"),
        set("text_config.head_dim", "null"),
        set("hidden_act", "gelu"),
        set("rope_scaling.factor", "4"),
        set("new.deep.key", "[1, 2]"),
        set("tie_word_embeddings", "False"),
    ]);
    assert!(problems.is_empty(), "{problems}");
    let (sizes, resolved) = read(&config).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((sizes.kv_heads, sizes.head_dim, sizes.tied), (2, 320, false));
    let reading = resolved.readings.iter().find(|r| r.key == "num_key_value_heads");
    assert_eq!(reading.map(|r| r.origin.as_str()), Some("--set"));
    let mut r = Reader::new(&config);
    assert_eq!(r.text("hidden_act"), "gelu");
    assert_eq!(r.opt_float("rope_scaling.factor"), Some(4.0));
    assert_eq!(r.sizes("new.deep.key"), Some(vec![1, 2]));

    let (_, problems) = config.with_overrides(&[set("", "1"), set("hidden_size.x", "1")]);
    let messages: Vec<String> = problems.iter().map(|d| d.message.clone()).collect();
    assert_eq!(messages, ["`` cannot be set", "`hidden_size.x` cannot be set"]);
}

#[test]
fn infinity_in_a_key_that_costs_nothing_is_a_warning() {
    let text = br#"{"time_step_limit": [0.0, Infinity], "hidden_size": 8}"#;
    let (config, problems) = Config::parse("config.json", text);
    assert!(config.is_some());
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].code, "T0110");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let config = parse(b"\xef\xbb\xbf{\"hidden_size\": 4096.0}");
    assert_eq!(Reader::new(&config).size("hidden_size"), 4096);
    assert!(!said(b"\xef\xbb\xbf{}").contains("T0104"));
}

#[test]
fn a_config_written_again_reads_the_same() {
    let text = r#"{"a": [1, -2.5e-3, "x \"y\" \\ \n", {"b": null, "ü": true}], "c": {}, "d": [], "e": NaN}"#;
    let (config, _) = Config::parse("config.json", text.as_bytes());
    let written = config.expect("this text is right").root().to_string();
    let (again, _) = Config::parse("config.json", written.as_bytes());
    let again = again.expect("so is what is written");
    assert_eq!(again.root().to_string(), written);
    let items = again.root().get("a").and_then(|list| list.items()).expect("a list");
    assert_eq!(items[1].to_string(), "-2.5e-3");
    assert_eq!(items[2].as_str(), Some("x \"y\" \\ \n"));
    assert_eq!(items[3].to_string(), r#"{"b": null, "ü": true}"#);
}
