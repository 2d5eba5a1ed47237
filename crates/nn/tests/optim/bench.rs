//! Parameters and gradients that the reference script computes too, and optimizers on them.

use napkin_nn::optim::{Hyper, Implementation, Kind, Optimizer, OptimizerKind};
use napkin_nn::{Param, ParamKind};
use tensor::{DType, Device, Phase, Role, Runtime};

pub const STEPS: u64 = 6;
pub const IMPLEMENTATIONS: [Implementation; 3] =
    [Implementation::Fused, Implementation::ForLoop, Implementation::ForEach];

/// Name, shape, kind, and every how manieth element the reference has.
pub const PARAMS: [(&str, &[u64], ParamKind, usize); 5] = [
    ("matrix", &[8, 6], ParamKind::Matrix, 1),
    ("large", &[64, 65], ParamKind::Matrix, 97),
    ("experts", &[2, 3, 4], ParamKind::Expert { experts: 2, top_k: 1 }, 1),
    ("table", &[5, 4], ParamKind::Embedding, 1),
    ("vector", &[7], ParamKind::Vector, 1),
];

pub fn values(shape: &[u64], f: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..shape.iter().product::<u64>()).map(|i| f64::from(f(i as f64) as f32)).collect()
}

/// The gradient of parameter `index` at `step`, as the script has it.
pub fn gradient(index: usize, shape: &[u64], step: u64) -> Vec<f64> {
    let phase = 0.9 * step as f64 + index as f64;
    values(shape, |i| (1.3 * i + phase).cos() * 10f64.powf((0.37 * i).sin() - 1.0))
}

pub struct Bench {
    pub runtime: Runtime,
    pub params: Vec<Param>,
}

impl Bench {
    pub fn new(dtype: DType) -> Self {
        let runtime = Runtime::new(Device::Cpu);
        runtime.set_recording(false);
        runtime.begin("init", Phase::Init);
        let make = |(index, &(name, shape, kind, _)): (usize, &(&str, &[u64], ParamKind, usize))| {
            let start = values(shape, |i| 0.5 * (0.7 * i + index as f64).sin() + 0.1);
            let tensor = runtime.tensor(&start, shape, dtype).unwrap().with_role(Role::Parameter);
            let tensor = tensor.require_grad().unwrap();
            Param::new(name, tensor, kind)
        };
        let params = PARAMS.iter().enumerate().map(make).collect();
        Self { runtime, params }
    }

    pub fn step(&self, optimizer: &mut Optimizer, step: u64) {
        self.runtime.begin("opt", Phase::Optimizer);
        for (index, param) in self.params.iter().enumerate() {
            let values = gradient(index, param.tensor.shape(), step);
            let grad = self.runtime.tensor(&values, param.tensor.shape(), param.tensor.dtype()).unwrap();
            param.tensor.set_grad(Some(grad));
        }
        optimizer.step(&self.params).unwrap();
    }

    /// Writes the states of one optimizer over those of another, as a checkpoint does.
    pub fn hand_over(&self, from: &Optimizer, to: &mut Optimizer) {
        to.prepare(&self.params).unwrap();
        to.set_steps(from.steps());
        let (from, to) = (from.state_tensors(&self.params), to.state_tensors(&self.params));
        assert_eq!(from.len(), to.len());
        for ((param, slot, from), (same_param, same_slot, to)) in from.into_iter().zip(to) {
            assert_eq!((&param, slot), (&same_param, same_slot));
            to.copy_(&from).unwrap();
        }
    }

    pub fn weights(&self) -> Vec<Vec<f64>> {
        self.params.iter().map(|p| p.tensor.to_vec().unwrap()).collect()
    }
}

pub fn hyper() -> Hyper {
    Hyper { lr: 1e-2, weight_decay: 0.1, ..Hyper::default() }
}

/// `beta2` as the script has it: the frameworks' default of Lion differs.
pub fn optimizer(kind: OptimizerKind, master: bool) -> Optimizer {
    let beta2 = if kind.kind == Kind::Lion { 0.99 } else { 0.999 };
    Optimizer::new(kind, Hyper { beta2, ..hyper() }, master)
}

pub fn every_kind() -> impl Iterator<Item = OptimizerKind> {
    Kind::ALL.into_iter().flat_map(|kind| IMPLEMENTATIONS.map(|implementation| OptimizerKind { kind, implementation }))
}

const REFERENCE: &str = include_str!("reference.txt");

/// The values of a line of the reference.
pub fn line(rule: &str, param: &str) -> Vec<f64> {
    let start = format!("{rule} {param} ");
    let line = REFERENCE.lines().find_map(|line| line.strip_prefix(&start));
    let line = line.unwrap_or_else(|| panic!("no line `{start}` in the reference"));
    line.split(' ').map(|x| x.parse().unwrap()).collect()
}
