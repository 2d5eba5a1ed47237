//! The lecture's deep linear model: its bytes, read off a run.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::modules::Linear;
use napkin_nn::optim::{Hyper, Optimizer};
use napkin_nn::param::{Builder, Init};
use napkin_nn::spec::LinearSpec;
use napkin_nn::{Forward, Profile, Recompute};
use tensor::meter::MemoryChange;
use tensor::{DType, Device, Phase, Role, Runtime, Trace};

/// Width, layers, batch.
const D: u64 = 4;
const L: usize = 2;
const B: u64 = 2;

/// Two steps of `L` layers `D x D` and a head `D -> 1`, no biases, with `AdaGrad`.
fn run(device: Device) -> Trace {
    let rt = Runtime::new(device);
    rt.begin("init", Phase::Init);
    let builder = Builder::new(&rt, DType::F32);
    let spec = LinearSpec::new("linear", false);
    let mut layers: Vec<Linear> = Vec::new();
    for i in 0..=L {
        let _scope = rt.scope(format!("layers.{i}"));
        let out = if i == L { 1 } else { D };
        layers.push(Linear::new(&builder, &spec, D, out, Init::FanIn(D)).unwrap());
    }
    let (params, _) = builder.finish();
    let mut optimizer = Optimizer::new("adagrad".parse().unwrap(), Hyper::default(), false);
    let x = rt.tensor_with(&[B, D], DType::F32, || vec![0.5; 8]).unwrap().with_role(Role::Input);
    for _ in 0..2 {
        rt.begin("fwd", Phase::Forward);
        let f = Forward::new(&rt, Profile::Fused, Recompute::None, B, 1);
        let mut y = x.clone();
        for layer in &layers {
            y = layer.forward(&f, &y).unwrap();
        }
        let loss = y.mean_all().unwrap();
        drop(y);
        rt.begin("bwd", Phase::Backward);
        loss.backward().unwrap();
        rt.begin("opt", Phase::Optimizer);
        optimizer.step(&params).unwrap();
        for p in &params {
            p.tensor.zero_grad();
        }
    }
    rt.take_trace()
}

/// Most f32 values held at once in a role.
fn most(trace: &Trace, role: Role) -> u64 {
    let mut held = vec![0; trace.storages.len()];
    let mut top = 0;
    for event in &trace.memory {
        let id = event.storage.0 as usize;
        held[id] = match event.change {
            MemoryChange::Alloc(now) | MemoryChange::Role(now) if now == role => trace.storages[id].bytes,
            _ => 0,
        };
        top = top.max(held.iter().sum());
    }
    assert!(top.is_multiple_of(4));
    top / 4
}

#[test]
fn the_deep_linear_model_takes_496_bytes() {
    for device in [Device::Meta, Device::Cpu] {
        let trace = run(device);
        let roles = [Role::Parameter, Role::Activation, Role::Gradient, Role::OptimizerState];
        let counts = roles.map(|role| most(&trace, role));
        assert_eq!(counts, [36, 16, 36, 36], "{device:?}: {roles:?}");
        assert_eq!(counts.iter().sum::<u64>() * DType::F32.size_in_bytes(), 496);
    }
}

#[test]
fn the_deep_linear_model_does_six_flop_per_parameter_and_row() {
    // Forward 2, backward 4, but 2 for the first layer, whose input wants no gradient.
    let trace = run(Device::Meta);
    let flop = |phase| trace.cost(|e| e.phase == phase).matmul;
    assert_eq!(flop(Phase::Forward), 2 * u128::from(2 * B * 36));
    assert_eq!(flop(Phase::Backward), 2 * u128::from(4 * B * 36 - 2 * B * D * D));
}
