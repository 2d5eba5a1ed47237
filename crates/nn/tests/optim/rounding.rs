//! What rounding takes from updates in bf16: counted, and made right in the mean.

use crate::bench::{Bench, STEPS, every_kind, optimizer};
use napkin_nn::optim::{Groups, Health, Hyper, Kind, Optimizer};
use napkin_nn::{Param, ParamKind};
use tensor::{DType, Device, Phase, Runtime};

const N: u64 = 4096;

/// One matrix of ones.
fn ones(runtime: &Runtime, dtype: DType) -> Vec<Param> {
    let tensor = runtime.ones(&[64, N / 64], dtype).unwrap().require_grad().unwrap();
    vec![Param::new("ones", tensor, ParamKind::Matrix)]
}

/// Updates with gradients that are all one.
fn run(params: &[Param], optimizer: &mut Optimizer, steps: u64) {
    let tensor = &params[0].tensor;
    tensor.runtime().begin("opt", Phase::Optimizer);
    for _ in 0..steps {
        tensor.set_grad(Some(tensor.runtime().ones(tensor.shape(), tensor.dtype()).unwrap()));
        optimizer.step(params).unwrap();
    }
}

fn watched(kind: &str, hyper: Hyper, master: bool, dtype: DType) -> Health {
    let params = ones(&Runtime::new(Device::Cpu), dtype);
    let mut optimizer = Optimizer::new(kind.parse().unwrap(), hyper, master);
    optimizer.watch(true);
    run(&params, &mut optimizer, 2);
    optimizer.health().unwrap().clone()
}

/// Below 1 the spacing of bf16 is 2^-8: what is less than 2^-9 vanishes.
#[test]
fn updates_below_half_a_spacing_are_counted() {
    let none = Hyper { weight_decay: 0.0, ..Hyper::default() };
    for (kind, lr, vanished) in
        [("sgd", 0.0019, N), ("sgd", 0.002, 0), ("adamw", 0.0019, N), ("adamw-forloop", 0.0019, N), ("lion", 0.002, 0)]
    {
        let health = watched(kind, Hyper { lr, ..none }, false, DType::BF16);
        assert_eq!((health.updated, health.vanished, health.decayed), (N, vanished, 0), "{kind} {lr}");
        let said = health.warnings().iter().any(|w| w.message == "100 % of the updates vanished");
        assert_eq!(said, vanished > 0, "{kind} {lr}");
        assert_eq!(health.worst.is_some(), vanished > 0);
        // In f32, or with an f32 master copy, the same update is made.
        for (master, dtype) in [(false, DType::F32), (true, DType::BF16)] {
            assert_eq!(watched(kind, Hyper { lr, ..none }, master, dtype).vanished, 0, "{kind} {lr} {dtype}");
        }
    }
}

#[test]
fn decay_without_effect_is_counted() {
    for (lr, undecayed) in [(0.01, N), (0.05, 0)] {
        // lr × decay is 0.001 or 0.005 of a weight near 1; half a spacing is 0.002.
        let health = watched("adamw", Hyper { lr, weight_decay: 0.1, ..Hyper::default() }, false, DType::BF16);
        assert_eq!((health.decayed, health.undecayed), (N, undecayed), "{lr}");
    }
    let health = watched("adamw", Hyper { lr: 1e-3, weight_decay: 0.1, ..Hyper::default() }, true, DType::BF16);
    assert_eq!((health.decayed, health.undecayed), (N, 0), "a master copy decays");
    let groups = Groups { matrix: napkin_nn::optim::Group::NO_DECAY, ..Groups::default() };
    let params = ones(&Runtime::new(Device::Cpu), DType::BF16);
    let mut optimizer = Optimizer::new("adamw".parse().unwrap(), Hyper::default(), false).with_groups(groups);
    optimizer.watch(true);
    run(&params, &mut optimizer, 1);
    assert_eq!(optimizer.health().unwrap().decayed, 0, "a group without decay");
}

/// bf16 has 8 bits: 0.999 of a number rounds to it, 0.95 of one does not.
#[test]
fn means_that_cannot_decay_are_counted() {
    for (beta2, stuck) in [(0.999, N), (0.95, 0)] {
        let health = watched("adamw", Hyper { beta2, ..Hyper::default() }, false, DType::BF16);
        // Both means; that of gradients, with 0.9, decays.
        assert_eq!((health.means, health.stuck), (2 * N, stuck), "{beta2}");
    }
    assert_eq!(watched("adamw", Hyper::default(), false, DType::F32).stuck, 0);
}

#[test]
fn watching_changes_no_weight() {
    for kind in every_kind() {
        let [plain, watched] = [false, true].map(|watch| {
            let bench = Bench::new(DType::BF16);
            let mut optimizer = optimizer(kind, false);
            optimizer.watch(watch);
            for step in 1..=3 {
                bench.step(&mut optimizer, step);
            }
            assert_eq!(optimizer.health().is_some(), watch);
            bench.weights()
        });
        assert_eq!(plain, watched, "{kind}");
    }
}

/// A hundred steps of a tenth of a spacing: to the nearest nothing moves, at random the mean goes down by ten spacings.
#[test]
fn stochastic_rounding_is_right_in_the_mean() {
    let (spacing, steps) = (2f64.powi(-8), 100);
    let hyper = Hyper { lr: spacing / 10.0, ..Hyper::default() };
    let end = |stochastic: bool, seed: u64| {
        let params = ones(&Runtime::with_seed(Device::Cpu, seed), DType::BF16);
        let mut optimizer = Optimizer::new("sgd".parse().unwrap(), hyper, false);
        optimizer.set_stochastic_rounding(stochastic);
        run(&params, &mut optimizer, steps);
        params[0].tensor.to_vec().unwrap()
    };
    assert!(end(false, 0).iter().all(|&w| w == 1.0));
    let weights = end(true, 0);
    let mean = weights.iter().sum::<f64>() / N as f64;
    // Each step moves a weight by one spacing with probability 1/10: deviation √(100 · 0.09) of one, and of the mean of
    // 4096 of them a 64th of that.
    let (expected, deviation) = (1.0 - 10.0 * spacing, 3.0 * spacing / 64.0);
    assert!((mean - expected).abs() < 5.0 * deviation, "{mean}, expected {expected}");
    let variance = weights.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / N as f64;
    assert!((variance.sqrt() / (3.0 * spacing) - 1.0).abs() < 0.1, "each weight has its own numbers");
    assert_eq!(end(true, 0), weights, "the same seed, the same bits");
    assert_ne!(end(true, 1), weights);
}

/// Every rule, close to where it goes in f32; interrupted, the same bits.
#[test]
fn every_rule_rounds_at_random_and_resumes() {
    for kind in every_kind() {
        let (wide, narrow, parts) = (Bench::new(DType::F32), Bench::new(DType::BF16), Bench::new(DType::BF16));
        let new = || {
            let mut new = optimizer(kind, false);
            new.set_stochastic_rounding(true);
            new
        };
        let (mut plain, mut whole, mut first) = (optimizer(kind, false), new(), new());
        for step in 1..=STEPS {
            wide.step(&mut plain, step);
            narrow.step(&mut whole, step);
            if step <= 3 {
                parts.step(&mut first, step);
            }
        }
        let mut second = new();
        parts.hand_over(&first, &mut second);
        for step in 4..=STEPS {
            parts.step(&mut second, step);
        }
        assert_eq!(parts.weights(), narrow.weights(), "{kind}");
        // The mean over 4160 weights of errors of at most a spacing, 2^-8, at each of six steps.
        let mean = |bench: &Bench| bench.weights()[1].iter().sum::<f64>() / 4160.0;
        let off = (mean(&narrow) - mean(&wide)).abs();
        // Gradients and the sign of a mean are rounded too.
        let allowed = if kind.kind == Kind::RmsProp || kind.kind == Kind::Lion { 2e-3 } else { 3e-4 };
        assert!(off < allowed, "{kind}: the mean is off by {off:.1e}");
    }
}
