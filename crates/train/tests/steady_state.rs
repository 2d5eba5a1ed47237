//! A training step in its steady state takes nothing from the system: no memory for tensors, and no page fault.
//!
//! In a binary of its own, for it counts what the global allocator is asked for.
#![allow(clippy::unwrap_used, unsafe_code, missing_docs)]

use nn::optim::{Hyper, Implementation, Kind, OptimizerKind};
use nn::step::Precision;
use nn::{Labels, Profile, Recompute, Training, TrainingOptions};
use plan::model::Model;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use tensor::cpu::Threads;
use tensor::{CastLists, DType, Device, Runtime};

/// Requests of this size and more are counted. The smallest activation of the models below has twice as many bytes; what
/// is smaller are handles, shapes, and sums of a few rows.
const LARGE: usize = 64 << 10;

static LARGE_REQUESTS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: by the caller.
        unsafe { System.realloc(block, layout, size) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(block, layout) }
    }
}

fn count(bytes: usize) {
    if bytes >= LARGE {
        LARGE_REQUESTS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GPT2: &str =
    r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 512}"#;

/// Grouped keys, rotary positions, gated feed-forward, a head of its own.
const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 352, "max_position_embeddings": 64, "vocab_size": 512}"#;

fn options(precision: Precision) -> TrainingOptions {
    let kind = Kind::AdamW;
    TrainingOptions {
        profile: Profile::Fused,
        precision,
        optimizer: OptimizerKind { kind, implementation: Implementation::Fused },
        hyper: Hyper::of(kind),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        dropout: false,
        clip_norm: Some(1.0),
        objective: nn::Objective::DEFAULT,
        stochastic_rounding: false,
    }
}

/// Page faults of this process that needed no disk.
#[cfg(target_os = "linux")]
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Fields after the name, which may contain anything, in parentheses; minflt is the tenth of all.
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[cfg(not(target_os = "linux"))]
fn page_faults() -> u64 {
    0
}

#[test]
fn the_third_step_takes_nothing_from_the_system() {
    const STEPS: u64 = 3;
    const PAGE: u64 = 4096;
    the_counters_count();
    let precisions = [Precision::Fp32, Precision::Bf16Mixed, Precision::Bf16Pure, Precision::Fp8];
    let cases = [("GPT-2", GPT2), ("Llama", LLAMA)].into_iter().flat_map(|model| precisions.map(|p| (model, p)));
    for ((name, config), precision) in cases {
        let case = format!("{name}, {precision}");
        // One thread: another might meet its first work, and take its scratch, in any step.
        let (requests, faults, reserved) = Threads::new(1).unwrap().run(|| {
            let model = Model::from_text("model", "config.json", config.as_bytes(), &[], None).unwrap();
            let runtime = Runtime::new(Device::Cpu);
            runtime.set_recording(false);
            let mut training = Training::new(&runtime, &model.spec, &options(precision)).unwrap();
            let tokens: Vec<f64> = (0..256).map(|i| f64::from(i * 7 % 512)).collect();
            let mut step = || {
                let tokens = runtime.input(&tokens, &[4, 64], DType::I64).unwrap();
                let loss = training.forward(&tokens, Labels::Targets(&tokens)).unwrap();
                training.backward(loss, 1.0).unwrap();
                training.update(1e-3).unwrap();
            };
            step();
            step();
            let (held, requests, faults) = (runtime.memory(), LARGE_REQUESTS.load(Ordering::Relaxed), page_faults());
            for _ in 0..STEPS {
                step();
            }
            let faults = page_faults() - faults;
            assert_eq!(runtime.memory(), held, "{case}: the allocator holds what it held");
            (LARGE_REQUESTS.load(Ordering::Relaxed) - requests, faults, held.reserved)
        });
        assert_eq!(requests, 0, "{case}");
        // Threads may touch some pages of their stacks. Fresh memory would be a fault for each of its pages.
        let fresh = STEPS * reserved / PAGE;
        assert!(faults * 50 < fresh, "{case}: {faults} page faults, {fresh} pages of tensors");
    }
}

/// What is large is counted, and what is touched for the first time is a fault.
fn the_counters_count() {
    let (requests, faults) = (LARGE_REQUESTS.load(Ordering::Relaxed), page_faults());
    let block = std::hint::black_box(vec![1u8; 64 << 20]);
    assert_eq!(LARGE_REQUESTS.load(Ordering::Relaxed), requests + 1);
    // Pages may be large ones of 2 MiB.
    assert!(!cfg!(target_os = "linux") || page_faults() >= faults + 32);
    drop(block);
}
