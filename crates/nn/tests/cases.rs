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
    let (few, many): (f64, f64) = (2.0, 4.0);
    assert!((10.0 / 100.0 * few + 90.0 / 100.0 * many - 3.8).abs() < 1e-12);
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

/// optim-03: the rate of a step follows from its number alone, so no order of restoring can reset it.
#[test]
fn a_schedule_has_no_state_to_lose() {
    let schedule =
        Schedule { peak: 0.1, floor: 0.0, warmup_steps: 0, steps: 800, decay: Decay::Linear, decay_steps: 0 };
    let at_save = schedule.lr(700);
    assert!((at_save - 0.0125).abs() < 1e-3, "{at_save}");
    // Restored before or after the schedule is made: the next step asks it for the rate.
    let resumed = Schedule { ..schedule };
    assert_eq!(resumed.lr(700).to_bits(), at_save.to_bits());
    assert!(resumed.lr(701) < at_save);
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
