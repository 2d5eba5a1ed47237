//! Training equals PyTorch's: losses over 50 steps and the gradient of every parameter, from the same weights and batches.
//!
//! `reference/losses.py` made the numbers and says how both sides make weights and tokens out of integers.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use nn::config::Config;
use nn::optim::Hyper;
use nn::schedule::{Decay, Schedule};
use nn::step::Precision;
use nn::training::{Labels, Training, TrainingOptions};
use nn::{Profile, Recompute, families};
use serde_json::Value;
use tensor::{CastLists, DType, Device, Runtime, Tensor};

/// Largest relative difference of a loss, and of the norm of all gradients. Losses in PyTorch's own float32 and float64
/// are 3e-7 apart.
const LOSS_TOLERANCE: f64 = 1e-4;
/// Largest norm of the difference of a gradient, as a part of its norm; PyTorch's own float32 and float64 are 6e-7 apart.
const GRADIENT_TOLERANCE: f64 = 1e-5;

/// FNV-1a of a name: the state of its stream.
fn stream(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Top 16 bits of the `i`-th output of `SplitMix64`.
fn bits(state: u64, i: u64) -> u64 {
    let z = state.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) >> 48
}

fn initial(name: &str, shape: &[u64]) -> Vec<f64> {
    let state = stream(name);
    let middle = if shape.len() == 1 && name.ends_with("weight") { 1.0 } else { 0.0 };
    let count: u64 = shape.iter().product();
    (0..count).map(|i| middle + (bits(state, i) as f64 - 32768.0) / f64::from(1 << 19)).collect()
}

/// What PyTorch computed for one model.
struct Reference(Value);

impl Reference {
    fn read(name: &str) -> Self {
        let file = format!("{}/tests/reference/{name}.json", env!("CARGO_MANIFEST_DIR"));
        Self(serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap())
    }

    fn size(&self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap()
    }

    fn hyper(&self) -> Hyper {
        let value = |key: &str| self.0["adamw"][key].as_f64().unwrap();
        Hyper {
            lr: value("lr"),
            beta1: value("beta1"),
            beta2: value("beta2"),
            eps: value("eps"),
            weight_decay: value("weight_decay"),
            ..Hyper::default()
        }
    }

    /// The rates of one of its runs.
    fn schedule(&self, run: &Value) -> Schedule {
        Schedule {
            peak: self.hyper().lr,
            floor: run["min_lr"].as_f64().unwrap(),
            warmup_steps: run["warmup"].as_u64().unwrap(),
            steps: 50,
            decay: Decay::Cosine,
            decay_steps: 0,
        }
    }

    fn vocabulary(&self) -> u64 {
        self.0["config"]["vocab_size"].as_u64().unwrap()
    }

    /// Tokens of batch `step`.
    fn tokens(&self, step: u64) -> Vec<f64> {
        let (b, s, v, state) = (self.size("batch"), self.size("seq_len"), self.vocabulary(), stream("tokens"));
        let mut previous = 0;
        let token = |i: u64| {
            let u = bits(state, step * b * s + i);
            let fresh = i.is_multiple_of(s) || u.is_multiple_of(4);
            previous = if fresh { (u * u * v) >> 32 } else { (5 * previous + 1) % v };
            previous as f64
        };
        (0..b * s).map(token).collect()
    }

    fn training(&self, profile: Profile, clip_norm: Option<f64>) -> Training {
        let text = serde_json::to_vec(&self.0["config"]).unwrap();
        let (config, problems) = Config::parse("config.json", &text);
        let loaded = families::load(&config.unwrap_or_else(|| panic!("{problems}")), None);
        let spec = loaded.unwrap_or_else(|problems| panic!("{problems}")).spec;
        let options = TrainingOptions {
            profile,
            precision: Precision::Fp32,
            optimizer: "adamw".parse().unwrap(),
            hyper: self.hyper(),
            recompute: Recompute::None,
            grad_accum_steps: 1,
            autocast: CastLists::Cpu,
            dropout: true,
            clip_norm,
            objective: nn::Objective::DEFAULT,
            stochastic_rounding: false,
        };
        let runtime = Runtime::new(Device::Cpu);
        runtime.set_recording(false);
        let training = Training::new(&runtime, &spec, &options).unwrap();
        runtime.no_grad(|| {
            for p in training.model().params() {
                let values = initial(&p.name, p.tensor.shape());
                p.tensor.detach().copy_(&runtime.tensor(&values, p.tensor.shape(), DType::F32).unwrap()).unwrap();
            }
        });
        training
    }

    /// Loss of batch `step`, with its history.
    fn loss(&self, training: &mut Training, step: u64) -> Tensor {
        let shape = [self.size("batch"), self.size("seq_len")];
        let runtime = training.model().params()[0].tensor.runtime().clone();
        let tokens = runtime.input(&self.tokens(step), &shape, DType::I64).unwrap();
        training.forward(&tokens, Labels::Tokens(&tokens)).unwrap()
    }
}

#[track_caller]
fn losses_equal(name: &str) {
    let reference = Reference::read(name);
    for run in reference.0["runs"].as_array().unwrap() {
        let schedule = reference.schedule(run);
        // Without clipping the norm is looked at all the same.
        let clip = run["clip"].as_f64().unwrap_or(f64::INFINITY);
        let mut training = reference.training(Profile::Fused, Some(clip));
        let numbers = |key: &str| run[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
        assert_eq!(numbers("losses").len(), 50);
        let mut worst = 0f64;
        for (step, (expected, expected_norm)) in (0..).zip(numbers("losses").zip(numbers("grad_norms"))) {
            let loss = reference.loss(&mut training, step);
            let got = loss.item().unwrap();
            training.backward(loss, 1.0).unwrap();
            let norm = training.update(schedule.lr(step + 1)).unwrap().grad_norm.unwrap();
            let off = ((got - expected) / expected).abs();
            let norm_off = ((norm - expected_norm) / expected_norm).abs();
            assert!(
                off <= LOSS_TOLERANCE && norm_off <= LOSS_TOLERANCE,
                "{name} {}, step {step}: loss {got}, norm of the gradient {norm}; PyTorch {expected}, {expected_norm}",
                run["name"]
            );
            worst = worst.max(off);
        }
        println!("{name} {}: losses within {worst:.1e}", run["name"]);
    }
}

/// Norm of the difference of two vectors, as a part of the norm of the second.
fn distance(got: &[f64], expected: &[f64]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

#[track_caller]
fn gradients_equal(name: &str) {
    for profile in [Profile::Fused, Profile::HfSdpa, Profile::HfEager] {
        gradients_of_profile_equal(name, profile);
    }
}

#[track_caller]
fn gradients_of_profile_equal(name: &str, profile: Profile) {
    let reference = Reference::read(name);
    let mut training = reference.training(profile, None);
    let loss = reference.loss(&mut training, 0);
    training.backward(loss, 1.0).unwrap();
    let model = training.model();
    let expected = reference.0["gradients"].as_object().unwrap();
    assert_eq!(expected.len(), model.params().len());
    let mut worst = 0f64;
    for param in model.params() {
        let gradient = param.tensor.grad().unwrap().to_vec().unwrap();
        let expected = &expected[&param.name];
        let numbers =
            |key: &str| expected[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
        let norm = expected["norm"].as_f64().unwrap();
        assert_eq!(gradient.len() as u64, expected["elements"].as_u64().unwrap());

        let every = expected["sample_every"].as_u64().unwrap() as usize;
        let sample: Vec<f64> = gradient.iter().step_by(every).copied().collect();
        let in_sample = distance(&sample, &numbers("sample"));

        // The mean square of these differences estimates the square of the norm of the whole difference.
        let signs = stream(&format!("sign {}", param.name));
        let products = numbers("products");
        let mut got = vec![0.0; products.len()];
        for (i, x) in gradient.iter().enumerate() {
            let word = bits(signs, i as u64);
            for (j, sum) in got.iter_mut().enumerate() {
                *sum += if word >> j & 1 == 1 { *x } else { -x };
            }
        }
        let squares: f64 = got.iter().zip(&products).map(|(a, b)| (a - b) * (a - b)).sum();
        let overall = (squares / products.len() as f64).sqrt() / norm;

        worst = worst.max(in_sample).max(overall);
        assert!(
            in_sample <= GRADIENT_TOLERANCE && overall <= GRADIENT_TOLERANCE,
            "{name} {profile}, gradient of {}: off by {overall:.1e} of its norm, {in_sample:.1e} in a sample",
            param.name
        );
    }
    println!("{name} {profile}: gradients within {worst:.1e}");
}

#[test]
fn losses_of_gpt2_over_50_steps() {
    losses_equal("gpt2");
}

#[test]
fn losses_of_llama_over_50_steps() {
    losses_equal("llama");
}

#[test]
fn gradients_of_gpt2() {
    gradients_equal("gpt2");
}

#[test]
fn gradients_of_llama() {
    gradients_equal("llama");
}
