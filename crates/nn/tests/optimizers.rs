//! Optimizers against PyTorch and against NumPy scripts from the papers (`reference/optim.py`), in every implementation,
//! with and without master copies.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::optim::{Hyper, Implementation, Kind, Optimizer, OptimizerKind, Slot, orthogonalize};
use napkin_nn::{Param, ParamKind};
use tensor::{DType, Device, Phase, Role, Runtime, Tensor};

const REFERENCE: &str = include_str!("reference/optim.txt");
const STEPS: u64 = 6;
const IMPLEMENTATIONS: [Implementation; 3] = [Implementation::Fused, Implementation::ForLoop, Implementation::ForEach];

/// Name, shape, kind, and every how manieth element the reference has.
const PARAMS: [(&str, &[u64], ParamKind, usize); 5] = [
    ("matrix", &[8, 6], ParamKind::Matrix, 1),
    ("large", &[64, 65], ParamKind::Matrix, 97),
    ("experts", &[2, 3, 4], ParamKind::Expert { experts: 2, top_k: 1 }, 1),
    ("table", &[5, 4], ParamKind::Embedding, 1),
    ("vector", &[7], ParamKind::Vector, 1),
];

fn values(shape: &[u64], f: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..shape.iter().product::<u64>()).map(|i| f64::from(f(i as f64) as f32)).collect()
}

/// The gradient of parameter `index` at `step`, as the script has it.
fn gradient(index: usize, shape: &[u64], step: u64) -> Vec<f64> {
    let phase = 0.9 * step as f64 + index as f64;
    values(shape, |i| (1.3 * i + phase).cos() * 10f64.powf((0.37 * i).sin() - 1.0))
}

struct Bench {
    runtime: Runtime,
    params: Vec<Param>,
}

impl Bench {
    fn new(dtype: DType) -> Self {
        let runtime = Runtime::new(Device::Cpu);
        runtime.set_recording(false);
        runtime.begin("init", Phase::Init);
        let make = |(index, &(name, shape, kind, _)): (usize, &(&str, &[u64], ParamKind, usize))| {
            let start = values(shape, |i| 0.5 * (0.7 * i + index as f64).sin() + 0.1);
            let tensor = runtime.tensor(&start, shape, dtype).unwrap().with_role(Role::Parameter);
            let tensor = tensor.require_grad().unwrap();
            Param { name: name.to_owned(), tensor, kind, tied: Vec::new(), trainable: true }
        };
        let params = PARAMS.iter().enumerate().map(make).collect();
        Self { runtime, params }
    }

    fn step(&self, optimizer: &mut Optimizer, step: u64) {
        self.runtime.begin("opt", Phase::Optimizer);
        for (index, param) in self.params.iter().enumerate() {
            let values = gradient(index, param.tensor.shape(), step);
            let grad = self.runtime.tensor(&values, param.tensor.shape(), param.tensor.dtype()).unwrap();
            param.tensor.set_grad(Some(grad));
        }
        optimizer.step(&self.params).unwrap();
    }

    fn weights(&self) -> Vec<Vec<f64>> {
        self.params.iter().map(|p| p.tensor.to_vec().unwrap()).collect()
    }
}

fn hyper() -> Hyper {
    Hyper { lr: 1e-2, weight_decay: 0.1, ..Hyper::default() }
}

/// `beta2` as the script has it: the frameworks' default of Lion differs.
fn optimizer(kind: OptimizerKind, master: bool) -> Optimizer {
    let beta2 = if kind.kind == Kind::Lion { 0.99 } else { 0.999 };
    Optimizer::new(kind, Hyper { beta2, ..hyper() }, master)
}

fn every_kind() -> impl Iterator<Item = OptimizerKind> {
    Kind::ALL.into_iter().flat_map(|kind| IMPLEMENTATIONS.map(|implementation| OptimizerKind { kind, implementation }))
}

/// The values of a line of the reference.
fn line(rule: &str, param: &str) -> Vec<f64> {
    let start = format!("{rule} {param} ");
    let line = REFERENCE.lines().find_map(|line| line.strip_prefix(&start));
    let line = line.unwrap_or_else(|| panic!("no line `{start}` in the reference"));
    line.split(' ').map(|x| x.parse().unwrap()).collect()
}

#[test]
fn weights_after_six_updates_equal_the_reference() {
    for kind in every_kind() {
        let bench = Bench::new(DType::F32);
        let mut optimizer = optimizer(kind, false);
        for step in 1..=STEPS {
            bench.step(&mut optimizer, step);
        }
        for (weights, &(name, _, param, stride)) in bench.weights().iter().zip(&PARAMS) {
            // Orthogonalised in bf16, whose products round in another order: 2^-8 of updates that add up to 0.1.
            let bf16 = kind.kind == Kind::Muon && matches!(param, ParamKind::Matrix | ParamKind::Expert { .. });
            // A byte next to the other changes a moment by up to 3 %, and so a sixth of the way by as much.
            let bytes = kind.kind == Kind::Adam8bit && name == "large";
            let tolerance = if bf16 || bytes { 1e-3 } else { 2e-6 };
            let want = line(kind.kind.name(), name);
            let got: Vec<f64> = weights.iter().copied().step_by(stride).collect();
            assert_eq!(got.len(), want.len());
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let off = (got - want).abs();
                assert!(off <= tolerance, "{kind} {name}[{}]: {got}, reference {want}, off by {off:.1e}", i * stride);
            }
        }
    }
}

#[test]
fn newton_schulz_is_the_published_iteration() {
    let rt = Runtime::new(Device::Cpu);
    for (index, shape) in [(0, [8, 6]), (1, [3, 10]), (2, [5, 5])] {
        let matrix = rt.tensor(&gradient(index, &shape, 1), &shape, DType::F64).unwrap();
        let got = orthogonalize(matrix.clone(), DType::F64).unwrap();
        let want = line("newton-schulz", &format!("{}x{}", shape[0], shape[1]));
        for (got, want) in got.to_vec().unwrap().iter().zip(&want) {
            assert!((got - want).abs() < 1e-12, "{shape:?}: {got}, reference {want}");
        }
        // It scales what it is given: the caller's tensor must not be that.
        assert_eq!(matrix.to_vec().unwrap(), gradient(index, &shape, 1));
    }
}

/// Singular values of well-conditioned matrices come near 1: rows (or columns) of the result are nearly orthonormal.
#[test]
fn orthogonalized_matrices_are_nearly_orthogonal() {
    let rt = Runtime::with_seed(Device::Cpu, 3);
    for shape in [[4, 40], [40, 4]] {
        let matrix = rt.randn(&shape, DType::F32).unwrap();
        let o = orthogonalize(matrix, DType::F32).unwrap();
        let o = if shape[0] > shape[1] { o.t().unwrap() } else { o };
        let gram = o.matmul(&o.t().unwrap()).unwrap().to_vec().unwrap();
        for (i, x) in gram.iter().enumerate() {
            let want = f64::from(u8::from(i % 4 == i / 4));
            assert!((x - want).abs() < 0.5, "{shape:?}: {gram:?}");
        }
    }
}

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

#[test]
fn every_element_of_a_tensor_is_within_a_step_of_its_bytes() {
    use tensor::ops::blockwise::Code;
    let rt = Runtime::with_seed(Device::Cpu, 5);
    for code in [Code::Signed, Code::Unsigned] {
        let x = rt.randn(&[10, 100], DType::F32).unwrap();
        let x = if code == Code::Unsigned { x.mul(&x).unwrap() } else { x };
        let (bytes, scales) = (rt.zeros(&[10, 100], DType::U8).unwrap(), rt.zeros(&[4], DType::F32).unwrap());
        bytes.quantize_blockwise_(&scales, &x, code).unwrap();
        let back = bytes.dequantize_blockwise(&scales, code).unwrap().to_vec().unwrap();
        let (x, scales) = (x.to_vec().unwrap(), scales.to_vec().unwrap());
        for (i, (x, back)) in x.iter().zip(&back).enumerate() {
            let part = x.abs() / scales[i / 256];
            // Half the distance of values: 64 of them between 0.1 and 1, 32 between 0.01 and 0.1, 16 and fewer below.
            let allowed = scales[i / 256]
                * [0.45 / 64.0, 0.045 / 32.0, 0.0045 / 16.0][usize::from(part < 0.1) + usize::from(part < 0.01)];
            assert!((x - back).abs() <= 1.001 * allowed, "{code:?}: {x} became {back}");
            assert!(code == Code::Signed || *x == 0.0 || *back > 0.0, "{x} became 0");
        }
    }
    // A block of zeros stays zeros.
    let (bytes, scales) = (rt.zeros(&[3], DType::U8).unwrap(), rt.zeros(&[1], DType::F32).unwrap());
    let zeros: Tensor = rt.zeros(&[3], DType::F32).unwrap();
    bytes.quantize_blockwise_(&scales, &zeros, Code::Signed).unwrap();
    assert_eq!(bytes.dequantize_blockwise(&scales, Code::Signed).unwrap().to_vec().unwrap(), [0.0; 3]);
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
            let saved = first.state_tensors(&parts.params).into_iter().map(|(p, s, t)| (p, s.to_owned(), t)).collect();
            let mut second = optimizer(kind, master);
            second.restore(&parts.params, first.steps(), saved).unwrap();
            for step in 4..=STEPS {
                parts.step(&mut second, step);
            }
            assert_eq!(parts.weights(), whole.weights(), "{kind} {dtype} master {master}");
        }
    }
}

#[test]
fn states_that_do_not_fit_are_refused_one_by_one() {
    let bench = Bench::new(DType::F32);
    let mut first = optimizer("adamw".parse().unwrap(), false);
    bench.step(&mut first, 1);
    let saved = || -> Vec<(String, String, Tensor)> {
        first.state_tensors(&bench.params).into_iter().map(|(p, s, t)| (p, s.to_owned(), t)).collect()
    };
    let refuse = |states: Vec<(String, String, Tensor)>| {
        let mut other = optimizer("adamw".parse().unwrap(), false);
        let problems = other.restore(&bench.params, 1, states).unwrap_err().to_string();
        assert_eq!((other.steps(), other.state_tensors(&bench.params).len()), (0, 0), "nothing is taken over");
        problems
    };
    let missing = refuse(saved().into_iter().skip(1).collect());
    assert!(missing.contains("optimizer state `exp_avg` of `matrix` is missing"), "{missing}");
    let mut misspelt = saved();
    misspelt[1].1 = "exp_avg_square".to_owned();
    let misspelt = refuse(misspelt);
    assert!(misspelt.contains("`exp_avg_sq` of `matrix` is missing"), "{misspelt}");
    assert!(misspelt.contains("has the optimizer state `exp_avg_square` of `matrix`"), "{misspelt}");
    let mut narrow = saved();
    narrow[0].2 = narrow[0].2.to_dtype(DType::BF16).unwrap();
    let narrow = refuse(narrow);
    assert!(narrow.contains("`exp_avg` of `matrix` is [8, 6] bf16, not [8, 6] f32"), "{narrow}");
    let all = refuse(Vec::new());
    assert_eq!(all.matches("is missing").count(), 2 * PARAMS.len(), "all problems at once");
}
