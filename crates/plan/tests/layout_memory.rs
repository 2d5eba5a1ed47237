//! Allocated bytes of every rank of Megatron-LM, and reserved ones of the fullest, as measured, and as ranks of the same layout
//! are traced.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use napkin_plan::handover::Engine;
use napkin_plan::layout::{ContextParallel, Layout, rank};
use napkin_plan::{hardware, runtime};
use nn::config::Config;
use nn::families;
use nn::step::{Precision, StepOptions};
use nn::{ModelSpec, Profile};
use std::collections::BTreeMap;

type Row<'a> = BTreeMap<&'a str, &'a str>;

fn rows() -> Vec<Row<'static>> {
    let text = include_str!("../../../data/published/memory.csv");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines.map(|line| columns.iter().copied().zip(line.split(',')).collect()).collect()
}

fn number(row: &Row<'_>, key: &str) -> u64 {
    row[key].parse().unwrap_or(0)
}

/// The model of a row; the vocabulary is filled up as Megatron-LM does it, to a multiple of 128 for each rank.
fn model(row: &Row<'_>) -> ModelSpec {
    let of = |key| number(row, key);
    let vocab = of("vocab").next_multiple_of(128 * of("tp"));
    let common = format!(
        r#""num_hidden_layers": {}, "hidden_size": {}, "num_attention_heads": {}, "num_key_value_heads": {},
        "intermediate_size": {}, "vocab_size": {vocab}, "tie_word_embeddings": false, "hidden_act": "silu",
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5"#,
        of("n_layers"),
        of("d_model"),
        of("n_heads"),
        of("n_kv_heads"),
        of("d_ff")
    );
    let text = if of("experts") == 0 {
        format!(r#"{{"model_type": "llama", "head_dim": {}, {common}}}"#, of("head_dim"))
    } else {
        format!(
            r#"{{"model_type": "deepseek_v3", {common}, "n_routed_experts": {}, "num_experts_per_tok": {},
            "moe_intermediate_size": {}, "n_shared_experts": {}, "first_k_dense_replace": {}, "q_lora_rank": {},
            "kv_lora_rank": {}, "qk_nope_head_dim": {}, "qk_rope_head_dim": {}, "v_head_dim": {}, "n_group": 1,
            "topk_group": 1}}"#,
            of("experts"),
            of("topk"),
            of("d_ff_expert"),
            of("d_ff_shared") / of("d_ff_expert"),
            of("dense_layers"),
            of("q_lora"),
            of("kv_lora"),
            of("qk_nope"),
            of("qk_rope"),
            of("v_dim")
        )
    };
    let (config, problems) = Config::parse("row.json", text.as_bytes());
    families::load(&config.unwrap_or_else(|| panic!("{problems}")), None).unwrap().spec
}

fn layout(row: &Row<'_>) -> Layout {
    let of = |key| number(row, key);
    Layout {
        dp: of("dp"),
        tp: of("tp"),
        sp: row["sp"] == "yes",
        cp: of("cp"),
        context: ContextParallel::AllToAll,
        ep: of("ep"),
        pp: of("pp"),
        zero: of("zero") as u8,
        micro_batch: of("micro_batch"),
        grad_accum: of("grad_accum"),
        ..Layout::default()
    }
}

fn step(row: &Row<'_>) -> StepOptions {
    StepOptions::usual(number(row, "seq_len"), Profile::Fused, Precision::Bf16MasterFp32Grads)
}

const GIB: f64 = (1u64 << 30) as f64;

/// Nothing is fitted on these rows; those marked `test` are only reported on.
#[test]
fn ranks_hold_what_was_measured() {
    let (mut of_test, mut wrong) = (Vec::new(), Vec::new());
    for row in rows() {
        let layout = layout(&row);
        let ranks = rank::memory(&model(&row), &layout, &step(&row), Some(Engine::Megatron)).unwrap();
        let measured: Vec<f64> = row["alloc_gib_by_rank"].split(' ').map(|gib| gib.parse().unwrap()).collect();
        let stage = measured.len() / ranks.len();
        for (rank, gib) in ranks.iter().zip(measured.iter().step_by(stage)) {
            let predicted = rank.peak_bytes as f64 / GIB;
            let error = predicted / gib - 1.0;
            let line = format!(
                "{} {} {layout}, stage {}: {predicted:.2} GiB, measured {gib:.2} ({:+.2} %) in {}",
                row["split"],
                row["row_id"],
                rank.place,
                100.0 * error,
                rank.phase
            );
            println!("{line}");
            let most = if row["experts"].is_empty() { 0.006 } else { 0.02 };
            if error.abs() > most {
                wrong.push(line);
            }
        }
        let fullest = ranks.iter().map(|rank| rank.peak_bytes).max().unwrap() as f64 / GIB;
        let gib: f64 = row["peak_mem_gib"].parse().unwrap();
        if row["split"] == "test" {
            of_test.push((fullest / gib - 1.0).abs());
        }
    }
    let mean = of_test.iter().sum::<f64>() / of_test.len() as f64;
    println!("mean absolute error of the fullest rank, {} test rows: {:.2} %", of_test.len(), 100.0 * mean);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(mean <= 0.01, "{mean}");
}

/// Reserved bytes of the fullest rank. Nothing is fitted on these rows.
#[test]
fn what_is_reserved_is_what_the_allocator_takes() {
    let hardware = hardware::find("b200").unwrap();
    let workspace = runtime::workspace(hardware);
    let mut errors = Vec::new();
    for row in rows() {
        let (layout, measured) = (layout(&row), row["reserved_gib"].parse::<f64>().unwrap());
        let step = StepOptions { steps: 2, warm: false, ..step(&row) };
        let ranks = rank::trace(&model(&row), &layout, &step, Some(Engine::Megatron), 0..layout.pp).unwrap();
        let reserve = |rank: &rank::RankTrace| {
            rank.reserve(&layout, Some(Engine::Megatron), workspace, None).end.peak_reserved as f64 / GIB
        };
        let reserved = ranks.iter().map(reserve).fold(0.0, f64::max);
        let error = reserved / measured - 1.0;
        println!(
            "{} {} {layout}: {reserved:.2} GiB, measured {measured:.2} ({:+.2} %)",
            row["split"],
            row["row_id"],
            100.0 * error
        );
        errors.push(error.abs());
    }
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    println!("median absolute error of {} rows: {:.2} %", errors.len(), 100.0 * median);
    assert!(median <= 0.05, "{median}");
}
