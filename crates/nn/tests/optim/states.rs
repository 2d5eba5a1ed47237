//! State tensors: bytes, master copies, names, saving and restoring.

use crate::bench::{Bench, PARAMS, STEPS, every_kind, optimizer};
use napkin_nn::optim::{Implementation, Kind, OptimizerKind, Slot};
use tensor::{DType, Phase};

/// A bf16 parameter with a master copy goes the way of an f32 parameter that is given the same gradients.
#[test]
fn master_copies_are_what_is_trained() {
    for kind in every_kind() {
        let (narrow, wide) = (Bench::new(DType::BF16), Bench::new(DType::F32));
        for (narrow, wide) in narrow.params.iter().zip(&wide.params) {
            let start = narrow.tensor.to_vec().unwrap();
            let start = wide.tensor.runtime().tensor(&start, wide.tensor.shape(), DType::F32).unwrap();
            wide.tensor.detach().copy_(&start).unwrap();
        }
        let (mut with, mut without) = (optimizer(kind, true), optimizer(kind, false));
        for step in 1..=STEPS {
            narrow.step(&mut with, step);
            wide.runtime.begin("opt", Phase::Optimizer);
            for (narrow, wide) in narrow.params.iter().zip(&wide.params) {
                let grad = narrow.tensor.grad().unwrap().to_vec().unwrap();
                wide.tensor
                    .set_grad(Some(wide.tensor.runtime().tensor(&grad, wide.tensor.shape(), DType::F32).unwrap()));
            }
            without.step(&wide.params).unwrap();
        }
        for (narrow, wide) in narrow.params.iter().zip(&wide.params) {
            let rounded = wide.tensor.detach().to_dtype(DType::BF16).unwrap();
            assert_eq!(narrow.tensor.to_vec().unwrap(), rounded.to_vec().unwrap(), "{kind} {}", narrow.name);
        }
    }
}

/// The bytes that a rule says its states take are the bytes that are live after an update.
#[test]
fn states_take_the_bytes_that_their_rule_says() {
    for kind in every_kind() {
        for (dtype, master) in [(DType::F32, false), (DType::BF16, false), (DType::BF16, true)] {
            let bench = Bench::new(dtype);
            let before = bench.runtime.live_bytes();
            let mut optimizer = optimizer(kind, master);
            bench.step(&mut optimizer, 1);
            let gradients: u64 = bench.params.iter().map(|p| p.tensor.grad().unwrap().storage().bytes()).sum();
            let slots = bench.params.iter().flat_map(|p| kind.slots(p.kind, p.tensor.shape(), dtype, master));
            let said: u64 = slots.map(|slot| slot.bytes()).sum();
            assert_eq!(bench.runtime.live_bytes() - before - gradients, said, "{kind} {dtype} master {master}");
        }
    }
}

/// Where the states of every parameter are alike, the short list of them is what [`OptimizerKind::slots`] gives.
#[test]
fn uniform_states_are_as_large_as_the_parameter() {
    for kind in Kind::ALL {
        let rule = OptimizerKind { kind, implementation: Implementation::Fused };
        for (_, shape, param, _) in PARAMS {
            let slots = rule.slots(param, shape, DType::BF16, true);
            let states: Vec<&Slot> = slots.iter().filter(|slot| slot.name != Slot::MASTER).collect();
            if let Some(names) = kind.uniform_slots() {
                assert_eq!(states.iter().map(|slot| slot.name).collect::<Vec<_>>(), names);
                assert!(states.iter().all(|slot| slot.shape == *shape && slot.dtype == DType::F32));
            }
        }
    }
}

/// bitsandbytes keeps f32 means of fewer than 4,096 elements (`min_8bit_size`), and a scale for every 256 of others.
#[test]
fn small_parameters_keep_wide_means() {
    let rule = OptimizerKind { kind: Kind::Adam8bit, implementation: Implementation::Fused };
    for (shape, bytes) in [(&[4095][..], 8 * 4095), (&[64, 64], 2 * (4096 + 4 * 16)), (&[4097], 2 * (4097 + 4 * 17))] {
        let slots = rule.slots(napkin_nn::ParamKind::Matrix, shape, DType::BF16, false);
        assert_eq!(slots.iter().map(Slot::bytes).sum::<u64>(), bytes, "{shape:?}");
    }
}

#[test]
fn names_are_read_back() {
    for kind in every_kind() {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    for (text, kind) in [
        ("adamw_8bit", Kind::Adam8bit),
        ("AdamW-8bit", Kind::Adam8bit),
        ("momentum", Kind::Momentum),
        ("Lion", Kind::Lion),
    ] {
        assert_eq!(text.parse::<OptimizerKind>().unwrap().kind, kind);
    }
    let error = "adamx".parse::<OptimizerKind>().unwrap_err();
    assert!(error.contains("adafactor, adam-8bit, muon, lion"), "{error}");
}

/// Six updates, or three, and three more by an optimizer that was given the states of the first.
#[test]
fn a_restored_optimizer_goes_on_with_the_same_bits() {
    for kind in every_kind() {
        for (dtype, master) in [(DType::F32, false), (DType::BF16, false), (DType::BF16, true)] {
            let (whole, parts) = (Bench::new(dtype), Bench::new(dtype));
            let mut uninterrupted = optimizer(kind, master);
            let mut first = optimizer(kind, master);
            for step in 1..=STEPS {
                whole.step(&mut uninterrupted, step);
            }
            for step in 1..=3 {
                parts.step(&mut first, step);
            }
            let mut second = optimizer(kind, master);
            parts.hand_over(&first, &mut second);
            for step in 4..=STEPS {
                parts.step(&mut second, step);
            }
            assert_eq!(parts.weights(), whole.weights(), "{kind} {dtype} master {master}");
        }
    }
}
