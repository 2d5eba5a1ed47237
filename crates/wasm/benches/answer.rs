//! What one input of the page costs outside of the browser: the answer, its drawing and its document.
//!
//! `cargo bench -p napkin-wasm`; `docs/benchmarks.md` has what a browser measures.
#![allow(missing_docs, clippy::unwrap_used)]

use napkin_wasm::answer;

fn main() {
    divan::main();
}

const MODELS: [&str; 4] = ["gpt2", "llama-3.1-8b", "llama-3.1-405b", "deepseek-v3"];

fn asked(words: &[&str]) -> String {
    let words = format!("[{}]", words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(","));
    answer(&words, "config.json", b"", 900.0)
}

#[divan::bench(args = MODELS)]
fn ledger(model: &str) -> String {
    asked(&["ledger", model, "-n", "8", "--zero", "3", "--timeline"])
}

#[divan::bench(args = MODELS)]
fn flops(model: &str) -> String {
    asked(&["flops", model])
}

#[divan::bench(args = MODELS)]
fn params(model: &str) -> String {
    asked(&["params", model])
}
