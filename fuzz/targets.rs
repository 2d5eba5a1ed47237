//! What reads untrusted text, one function per fuzz target. None may panic on any input.

use napkin_plan::allocator::{Allocator, Conf};
use napkin_plan::fit::Choice;
use napkin_plan::fleet::Fleet;
use napkin_plan::handover::{self, Around, Engine, Run};
use napkin_plan::hardware;
use napkin_plan::inference::{self, Request, Room, What, geometry};
use napkin_plan::layout;
use napkin_plan::log_mfu;
use napkin_plan::model::Model;
use napkin_plan::oom;
use napkin_plan::oom::message::Message;
use napkin_plan::params;
use napkin_plan::quant::{self, Format, Storage};
use napkin_plan::snapshot::Question;
use napkin_plan::snapshot::memory::{Snapshot, State};
use napkin_plan::step_log;
use napkin_plan::work::Work;
use nn::config::Config;
use nn::step::{Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use std::fmt::{Debug, Display};
use std::str::FromStr;
use tensor::CastLists;
use tensor::einops::{Equation, Pattern, PatternKind, ShapeCheck};

/// Most blocks of a model that is built, and of one that is traced: the rest is the same again.
const BUILT: usize = 64;
const TRACED: usize = 4;

/// What serving it takes.
fn infer(what: What<'_>) {
    fn some<T>(value: T) -> Choice<T> {
        Choice { value, given: false }
    }
    let request = Request {
        what,
        weights: some(Storage::Format(Format::bf16())),
        stated: None,
        cache: some(Format::bf16()),
        state: some(2),
        seq_len: some(8),
        prompt: some(8),
        encoder_len: some(8),
        batch: some(1),
        block: some(16),
        chunk: some(8),
        tp: some(1),
        room: Room::Tokens(1 << 20),
        utilization: some(1.0),
        runtime: some(units::Bytes::ZERO),
        fleet: None,
        mfu: some(1.0),
        mbu: some(1.0),
    };
    let _ = request.report();
}

/// A `config.json`: syntax, family, parameters, and a step of a model of a few blocks.
pub fn config(bytes: &[u8]) {
    if let (Some(config), _) = Config::parse("config.json", bytes) {
        let _ = (quant::stated(&config), inference::stated_state(&config));
        if let Some(geometry) = geometry::read(&config).ok().filter(|geometry| geometry.kept.len() <= BUILT) {
            let name = "fuzz".to_owned();
            infer(What::Partial { name, geometry, params: None, notes: Vec::new() });
        }
    }
    let model = match Model::from_text("fuzz", "config.json", bytes, &[], None) {
        Ok(model) => model,
        Err(problems) => {
            assert!(problems.has_errors() && !problems.to_string().is_empty());
            return;
        }
    };
    let _ = (model.warnings(), model.assumptions(), model.inputs());
    if model.spec.layers.len() > BUILT {
        return;
    }
    let _ = params::report(&model, 3);
    if model.spec.layers.len() > TRACED {
        return;
    }
    infer(What::Model(&model));
    for profile in [Profile::Fused, Profile::HfSdpa, Profile::HfEager] {
        let options = StepOptions {
            batch: 1,
            seq_len: 16,
            profile,
            precision: Precision::Bf16Mixed,
            optimizer: "adamw".parse().expect("known"),
            recompute: Recompute::None,
            grad_accum_steps: 1,
            autocast: CastLists::Cuda,
            steps: 1,
            warm: true,
            dropout: true,
            objective: nn::Objective::DEFAULT,
            offload: nn::Offload::NONE,
            in_backward: false,
            until: Until::Optimizer,
        };
        if let Err(problems) = model.trace(&options) {
            assert!(problems.has_errors() && !problems.to_string().is_empty());
        }
    }
}

/// Reads `text` as a `T`; what is read can be printed, and what is refused says why.
fn quantity<T: FromStr<Err: Display> + Display + Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => assert!(!value.to_string().is_empty(), "{value:?}"),
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
}

/// Numbers with units.
pub fn units(bytes: &[u8]) {
    let text = &String::from_utf8_lossy(bytes);
    let _ = units::parse_count(text).map_err(|problem| problem.to_string());
    quantity::<units::Flops>(text);
    quantity::<units::Bytes>(text);
    quantity::<units::Params>(text);
    quantity::<units::Tokens>(text);
    quantity::<units::Seconds>(text);
    quantity::<units::Mfu>(text);
    quantity::<units::Hfu>(text);
    quantity::<tensor::DType>(text);
    quantity::<nn::optim::OptimizerKind>(text);
    quantity::<Precision>(text);
    let _ = text.parse::<Profile>();
    let _ = text.parse::<Recompute>();
    let _ = napkin_plan::hardware::find(text).map_err(|problem| problem.to_string());
}

/// Sizes of dimensions out of some bytes: none, one, small, and too large to multiply.
fn shape(bytes: &[u8]) -> Vec<u64> {
    bytes.iter().take(8).map(|&b| if b == u8::MAX { 1 << 62 } else { u64::from(b % 7) }).collect()
}

/// Patterns and equations: the first 8 bytes are two shapes, the rest is text.
pub fn einops(bytes: &[u8]) {
    let (sizes, text) = bytes.split_at(bytes.len().min(8));
    let text = &String::from_utf8_lossy(text);
    let (first, second) = sizes.split_at(sizes.len() / 2);
    let (first, second, both) = (shape(first), shape(second), shape(sizes));
    let named = [("h", 2), ("d", 3)];
    for kind in [PatternKind::Rearrange, PatternKind::Reduce, PatternKind::Repeat] {
        match Pattern::parse(kind, text) {
            Ok(pattern) => {
                for (shape, names) in [(&first, &named[..0]), (&both, &named[..]), (&second, &named[..1])] {
                    let _ = pattern.resolve(shape, names).map_err(|problem| problem.to_string());
                    let _ = pattern.explain(shape, names).map_err(|problem| problem.to_string());
                }
            }
            Err(problem) => assert!(!problem.to_string().is_empty()),
        }
    }
    match Equation::parse(text) {
        Ok(equation) => {
            let (first, second, both) = (&first[..], &second[..], &both[..]);
            for shapes in [&[first][..], &[both], &[first, second], &[both, both], &[first, second, both]] {
                match equation.resolve(shapes) {
                    Ok(contraction) => drop(contraction.explain()),
                    Err(problem) => assert!(!problem.to_string().is_empty()),
                }
            }
            let _ = equation.resolve_sizes(&named).map_err(|problem| problem.to_string());
        }
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
    let mut check = ShapeCheck::new("fuzz");
    let _ = check.arg("x", &first, text).and_then(|c| c.arg("y", &both, text)).map_err(|problem| problem.to_string());
}

/// Out-of-memory messages: what is read is explained, without a model.
pub fn oom(bytes: &[u8]) {
    match Message::read(&String::from_utf8_lossy(bytes)) {
        Ok(message) => {
            assert!(message.request.low <= message.request.bytes && message.request.bytes <= message.request.high);
            let _ = (message.outside(), message.budget());
            drop(oom::Request { message, step: None }.report());
        }
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
}

/// The configuration of an engine; a layout that comes out of it is checked, and written for every engine.
pub fn handover(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let config = br#"{"model_type": "mixtral", "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8,
        "num_hidden_layers": 4, "intermediate_size": 96, "vocab_size": 128, "num_local_experts": 8,
        "num_experts_per_tok": 2}"#;
    let model = Model::from_text("model", "config.json", config, &[], None).expect("a model to divide");
    for engine in Engine::ALL {
        for devices in [None, Some(16)] {
            let around = Around { file: "file", model: &model.spec, devices };
            let Ok(taken) = handover::read(engine, text, &around) else { continue };
            let seq_len = taken.seq_len.unwrap_or(4096);
            let _ = layout::check(&taken.layout, &model.spec, seq_len, devices);
            let precision = taken.precision.unwrap_or(Precision::Bf16Mixed);
            let run = Run {
                name: "model",
                model: &model.spec,
                seq_len,
                precision,
                optimizer: taken.optimizer.unwrap_or("adamw".parse().unwrap()),
                loss: taken.loss.unwrap_or_default(),
                devices_per_node: 8,
                steps: None,
                memory: None,
                step_time: None,
            };
            for engine in Engine::ALL {
                let _ = handover::export(engine, &taken.layout, &run);
            }
        }
    }
}

/// Memory snapshots: what is read has blocks that fill their segments, and a report; what is refused says why and where.
pub fn snapshot(bytes: &[u8]) {
    match Snapshot::read("fuzz.pickle", bytes) {
        Ok(snapshot) => {
            let live = snapshot.in_state(State::Allocated) + snapshot.in_state(State::Waiting);
            assert!(live + snapshot.in_state(State::Free) == snapshot.reserved());
            drop(Question { snapshot, step: None, tolerance: None }.report());
        }
        Err(problem) => assert!(!problem.message.is_empty() && problem.location.is_some()),
    }
}

/// Settings of the allocator: what is read is written and read again as the same, and serves a few requests.
pub fn alloc_conf(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let conf = match text.parse::<Conf>() {
        Ok(conf) => conf,
        Err(problem) => return assert!(!problem.message.is_empty() && !problem.help.is_empty()),
    };
    assert_eq!(conf.to_string().parse::<Conf>(), Ok(conf.clone()));
    for device in [None, Some(1 << 30)] {
        let mut allocator = Allocator::new(conf.clone(), device);
        let blocks: Vec<_> =
            [1, 700, 3 << 20, 100 << 20, 700 << 20, u64::MAX].map(|bytes| allocator.alloc(bytes).ok()).into();
        blocks.into_iter().flatten().for_each(|block| allocator.free(block));
        assert_eq!(allocator.usage().allocated, 0);
    }
}

/// Logs of runs: what is read has a utilization, or a refusal that says why.
pub fn step_log(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines = match step_log::read(&text) {
        Ok(lines) => lines,
        Err(problem) => return assert!(!problem.to_string().is_empty()),
    };
    for (devices, per_device) in [(1, false), (8, false), (8, true)] {
        let hardware = hardware::find("a100-sxm-40gb").expect("in the table").clone();
        let precision = hardware::Precision::Bf16;
        let fleet = Fleet { hardware, devices, devices_given: true, precision, precision_given: true };
        for work in [None, Some(Work::given(units::Flops(854_800_000)))] {
            let request = log_mfu::Request {
                lines: lines.clone(),
                work,
                tokens_per_step: None,
                fleet: fleet.clone(),
                per_device,
            };
            if let Err(problems) = request.report() {
                assert!(problems.has_errors() && !problems.to_string().is_empty());
            }
        }
    }
}
