//! What allocators reserve for whole training steps, against the peak of what is allocated: the requests of traces replayed
//! through the bookkeeping of Napkin's own, and of PyTorch's.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::allocator::Process;
use napkin_plan::ledger;
use napkin_plan::on_device::OnDevice;
use napkin_plan::sharding::Sharding;
use napkin_plan::timeline::{Device, Timeline};
use napkin_plan::{model::Model, presets};
use nn::blocks::Blocks;
use nn::step::{Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use std::collections::HashMap;
use tensor::CastLists;
use tensor::arena::{self, Usage};
use tensor::meter::{MemoryChange, Trace};
use units::Bytes;

/// Model, keys set otherwise, `batch`, `seq_len`, precision, whether the optimizer states are made before the first step, and
/// the most that may be reserved for one byte allocated.
type Case = (&'static str, &'static str, u64, u64, Precision, bool, f64);

const SMALL: &str = "n_layer=4 n_embd=256 n_head=4 vocab_size=8192";
const TINY: &str = "n_layer=4 n_embd=128 n_head=4 vocab_size=256";
const CASES: &[Case] = &[
    ("gpt2", "", 4, 256, Precision::Fp32, true, 1.01),
    ("gpt2", "", 4, 256, Precision::Fp32, false, 1.02),
    ("gpt2", "", 1, 1024, Precision::Fp32, true, 1.01),
    ("gpt2", SMALL, 8, 256, Precision::Fp32, true, 1.02),
    ("gpt2", TINY, 8, 64, Precision::Fp32, true, 1.05),
    ("smollm2-135m", "", 4, 256, Precision::Fp32, true, 1.02),
    ("smollm2-135m", "", 4, 256, Precision::Bf16Master, false, 1.05),
    ("gpt2", "", 4, 256, Precision::Bf16Mixed, true, 1.01),
];

fn step(name: &str, set: &str, batch: u64, seq_len: u64, precision: Precision, warm: bool) -> (Model, StepOptions) {
    let (name, text) = presets::find(name).unwrap();
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap();
    let set: Vec<_> = set.split_whitespace().map(pair).collect();
    let model = Model::from_text(name, name, text.as_bytes(), &set, None).unwrap();
    let options = StepOptions {
        batch,
        seq_len,
        profile: Profile::Fused,
        precision,
        optimizer: "adamw".parse().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cuda,
        steps: 5,
        warm,
        dropout: false,
        objective: nn::Objective::DEFAULT,
        offload: nn::Offload::NONE,
        in_backward: false,
        until: Until::Optimizer,
    };
    (model, options)
}

/// What the allocator holds at the end of each named stretch, and the peak of what is allocated.
fn replay(trace: &Trace) -> (Vec<(String, Usage)>, u64) {
    let mut blocks = arena::Blocks::new();
    let mut places = HashMap::new();
    let (mut live, mut peak) = (0, 0);
    let mut marks = Vec::new();
    for (i, event) in trace.memory.iter().enumerate() {
        let ended = trace.marks.iter().skip(1 + marks.len()).take_while(|m| m.memory as usize <= i).count();
        for _ in 0..ended {
            marks.push((trace.marks[marks.len()].name.clone(), blocks.usage()));
        }
        let bytes = trace.storages[event.storage.0 as usize].bytes;
        match event.change {
            MemoryChange::Alloc(_) if bytes > 0 => {
                let place = blocks.place(bytes).unwrap_or_else(|| {
                    let size = blocks.next_segment(bytes).unwrap();
                    blocks.add_segment(size);
                    blocks.place(bytes).unwrap()
                });
                places.insert(event.storage, place);
                live += bytes;
                peak = peak.max(live);
            }
            MemoryChange::Free if bytes > 0 => {
                blocks.free(places.remove(&event.storage).unwrap(), bytes);
                live -= bytes;
            }
            _ => {}
        }
    }
    marks.push(("end".to_owned(), blocks.usage()));
    (marks, peak)
}

#[test]
fn reserved_stays_close_to_the_peak_and_stops_growing() {
    for &(name, set, batch, seq_len, precision, warm, most) in CASES {
        let (model, options) = step(name, set, batch, seq_len, precision, warm);
        let (marks, peak) = replay(&model.trace(&options).unwrap().trace);
        let case = format!("{name} {set} batch {batch} seq_len {seq_len} {precision} warm {warm}");
        let reserved =
            |mark: &str| marks.iter().find(|(name, _)| name == mark).map(|(_, usage)| usage.reserved).unwrap();
        let ratio = reserved("end") as f64 / peak as f64;
        assert!((1.0..=most).contains(&ratio), "{case}: {ratio:.4}");
        // Where the first step ends with making the states, the second is the first of its kind.
        let settled = reserved(if warm { "opt2" } else { "opt3" });
        assert_eq!(reserved("end"), settled, "{case}: the steps after reserve nothing more");
        let rounding = marks.iter().map(|(_, usage)| usage.rounding).max().unwrap();
        assert!(rounding * 1000 < peak, "{case}: {rounding} bytes of rounding");
    }
}

/// PyTorch's allocator over the same steps, alone and on one of several devices.
#[test]
fn what_pytorch_reserves_for_a_step() {
    for &(name, set, batch, seq_len, precision, warm, _) in CASES {
        for sharding in [Sharding::default(), Sharding::new(1, 8), Sharding::new(2, 4), Sharding::new(3, 8)] {
            let case = format!("{name} {set} batch {batch} seq_len {seq_len} {precision} warm {warm} {sharding:?}");
            let (model, options) = step(name, set, batch, seq_len, precision, warm);
            let traced = model.trace(&StepOptions { steps: 2, ..options }).unwrap();
            let blocks = Blocks::of(&model.spec.names);
            let allocated = Timeline::of(&traced, &options, sharding, blocks);
            let allocated = allocated.phases.iter().map(|phase| phase.peak_bytes).max().unwrap();
            for conf in ["", "expandable_segments:True", "max_split_size_mb:64"] {
                let process = Process { conf: conf.parse().unwrap(), workspace: Bytes(8 << 20), ..Process::default() };
                let reserve = |device| process.reserve(&Device::new(&traced, &options, sharding, blocks), device);
                let reserved = reserve(None);
                assert!(reserved.steady && reserved.refused.is_none() && reserved.end.retries == 0, "{case} {conf}");
                // What is live together is what the timeline counts, but for a gradient that is whole until its shard is cut.
                let tensors = reserved.peak.requested - (8 << 20);
                assert!(tensors.abs_diff(allocated) * 50 < allocated, "{case} {conf}: {tensors} {allocated}");
                if sharding == Sharding::default() {
                    assert_eq!(tensors, allocated, "{case} {conf}");
                }
                let most = reserved.end.peak_reserved;
                assert!(most >= reserved.peak.allocated && most < 2 * reserved.peak.allocated, "{case} {conf}: {most}");
                // A device of that size is enough, and half of what is live is not.
                let enough = reserve(Some(Bytes(most)));
                assert_eq!((enough.refused, enough.end), (None, reserved.end), "{case} {conf}");
                let refused = reserve(Some(Bytes(reserved.peak.allocated / 2))).refused.unwrap();
                assert!(refused.error.segment > refused.error.free && !refused.phase.is_empty(), "{case} {conf}");
            }
        }
    }
}

/// Lists of blocks that stand in modules of their own (`encoder.layer`): blocks are gathered one at a time there, too.
#[test]
fn blocks_of_an_encoder_are_gathered_one_by_one() {
    let text = include_bytes!("../../nn/tests/data/tiny/bert.json");
    let set = [("num_hidden_layers".to_owned(), "12".to_owned())];
    let model = Model::from_text("bert", "bert.json", text, &set, None).unwrap();
    assert!(model.spec.names.layers.contains('.'));
    let (_, options) = step("gpt2", "", 1, 2, Precision::Bf16Mixed, true);
    let request = ledger::Request {
        options: StepOptions { steps: 2, ..options },
        sharding: Sharding::new(3, 8),
        hardware: None,
        runtime: Bytes::ZERO,
        runtime_given: true,
        paged: false,
        process: Some(Process { workspace: Bytes::ZERO, ..Process::default() }),
        depth: 1,
        timeline: false,
    };
    let (ledger, traced) = ledger::ledger(&model, &request).unwrap();
    let device = OnDevice::of(&model, &traced, &ledger, &request);
    let requested = device.reserved.unwrap().peak.requested;
    let allocated = ledger.phases.iter().map(|phase| phase.peak_bytes).max().unwrap();
    assert!(requested.abs_diff(allocated) * 50 < allocated, "{requested} {allocated}");
}

/// Between what plain segments and those that expand take, the second is what helps.
#[test]
fn segments_that_expand_are_named_where_they_make_it_fit() {
    let (model, options) = step("gpt2", "", 4, 256, Precision::Fp32, false);
    let options = StepOptions { profile: Profile::HfEager, steps: 2, ..options };
    let request = |conf: &str| ledger::Request {
        options,
        sharding: Sharding::default(),
        hardware: None,
        runtime: Bytes(1 << 20),
        runtime_given: true,
        paged: false,
        process: Some(Process { conf: conf.parse().unwrap(), ..Process::default() }),
        depth: 1,
        timeline: false,
    };
    let plain = request("");
    let (ledger, traced) = ledger::ledger(&model, &plain).unwrap();
    let blocks = Blocks::of(&model.spec.names);
    let on = |request: &ledger::Request<'_>, capacity| OnDevice::named(blocks, &traced, &ledger, request, capacity);
    let expandable = request("expandable_segments:True");
    let least = on(&expandable, None).total;
    assert!(least < on(&plain, None).total);
    let device = on(&plain, Some(least));
    assert!(!device.fits() && device.remedy(blocks, &traced, &ledger, &plain).is_some());
    let tight = on(&plain, Some(Bytes(least.get() / 2)));
    assert!(!tight.fits() && tight.remedy(blocks, &traced, &ledger, &plain).is_none());
    assert!(on(&expandable, Some(least)).fits() && on(&expandable, Some(least)).warning().is_none());
}
