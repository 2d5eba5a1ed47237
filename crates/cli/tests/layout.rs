//! `layout` as its users run it: a layout said, written for an engine, read back, and refused.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The exit code, standard output and standard error.
fn run(folder: &Path, words: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .args(words.split(' '))
        .current_dir(folder)
        .env_remove("COLUMNS")
        .output()
        .expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_layout_goes_to_an_engine_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let (code, out, err) = run(at, "layout llama-3.1-70b -n 64 --tp 8 --sp --pp 4 --zero 1 --grad-accum 16 -q");
    assert_eq!((code, &*err), (Some(0), ""));
    assert_eq!(out, "64 devices   tp 8 sp · pp 4 · dp 2 zero 1 · micro-batch 1 × 16\n");

    // Standard output is the configuration itself.
    let words =
        "layout llama-3.1-70b -n 64 --tp 8 --sp --pp 4 --zero 1 --grad-accum 16 --seq-len 8192 --export megatron";
    let (code, script, err) = run(at, words);
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(script.starts_with("#!/bin/sh\n# llama-3.1-70b for Megatron-LM: 64 devices"), "{script}");
    for part in ["--tensor-model-parallel-size 8 ", "--num-layers 80 ", "--seq-length 8192 ", "--global-batch-size 32 "]
    {
        assert!(script.contains(part), "{part} in {script}");
    }
    fs::write(at.join("run.sh"), &script).expect("a file");
    let (code, json, err) = run(at, "layout llama-3.1-70b --from-megatron-args run.sh --json");
    assert_eq!((code, &*err), (Some(0), ""));
    let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let result = &answer["result"];
    assert_eq!([&result["dp"], &result["tp"], &result["pp"], &result["grad_accum"]], [2, 8, 4, 16]);
    assert_eq!(result["blocks"], serde_json::json!([20, 20, 20, 20]));
    assert_eq!(answer["assumptions"][0]["value"], 8192);

    // Flags hold before the file; a file is written with -o, and not over another.
    let words = "layout llama-3.1-70b --from-megatron-args run.sh --zero 3 --export torchtitan --precision bf16-mixed -o run.toml";
    let (code, out, _) = run(at, words);
    assert_eq!(code, Some(0));
    assert!(out.contains("written  run.toml   for torchtitan"), "{out}");
    let toml = fs::read_to_string(at.join("run.toml")).expect("the file");
    assert!(toml.contains("flavor = \"70B\"") && toml.contains("data_parallel_shard_degree = 2"), "{toml}");
    assert_eq!(run(at, words).0, Some(2));
    let (_, out, _) = run(at, "layout llama-3.1-70b --from-torchtitan run.toml -q");
    assert_eq!(out, "64 devices   tp 8 sp · pp 4 · dp 2 zero 3 · micro-batch 1 × 16\n");
}

#[test]
fn what_cannot_be_is_said_all_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    fs::write(at.join("ds.json"), "{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 9}}").expect("a file");
    let rows: &[(&str, &[&str])] = &[
        ("layout llama-3.1-8b -n 64 --tp 3 --pp 5", &["T0480", "60 or 75", "T0481", "tp: 2 or 4"]),
        ("layout llama-3.1-8b -n 8 --pp 2 --export fsdp", &["FSDP cannot run pp 2", "FSDP cannot run zero 0"]),
        ("layout llama-3.1-8b --from-deepspeed ds.json", &["ds.json:1:", "T0494", "T0495", "-n DEVICES"]),
        ("layout llama-3.1-8b --tp 0 --schedule zigzag --export slurm", &["--tp", "zigzag", "slurm", "megatron"]),
        ("layout llama-3.1-8b --from-torchtitan none.toml", &["none.toml"]),
        ("layout llama-3.1-8b --from-torchtitan a --from-deepspeed b", &["cannot be used with"]),
    ];
    for (words, parts) in rows {
        let (code, out, err) = run(at, words);
        assert_eq!((code, &*out), (Some(2), ""), "{words}: {err}");
        for part in *parts {
            assert!(err.contains(part), "{words}: no {part} in\n{err}");
        }
    }
}
