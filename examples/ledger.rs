//! The memory of a real configuration: predicted line by line on a device without data, then measured on this machine.
//!
//! The prediction is the recording of the second step, in which the optimizer has its states; the measurement is the same
//! program with numbers in it. Allocated bytes agree exactly. What the process holds beyond them has names: blocks that
//! the allocator keeps for the next step, kernel scratch, the program itself.
//!
//! Run: `cargo run --release --example ledger`

#![allow(clippy::print_stdout)] // an example talks

use nn::optim::{Hyper, Kind};
use nn::step::Precision;
use nn::{Profile, Recompute, Schedule, TrainingOptions};
use plan::model::Model;
use std::error::Error;
use std::sync::Arc;
use tensor::meter::MemoryChange;
use tensor::{CastLists, Role, Trace};
use train::data::{OpenOptions, Order, TokenFile};
use train::run::{Run, Settings, Start, predict};
use units::Bytes;

/// Bytes of every role at the moment when most are allocated, given those that were there before the recording.
fn at_peak(trace: &Trace) -> Vec<(Role, u64)> {
    let mut role_of = vec![None; trace.storages.len()];
    let mut live = vec![0u64; Role::ALL.len()];
    let mut peak = (0, live.clone());
    for event in &trace.memory {
        let id = event.storage.0 as usize;
        let bytes = trace.storages[id].bytes;
        if let Some(before) = role_of[id].take() {
            live[before as usize] -= bytes;
        }
        if let MemoryChange::Alloc(role) | MemoryChange::Role(role) = event.change {
            role_of[id] = Some(role);
            live[role as usize] += bytes;
        }
        let total = live.iter().sum();
        if total > peak.0 {
            peak = (total, live.clone());
        }
    }
    Role::ALL.into_iter().zip(peak.1).filter(|(_, bytes)| *bytes > 0).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let (name, text) = plan::presets::find("smollm2-135m").ok_or("the preset is there")?;
    // Two of its thirty blocks: enough to see every line, small enough to run anywhere.
    let overrides = [("num_hidden_layers".to_owned(), "2".to_owned())];
    let model = Model::from_text(name, "config.json", text.as_bytes(), &overrides, None)?;
    let training = TrainingOptions {
        profile: Profile::Fused,
        precision: Precision::Fp32,
        optimizer: "adamw".parse()?,
        hyper: Hyper::of(Kind::AdamW),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        dropout: false,
        clip_norm: Some(1.0),
        stochastic_rounding: false,
    };
    let schedule = Schedule::constant(1e-3, 3);
    let settings =
        Settings { training, schedule, batch: 2, seq_len: 64, order: Order::Random, seed: 0, val_fraction: 0.0 };

    let predicted = predict(&model.spec, &settings)?;
    println!("{name}, 2 blocks, 2 x 64 tokens, fp32, AdamW: predicted at the peak of a steady step");
    let lines = at_peak(&predicted.trace);
    for (role, bytes) in &lines {
        println!("  {:<18} {:>14}", role.name(), Bytes(*bytes).to_string());
    }
    let total: u64 = lines.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(total, predicted.peak_bytes.0, "the lines sum to the peak exactly");
    println!("  {:<18} {:>14}", "total", predicted.peak_bytes.to_string());

    let file = Arc::new(TokenFile::builtin(&OpenOptions::default()).map_err(|e| e.diagnostic().to_string())?);
    let start = Start {
        model: &model,
        config: model.config.clone(),
        settings,
        weights: None,
        train: file.whole(),
        validation: None,
    };
    let mut run = Run::new(start)?;
    run.step()?;
    let measured = run.step()?;
    println!("measured");
    println!("  {:<18} {:>14}", "allocated", measured.peak.to_string());
    println!(
        "  {:<18} {:>14}   blocks cached for the next step, rounding to 64 B",
        "reserved",
        measured.reserved.to_string()
    );
    if let Some(resident) = resident() {
        println!(
            "  {:<18} {:>14}   the program, its libraries and kernel scratch beside it",
            "resident",
            resident.to_string()
        );
    }
    assert_eq!(measured.peak, predicted.peak_bytes, "prediction and measurement are one program");
    Ok(())
}

/// Highest resident set of this process, from the system; `None` where it does not say.
fn resident() -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| Bytes(kib * 1024))
}
