//! Headers of weights and tables of measurements, changed: none of what comes out may panic a reader, and none may be taken that lies about its bytes.
//!
//! The same functions that `fuzz/` runs with a fuzzer, over changes that are the same in every run. `NAPKIN_MUTATIONS=200`
//! makes that many times as many.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../../fuzz/file_targets.rs"]
mod file_targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tensor::rng::{Rng, Stream};

/// Whole files, written by other programs (`weights_files/make.py`).
fn file(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weights_files").join(name)).unwrap()
}

/// Numbers that a length, a size or an offset is swapped for.
const NUMBERS: [u64; 12] = [0, 1, 2, 7, 31, 32, 255, 1 << 16, 1 << 32, 100_000_001, u64::MAX >> 1, u64::MAX];

/// Pieces of JSON that are put into headers.
const PIECES: [&str; 14] =
    ["{", "}", "[", "]", ",", ":", "\"", "\\u0000", "-1", "1e9", "18446744073709551615", "null", "\"F4\"", "\"a\":{}"];

fn mutate(target: fn(&[u8]), whole: &[u8], seed: u64) {
    let rng = Rng::new(seed, Stream::DataOrder);
    let mut next = 0;
    let mut below = |end: usize| {
        next += 1;
        (rng.uniform_f64(0, next) * end as f64) as usize
    };
    let times = std::env::var("NAPKIN_MUTATIONS").map_or(1, |text| text.parse::<usize>().unwrap());
    for _ in 0..20_000 * times {
        let mut bytes = whole.to_vec();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(6) {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes.truncate(at + 1),
                2 => {
                    let number = NUMBERS[below(NUMBERS.len())].to_le_bytes();
                    let end = bytes.len().min(at + 8);
                    bytes[at..end].copy_from_slice(&number[..end - at]);
                }
                3 => {
                    let to = at + below(bytes.len() - at);
                    let piece = bytes[at..to].to_vec();
                    bytes.splice(at..at, piece);
                }
                4 => drop(bytes.splice(at..at, PIECES[below(PIECES.len())].bytes())),
                _ => drop(bytes.drain(at..at + below(bytes.len() - at).min(24))),
            }
            // The length of a safetensors header stays right half of the time, so that its inside is reached.
            if !whole.starts_with(b"GGUF") && bytes.len() > 8 && below(2) == 0 {
                let length = (bytes.len() - 8).min(below(bytes.len()) + 200) as u64;
                bytes[..8].copy_from_slice(&length.to_le_bytes());
            }
            if bytes.is_empty() {
                break;
            }
        }
        let answered = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
        assert!(answered.is_ok(), "panicked on: {}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn safetensors() {
    for (seed, name) in ["plain.safetensors", "fp8.safetensors"].iter().enumerate() {
        file_targets::safetensors(&file(name));
        mutate(file_targets::safetensors, &file(name), seed as u64);
    }
}

#[test]
fn gguf() {
    let whole = file("tiny.gguf");
    file_targets::gguf(&whole);
    mutate(file_targets::gguf, &whole, 7);
}

#[test]
fn published() {
    let whole = b"row_id,source_id,model,n_layers,d_model,n_heads,d_ff,vocab,seq_len,tied,mfu_pct,notes\r\n\
        a,s,\"x, y\",2,64,4,256,100,32,no,41.5,\"two\nlines\"\nb,s,m,3,,,,,,,,\n";
    file_targets::published(whole);
    mutate(file_targets::published, whole, 11);
}
