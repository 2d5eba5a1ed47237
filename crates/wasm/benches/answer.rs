//! What one input of the page costs outside of the browser: the answer, its drawing and its document.
//!
//! `cargo bench -p napkin-wasm`; `docs/benchmarks.md` has what a browser measures.
#![allow(missing_docs, clippy::unwrap_used)]

use napkin_wasm::answer;
use std::sync::atomic::{AtomicU64, Ordering};

fn main() {
    divan::main();
}

const MODELS: [&str; 4] = ["gpt2", "llama-3.1-8b", "llama-3.1-405b", "deepseek-v3"];

fn asked(words: &[&str]) -> String {
    let words = format!("[{}]", words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(","));
    answer(&words, "config.json", b"", 900.0)
}

/// A length of sequences that was not asked for before: what is known of the last step is of no use.
fn another_step() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(512);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

#[divan::bench(args = MODELS)]
fn ledger(model: &str) -> String {
    asked(&["ledger", model, "-n", "8", "--zero", "3", "--timeline", "--seq-len", &another_step()])
}

/// The same step on another number of devices.
#[divan::bench(args = MODELS)]
fn ledger_of_the_same_step(model: &str) -> String {
    static DEVICES: AtomicU64 = AtomicU64::new(8);
    let devices = (8 + DEVICES.fetch_add(1, Ordering::Relaxed) % 64).to_string();
    asked(&["ledger", model, "-n", &devices, "--zero", "3", "--timeline"])
}

#[divan::bench(args = MODELS)]
fn flops(model: &str) -> String {
    asked(&["flops", model, "--seq-len", &another_step()])
}

#[divan::bench(args = MODELS)]
fn params(model: &str) -> String {
    asked(&["params", model])
}
