//! Real configs, numbers and patterns, changed: none of what comes out may panic a reader.
//!
//! The same functions that `fuzz/` runs with a fuzzer, over changes that are the same in every run. `NAPKIN_MUTATIONS=200`
//! makes that many times as many.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tensor::rng::{Rng, Stream};

/// Numbers by the draw.
struct Draw {
    rng: Rng,
    next: u64,
}

impl Draw {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed, Stream::DataOrder), next: 0 }
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.next += 1;
        (self.rng.uniform_f64(0, self.next) * end as f64) as usize
    }
}

fn times() -> u64 {
    std::env::var("NAPKIN_MUTATIONS").map_or(1, |text| text.parse().unwrap())
}

/// Runs `target` and shows the input it panics on.
fn survives(target: fn(&[u8]), input: &[u8]) {
    let answered = catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(answered.is_ok(), "panicked on: {}", String::from_utf8_lossy(input));
}

/// All configs of the repository.
fn configs() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders =
        ["data/models", "crates/nn/tests/data", "crates/nn/tests/data/tiny", "crates/plan/tests/truth/configs"];
    let mut files: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()))
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Values that a number, a word or a list of a config is swapped for.
const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "7",
    "-1",
    "0.5",
    "1e3",
    "1e300",
    "-0.0",
    "1024",
    "1025",
    "65536",
    "1099511627776",
    "1099511627777",
    "4611686018427387904",
    "18446744073709551615",
    "18446744073709551616",
    "NaN",
    "Infinity",
    "null",
    "true",
    "false",
    "\"\"",
    "\"64\"",
    "\"silu\"",
    "[]",
    "[1, 0, 1]",
    "[\"sliding_attention\"]",
    "{}",
    "[[[\"local\"], 3]]",
];

/// Where the values of the file stand, as ranges of bytes: between a colon and what ends it.
fn values(text: &[u8]) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    for (i, _) in text.iter().enumerate().filter(|(_, b)| **b == b':') {
        let len = text[i + 1..].iter().position(|b| matches!(b, b',' | b'}' | b'\n')).unwrap_or(0);
        out.push((i + 1, i + 1 + len));
    }
    out
}

/// One or two changes of a kind.
fn change(text: &[u8], draw: &mut Draw) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=draw.below(2) {
        if text.is_empty() {
            break;
        }
        let at = draw.below(text.len());
        match draw.below(8) {
            0 => text.truncate(at),
            1 => text[at] ^= 1 << draw.below(8),
            2 => drop(text.remove(at)),
            3 => text.insert(at, b"{}[]\",:0-"[draw.below(9)]),
            _ => {
                let values = values(&text);
                if !values.is_empty() {
                    let (from, to) = values[draw.below(values.len())];
                    let new = VALUES[draw.below(VALUES.len())].bytes();
                    text.splice(from..to, new);
                }
            }
        }
    }
    text
}

#[test]
fn changed_configs_are_answered() {
    let mut draw = Draw::new(1);
    for (path, text) in configs() {
        // Small files change more often: every family has a small one, whose step is traced.
        let tiny = path.parent().is_some_and(|folder| folder.ends_with("tiny"));
        for _ in 0..times() * if tiny { 60 } else { 20 } {
            survives(targets::config, &change(&text, &mut draw));
        }
    }
}

#[test]
fn changed_quantities_are_answered() {
    let words = "15T 70B 80GiB 80G 6.3e24 40% 0.5 1,024 989.5TFLOP/s 3.35TB/s 143.9 days 2 h 1_000 bf16 f8e4m3 adamw-foreach \
                 h100-sxm a100-80gb -1 NaN inf 1e400 0x10 ½ ＋1 1e-400 340282366920938463463374607431768211456";
    let mut draw = Draw::new(2);
    for word in words.split(' ') {
        for _ in 0..times() * 200 {
            survives(targets::units, &change(word.as_bytes(), &mut draw));
        }
    }
}

#[test]
fn changed_patterns_are_answered() {
    let patterns = [
        "b s (h d) -> b h s d",
        "b (h d) ... -> (b h) ... d",
        "b s1 h, b s2 h -> b s1 s2",
        "ij,jk->ik",
        "... i j, ... j k -> ... i k",
        "a b c -> c () a",
        "b 1 s -> b h s",
        "a b, b c, c d -> a d",
        "(a (b c)) -> a",
    ];
    let mut draw = Draw::new(3);
    for pattern in patterns {
        for _ in 0..times() * 800 {
            let sizes = (0..8).map(|_| if draw.below(20) == 0 { u8::MAX } else { draw.below(7) as u8 });
            let mut input: Vec<u8> = sizes.collect();
            input.extend(change(pattern.as_bytes(), &mut draw));
            survives(targets::einops, &input);
        }
    }
}

#[test]
fn changed_messages_are_answered() {
    let messages = [
        "RuntimeError: CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 31.74 GiB total capacity; 29.71 GiB already \
         allocated; 255.25 MiB free; 30.36 GiB reserved in total by PyTorch)",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of which \
         244.65 GiB is free. Process 12 has 3.00 GiB memory in use. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is \
         allocated by PyTorch, with 17.00 MiB allocated in private pools, and 54.99 MiB is reserved by PyTorch but unallocated.",
        "MPS backend out of memory (MPS allocated: 17.94 GB, other allocations: 400.26 MB, max allowed: 18.13 GB). Tried to \
         allocate 128.00 MB on private pool.",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 18446744073709551615 bytes. Error code 12",
    ];
    let mut draw = Draw::new(4);
    for message in messages {
        for _ in 0..times() * 30 {
            survives(targets::oom, &change(message.as_bytes(), &mut draw));
        }
    }
}

#[test]
fn changed_logs_are_answered() {
    let logs = [
        "{\"step\": 0, \"dt_s\": 3.9, \"tokens\": 61440, \"note\": \"compile\"}\n{\"step\": 1, \"dt_s\": 0.52, \"tokens\": 61440, \
         \"flop\": 52518912000000}\n{\"step\": 2, \"dt_s\": 0.5, \"tokens\": 61440, \"train\": {\"mfu\": 33.3}}\n",
        "iter 100: loss 3.2, time 505.10ms, mfu 33.30%, tokens: 61440\niter 110: loss 3.1, time 501.1ms, tokens: 122880\n",
        "step 1/9 | dt: 505.10ms | tok/sec: 529,882 | mfu: 74.13 | total time: 1.2m\nstep 2/9 | tps: 5,231 tok/s\n",
        "{\"_step\": 0, \"_timestamp\": 1.7e9, \"tokens\": 10}\n{\"_step\": 10, \"_timestamp\": 1700000005.0, \"tokens\": 20}\n",
    ];
    let mut draw = Draw::new(5);
    for log in logs {
        for _ in 0..times() * 400 {
            survives(targets::step_log, &change(log.as_bytes(), &mut draw));
        }
    }
}

#[test]
fn changed_snapshots_are_answered() {
    let mut draw = Draw::new(6);
    for snapshot in [&include_bytes!("snapshot/gpt2.pickle")[..], include_bytes!("snapshot/old.pickle")] {
        for _ in 0..times() * 400 {
            survives(targets::snapshot, &change(snapshot, &mut draw));
        }
    }
}

#[test]
fn changed_allocator_settings_are_answered() {
    let settings = [
        "expandable_segments:True,max_split_size_mb:512,garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,>:8],large_segment_size_mb:64,per_process_memory_fraction:0.9",
        "PYTORCH_CUDA_ALLOC_CONF=\"backend:native,pinned_use_background_threads:True,roundup_power2_divisions:4\"",
    ];
    let mut draw = Draw::new(7);
    for setting in settings {
        for _ in 0..times() * 300 {
            survives(targets::alloc_conf, &change(setting.as_bytes(), &mut draw));
        }
    }
}

#[test]
fn changed_configurations_of_engines_are_answered() {
    let files = [
        "TP=2\ntorchrun --nproc-per-node 8 run.py --tensor-model-parallel-size ${TP:-4} --pipeline-model-parallel-size 2 \\\n \
         --pipeline-model-parallel-layout 'Et|t*2|tL|' --micro-batch-size 1 --global-batch-size 16 --bf16",
        "[parallelism]\npipeline_parallel_degree = 2\ndata_parallel_shard_degree = -1\n[training]\nlocal_batch_size = 4\n",
        "{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
        "parallelism: {dp: 4, tp: 2, pp: 2, pp_engine: afab}\ntokens:\n  micro_batch_size: 2\n  list: [a, {b: 1}]\n",
        "num_processes: 16\nfsdp_config:\n  fsdp_version: 2\nparallelism_config: {parallelism_config_dp_shard_size: 16}\n",
    ];
    let mut draw = Draw::new(9);
    for file in files {
        for _ in 0..times() * 60 {
            survives(targets::handover, &change(file.as_bytes(), &mut draw));
        }
    }
}
