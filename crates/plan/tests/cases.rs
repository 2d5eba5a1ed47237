//! Questions that people asked in public, and the answers that are right, as `shared/cases` collects them.
//!
//! Files are checked in `crates/nn/tests/family_cases.rs`, texts of the program in `crates/cli/tests/program.rs`; here are
//! the cases that a model, a formula or a number format answers.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::formulas;
use napkin_plan::ledger::{self, Ledger, Request};
use napkin_plan::model::Model;
use napkin_plan::params::{self, Counts};
use napkin_plan::report::Value;
use napkin_plan::sharding::Sharding;
use napkin_plan::states::{ParameterBytes, Zero};
use napkin_plan::{explain, flops, presets};
use nn::optim::{Kind, OptimizerKind};
use nn::step::{Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use std::time::{Duration, Instant};
use tensor::float_format::FloatFormat;
use tensor::{CastLists, DType, Device, Role, Runtime};
use units::{Bytes, Flops, Params};

const OPTIONS: StepOptions = StepOptions {
    batch: 1,
    seq_len: 64,
    grad_accum_steps: 1,
    profile: Profile::Fused,
    precision: Precision::Bf16Mixed,
    optimizer: OptimizerKind { kind: Kind::AdamW, implementation: nn::optim::Implementation::Fused },
    recompute: Recompute::None,
    autocast: CastLists::Cuda,
    steps: 1,
    warm: true,
    dropout: false,
    objective: nn::Objective::DEFAULT,
    offload: nn::Offload::NONE,
    in_backward: false,
    until: Until::Optimizer,
};

fn preset(name: &str, overrides: &[(&str, &str)]) -> Model {
    let (name, text) = presets::find(name).unwrap();
    let overrides: Vec<_> = overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Model::from_text(name, "config.json", text.as_bytes(), &overrides, None).unwrap_or_else(|e| panic!("{e}"))
}

fn file(text: &str) -> Model {
    Model::from_text("case", "config.json", text.as_bytes(), &[], None).unwrap_or_else(|e| panic!("{e}"))
}

fn counts(model: &Model) -> Counts {
    Counts::of(&params::parameters(model).unwrap())
}

fn ledger_of(model: &Model, options: StepOptions) -> Ledger {
    let sharding = Sharding::new(0, 1);
    let request = Request {
        options,
        sharding,
        hardware: None,
        runtime: Bytes::ZERO,
        runtime_given: true,
        paged: false,
        process: None,
        depth: 1,
        timeline: false,
    };
    ledger::ledger(model, &request).unwrap().0
}

/// The FLOP report of a forward and backward pass.
fn flop(model: &Model, options: &StepOptions) -> Value {
    flops::report(model, options, flops::View::default()).unwrap().result
}

fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, name| value.get(name).unwrap_or_else(|| panic!("no {name} in {path:?}")))
}

fn uint(value: &Value, path: &[&str]) -> u128 {
    at(value, path).as_uint().unwrap()
}

fn near(is: f64, right: f64, share: f64) {
    assert!((is / right - 1.0).abs() <= share, "{is} is not {right}");
}

/// Storages that are live when backward begins, with who holds them.
fn live_before_backward(trace: &tensor::Trace) -> std::collections::BTreeMap<u32, Role> {
    let mark = trace.marks.iter().find(|mark| mark.name.starts_with("bwd")).unwrap();
    let mut live = std::collections::BTreeMap::new();
    for event in &trace.memory[..mark.memory as usize] {
        match event.change {
            tensor::meter::MemoryChange::Free => live.remove(&event.storage.0),
            tensor::meter::MemoryChange::Alloc(role) | tensor::meter::MemoryChange::Role(role) => {
                live.insert(event.storage.0, role)
            }
        };
    }
    live
}

/// flops-03, flops-07: the full square of attention, the exact half, and experts that are not used.
#[test]
fn flop_of_a_step() {
    for (name, seq_len, batch, full, causal) in
        [("llama-2-7b", 8192, 4, 1721.22e12, Some(1510.11e12)), ("mixtral-8x7b", 1024, 1, 79.98e12, None)]
    {
        let options = StepOptions { seq_len, batch, ..OPTIONS };
        let result = flop(&preset(name, &[]), &options);
        let tokens = (seq_len * batch) as f64;
        near(uint(&result, &["per_token_full"]) as f64 * tokens, full, 1e-4);
        if let Some(causal) = causal {
            near(uint(&result, &["per_token"]) as f64 * tokens, causal, 1e-4);
        }
    }
    // All eight experts, as who multiplies the width of all of them gets it.
    let all = counts(&preset("mixtral-8x7b", &[("num_experts_per_tok", "8")]));
    near((6 * all.matmul.get() + 12 * 32 * 4096 * 1024) as f64 * 1024.0, 287.78e12, 1e-4);
    let active = counts(&preset("mixtral-8x7b", &[]));
    assert_eq!((active.matmul, active.stored), (Params(12_748_587_008), Params(46_702_792_704)));
}

/// flops-01: fused attention is counted, on any device: two products of a 64 × 64 square.
#[test]
fn fused_attention_is_counted() {
    let rt = Runtime::new(Device::Meta);
    let make = || rt.zeros(&[1, 12, 64, 64], DType::F32).unwrap();
    let whole = tensor::ops::attention::Attention::full(1.0);
    make().attention(&make(), &make(), None, None, whole).unwrap();
    let cost = rt.take_trace().cost(|_| true);
    assert_eq!(cost.matmul_dense, 12_582_912);
}

/// flops-05: heads do not change the work where the width is fixed, and a multiply-add is two FLOP.
#[test]
fn heads_do_not_change_the_work() {
    for heads in [4, 8] {
        let model = file(&format!(
            r#"{{"model_type": "llama", "hidden_size": 448, "num_attention_heads": {heads}, "num_hidden_layers": 1,
                "intermediate_size": 8, "vocab_size": 8, "tie_word_embeddings": false, "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0, "max_position_embeddings": 512, "num_key_value_heads": {heads}}}"#
        ));
        let result = flop(&model, &StepOptions { seq_len: 300, ..OPTIONS });
        let Value::Map(modules) = at(&result, &["by_module"]) else { panic!("no map") };
        let attention = modules.iter().filter(|(name, _)| name.contains("self_attn"));
        let forward: u128 = attention.map(|(_, cost)| uint(cost, &["forward", "matmul_dense"])).sum();
        assert_eq!(forward, 642_969_600, "{heads} heads");
    }
}

/// flops-09: the width of the experts counts, times how many a token uses; and the router.
#[test]
fn experts_that_do_not_multiply_to_the_dense_width() {
    let eight = counts(&preset("qwen3-235b-a22b", &[]));
    let four = counts(&preset("qwen3-235b-a22b", &[("num_experts_per_tok", "4")]));
    assert_eq!(eight.stored, four.stored);
    assert_eq!((eight.matmul - four.matmul).get(), 94 * 4 * 3 * 4096 * 1536);
}

/// flops-11, flops-13: a lookup is no product, the head always is; what 6N is and what attention adds.
#[test]
fn six_n_and_the_n_that_is_work() {
    let untied = counts(&preset("llama-3.1-8b", &[]));
    assert_eq!(formulas::flop_per_token(untied.stored), Flops(48_181_567_488));
    assert_eq!(formulas::flop_per_token(untied.matmul), Flops(45_027_950_592));
    let tied = counts(&preset("qwen3-4b", &[]));
    assert_eq!(formulas::flop_per_token(tied.matmul), Flops(24_133_632_000));
    let stories = file(
        r#"{"model_type": "llama", "hidden_size": 288, "num_attention_heads": 6, "num_hidden_layers": 6,
            "num_key_value_heads": 6, "intermediate_size": 768, "vocab_size": 32000, "tie_word_embeddings": true,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256}"#,
    );
    let stories = counts(&stories);
    assert_eq!((stories.stored, stories.untied), (Params(15_191_712), Params(24_407_712)));
    assert_eq!(formulas::flop_per_token(stories.stored), Flops(91_150_272));
    assert_eq!(formulas::attention_flop_full(6, 6, 48, 256), Flops(5_308_416));
}

/// plan-05: states of 8 B parameters in fp32, and the logits of the longest batch in two types, with their gradient.
#[test]
fn the_longest_batch_decides() {
    let model = preset("llama-3.1-8b", &[]);
    let states =
        ParameterBytes::of(Precision::Bf16Mixed, Kind::AdamW).unwrap().on_device(counts(&model).stored, Zero::None, 1);
    assert!(states > Bytes(80 << 30));
    near(states.as_gib(), 119.7, 1e-3);
    let options = StepOptions { seq_len: 8192, profile: Profile::HfSdpa, recompute: Recompute::Full, ..OPTIONS };
    let traced = model.trace(&options).unwrap();
    let gib = |bytes: u64| (Bytes(bytes).as_gib() * 100.0).round() / 100.0;
    let vocabulary = traced.trace.storages.iter().map(|s| gib(s.bytes)).filter(|&size| size == 1.96 || size == 3.91);
    let found: Vec<f64> = vocabulary.collect();
    assert!(found.contains(&1.96), "logits in bf16");
    assert!(found.iter().filter(|size| **size == 3.91).count() >= 2, "an fp32 copy and its gradient");
    let short = ledger_of(&model, StepOptions { seq_len: 2048, ..options });
    let long = ledger_of(&model, options);
    assert!(short.peak_bytes > 80 << 30 && long.peak_bytes > short.peak_bytes);
}

/// plan-09, memory-07: counts with and without embedding and head, and what 16 bits of them take.
#[test]
fn weights_in_bytes() {
    let counts = counts(&preset("llama-3.1-70b", &[]));
    assert_eq!(counts.stored, Params(70_553_706_496));
    let bytes = counts.stored * Bytes(2);
    assert!((bytes.as_f64() / 1e9 - 141.11).abs() < 0.01 && (bytes.as_gib() - 131.42).abs() < 0.01);
    let modules = params::by_module(&params::parameters(&preset("llama-3.1-70b", &[])).unwrap());
    assert_eq!(modules["lm_head"], 1_050_673_152);
}

/// memory-01: the 786.00 MiB that could not be allocated are the fp32 logits.
#[test]
fn a_failed_allocation_has_a_name() {
    let model = preset("gpt2-xl", &[("vocab_size", "50304"), ("n_layer", "2")]);
    let options = StepOptions { seq_len: 1024, batch: 4, profile: Profile::HfEager, ..OPTIONS };
    let traced = model.trace(&options).unwrap();
    let trace = &traced.trace;
    let storage = trace.storages.iter().find(|s| s.bytes == 786 << 20).expect("786.00 MiB");
    let op = &trace.ops[storage.born as usize];
    assert_eq!((op.outputs[0].dtype, op.outputs[0].layout.elements()), (DType::F32, 4 * 1024 * 50_304));
}

/// memory-03, inference-05: formulas that `napkin explain` evaluates.
#[test]
fn explained_formulas() {
    for (id, values, gib, share) in [
        ("logits", &[("n", 11_600.0), ("v", 248_320.0), ("e", 4.0)][..], 10.73, 5e-4),
        ("logits", &[("n", 8192.0), ("v", 151_936.0), ("e", 4.0)], 4.637, 5e-4),
        ("logits", &[("n", 1024.0), ("v", 151_936.0), ("e", 4.0)], 0.58, 5e-3),
        ("kv-cache", &[("b", 1.0), ("s", 32_768.0), ("l", 32.0), ("k", 32.0), ("d", 128.0), ("e", 2.0)], 16.0, 0.0),
        ("kv-cache", &[("b", 1.0), ("s", 32_768.0), ("l", 80.0), ("k", 8.0), ("d", 128.0), ("e", 2.0)], 10.0, 0.0),
        ("kv-cache", &[("b", 1.0), ("s", 32_768.0), ("l", 80.0), ("k", 64.0), ("d", 128.0), ("e", 2.0)], 80.0, 0.0),
    ] {
        let values: Vec<_> = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let report = explain::one(id, &values).unwrap();
        let value = report.result.get("value").and_then(Value::as_f64).unwrap_or_else(|| panic!("{:?}", report.result));
        near(value / f64::from(1 << 30), gib, share);
    }
}

/// memory-17: a pinned buffer is as large as the next power of two.
#[test]
fn pinned_buffers_are_rounded_up() {
    let values = [("n".to_owned(), 4_347_592_704.0), ("e".to_owned(), 2.0)];
    let report = explain::one("pinned", &values).unwrap();
    assert_eq!(report.result.get("value").and_then(Value::as_f64), Some(f64::from(16) * f64::from(1 << 30)));
    near(Bytes(4_347_592_704 * 2).as_gib(), 8.098, 1e-4);
}

/// memory-13: four bits for each weight of a linear map, its constants, and the rest as it was.
#[test]
fn four_bits_are_not_half_a_byte_of_everything() {
    let text = r#"{"model_type": "llama", "hidden_size": 3200, "num_attention_heads": 32, "num_hidden_layers": 26,
        "num_key_value_heads": 32, "intermediate_size": 8640, "vocab_size": 32000, "tie_word_embeddings": false,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048}"#;
    let lora = nn::spec::Lora::of_rank(8);
    for (name, constants) in [("nf4", 0.201), ("nf4-dq", 0.051)] {
        let packed = tensor::packed::Format::find(name);
        let tuning = nn::spec::Tuning { packed, lora: Some(lora.clone()), ..nn::spec::Tuning::default() };
        let params = params::parameters(&file(text).tuned(tuning).unwrap()).unwrap();
        let packed = params.iter().filter(|p| p.packed_bytes.is_some());
        let (elements, bytes) = packed.fold((0, 0), |(n, bytes), p| (n + p.elements, bytes + p.packed_bytes.unwrap()));
        assert_eq!(elements, 3_221_504_000, "linear maps");
        near((bytes - elements / 2) as f64 / 1e9, constants, 0.03);
        near((elements / 2) as f64 / 1e9, 1.611, 0.03);
        let wide: u64 = params
            .iter()
            .filter(|p| p.name.contains("embed_tokens") || p.name.contains("lm_head"))
            .map(|p| p.elements)
            .sum();
        assert_eq!(wide, 204_800_000);
        near((elements / 2 + 2 * wide) as f64 / 1e9, 2.02, 0.03);
        near((elements / 2 + 4 * wide) as f64 / 1e9, 2.43, 0.03);
    }
}

/// optim-05: parameters, gradients, two moments, and what a list-wise update makes: five copies.
#[test]
fn five_copies_at_the_update() {
    let model = preset("gpt2", &[]);
    let optimizer = OptimizerKind { kind: Kind::Adam, implementation: nn::optim::Implementation::ForEach };
    let options =
        StepOptions { precision: Precision::Fp32, profile: Profile::HfSdpa, optimizer, seq_len: 32, ..OPTIONS };
    let ledger = ledger_of(&model, options);
    let phase = ledger.phases.iter().find(|phase| phase.name.starts_with("opt")).unwrap();
    let copies = phase.peak_bytes as f64 / (4 * counts(&model).stored.get()) as f64;
    near(copies * 1.2, 6.0, 0.02);
    let roles = [Role::Parameter, Role::Gradient, Role::OptimizerState];
    let held: u64 = roles.iter().map(|role| phase.peak_by_role[*role as usize]).sum();
    near(held as f64 / (4 * counts(&model).stored.get()) as f64, 4.0, 0.02);
}

/// parallel-01: experts are divided by their own ranks, the rest by tensor-parallel ones, norms and routers by none.
#[test]
fn experts_have_ranks_of_their_own() {
    use napkin_plan::ranks::{Rank, Split};
    let model = preset("mixtral-8x7b", &[]);
    for (tp, ep, right) in [(2, 8, 6_440_620_032), (8, 2, 22_750_433_280)] {
        let rank = Rank::of(&model.spec, Split { tp, ep, etp: 1 }).unwrap();
        assert_eq!((rank.total(), rank.replicated), (right, 1_314_816));
    }
}

/// Ranks that divide experts are refused where there are none, each by its flag; so many that they cannot be multiplied are
/// refused for what they do not divide.
#[test]
fn ranks_of_experts_need_experts() {
    use napkin_plan::ranks::{Rank, Split, add};
    let of = |name: &str, split| {
        let model = preset(name, &[]);
        let mut report = params::report(&model, 1).unwrap();
        add(&mut report, &model, split).map_err(|problems| problems.to_string())
    };
    assert!(of("llama-3.1-8b", Split { tp: 8, ep: 1, etp: 1 }).is_ok());
    let problems = of("llama-3.1-8b", Split { tp: 8, ep: 2, etp: 4 }).unwrap_err();
    assert!(problems.contains("--ep 2 divides experts") && problems.contains("--etp 4 divides experts"), "{problems}");
    let most = Split { tp: 1, ep: u64::MAX, etp: u64::MAX };
    assert!(of("mixtral-8x7b", most).unwrap_err().contains("does not divide 8 experts"));
    assert!(Rank::of(&preset("mixtral-8x7b", &[]).spec, most).is_err());
    let narrow = Split { tp: 1, ep: 1, etp: 3 };
    assert!(of("mixtral-8x7b", narrow).unwrap_err().contains("3 ranks do not divide 14336 inner channels"));
}

/// GPT-2 on two ranks, by hand: biases of maps that are divided by outputs are divided, those behind sums are not, and the
/// vocabulary is filled up. A mixer that nobody divides is refused in words.
#[test]
fn what_a_rank_holds_is_counted_and_not_guessed() {
    use napkin_plan::ranks::{Rank, Split};
    let split = Split { tp: 2, ep: 1, etp: 1 };
    let (h, inner) = (768, 3072);
    let maps = h * 3 * h / 2 + 3 * h / 2 + h * h / 2 + h * inner / 2 + inner / 2 + inner * h / 2;
    let whole = 4 * h + 2 * h;
    let rank = Rank::of(&preset("gpt2", &[]).spec, split).unwrap();
    assert_eq!((rank.divided, rank.replicated), (12 * maps + 50_258 / 2 * h, 12 * whole + 1024 * h + 2 * h));
    let text =
        r#"{"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 10, "state_size": 4}"#;
    let problems = Rank::of(&file(text).spec, split).unwrap_err().to_string();
    assert!(problems.contains("a mixer that is no attention is not divided over tp ranks"), "{problems}");
}

/// parallel-03: a mixture keeps four inner tensors for each of the experts a token uses, not one dense part of that width.
#[test]
fn activations_of_experts_count_each_choice() {
    let shape = r#""hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 2,
        "intermediate_size": 14336, "vocab_size": 8, "tie_word_embeddings": false, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 4096"#;
    let dense = file(&format!(r#"{{"model_type": "llama", {shape}}}"#));
    let mixture =
        file(&format!(r#"{{"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, {shape}}}"#));
    let options = StepOptions { seq_len: 4096, profile: Profile::HfSdpa, precision: Precision::Bf16Pure, ..OPTIONS };
    // Elements over hidden_size of what the feed-forward part keeps of a token, f32 counted as two.
    let kept = |model: &Model, wide: bool| -> f64 {
        let traced = model.trace(&options).unwrap();
        let trace = &traced.trace;
        let live = live_before_backward(trace);
        let held = live.iter().filter(|(_, role)| **role == Role::Activation);
        let held = held.map(|(id, _)| &trace.storages[*id as usize]);
        let part = held.filter(|s| {
            let path = trace.module(s.module);
            path.starts_with("model.layers.1.") && (path.contains("mlp") || path.contains("block_sparse_moe"))
        });
        let inner = part.filter(|s| !wide || s.bytes >= 2 * 4096 * 14_336);
        inner.map(|s| s.bytes).sum::<u64>() as f64 / (2.0 * 4096.0 * 4096.0)
    };
    near(kept(&dense, true), 14.0, 0.02);
    near(kept(&mixture, true), 28.0, 0.02);
    // Beside the inner tensors: the inputs as they are dispatched, the scores, and what is combined.
    let beside = kept(&mixture, false) - kept(&mixture, true);
    assert!((2.0..=6.5).contains(&beside), "{beside}");
}

/// ui-07: GiB and GB are two units, each number says which it has, and the formula stands beside it.
#[test]
fn units_are_said() {
    let bytes = Bytes(85_899_345_920);
    assert_eq!(bytes.to_string(), "80.0 GiB");
    near(bytes.as_gib(), 80.0, 1e-12);
    near(bytes.as_f64() / 1e9, 85.9, 1e-3);
    assert!("80G".parse::<Bytes>().is_err() && "80GB".parse::<Bytes>().unwrap() < bytes);
    let model = preset("gpt2", &[]);
    let request = Request {
        options: OPTIONS,
        sharding: Sharding::new(0, 1),
        hardware: None,
        runtime: Bytes::ZERO,
        runtime_given: true,
        paged: false,
        process: None,
        depth: 1,
        timeline: false,
    };
    let report = ledger::report(&model, &request, true).unwrap();
    assert!(report.derivations.iter().all(|d| !d.expression.is_empty() && !d.source.is_empty()));
    assert!(!report.derivations.is_empty());
}

/// memory-05: the optimizer that works on lists holds one more copy of the parameters at its peak.
#[test]
fn lists_of_the_optimizer() {
    let model = preset("llama-2-7b", &[]);
    for (implementation, gib) in
        [(nn::optim::Implementation::ForLoop, 50.2), (nn::optim::Implementation::ForEach, 62.8)]
    {
        let optimizer = OptimizerKind { kind: Kind::AdamW, implementation };
        let options = StepOptions { precision: Precision::Bf16Pure, profile: Profile::HfSdpa, optimizer, ..OPTIONS };
        let ledger = ledger_of(&model, options);
        let phase = ledger.phases.iter().find(|phase| phase.name.starts_with("opt")).unwrap();
        near(Bytes(phase.peak_bytes).as_gib(), gib, 0.01);
    }
}

/// memory-09, memory-15, dtype-09: bytes of states by stage, recipe and type.
#[test]
fn states_by_recipe_and_stage() {
    let bytes = |recipe| ParameterBytes::of(recipe, Kind::AdamW).unwrap();
    let gib: Vec<_> = Zero::ALL
        .iter()
        .map(|zero| bytes(Precision::Bf16Master).on_device(Params(6_738_415_616), *zero, 8).as_gib())
        .collect();
    for (is, right) in gib.into_iter().zip([100.4, 34.5, 23.5, 12.55]) {
        near(is, right, 5e-3);
    }
    let states = |recipe| bytes(recipe).on_device(Params(1_235_814_400), Zero::None, 1).as_f64() / 1e9;
    near(states(Precision::Fp32), 19.8, 5e-3);
    near(states(Precision::Bf16Pure), 9.9, 5e-3);
    // The type that a file is stored in, under either name, changes nothing of the recipe.
    for key in ["dtype", "torch_dtype"] {
        let model = preset("llama-3.2-3b", &[(key, "\"float16\"")]);
        assert_eq!(ledger_of(&model, OPTIONS).bucket("parameters"), 4 * counts(&model).stored.get());
    }
    assert!(bytes(Precision::Bf16Master).total() == 16 && bytes(Precision::Bf16Pure).total() == 8);
}

/// memory-11: what an attention block keeps, tensor by tensor: 2 for its input, 6 for q, k, v, 2 for the result, and a
/// log-sum-exp for each row and head, not for each channel of a head.
#[test]
fn what_attention_keeps() {
    let model = file(
        r#"{"model_type": "llama", "hidden_size": 8192, "num_attention_heads": 32, "head_dim": 256,
            "num_key_value_heads": 32, "num_hidden_layers": 8, "intermediate_size": 8, "vocab_size": 8,
            "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "max_position_embeddings": 4096}"#,
    );
    let options = StepOptions { seq_len: 4096, ..OPTIONS };
    let traced = model.trace(&options).unwrap();
    let trace = &traced.trace;
    let kept = live_before_backward(trace);
    let of = |module: &str| -> u64 {
        let storages = kept.iter().filter(|(_, role)| **role == Role::Activation);
        let storages = storages.map(|(id, _)| &trace.storages[*id as usize]);
        storages.filter(|s| trace.module(s.module).starts_with(module)).map(|s| s.bytes).sum()
    };
    let sbh = 4096 * 8192;
    assert_eq!(of("model.layers.3.self_attn"), (6 + 2) * sbh + 4 * 4096 * 32);
    // Its input is the result of the norm, which keeps one number a row besides.
    assert_eq!(of("model.layers.3.input_layernorm"), 2 * sbh + 4 * 4096);
}

/// ui-09: GPT-2 under its old names, as stored and with a padded vocabulary.
#[test]
fn old_names_and_padding() {
    assert_eq!(counts(&preset("gpt2", &[])).stored, Params(124_439_808));
    assert_eq!(counts(&preset("gpt2", &[("vocab_size", "50304")])).stored, Params(124_475_904));
}

/// dtype-03, dtype-07: averages that cannot fall and sums that stand still.
#[test]
fn sums_in_sixteen_bits() {
    let bf16 = FloatFormat::of(DType::BF16).unwrap();
    let fp16 = FloatFormat::of(DType::F16).unwrap();
    let repeat = |format: &FloatFormat, times: u32, start: f64, step: &dyn Fn(f64) -> f64| {
        (0..times).fold(start, |value, _| format.round(step(value)))
    };
    // It falls to ten of the smallest steps, of which 0.95 leaves 9.5, which rounds to the even ten: 9.2e-40, where the
    // case says about 8e-40.
    for (format, beta, right) in [(&bf16, 0.999, 1.0), (&bf16, 0.95, 10.0 * 2_f64.powi(-133))] {
        let left = repeat(format, 5000, 1.0, &|v| v * beta);
        assert!((left - right).abs() < 1e-45, "{beta}: {left}");
    }
    for times in [1024, 5000] {
        assert!((repeat(&bf16, times, 0.0, &|v| v + 1.0) - 256.0).abs() < 1e-9);
    }
    assert!((repeat(&fp16, 5000, 0.0, &|v| v + 1.0) - 2048.0).abs() < 1e-9);
}

/// Micro-batches after the third are not run, and every number is that of a step that runs them all.
#[test]
fn many_micro_batches() {
    let model = preset("smollm2-135m", &[("num_hidden_layers", "3")]);
    for (profile, recompute) in [(Profile::Fused, Recompute::Full), (Profile::HfEager, Recompute::None)] {
        let options = StepOptions { grad_accum_steps: 7, profile, recompute, seq_len: 16, ..OPTIONS };
        let all = nn::step::trace(&model.spec, &options).unwrap();
        let short = model.trace(&options).unwrap();
        assert!(short.trace.ops.len() < all.trace.ops.len());
        for phase in [tensor::Phase::Forward, tensor::Phase::Backward, tensor::Phase::Recompute] {
            let cost = |trace: &tensor::Trace| trace.cost(|event| event.phase == phase);
            assert_eq!(cost(&short.trace), cost(&all.trace), "{phase:?}");
        }
        let peak = |traced: &nn::step::StepTrace| {
            let sharding = Sharding::new(0, 1);
            Ledger::of(traced, &options, sharding, &model.spec.names, Bytes::ZERO).peak_bytes
        };
        assert_eq!(peak(&short), peak(&all));
    }
    let start = Instant::now();
    let result = flop(&model, &StepOptions { grad_accum_steps: 1_000_000, ..OPTIONS });
    let one = flop(&model, &OPTIONS);
    assert_eq!(uint(&result, &["forward", "matmul"]), 1_000_000 * uint(&one, &["forward", "matmul"]));
    assert_eq!(uint(&result, &["by_op", "linear", "calls"]), 1_000_000 * uint(&one, &["by_op", "linear", "calls"]));
    assert_eq!(uint(&result, &["per_token"]), uint(&one, &["per_token"]));
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// A billion blocks are refused at once, whatever the family calls them.
#[test]
fn no_family_builds_a_billion_blocks() {
    for (name, text) in presets::PRESETS {
        let keys = ["n_layer", "num_hidden_layers", "n_layers", "num_layers"];
        let key = keys.iter().find(|key| text.contains(&format!("\"{key}\""))).unwrap_or_else(|| panic!("{name}"));
        let start = Instant::now();
        let overrides = [((*key).to_owned(), "1000000000".to_owned())];
        let refused = Model::from_text(*name, "config.json", text.as_bytes(), &overrides, None);
        let problems = refused.err().unwrap_or_else(|| panic!("{name} is built"));
        assert!(problems.iter().any(|p| p.code == "T0204" && p.message.contains("too large")), "{name}: {problems}");
        assert!(start.elapsed() < Duration::from_secs(1), "{name}: {:?}", start.elapsed());
    }
}
