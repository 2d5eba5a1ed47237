//! Models of which only a part is trained: the same trace on both devices, and nothing else moves.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::families;
use napkin_nn::optim::Hyper;
use napkin_nn::spec::{Lora, ModelSpec, Pattern, Targets, Tuning};
use napkin_nn::step::{self, Precision, StepOptions, Until};
use napkin_nn::training::{Labels, Training, TrainingOptions};
use napkin_nn::{Profile, Recompute};
use tensor::meter::MemoryChange;
use tensor::ops::create::{Create, Fill};
use tensor::packed::FORMATS;
use tensor::{CastLists, DType, Device, Op, Role, Runtime};

const OPTIONS: StepOptions = StepOptions {
    batch: 2,
    seq_len: 6,
    profile: Profile::Fused,
    precision: Precision::Bf16Mixed,
    optimizer: napkin_nn::optim::OptimizerKind {
        kind: napkin_nn::optim::Kind::AdamW,
        implementation: napkin_nn::optim::Implementation::Fused,
    },
    recompute: Recompute::None,
    grad_accum_steps: 1,
    autocast: CastLists::Cuda,
    steps: 2,
    warm: false,
    dropout: true,
    objective: napkin_nn::Objective::DEFAULT,
    offload: napkin_nn::Offload::NONE,
    in_backward: false,
    until: Until::Optimizer,
};

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn spec(tuning: Tuning) -> ModelSpec {
    read(include_bytes!("data/tiny/llama.json"), tuning)
}

fn read(config: &[u8], tuning: Tuning) -> ModelSpec {
    let (config, _) = Config::parse("tiny.json", config);
    ModelSpec { tuning, ..families::load(&config.unwrap(), None).unwrap().spec }
}

fn lora(targets: &[&str], dropout: f64) -> Tuning {
    let targets = if targets.is_empty() { Targets::All } else { Targets::Named(patterns(targets)) };
    let lora = Lora { dropout, targets, ..Lora::of_rank(2) };
    Tuning { lora: Some(lora), ..Tuning::default() }
}

fn directed(targets: &[&str], dropout: f64) -> Tuning {
    let plain = lora(targets, dropout);
    Tuning { lora: plain.lora.map(|lora| Lora { magnitudes: true, ..lora }), ..plain }
}

/// Mixtures whose experts lie as `e out in`, as `e in out`, and in modules of their own.
fn mixtures() -> Vec<(String, ModelSpec)> {
    let files: [(&str, &[u8]); 4] = [
        ("mixtral", include_bytes!("data/tiny/mixtral.json")),
        ("gpt_oss", include_bytes!("data/tiny/gpt_oss.json")),
        ("jetmoe", include_bytes!("data/tiny/jetmoe.json")),
        ("llama4", include_bytes!("data/tiny/llama4_text.json")),
    ];
    let mut all = Vec::new();
    for (name, config) in files {
        for (stacks, targets) in [("gate_up_proj:3 down_proj", Targets::Named(Vec::new())), ("down_proj", Targets::All)]
        {
            let stacks = match name {
                "jetmoe" => "input_linear output_linear",
                _ => stacks,
            };
            let stacks = stacks.split(' ').map(|stack| stack.parse().unwrap()).collect();
            let lora = Lora { targets, stacks, ..Lora::of_rank(2) };
            let tuning = Tuning { lora: Some(lora), ..Tuning::default() };
            all.push((format!("stacks of {name}"), read(config, tuning)));
        }
    }
    all
}

/// A Llama whose head is its token table, of which one, the other or both are trained in copies.
fn tied() -> Vec<(String, ModelSpec)> {
    let copies = [&["embed_tokens"][..], &["lm_head"], &["embed_tokens", "lm_head"]];
    let tied = copies.map(|names| {
        let mut spec = spec(Tuning { copied: patterns(names), ..lora(&["q_proj"], 0.0) });
        spec.head.tied = true;
        (format!("copies of {names:?}, tied"), spec)
    });
    tied.into()
}

fn tunings() -> Vec<(String, Tuning)> {
    let mut all = vec![
        ("adapters".to_owned(), lora(&[], 0.0)),
        ("adapters with dropout".to_owned(), lora(&["q_proj", "v_proj"], 0.1)),
        ("adapters with magnitudes".to_owned(), directed(&[], 0.0)),
        ("adapters with magnitudes and dropout".to_owned(), directed(&["q_proj", "v_proj"], 0.1)),
        (
            "adapters and copies".to_owned(),
            Tuning { copied: patterns(&["embed_tokens", "lm_head"]), ..lora(&["q_proj"], 0.0) },
        ),
        ("adapters and a head".to_owned(), Tuning { trained: patterns(&["lm_head"]), ..lora(&["down_proj"], 0.0) }),
        (
            "frozen beginning".to_owned(),
            Tuning { frozen: patterns(&["embed_tokens", "layers.0"]), ..Tuning::default() },
        ),
        ("norms only".to_owned(), Tuning { trained: patterns(&["*norm"]), ..Tuning::default() }),
        ("wide and frozen".to_owned(), Tuning { frozen_dtype: Some(DType::F32), ..lora(&["q_proj"], 0.0) }),
    ];
    all.extend(
        FORMATS.iter().map(|format| (format.name.to_owned(), Tuning { packed: Some(format), ..lora(&[], 0.0) })),
    );
    all
}

fn training(options: &StepOptions) -> TrainingOptions {
    TrainingOptions {
        profile: options.profile,
        precision: options.precision,
        optimizer: options.optimizer,
        hyper: Hyper::default(),
        recompute: options.recompute,
        grad_accum_steps: 1,
        autocast: options.autocast,
        dropout: true,
        clip_norm: None,
        objective: napkin_nn::Objective::DEFAULT,
        stochastic_rounding: false,
    }
}

fn every_step(mut check: impl FnMut(&str, &ModelSpec, &StepOptions)) {
    let llama = tunings().into_iter().map(|(name, tuning)| (name, spec(tuning)));
    for (name, spec) in llama.chain(mixtures()).chain(tied()) {
        for profile in [Profile::Fused, Profile::HfSdpa, Profile::HfEager] {
            for (recompute, precision) in [
                (Recompute::None, Precision::Bf16Mixed),
                (Recompute::Full, Precision::Bf16Mixed),
                (Recompute::None, Precision::Fp32),
                (Recompute::None, Precision::Bf16Pure),
                (Recompute::None, Precision::Bf16Master),
            ] {
                // Without copies of weights there is one dtype for all.
                if spec.tuning.frozen_dtype.is_some() && precision.copies().is_none() {
                    continue;
                }
                let options = StepOptions { profile, recompute, precision, ..OPTIONS };
                check(&format!("{name}, {profile} {precision} {}", recompute.name()), &spec, &options);
            }
        }
    }
}

#[test]
fn meta_and_cpu_record_the_same_trace() {
    every_step(|name, spec, options| {
        let [meta, cpu] = [Device::Meta, Device::Cpu].map(|device| {
            let runtime = Runtime::new(device);
            let mut trace = step::run(&runtime, spec, options).unwrap_or_else(|e| panic!("{name}: {e}")).trace;
            assert_eq!(runtime.live_bytes(), 0, "{name}");
            for event in &mut trace.ops {
                if let Op::Create(Create { fill: Fill::Data(data), .. }) = &mut event.ran_mut().op {
                    *data = None;
                }
            }
            trace
        });
        // Packing draws the weights it packs, where there are numbers.
        let drawn = |trace: &tensor::Trace| trace.marks.iter().find(|m| m.name == "fwd1").unwrap().clone();
        let (m, c) = (drawn(&meta), drawn(&cpu));
        let names = |trace: &tensor::Trace, from: u32| -> Vec<(&'static str, tensor::Cost)> {
            trace.ops[from as usize..].iter().map(|event| (event.op.name(), event.cost)).collect()
        };
        assert_eq!(names(&meta, m.op), names(&cpu, c.op), "{name}");
        let bytes = |trace: &tensor::Trace, from: u32| -> Vec<(u64, MemoryChange)> {
            let of =
                |event: &tensor::meter::MemoryEvent| (trace.storages[event.storage.0 as usize].bytes, event.change);
            trace.memory[from as usize..].iter().map(of).collect()
        };
        assert_eq!(bytes(&meta, m.memory), bytes(&cpu, c.memory), "{name}");
    });
}

#[test]
fn only_what_is_trained_has_gradients_and_states_and_moves() {
    every_step(|name, spec, options| {
        let runtime = Runtime::new(Device::Cpu);
        let mut training = Training::new(&runtime, spec, &training(options)).unwrap();
        let bytes = |training: &Training| -> Vec<(String, bool, Vec<f64>)> {
            let params = training.model().params().iter();
            params.map(|p| (p.name.clone(), p.trainable, p.tensor.to_vec().unwrap())).collect()
        };
        let before = bytes(&training);
        let tokens = runtime.tensor(&[1.0, 5.0, 2.0, 7.0, 3.0, 4.0], &[1, 6], DType::I64).unwrap();
        // Adapters begin with a product that is zero: the first update moves only one of their two matrices.
        for _ in 0..3 {
            let loss = training.forward(&tokens, Labels::Tokens(&tokens)).unwrap();
            training.backward(loss, 1.0).unwrap();
            for param in training.model().params() {
                assert_eq!(param.tensor.grad().is_some(), param.trainable, "{name}: {}", param.name);
            }
            training.update(0.01).unwrap();
        }
        let states: Vec<String> = training.state_tensors().into_iter().map(|(of, ..)| of).collect();
        for ((param, trainable, was), (_, _, is)) in before.into_iter().zip(bytes(&training)) {
            assert_eq!(was != is, trainable, "{name}: {param}");
            assert_eq!(states.contains(&param), trainable, "{name}: states of {param}");
        }
    });
}

/// By hand: 2 of rank times inputs and outputs of each map of the tiny Llama; what is frozen takes no gradient product.
#[test]
fn adapters_add_what_they_should() {
    let plain = step::parameters(&spec(Tuning::default())).unwrap();
    let tuned = step::parameters(&spec(lora(&["q_proj", "up_proj"], 0.0))).unwrap();
    let added: u64 = tuned.iter().filter(|p| p.trainable).map(|p| p.elements).sum();
    let ends = |p: &&step::ParamInfo| p.name.ends_with("q_proj.weight") || p.name.ends_with("up_proj.weight");
    let expected: u64 = plain.iter().filter(ends).map(|p| 2 * (p.shape[0] + p.shape[1])).sum();
    assert_eq!(added, expected);
    let total = |params: &[step::ParamInfo]| params.iter().map(|p| p.elements).sum::<u64>();
    assert_eq!(total(&tuned), total(&plain) + expected);
}

/// Packed weights are what their format says, by name and role.
#[test]
fn packed_weights_take_the_bytes_of_their_format() {
    for format in FORMATS {
        let tuning = Tuning { packed: Some(format), ..lora(&["q_proj"], 0.0) };
        let spec = spec(tuning);
        let traced = step::trace(&spec, &StepOptions { steps: 1, ..OPTIONS }).unwrap();
        let packed = traced.params.iter().filter(|p| p.packed_bytes.is_some());
        let expected: u64 = packed.clone().map(|p| format.bytes(p.shape[0], p.shape[1])).sum();
        assert_eq!(packed.map(|p| p.packed_bytes.unwrap()).sum::<u64>(), expected, "{}", format.name);
        let init = traced.trace.marks[1].memory as usize;
        let role = |role: Role| -> u64 {
            let of = |e: &tensor::meter::MemoryEvent| match e.change {
                MemoryChange::Role(r) | MemoryChange::Alloc(r) if r == role => {
                    traced.trace.storages[e.storage.0 as usize].bytes
                }
                _ => 0,
            };
            traced.trace.memory[..init].iter().map(of).sum()
        };
        let whole = traced.params.iter().filter(|p| p.packed_bytes.is_none());
        let rest: u64 = whole.map(|p| p.elements * if p.trainable { 4 } else { 2 }).sum();
        assert_eq!(role(Role::Parameter) + role(Role::Buffer), expected + rest, "{}", format.name);
    }
}

/// The hf profiles add what adapters of experts make to the weights, the fused one to what the weights make.
#[test]
fn adapters_of_experts_are_the_same_function_in_every_profile() {
    for (name, spec) in mixtures() {
        let mut first: Option<Vec<(String, Vec<f64>)>> = None;
        for profile in [Profile::Fused, Profile::HfSdpa, Profile::HfEager] {
            if profile == Profile::HfSdpa && !spec.has_sdpa {
                continue;
            }
            let runtime = Runtime::new(Device::Cpu);
            let (precision, optimizer) = (Precision::Fp32, "sgd".parse().unwrap());
            let options = training(&StepOptions { profile, precision, optimizer, ..OPTIONS });
            let mut training = Training::new(&runtime, &spec, &options).unwrap();
            let tokens = runtime.tensor(&[1.0, 5.0, 2.0, 7.0, 3.0, 4.0], &[1, 6], DType::I64).unwrap();
            // The second step has products of adapters that are not zero.
            let mut seen = Vec::new();
            for _ in 0..2 {
                let loss = training.forward(&tokens, Labels::Tokens(&tokens)).unwrap();
                seen.push(("loss".to_owned(), loss.to_vec().unwrap()));
                training.backward(loss, 1.0).unwrap();
                let params = training.model().params().iter().filter(|p| p.trainable);
                seen.extend(params.map(|p| (p.name.clone(), p.tensor.grad().unwrap().to_vec().unwrap())));
                training.update(0.05).unwrap();
            }
            let Some(first) = &first else {
                first = Some(seen);
                continue;
            };
            for ((what, a), (_, b)) in first.iter().zip(&seen) {
                let off = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-4, "{name}, {profile}: {what} is off by {off}");
            }
        }
    }
}
