//! Mixtures of experts: counts of the user cases, names and shapes as checkpoints have them, tensors kept by routed experts.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::families::{self, Loaded};
use napkin_nn::param::ParamKind;
use napkin_nn::step::{self, ParamInfo, Precision, StepOptions, Until};
use napkin_nn::{Profile, Recompute};
use std::path::PathBuf;
use tensor::meter::{MemoryChange, Role};
use tensor::{CastLists, Op, Phase, Trace};
use units::group_digits;

/// Parameter names inside a block, with their shapes.
type Shapes<'a> = &'a [(&'a str, &'a [u64])];

fn load(json: &str) -> Loaded {
    let (config, problems) = Config::parse("config.json", json.as_bytes());
    families::load(&config.unwrap_or_else(|| panic!("{problems}")), None).unwrap_or_else(|e| panic!("{e}"))
}

fn case(file: &str) -> Loaded {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    load(&std::fs::read_to_string(path).unwrap())
}

fn total(params: &[ParamInfo]) -> u64 {
    params.iter().map(|p| p.elements).sum()
}

fn active(p: &ParamInfo) -> u64 {
    match p.kind {
        ParamKind::Expert { experts, top_k } => p.elements / experts * top_k,
        _ => p.elements,
    }
}

/// Parameters a token is multiplied with: those of matrices, the head and its experts.
fn active_matmul(params: &[ParamInfo]) -> u64 {
    let multiplied = |p: &&ParamInfo| p.shape.len() > 1 && p.kind != ParamKind::Embedding;
    params.iter().filter(multiplied).map(active).sum()
}

fn trace(loaded: &Loaded, profile: Profile, (batch, seq_len): (u64, u64), until: Until) -> Trace {
    let options = StepOptions {
        batch,
        seq_len,
        profile,
        precision: Precision::Fp32,
        optimizer: "adamw".parse().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        steps: 1,
        warm: false,
        dropout: false,
        objective: napkin_nn::Objective::DEFAULT,
        offload: napkin_nn::Offload::NONE,
        in_backward: false,
        until,
    };
    step::trace(&loaded.spec, &options).unwrap().trace
}

fn forward_flop(loaded: &Loaded, profile: Profile, tokens: (u64, u64)) -> u128 {
    trace(loaded, profile, tokens, Until::Forward).cost(|e| e.phase == Phase::Forward).matmul_dense
}

/// maxtext PR 678: all experts gave 287.78 TFLOP, the active ones 79.98.
#[test]
fn a_mixture_is_charged_for_its_active_experts() {
    let loaded = case("cfg_moe_mixtral_names.json");
    let params = step::parameters(&loaded.spec).unwrap();
    assert_eq!(total(&params), 46_702_792_704);
    assert_eq!(active_matmul(&params), 12_748_587_008);
    let seq = 1024;
    let traced = trace(&loaded, Profile::HfEager, (1, seq), Until::Backward);
    let flop = traced.cost(|_| true).matmul_dense;
    assert_eq!(flop, u128::from((6 * 12_748_587_008 + 12 * 32 * 4096 * seq) * seq));
    assert!((flop as f64 / 79.98e12 - 1.0).abs() < 1e-4);
}

/// `NeMo-RL` issue 1144: `intermediate_size` with one expert gives the right number wherever `top_k` x width equals it, so
/// the test must use a config where they differ.
#[test]
fn the_width_of_an_expert_is_its_own() {
    let config = |top_k: u64| {
        load(&format!(
            r#"{{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
                "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                "num_experts": 128, "num_experts_per_tok": {top_k}, "vocab_size": 1000}}"#
        ))
    };
    let (s, h, f) = (64u128, 2048u128, 768u128);
    let rest =
        |top_k| forward_flop(&config(top_k), Profile::HfSdpa, (1, 64)) - 2 * s * u128::from(top_k) * 2 * 3 * h * f;
    // What is not experts' work is the same, router included, whatever top_k is.
    assert_eq!(rest(4), rest(8));
    let attention = 2 * s * (2 * h * 4096 + 2 * h * 512) + 4 * 32 * s * s * 128;
    assert_eq!(rest(4), 2 * (attention + 2 * s * h * 128) + 2 * s * h * 1000);
    for profile in [Profile::Fused, Profile::HfEager] {
        let dense = |profile| forward_flop(&config(4), profile, (1, 64));
        assert_eq!(dense(profile), dense(Profile::HfSdpa));
    }
}

/// DeepSeek-V3: 671,026,404,352 parameters, and an announced prediction layer that is said not to be among them.
#[test]
fn latent_attention_dense_first_layers_and_what_is_left_out() {
    let loaded = case("cfg_mla_moe.json");
    let params = step::parameters(&loaded.spec).unwrap();
    assert_eq!(total(&params), 671_026_404_352);
    assert_eq!(params.iter().map(active).sum::<u64>(), 37_552_282_624);
    let note = loaded.spec.not_modelled.iter().find(|note| note.contains("multi-token")).unwrap();
    // 11,507,286,016 of a block, 2h x h, three norms.
    assert!(note.contains("1 layer for") && note.contains("11,610,067,968"), "{note}");
}

/// The announced layer of GLM-4.5 has the biases and head norms of the blocks it follows.
#[test]
fn announced_layers_are_blocks_of_the_model() {
    let config = |layers: u64, more: &str| {
        load(&format!(
            r#"{{"model_type": "glm4_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": {layers},
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "n_routed_experts": 8,
                "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
                "num_nextn_predict_layers": 1 {more}}}"#
        ))
    };
    for more in ["", r#", "attention_bias": true, "use_qk_norm": true"#] {
        let of = |layers| total(&step::parameters(&config(layers, more).spec).unwrap());
        // One block more than before, a map from 2h to h and three norms.
        let each = of(3) - of(2) + 2 * 64 * 64 + 3 * 64;
        let said = config(2, more);
        let note = said.spec.not_modelled.iter().find(|note| note.contains("multi-token")).unwrap();
        let each = group_digits(u128::from(each));
        assert!(note.contains(&format!("{each} parameters")), "{note}: {each}");
    }
}

#[test]
fn a_model_without_experts_per_token_counts_all_and_says_so() {
    let loaded = load(
        r#"{"model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 100, "n_routed_experts": 8, "num_experts_per_tok": null}"#,
    );
    let params = step::parameters(&loaded.spec).unwrap();
    assert_eq!(params.iter().map(active).sum::<u64>(), total(&params));
    let said = loaded.resolved.assumptions.iter().find(|a| a.key == "num_experts_per_tok").unwrap();
    assert!(said.why.contains("active"), "{}", said.why);
}

/// Names and shapes of one mixture, as transformers 5 stores it.
#[test]
fn experts_have_the_names_of_checkpoints() {
    let sizes = r#""hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 10"#;
    let experts = r#""num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 6, "first_k_dense_replace": 0"#;
    let table: &[(&str, Shapes<'_>)] = &[
        (
            "mixtral",
            &[
                ("mlp.gate.weight", &[4, 8]),
                ("mlp.experts.gate_up_proj", &[4, 24, 8]),
                ("mlp.experts.down_proj", &[4, 8, 12]),
            ],
        ),
        (
            "qwen2_moe",
            &[
                ("mlp.experts.gate_up_proj", &[4, 12, 8]),
                ("mlp.shared_expert.up_proj.weight", &[5632, 8]),
                ("mlp.shared_expert_gate.weight", &[1, 8]),
            ],
        ),
        (
            "granitemoe",
            &[("block_sparse_moe.router.weight", &[4, 8]), ("block_sparse_moe.experts.down_proj", &[4, 8, 12])],
        ),
        (
            "gpt_oss",
            &[
                ("self_attn.sinks", &[2]),
                ("mlp.router.bias", &[4]),
                ("mlp.experts.gate_up_proj", &[4, 8, 24]),
                ("mlp.experts.gate_up_proj_bias", &[4, 24]),
                ("mlp.experts.down_proj", &[4, 12, 8]),
                ("mlp.experts.down_proj_bias", &[4, 8]),
            ],
        ),
        ("glm4_moe", &[("mlp.experts.gate_up_proj", &[4, 12, 8]), ("mlp.shared_experts.down_proj.weight", &[8, 6])]),
    ];
    for (family, wanted) in table {
        let loaded = load(&format!(r#"{{"model_type": "{family}", {sizes}, {experts}}}"#));
        let params = step::parameters(&loaded.spec).unwrap();
        for (name, shape) in *wanted {
            let full = format!("model.layers.0.{name}");
            let found = params.iter().find(|p| p.name == full).unwrap_or_else(|| panic!("{family} has no {full}"));
            assert_eq!(found.shape, *shape, "{family} {name}");
        }
    }
}

/// Bytes of activations kept for backward, as the reference has them (`saved_tensors.jsonl`) for its tiny Mixtral, 2 x 512
/// tokens in f32.
#[test]
fn routed_experts_keep_what_the_reference_keeps() {
    let loaded = load(
        r#"{"model_type": "mixtral", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
            "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 2048, "max_position_embeddings": 4096, "sliding_window": null, "tie_word_embeddings": false}"#,
    );
    for (profile, kept) in [(Profile::HfEager, 205_123_716), (Profile::HfSdpa, 131_854_468)] {
        let traced = trace(&loaded, profile, (2, 512), Until::Forward);
        let mut last = vec![MemoryChange::Free; traced.storages.len()];
        traced.memory.iter().for_each(|event| last[event.storage.0 as usize] = event.change);
        let kept_one = |change: &MemoryChange| {
            matches!(change, MemoryChange::Role(Role::Activation) | MemoryChange::Alloc(Role::Activation))
        };
        let storages = traced.storages.iter().zip(&last).filter(|(_, change)| kept_one(change));
        let bytes: u64 = storages.map(|(storage, _)| storage.bytes).sum();
        assert_eq!(bytes, kept, "{profile}");
        // One product for gate and value and one for the way down, over all routed rows, in each of four layers.
        let grouped = traced.ops.iter().filter(|e| matches!(e.op, Op::GroupedLinear(_))).count();
        assert_eq!(grouped, 8);
    }
}

#[test]
fn a_token_uses_no_more_experts_than_there_are() {
    let json = r#"{"model_type": "mixtral", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 10, "num_local_experts": 2,
        "num_experts_per_tok": 3}"#;
    let (config, _) = Config::parse("config.json", json.as_bytes());
    let problems = families::load(&config.unwrap(), None).unwrap_err().to_string();
    assert!(problems.contains("each token uses 3 experts, but there are 2"), "{problems}");
}

/// Matrices of each model that every tensor-parallel rank holds whole, by the module they stand in: what vLLM does not
/// divide in `deepseek_v2.py`, `mixtral.py`, `qwen2_moe.py` and `granitemoe.py`.
#[test]
fn engines_replicate_routers_and_maps_into_compressed_streams() {
    let table: [(&str, &[&str]); 5] = [
        ("llama", &[]),
        ("mixtral", &["gate"]),
        ("granitemoe", &["router"]),
        ("qwen2_moe", &["gate", "shared_expert_gate"]),
        ("deepseek_v32", &["q_a_proj", "kv_a_proj_with_mqa", "wq_b", "wk", "weights_proj", "gate"]),
    ];
    for (family, modules) in table {
        let params = step::parameters(&case(&format!("tiny/{family}.json")).spec).unwrap();
        let matrices = params.iter().filter(|p| p.shape.len() > 1);
        for param in matrices {
            let module = param.name.trim_end_matches(".weight").rsplit('.').next().unwrap();
            assert_eq!(param.replicated, modules.contains(&module), "{family}: {}", param.name);
        }
        for module in modules {
            let found = |p: &&ParamInfo| p.replicated && p.name.ends_with(&format!(".{module}.weight"));
            assert!(params.iter().any(|p| found(&p)), "{family}: {module}");
        }
    }
}
