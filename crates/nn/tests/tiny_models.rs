//! Every family, scaled down: the meta device sees what the CPU does, all profiles compute the same numbers, recomputation
//! changes none, training lowers the loss, and a step leaves nothing behind.
//!
//! A family is covered by one file, `data/tiny/MODEL_TYPE.json`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::families::{self, FAMILIES};
use napkin_nn::loss::{self, Labels};
use napkin_nn::optim::{Hyper, Implementation, Kind, Optimizer, OptimizerKind};
use napkin_nn::spec::{Piece, Task};
use napkin_nn::step::{self, Precision, StepOptions, Until};
use napkin_nn::{Forward, HeadLoss, Model, ModelSpec, Param, Profile, Recompute};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensor::meter::{MemoryChange, OpEvent, Role};
use tensor::ops::create::{Create, Fill};
use tensor::{Accumulate, CastLists, DType, Device, Op, Phase, Runtime, Tensor, Trace};

const BATCH: u64 = 2;
const SEQ_LEN: u64 = 6;

/// Every registered family, small.
fn families() -> Vec<(&'static str, ModelSpec)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
    let filter = std::env::var("NAPKIN_TINY").unwrap_or_default();
    let names = FAMILIES.iter().map(|(name, _)| *name).filter(|name| name.contains(&filter));
    let load = |name: &'static str| {
        let file = folder.join(format!("{name}.json"));
        let bytes =
            std::fs::read(&file).unwrap_or_else(|e| panic!("family `{name}` has no tests/data/tiny/{name}.json: {e}"));
        let (config, problems) = Config::parse(&format!("{name}.json"), &bytes);
        let config = config.unwrap_or_else(|| panic!("{problems}"));
        let loaded = families::load(&config, None).unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert!(loaded.resolved.diagnostics.is_empty(), "{name}: {:?}", loaded.resolved.diagnostics);
        (name, loaded.spec)
    };
    let all: Vec<_> = names.map(load).collect();
    assert!(!all.is_empty(), "NAPKIN_TINY={filter} is part of no family's name");
    all
}

/// Profiles the family has; the first is the one the others are held against.
fn profiles(spec: &ModelSpec) -> impl Iterator<Item = Profile> {
    let sdpa = spec.has_sdpa.then_some(Profile::HfSdpa);
    [Profile::HfEager, Profile::Fused].into_iter().chain(sdpa)
}

const RECOMPUTE: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

fn options(profile: Profile) -> StepOptions {
    StepOptions {
        batch: BATCH,
        seq_len: SEQ_LEN,
        profile,
        precision: Precision::Fp32,
        optimizer: "adamw".parse().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: if profile == Profile::HfEager { CastLists::Cpu } else { CastLists::Cuda },
        steps: 2,
        warm: false,
        dropout: true,
        objective: napkin_nn::Objective::DEFAULT,
        offload: napkin_nn::Offload::NONE,
        in_backward: false,
        until: Until::Optimizer,
    }
}

/// Every way to run a step of a family: `check` gets its name and its options. The families are shared by two threads.
fn every_step(check: impl Fn(&str, &ModelSpec, &StepOptions) + Sync) {
    let families = families();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, spec)) = families.get(next.fetch_add(1, Ordering::Relaxed)) {
                    every_step_of(name, spec, &check);
                }
            });
        }
    });
}

fn every_step_of(name: &str, spec: &ModelSpec, check: impl Fn(&str, &ModelSpec, &StepOptions)) {
    for profile in profiles(spec) {
        for (recompute, precision) in RECOMPUTE.iter().flat_map(|&r| Precision::ALL.map(|p| (r, p))) {
            // Recomputation with the two recipes that differ in how they cast, none of it with all.
            if recompute != Recompute::None && !matches!(precision, Precision::Fp32 | Precision::Bf16Mixed) {
                continue;
            }
            // States are made in the first step and there in the second, whatever is recomputed.
            let steps = if recompute == Recompute::None { 2 } else { 1 };
            let options = StepOptions { precision, recompute, steps, ..options(profile) };
            check(&format!("{name} {profile} {precision} recompute {}", recompute.name()), spec, &options);
        }
    }
}

fn trace(name: &str, device: Device, spec: &ModelSpec, options: &StepOptions) -> Trace {
    let runtime = Runtime::new(device);
    let traced = step::run(&runtime, spec, options).unwrap_or_else(|e| panic!("{name} on {device:?}: {e}"));
    assert_eq!(runtime.live_bytes(), 0, "{name} on {device:?}: bytes outlive the program");
    assert_eq!(runtime.tape_len(), 0, "{name} on {device:?}: ops are left on the tape");
    traced.trace
}

/// The event without the values that only a device with data is given.
fn without_data(event: &OpEvent) -> OpEvent {
    let mut event = event.clone();
    if let Op::Create(Create { fill: Fill::Data(data), .. }) = &mut event.ran_mut().op {
        *data = None;
    }
    event
}

/// Invariant 1. The trace of both.
fn assert_equal_traces(name: &str, spec: &ModelSpec, options: &StepOptions) -> Trace {
    let meta = trace(name, Device::Meta, spec, options);
    let cpu = trace(name, Device::Cpu, spec, options);
    for (i, (m, c)) in meta.ops.iter().zip(&cpu.ops).enumerate() {
        assert_eq!(*m, without_data(c), "{name}: op {i}");
    }
    for (i, (m, c)) in meta.memory.iter().zip(&cpu.memory).enumerate() {
        assert_eq!(m, c, "{name}: memory event {i}");
    }
    assert_eq!(meta.ops.len(), cpu.ops.len(), "{name}: number of ops");
    assert_eq!(meta.memory.len(), cpu.memory.len(), "{name}: number of memory events");
    assert_eq!(meta.storages, cpu.storages, "{name}: storages");
    assert_eq!(meta.modules, cpu.modules, "{name}: modules");
    assert_eq!(meta.marks, cpu.marks, "{name}: marks");
    meta
}

#[test]
fn meta_and_cpu_record_the_same_trace_and_leave_the_model_its_states_and_its_inputs() {
    every_step(|name, spec, options| {
        let trace = assert_equal_traces(name, spec, options);
        assert_only_states_outlive(name, &trace, options);
    });
}

#[test]
fn meta_and_cpu_record_the_same_trace_with_every_optimizer() {
    // Which family it is does not matter to an optimizer: where one is asked for that is no llama, the first.
    let mut all = families();
    let chosen = all.iter().position(|(name, _)| *name == "llama").unwrap_or(0);
    let (_, spec) = all.swap_remove(chosen);
    for kind in Kind::ALL {
        for implementation in [Implementation::Fused, Implementation::ForLoop, Implementation::ForEach] {
            for (precision, warm) in Precision::ALL.iter().flat_map(|&p| [(p, false), (p, true)]) {
                let optimizer = OptimizerKind { kind, implementation };
                let options =
                    StepOptions { optimizer, precision, warm, grad_accum_steps: 2, ..options(Profile::Fused) };
                assert_equal_traces(&format!("{optimizer} {precision} warm {warm}"), &spec, &options);
            }
        }
    }
}

/// What is alive behind each step: the model, its states, inputs and buffers.
fn assert_only_states_outlive(name: &str, trace: &Trace, options: &StepOptions) {
    let steps = trace.marks.iter().filter(|m| m.name.starts_with("zero")).count();
    assert_eq!(steps as u64, options.steps, "{name}");
    let mut live = vec![None; trace.storages.len()];
    for (i, event) in trace.memory.iter().enumerate() {
        live[event.storage.0 as usize] = match event.change {
            MemoryChange::Alloc(role) | MemoryChange::Role(role) => Some(role),
            MemoryChange::Free => None,
        };
        let next = i as u32 + 1;
        let at = trace.marks.iter().rposition(|m| m.memory <= i as u32).unwrap();
        let ends = trace.marks.get(at + 1).map_or(trace.memory.len() as u32, |m| m.memory) == next;
        if !ends || !trace.marks[at].name.starts_with("zero") {
            continue;
        }
        for (id, role) in live.iter().enumerate() {
            // Gradients collected in a wider type live in buffers that are set to zero.
            let wide = options.precision.grad_dtype() != options.precision.param_dtype();
            let stays = match role {
                None | Some(Role::Parameter | Role::OptimizerState | Role::Input | Role::Buffer) => true,
                Some(Role::Gradient) => wide,
                Some(_) => false,
            };
            let info = &trace.storages[id];
            assert!(
                stays,
                "{name}: {role:?} of {} B made in `{}` outlives {}",
                info.bytes,
                trace.module(info.module),
                trace.marks[at].name
            );
        }
    }
}

/// A model with weights that are all different from what they start as, and a fixed batch.
struct Bench {
    runtime: Runtime,
    model: Model,
    input: Tensor,
    labels: Tensor,
    profile: Profile,
    recompute: Recompute,
    dropout: bool,
}

impl Bench {
    fn new(spec: &ModelSpec, profile: Profile, recompute: Recompute, dropout: bool) -> Self {
        let runtime = Runtime::with_seed(Device::Cpu, 7);
        runtime.set_recording(false);
        if profile.is_hf() {
            runtime.set_accumulate(Accumulate::OutOfPlace);
            runtime.set_early_stop(true);
        }
        let model = Model::build(&runtime, spec, DType::F32).unwrap();
        runtime.no_grad(|| {
            for p in model.params() {
                let noise = runtime.randn(p.tensor.shape(), DType::F32).unwrap();
                p.tensor.detach().add_scaled_(&noise, 0.1).unwrap();
            }
        });
        let (mut input, mut labels) = step::example(&runtime, spec, BATCH, SEQ_LEN).unwrap();
        if input.dtype() == DType::I64 {
            let values: Vec<f64> = (0..BATCH * SEQ_LEN).map(|i| ((i * i + 3 * i) % spec.vocab_size) as f64).collect();
            input = runtime.input(&values, &[BATCH, SEQ_LEN], DType::I64).unwrap();
            if matches!(spec.task, Task::NextToken | Task::OwnToken) {
                labels = input.clone();
            }
        }
        Self { runtime, model, input, labels, profile, recompute, dropout }
    }

    /// Forward, loss, backward.
    fn loss(&self) -> f64 {
        let labels = Labels::Tokens(&self.labels);
        let seq_len = loss::positions(self.model.spec(), &self.input, labels);
        let mut f = Forward::new(&self.runtime, self.profile, self.recompute, BATCH, seq_len);
        f.training = self.dropout;
        let loss = loss::loss(&f, &self.model, &self.input, labels, HeadLoss::Whole).unwrap();
        loss.backward().unwrap();
        loss.item().unwrap()
    }

    fn gradients(&self) -> Vec<(String, Vec<f64>)> {
        let gradient = |t: &Tensor, name: &str| {
            let gradient = t.grad().unwrap_or_else(|| panic!("no gradient reached {name}"));
            gradient.to_vec().unwrap()
        };
        let unread = unread(self.model.spec());
        let learns = |p: &&Param| {
            let read = !unread.iter().any(|part| p.name == *part || p.name.starts_with(&format!("{part}.")));
            assert!(read || p.tensor.grad().is_none(), "a gradient reached {}, which no loss reads", p.name);
            // An indexer chooses keys without gradients.
            p.trainable && read && !p.name.contains(".indexer.")
        };
        let trained = self.model.params().iter().filter(learns);
        trained.map(|p| (p.name.clone(), gradient(&p.tensor, &p.name))).collect()
    }
}

/// Parameters and modules that no loss reads: poolers, parameters that stand in for masked positions, blocks that do not run
/// on a text.
fn unread(spec: &ModelSpec) -> Vec<String> {
    let runs = |i: &usize| spec.order.as_ref().is_none_or(|order| order.contains(i));
    let body = |name: String| if spec.names.body.is_empty() { name } else { format!("{}.{name}", spec.names.body) };
    let unused = spec.unused.iter().map(|one| body(one.name.to_owned()));
    let idle = (0..spec.layers.len()).filter(|i| !runs(i)).map(|i| body(format!("{}.{i}", spec.names.layers)));
    let counted = spec.layers.iter().enumerate().flat_map(|(i, layer)| {
        layer.counted.iter().map(move |one| body(format!("{}.{i}.{}", spec.names.layers, one.name)))
    });
    modules(&spec.pooler).into_iter().chain(unused).chain(idle).chain(counted).collect()
}

/// Names of the modules of a sequence.
fn modules(sequence: &[Piece]) -> Vec<String> {
    let names = |piece: &Piece| match piece {
        Piece::Linear(map) => vec![map.map.name.to_owned()],
        Piece::Norm(norm, _) | Piece::ChannelNorm(norm, _) => vec![norm.name.to_owned()],
        Piece::Conv(conv) => vec![conv.map.name.to_owned()],
        Piece::AttentionPool(pool) => vec![pool.name.to_owned()],
        Piece::Beside(inner) | Piece::Residual(inner) => modules(inner),
        _ => Vec::new(),
    };
    sequence.iter().flat_map(names).collect()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0f64, |m, x| m.max(x.abs()))
}

/// Largest difference, as a part of the largest element of `b`, or of `floor` if that is more: what is zero in exact
/// arithmetic (the gradient of a key bias: softmax does not see it) is rounding in both.
fn difference(a: &[f64], b: &[f64], floor: f64) -> f64 {
    let most = a.iter().zip(b).fold(0f64, |m, (x, y)| m.max((x - y).abs()));
    if most == 0.0 { 0.0 } else { most / largest(b).max(floor) }
}

/// The largest gradient of the weight beside a bias, 0 of anything else. What the one sums over positions, the other sums
/// times its input: where the first sum cancels, the second still has the scale of what was added, and rounded.
fn scale_of_bias(name: &str, gradients: &[(String, Vec<f64>)]) -> f64 {
    let Some(module) = name.strip_suffix(".bias") else { return 0.0 };
    let weight = gradients.iter().find(|(other, _)| other.strip_prefix(module) == Some(".weight"));
    weight.map_or(0.0, |(_, gradient)| largest(gradient))
}

/// Sums of at most a few hundred f32 products in different orders; measured: 5e-6.
const TOLERANCE: f64 = 5e-5;

#[test]
fn all_profiles_compute_the_same_loss_and_gradients() {
    let mut wrong = Vec::new();
    let mut worst = 0f64;
    for (name, spec) in families() {
        let reference = Bench::new(&spec, Profile::HfEager, Recompute::None, false);
        let (loss, gradients) = (reference.loss(), reference.gradients());
        let floor = 1e-3 * gradients.iter().map(|(_, g)| largest(g)).fold(0.0, f64::max);
        for profile in profiles(&spec).skip(1) {
            let bench = Bench::new(&spec, profile, Recompute::None, false);
            let other = bench.loss();
            if (loss - other).abs() > TOLERANCE * loss.abs() || !loss.is_finite() {
                wrong.push(format!("{name} {profile}: loss {other}, hf-eager {loss}"));
            }
            for ((param, got), (_, want)) in bench.gradients().iter().zip(&gradients) {
                let error = difference(got, want, floor.max(scale_of_bias(param, &gradients)));
                worst = worst.max(error);
                if error.is_nan() || error > TOLERANCE {
                    wrong.push(format!("{name} {profile}: gradient of {param} is off by {error:.1e}"));
                }
            }
        }
    }
    println!("largest difference {worst:.1e}");
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn recomputation_changes_no_number() {
    for (name, spec) in families() {
        for profile in profiles(&spec) {
            let reference = Bench::new(&spec, profile, Recompute::None, true);
            let (loss, gradients) = (reference.loss(), reference.gradients());
            for recompute in RECOMPUTE {
                let bench = Bench::new(&spec, profile, recompute, true);
                assert_eq!(bench.loss(), loss, "{name} {profile} {recompute:?}");
                assert_eq!(bench.gradients(), gradients, "{name} {profile} {recompute:?}");
            }
        }
    }
}

#[test]
fn training_lowers_the_loss() {
    for (name, spec) in families() {
        for profile in [Profile::Fused, Profile::HfEager] {
            let bench = Bench::new(&spec, profile, Recompute::None, false);
            let hyper = Hyper { lr: 1e-2, ..Hyper::default() };
            let mut optimizer = Optimizer::new("adamw".parse().unwrap(), hyper, false);
            let mut losses = Vec::new();
            for _ in 0..6 {
                losses.push(bench.loss());
                bench.runtime.begin("opt", Phase::Optimizer);
                optimizer.step(bench.model.params()).unwrap();
                for p in bench.model.params() {
                    p.tensor.zero_grad();
                }
            }
            assert!(losses[5] < 0.9 * losses[0], "{name} {profile}: {losses:?}");
        }
    }
}
