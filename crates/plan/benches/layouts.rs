//! What it takes to look at layouts: one of them, many, and all of GPT-3 175B on 1,024 devices. `docs/benchmarks.md` has the
//! numbers.
//!
//! `cargo bench -p napkin-plan --bench layouts --features parallel`
#![allow(clippy::unwrap_used, missing_docs)]

use divan::{Bencher, black_box};
use napkin_plan::cluster::network;
use napkin_plan::handover::Engine;
use napkin_plan::hardware;
use napkin_plan::layout::Layout;
use napkin_plan::layout::estimate::{Cluster, Run};
use napkin_plan::layout::given::Given;
use napkin_plan::layout::quick::Book;
use napkin_plan::layout::search::{Found, Wanted, layouts, search};
use napkin_plan::levers::{self, Divided, Setup};
use napkin_plan::model::Model;
use napkin_plan::presets;
use nn::Profile;
use nn::step::{Precision, StepOptions};
use units::Bytes;

fn main() {
    divan::main();
}

/// GPT-3 175B: Brown et al. 2020, arXiv:2005.14165, table 2.1; a vocabulary that 1,024 ranks divide.
fn gpt3() -> Model {
    let text = r#"{"model_type": "gpt2", "n_layer": 96, "n_embd": 12288, "n_head": 96, "n_ctx": 2048,
        "n_positions": 2048, "vocab_size": 51200, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}"#;
    Model::from_text("gpt3", "gpt3", text.as_bytes(), &[], None).unwrap()
}

fn preset(name: &str) -> Model {
    let (name, text) = presets::find(name).unwrap();
    Model::from_text(name, name, text.as_bytes(), &[], None).unwrap()
}

fn llama_405b() -> Model {
    preset("llama-3.1-405b")
}

fn run(model: &Model, seq_len: u64) -> Run<'_> {
    let (hardware, network) = (hardware::find("h100-sxm").unwrap(), network::find("infiniband-ndr").unwrap());
    let step = StepOptions::usual(seq_len, Profile::Fused, Precision::Bf16MasterFp32Grads);
    Run::new(model, step, None, Cluster { hardware, per_node: 8, network }).unwrap()
}

/// Sequences of a step: those of GPT-3, and as many that there are 1.1 million candidates.
const BATCHES: [u64; 2] = [1536, 12288];

fn wanted(global_batch: u64, capacity: Bytes) -> Wanted {
    Wanted {
        devices: 1024,
        global_batch,
        capacity,
        micro_batch: u64::MAX,
        engine: None,
        most: 5,
        given: Given::default(),
        allocator: false,
    }
}

fn whole(run: &Run<'_>, global_batch: u64) -> Found {
    search(run, &wanted(global_batch, run.cluster.hardware.capacity())).unwrap()
}

/// All layouts of GPT-3 175B on 1,024 H100, the best traced whole in the end; items are candidates.
#[divan::bench(sample_count = 3, sample_size = 1, args = BATCHES)]
fn gpt3_on_1024(bencher: Bencher<'_, '_>, global_batch: u64) {
    let model = gpt3();
    let run = run(&model, 2048);
    let candidates = whole(&run, global_batch).counts.candidates;
    let counter = divan::counter::ItemsCount::new(candidates);
    bencher.counter(counter).bench_local(|| whole(black_box(&run), global_batch));
}

/// All layouts of DeepSeek-V3 on 256 H100 or H200 that Megatron-LM runs: `napkin layout deepseek-v3 -n 256 --hw h100-sxm --gbs 2048`.
#[divan::bench(sample_count = 1, sample_size = 1, args = ["h100-sxm", "h200-sxm"])]
fn deepseek_on_256(bencher: Bencher<'_, '_>, device: &str) {
    let model = preset("deepseek-v3");
    let (hardware, network) = (hardware::find(device).unwrap(), network::find(network::USUAL).unwrap());
    let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
    let engine = Some(Engine::Megatron);
    let run = Run::new(&model, step, engine, Cluster { hardware, per_node: 8, network }).unwrap();
    let capacity = hardware.capacity();
    let wanted = Wanted { devices: 256, engine, allocator: true, ..wanted(2048, capacity) };
    bencher.bench_local(|| search(black_box(&run), &wanted).unwrap());
}

/// Memory and bounds of the time of all legal layouts of it, whatever they hold, on one thread, once their stages are traced.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn every_layout(bencher: Bencher<'_, '_>) {
    let model = gpt3();
    let run = run(&model, 2048);
    let all = layouts(&run, &wanted(BATCHES[0], Bytes(u64::MAX)));
    let mut book = Book::new(&run);
    let seen = book.seen(&all).len();
    bencher.counter(divan::counter::ItemsCount::new(seen)).bench_local(|| book.seen(black_box(&all)));
}

/// One layout of Llama 3.1 405B, its layers traced: memory of every rank, time with the pipeline pass by pass.
#[divan::bench]
fn one_of_405b(bencher: Bencher<'_, '_>) {
    let model = llama_405b();
    let run = run(&model, 8192);
    let layout = Layout { tp: 8, sp: true, pp: 16, dp: 128, zero: 1, grad_accum: 16, ..Layout::default() };
    let mut book = Book::new(&run);
    book.look(&layout).unwrap();
    bencher.bench_local(|| book.look(black_box(&layout)).unwrap());
}

/// The same with nothing traced.
#[divan::bench]
fn first_of_405b(bencher: Bencher<'_, '_>) {
    let model = llama_405b();
    let run = run(&model, 8192);
    let layout = Layout { tp: 8, sp: true, pp: 16, dp: 128, zero: 1, grad_accum: 16, ..Layout::default() };
    bencher.bench_local(|| Book::new(&run).look(black_box(&layout)).unwrap());
}

/// What would make Llama 3.1 405B fit on 512 H100, of a layout that does not.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn changes_of_405b(bencher: Bencher<'_, '_>) {
    let model = llama_405b();
    let run = run(&model, 4096);
    let layout = Layout { tp: 8, sp: true, pp: 4, dp: 16, zero: 1, grad_accum: 16, ..Layout::default() };
    let from = Setup { layout, step: run.step };
    bencher.bench_local(|| levers::find(&Divided::of(black_box(&run)), &from).unwrap());
}
