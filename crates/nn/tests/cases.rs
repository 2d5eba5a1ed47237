//! Questions that people asked in public about training steps, and the answers that are right, as `shared/cases` collects
//! them.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::optim::{Hyper, Optimizer};
use napkin_nn::scaler::{LossScaler, ScalerOptions, Skip};
use napkin_nn::schedule::{Decay, Schedule};
use napkin_nn::{Param, ParamKind};
use tensor::{DType, Device, Runtime};

/// autograd-03: micro-batches count by their tokens: 3.8, not 3.0, and the gradient of the whole batch.
#[test]
fn micro_batches_count_by_their_tokens() {
    let rt = Runtime::new(Device::Cpu);
    let targets: Vec<f64> = (0..100).map(|i| f64::from(i % 7)).collect();
    let logits: Vec<f64> = (0..700).map(|i| f64::from(i * 37 % 101) / 25.0).collect();
    let gradient = |parts: &[(u64, u64)]| {
        let x = rt.tensor(&logits, &[100, 7], DType::F64).unwrap().require_grad().unwrap();
        let all = rt.tensor(&targets, &[100], DType::I64).unwrap();
        for &(start, end) in parts {
            let count = end - start;
            let rows = x.narrow(0, start, count).unwrap();
            let loss = rows.cross_entropy(&all.narrow(0, start, count).unwrap(), MEAN).unwrap();
            loss.mul_scalar(count as f64 / 100.0).unwrap().backward().unwrap();
        }
        x.grad().unwrap().to_vec().unwrap()
    };
    for (part, whole) in gradient(&[(0, 10), (10, 100)]).iter().zip(gradient(&[(0, 100)])) {
        assert!((part - whole).abs() < 1e-12);
    }
    // Ten tokens with a loss of 2, ninety with one of 4: of two classes, `ln(1 + exp(x))` where the wrong one has x more.
    let wrong = |loss: f64| (loss.exp() - 1.0).ln();
    let rows: Vec<f64> = (0..100).flat_map(|i| [0.0, wrong(if i < 10 { 2.0 } else { 4.0 })]).collect();
    let (rows, first) = (rt.tensor(&rows, &[100, 2], DType::F64).unwrap(), rt.zeros(&[100], DType::I64).unwrap());
    let mean = |start: u64, count: u64| {
        let labels = first.narrow(0, start, count).unwrap();
        rows.narrow(0, start, count).unwrap().cross_entropy(&labels, MEAN).unwrap().item().unwrap()
    };
    for (found, right) in [(mean(0, 10), 2.0), (mean(10, 90), 4.0), (mean(0, 100), 3.8)] {
        assert!((found - right).abs() < 1e-12, "{found} is not {right}");
    }
    assert!((0.1 * mean(0, 10) + 0.9 * mean(10, 90) - mean(0, 100)).abs() < 1e-12);
}

const MEAN: tensor::ops::nll_loss::Reduction = tensor::ops::nll_loss::Reduction::Mean;

fn updated(optimizer: &mut Optimizer, param: &Param, gradient: f64) -> f64 {
    let rt = param.tensor.runtime().clone();
    let before = param.tensor.item().unwrap();
    param.tensor.set_grad(Some(rt.full(&[], gradient, DType::F32).unwrap()));
    optimizer.step(std::slice::from_ref(param)).unwrap();
    before - param.tensor.item().unwrap()
}

/// optim-01: states that are made without a step leave the first update as large as the rate; a dummy step of zeros makes
/// it 0.744 or 0.735 of that.
#[test]
fn states_are_made_without_a_step() {
    for (beta2, dummy) in [(0.999, 0.744), (0.95, 0.735)] {
        let hyper = Hyper { beta1: 0.9, beta2, weight_decay: 0.0, eps: 1e-12, lr: 0.001, ..Hyper::default() };
        let run = |zeros: bool| {
            let rt = Runtime::new(Device::Cpu);
            let tensor = rt.full(&[], 1.0, DType::F32).unwrap().require_grad().unwrap();
            let param = Param::new("w", tensor, ParamKind::Vector);
            let mut optimizer = Optimizer::new("adamw".parse().unwrap(), hyper, false);
            optimizer.prepare(std::slice::from_ref(&param)).unwrap();
            if zeros {
                updated(&mut optimizer, &param, 0.0);
            }
            updated(&mut optimizer, &param, 0.3) / 0.001
        };
        assert!((run(false) - 1.0).abs() < 1e-3, "{}", run(false));
        assert!((run(true) - dummy).abs() < 1e-3, "{}", run(true));
    }
}

/// optim-03: an optimizer that is made anew with the base rate goes on at the rate of its step, in either order of restoring.
#[test]
fn a_restored_optimizer_keeps_its_rate() {
    let schedule =
        Schedule { peak: 0.1, floor: 0.0, warmup_steps: 0, steps: 801, decay: Decay::Linear, decay_steps: 0 };
    let at_save = schedule.lr(701);
    assert!((at_save - 0.0125).abs() < 1e-15, "{at_save}");
    let restores: [fn(&mut Optimizer, f64); 2] = [
        |optimizer, lr| {
            optimizer.set_steps(700);
            optimizer.set_lr(lr);
        },
        |optimizer, lr| {
            optimizer.set_lr(lr);
            optimizer.set_steps(700);
        },
    ];
    for restore in restores {
        let tensor = Runtime::new(Device::Cpu).full(&[], 1.0, DType::F32).unwrap().require_grad().unwrap();
        let param = Param::new("w", tensor, ParamKind::Vector);
        let hyper = Hyper { lr: schedule.peak, weight_decay: 0.0, ..Hyper::default() };
        let mut optimizer = Optimizer::new("sgd".parse().unwrap(), hyper, false);
        restore(&mut optimizer, at_save);
        // The plain rule moves by the rate where the gradient is one.
        let moved = updated(&mut optimizer, &param, 1.0);
        assert!((moved - 0.0125).abs() < 1e-7, "{moved}");
    }
}

/// dtype-05: skips while the scale is found are calibration, those that a smaller scale does not end are disaster, and the
/// scale never falls to where halving is pointless.
#[test]
fn skipped_updates_are_told_apart() {
    let mut scaler = LossScaler::new(ScalerOptions::default());
    // Six skips in the first ten steps, two at step 500.
    let skips = |step: u64| matches!(step, 0..=5 | 500 | 501);
    let told: Vec<Skip> = (0..1000).filter_map(|step| scaler.note(!skips(step))).collect();
    assert_eq!(told, [Skip::Calibration; 8]);
    assert_eq!(scaler.state().skipped, 8);
    assert_eq!(scaler.scale(), 65536.0 / 256.0);
    // Halving without end.
    let mut scaler = LossScaler::new(ScalerOptions::default());
    let told: Vec<Skip> = (0..1100).filter_map(|_| scaler.note(false)).collect();
    assert_eq!(told.first(), Some(&Skip::Calibration));
    assert_eq!(told.last(), Some(&Skip::Disaster));
    let first = told.iter().position(|skip| *skip == Skip::Disaster).unwrap();
    assert!(first <= 17, "after {first} skips");
    assert_eq!(scaler.scale(), 1.0);
}
