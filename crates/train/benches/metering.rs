//! What metering costs a training step: the same steps with the recording off, and on, in turns.
//!
//!     cargo bench -p napkin-train --bench metering -- [--steps N]
//!
//! A ratio is the median over pairs of neighbouring steps, so that what else the machine does falls on both alike.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use napkin_train::probe::cpu;
use nn::optim::{Hyper, Implementation, Kind, OptimizerKind};
use nn::step::Precision;
use nn::{Labels, Profile, Recompute, Training, TrainingOptions};
use plan::model::Model;
use tensor::{CastLists, DType, Device, Runtime};

struct Case {
    name: &'static str,
    config: &'static str,
    batch: u64,
    seq_len: u64,
}

const CASES: [Case; 2] = [
    Case {
        name: "the model of `napkin train`, 16 × 128",
        config: include_str!("../../../data/train/tiny-llama.json"),
        batch: 16,
        seq_len: 128,
    },
    Case {
        name: "GPT-2, 6 layers of 320, 8 × 256",
        config: r#"{"model_type": "gpt2", "n_layer": 6, "n_embd": 320, "n_head": 5, "n_positions": 256,
            "vocab_size": 8192}"#,
        batch: 8,
        seq_len: 256,
    },
];

const OPTIONS: TrainingOptions = TrainingOptions {
    profile: Profile::Fused,
    precision: Precision::Fp32,
    optimizer: OptimizerKind { kind: Kind::AdamW, implementation: Implementation::Fused },
    hyper: Hyper { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, momentum: 0.0 },
    recompute: Recompute::None,
    grad_accum_steps: 1,
    autocast: CastLists::Cpu,
    dropout: false,
    clip_norm: None,
    objective: nn::Objective::DEFAULT,
    stochastic_rounding: false,
};

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let steps = args.iter().position(|a| a == "--steps").map_or(60, |i| args[i + 1].parse().unwrap());
    println!("| step | ops | CPU time, recording off | on, over off |\n|---|--:|--:|--:|");
    for case in CASES {
        let model = Model::from_text("m", "m.json", case.config.as_bytes(), &[], None).unwrap();
        let runtime = Runtime::new(Device::Cpu);
        runtime.set_recording(false);
        let mut training = Training::new(&runtime, &model.spec, &OPTIONS).unwrap();
        let shape = [case.batch, case.seq_len];
        let ids: Vec<f64> = (0..shape[0] * shape[1]).map(|i| ((i * 7919) % model.spec.vocab_size) as f64).collect();
        let tokens = runtime.input(&ids, &shape, DType::I64).unwrap();
        let mut ops = 0;
        let mut seconds = |recording: bool| {
            let before = cpu::process_time().unwrap().get();
            runtime.set_recording(recording);
            let loss = training.forward(&tokens, Labels::Targets(&tokens)).unwrap();
            training.backward(loss, 1.0).unwrap();
            training.update(OPTIONS.hyper.lr).unwrap();
            if recording {
                // A program that records takes its traces, so that is part of the cost.
                ops = runtime.take_trace().ops.len();
            }
            runtime.set_recording(false);
            cpu::process_time().unwrap().get() - before
        };
        seconds(false);
        let pairs: Vec<[f64; 2]> = (0..steps)
            .map(|i| {
                // Each goes first as often as the other.
                let first = i % 2 == 1;
                let (a, b) = (seconds(first), seconds(!first));
                if first { [b, a] } else { [a, b] }
            })
            .collect();
        let off = median(pairs.iter().map(|pair| pair[0]).collect());
        let ratio = median(pairs.iter().map(|[off, on]| on / off).collect());
        println!("| {} | {ops} | {:.1} ms | {:+.2} % |", case.name, off * 1e3, (ratio - 1.0) * 100.0);
    }
}
