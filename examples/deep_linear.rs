//! The deep linear model of the course: L layers of d x d and a head d x 1, trained with every optimizer.
//!
//! Its memory is a sum anybody can do: parameters, activations, gradients, optimizer states, four bytes each. Its FLOP
//! are six for each parameter and row: two forward, four backward.
//!
//! Run: `cargo run --release --example deep_linear`

#![allow(clippy::print_stdout)] // an example talks

use nn::modules::Linear;
use nn::optim::{Hyper, Implementation, Kind, Optimizer, OptimizerKind};
use nn::param::{Builder, Init, Param};
use nn::spec::LinearSpec;
use nn::{Forward, Profile, Recompute};
use tensor::{DType, Device, Phase, Result, Role, Runtime, Tensor};

const D: u64 = 32;
const LAYERS: u64 = 3;
const ROWS: u64 = 64;

struct DeepLinear {
    layers: Vec<Linear>,
    params: Vec<Param>,
}

impl DeepLinear {
    fn new(rt: &Runtime) -> Result<Self> {
        let builder = Builder::new(rt, DType::F32);
        let spec = LinearSpec::new("linear", false);
        let mut layers = Vec::new();
        for i in 0..=LAYERS {
            let _scope = rt.scope(format!("layers.{i}"));
            layers.push(Linear::new(&builder, &spec, D, if i == LAYERS { 1 } else { D }, Init::FanIn(D))?);
        }
        Ok(Self { layers, params: builder.finish().0 })
    }

    /// `rows d -> rows 1`
    fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |x, layer| layer.forward(f, &x))
    }
}

/// Mean squared error after each of `steps` steps.
fn train(kind: Kind, steps: usize) -> Result<(Vec<f64>, u64, Runtime)> {
    let rt = Runtime::with_seed(Device::Cpu, 3);
    rt.begin("init", Phase::Init);
    let model = DeepLinear::new(&rt)?;
    // What is to be found: the rows' own weighted sum.
    let x = rt.randn(&[ROWS, D], DType::F32)?.with_role(Role::Input);
    let truth = rt.randn(&[1, D], DType::F32)?;
    let y = x.linear(&truth, None)?.with_role(Role::Input);
    drop(truth);
    let hyper = Hyper { lr: rate(kind), ..Hyper::of(kind) };
    let mut optimizer = Optimizer::new(OptimizerKind { kind, implementation: Implementation::Fused }, hyper, false);
    let mut losses = Vec::new();
    for _ in 0..steps {
        rt.begin("fwd", Phase::Forward);
        let f = Forward::new(&rt, Profile::Fused, Recompute::None, ROWS, 1);
        let error = model.forward(&f, &x)?.sub(&y)?;
        let loss = error.mul(&error)?.mean_all()?;
        drop(error);
        losses.push(loss.item()?);
        rt.begin("bwd", Phase::Backward);
        loss.backward()?;
        rt.begin("opt", Phase::Optimizer);
        optimizer.step(&model.params)?;
        for param in &model.params {
            param.tensor.zero_grad();
        }
    }
    let parameters = model.params.iter().map(|p| p.tensor.elements()).sum();
    drop((model, optimizer));
    Ok((losses, parameters, rt))
}

/// Each rule wants its own scale: those that divide by the size of the gradient take steps of the size of the rate.
fn rate(kind: Kind) -> f64 {
    match kind {
        Kind::Sgd | Kind::Momentum => 0.005,
        Kind::Adafactor => 0.05,
        Kind::Muon => 0.02,
        Kind::Lion => 0.002,
        _ => 0.01,
    }
}

fn main() -> Result<()> {
    println!("{LAYERS} layers of {D} x {D} and a head, {ROWS} rows\n");
    println!("{:<14} {:>10} {:>10} {:>16}", "optimizer", "first loss", "last loss", "states, bytes");
    for kind in Kind::ALL {
        let (losses, parameters, rt) = train(kind, 200)?;
        let trace = rt.take_trace();
        let states = trace.storages.iter().enumerate().filter(|(id, _)| {
            trace.memory.iter().any(|e| {
                e.storage.0 as usize == *id
                    && matches!(e.change, tensor::meter::MemoryChange::Role(Role::OptimizerState))
            })
        });
        let states: u64 = states.map(|(_, storage)| storage.bytes).sum();
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        println!("{:<14} {first:>10.4} {last:>10.4} {states:>16}", kind.name());
        assert!(last < 0.2 * first, "{} does not learn", kind.name());
        let forward = trace.cost(|e| matches!(e.phase, Phase::Forward)).matmul / 200;
        assert_eq!(forward, u128::from(2 * parameters * ROWS), "two FLOP a parameter and row forward");
    }
    Ok(())
}
