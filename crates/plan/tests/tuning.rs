//! Models of which only a part is trained, against PyTorch with PEFT: see `truth/README.md` for how the rows were made.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::blocks::Blocks;
use napkin_plan::model::Model;
use napkin_plan::params::{Counts, parameters};
use napkin_plan::sharding::Sharding;
use napkin_plan::timeline::Timeline;
use nn::spec::{Lora, Pattern, Tuning};
use nn::step::{Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use tensor::{CastLists, Phase, Role};

/// The Llama of the rows.
const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 211, "max_position_embeddings": 256,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;

fn patterns(names: &str) -> Vec<Pattern> {
    names.split_whitespace().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn adapters_keep_and_do_what_peft_keeps_and_does() {
    let plain = include_str!("truth/adapters.csv").lines().skip(1).map(|line| (line, "plain,"));
    let variants = include_str!("truth/adapter_variants.csv").lines().skip(1).map(|line| (line, ""));
    let mut off = Vec::new();
    for (line, before) in plain.chain(variants) {
        let cells = format!("{before}{line}");
        let cells: Vec<&str> = cells.split(',').collect();
        let [variant, attention, precision, targets, dropout, rank, batch, seq_len, trainable, total, saved, fwd, both] =
            cells[..]
        else {
            panic!("{line}")
        };
        let lora = Lora {
            rank: rank.parse().unwrap(),
            alpha: 16.0,
            dropout: dropout.parse().unwrap(),
            targets: patterns(targets),
            magnitudes: variant == "dora",
        };
        let copied = variant.strip_prefix("save ").map_or_else(Vec::new, patterns);
        let tuning = Tuning { lora: Some(lora), copied, ..Tuning::default() };
        let model = Model::from_text("tiny", "tiny.json", CONFIG.as_bytes(), &[], None).unwrap().tuned(tuning).unwrap();
        let counts = Counts::of(&parameters(&model).unwrap());
        assert_eq!(counts.trainable.get().to_string(), trainable, "{line}");
        let options = StepOptions {
            batch: batch.parse().unwrap(),
            seq_len: seq_len.parse().unwrap(),
            profile: if attention == "sdpa" { Profile::HfSdpa } else { Profile::HfEager },
            precision: precision.parse::<Precision>().unwrap(),
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
        let ids = if variant.contains("embed_tokens") { options.batch * options.seq_len * 8 } else { 0 };
        let kept = role(Role::Activation) + role(Role::WeightCast) + ids;
        let flop = |phases: &[Phase]| traced.trace.cost(|event| phases.contains(&event.phase)).matmul_dense;
        let (forward, step) = (flop(&[Phase::Forward]), flop(&[Phase::Forward, Phase::Backward]));
        let is = [counts.stored.get(), kept, forward as u64, step as u64];
        let right: Vec<u64> = [total, saved, fwd, both].iter().map(|n| n.parse().unwrap()).collect();
        if is[..] != right[..] {
            off.push(format!("{line}: {is:?} is not {right:?}, {}", kept as f64 / right[1] as f64 - 1.0));
        }
    }
    assert!(off.is_empty(), "{}", off.join("\n"));
}
