//! `infer` as its users run it: cases with right answers, flags, refusals, exit codes.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.arg("infer").args(words).env_remove("COLUMNS").env_remove("NO_COLOR").output().unwrap()
}

fn answer(words: &[&str], code: i32) -> String {
    let output = run(words);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(words: &[&str]) -> String {
    let output = run(words);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

fn file(name: &str) -> String {
    format!("{}/../nn/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// inference-06: 125.1 B parameters of 0.58 bytes do not fit in 48 GB, whatever a token uses.
#[test]
fn inference_06_total_parameters_fill_memory() {
    let words = ["--params", "125.1B", "--active", "10B", "--bytes-per-param", "0.58", "--memory", "48GB"];
    let text = answer(&[&words[..], &["--units", "si"]].concat(), 1);
    assert!(text.starts_with("does not fit, 24.56 GB over   weights 72.56 GB"), "{text}");
    assert!(text.lines().any(|line| split(line).starts_with(&["of", "a", "token", "5.800", "GB"])), "{text}");
    let json = answer(&[&words[..], &["--json"]].concat(), 1);
    assert!(json.contains("\"bytes\": 72558000000") && json.contains("\"memory_uses\": \"total\""), "{json}");
}

/// inference-07: the engine's own number, beside what ignores the window and what ignores the chunk.
#[test]
fn inference_07_engine_and_model() {
    let config = file("cfg_layer_types_all_sliding.json");
    let text = answer(&[&config, "--kv-tokens", "2198512", "--seq-len", "16384", "--prefill-chunk", "8192"], 0);
    assert!(text.starts_with("178 sequences of 16,384 tokens at a time"), "{text}");
    for (row, number) in
        [("paged engine", "178.68"), ("what the model needs", "536.75"), ("if no layer had a window", "134.19")]
    {
        let found = |line: &str| line.trim_start().starts_with(row) && line.contains(number);
        assert!(text.lines().any(found), "{row}: {text}");
    }
    assert!(text.contains("769 blocks of 16 tokens: 12,304 tokens"), "{text}");
}

/// ui-01: with the windows and without.
#[test]
fn ui_01_windows_end_the_growth() {
    let text = answer(&[&file("cfg_nested_text.json"), "--seq-len", "131072"], 0);
    assert!(text.starts_with("2.61 GiB of keys and values for 131,072 tokens"), "{text}");
    assert!(text.lines().any(|line| split(line).starts_with(&["without", "windows", "17.00", "GiB"])), "{text}");
    assert!(text.contains("the language model is read from `text_config`"), "{text}");
}

/// Each number with its formula, and the flags that change what is assumed.
#[test]
fn formulas_and_flags() {
    let words = ["llama-3.1-70b", "--hw", "h100-sxm", "-n", "4", "--seq-len", "4096", "--explain"];
    let text = answer(&words, 0);
    for part in [
        "per token = Σ l·w·e = 80 × 2 × 2 heads × 128 elements × 2 B = 80.00 KiB",
        "token, memory = (W + K) / R",
        "prompt, compute = F / (n·P)",
        "two sums over the devices in each block, over 450.0 GB/s",
        "the bound: no kernel is faster  (--mbu)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let bound = answer(&["llama-3.1-8b", "--hw", "h100-sxm", "--json"], 0);
    let half = answer(&["llama-3.1-8b", "--hw", "h100-sxm", "--mbu", "50%", "--json"], 0);
    let token = |json: &str| -> f64 {
        let at = json.find("\"time_per_output_token_seconds\": ").unwrap() + 33;
        json[at..].split([',', '\n']).next().unwrap().trim().parse().unwrap()
    };
    assert!((token(&half) / token(&bound) - 2.0).abs() < 1e-9);
}

#[test]
fn questions_that_cannot_be_asked() {
    for (words, part) in [
        (&["llama-3.1-8b", "--weights", "nf5"][..], "`nf5` is no number format"),
        (&["llama-3.1-8b", "--kv-dtype", "nf4"], "no engine keeps keys and values in nf4"),
        (&["llama-3.1-8b", "--tp", "3"], "32 query heads cannot be divided evenly over --tp 3"),
        (&["llama-3.1-8b", "-n", "8", "--tp", "3"], "--tp 3 does not divide -n 8"),
        (&["llama-3.1-8b", "--prompt", "9000", "--seq-len", "100"], "--prompt 9000 is longer than --seq-len 100"),
        (&["llama-3.1-8b", "--active", "1B"], "--active is of a bare count"),
        (
            &["llama-3.1-8b", "--bytes-per-param", "1e18"],
            "--bytes-per-param 1000000000000000000 is more than is counted",
        ),
        (&["--params", "1B", "--active", "2B"], "is more than --params"),
        (&["--params", "1B", "--kv", "32x8"], "is not layers x key/value heads x head dim"),
        (&["gpt2", "--seq-len", "4096"], "positions"),
        (&[], "which model?"),
    ] {
        let text = refusal(words);
        assert!(text.contains(part), "{words:?}: {text}");
    }
}

/// ui-04: what the keys of a family say whose modules are not known or not all stated, with the hole named.
#[test]
fn ui_04_a_list_of_kinds_instead_of_a_count() {
    let text = answer(&[&file("cfg_hybrid_blocks_no_layers.json"), "--json"], 0);
    assert!(text.contains("\"bytes_per_token\": 2048") && text.contains("\"attention_layers\": 1"), "{text}");
    assert!(text.contains("\"layers\": 6"), "{text}");
    let folder = std::env::temp_dir().join(format!("napkin-infer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = r#"{"model_type": "new_kind", "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64,
        "num_key_value_heads": 2, "layer_types": ["mamba", "attention", "mlp", "warp"]}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
    let name = folder.to_str().unwrap();
    let text = answer(&[name, "--seq-len", "1000"], 0);
    for part in [
        "500.00 KiB of keys and values for 1,000 tokens   weights not counted",
        "the modules of `new_kind` are not known: parameters are not counted",
        "1 recurrent or state-space layers keep a state",
        "layers of kind `warp` are not known",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(refusal(&[name, "--hw", "h100-sxm"]).contains("how many parameters"));
    assert!(answer(&[name, "--hw", "h100-sxm", "--params", "8B", "-q"], 0).contains("weights 14.90 GiB"));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Weights as the config says they are kept, unless the flags say otherwise.
#[test]
fn formats_that_the_config_states() {
    let stated = answer(&["gpt-oss-120b"], 0);
    assert!(stated.contains("in mxfp4") && stated.contains("stated by the config: 4.2500 bits each"), "{stated}");
    assert!(!stated.contains("is not understood"), "{stated}");
    assert!(answer(&["gpt-oss-120b", "--weights", "bf16"], 0).contains("parameters in bf16"));
    let four = answer(&[&file("cfg_gptq4.json"), "--json"], 0);
    assert!(four.contains("\"format\": \"gptq\""), "{four}");
}
