//! What an answer costs: tracing a step, and reading the trace. `docs/benchmarks.md` has the numbers.
//!
//! `cargo bench -p napkin-plan`
#![allow(clippy::unwrap_used, missing_docs)]

use divan::{AllocProfiler, Bencher, black_box};
use napkin_plan::ledger::Ledger;
use napkin_plan::model::Model;
use napkin_plan::sharding::Sharding;
use napkin_plan::{flops::StepFlops, presets, scaling};
use nn::spec::ModelNames;
use nn::step::{Precision, StepOptions, StepTrace, Until};
use nn::{Profile, Recompute};
use std::rc::Rc;
use tensor::CastLists;
use units::Bytes;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// A preset with some keys set otherwise.
fn model(name: &str, set: &[(&str, u64)]) -> Model {
    let (name, text) = presets::find(name).unwrap();
    let set: Vec<_> = set.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect();
    Model::from_text(name, name, text.as_bytes(), &set, None).unwrap()
}

/// One whole step in its steady state.
fn step(profile: Profile) -> StepOptions {
    StepOptions {
        batch: 1,
        seq_len: 8192,
        profile,
        precision: Precision::Bf16Mixed,
        optimizer: "adamw".parse().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cuda,
        steps: 1,
        warm: true,
        dropout: false,
        objective: nn::Objective::DEFAULT,
        offload: nn::Offload::NONE,
        in_backward: false,
        until: Until::Optimizer,
    }
}

const PROFILES: [Profile; 3] = [Profile::Fused, Profile::HfSdpa, Profile::HfEager];

/// Traces the step, with the number of its ops as the unit of throughput.
fn trace(bencher: Bencher, model: &Model, options: &StepOptions) {
    // Not the model's own, which keeps the last one.
    let spec = &model.spec;
    let ops = napkin_plan::model::trace(spec, options).unwrap().trace.ops.len();
    let ops = divan::counter::ItemsCount::new(ops);
    bencher.counter(ops).bench_local(|| napkin_plan::model::trace(spec, black_box(options)).unwrap());
}

#[divan::bench(args = PROFILES)]
fn llama_405b(bencher: Bencher, profile: Profile) {
    trace(bencher, &model("llama-3.1-405b", &[]), &step(profile));
}

/// 126 layers, 252, 504: linear.
#[divan::bench(args = [126, 252, 504])]
fn llama_405b_with_layers(bencher: Bencher, layers: u64) {
    trace(bencher, &model("llama-3.1-405b", &[("num_hidden_layers", layers)]), &step(Profile::Fused));
}

/// Widths and lengths do not matter.
#[divan::bench(args = [4096, 16_384, 65_536])]
fn llama_405b_with_hidden_size(bencher: Bencher, hidden: u64) {
    trace(bencher, &model("llama-3.1-405b", &[("hidden_size", hidden)]), &step(Profile::Fused));
}

#[divan::bench(args = [2048, 131_072])]
fn llama_405b_with_seq_len(bencher: Bencher, seq_len: u64) {
    trace(bencher, &model("llama-3.1-405b", &[]), &StepOptions { seq_len, ..step(Profile::Fused) });
}

#[divan::bench(args = [Recompute::None, Recompute::Selective, Recompute::Full])]
fn llama_405b_with_recompute(bencher: Bencher, recompute: Recompute) {
    trace(bencher, &model("llama-3.1-405b", &[]), &StepOptions { recompute, ..step(Profile::Fused) });
}

#[divan::bench(args = PROFILES)]
fn llama_8b(bencher: Bencher, profile: Profile) {
    trace(bencher, &model("llama-3.1-8b", &[]), &step(profile));
}

/// The yardstick: the events of the trace, copied.
#[divan::bench]
fn copy_of_the_405b_trace(bencher: Bencher) {
    let traced = model("llama-3.1-405b", &[]).trace(&step(Profile::Fused)).unwrap();
    let ops = divan::counter::ItemsCount::new(traced.trace.ops.len());
    bencher.counter(ops).bench_local(|| black_box(&traced).trace.clone());
}

#[divan::bench]
fn config_of_405b(bencher: Bencher) {
    bencher.bench_local(|| model(black_box("llama-3.1-405b"), &[]));
}

#[divan::bench]
fn parameters_of_405b(bencher: Bencher) {
    let spec = model("llama-3.1-405b", &[]).spec;
    bencher.bench_local(|| nn::step::parameters(black_box(&spec)).unwrap());
}

fn traced_405b() -> (Rc<StepTrace>, StepOptions) {
    let options = step(Profile::Fused);
    (model("llama-3.1-405b", &[]).trace(&options).unwrap(), options)
}

#[divan::bench(args = [0, 3])]
fn ledger_of_the_405b_trace(bencher: Bencher, zero: u8) {
    let (traced, options) = traced_405b();
    let sharding = Sharding::new(zero, 64);
    bencher.bench_local(|| Ledger::of(black_box(&traced), &options, sharding, &ModelNames::default(), Bytes(0)));
}

#[divan::bench]
fn flops_of_the_405b_trace(bencher: Bencher) {
    let (traced, options) = traced_405b();
    bencher.bench_local(|| StepFlops::of(&black_box(&traced).trace, &options));
}

#[divan::bench]
fn estimated_peak_of_405b(bencher: Bencher) {
    let (spec, options) = (model("llama-3.1-405b", &[]).spec, step(Profile::Fused));
    bencher.bench_local(|| scaling::peak(black_box(&spec), &options, Sharding::default(), Bytes(0)).unwrap());
}
