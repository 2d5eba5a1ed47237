//! Linear maps in 8-bit floats: against PyTorch's types (`reference.py`), in a whole model, and what they leave behind.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::fp8::{DelayedScaling, Fp8};
use napkin_nn::optim::Hyper;
use napkin_nn::step::{self, Precision, StepOptions, Until};
use napkin_nn::training::{Labels, Training, TrainingOptions};
use napkin_nn::{Forward, ModelSpec, Param, ParamKind, Profile, Recompute, families};
use tensor::meter::MemoryChange;
use tensor::{CastLists, DType, Device, Role, Runtime, Tensor};

const REFERENCE: &str = include_str!("reference.txt");

fn formula(rt: &Runtime, shape: &[u64], a: f64, b: f64, size: f64) -> Tensor {
    let count = shape.iter().product::<u64>();
    let values: Vec<f64> = (0..count).map(|i| size * (a * i as f64 + b).sin()).collect();
    rt.tensor(&values, shape, DType::F32).unwrap()
}

/// Holds every so manieth number against a line of the reference.
#[track_caller]
fn assert_line(step: u64, what: &str, got: &Tensor) {
    let start = format!("{step} {what} ");
    let line = REFERENCE.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
    let want: Vec<f64> = line.split(' ').map(|x| x.parse().unwrap()).collect();
    let values = got.to_vec().unwrap();
    let got: Vec<f64> = values.iter().copied().step_by((values.len() / 12).max(1)).collect();
    assert_eq!(got.len(), want.len(), "{start}");
    let largest = want.iter().fold(0f64, |m, x| m.max(x.abs()));
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() <= 2e-6 * largest, "{start}: {got}, reference {want} of {largest}");
    }
}

/// Seven steps whose numbers rise and fall by orders of magnitude, with a history of three.
#[test]
fn a_linear_map_equals_the_reference() {
    for transposed in [false, true] {
        let rt = Runtime::new(Device::Cpu);
        let shape = if transposed { [32, 16] } else { [16, 32] };
        let weight = rt.zeros(&shape, DType::F32).unwrap().require_grad().unwrap();
        let param = Param::new("w", weight.clone(), ParamKind::Matrix);
        let fp8 = Fp8::new(&rt, &[param], DelayedScaling { amax_history_len: 3, margin: 0 }).unwrap();
        let mut f = Forward::new(&rt, Profile::Fused, Recompute::None, 1, 5);
        f.compute = Some(DType::F32);
        for step in 1..=7 {
            let t = step as f64;
            let size = 10f64.powf(2.0 * (1.1 * t).sin());
            let x = formula(&rt, &[1, 5, 32], 0.7, t, size).require_grad().unwrap();
            let w = formula(&rt, &[16, 32], 1.3, 0.1 * t, 0.3);
            weight.detach().copy_(&if transposed { w.t().unwrap() } else { w }).unwrap();
            weight.zero_grad();
            let bias = formula(&rt, &[16], 0.5, t, 1.0).require_grad().unwrap();
            let casts = fp8.casts(true).unwrap();
            let y = casts.linear(&f, &x, &weight, Some(&bias), transposed).unwrap().unwrap();
            assert_eq!(y.shape(), [1, 5, 16]);
            assert_line(step, "y", &y);
            y.backward_with(formula(&rt, &[1, 5, 16], 0.9, 2.0 * t, 1e-6 * size)).unwrap();
            assert_line(step, "dx", &x.grad().unwrap());
            let dw = weight.grad().unwrap();
            assert_line(step, "dw", &if transposed { dw.t().unwrap() } else { dw });
            assert_line(step, "db", &bias.grad().unwrap());
            fp8.advance(step).unwrap();
            assert_line(step, "scale", &fp8.state_tensors()[0].1);
        }
    }
}

/// A margin leaves room; what is not finite is forgotten; a step of zeros changes nothing.
#[test]
fn scales_follow_from_what_was_met() {
    let scales = |margin, sizes: &[f64]| {
        let rt = Runtime::new(Device::Cpu);
        let tensor = rt.zeros(&[16, 16], DType::F32).unwrap().require_grad().unwrap();
        let kind = ParamKind::Matrix;
        let param = Param::new("w", tensor.clone(), kind);
        let fp8 = Fp8::new(&rt, &[param], DelayedScaling { amax_history_len: 2, margin }).unwrap();
        let f = Forward::new(&rt, Profile::Fused, Recompute::None, 1, 1);
        for (step, size) in (1..).zip(sizes) {
            let x = rt.full(&[1, 1, 16], *size, DType::F32).unwrap();
            fp8.casts(true).unwrap().linear(&f, &x, &tensor, None, false).unwrap();
            fp8.advance(step).unwrap();
        }
        fp8.state_tensors()[0].1.to_vec().unwrap()[0]
    };
    for (margin, sizes, wanted) in [
        (0, &[2.0][..], 224.0),
        (1, &[2.0], 112.0),
        (0, &[2.0, f64::INFINITY], 224.0),
        (0, &[2.0, f64::NAN], 224.0),
        (0, &[2.0, 1.0], 224.0),
        (0, &[2.0, 1.0, 1.0], 448.0),
        (0, &[2.0, 0.0, 0.0], 224.0),
        (0, &[1e-38], 0.0),
    ] {
        assert_eq!(scales(margin, sizes), wanted, "margin {margin}, {sizes:?}");
    }
}

/// Weights that are no matrices of blocks, or of sizes without products in 8 bits, are left to others.
#[test]
fn what_does_not_take_part_is_left_alone() {
    let rt = Runtime::new(Device::Cpu);
    for (kind, shape) in [(ParamKind::Head, [32, 16]), (ParamKind::Matrix, [24, 16]), (ParamKind::Matrix, [1, 32])] {
        let tensor = rt.zeros(&shape, DType::F32).unwrap().require_grad().unwrap();
        let param = Param::new("w", tensor.clone(), kind);
        let fp8 = Fp8::new(&rt, &[param], DelayedScaling::default()).unwrap();
        let f = Forward::new(&rt, Profile::Fused, Recompute::None, 1, 1);
        let x = rt.zeros(&[1, 1, shape[1]], DType::F32).unwrap();
        assert!(fp8.casts(true).unwrap().linear(&f, &x, &tensor, None, false).unwrap().is_none(), "{kind:?} {shape:?}");
        fp8.advance(1).unwrap();
    }
}

fn spec() -> ModelSpec {
    let text = br#"{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48, "vocab_size": 40, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;
    let (config, problems) = Config::parse("config.json", text);
    families::load(&config.unwrap_or_else(|| panic!("{problems}")), None).unwrap().spec
}

fn training(precision: Precision, recompute: Recompute) -> Training {
    accumulating(precision, recompute, 1)
}

fn accumulating(precision: Precision, recompute: Recompute, grad_accum_steps: u64) -> Training {
    let options = TrainingOptions {
        profile: Profile::Fused,
        precision,
        optimizer: "adamw".parse().unwrap(),
        hyper: Hyper::default(),
        recompute,
        grad_accum_steps,
        autocast: CastLists::Cpu,
        dropout: false,
        clip_norm: None,
        objective: napkin_nn::Objective::DEFAULT,
        stochastic_rounding: false,
    };
    Training::new(&Runtime::with_seed(Device::Cpu, 5), &spec(), &options).unwrap()
}

fn batch(training: &Training, first: u64) -> (Tensor, Tensor) {
    let rt = training.model().params()[0].tensor.runtime();
    let token = |i: u64| ((i * i + 3 * i) % 40) as f64;
    let of = |from: u64| rt.input(&(from..from + 24).map(token).collect::<Vec<_>>(), &[2, 12], DType::I64).unwrap();
    (of(first), of(first + 1))
}

fn backward(training: &mut Training) -> f64 {
    backward_of(training, 0, 1.0)
}

fn backward_of(training: &mut Training, first: u64, share: f64) -> f64 {
    let (tokens, targets) = batch(training, first);
    let loss = training.forward(&tokens, Labels::Targets(&targets)).unwrap();
    let value = loss.item().unwrap();
    training.backward(loss, share).unwrap();
    value
}

fn gradients(training: &Training) -> Vec<(String, Vec<f64>)> {
    let params = training.model().params();
    params.iter().map(|p| (p.name.clone(), p.tensor.grad().unwrap().to_vec().unwrap())).collect()
}

/// What a bit less in every product costs: with copies of bf16 in the place of those of 8 bits, the cosines are above
/// 0.999.
#[test]
fn gradients_point_where_those_of_f32_do() {
    let (mut wide, mut narrow) =
        (training(Precision::Fp32, Recompute::None), training(Precision::Fp8, Recompute::None));
    let (a, b) = (backward(&mut wide), backward(&mut narrow));
    assert!((a - b).abs() < 1e-2 * a, "loss {b}, in f32 {a}");
    for ((name, wide), (_, narrow)) in gradients(&wide).iter().zip(&gradients(&narrow)) {
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let cosine = dot(wide, narrow) / (dot(wide, wide) * dot(narrow, narrow)).sqrt();
        assert!(cosine > 0.92, "{name}: {cosine}");
    }
    narrow.update(1e-3).unwrap();
    let scales = state(&narrow, "scale");
    let unmet: Vec<usize> = (0..scales.len()).filter(|i| scales[*i] == 0.0).collect();
    // Of three scales for each of q, k, v, out, gate, up, down: k and v have the input of q, up that of gate.
    assert_eq!(unmet, [3, 6, 15, 24, 27, 36]);
}

/// A batch is learned by heart in 8 bits as it is in f32.
#[test]
fn a_batch_is_learned() {
    let run = |precision| {
        let mut training = training(precision, Recompute::None);
        for _ in 0..60 {
            backward(&mut training);
            training.update(1e-2).unwrap();
        }
        backward(&mut training)
    };
    let (wide, narrow) = (run(Precision::Fp32), run(Precision::Fp8));
    assert!(wide < 0.1 && narrow < 0.1, "loss {narrow}, in f32 {wide}, of 3.7 for a guess");
}

fn state(training: &Training, name: &str) -> Vec<f64> {
    let states = training.state_tensors();
    states.iter().find(|(of, slot, _)| of == "fp8" && *slot == name).unwrap().2.to_vec().unwrap()
}

/// A recomputed forward meets the same magnitudes again and makes the same numbers.
#[test]
fn recomputation_changes_no_number() {
    let run = |recompute| {
        let mut training = training(Precision::Fp8, recompute);
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push((backward(&mut training), gradients(&training)));
            training.update(1e-3).unwrap();
        }
        (all, state(&training, "scale"), state(&training, "amax_history"))
    };
    let plain = run(Recompute::None);
    assert_eq!(run(Recompute::Full), plain);
    assert_eq!(run(Recompute::Selective), plain);
}

/// The micro-batches of a step are one: the largest magnitude of all of them is noted. Half the loss has half the gradients.
#[test]
fn micro_batches_are_noted_together() {
    let noted = |batches: &[u64]| {
        let mut training = accumulating(Precision::Fp8, Recompute::None, batches.len() as u64);
        for first in batches {
            backward_of(&mut training, *first, 1.0 / batches.len() as f64);
        }
        training.update(1e-3).unwrap();
        state(&training, "amax_history")
    };
    let (a, b) = (noted(&[0]), noted(&[5]));
    let largest = a.iter().zip(&b).enumerate().map(|(i, (a, b))| a.max(*b) * if i % 3 == 2 { 0.5 } else { 1.0 });
    assert_eq!(noted(&[0, 5]), largest.collect::<Vec<_>>());
    assert_ne!(a, b);
}

/// Evaluation casts with the scales of training and leaves them, and what is noted for the next step, alone.
#[test]
fn evaluation_leaves_no_trace() {
    let run = |evaluate: bool| {
        let mut training = training(Precision::Fp8, Recompute::None);
        for _ in 0..2 {
            let loss = backward(&mut training);
            if evaluate {
                let (tokens, targets) = batch(&training, 0);
                let again = training.evaluate(&tokens, Labels::Targets(&targets)).unwrap().item().unwrap();
                assert_eq!(again, loss);
            }
            training.update(1e-3).unwrap();
        }
        (state(&training, "scale"), state(&training, "amax_history"))
    };
    assert_eq!(run(true), run(false));
}

/// Inputs of linear maps are kept for backward in one byte instead of two, once for maps side by side.
#[test]
fn eight_bits_are_kept_for_backward() {
    let kept = |precision| {
        let options = StepOptions {
            batch: 2,
            seq_len: 16,
            profile: Profile::Fused,
            precision,
            optimizer: "adamw".parse().unwrap(),
            recompute: Recompute::None,
            grad_accum_steps: 1,
            autocast: CastLists::Cpu,
            steps: 1,
            warm: false,
            dropout: false,
            objective: napkin_nn::Objective::DEFAULT,
            offload: napkin_nn::Offload::NONE,
            in_backward: false,
            until: Until::Forward,
        };
        let trace = step::trace(&spec(), &options).unwrap().trace;
        let mut live = vec![None; trace.storages.len()];
        let end = trace.memory.len();
        for event in &trace.memory[..end] {
            live[event.storage.0 as usize] = match event.change {
                MemoryChange::Alloc(role) | MemoryChange::Role(role) => Some(role),
                MemoryChange::Free => None,
            };
        }
        let bytes = |wanted| {
            let held = live.iter().zip(&trace.storages).filter(|(role, _)| **role == Some(wanted));
            held.map(|(_, storage)| storage.bytes).sum::<u64>()
        };
        (bytes(Role::Activation), bytes(Role::WeightCast))
    };
    let (bf16, fp8) = (kept(Precision::Bf16Mixed), kept(Precision::Fp8));
    // Of each layer: norms of 32, the product of 32 and that of 48 go from 2 bytes to 1 where they are inputs of maps; the
    // norms' own results are not kept any more.
    assert!(fp8.0 < bf16.0, "{fp8:?} {bf16:?}");
    // Weights of maps in blocks: q 32 x 32, k and v 16 x 32, out 32 x 32, gate, up and down 48 x 32, of two layers.
    let weights = 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32);
    assert_eq!(bf16.1 - fp8.1, weights, "a byte less for each");
}
