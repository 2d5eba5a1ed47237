//! The memory of a real configuration: predicted line by line on a device without data, then measured on this machine.
//!
//! The prediction is the recording of the second step, in which the optimizer has its states; the measurement is the same
//! program with numbers in it. Allocated bytes agree exactly. A witness that knows nothing of tensors, the allocator of
//! this very program, counts the heap; what it sees beyond them has names.
//!
//! Run: `cargo run --release --example ledger`

#![allow(clippy::print_stdout)] // an example talks

use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::step::{Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use plan::model::Model;
use plan::reconcile::{Gaps, StepWork};
use std::alloc::System;
use std::error::Error;
use tensor::CastLists;
use train::probe::heap;
use train::reconcile::{ceilings, measure};
use train::run::{Settings, predict};

#[global_allocator]
static HEAP: heap::Counting<System> = heap::Counting(System);

fn main() -> Result<(), Box<dyn Error>> {
    heap::count();
    let (name, text) = plan::presets::find("smollm2-135m").ok_or("the preset is there")?;
    // Two of its thirty blocks: enough to see every line, small enough to run anywhere.
    let overrides = [("num_hidden_layers".to_owned(), "2".to_owned())];
    let model = Model::from_text(name, "config.json", text.as_bytes(), &overrides, None)?;
    let step = StepOptions {
        batch: 2,
        seq_len: 64,
        profile: Profile::Fused,
        precision: Precision::Fp32,
        optimizer: OptimizerKind { kind: Kind::AdamW, implementation: Implementation::Fused },
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        steps: 2,
        warm: false,
        dropout: false,
        objective: nn::Objective::DEFAULT,
        offload: nn::Offload::NONE,
        in_backward: false,
        until: Until::Optimizer,
    };
    let settings = Settings::of_steps(&step, 2);
    let predicted = predict(&model.spec, &settings)?;
    let work = StepWork::of(&predicted.trace);
    println!("{name}, 2 blocks, 2 x 64 tokens, fp32, AdamW: predicted at the peak of a steady step");
    for (role, bytes) in &work.at_peak {
        println!("  {:<24} {:>14}", role.name(), bytes.to_string());
    }
    let total: u64 = work.at_peak.iter().map(|(_, bytes)| bytes.get()).sum();
    assert_eq!(total, predicted.peak_bytes.get(), "the lines sum to the peak exactly");
    println!("  {:<24} {:>14}", "allocated", predicted.peak_bytes.to_string());

    let threads = train::probe::cpu::threads();
    let measured = measure(&model.spec, &settings, &predicted, 1, ceilings(threads, Precision::Fp32, None)?)?;
    assert_eq!(measured.allocated, Some(predicted.peak_bytes), "prediction and measurement are one program");
    println!("measured\n  {:<24} {:>14}   to the byte", "allocated", predicted.peak_bytes.to_string());
    let gaps = Gaps::of_heap(predicted.peak_bytes, measured.heap.as_ref().ok_or("this program counts its heap")?);
    for gap in gaps.named.iter().filter(|gap| gap.bytes != 0) {
        println!("  {:<24} {:>+14} B", gap.label(), gap.bytes);
    }
    println!("  {:<24} {:>+14} B", "unexplained", gaps.unexplained());
    println!("  {:<24} {:>14}   as the allocator of this program counts it", "heap", gaps.measured.to_string());
    assert!(gaps.unexplained_share().abs() < 1e-3, "every gap has a name");
    Ok(())
}
