//! Models divided over ranks that are threads: every small family that can be divided has the loss and the gradients of the
//! whole model, and what all ranks hold together is the whole model, with what they hold alike said.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod stages;

use napkin_nn::config::Config;
use napkin_nn::families::{self, FAMILIES};
use napkin_nn::optim::Hyper;
use napkin_nn::spec::{FeedForwardSpec, FusedOrder, MlpInput, Projection, Task};
use napkin_nn::step::{self, Precision, StepOptions};
use napkin_nn::{
    HeadLoss, Labels, ModelSpec, Objective, Param, ParamKind, Profile, Ranks, Recompute, Share, Training,
    TrainingOptions,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread;
use tensor::collective::{Local, Ranks as Threads};
use tensor::{Axis, CastLists, DType, Device, Runtime, Tensor};

const BATCH: u64 = 2;
const SEQ_LEN: u64 = 8;

type Tensors = BTreeMap<String, (Vec<u64>, Vec<f64>)>;

/// A registered family, small.
fn load(name: &str) -> ModelSpec {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
    let bytes = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
    let config = Config::parse(&format!("{name}.json"), &bytes).0.unwrap();
    // Their vocabularies are odd numbers, which ranks fill up.
    ModelSpec { vocab_size: 32, ..families::load(&config, None).unwrap().spec }
}

/// Every one of them.
fn families() -> impl Iterator<Item = (&'static str, ModelSpec)> {
    FAMILIES.iter().map(|(name, _)| (*name, load(name)))
}

fn options(profile: Profile) -> TrainingOptions {
    TrainingOptions {
        profile,
        precision: Precision::Fp32,
        optimizer: "adamw".parse().unwrap(),
        hyper: Hyper::default(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        dropout: false,
        clip_norm: None,
        objective: Objective::DEFAULT,
        stochastic_rounding: false,
    }
}

fn is_expert(param: &Param) -> bool {
    matches!(param.kind, ParamKind::Expert { .. })
}

/// One step up to the gradients that the optimizer would see: loss, the gradient of every parameter, and which are experts'.
fn gradients(
    spec: &ModelSpec,
    profile: Profile,
    (batch, first): (u64, u64),
    peers: Option<Local>,
    start: impl Fn(&Param) -> Vec<f64>,
) -> (f64, Tensors, BTreeMap<String, bool>) {
    let runtime = Runtime::with_seed(Device::Cpu, 7);
    runtime.set_recording(false);
    if let Some(peers) = peers {
        runtime.set_peers(Rc::new(peers));
    }
    // Who gathers again divides the loss by its own code, too.
    let head = if spec.gathers_again { HeadLoss::Parallel } else { HeadLoss::Whole };
    let objective = Objective { head, ..Objective::DEFAULT };
    let mut training = Training::new(&runtime, spec, &TrainingOptions { objective, ..options(profile) }).unwrap();
    runtime.no_grad(|| {
        for param in training.model().params() {
            let values = runtime.tensor(&start(param), &param.shape, DType::F32).unwrap();
            param.tensor.detach().copy_(&values).unwrap();
        }
    });
    // The vocabulary of a part may be filled up: only tokens of the small one are used.
    let ids: Vec<f64> =
        (0..batch * SEQ_LEN).map(|i| i + first * SEQ_LEN).map(|i| ((i * i + 3 * i) % 13) as f64).collect();
    let tokens = runtime.input(&ids, &[batch, SEQ_LEN], DType::I64).unwrap();
    let loss = training.forward(&tokens, Labels::Tokens(&tokens)).unwrap();
    let value = loss.item().unwrap();
    training.backward(loss, 1.0).unwrap();
    training.add_up_gradients().unwrap();
    let of = |t: &Tensor| t.grad().map(|g| (g.shape().to_vec(), g.to_vec().unwrap()));
    let params = training.model().params();
    let all = params.iter().filter_map(|p| Some((p.name.clone(), of(&p.tensor)?))).collect();
    (value, all, params.iter().map(|p| (p.name.clone(), is_expert(p))).collect())
}

/// Along the dimension in which a part differs: widths of the pieces of the whole, each of which is divided by itself.
fn pieces(spec: &ModelSpec, name: &str, size: u64) -> Vec<u64> {
    for layer in &spec.layers {
        if let Some(attention) = layer.attention()
            && let Projection::Fused { qkv, order: FusedOrder::Blocks } = &attention.projection
            && name.contains(&format!(".{}.", qkv.name))
        {
            let (k, d) = (attention.kv_heads, attention.head_dim);
            return vec![attention.heads * d, k * d, k * attention.value_dim];
        }
        let mut mlps = Vec::new();
        match &layer.feed_forward {
            FeedForwardSpec::Mlp(mlp) => mlps.push(mlp),
            FeedForwardSpec::Moe(moe) => mlps.extend(moe.shared.as_ref().map(|shared| &shared.mlp)),
            _ => {}
        }
        for mlp in mlps {
            if let MlpInput::GatedFused(both) = &mlp.input
                && name.contains(&format!(".{}.", both.name))
                && size == 2 * mlp.intermediate_size
            {
                return vec![mlp.intermediate_size; 2];
            }
        }
    }
    vec![size]
}

/// The part of `place` of a tensor of the whole model.
fn part(spec: &ModelSpec, name: &str, (whole, values): &(Vec<u64>, Vec<f64>), shape: &[u64], place: u64) -> Vec<f64> {
    let Some(dim) = (0..shape.len()).find(|&d| whole[d] != shape[d]) else { return values.clone() };
    let rt = Runtime::new(Device::Cpu);
    let tensor = rt.tensor(values, whole, DType::F64).unwrap();
    let ranks = whole[dim] / shape[dim];
    let (mut start, mut parts) = (0, Vec::new());
    for width in pieces(spec, name, whole[dim]) {
        let own = width / ranks;
        parts.push(tensor.narrow(dim as isize, start + place * own, own).unwrap());
        start += width;
    }
    let joined = Tensor::cat(&parts.iter().collect::<Vec<_>>(), dim as isize).unwrap();
    assert_eq!(joined.shape(), shape, "{name}");
    joined.to_vec().unwrap()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0f64, |m, x| m.max(x.abs()))
}

/// The whole model with weights all different from what they start as.
fn whole(spec: &ModelSpec) -> Tensors {
    let runtime = Runtime::with_seed(Device::Cpu, 7);
    let training = Training::new(&runtime, spec, &options(Profile::Fused)).unwrap();
    runtime.no_grad(|| {
        let disturbed = |p: &Param| {
            let noise = runtime.randn(p.tensor.shape(), DType::F32).unwrap().mul_scalar(0.1).unwrap();
            let values = p.tensor.detach().add(&noise).unwrap().to_vec().unwrap();
            (p.name.clone(), (p.shape.clone(), values))
        };
        training.model().params().iter().map(disturbed).collect()
    })
}

/// Runs the parts of all ranks and holds them against the whole. `replicas`: ranks along tp see the same sequences, those
/// along dp other ones.
fn check(name: &str, ranks: Ranks, dp: u64, profile: Profile) -> bool {
    check_gathering(name, ranks, dp, profile, false)
}

/// The same, of ranks that may gather again in backward what the profile keeps.
fn check_gathering(name: &str, ranks: Ranks, dp: u64, profile: Profile, again: bool) -> bool {
    let spec = &load(name);
    if spec.share(ranks).is_err() {
        return false;
    }
    let params = whole(spec);
    let start = |param: &Param| params[&param.name].1.clone();
    let (loss, expected, _) = gradients(spec, profile, (BATCH, 0), None, start);
    let stage = ranks.tp * dp;
    let inner = stage / (ranks.ep * ranks.etp);
    let expert = [(Axis::Etp, ranks.etp), (Axis::Ep, ranks.ep), (Axis::ExpertDp, inner)];
    let threads = Threads::in_orders(&[&[(Axis::Tp, ranks.tp), (Axis::Dp, dp)], &expert]);
    let results = thread::scope(|scope| {
        let run = |rank: u64| {
            let (threads, params) = (&threads, &params);
            scope.spawn(move || {
                let spec = &load(name);
                let own = ModelSpec { gathers_again: again, ..spec.share(ranks).unwrap() };
                let (tp, ep) = (rank % ranks.tp, rank / ranks.etp % ranks.ep);
                let start = |param: &Param| {
                    part(spec, &param.name, &params[&param.name], &param.shape, if is_expert(param) { ep } else { tp })
                };
                let batch = (BATCH / dp, rank / ranks.tp * (BATCH / dp));
                gradients(&own, profile, batch, Some(threads.peers(rank)), start)
            })
        };
        let all: Vec<_> = (0..stage).map(run).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let what = format!("{name} {profile} {ranks:?} dp {dp}");
    let mean = results.iter().map(|(loss, ..)| loss).sum::<f64>() / stage as f64;
    assert!((mean - loss).abs() < 1e-5 * loss.abs(), "{what}: loss {mean}, of the whole {loss}");
    let floor = 1e-3 * expected.values().map(|(_, g)| largest(g)).fold(0.0, f64::max);
    for (param, whole) in &expected {
        for (rank, (_, gradients, experts)) in results.iter().enumerate() {
            let rank = rank as u64;
            let (shape, _) = &gradients[param];
            let is_expert = experts[param];
            let place = if is_expert { rank / ranks.etp % ranks.ep } else { rank % ranks.tp };
            let want = part(spec, param, whole, shape, place);
            // Replicas take the mean over their own sequences, and ranks with other positions see other rows of an expert.
            let place_of = |rank: u64| if is_expert { rank / ranks.etp % ranks.ep } else { rank % ranks.tp };
            let alike = (0..stage).filter(|&other| place_of(other) == place);
            let alike: Vec<&Vec<f64>> = alike.map(|other| &results[other as usize].1[param].1).collect();
            let sum = |i: usize| alike.iter().map(|g| g[i]).sum::<f64>() / dp as f64;
            let most = want.iter().enumerate().fold(0f64, |m, (i, w)| m.max((sum(i) - w).abs()));
            let scale = param.strip_suffix(".bias").and_then(|module| expected.get(&format!("{module}.weight")));
            let scale = scale.map_or(0.0, |(_, g)| largest(g)).max(largest(&whole.1)).max(floor);
            assert!(most <= 3e-5 * scale, "{what}: gradient of {param} on rank {rank} is off by {:.1e}", most / scale);
        }
    }
    true
}

/// Families of which ranks can have parts, by what was tried.
fn divided(ranks: Ranks, dp: u64) -> Vec<&'static str> {
    let mut names = Vec::new();
    for (name, _) in FAMILIES {
        let all = [Profile::Fused, Profile::HfEager].into_iter().map(|profile| check(name, ranks, dp, profile));
        if all.fold(false, |any, one| any | one) {
            names.push(*name);
        }
    }
    println!("{ranks:?} dp {dp}: {names:?}");
    names
}

#[test]
fn matrices_over_two_ranks() {
    let names = divided(Ranks { tp: 2, ..Ranks::ALONE }, 1);
    for family in ["llama", "gpt2", "gpt_neox", "gemma2", "qwen3", "phi3", "starcoder2", "minicpm3"] {
        assert!(names.contains(&family), "{family} can be divided");
    }
}

#[test]
fn positions_over_the_ranks_that_share_matrices() {
    let names = divided(Ranks { tp: 2, sp: true, ..Ranks::ALONE }, 1);
    for family in ["llama", "gpt2", "gemma2", "qwen3", "mixtral", "deepseek_v3"] {
        assert!(names.contains(&family), "{family} can be divided");
    }
}

#[test]
fn positions_that_are_gathered_again() {
    for family in ["llama", "gemma2", "qwen3"] {
        assert!(
            check_gathering(family, Ranks { tp: 2, sp: true, ..Ranks::ALONE }, 1, Profile::HfSdpa, true),
            "{family}"
        );
    }
}

/// Each is a sum of the same numbers in the same order.
#[test]
fn gradients_that_are_added_late_are_the_same() {
    let spec = load("llama");
    let gradients = |late: bool| -> Vec<Option<Vec<f64>>> {
        let runtime = Runtime::with_seed(Device::Cpu, 7);
        let precision = Precision::Bf16MasterFp32Grads;
        let options = TrainingOptions { precision, grad_accum_steps: 2, ..options(Profile::HfSdpa) };
        let mut training = Training::new(&runtime, &spec, &options).unwrap();
        for first in [0, SEQ_LEN] {
            let ids: Vec<f64> = (first..first + SEQ_LEN).map(|i| ((i * i + 3 * i) % 13) as f64).collect();
            let tokens = runtime.input(&ids, &[1, SEQ_LEN], DType::I64).unwrap();
            let loss = training.forward(&tokens, Labels::Tokens(&tokens)).unwrap();
            if late {
                training.accumulate_late(|training| training.backward(loss, 0.5)).unwrap();
            } else {
                training.backward(loss, 0.5).unwrap();
            }
        }
        let of = |p: &Param| p.tensor.grad().map(|g| (g.dtype(), g.to_vec().unwrap()));
        training
            .model()
            .params()
            .iter()
            .map(|p| {
                of(p).map(|(dtype, g)| {
                    assert_eq!(dtype, DType::F32);
                    g
                })
            })
            .collect()
    };
    let (late, at_once) = (gradients(true), gradients(false));
    assert!(at_once.iter().flatten().flatten().any(|value| *value != 0.0));
    assert_eq!(late, at_once);
}

#[test]
fn experts_over_replicas() {
    let names = divided(Ranks { ep: 2, ..Ranks::ALONE }, 2);
    for family in ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "dbrx"] {
        assert!(names.contains(&family), "{family} can be divided");
    }
}

#[test]
fn experts_over_the_ranks_that_share_matrices() {
    let names = divided(Ranks { tp: 2, sp: true, ep: 2, ..Ranks::ALONE }, 1);
    for family in ["mixtral", "qwen3_moe", "deepseek_v3"] {
        assert!(names.contains(&family), "{family} can be divided");
    }
}

/// Positions of a rank: a run of them; where keys and values go round, one part from the front and the one as far from the end.
fn positions(ranks: Ranks, place: u64) -> Vec<u64> {
    if !ranks.ring {
        let len = SEQ_LEN / ranks.cp;
        return (place * len..(place + 1) * len).collect();
    }
    let half = SEQ_LEN / ranks.cp / 2;
    [place, 2 * ranks.cp - 1 - place].into_iter().flat_map(|part| part * half..(part + 1) * half).collect()
}

#[test]
fn positions_over_ranks_that_exchange_heads() {
    let names = sequences_divided(Ranks { cp: 2, ..Ranks::ALONE });
    assert!(["llama", "qwen3", "mixtral", "deepseek_v3"].iter().all(|name| names.contains(name)), "{names:?}");
}

#[test]
fn positions_over_ranks_that_keys_and_values_go_round() {
    for cp in [2, 4] {
        let names = sequences_divided(Ranks { cp, ring: true, ..Ranks::ALONE });
        assert!(["llama", "qwen3", "deepseek_v3"].iter().all(|name| names.contains(name)), "{cp}: {names:?}");
    }
}

/// What a rank of a ring computes and sends: as much as all others, and together the products of the whole, pair by pair.
#[test]
fn ranks_of_a_ring_compute_the_whole_together() {
    let spec = load("llama");
    let whole = step::trace(&spec, &step_options(Profile::Fused)).unwrap().trace.cost(|_| true);
    for cp in [2, 4] {
        let own = spec.share(Ranks { cp, ring: true, ..Ranks::ALONE }).unwrap();
        let options = StepOptions { seq_len: SEQ_LEN / cp, ..step_options(Profile::Fused) };
        let cost = step::trace(&own, &options).unwrap().trace.cost(|_| true);
        assert_eq!(cost.matmul * u128::from(cp), whole.matmul, "cp {cp}");
        assert!(cost.sent > 0 && cost.sent == cost.received, "{} sent, {} received", cost.sent, cost.received);
    }
}

/// Ranks that share a sequence have the loss and gradients of the whole: means over their positions, averaged. The families
/// that can be divided so.
fn sequences_divided(ranks: Ranks) -> Vec<&'static str> {
    let mut names = Vec::new();
    for (name, _) in FAMILIES {
        let spec = &load(name);
        if spec.share(ranks).is_err() {
            continue;
        }
        let params = &whole(spec);
        let run = |spec: &ModelSpec, part: Option<u64>, peers: Option<Local>| {
            let runtime = Runtime::with_seed(Device::Cpu, 7);
            runtime.set_recording(false);
            if let Some(peers) = peers {
                runtime.set_peers(Rc::new(peers));
            }
            let mut training = Training::new(&runtime, spec, &options(Profile::Fused)).unwrap();
            runtime.no_grad(|| {
                for param in training.model().params() {
                    let values = runtime.tensor(&params[&param.name].1, &param.shape, DType::F32).unwrap();
                    param.tensor.detach().copy_(&values).unwrap();
                }
            });
            let id = |i: u64| ((i * i + 3 * i) % 13) as f64;
            let own = part.map_or((0..SEQ_LEN).collect(), |part| positions(ranks, part));
            let ids = |shift: u64| {
                let row = |b: u64| own.iter().map(move |i| id(b * 5 + i + shift));
                let shape = [BATCH, own.len() as u64];
                runtime.input(&(0..BATCH).flat_map(row).collect::<Vec<f64>>(), &shape, DType::I64).unwrap()
            };
            let loss = training.forward(&ids(0), Labels::Targets(&ids(1))).unwrap();
            let value = loss.item().unwrap();
            training.backward(loss, 1.0).unwrap();
            let of = |t: &Tensor| t.grad().map(|g| g.to_vec().unwrap());
            let all = training.model().params().iter().filter_map(|p| Some((p.name.clone(), of(&p.tensor)?)));
            (value, all.collect::<BTreeMap<_, _>>())
        };
        let (loss, expected) = run(spec, None, None);
        let threads = Threads::new(&[(Axis::Cp, ranks.cp)]);
        let results = thread::scope(|scope| {
            let run = |rank: u64| {
                let (threads, run) = (&threads, &run);
                scope.spawn(move || run(&load(name).share(ranks).unwrap(), Some(rank), Some(threads.peers(rank))))
            };
            let all: Vec<_> = (0..ranks.cp).map(run).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let mean = results.iter().map(|(loss, _)| loss).sum::<f64>() / ranks.cp as f64;
        assert!((mean - loss).abs() < 1e-5 * loss.abs(), "{name}: loss {mean}, of the whole {loss}");
        let floor = 1e-3 * expected.values().map(|g| largest(g)).fold(0.0, f64::max);
        for (param, want) in &expected {
            let got = |i: usize| results.iter().map(|(_, all)| all[param][i]).sum::<f64>() / ranks.cp as f64;
            let most = want.iter().enumerate().fold(0f64, |m, (i, w)| m.max((got(i) - w).abs()));
            let scale = param.strip_suffix(".bias").and_then(|module| expected.get(&format!("{module}.weight")));
            let scale = scale.map_or(0.0, |g| largest(g)).max(largest(want)).max(floor);
            assert!(most <= 3e-5 * scale, "{name}: gradient of {param} is off by {:.1e}", most / scale);
        }
        names.push(*name);
    }
    println!("{names:?}");
    names
}

fn step_options(profile: Profile) -> StepOptions {
    StepOptions {
        batch: BATCH,
        steps: 2,
        warm: false,
        ..StepOptions::usual(SEQ_LEN, profile, Precision::Bf16MasterFp32Grads)
    }
}

/// Conservation: what the ranks hold and compute is the whole, and what they hold or compute alike has a name.
#[test]
fn the_parts_of_all_ranks_are_the_whole() {
    let mut compared = 0;
    for (name, spec) in families() {
        for (tp, sp, ep, etp) in [(2, false, 1, 1), (2, true, 1, 1), (1, false, 2, 1), (2, true, 2, 2), (4, true, 1, 4)]
        {
            let ranks = Ranks { tp, sp, ep, etp, ..Ranks::ALONE };
            let Ok(own) = spec.share(ranks) else { continue };
            let what = format!("{name} {ranks:?}");
            let (all, parts) = (step::parameters(&spec).unwrap(), step::parameters(&own).unwrap());
            assert_eq!(all.len(), parts.len(), "{what}");
            for (whole, part) in all.iter().zip(&parts) {
                assert_eq!(whole.name, part.name, "{what}");
                let over = match (part.share, part.kind) {
                    (Share::Part, ParamKind::Expert { .. }) => ep * etp,
                    (Share::Part, _) => tp,
                    (Share::Whole | Share::Alike | Share::Inside, _) => 1,
                };
                assert_eq!(part.elements * over, whole.elements, "{what}: {}", part.name);
            }
            let options = step_options(Profile::Fused);
            let [whole, part] = [&spec, &own].map(|spec| step::trace(spec, &options).unwrap());
            // All products of maps that are divided are the whole's; what every rank does alike is what is not divided.
            let flop = |traced: &step::StepTrace, inside: bool| {
                let divided: Vec<&str> = parts
                    .iter()
                    .filter(|p| p.share == Share::Whole && p.shape.len() == 2)
                    .map(|p| p.name.rsplit_once('.').map_or("", |(module, _)| module))
                    .collect();
                let alike = |path: &str| divided.contains(&path);
                traced.trace.cost(|event| alike(traced.trace.module(event.module)) != inside).matmul
            };
            let tokens_each = if tp > 1 && !sp { 1 } else { u128::from(tp) };
            let expert_ranks = u128::from(if tp > 1 { tp } else { 1 });
            assert_eq!(flop(&part, true) * expert_ranks, flop(&whole, true), "{what}: products of what is divided");
            assert_eq!(flop(&part, false) * tokens_each, flop(&whole, false), "{what}: products of what is not");
            let wire = part.trace.cost(|_| true);
            assert!(
                wire.sent > 0 && wire.sent == wire.received,
                "{what}: {} sent, {} received",
                wire.sent,
                wire.received
            );
            compared += 1;
        }
    }
    println!("{compared} compared");
    assert!(compared >= 100, "{compared}");
}

/// Invariant 1, on the first of two ranks.
#[test]
fn meta_and_cpu_record_the_same_trace_on_a_rank() {
    for (name, _) in FAMILIES {
        for (sp, profile) in [(false, Profile::Fused), (true, Profile::Fused), (true, Profile::HfEager)] {
            let ranks = Ranks { tp: 2, sp, ..Ranks::ALONE };
            let Ok(own) = load(name).share(ranks) else { continue };
            let options = StepOptions { autocast: CastLists::Cpu, ..step_options(profile) };
            let meta = step::trace(&own, &options).unwrap().trace;
            let threads = Threads::new(&[(Axis::Tp, 2)]);
            let run = |rank: u64| {
                let own = load(name).share(ranks).unwrap();
                let runtime = Runtime::new(Device::Cpu);
                runtime.set_peers(Rc::new(threads.peers(rank)));
                step::run(&runtime, &own, &options).unwrap().trace
            };
            let cpu = thread::scope(|scope| {
                let other = scope.spawn(|| drop(run(1)));
                let own = run(0);
                other.join().unwrap();
                own
            });
            assert_eq!(meta.ops.len(), cpu.ops.len(), "{name} {profile} sp {sp}");
            for (i, (m, c)) in meta.ops.iter().zip(&cpu.ops).enumerate() {
                assert_eq!(
                    (m.cost, &m.outputs, m.phase),
                    (c.cost, &c.outputs, c.phase),
                    "{name} {profile} sp {sp}: op {i}"
                );
            }
            assert_eq!(meta.memory, cpu.memory, "{name} {profile} sp {sp}");
        }
    }
}
