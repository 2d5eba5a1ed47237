#![no_main]

#[path = "../file_targets.rs"]
#[allow(dead_code)]
mod file_targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| file_targets::published(bytes));
