//! What holds for the ledger and the reports of any model, step and layout.
//!
//! The cases are the same in every run; `PROPTEST_RNG_SEED=5 PROPTEST_CASES=4000` looks at others, and more.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::ledger::{self, Ledger, Request};
use napkin_plan::model::Model;
use napkin_plan::report::{Report, Sample, Value};
use napkin_plan::sharding::Sharding;
use napkin_plan::summary::{self, Question};
use napkin_plan::time::Pace;
use napkin_plan::timeline::Device;
use napkin_plan::wall::Around;
use napkin_plan::{fleet, flops, hardware, largest, params, scaling};
use nn::blocks::Blocks;
use nn::step::{Precision, StepOptions, StepTrace, Until};
use nn::{Profile, Recompute};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tensor::meter::{Mark, MemoryChange};
use tensor::{CastLists, Role, Trace};
use units::Bytes;

/// One part in `share` of the usual number of cases.
fn cases(share: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    let rng_seed = if usual.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { usual.rng_seed };
    ProptestConfig { cases: usual.cases.div_ceil(share), rng_seed, failure_persistence: None, ..usual }
}

/// Sizes of a small model.
#[derive(Clone, Copy, Debug)]
struct Shape {
    family: &'static str,
    layers: u64,
    groups: u64,
    kv_heads: u64,
    head_dim: u64,
    hidden: u64,
    intermediate: u64,
    vocab: u64,
    tied: bool,
}

const FAMILIES: [&str; 7] = ["llama", "gpt2", "gemma2", "mistral", "qwen3", "olmo2", "phi3"];

fn shapes(layers: std::ops::Range<u64>) -> impl Strategy<Value = Shape> {
    let heads = (1u64..4, 1u64..3, 1u64..5);
    let widths = (1u64..9, 1u64..40, 2u64..90);
    (prop::sample::select(&FAMILIES[..]), layers, heads, widths, any::<bool>()).prop_map(
        |(family, layers, (groups, kv_heads, d), (h, intermediate, vocab), tied)| Shape {
            family,
            layers,
            groups,
            kv_heads,
            head_dim: 2 * d,
            hidden: 4 * h,
            intermediate,
            vocab,
            tied,
        },
    )
}

fn model(s: Shape) -> Model {
    let Shape { family, layers, head_dim, intermediate, vocab, tied, .. } = s;
    let heads = s.groups * s.kv_heads;
    let text = if family == "gpt2" {
        let h = heads * head_dim;
        format!(
            r#"{{"model_type": "gpt2", "n_embd": {h}, "n_layer": {layers}, "n_head": {heads}, "n_positions": 64,
                "n_inner": {intermediate}, "vocab_size": {vocab}, "tie_word_embeddings": {tied}}}"#
        )
    } else {
        let (hidden, kv) = (s.hidden, s.kv_heads);
        format!(
            r#"{{"model_type": "{family}", "hidden_size": {hidden}, "num_hidden_layers": {layers},
                "num_attention_heads": {heads}, "num_key_value_heads": {kv}, "head_dim": {head_dim},
                "intermediate_size": {intermediate}, "vocab_size": {vocab}, "tie_word_embeddings": {tied},
                "sliding_window": 7, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64}}"#
        )
    };
    Model::from_text("small", "config.json", text.as_bytes(), &[], None).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

const OPTIMIZERS: [&str; 12] = [
    "adamw",
    "adamw-foreach",
    "adamw-forloop",
    "sgd",
    "sgd-momentum",
    "adagrad-forloop",
    "rmsprop",
    "adafactor",
    "adam-8bit",
    "adam-8bit-forloop",
    "muon",
    "lion",
];

fn steps() -> impl Strategy<Value = StepOptions> {
    let how = (
        prop::sample::select(vec![Profile::Fused, Profile::HfSdpa, Profile::HfEager]),
        prop::sample::select(&Precision::ALL[..]),
        prop::sample::select(&OPTIMIZERS[..]),
        prop::sample::select(vec![Recompute::None, Recompute::Selective, Recompute::Full]),
        any::<[bool; 3]>(),
    );
    (1u64..4, 2u64..24, how, 1u64..3, 1u64..3).prop_map(
        |(
            batch,
            seq_len,
            (profile, precision, optimizer, recompute, [cuda, warm, dropout]),
            grad_accum_steps,
            steps,
        )| {
            StepOptions {
                batch,
                seq_len,
                profile,
                precision,
                optimizer: optimizer.parse().unwrap(),
                recompute,
                grad_accum_steps,
                autocast: if cuda { CastLists::Cuda } else { CastLists::Cpu },
                steps,
                warm,
                dropout,
                objective: nn::Objective::DEFAULT,
                offload: nn::Offload::NONE,
                in_backward: false,
                until: Until::Optimizer,
            }
        },
    )
}

/// A step the model has.
fn of(model: &Model, options: StepOptions) -> StepOptions {
    let profile = if model.spec.has_sdpa { options.profile } else { Profile::HfEager };
    StepOptions { profile, ..options }
}

fn shardings() -> impl Strategy<Value = Sharding> {
    (0u8..4, 1u64..10).prop_map(|(zero, dp)| Sharding::new(zero, dp))
}

fn ledger_of(model: &Model, traced: &StepTrace, options: &StepOptions, sharding: Sharding, runtime: u64) -> Ledger {
    Ledger::of(traced, options, sharding, &model.spec.names, Bytes(runtime))
}

/// Highest and last live bytes of each phase, from allocations and frees alone.
fn peaks_and_ends(trace: &Trace) -> Vec<(u64, u64)> {
    let mut live = 0;
    let end = |i: usize| trace.marks.get(i + 1).map_or(trace.memory.len(), |next| next.memory as usize);
    let phase = |(i, mark): (usize, &Mark)| {
        let mut top = live;
        for event in &trace.memory[mark.memory as usize..end(i)] {
            let bytes = trace.storages[event.storage.0 as usize].bytes;
            match event.change {
                MemoryChange::Alloc(_) => live += bytes,
                MemoryChange::Free => live -= bytes,
                MemoryChange::Role(_) => {}
            }
            top = top.max(live);
        }
        (top, live)
    };
    trace.marks.iter().enumerate().map(phase).collect()
}

fn peak(model: &Model, options: &StepOptions, sharding: Sharding) -> u64 {
    ledger_of(model, &model.trace(options).unwrap(), options, sharding, 0).peak_bytes
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn lines_and_roles_sum_to_the_peak(
        shape in shapes(1..6), options in steps(), sharding in shardings(), runtime in 0u64..10_000,
    ) {
        let model = model(shape);
        let options = of(&model, options);
        let ledger = ledger_of(&model, &model.trace(&options).unwrap(), &options, sharding, runtime);
        let lines: u64 = ledger.lines.iter().map(|l| l.bytes).sum();
        prop_assert_eq!(lines, ledger.peak_bytes);
        prop_assert_eq!(ledger.peak().peak_bytes + runtime, ledger.peak_bytes);
        let mut ids: Vec<String> = ledger.lines.iter().map(ledger::Line::id).collect();
        prop_assert!(!ids.iter().any(|id| id.contains("other") || id.is_empty()), "{:?}", ids);
        ids.sort();
        ids.dedup();
        prop_assert_eq!(ids.len(), ledger.lines.len());
        for phase in &ledger.phases {
            prop_assert_eq!(phase.peak_by_role.iter().sum::<u64>(), phase.peak_bytes, "{}", phase.name);
            prop_assert!(phase.end_by_role.iter().sum::<u64>() <= phase.peak_bytes, "{}", phase.name);
        }
        // The points of the timeline belong to the phases, in order, and none is above its phase.
        for point in &ledger.timeline {
            prop_assert!(point.bytes <= ledger.phases[point.phase].peak_bytes + runtime);
        }
        prop_assert!(ledger.timeline.is_sorted_by_key(|p| p.op));
    }

    #[test]
    fn a_step_moment_by_moment_has_the_peak_of_the_ledger(
        shape in shapes(1..6), options in steps(), sharding in shardings(), runtime in 0u64..10_000,
    ) {
        let model = model(shape);
        let options = of(&model, options);
        let hardware = hardware::find("h100-sxm").ok();
        let request = Request {
            options, sharding, hardware, runtime: Bytes(runtime), runtime_given: true, paged: false, process: None, depth: 1, timeline: true,
        };
        let traced = model.trace(&request.options).unwrap();
        let names = &model.spec.names;
        let empty = Device::new(&traced, &request.options, sharding, Blocks::of(names));
        let (ledger, begins) = Ledger::on(empty, names, request.runtime);
        let told = napkin_plan::step_timeline::of(&model, begins, &ledger, &request);
        let totals: Vec<u64> = told.samples.iter().map(Sample::total).collect();
        prop_assert_eq!(totals.iter().max(), Some(&ledger.peak_bytes));
        prop_assert_eq!(totals[told.peak], ledger.peak_bytes);
        prop_assert!(told.samples.is_sorted_by_key(|sample| sample.op));
        // Stretches and ops follow each other without a gap.
        let (first, last) = (&told.stretches[0], &told.stretches[told.stretches.len() - 1]);
        prop_assert_eq!((first.start, last.end), (0.0, told.end()));
        prop_assert!(told.stretches.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert!(told.slices.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].start <= pair[0].end));
    }

    #[test]
    fn without_sharding_the_ledger_is_the_plain_timeline(shape in shapes(1..6), options in steps(), zero in 0u8..4) {
        let model = model(shape);
        let options = of(&model, options);
        let traced = model.trace(&options).unwrap();
        let alone = ledger_of(&model, &traced, &options, Sharding::new(zero, 1), 0);
        let found: Vec<(u64, u64)> = alone.phases.iter().map(|p| (p.peak_bytes, p.end_by_role.iter().sum())).collect();
        prop_assert_eq!(found, peaks_and_ends(&traced.trace));
    }

    #[test]
    fn more_devices_and_higher_stages_never_take_more_states(
        shape in shapes(1..6), options in steps(), dp in 1u64..9,
    ) {
        let model = model(shape);
        let options = of(&model, options);
        let traced = model.trace(&options).unwrap();
        let states = |sharding: Sharding| {
            let ledger = ledger_of(&model, &traced, &options, sharding, 0);
            let end = ledger.phases.last().unwrap().end_by_role;
            [Role::Parameter, Role::OptimizerState].map(|role| end[role as usize])
        };
        for zero in 0..3 {
            let (less, more) = (states(Sharding::new(zero, dp)), states(Sharding::new(zero + 1, dp)));
            prop_assert!(more[0] <= less[0] && more[1] <= less[1], "zero {}", zero);
        }
        let (less, more) = (states(Sharding::new(3, dp)), states(Sharding::new(3, dp + 1)));
        prop_assert!(more[0] <= less[0] && more[1] <= less[1]);
    }

    #[test]
    fn a_longer_sequence_and_a_bigger_batch_never_take_fewer_bytes(
        shape in shapes(1..4), options in steps(), sharding in shardings(), longer in 1u64..8, bigger in 1u64..3,
    ) {
        let model = model(shape);
        let options = of(&model, options);
        let base = peak(&model, &options, sharding);
        let longer = StepOptions { seq_len: options.seq_len + longer, ..options };
        prop_assert!(peak(&model, &longer, sharding) >= base);
        let bigger = StepOptions { batch: options.batch + bigger, ..options };
        prop_assert!(peak(&model, &bigger, sharding) >= base);
    }

    #[test]
    fn more_layers_never_take_fewer_flop(shape in shapes(1..5), options in steps(), more in 1u64..3) {
        let step = |shape: Shape| {
            let model = model(shape);
            let options = of(&model, options);
            let traced = model.trace(&options).unwrap();
            let trace = &traced.trace;
            let all = trace.cost(|_| true);
            (all.matmul, all.matmul_dense, all.elementwise)
        };
        let (few, many) = (step(shape), step(Shape { layers: shape.layers + more, ..shape }));
        prop_assert!(many.0 > few.0 && many.1 > few.1 && many.2 > few.2, "{:?} {:?}", few, many);
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn a_higher_stage_never_takes_more_bytes_but_for_a_block_in_flight(
        shape in shapes(8..12), options in steps(), dp in 4u64..9,
    ) {
        let model = model(Shape { vocab: 2, ..shape });
        let options = of(&model, options);
        let traced = model.trace(&options).unwrap();
        let at = |zero| ledger_of(&model, &traced, &options, Sharding::new(zero, dp), 0).peak_bytes;
        // From stage 2 on, the gradients of the block that runs are whole until they are reduced.
        let layer = |i: u64| {
            let in_block = |name: &str| name.split('.').any(|part| part == i.to_string());
            traced.params.iter().filter(|p| in_block(&p.name)).map(|p| p.elements).sum::<u64>()
        };
        let block = layer(0).max(layer(1)) * options.precision.param_dtype().size_in_bytes();
        prop_assert!(at(1) <= at(0) && at(2) <= at(1) + block && at(3) <= at(2), "{:?}", [at(0), at(1), at(2), at(3)]);
    }

    #[test]
    fn an_estimate_from_two_short_traces_is_the_peak_of_the_full_trace(
        shape in shapes(7..24), options in steps(), sharding in shardings(),
    ) {
        let model = model(shape);
        let options = of(&model, options);
        let estimate = scaling::peak(&model.spec, &options, sharding, Bytes(0)).unwrap();
        prop_assert_eq!(estimate, peak(&model, &options, sharding));
    }
}

/// Every report on a model.
fn reports(model: &Model, options: &StepOptions, sharding: Sharding) -> Vec<Report> {
    let hardware = hardware::find("h100-sxm").unwrap();
    let memory = Request {
        options: *options,
        sharding,
        hardware: Some(hardware),
        runtime: Bytes(1 << 30),
        runtime_given: false,
        paged: false,
        process: Some(napkin_plan::allocator::Process::default()),
        depth: 2,
        timeline: true,
    };
    let fleet = fleet::Fleet {
        hardware: hardware.clone(),
        devices: sharding.dp,
        devices_given: true,
        precision: hardware::Precision::Bf16,
        precision_given: true,
    };
    let tokens = Some("1G".parse().unwrap());
    let question = Question {
        memory: memory.clone(),
        fleet,
        tokens,
        pace: Pace::Unknown,
        price: Some(2.0),
        around: Around::default(),
    };
    vec![
        params::report(model, 2).unwrap(),
        flops::report(model, options, flops::View { depth: 2, ..flops::View::default() }).unwrap(),
        ledger::report(model, &memory, true).unwrap(),
        summary::report(model, &question).unwrap(),
    ]
}

/// Path of a name that a map holds twice.
fn twice(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Map(entries) => entries.iter().enumerate().find_map(|(i, (name, inner))| {
            let path = format!("{path}/{name}");
            if entries[..i].iter().any(|(earlier, _)| earlier == name) { Some(path) } else { twice(inner, &path) }
        }),
        Value::List(items) => items.iter().find_map(|item| twice(item, path)),
        _ => None,
    }
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn reports_name_everything_once_and_say_the_same_twice(
        shape in shapes(1..5), options in steps(), sharding in shardings(),
    ) {
        let model = model(shape);
        let options = of(&model, options);
        let (first, second) = (reports(&model, &options, sharding), reports(&model, &options, sharding));
        for (a, b) in first.iter().zip(&second) {
            prop_assert_eq!(a, b);
            prop_assert_eq!(twice(&a.inputs, ""), None, "inputs of {}", a.kind);
            prop_assert_eq!(twice(&a.result, ""), None, "result of {}", a.kind);
            let mut ids: Vec<_> = a.assumptions.iter().map(|one| (one.id, one.label.clone())).collect();
            ids.sort();
            let count = ids.len();
            ids.dedup();
            prop_assert_eq!(ids.len(), count, "assumptions of {}: {:?}", a.kind, ids);
        }
    }
}

#[test]
fn what_fits_fits_and_one_more_does_not() {
    let (name, text) = napkin_plan::presets::find("smollm2-135m").unwrap();
    let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
    let options = StepOptions {
        batch: 1,
        seq_len: 2048,
        profile: Profile::Fused,
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
    };
    let sharding = Sharding::default();
    let request = Request {
        options,
        sharding,
        hardware: None,
        runtime: Bytes(0),
        runtime_given: true,
        paged: false,
        process: None,
        depth: 1,
        timeline: false,
    };
    let capacity = Bytes(24_000_000_000);
    // With an allocator, too, one more does not fit.
    let reserving = Request { process: Some(napkin_plan::allocator::Process::default()), ..request.clone() };
    let found = largest::find(&model.spec, &reserving, largest::Grow::SeqLen, capacity).unwrap();
    let fits = |seq_len: u64| {
        let options = StepOptions { seq_len, steps: 2, warm: false, ..options };
        let traced = model.trace(&options).unwrap();
        let empty = Device::new(&traced, &options, sharding, Blocks::of(&model.spec.names));
        napkin_plan::allocator::Process::default().reserve(&empty, Some(capacity)).refused.is_none()
    };
    assert_eq!((fits(found.size), fits(found.size + 1)), (true, false), "{found:?}");
    for (grow, at) in [
        (largest::Grow::Batch, (|o, batch| StepOptions { batch, ..o }) as fn(StepOptions, u64) -> StepOptions),
        (largest::Grow::SeqLen, |o, seq_len| StepOptions { seq_len, ..o }),
    ] {
        let found = largest::find(&model.spec, &request, grow, capacity).unwrap();
        assert_eq!(peak(&model, &at(options, found.size), sharding), found.peak_bytes, "{grow:?}");
        assert!(Bytes(found.peak_bytes) <= capacity, "{grow:?}: {found:?}");
        assert!(Bytes(peak(&model, &at(options, found.size + 1), sharding)) > capacity, "{grow:?}: {found:?}");
    }
}
