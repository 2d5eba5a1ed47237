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
fn plan_answers_for_the_layout_of_an_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let napkin = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_napkin")).args(words).current_dir(at).output();
        let output = output.expect("the program starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(output.stderr));
        (text(output.stdout), text(output.stderr))
    };
    let arguments = "--tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 4 \
                     --micro-batch-size 1 --global-batch-size 128 --seq-length 4096 --use-distributed-optimizer --bf16 \
                     --recompute-activations --made-up-option 3";
    let plan = ["plan", "llama-3.1-70b", "--hw", "h100-sxm", "-n", "64", "--json", "--from-megatron-args"];
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let (out, _) = napkin(&[&plan[..], &[arguments, "--tokens", "1T"]].concat());
    let answer = json(&out);
    let layout = &answer["result"]["layout"];
    for (key, value) in [("dp", 2), ("tp", 8), ("pp", 4), ("zero", 1), ("micro_batch", 1), ("grad_accum", 64)] {
        assert_eq!(layout[key], value, "{key}");
    }
    assert_eq!((&layout["recompute"], &layout["sp"]), (&"selective".into(), &true.into()));
    // An option that nobody knows is named, and read over.
    let warnings = answer["warnings"].to_string();
    assert!(warnings.contains("T0498") && warnings.contains("--made-up-option"), "{warnings}");

    // It is what `layout` says of it, and the time of the run is as many steps.
    let (out, _) = napkin(&[&["layout"], &plan[1..], &[arguments]].concat());
    let (estimate, same) = (&answer["result"]["estimate"], &json(&out)["result"]["estimate"]);
    assert_eq!(estimate, same);
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let steps = 1e12 / number(&estimate["tokens"]);
    let seconds = number(&estimate["step_seconds"]) * steps;
    assert!((number(&answer["result"]["time"]["seconds"]) / seconds - 1.0).abs() < 1e-9);

    // A script on disk is read as well, and flags hold before it.
    fs::write(at.join("run.sh"), format!("torchrun pretrain_gpt.py {arguments}")).expect("a file");
    let (out, _) =
        napkin(&[&plan[..], &["run.sh", "--recompute", "full", "--zero", "0", "--seq-len", "8192"]].concat());
    let layout = &json(&out)["result"]["layout"];
    assert_eq!([&layout["recompute"], &layout["zero"]], [&serde_json::json!("full"), &serde_json::json!(0)]);
    assert_eq!(layout["tokens_per_step"], 128 * 8192);

    // The other engines.
    let rows = [
        ("--from-torchtitan", "torchtitan", "bf16-mixed", "dp 8 zero 3 · micro-batch 1 × 1"),
        ("--from-deepspeed", "deepspeed", "bf16-master", "dp 8 zero 3 · micro-batch 1 × 1"),
        ("--from-fsdp", "fsdp", "bf16-mixed", "dp 8 zero 3 · micro-batch 1 × 1"),
        ("--from-nanotron", "nanotron", "bf16-master-fp32-grads", "dp 8 zero 1 · micro-batch 1 × 1"),
    ];
    for (flag, engine, precision, divided) in rows {
        let zero = if engine == "nanotron" { "1" } else { "3" };
        let words = ["layout", "llama-3.1-8b", "-n", "8", "--zero", zero, "--precision", precision, "--export", engine];
        fs::write(at.join(engine), napkin(&words).0).expect("a file");
        let (out, _) = napkin(&["plan", "llama-3.1-8b", "--hw", "h200-sxm", "-n", "8", flag, engine]);
        assert!(out.contains(divided), "{engine}: {out}");
        assert!(out.contains(&format!("precision {precision}")), "{engine}: {out}");
    }
}

/// Each change that is said to be enough is: with its flags the command says that it fits, in as many bytes and as much time.
#[test]
fn changes_that_make_it_fit_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = [
        "layout llama-3.1-70b --hw h100-sxm -n 64 --tp 4 --sp --pp 2 --dp 8 --zero 1 --micro-batch 2 --grad-accum 16",
        "ledger llama-3.1-8b --hw h100-sxm -n 8 --zero 1 --batch 4 --seq-len 8192",
        "plan llama-3.1-8b --hw a100-sxm-80gb -n 2 --seq-len 16384 --batch 2",
    ];
    for words in rows {
        let answer = |words: &str| -> (Option<i32>, serde_json::Value) {
            let (code, out, err) = run(folder.path(), &format!("{words} --json"));
            (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{words}: {error}: {err}")))
        };
        let (code, json) = answer(words);
        assert_eq!((code, &json["result"]["fits"]), (Some(1), &false.into()), "{words}");
        let levers = json["result"]["levers"].as_array().expect("levers").clone();
        assert!(levers.iter().any(|lever| lever["enough"] == true), "{words}: {levers:?}");
        // One that is not enough, and all that are.
        let not_enough = levers.iter().position(|lever| lever["enough"] == false);
        let shown = levers.iter().enumerate().filter(|(i, lever)| lever["enough"] == true || Some(*i) == not_enough);
        for (_, lever) in shown {
            let (code, json) = answer(&with_flags(words, lever["flags"].as_str().expect("flags")));
            assert_eq!(json["result"]["fits"], lever["enough"], "{words}: {lever}");
            assert_eq!(code == Some(0), lever["enough"] == true, "{words}: {lever}");
            let result = &json["result"];
            if words.starts_with("layout") {
                // What has no room by its tensors alone is told by them: the allocator adds to it.
                let estimate = &result["estimate"];
                let whole = if lever["with_allocator"] == true { "device_bytes" } else { "tensor_bytes" };
                assert_eq!(estimate[whole], lever["peak_bytes_about"], "{words}: {lever}");
                // Sums over blocks differ from those of a few blocks by their rounding.
                let seconds = result["estimate"]["step_seconds"].as_f64().zip(lever["step_seconds"].as_f64());
                let same = |(whole, short): (f64, f64)| (short / whole - 1.0).abs() < 1e-9;
                assert!(lever["step_seconds"].is_null() || seconds.is_some_and(same), "{words}: {lever}");
            } else {
                let device = if words.starts_with("plan") { &result["ledger"]["device"] } else { &result["device"] };
                // Communicators grow with the devices, which the change with more of them leaves out.
                let more = lever["flags"].as_str().is_some_and(|flags| flags.contains("-n "));
                let (total, about) = (&device["total_bytes"], &lever["peak_bytes_about"]);
                // What has no room by its tensors alone is told by them: the allocator adds to it.
                let least = total.as_f64().zip(about.as_f64()).map(|(total, about)| total / about);
                let near = lever["enough"] == false && least.is_some_and(|share| (1.0..1.15).contains(&share));
                assert!(more || near || total == about, "{words}: {total} {lever}");
            }
        }
    }
}

/// What a change of a step that fits is said to take is what the step takes that has it; and none makes it larger.
#[test]
fn the_largest_levers_are_steps_with_their_allocators() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = "plan llama-3.1-8b --hw h100-sxm -n 8 --seq-len 2048";
    let answer = |words: &str| -> serde_json::Value {
        let (code, out, err) = run(folder.path(), &format!("{words} --json"));
        assert_eq!(code, Some(0), "{words}: {err}");
        serde_json::from_str(&out).expect("JSON")
    };
    let total = |json: &serde_json::Value| json["result"]["ledger"]["device"]["total_bytes"].as_u64().expect("bytes");
    let json = answer(words);
    let levers = json["result"]["levers"].as_array().expect("levers");
    assert!(levers.len() >= 3, "{levers:?}");
    for lever in levers {
        let then = total(&answer(&with_flags(words, lever["flags"].as_str().expect("flags"))));
        assert_eq!((&lever["peak_bytes_about"], &lever["with_allocator"]), (&then.into(), &true.into()), "{lever}");
        assert_eq!(lever["frees_bytes_about"].as_u64(), total(&json).checked_sub(then), "{lever}");
    }
}

/// A command line on which these flags take the place of those there.
fn with_flags(words: &str, flags: &str) -> String {
    let mut words: Vec<&str> = words.split(' ').collect();
    let flags: Vec<&str> = flags.split(' ').collect();
    for flag in flags.iter().filter(|word| word.starts_with('-')) {
        if let Some(at) = words.iter().position(|word| word == flag) {
            let value = usize::from(words.get(at + 1).is_some_and(|next| !next.starts_with('-')));
            words.drain(at..=at + value);
        }
    }
    [words, flags].concat().join(" ")
}

#[test]
fn what_cannot_be_is_said_all_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    fs::write(at.join("ds.json"), "{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 9}}").expect("a file");
    fs::write(at.join("empty.sh"), "").expect("a file");
    fs::write(at.join("odd.sh"), [0u8, 255, 254, 7, 34, 10, 200, 34]).expect("a file");
    fs::write(at.join("open.sh"), "--tensor-model-parallel-size 8\n--bf16 \"x\n").expect("a file");
    let rows: &[(&str, &[&str])] = &[
        ("layout llama-3.1-8b -n 64 --tp 3 --pp 5", &["T0480", "60 or 75", "T0481", "tp: 2 or 4"]),
        (
            "layout llama-3.1-8b --hw h200-sxmm -n 60 --tp 6 --pp 64 --network infiniband-nd",
            &["h200", "infiniband-ndr", "T0480", "384 devices would do", "tp: 4 or 8", "T0482", "pp: 32"],
        ),
        ("layout llama-3.1-8b -n 8 --pp 2 --export fsdp", &["FSDP cannot run pp 2", "FSDP cannot run zero 0"]),
        ("layout llama-3.1-8b --from-deepspeed ds.json", &["ds.json:1:", "T0494", "T0495", "-n DEVICES"]),
        ("layout llama-3.1-8b --tp 0 --schedule zigzag --export slurm", &["--tp", "zigzag", "slurm", "megatron"]),
        ("layout llama-3.1-8b --from-torchtitan none.toml", &["none.toml"]),
        ("plan llama-3.1-8b --hw h100-sxm --from-torchtitan none.toml", &["none.toml"]),
        (
            "plan llama-3.1-8b --hw h10 -n 8 --from-deepspeed ds.json --profile fused --batch x",
            &["h100-sxm", "--profile changes nothing", "--batch", "T0494"],
        ),
        ("plan llama-3.1-8b --hw h100-sxm --network efa-v2", &["--network changes nothing"]),
        ("layout llama-3.1-8b --from-torchtitan a --from-deepspeed b", &["cannot be used with"]),
        (
            "layout llama-3.1-8b --from-megatron-args empty.sh -n 8",
            &["empty.sh", "T0494", "no argument of Megatron-LM"],
        ),
        ("layout llama-3.1-8b --from-megatron-args odd.sh -n 8", &["odd.sh", "T0494", "no argument of Megatron-LM"]),
        ("layout llama-3.1-8b --from-megatron-args open.sh -n 8", &["open.sh:2:8", "this quote is never closed"]),
        ("layout mixtral-8x7b --hw h100-sxm -n 64 --tp 8 --export nanotron", &["T0491", "nanotron"]),
        (
            "layout mixtral-8x7b --hw h100-sxm -n 64 --gbs 256 --export nanotron",
            &["nanotron runs no layout of this run", "T0491"],
        ),
    ];
    for (words, parts) in rows {
        let (code, out, err) = run(at, words);
        assert_eq!((code, &*out), (Some(2), ""), "{words}: {err}");
        for part in *parts {
            assert!(err.contains(part), "{words}: no {part} in\n{err}");
        }
    }
}
