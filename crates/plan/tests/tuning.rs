//! Models of which only a part is trained, against PyTorch with PEFT: see `truth/README.md` for how the rows were made.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::model::Model;
use napkin_plan::params::{Counts, parameters};
use napkin_plan::sharding::Sharding;
use napkin_plan::timeline::Timeline;
use nn::blocks::Blocks;
use nn::spec::{Lora, Pattern, Targets, Tuning};
use nn::step::{StepOptions, Until};
use nn::{Profile, Recompute};
use tensor::{CastLists, Phase, Role};

/// The Llama of the rows.
const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 211, "max_position_embeddings": 256,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;

/// The mixtures of the rows.
fn mixture(family: &str) -> String {
    let own = match family {
        "mixtral" => r#""intermediate_size": 96, "num_local_experts": 4"#,
        "qwen3_moe" => {
            r#""intermediate_size": 160, "moe_intermediate_size": 48, "num_experts": 8, "norm_topk_prob": true,
            "decoder_sparse_step": 1, "mlp_only_layers": [0]"#
        }
        "gpt_oss" => {
            r#""intermediate_size": 96, "num_local_experts": 4, "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"]"#
        }
        _ => panic!("{family}"),
    };
    format!(
        r#"{{"model_type": "{family}", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 211, "max_position_embeddings": 256,
        "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, {own}}}"#
    )
}

fn patterns(names: &str) -> Vec<Pattern> {
    names.split_whitespace().map(|name| name.parse().unwrap()).collect()
}

fn targets(names: &str) -> Targets {
    match names {
        "" => Targets::All,
        "none" => Targets::Named(Vec::new()),
        names => Targets::Named(patterns(names)),
    }
}

/// Trained and stored parameters, bytes that one micro-step keeps for backward, FLOP forward and in both: of `config`, tuned,
/// with attention, precision, batch and length of the row.
fn measured(config: &str, tuning: Tuning, [attention, precision, batch, seq_len]: [&str; 4]) -> [u64; 5] {
    let keeps_ids = tuning.copied.iter().any(|name| name.matches("embed_tokens"));
    let model = Model::from_text("tiny", "tiny.json", config.as_bytes(), &[], None).unwrap().tuned(tuning).unwrap();
    let counts = Counts::of(&parameters(&model).unwrap());
    let options = StepOptions {
        batch: batch.parse().unwrap(),
        seq_len: seq_len.parse().unwrap(),
        profile: if attention == "sdpa" { Profile::HfSdpa } else { Profile::HfEager },
        precision: precision.parse().unwrap(),
        optimizer: "adamw".parse().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        steps: 1,
        warm: false,
        dropout: true,
        objective: nn::Objective::DEFAULT,
        offload: nn::Offload::NONE,
        in_backward: false,
        until: Until::Backward,
    };
    let traced = model.trace(&options).unwrap();
    let timeline = Timeline::of(&traced, &options, Sharding::default(), Blocks::of(&model.spec.names));
    let phase = timeline.phases.iter().find(|phase| phase.name == "fwd1").unwrap();
    let role = |role: Role| phase.end_by_role[role as usize];
    // Token ids are an input here; a table that is trained keeps them.
    let ids = if keeps_ids { options.batch * options.seq_len * 8 } else { 0 };
    let kept = role(Role::Activation) + role(Role::WeightCast) + ids;
    let flop = |phases: &[Phase]| traced.trace.cost(|event| phases.contains(&event.phase)).matmul_dense as u64;
    let (forward, step) = (flop(&[Phase::Forward]), flop(&[Phase::Forward, Phase::Backward]));
    [counts.trainable.get(), counts.stored.get(), kept, forward, step]
}

/// Fails with all lines of which `check` says that a number differs.
fn every_row(table: &str, check: impl Fn(&[&str]) -> [u64; 5]) {
    let mut off = Vec::new();
    for line in table.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let right: Vec<u64> = cells[cells.len() - 5..].iter().map(|n| n.parse().unwrap()).collect();
        let is = check(&cells);
        if is[..] != right[..] {
            off.push(format!("{line}: {is:?}, {}", is[2] as f64 / right[2] as f64 - 1.0));
        }
    }
    assert!(off.is_empty(), "{}", off.join("\n"));
}

fn beside_a_llama(config: &str, cells: &[&str]) -> [u64; 5] {
    let [variant, attention, precision, names, dropout, rank, batch, seq_len, ..] = cells[..] else {
        panic!("{cells:?}")
    };
    let lora = Lora {
        alpha: 16.0,
        dropout: dropout.parse().unwrap(),
        targets: targets(names),
        magnitudes: variant == "dora",
        ..Lora::of_rank(rank.parse().unwrap())
    };
    let copied = variant.strip_prefix("save ").map_or_else(Vec::new, patterns);
    let tuning = Tuning { lora: Some(lora), copied, ..Tuning::default() };
    measured(config, tuning, [attention, precision, batch, seq_len])
}

#[test]
fn adapters_keep_and_do_what_peft_keeps_and_does() {
    every_row(include_str!("truth/adapters.csv"), |cells| beside_a_llama(LLAMA, &[&["plain"], cells].concat()));
    every_row(include_str!("truth/adapter_variants.csv"), |cells| beside_a_llama(LLAMA, cells));
}

#[test]
fn copies_of_a_tied_table_are_those_of_peft() {
    let tied = LLAMA.replace(r#""tie_word_embeddings": false"#, r#""tie_word_embeddings": true"#);
    every_row(include_str!("truth/adapter_tied.csv"), |cells| beside_a_llama(&tied, cells));
}

#[test]
fn adapters_of_experts_keep_and_do_what_peft_keeps_and_does() {
    every_row(include_str!("truth/adapter_stacks.csv"), |cells| {
        let [family, attention, precision, names, stacks, rank, batch, seq_len, ..] = cells[..] else {
            panic!("{cells:?}")
        };
        let (targets, stacks) = (targets(names), stacks.split(' ').map(|stack| stack.parse().unwrap()).collect());
        let lora = Lora { alpha: 16.0, targets, stacks, ..Lora::of_rank(rank.parse().unwrap()) };
        let tuning = Tuning { lora: Some(lora), ..Tuning::default() };
        measured(&mixture(family), tuning, [attention, precision, batch, seq_len])
    });
}

/// PEFT copies the table for the module of one name, and the other stack reads the original.
#[test]
fn a_table_of_several_stacks_is_not_copied() {
    let config = include_bytes!("../../nn/tests/data/tiny/bart.json");
    for names in ["shared", "decoder.embed_tokens", "lm_head"] {
        let lora = Some(Lora::of_rank(2));
        let tuning = Tuning { lora, copied: patterns(names), ..Tuning::default() };
        let model = Model::from_text("tiny", "tiny.json", config, &[], None).unwrap();
        let problems = model.tuned(tuning).unwrap_err().to_string();
        assert!(problems.contains("which several modules read, is not copied"), "{names}: {problems}");
    }
}

/// A token meets the adapters of its own experts alone: 2 of 4, in both blocks of the Mixtral of the rows.
#[test]
fn adapters_of_experts_are_active_with_their_experts() {
    let counts = |stacks: &[&str]| {
        let stacks = stacks.iter().map(|stack| stack.parse().unwrap()).collect();
        let lora = Lora { targets: targets("q_proj"), stacks, ..Lora::of_rank(4) };
        let tuning = Tuning { lora: Some(lora), ..Tuning::default() };
        let config = mixture("mixtral");
        let model = Model::from_text("tiny", "tiny.json", config.as_bytes(), &[], None).unwrap();
        Counts::of(&parameters(&model.tuned(tuning).unwrap()).unwrap())
    };
    let (plain, adapted) = (counts(&[]), counts(&["gate_up_proj", "down_proj"]));
    let of_one = 4 * ((64 + 192) + (96 + 64));
    for (before, after) in [(plain.active, adapted.active), (plain.matmul, adapted.matmul)] {
        assert_eq!(after.get() - before.get(), 2 * 2 * of_one);
    }
    assert_eq!(adapted.stored.get() - plain.stored.get(), 2 * 4 * of_one);
}
