//! Inference: cases of users with right answers, and the cache that the engine really makes.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan as plan;
use nn::config::Config;
use nn::reading::{self, Reading};
use plan::fit::{Choice, Memory};
use plan::fleet::Fleet;
use plan::hardware::{self, Precision};
use plan::inference::cache::{Cache, Kept};
use plan::inference::weights::Weights;
use plan::inference::{Request, Room, What};
use plan::model::Model;
use plan::params::parameters;
use plan::presets;
use plan::quant::{Format, Storage};
use plan::report::{Report, Value, Verdict};
use std::path::Path;
use tensor::DType;
use units::{Bytes, Params};

fn default<T>(value: T) -> Choice<T> {
    Choice { value, given: false }
}

fn request(what: What<'_>, seq_len: u64) -> Request<'_> {
    Request {
        what,
        weights: default(Storage::Format(Format::bf16())),
        stated: None,
        cache: default(Format::bf16()),
        state: default(2),
        seq_len: default(seq_len),
        prompt: default(seq_len),
        encoder_len: default(1),
        batch: default(1),
        block: default(plan::inference::BLOCK),
        chunk: default(plan::inference::CHUNK),
        tp: default(1),
        room: Room::None,
        utilization: default(1.0),
        runtime: default(Bytes::ZERO),
        fleet: None,
        mfu: default(1.0),
        mbu: default(1.0),
    }
}

fn preset(name: &str, overrides: &[(&str, &str)]) -> Model {
    let (name, text) = presets::find(name).unwrap();
    let overrides: Vec<_> = overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Model::from_text(name, "config.json", text.as_bytes(), &overrides, None).unwrap_or_else(|e| panic!("{e}"))
}

fn file(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nn/tests/data").join(name);
    let text = std::fs::read(path).unwrap();
    Model::from_text(name, name, &text, &[], None).unwrap_or_else(|e| panic!("{e}"))
}

fn get<'a>(report: &'a Report, path: &[&str]) -> &'a Value {
    path.iter().fold(&report.result, |value, name| value.get(name).unwrap_or_else(|| panic!("no {name} in {path:?}")))
}

fn uint(report: &Report, path: &[&str]) -> u128 {
    get(report, path).as_uint().unwrap_or_else(|| panic!("{path:?}"))
}

fn num(report: &Report, path: &[&str]) -> f64 {
    get(report, path).as_f64().unwrap_or_else(|| panic!("{path:?}"))
}

fn near(is: f64, right: f64, share: f64) {
    assert!((is / right - 1.0).abs() <= share, "{is} is not {right}");
}

const GIB: f64 = (1_u64 << 30) as f64;

/// inference-01: heads and widths as stated, not as derived from `hidden_size`.
#[test]
fn inference_01_stated_head_width() {
    let gemma = [
        ("num_hidden_layers", "48"),
        ("hidden_size", "3840"),
        ("num_key_value_heads", "8"),
        ("num_attention_heads", "16"),
        ("head_dim", "256"),
    ];
    let qwen = [("num_hidden_layers", "64"), ("num_attention_heads", "64"), ("hidden_size", "5120")];
    let oss = [("num_hidden_layers", "24"), ("layer_types", "null")];
    for (model, bytes) in [
        (file("cfg_headdim_not_dh.json"), 163_840),
        (preset("gpt-oss-120b", &oss), 49_152),
        (preset("gemma-3-1b", &gemma), 393_216),
        (preset("qwen3-4b", &qwen), 262_144),
        (preset("qwen3-4b", &[]), 147_456),
    ] {
        let report = request(What::Model(&model), 4096).report().unwrap();
        assert_eq!(uint(&report, &["cache", "bytes_per_token"]), bytes, "{}", model.name);
    }
}

/// inference-05: a 7 B model at 32k, a 70 B model with 8 and with 64 key/value heads.
#[test]
fn inference_05_long_contexts() {
    let ungrouped = [("num_key_value_heads", "64")];
    for (name, overrides, token, gib) in [
        ("llama-2-7b", &[][..], 524_288, 16.0),
        ("llama-2-70b", &[], 327_680, 10.0),
        ("llama-2-70b", &ungrouped, 2_621_440, 80.0),
    ] {
        let model = preset(name, overrides);
        let report = request(What::Model(&model), 32_768).report().unwrap();
        assert_eq!(uint(&report, &["cache", "bytes_per_token"]), token);
        near(num(&report, &["cache", "sequence_bytes_device"]) / GIB, gib, 1e-12);
    }
    let bare = |heads| What::Bare {
        name: "70B".to_owned(),
        total: Params(70_000_000_000),
        active: Params(70_000_000_000),
        heads: Some(heads),
    };
    let report = request(bare([80, 8, 128]), 32_768).report().unwrap();
    near(num(&report, &["cache", "sequence_bytes_device"]) / 1e9, 10.74, 1e-3);
}

/// inference-06: memory is asked for all parameters, bandwidth for those of a token.
#[test]
fn inference_06_active_parameters_are_not_memory() {
    let what = What::Bare {
        name: "122B".to_owned(),
        total: Params(125_100_000_000),
        active: Params(10_000_000_000),
        heads: None,
    };
    let weights = default(Storage::PerParameter(0.58));
    let asked = Request { weights, room: Room::Memory(Memory::Given(Bytes::gb(48))), ..request(what, 8192) };
    let report = asked.report().unwrap();
    assert_eq!(report.verdict, Verdict::No);
    near(num(&report, &["weights", "bytes"]) / 1e9, 72.6, 0.01);
    near(num(&report, &["weights", "active_bytes"]) / 1e9, 5.8, 0.01);
    near(num(&report, &["weights", "read_bytes_per_step_device"]) / 1e9, 5.8, 0.01);
    assert_eq!(get(&report, &["memory", "fits"]), &Value::Bool(false));
    let larger = Request { room: Room::Memory(Memory::Given(Bytes::gb(80))), ..asked };
    assert_eq!(larger.report().unwrap().verdict, Verdict::Answered);
}

/// inference-07: what the engine charges where all layers have a window, beside what the model needs.
#[test]
fn inference_07_windows_in_an_engine() {
    let model = file("cfg_layer_types_all_sliding.json");
    let asked = Request { room: Room::Tokens(2_198_512), ..request(What::Model(&model), 16_384) };
    let report = asked.report().unwrap();
    assert_eq!(uint(&report, &["cache", "bytes_per_token"]), 30_720);
    assert_eq!(uint(&report, &["engine", "tokens_charged_per_sequence"]), 12_304);
    for (name, right) in
        [("sequences_engine", 178.68), ("sequences_model", 536.7), ("sequences_without_windows", 134.19)]
    {
        assert!((num(&report, &["room", name]) - right).abs() < 0.1, "{name}");
    }
}

/// ui-01: the language part of a nested config; five layers without a window.
#[test]
fn ui_01_nested_language_part() {
    let model = file("cfg_nested_text.json");
    let report = request(What::Model(&model), 131_072).report().unwrap();
    assert_eq!(uint(&report, &["cache", "layers"]), 34);
    assert_eq!(uint(&report, &["cache", "bytes_per_token"]), 139_264);
    assert_eq!(uint(&report, &["weights", "parameters"]), 3_880_263_168);
    near(num(&report, &["cache", "sequence_bytes_device"]) / GIB, 2.613, 2e-4);
    near(num(&report, &["cache", "sequence_bytes_without_windows_device"]) / GIB, 17.0, 1e-12);
    let Value::List(kinds) = get(&report, &["cache", "by_kind"]) else { panic!("no kinds") };
    let layers: Vec<_> = kinds.iter().map(|kind| kind.get("layers").and_then(Value::as_uint)).collect();
    assert_eq!(layers, [Some(29), Some(5)]);
    assert!(report.warnings.iter().any(|w| w.effect.as_deref().is_some_and(|e| e.contains("vision_config"))));
}

/// LLaVA: the vision part is in memory, and no token reads it.
#[test]
fn parts_beside_the_language_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs/llava-1.5-7b.json");
    let model = Model::from_text("llava", "config.json", &std::fs::read(path).unwrap(), &[], None).unwrap();
    let report = request(What::Model(&model), 2048).report().unwrap();
    let parts = uint(&report, &["weights", "other_parts_parameters"]);
    assert_eq!(uint(&report, &["weights", "parameters"]) + parts, 7_063_427_072);
    assert_eq!(uint(&report, &["weights", "device_bytes"]), 2 * 7_063_427_072);
    assert!(uint(&report, &["weights", "read_bytes_per_step_device"]) < 2 * 6_738_939_904);
}

/// ui-02: null is absent.
#[test]
fn ui_02_null_heads() {
    let model = file("cfg_kv_null.json");
    let report = request(What::Model(&model), 4096).report().unwrap();
    assert_eq!(uint(&report, &["cache", "bytes_per_token"]), 32_768);
    assert_eq!(uint(&report, &["weights", "parameters"]), 336_611_328);
    let assumed = |label: &str| report.assumptions.iter().any(|one| one.label == label);
    assert!(assumed("num_key_value_heads") && assumed("head_dim"));
}

/// Compressed keys and values: 512 + 64 numbers of a token in each of 61 layers, on every device alike.
#[test]
fn latent_attention_on_several_devices() {
    let model = preset("deepseek-v3", &[]);
    for tp in [1, 8] {
        let asked = Request { tp: default(tp), ..request(What::Model(&model), 4096) };
        let report = asked.report().unwrap();
        assert_eq!(uint(&report, &["cache", "bytes_per_token"]), 61 * 576 * 2);
        assert_eq!(uint(&report, &["cache", "bytes_per_token_device"]), 61 * 576 * 2, "tp {tp}");
    }
}

/// A cache in 8 bits is half as large; one in blocks of 32 with a scale 34/64 of it.
#[test]
fn quantised_caches() {
    let model = preset("llama-3.1-8b", &[]);
    for (format, bytes) in [("bf16", 131_072), ("fp8", 65_536), ("q8_0", 69_632), ("q4_0", 36_864)] {
        let asked = Request { cache: default(Format::find(format).unwrap()), ..request(What::Model(&model), 4096) };
        assert_eq!(uint(&asked.report().unwrap(), &["cache", "bytes_per_token"]), bytes, "{format}");
    }
}

/// DeepSeek-V4-Flash by hand: of its 43 layers 21 keep a key of 512 and one of 128 for every four tokens, 20 a key of 512 for
/// every 128, all a window of 128 keys of 512; a new token reads 512 chosen blocks.
#[test]
fn compressed_blocks() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs/DeepSeek-V4-Flash.json");
    let (config, _) = Config::parse("config.json", &std::fs::read(path).unwrap());
    let spec = nn::families::load(&config.unwrap(), None).unwrap().spec;
    let cache = Cache::of(&spec, Format::find("bf16").unwrap(), 2).unwrap();
    assert_eq!(cache.uncounted, 0);
    let far = 21 * (2 * 512 / 4 + 2 * 128 / 4) + 20 * (2 * 512 / 128);
    assert_eq!(cache.far_token_bytes(1), far);
    assert_eq!(cache.token_bytes(1), far + 43 * 2 * 512);
    // Of the block that is not over, keys and gates, and of overlapping blocks those of the one before.
    let pending = 21 * 2 * 2 * 2 * 4 * (512 + 128) + 20 * 2 * 2 * 128 * 512;
    let window = 43 * 2 * 512 * 128;
    assert_eq!(cache.sequence_bytes(1 << 20, 1), (far << 20) as u128 + window + pending);
    let read = 21 * (2 * 512 * 512 + 2 * 128 * (1 << 20) / 4) + 20 * (2 * 512 / 128) * (1 << 20);
    assert_eq!(cache.read_bytes(1 << 20, 1), read + window + 2 * pending);

    // Scores of a window and of blocks, by the pairs that are needed, wherever the text is cut.
    let small = nn::ModelSpec { layers: spec.layers[1..4].to_vec(), ..spec };
    for (past, new) in [(0, 256), (1024, 256), (1023, 1), (1023, 2), (1021, 2), (126, 3), (1, 1), (2050, 1)] {
        let reading = Reading { batch: 1, past, new, encoded: None, dtype: DType::BF16 };
        let traced = reading::trace(&small, &reading).unwrap().trace;
        let scores: u128 = traced.ops.iter().filter(|e| e.op.name() == "attention").map(|e| e.cost.matmul).sum();
        let each = (past + 1..=past + new).map(u128::from);
        let pairs: u128 = each.map(|t| 3 * t.min(128) + (t / 4).min(512) + t / 128).sum();
        assert_eq!(scores, 64 * 2 * 2 * 512 * pairs, "{new} behind {past}");
    }
}

/// What is predicted of a token is what the engine's own cache holds, for every family. The engine keeps the keys and
/// values of each head also where attention is latent, and windows do not end its cache.
#[test]
fn the_engine_keeps_what_is_predicted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nn/tests/data/tiny");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (config, _) = Config::parse("tiny", &std::fs::read(&path).unwrap());
        let spec = nn::families::load(&config.unwrap(), None).unwrap().spec;
        if !spec.continues_from_keys() {
            continue;
        }
        let mut cache = Cache::of(&spec, Format::find("fp32").unwrap(), 2).unwrap();
        cache.kinds.retain(|kind| !matches!(kind.kept, Kept::Vector { index: true, .. }));
        for (kind, layer) in cache.kinds.iter_mut().zip(&spec.layers) {
            if let (Kept::Vector { width, .. }, Some(attention)) = (kind.kept, layer.attention()) {
                assert!(width < attention.kv_heads * (attention.head_dim + attention.value_dim), "{path:?}");
                let (key, value) = (attention.head_dim, attention.value_dim);
                kind.kept = Kept::Heads { kv_heads: attention.heads, key, value };
            }
        }
        let read =
            reading::trace(&spec, &Reading { batch: 2, past: 3, new: 4, encoded: None, dtype: DType::F32 }).unwrap();
        assert_eq!(read.cache_bytes, 2 * 7 * cache.token_bytes(1), "{path:?}");
        checked += 1;
    }
    assert!(checked > 30);
}

/// Llama-3.1-8B on an H100 by hand: 16.06 GB of weights, of which a token does not read the table; 131,072 B of a token.
#[test]
fn times_by_hand() {
    let model = preset("llama-3.1-8b", &[]);
    let h100 = hardware::find("h100-sxm").unwrap();
    let fleet = Fleet {
        hardware: h100.clone(),
        devices: 1,
        devices_given: true,
        precision: Precision::Bf16,
        precision_given: true,
    };
    let asked = Request {
        prompt: default(2048),
        batch: default(16),
        room: Room::Memory(Memory::Of(Box::new(h100.clone()))),
        utilization: default(0.9),
        fleet: Some(fleet),
        mbu: default(0.5),
        ..request(What::Model(&model), 4096)
    };
    let report = asked.report().unwrap();
    let weights = 2.0 * 8_030_261_248.0 - 2.0 * 128_256.0 * 4096.0;
    let cache = 131_072.0 * 4096.0;
    let token = (weights + cache) / (3.35e12 * 0.5);
    near(num(&report, &["time", "time_per_output_token_seconds"]), token, 1e-9);
    let Value::List(decode) = get(&report, &["time", "decode"]) else { panic!("no decode") };
    assert_eq!(decode[1].get("sequences").and_then(Value::as_uint), Some(16));
    let sixteen = decode[1].get("seconds").and_then(Value::as_f64).unwrap();
    near(sixteen, (weights + 16.0 * cache) / (3.35e12 * 0.5), 1e-9);
    // Matrices of blocks for every token, the head for the last one, and the causal pairs of 32 heads.
    let blocks = 2.0 * (7_504_658_432.0 - 128_256.0 * 4096.0) * 2048.0;
    let head = 2.0 * 128_256.0 * 4096.0;
    let attention = 32.0 * 2.0 * 2.0 * 4096.0 * (2048.0 * 2049.0 / 2.0);
    near(num(&report, &["time", "prefill", "flop"]), blocks + head + attention, 1e-9);
    near(num(&report, &["time", "time_to_first_token_seconds"]), (blocks + head + attention) / 989.5e12, 1e-9);
    // One token: every matrix once, and 4096 keys and values.
    let one = 2.0 * 7_504_658_432.0 + 32.0 * 2.0 * 2.0 * 4096.0 * 4096.0;
    near(decode[0].get("flop").and_then(Value::as_f64).unwrap(), one, 1e-9);
}

/// What cannot be asked is refused, all of it at once.
#[test]
fn impossible_questions() {
    let model = preset("llama-3.1-8b", &[]);
    let asked =
        Request { tp: default(3), prompt: default(9000), mbu: default(1.5), ..request(What::Model(&model), 4096) };
    let problems = asked.report().unwrap_err().to_string();
    for part in
        ["--prompt 9000 is longer", "--mbu 1.5 is no share", "32 query heads cannot be divided evenly", "--tp 2"]
    {
        assert!(problems.contains(part), "{part}: {problems}");
    }
    for block in [0, u64::MAX] {
        let asked = Request { block: default(block), ..request(What::Model(&model), 4096) };
        assert!(asked.report().is_err());
    }
    let learned = preset("gpt2", &[]);
    assert!(request(What::Model(&learned), 4096).report().unwrap_err().to_string().contains("positions"));
}

/// A state of more bytes than are counted is refused by name, not saturated: heads of 2^30 by 2^30 in 32 of them.
#[test]
fn states_beyond_counting_are_refused() {
    let text = include_bytes!("../../nn/tests/data/tiny/qwen3_next.json");
    let set = |width: &str| {
        ["linear_key_head_dim", "linear_value_head_dim"].map(|key| (key.to_owned(), width.to_owned())).to_vec()
    };
    let cache = |width: &str| {
        let model = Model::from_text("tiny", "config.json", text, &set(width), None).unwrap();
        Cache::of(&model.spec, Format::bf16(), 2)
    };
    assert!(cache("64").is_ok());
    let problem = cache("1073741824").unwrap_err().to_string();
    assert!(problem.contains("T0305") && problem.contains("bytes of a state"), "{problem}");
}

/// What the keys of a config say, whatever the family: the cache of one sequence, layer kind by layer kind.
fn keys(text: &str) -> (Cache, Vec<String>) {
    let (config, problems) = Config::parse("config.json", text.as_bytes());
    let geometry = plan::inference::geometry::read(&config.unwrap_or_else(|| panic!("{problems}")));
    let geometry = geometry.unwrap_or_else(|e| panic!("{e}"));
    (Cache::new(geometry.kept.iter().copied(), geometry.layers, Format::bf16()), geometry.holes)
}

/// ui-04: a list of kinds instead of a number of layers; the states are named, not guessed.
#[test]
fn ui_04_a_list_of_kinds() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nn/tests/data/cfg_hybrid_blocks_no_layers.json");
    let (cache, holes) = keys(&std::fs::read_to_string(path).unwrap());
    assert_eq!((cache.layers, cache.attention_layers(), cache.token_bytes(1)), (6, 1, 2048));
    assert!(holes[0].starts_with("3 recurrent or state-space layers"), "{holes:?}");
}

/// Keys of families whose modules are not known: shared keys and values, heads and widths of their own for each kind of
/// layer, a list of heads, patterns, latents, states.
#[test]
fn keys_of_any_family() {
    let gemma3n = r#"{"model_type": "x", "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "hidden_size": 2048, "sliding_window": 512, "num_kv_shared_layers": 2, "layer_types":
        ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
        "full_attention"]}"#;
    let (cache, holes) = keys(gemma3n);
    assert_eq!((cache.token_bytes(1), holes.len()), (4 * 2 * 2 * 256 * 2, 0));
    assert_eq!(cache.sequence_bytes(1024, 1), (3 * 512 + 1024) * 2 * 2 * 256 * 2);

    let gemma4 = r#"{"model_type": "x", "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2, "hidden_size": 2816,
        "sliding_window": 1024, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}"#;
    assert_eq!(keys(gemma4).0.token_bytes(1), (2 * 8 * 256 + 2 * 512) * 2 * 2);

    let listed = r#"{"model_type": "openelm", "num_transformer_layers": 3, "num_layers": 3, "num_attention_heads": 16,
        "num_kv_heads": [3, 4, 5], "head_dim": 64}"#;
    assert_eq!(keys(listed).0.token_bytes(1), (3 + 4 + 5) * 64 * 2 * 2);

    let jamba = r#"{"model_type": "x", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4096, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4,
        "mamba_expand": 2}"#;
    let (cache, holes) = keys(jamba);
    assert_eq!((cache.token_bytes(1), holes.len()), (4 * 8 * 128 * 2 * 2, 0));
    assert_eq!(cache.state_bytes(1), 28 * (8192 * 16 + 3 * 8192) * 2);

    let latent = r#"{"model_type": "x", "num_hidden_layers": 2, "num_attention_heads": 16, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64}"#;
    assert_eq!(keys(latent).0.token_bytes(8), 2 * 576 * 2);

    let pattern = r#"{"model_type": "x", "hybrid_override_pattern": "M-M*", "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 128}"#;
    let (cache, holes) = keys(pattern);
    assert_eq!((cache.layers, cache.token_bytes(1), holes.len()), (4, 2 * 4 * 128 * 2, 1));

    let delta = r#"{"model_type": "x", "num_hidden_layers": 4, "full_attention_interval": 4, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}"#;
    assert_eq!(keys(delta).0.state_bytes(1), 3 * 2 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)));

    for nothing in [r#"{"model_type": "x"}"#, r#"{"num_hidden_layers": 4, "num_attention_heads": "many"}"#] {
        let (config, _) = Config::parse("config.json", nothing.as_bytes());
        assert!(plan::inference::geometry::read(&config.unwrap()).is_err(), "{nothing}");
    }
}

/// Sizes at the edge of counting give numbers or refusals, and no panic.
#[test]
fn sizes_beyond_counting() {
    let huge = ["1", "1048576", "4611686018427387904", "18446744073709551615"];
    for heads in huge {
        for width in huge {
            let text = format!(
                r#"{{"model_type": "x", "num_hidden_layers": 1000, "num_attention_heads": {heads}, "head_dim": {width},
                    "sliding_window": {width}, "layer_types": ["mamba", "full_attention", "sliding_attention"],
                    "mamba_d_state": {heads}, "mamba_d_conv": 4, "mamba_expand": {width}, "hidden_size": {heads}}}"#
            );
            let (config, _) = Config::parse("config.json", text.as_bytes());
            let Ok(geometry) = config.ok_or(()).and_then(|c| plan::inference::geometry::read(&c).map_err(drop)) else {
                continue;
            };
            let what = What::Partial { name: "x".to_owned(), geometry, params: None, notes: Vec::new() };
            let asked = Request {
                block: default(1 << 31),
                chunk: default(1 << 31),
                room: Room::Tokens(u64::MAX),
                ..request(what, 1 << 31)
            };
            asked.report().unwrap();
        }
    }
    let bare = |heads| {
        let (name, total) = ("x".to_owned(), Params(u64::MAX));
        let what = What::Bare { name, total, active: total, heads: Some(heads) };
        Request { room: Room::Memory(Memory::Given(Bytes(u64::MAX))), ..request(what, 2) }.report()
    };
    bare([u64::MAX, 1 << 20, 1 << 19]).unwrap();
    assert!(bare([1, u64::MAX, 2]).unwrap_err().to_string().contains("T0305"));
}

/// State-space layers keep the same of every sequence: states of the channels, and three positions of the convolution.
#[test]
fn states_of_hybrid_models() {
    let open = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs").join(name);
        Model::from_text(name, name, &std::fs::read(path).unwrap(), &[], None).unwrap_or_else(|e| panic!("{e}"))
    };
    let mamba = open("mamba-1.4b-hf.json");
    for tokens in [2, 100_000] {
        let report = request(What::Model(&mamba), tokens).report().unwrap();
        assert_eq!(uint(&report, &["cache", "bytes_per_token"]), 0);
        assert_eq!(uint(&report, &["cache", "sequence_bytes_device"]), 48 * 2 * (4096 * 16 + 3 * 4096));
        assert_eq!(uint(&report, &["engine", "blocks_per_sequence"]), 1);
    }
    let fleet = Fleet {
        hardware: hardware::find("h100-sxm").unwrap().clone(),
        devices: 1,
        devices_given: true,
        precision: Precision::Bf16,
        precision_given: true,
    };
    let asked = Request { fleet: Some(fleet), ..request(What::Model(&mamba), 4096) };
    let report = asked.report().unwrap();
    let weights = 2.0 * num(&report, &["weights", "parameters"]);
    let states = 2.0 * 48.0 * 2.0 * (4096.0 * 16.0 + 3.0 * 4096.0);
    near(num(&report, &["time", "time_per_output_token_seconds"]), (weights + states) / 3.35e12, 1e-9);
    // Every weight but the norms' and the table's rows: one product for each.
    let decode = num(&report, &["time", "prefill", "flop"]);
    assert!(decode > 2.0 * 1.2e9 * 4096.0);

    // Every layer of a hybrid model keeps something, and the layers of a kind are those of its config.
    for (name, attention, states, state) in [
        ("default-jamba.json", 4, 28, 8192 * 16 + 3 * 8192),
        ("default-zamba2.json", 9, 54, 5120 * 64 + 3 * (5120 + 2 * 64)),
        ("default-qwen3-next.json", 12, 36, 32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)),
        ("default-recurrent-gemma.json", 8, 18, 4 * 2560),
        ("default-minimax.json", 16, 16, 32 * 128 * 128),
        ("default-rwkv.json", 0, 32, 3 * 4096 + 2 * 4096),
    ] {
        let model = open(name);
        let report = request(What::Model(&model), 4096).report().unwrap();
        assert_eq!(uint(&report, &["cache", "attention_layers"]), attention, "{name}");
        assert_eq!(uint(&report, &["cache", "state_bytes_device"]), 2 * states * state, "{name}");
        assert!(report.warnings.iter().all(|w| !w.message.contains("the state of")), "{name}");
    }
}

/// What the engine itself logged: blocks of the pool, and sequences of a length that it serves at a time.
///
/// vllm-project/vllm issues 10517 (Llama-3.1-8B on a 3090), 40691 (Qwen3.5-27B); LMCache/LMCache issue 1739 (Qwen3-14B);
/// vllm-project/tpu-inference pull request 223 (16.00 GiB for 131,072 tokens of Llama-3.1-8B).
#[test]
fn what_engines_logged() {
    let llama = preset("llama-3.1-8b", &[]);
    for (gib, tokens, blocks, served) in [(3.81, 20_000, 1952_u32, 1.56), (2.89, 29_000, 1478, 0.82)] {
        let pool = Room::Bytes(Bytes((gib * GIB) as u64));
        let report = Request { room: pool, ..request(What::Model(&llama), tokens) }.report().unwrap();
        near(num(&report, &["room", "pool_blocks"]), f64::from(blocks), 0.002);
        let logged = Request { room: Room::Tokens(16 * u64::from(blocks)), ..request(What::Model(&llama), tokens) };
        let served_here = num(&logged.report().unwrap(), &["room", "sequences_engine"]);
        assert!((served_here - served).abs() < 0.005, "{served_here}");
    }
    let report = request(What::Model(&llama), 131_072).report().unwrap();
    near(num(&report, &["engine", "sequence_bytes_device"]) / GIB, 16.0, 1e-12);

    let qwen = [("num_hidden_layers", "40"), ("num_attention_heads", "40"), ("hidden_size", "5120")];
    let qwen = preset("qwen3-4b", &qwen);
    let pool = Room::Bytes(Bytes((6.51 * GIB) as u64));
    let report = Request { room: pool, ..request(What::Model(&qwen), 32_768) }.report().unwrap();
    near(num(&report, &["room", "engine_tokens"]), 42_656.0, 0.001);
    near(num(&report, &["room", "sequences_engine"]), 1.30, 0.003);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs/Qwen3.5-27B.json");
    let text = std::fs::read(path).unwrap();
    let hybrid = Model::from_text("Qwen3.5-27B", "config.json", &text, &[], None).unwrap();
    let (config, _) = Config::parse("config.json", &text);
    assert_eq!(plan::inference::stated_state(&config.unwrap()), Some(4));
    let asked = Request {
        state: default(4),
        chunk: default(16_384),
        room: Room::Tokens(290_864),
        ..request(What::Model(&hybrid), 32_768)
    };
    let report = asked.report().unwrap();
    // A log of the tokens drops what is left of a block of each of four groups.
    near(num(&report, &["room", "sequences_engine"]), 33.04, 0.003);
    assert_eq!(uint(&report, &["engine", "layers_per_group"]), 16);
}

/// The blocks that the engine says it needs beside states: `Setting attention block size to N tokens`, and by how much it
/// pads the states.
#[test]
fn blocks_beside_states_as_engines_logged_them() {
    use plan::inference::cache::{LayerCache, Reach};
    use plan::inference::paged::{Engine, Layout};
    // Layers of each kind and heads as Qwen3.5-9B, Qwen3.5-35B-A3B, Qwen3.5-27B and Qwen3-Next have them.
    for (value_heads, kv_heads, state, format, block, padding) in [
        (32, 4, 4, "bf16", 528, None),
        (32, 4, 4, "fp8", 1056, None),
        (32, 2, 4, "bf16", 1056, Some(0.76)),
        (48, 4, 4, "bf16", 784, Some(0.13)),
        (48, 4, 4, "fp8", 1568, None),
        (32, 2, 2, "bf16", 544, None),
    ] {
        let bytes = value_heads * 128 * 128 * state + 3 * (2 * 16 * 128 + value_heads * 128) * 2;
        let one = |kept, layers| LayerCache { layers, kept, reach: Reach::All, reads: None };
        let heads = Kept::Heads { kv_heads, key: 256, value: 256 };
        let kinds = [one(heads, 8), one(Kept::State { bytes }, 24)];
        let cache = Cache::new(kinds, 32, Format::find(format).unwrap());
        let layout = Layout::of(&cache, Engine { block: 16, chunk: 8192 }, 1, 32_768).unwrap();
        assert_eq!(layout.groups[0].block, block, "{value_heads} {format}");
        let page = layout.block_bytes / layout.group_layers;
        if let Some(percent) = padding {
            let padded = (page - bytes) as f64 / bytes as f64 * 100.0;
            assert!((padded - percent).abs() < 0.005, "{padded}");
        }
    }
}

/// By keys and by modules, configs of known families keep the same of a token, but for rules that only a family knows.
#[test]
fn keys_say_what_modules_do() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs");
    let (mut agreed, mut differ) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read(&path).unwrap();
        let Ok(model) = Model::from_text("x", "config.json", &text, &[], None) else { continue };
        if !model.spec.continues_from_keys() {
            continue;
        }
        let (config, _) = Config::parse("config.json", &text);
        // A config may leave everything to the defaults of its family.
        let Ok(geometry) = plan::inference::geometry::read(&config.unwrap()) else { continue };
        let by_keys = Cache::new(geometry.kept.iter().copied(), geometry.layers, Format::bf16());
        if by_keys.token_bytes(1) == Cache::of(&model.spec, Format::bf16(), 2).unwrap().token_bytes(1) {
            agreed += 1;
        } else {
            differ.push(path.file_stem().unwrap().to_string_lossy().into_owned());
        }
    }
    // Indexers of sparse attention; heads of windows apart; a key of Falcon that is void beside another.
    let known = ["DeepSeek-V3.2", "GLM-5", "MiMo-V2-Flash", "falcon-180B"];
    assert!(known.iter().all(|name| differ.iter().any(|other| other == name)), "{differ:?}");
    assert!(agreed > 90 && differ.len() * 12 < agreed, "{agreed} agree, not {differ:?}");
}

/// BART-large by hand: 12 blocks of width 1024 keep a key and a value of each token, and of each of 1,024 positions of the
/// encoder; a token reads these, and neither the encoder nor the maps that made them.
#[test]
fn decoders_behind_an_encoder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs");
    let load = |name: &str| {
        let text = std::fs::read(folder.join(format!("default-{name}.json"))).unwrap();
        Model::from_text(name, "config.json", &text, &[], None).unwrap()
    };
    let model = load("bart");
    let of = |encoder: u64| Request {
        prompt: default(1),
        encoder_len: default(encoder),
        ..request(What::Model(&model), 100)
    };
    let report = of(1024).report().unwrap();
    let (layers, h, f, v) = (12, 1024, 4096, 50_265);
    let (token, encoder) = (layers * 2 * h * 2, layers * 2 * h * 2 * 1024);
    assert_eq!(uint(&report, &["cache", "bytes_per_token"]), token);
    assert_eq!(uint(&report, &["cache", "sequence_bytes_device"]), 100 * token + encoder);
    // A paged engine has blocks of 16: 7 of the text and 64 of the encoder.
    assert_eq!(uint(&report, &["engine", "sequence_bytes_device"]), (7 + 64) * 16 * token);

    let flop = |past: u64, encoded: u64| {
        let reading = Reading { batch: 1, past, new: 1, encoded: Some(encoded), dtype: DType::BF16 };
        reading::trace(&model.spec, &reading).unwrap().trace.cost(|_| true).matmul
    };
    // Maps of a block: q, k, v and o of its own attention, q and o of the other, two of the feed-forward part; the head.
    let maps = 4 * h * h + 2 * h * h + 2 * h * f;
    assert_eq!(flop(99, 1024), layers * (2 * maps + 4 * h * 100 + 4 * h * 1024) + 2 * h * v);
    // The first token has the encoder run, and its keys and values made.
    let read = layers * 1024 * (2 * (4 * h * h + 2 * h * f) + 4 * h * 1024);
    let kept = layers * 1024 * 2 * 2 * h * h;
    assert_eq!(flop(0, 1024), read + kept + layers * (2 * maps + 4 * h + 4 * h * 1024) + 2 * h * v);

    // What a token reads of the weights: no table of positions, no norm or bias counts for more than a thousandth here.
    let weights = Weights::of(&model.spec, &parameters(&model).unwrap(), Storage::Format(Format::bf16()), 1);
    near(weights.read_bytes(1), (2 * (layers * maps + h * v)) as f64, 2e-3);

    for (name, positions) in [("t5", 512), ("whisper", 1500)] {
        let model = load(name);
        let asked = Request { prompt: default(1), encoder_len: default(positions), ..request(What::Model(&model), 64) };
        let report = asked.report().unwrap_or_else(|e| panic!("{name}: {e}"));
        let cross = model.spec.layers[0].cross.as_ref().unwrap();
        let width = u128::from(cross.attention.heads * cross.attention.head_dim);
        let of = |positions: u64| model.spec.layers.len() as u128 * 2 * width * 2 * u128::from(positions);
        assert_eq!(uint(&report, &["cache", "sequence_bytes_device"]), of(64) + of(positions), "{name}");
    }
}

/// What reads in both directions keeps nothing to go on from.
#[test]
fn encoders_generate_nothing() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs/bert-base-uncased.json");
    let model = Model::from_text("bert", "config.json", &std::fs::read(path).unwrap(), &[], None).unwrap();
    let problems = request(What::Model(&model), 512).report().unwrap_err().to_string();
    assert!(problems.contains("T0466") && problems.contains("`bert` continues no text"), "{problems}");
}

/// What a model over patches keeps of a text is in stacks of three widths, which is said instead of counted.
#[test]
fn patches_of_bytes_are_no_cache() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/configs/default-blt.json");
    let model = Model::from_text("blt", "config.json", &std::fs::read(path).unwrap(), &[], None).unwrap();
    let problems = request(What::Model(&model), 512).report().unwrap_err().to_string();
    assert!(problems.contains("T0466") && problems.contains("`blt` reads bytes in patches"), "{problems}");
}
