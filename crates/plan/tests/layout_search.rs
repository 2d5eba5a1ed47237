//! The search over layouts: it looks at all there are, what it says of each is what the layout says by itself, and nothing
//! that it puts behind another is better.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::allocator::Process;
use napkin_plan::cluster::network;
use napkin_plan::cluster::step::StepTime;
use napkin_plan::handover::{self, Engine};
use napkin_plan::hardware;
use napkin_plan::layout::estimate::{Cluster, Estimate, Run};
use napkin_plan::layout::given::Given;
use napkin_plan::layout::quick::Book;
use napkin_plan::layout::search::{Wanted, layouts, search};
use napkin_plan::layout::{ContextParallel, Layout, Schedule, check, rank};
use napkin_plan::ledger::{self, Ledger, Request};
use napkin_plan::levers::{Divided, Measure, Setup};
use napkin_plan::model::Model;
use napkin_plan::on_device::OnDevice;
use napkin_plan::presets;
use napkin_plan::runtime;
use napkin_plan::sharding::Sharding;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::step::{Precision, StepOptions};
use nn::{Offload, Profile, Recompute};
use std::collections::HashSet;
use units::Bytes;

fn model(kind: &str) -> Model {
    let experts = r#", "num_local_experts": 4, "num_experts_per_tok": 2"#;
    let text = format!(
        r#"{{"model_type": "{kind}", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": false{}}}"#,
        if kind == "mixtral" { experts } else { "" }
    );
    Model::from_text("small", "small", text.as_bytes(), &[], None).unwrap()
}

fn step() -> StepOptions {
    StepOptions::usual(1024, Profile::Fused, Precision::Bf16MasterFp32Grads)
}

fn run(model: &Model) -> Run<'_> {
    run_of(model, step())
}

fn run_of(model: &Model, step: StepOptions) -> Run<'_> {
    let (hardware, network) = (hardware::find("h100-sxm").unwrap(), network::find("infiniband-ndr").unwrap());
    Run::new(model, step, None, Cluster { hardware, per_node: 8, network }).unwrap()
}

fn wanted(devices: u64, capacity: u64) -> Wanted {
    Wanted {
        devices,
        global_batch: 32,
        capacity: Bytes(capacity),
        micro_batch: 4,
        engine: None,
        most: usize::MAX,
        given: Given::default(),
        allocator: false,
    }
}

/// What tells layouts of a search apart.
fn key(layout: &Layout) -> ([u64; 10], bool, Schedule, &'static str, String) {
    let Layout { dp, tp, cp, ep, etp, pp, virtual_stages, zero, micro_batch, grad_accum, .. } = *layout;
    let numbers = [dp, tp, cp, ep, etp, pp, virtual_stages, u64::from(zero), micro_batch, grad_accum];
    (numbers, layout.sp, layout.schedule, layout.recompute.name(), layout.offload.to_string())
}

/// All numbers up to the devices, tried one by one.
#[test]
fn every_legal_layout_is_looked_at_once() {
    for kind in ["llama", "mixtral"] {
        let model = model(kind);
        let run = run(&model);
        let wanted = wanted(8, u64::MAX);
        let found = layouts(&run, &wanted);
        let keys: HashSet<_> = found.iter().map(key).collect();
        assert_eq!(keys.len(), found.len(), "no layout twice");
        let mut expected = HashSet::new();
        let each = 1..=8u64;
        let flags = [false, true];
        let recomputes = [Recompute::None, Recompute::Selective, Recompute::Full];
        for (tp, pp) in each.clone().flat_map(|tp| each.clone().map(move |pp| (tp, pp))) {
            for (dp, ep, etp) in
                each.clone().flat_map(|dp| each.clone().flat_map(move |ep| (1..=8).map(move |etp| (dp, ep, etp))))
            {
                if tp * pp * dp != 8 || !tp.is_multiple_of(etp) {
                    continue;
                }
                for (micro_batch, grad_accum) in [1, 2, 4].iter().flat_map(|b| (1..=32).map(move |m| (*b, m))) {
                    if dp * micro_batch * grad_accum != 32 || grad_accum < pp {
                        continue;
                    }
                    let schedules = [(Schedule::OneFOneB, 1), (Schedule::ZeroBubble, 1)];
                    let interleaved = (2..=8).map(|chunks| (Schedule::Interleaved, chunks));
                    for (schedule, virtual_stages) in schedules.into_iter().chain(interleaved) {
                        for (zero, sp) in (0..=3).flat_map(|zero| flags.map(|sp| (zero, sp))) {
                            let layout = Layout {
                                dp,
                                tp,
                                sp,
                                ep,
                                etp,
                                pp,
                                virtual_stages,
                                schedule,
                                zero,
                                micro_batch,
                                grad_accum,
                                context: ContextParallel::AllToAll,
                                ..Layout::default()
                            };
                            // Blocks are even over virtual stages; states are divided over somebody; without a pipeline
                            // there is nothing to put off.
                            let even = virtual_stages == 1 || 4 % (pp * virtual_stages) == 0;
                            let sensible = (zero == 0 || dp > 1) && (pp > 1 || schedule == Schedule::OneFOneB) && even;
                            if !sensible || check(&layout, &model.spec, 1024, Some(8)).is_err() {
                                continue;
                            }
                            for (recompute, activations) in
                                recomputes.into_iter().flat_map(|r| flags.map(|offload| (r, offload)))
                            {
                                let offload = Offload { activations, optimizer: false };
                                expected.insert(key(&Layout { recompute, offload, ..layout.clone() }));
                            }
                        }
                    }
                }
            }
        }
        assert!(keys == expected, "{kind}: {:?}", keys.symmetric_difference(&expected).next());
        assert!(keys.len() > 1000, "{}", keys.len());
        let counts = search(&run, &Wanted { most: 1, ..wanted }).unwrap().counts;
        assert_eq!(counts.legal(), keys.len() as u64, "every candidate is legal or counted with what it is not");
    }
}

/// What is looked at by multiplication is what a whole trace of the layout says.
///
/// Gives whether it can be traced at all.
fn agrees(book: &mut Book<'_>, run: &Run<'_>, layout: &Layout) -> bool {
    let (traces, look) = (run.traces(layout), book.look(layout));
    let (traces, look) = match (traces, look) {
        (Ok(traces), Ok(look)) => (traces, look),
        (Err(_), Err(_)) => return false,
        (traces, look) => panic!("{layout}: {:?} {look:?}", traces.map(|_| ())),
    };
    let own = run.estimate(layout, &traces).unwrap();
    assert_eq!(look.seen.device, own.device, "{layout:?}: {:?}", own.memory);
    let host = look.host.get().abs_diff(own.host.get());
    // States of parameters that are in 32 bits already have no masters; a search counts all parameters alike.
    let rounding = if layout.offload.optimizer { own.host.get() / 100 } else { own.host.get() / 1_000_000_000 };
    assert!(host <= rounding + 1, "{layout:?}: {:?} {:?}", look.host, own.host);
    let lines =
        |time: &StepTime| [time.passes, time.bubble, time.gradients, time.optimizer, time.parameters, time.stragglers];
    let whole = own.time.seconds();
    for (quick, traced) in lines(&look.time).into_iter().zip(lines(&own.time)) {
        assert!((quick - traced).abs() <= 1e-9 * whole, "{layout:?}: {:?} {:?}", look.time, own.time);
    }
    assert!(look.seen.at_least <= whole * (1.0 + 1e-9) && whole <= look.seen.at_most * (1.0 + 1e-9), "{layout}");
    true
}

/// Layouts that turn every knob, and some of them together.
fn knobs() -> Vec<Layout> {
    let plain = || Layout { micro_batch: 2, grad_accum: 4, ..Layout::default() };
    let (ring, exchange) = (ContextParallel::Ring, ContextParallel::AllToAll);
    let interleaved = |pp, chunks| Layout {
        pp,
        virtual_stages: chunks,
        schedule: Schedule::Interleaved,
        grad_accum: 2 * pp,
        ..plain()
    };
    let activations = Offload { activations: true, optimizer: false };
    vec![
        plain(),
        Layout { dp: 4, zero: 1, ..plain() },
        Layout { dp: 4, zero: 2, grad_accum: 1, ..plain() },
        Layout { dp: 4, zero: 3, ..plain() },
        Layout { pp: 2, ..plain() },
        Layout { pp: 3, dp: 2, zero: 1, grad_accum: 7, schedule: Schedule::ZeroBubble, ..plain() },
        Layout { pp: 2, schedule: Schedule::GPipe, ..plain() },
        interleaved(2, 2),
        interleaved(3, 2),
        Layout { cp: 2, context: ring, ..plain() },
        Layout { cp: 2, context: exchange, ..plain() },
        Layout { cp: 4, context: ring, dp: 2, zero: 3, micro_batch: 1, ..plain() },
        Layout { cp: 2, context: ring, pp: 2, recompute: Recompute::Full, ..plain() },
        Layout { cp: 2, context: exchange, tp: 2, sp: true, zero: 1, ..plain() },
        Layout { tp: 2, ..plain() },
        Layout { tp: 2, sp: true, pp: 2, dp: 2, zero: 1, ..plain() },
        Layout { recompute: Recompute::Selective, micro_batch: 1, ..plain() },
        Layout { recompute: Recompute::Full, dp: 2, zero: 2, micro_batch: 3, ..plain() },
        Layout { offload: activations, pp: 2, ..plain() },
        Layout { ep: 2, dp: 2, zero: 1, ..plain() },
        Layout { offload: Offload { activations: false, optimizer: true }, dp: 2, zero: 1, ..plain() },
        Layout { offload: Offload { activations: true, optimizer: true }, pp: 2, ..plain() },
    ]
}

/// Ranks that share a sequence, of both ways to see the rest of it; the search of short sequences has none of them.
#[test]
fn ranks_that_share_a_sequence_are_looked_at_as_they_are() {
    for kind in ["llama", "mixtral"] {
        let model = model(kind);
        let run = run(&model);
        let wanted = |cp| {
            let given = Given { cp: Some(cp), ..Given::default() };
            Wanted { given, ..wanted(8, u64::MAX) }
        };
        let mut book = Book::new(&run);
        for cp in [2, 4] {
            let all = layouts(&run, &wanted(cp));
            assert!(all.iter().all(|layout| layout.cp == cp) && all.len() > 100, "{kind} cp {cp}: {}", all.len());
            let some = all.iter().step_by(all.len() / 60);
            let traced = some.clone().filter(|layout| agrees(&mut book, &run, layout)).count();
            assert!(traced > some.len() / 2, "{kind} cp {cp}: {traced}");
        }
    }
}

/// Blocks of several kinds, in the order of their families: attention between states, shared blocks, experts in every other one.
#[test]
fn hybrid_families_are_looked_at_as_they_are() {
    // Layouts of each that can be traced at least: parts of states are not divided over ranks yet, and few blocks not over many
    // stages.
    let rows = [
        ("jamba", 8),
        ("bamba", 8),
        ("falcon_h1", 8),
        ("granitemoehybrid", 8),
        ("nemotron_h", 8),
        ("zamba2", 6),
        ("qwen3_next", 8),
        ("olmo_hybrid", 8),
        ("lfm2", 8),
        ("recurrent_gemma", 8),
        ("gemma3_text", 12),
        ("deepseek_v3", 12),
        ("gpt_oss", 11),
        ("llama4_text", 11),
        ("gpt2", 12),
    ];
    let mut few = Vec::new();
    for (family, least) in rows {
        let path = format!("{}/../nn/tests/data/tiny/{family}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read(path).unwrap();
        let key = if String::from_utf8_lossy(&text).contains("n_layer") { "n_layer" } else { "num_hidden_layers" };
        let of = |set: &[(String, String)]| Model::from_text(family, family, &text, set, None);
        // A config that lists its blocks keeps them.
        let model = of(&[(key.to_owned(), "12".to_owned())]).or_else(|_| of(&[])).unwrap();
        let run = run_of(&model, StepOptions { seq_len: 16, ..step() });
        let mut book = Book::new(&run);
        let traced = knobs().iter().filter(|layout| agrees(&mut book, &run, layout)).count();
        few.extend(
            (traced < least).then(|| format!("{family}: {traced} of {}, {} blocks", knobs().len(), model.spec.depth())),
        );
    }
    assert!(few.is_empty(), "{few:?}");
}

/// Of a run that only replicas divide, the device with its allocator is the ledger's.
#[test]
fn the_allocator_is_that_of_the_ledger() {
    let model = model("llama");
    let run = run(&model);
    let hardware = run.cluster.hardware;
    for (zero, dp, micro_batch, grad_accum) in [(0, 1, 1, 1), (0, 4, 2, 3), (1, 8, 4, 1), (2, 8, 1, 2), (3, 8, 2, 1)] {
        let layout = Layout { dp, zero, micro_batch, grad_accum, ..Layout::default() };
        let (_, estimate) = run.whole(&layout).unwrap();
        let request = Request {
            options: StepOptions { batch: micro_batch, grad_accum_steps: grad_accum, steps: 2, warm: false, ..step() },
            sharding: Sharding::new(zero, dp),
            hardware: Some(hardware),
            runtime: runtime::bytes(hardware, dp),
            runtime_given: false,
            paged: false,
            process: Some(Process { workspace: runtime::workspace(hardware), ..Process::default() }),
            depth: 1,
            timeline: false,
        };
        let (ledger, traced) = ledger::ledger(&model, &request).unwrap();
        let device = OnDevice::of(&model, &traced, &ledger, &request);
        assert_eq!(estimate.total(), device.total, "{layout}");
        assert!(estimate.total() > estimate.device && estimate.fits(hardware.capacity()), "{layout}");
        let room = |bytes: u64| estimate.fits(Bytes(bytes));
        assert!(room(device.total.get()) && !room(device.total.get() - 1), "{layout}");
    }
}

/// What is named has room with its allocator: the best by its tensors is not, where it has not.
#[test]
fn what_is_named_has_room_with_its_allocator() {
    let model = model("llama");
    let run = run(&model);
    let wanted = Wanted { most: 3, global_batch: 16, ..wanted(4, u64::MAX) };
    let named = |allocator, capacity| search(&run, &Wanted { allocator, capacity: Bytes(capacity), ..wanted }).unwrap();
    let best = named(true, u64::MAX).best[0].clone();
    // Room for its tensors, and not for what is reserved for them.
    let capacity = best.1.total().get() - 1;
    assert!(best.1.device.get() <= capacity);
    assert_eq!(named(false, capacity).best[0].0, best.0);
    let found = named(true, capacity);
    assert!(
        found.best.len() == 3
            && found.best.iter().all(|(layout, one)| *layout != best.0 && one.total().get() <= capacity)
    );
    let front: Vec<u64> = found.front.iter().map(|(_, one)| one.total().get()).collect();
    assert!(front.iter().all(|bytes| *bytes <= capacity) && front.is_sorted_by(|a, b| a > b), "{front:?}");
}

/// What a change takes that is not enough is said without a whole trace, and is what that says.
#[test]
fn changes_that_are_not_enough_take_what_whole_traces_say() {
    let (name, text) = presets::find("llama-3.1-8b").unwrap();
    let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
    let run = run_of(&model, StepOptions { seq_len: 8192, ..step() });
    let measure = Divided::of(&run);
    let other = StepOptions { precision: Precision::Bf16Master, ..run.step };
    let eight = OptimizerKind { kind: Kind::Adam8bit, implementation: Implementation::Fused };
    let steps = [run.step, other, StepOptions { optimizer: eight, ..run.step }];
    let mut checked = 0;
    for (i, layout) in knobs().into_iter().enumerate() {
        let setup = Setup { layout, step: steps[i % 3] };
        let Ok(taken) = measure.measure(&setup) else { continue };
        let run = Run { step: setup.step, ..run };
        let (_, whole) = run.whole(&setup.layout).unwrap();
        assert_eq!((taken.tensors, taken.fits), (whole.device.get(), whole.fits(run.cluster.hardware.capacity())));
        assert!(taken.reserved.is_none_or(|bytes| bytes == whole.total().get()), "{}", setup.layout);
        let off = taken.seconds.unwrap() / whole.time.seconds() - 1.0;
        assert!(off.abs() < 1e-9, "{}: {off}", setup.layout);
        checked += usize::from(!taken.fits);
    }
    assert!(checked >= 8, "{checked}");
}

/// With allocators the best are those of tracing every layout whole with its allocators, in the order of their times, on devices
/// of any size: none is passed over, and what is timed later is slower.
#[test]
fn the_best_with_their_allocators_are_those_of_tracing_every_layout() {
    let model = model("llama");
    let run = run(&model);
    let given = Given { offload: Some(Offload::NONE), ..Given::default() };
    let wanted = Wanted { allocator: true, micro_batch: 2, global_batch: 8, given, ..wanted(4, u64::MAX) };
    let mut own: Vec<(f64, Bytes, Estimate)> = Vec::new();
    for layout in layouts(&run, &wanted) {
        let (_, estimate) = run.whole(&layout).unwrap();
        own.push((estimate.time.seconds(), estimate.device, estimate));
    }
    own.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut totals: Vec<u64> = own.iter().map(|(.., estimate)| estimate.total().get()).collect();
    totals.sort_unstable();
    let mut later = 0;
    for part in 0..5 {
        // What one of them takes, and a byte less.
        let total = totals[(totals.len() - 1) * part / 4];
        for (capacity, most) in [(total, 4), (total - 1, 1), (total - 1, 20)] {
            let capacity = Bytes(capacity);
            let fit = own.iter().filter(|(.., one)| one.fits(capacity));
            let expected: Vec<f64> = fit.map(|(seconds, ..)| *seconds).take(most).collect();
            let found = search(&run, &Wanted { capacity, most, ..wanted }).unwrap();
            assert_eq!(found.best.len(), expected.len(), "{capacity} {most}");
            for ((_, one), seconds) in found.best.iter().zip(&expected) {
                assert!((one.time.seconds() / seconds - 1.0).abs() < 1e-9 && one.fits(capacity), "{capacity} {most}");
            }
            let by_tensors = own.iter().filter(|(_, device, _)| *device <= capacity).take(most);
            later += usize::from(by_tensors.into_iter().any(|(.., one)| !one.fits(capacity)));
        }
    }
    assert!(later > 5, "allocators refuse some of the fastest: {later}");
}

#[test]
fn what_is_said_of_a_layout_is_what_it_says_by_itself() {
    for kind in ["llama", "mixtral"] {
        let model = model(kind);
        let run = run(&model);
        let mut book = Book::new(&run);
        let all = layouts(&run, &wanted(8, u64::MAX));
        // One in so many, and none of the first few alone.
        for layout in all.iter().step_by(all.len() / 300) {
            agrees(&mut book, &run, layout);
        }
    }
}

#[test]
fn the_best_are_those_that_are_best_by_themselves() {
    let model = model("mixtral");
    let run = run(&model);
    let wanted = Wanted { micro_batch: 1, global_batch: 16, ..wanted(4, u64::MAX) };
    let mut own: Vec<(f64, u64)> = Vec::new();
    for layout in layouts(&run, &wanted) {
        let Ok(traces) = run.traces(&layout) else { continue };
        let estimate = run.estimate(&layout, &traces).unwrap();
        own.push((estimate.time.seconds(), estimate.device.get()));
    }
    assert!(own.len() > 100, "{}", own.len());
    own.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut bytes: Vec<u64> = own.iter().map(|(_, bytes)| *bytes).collect();
    bytes.sort_unstable();
    for capacity in [u64::MAX, bytes[bytes.len() / 2], bytes[bytes.len() / 10]] {
        let found = search(&run, &Wanted { capacity: Bytes(capacity), most: 7, ..wanted }).unwrap();
        let fit: Vec<(f64, u64)> = own.iter().copied().filter(|(_, bytes)| *bytes <= capacity).collect();
        assert_eq!(found.fit as usize, fit.len());
        assert_eq!((found.too_large + found.too_large_states) as usize, own.len() - fit.len());
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert_eq!(found.best.len(), fit.len().min(7));
        for ((_, estimate), (seconds, _)) in found.best.iter().zip(&fit) {
            assert!(near(estimate.time.seconds(), *seconds), "{} {seconds} {:?}", estimate.time.seconds(), found.off);
        }
        // The front, one by one.
        let mut least = u64::MAX;
        let front: Vec<(f64, u64)> = fit
            .iter()
            .copied()
            .filter(|(_, bytes)| {
                let better = *bytes < least;
                least = least.min(*bytes);
                better
            })
            .collect();
        assert_eq!(found.front_size as usize, front.len());
        for ((_, estimate), (seconds, bytes)) in found.front.iter().zip(&front) {
            assert!(near(estimate.time.seconds(), *seconds) && estimate.device.get() == *bytes);
        }
        assert!(found.off.0 < 1e-9 && found.off.1 == 0.0, "{:?}", found.off);
    }
    let none = search(&run, &Wanted { capacity: Bytes(1), ..wanted }).unwrap();
    assert!(
        none.best.is_empty()
            && none.fit == 0
            && none.too_large_states == none.tried() - none.untraced.values().sum::<u64>()
    );
    assert!(search(&run, &Wanted { global_batch: 7, devices: 64, ..wanted }).is_err());
}

/// Where nothing has room with its states on the device, they are looked at on the host.
#[test]
fn states_go_to_the_host_where_nothing_has_room_else() {
    let model = model("llama");
    let run = run(&model);
    let all = wanted(1, u64::MAX);
    let wanted = Wanted { most: 2, ..all };
    let least = search(&run, &all).unwrap().front.last().unwrap().1.device.get();
    let roomy = search(&run, &Wanted { capacity: Bytes(least), ..wanted }).unwrap();
    assert!(roomy.best.iter().all(|(layout, _)| !layout.offload.optimizer));
    let found = search(&run, &Wanted { capacity: Bytes(least - (50 << 20)), ..wanted }).unwrap();
    assert!(
        !found.best.is_empty() && found.best.iter().all(|(layout, _)| layout.offload.optimizer),
        "{:?}",
        found.best
    );
}

/// What an engine cannot run is not among its layouts: each of them can be written for it.
#[test]
fn layouts_of_an_engine_are_those_that_it_runs() {
    let model = model("llama");
    for engine in Engine::ALL {
        let run = Run { engine: Some(engine), ..run(&model) };
        let mut all = layouts(&run, &Wanted { engine: Some(engine), ..wanted(8, u64::MAX) });
        assert!(all.len() > 10, "{engine:?}");
        let given = Given { offload: Some(Offload { activations: false, optimizer: true }), ..Given::default() };
        let on_host = layouts(&run, &Wanted { engine: Some(engine), given, ..wanted(8, u64::MAX) });
        assert!(on_host.is_empty() == (engine == Engine::Nanotron), "{engine:?}");
        all.extend(on_host);
        for layout in &all {
            let written = handover::Run {
                name: "small",
                model: &model.spec,
                seq_len: 1024,
                precision: engine.usual_precision(),
                optimizer: run.step.optimizer,
                loss: engine.usual_loss(),
                devices_per_node: 8,
                steps: Some(10),
                memory: None,
                step_time: None,
            };
            if let Err(problems) = handover::export(engine, layout, &written) {
                panic!("{engine:?} {layout:?}: {problems}");
            }
        }
    }
}

/// A layout of one device is what the ledger says, and replicas divide what they divide there.
#[test]
fn a_rank_alone_is_the_ledger() {
    let model = model("llama");
    for (zero, dp) in [(0, 1), (1, 4), (2, 4)] {
        let layout = Layout { dp, zero, micro_batch: 2, grad_accum: 2, ..Layout::default() };
        let rank = &rank::memory(&model.spec, &layout, &step(), None).unwrap()[0];
        let options = StepOptions { batch: 2, grad_accum_steps: 2, ..step() };
        let traced = model.trace(&options).unwrap();
        let ledger = Ledger::of(&traced, &options, Sharding::new(zero, dp), &model.spec.names, Bytes(0));
        assert_eq!(rank.peak_bytes, ledger.peak_bytes, "zero {zero} dp {dp}");
    }
}

/// Conservation over random layouts: what all ranks of a replica hold is the model, and what they hold alike has a name; what
/// they compute is what the model computes, and what goes over the wire arrives.
fn conserved(kind: &str, layout: &Layout) {
    use nn::ParamKind;
    use nn::Share;
    use tensor::Phase;
    let model = model(kind);
    if check(layout, &model.spec, 1024, None).is_err() {
        return;
    }
    let what = format!("{kind} {layout}");
    let ranks = rank::trace(&model.spec, layout, &step(), None, 0..layout.pp).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (mut divided, mut alike) = (0, 0);
    for param in ranks.iter().flat_map(|rank| &rank.traced.params) {
        let times = match (param.share, param.kind) {
            (Share::Part, ParamKind::Expert { .. }) => layout.ep * layout.etp,
            (Share::Part, _) => layout.tp,
            _ => 1,
        };
        divided += param.elements * times;
        // Norms and routers: each of the ranks that share matrices has them whole.
        alike += if param.share == Share::Part { 0 } else { param.elements };
    }
    let options = StepOptions { batch: layout.micro_batch, recompute: Recompute::None, ..step() };
    let whole = model.trace(&options).unwrap();
    let all: u64 = whole.params.iter().map(|param| param.elements).sum();
    assert_eq!(divided, all, "{what}: parameters");
    let small = |name: &str| name.contains("norm") || name.contains("gate.weight");
    let named: u64 = whole.params.iter().filter(|p| small(&p.name)).map(|p| p.elements).sum();
    assert_eq!(alike, named, "{what}: parameters that several ranks hold");
    for phase in [Phase::Forward, Phase::Backward] {
        let one = whole.trace.cost(|event| event.phase == phase).matmul;
        let of_ranks: u128 = ranks
            .iter()
            .map(|rank| {
                rank.traced.trace.cost(|event| event.phase == phase).matmul / u128::from(rank.options.grad_accum_steps)
            })
            .sum();
        assert_eq!(of_ranks * u128::from(layout.tp * layout.cp), one, "{what}: FLOP {}", phase.name());
    }
    let total = ranks.iter().fold(tensor::Cost::default(), |mut sum, rank| {
        let each = rank.traced.trace.cost(|_| true);
        // Ranks of different stages see different numbers of micro-batches in their traces.
        sum.sent += each.sent / rank.options.grad_accum_steps;
        sum.received += each.received / rank.options.grad_accum_steps;
        sum
    });
    if layout.pp == 1 {
        assert_eq!(total.sent, total.received, "{what}");
    }
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

        #[test]
        fn ranks_of_random_layouts_are_the_whole(
            moe in any::<bool>(),
            (tp, cp, pp) in (0u32..3, 0u32..2, 0u32..3),
            (dp, ep) in (0u32..3, 0u32..3),
            (micro_batch, grad_accum) in (1u64..3, 1u64..9),
            full in any::<bool>(),
            bare in 0usize..4,
        ) {
            let [tp, cp, pp, dp, ep] = [tp, cp, pp, dp, ep].map(|power| 1u64 << power);
            let layout = Layout {
                dp,
                tp,
                sp: tp > 1,
                cp,
                context: ContextParallel::AllToAll,
                ep: if moe { ep } else { 1 },
                pp,
                zero: u8::from(dp > 1),
                micro_batch,
                grad_accum,
                recompute: if full { Recompute::Full } else { Recompute::None },
                ..Layout::default()
            };
            let kind = if moe { "mixtral" } else { "llama" };
            // The embedding, or head and loss, on a stage of their own; or a stage with nothing.
            let mut blocks = layout.blocks_of(model(kind).spec.depth() as u64);
            let (stages, last) = (blocks.len(), blocks.len() - 1);
            let moved = [None, Some((0, 1)), Some((last, last.saturating_sub(1))), Some((1, 0))][bare].filter(|_| stages > 1);
            if let Some((from, to)) = moved {
                blocks[to] += std::mem::take(&mut blocks[from]);
            }
            conserved(kind, &Layout { blocks: moved.map(|_| blocks), ..layout });
        }
    }
}

/// Numbers that nobody means are refused, not counted to.
#[test]
fn steps_beyond_counting_are_refused() {
    let model = model("llama");
    for (grad_accum, micro_batch) in [(u64::MAX, 1), (1, u64::MAX), (1 << 21, 1), (1 << 20, 1 << 30)] {
        let layout = Layout { grad_accum, micro_batch, ..Layout::default() };
        assert!(check(&layout, &model.spec, 1024, None).is_err(), "{grad_accum} {micro_batch}");
        assert!(rank::memory(&model.spec, &layout, &step(), None).is_err());
    }
    let run = run(&model);
    for global_batch in [u64::MAX, 1_000_000_000_000, 1 << 40] {
        assert!(search(&run, &Wanted { global_batch, ..wanted(8, u64::MAX) }).is_err(), "{global_batch}");
    }
    // As many as are looked at, and what a rank holds does not depend on it.
    let of = |grad_accum| {
        let layout = Layout { pp: 4, grad_accum, ..Layout::default() };
        rank::memory(&model.spec, &layout, &step(), None).unwrap()
    };
    assert_eq!(of(1 << 20), of(64));
}
