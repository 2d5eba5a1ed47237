//! A [`Training`] on a small model: loss scaling, skipped updates, micro-batches of unequal weight.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::loss::IGNORED;
use napkin_nn::optim::Hyper;
use napkin_nn::scaler::{LossScaler, ScalerState, Skip};
use napkin_nn::step::Precision;
use napkin_nn::training::{Labels, Training, TrainingOptions};
use napkin_nn::{ModelSpec, Profile, Recompute, families};
use tensor::{CastLists, DType, Device, Runtime, Tensor};

const SEQ_LEN: u64 = 6;

fn spec(name: &str) -> ModelSpec {
    let file = format!("{}/tests/data/tiny/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let (config, problems) = Config::parse(&file, &std::fs::read(&file).unwrap());
    families::load(&config.unwrap_or_else(|| panic!("{problems}")), None).unwrap().spec
}

fn training(precision: Precision, grad_accum_steps: u64, clip_norm: Option<f64>) -> Training {
    let options = TrainingOptions {
        profile: Profile::Fused,
        precision,
        optimizer: "adamw".parse().unwrap(),
        hyper: Hyper::default(),
        recompute: Recompute::None,
        grad_accum_steps,
        autocast: CastLists::Cpu,
        dropout: false,
        clip_norm,
        objective: napkin_nn::Objective::DEFAULT,
        stochastic_rounding: false,
    };
    let mut training = Training::new(&Runtime::with_seed(Device::Cpu, 3), &spec("llama"), &options).unwrap();
    // The gradients of this model reach 5, and 65536 of them is more than f16 holds: where a search ends up.
    if let Some(scaler) = training.scaler_mut() {
        scaler.restore(ScalerState { scale: 256.0, ..scaler.state() });
    }
    training
}

/// Tokens and targets of sequences `rows`; the targets of the last `ignored` positions of each count for nothing.
fn batch(training: &Training, rows: std::ops::Range<u64>, ignored: u64) -> (Tensor, Tensor) {
    let vocab = training.model().spec().vocab_size;
    let shape = [rows.end - rows.start, SEQ_LEN];
    let token = |row: u64, i: u64| ((row * row + 3 * row + i * i) % vocab) as f64;
    let of = |f: &dyn Fn(u64, u64) -> f64| {
        let values: Vec<f64> =
            rows.clone().flat_map(|row| (0..SEQ_LEN).map(move |i| (row, i))).map(|(r, i)| f(r, i)).collect();
        training.model().params()[0].tensor.runtime().input(&values, &shape, DType::I64).unwrap()
    };
    (of(&token), of(&|row, i| if i + ignored < SEQ_LEN { token(row, i + 1) } else { IGNORED }))
}

fn backward(training: &mut Training, (tokens, targets): &(Tensor, Tensor), share: f64) {
    let loss = training.forward(tokens, Labels::Targets(targets)).unwrap();
    training.backward(loss, share).unwrap();
}

fn gradients(training: &Training) -> Vec<Vec<f64>> {
    training.model().params().iter().map(|p| p.tensor.grad().unwrap().to_vec().unwrap()).collect()
}

fn weights(training: &Training) -> Vec<Vec<f64>> {
    training.model().params().iter().map(|p| p.tensor.to_vec().unwrap()).collect()
}

fn assert_close(got: &[Vec<f64>], want: &[Vec<f64>], tolerance: f64) {
    for (got, want) in got.iter().zip(want) {
        let largest = want.iter().fold(0f64, |m, x| m.max(x.abs()));
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= tolerance * largest, "{got}, expected {want}, of {largest}");
        }
    }
}

/// Micro-batches with 2 x 5 and 1 x 2 valid targets, each weighted by its share of them, against one batch of all three.
#[test]
fn micro_batches_weighted_by_tokens_equal_the_big_batch() {
    let mut whole = training(Precision::Fp32, 1, None);
    let ((a, b), (c, d)) = (batch(&whole, 0..2, 1), batch(&whole, 2..3, 4));
    let all = (Tensor::cat(&[&a, &c], 0).unwrap(), Tensor::cat(&[&b, &d], 0).unwrap());
    backward(&mut whole, &all, 1.0);

    let mut parts = training(Precision::Fp32, 2, None);
    let (first, second) = (batch(&parts, 0..2, 1), batch(&parts, 2..3, 4));
    backward(&mut parts, &first, 10.0 / 12.0);
    backward(&mut parts, &second, 2.0 / 12.0);
    assert_close(&gradients(&parts), &gradients(&whole), 1e-5);
}

/// The scale is a power of two and goes out as it came in: only f16 itself, with 11 bits, differs from f32.
#[test]
fn loss_scaling_changes_no_gradient() {
    let (mut wide, mut narrow) = (training(Precision::Fp32, 1, None), training(Precision::Fp16Mixed, 1, None));
    let scale = narrow.scaler().unwrap().scale();
    for training in [&mut wide, &mut narrow] {
        let batch = batch(training, 0..2, 1);
        backward(training, &batch, 1.0);
    }
    let scaled: Vec<Vec<f64>> = gradients(&narrow).iter().map(|g| g.iter().map(|x| x / scale).collect()).collect();
    assert_close(&scaled, &gradients(&wide), 2e-2);
    // What the optimizer sees is unscaled: its mean of gradients after one step is a tenth of them.
    let updated = narrow.update(1e-3).unwrap();
    assert_eq!(updated.skipped, None);
    let states = narrow.optimizer().state_tensors(narrow.model().params());
    let means = states.iter().filter(|(_, slot, _)| *slot == "exp_avg");
    let means: Vec<Vec<f64>> = means.map(|(.., t)| t.to_vec().unwrap().iter().map(|m| 10.0 * m).collect()).collect();
    assert_close(&means, &scaled, 1e-5);
    assert_eq!(narrow.scaler().unwrap().state().good_steps, 1);
}

/// Replaces one gradient by one that is not finite.
fn poison(training: &Training, name: &str) {
    let param = training.model().params().iter().find(|p| p.name == name).unwrap();
    let grad = param.tensor.grad().unwrap();
    param.tensor.runtime().no_grad(|| grad.mul_scalar_(f64::INFINITY)).unwrap();
}

#[test]
fn an_update_with_infinite_gradients_is_skipped_and_says_where_they_began() {
    let name = "model.layers.0.self_attn.q_proj.weight";
    for (precision, clip, why) in [
        (Precision::Fp16Mixed, None, Skip::Calibration),
        (Precision::Fp16Mixed, Some(1.0), Skip::Calibration),
        (Precision::Fp32, Some(1.0), Skip::Disaster),
    ] {
        let mut training = training(precision, 1, clip);
        let before = weights(&training);
        let data = batch(&training, 0..2, 1);
        backward(&mut training, &data, 1.0);
        poison(&training, name);
        let skipped = training.update(1e-3).unwrap().skipped.unwrap();
        assert_eq!((skipped.parameter.as_str(), skipped.why), (name, why));
        assert_eq!(weights(&training), before, "nothing is overwritten");
        assert_eq!(training.optimizer().steps(), 0, "the schedule follows updates that were made");
        assert!(training.model().params().iter().all(|p| p.tensor.grad().is_none()), "the gradients are gone");
        assert_eq!(training.scaler().map(LossScaler::scale), (precision == Precision::Fp16Mixed).then_some(128.0));
        // And then training goes on.
        backward(&mut training, &data, 1.0);
        let updated = training.update(1e-3).unwrap();
        assert_eq!((updated.skipped, updated.grad_norm.is_some()), (None, clip.is_some()));
        assert_eq!(training.optimizer().steps(), 1);
        assert_ne!(weights(&training), before);
    }
}

/// Below the limit the norm is only told; above it the gradients are as long as it.
#[test]
fn gradients_are_clipped_before_the_update() {
    let mut plain = training(Precision::Fp32, 1, None);
    let data = batch(&plain, 0..2, 1);
    backward(&mut plain, &data, 1.0);
    let norm = gradients(&plain).iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
    for limit in [norm / 4.0, norm * 4.0] {
        let mut clipped = training(Precision::Fp32, 1, Some(limit));
        let data = batch(&clipped, 0..2, 1);
        backward(&mut clipped, &data, 1.0);
        let told = clipped.update(1e-3).unwrap().grad_norm.unwrap();
        assert!((told - norm).abs() < 1e-5 * norm, "{told}, expected {norm}");
        let states = clipped.optimizer().state_tensors(clipped.model().params());
        let means = states.iter().filter(|(_, slot, _)| *slot == "exp_avg");
        let seen = means.flat_map(|(.., t)| t.to_vec().unwrap()).map(|m| (10.0 * m).powi(2)).sum::<f64>().sqrt();
        assert!((seen - norm.min(limit)).abs() < 1e-5 * norm, "{seen} of {limit}");
    }
}
