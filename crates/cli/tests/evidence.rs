//! `explain-oom` and `mfu --log` as their users run them: arguments, files, standard input, refusals.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn run(words: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.args(words).env_remove("COLUMNS").env_remove("NO_COLOR");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Who refuses its flags reads no input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn answer(words: &[&str], input: &str) -> String {
    let output = run(words, input);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(words: &[&str], input: &str) -> String {
    let output = run(words, input);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

const MESSAGE: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 0 has a total capacity of 31.74 \
    GiB of which 255.25 MiB is free. Including non-PyTorch memory, this process has 31.49 GiB memory in use. Of the allocated memory \
    29.71 GiB is allocated by PyTorch, and 665.60 MiB is reserved by PyTorch but unallocated.";

/// memory-01, from an argument, from standard input and from a file.
#[test]
fn a_message_from_anywhere() {
    let step = ["gpt2", "--set", "vocab_size=50304", "--batch", "4", "--seq-len", "1024", "--profile", "hf-eager"];
    let first = "786.00 MiB is logits   [4, 1024, 50304] f32   forward, ";
    let given = answer(&[&["explain-oom", "Tried to allocate 786.00 MiB"][..], &step].concat(), "");
    assert!(given.starts_with(first), "{given}");
    let piped = answer(&[&["explain-oom", "-"][..], &step].concat(), MESSAGE);
    assert!(piped.contains("31.74 GiB") && piped.contains("outside PyTorch"), "{piped}");
    let file = std::env::temp_dir().join(format!("napkin-oom-{}.txt", std::process::id()));
    std::fs::write(&file, MESSAGE).unwrap();
    let read = answer(&[&["explain-oom", file.to_str().unwrap()][..], &step].concat(), "");
    std::fs::remove_file(file).unwrap();
    assert_eq!(read, piped);
    let bare = answer(&["explain-oom", "786.00 MiB"], "");
    assert!(bare.contains("a guess: give the model") && bare.contains("4,096 × 50,304 × 4 B"), "{bare}");
    let json = answer(&["explain-oom", "786.00 MiB", "--json"], "");
    assert!(
        json.contains("\"schema\": \"napkin.explain-oom/1\"") && json.contains("\"requested_bytes\": 824180736"),
        "{json}"
    );
}

#[test]
fn what_is_no_message_is_refused() {
    assert!(refusal(&["explain-oom", "it does not fit"], "").contains("no size in bytes"));
    assert!(refusal(&["explain-oom", "-", "-"], MESSAGE).contains("cannot both"));
    assert!(refusal(&["explain-oom", "786 MiB", "--batch", "4"], "").contains("without a model"));
    assert!(refusal(&["explain-oom", "786 MiB", "no-such-model"], "").contains("neither a file"));
    assert!(!refusal(&["explain-oom", "786 MiB", "gpt2", "--batch", "0"], "").is_empty());
}

/// mfu-11, from standard input; a line of a log as an argument.
#[test]
fn a_log_from_anywhere() {
    let steps = [3.9, 0.52, 0.5, 0.51, 0.5, 0.49, 2.9, 0.5];
    let line = |(i, dt)| format!("{{\"step\": {i}, \"dt_s\": {dt}, \"tokens\": 61440}}");
    let log = steps.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
    let words = ["mfu", "--log", "-", "--flops-per-token", "854.8MFLOP", "--hw", "a100-sxm-40gb"];
    let text = answer(&words, &log);
    assert!(text.starts_with("33.7 % MFU   at the median step of 500 ms, pauses left out"), "{text}");
    for part in ["33.3 %", "13.7 %", "step 0: 3.9", "step 6: 2.9"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let line = answer(
        &[
            "mfu",
            "--log",
            "step 5 | dt: 505ms | tokens: 61440",
            "--flops-per-token",
            "854.8MFLOP",
            "--hw",
            "a100-sxm-40gb",
        ],
        "",
    );
    assert!(line.starts_with("33.3 % MFU"), "{line}");
    let one = refusal(
        &[
            "mfu",
            "--log",
            "-",
            "--flops-per-token",
            "854.8MFLOP",
            "--tokens-per-step",
            "491520",
            "--hw",
            "a100-sxm-40gb",
        ],
        &log,
    );
    assert!(one.starts_with("error[T0404]") && one.contains("-n 8"), "{one}");
    assert!(refusal(&words, "no times").contains("no line of the log"));
    assert!(refusal(&["mfu", "--tokens-per-step", "10", "gpt2", "--hw", "a100-sxm-40gb"], "").contains("--step-time"));
    assert!(
        refusal(&["mfu", "--log", "no-such-file.jsonl", "gpt2", "--hw", "a100-sxm-40gb"], "")
            .contains("cannot be read")
    );
}
