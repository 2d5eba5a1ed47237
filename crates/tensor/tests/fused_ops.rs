//! Fused norms, activations, rotary embedding, dropout, grouped products: equal to the composition of small ops in
//! values and gradients, with costs proved by counting, on both devices alike.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::ops::adamw::AdamW;
use napkin_tensor::ops::rope::RopeStyle;
use napkin_tensor::ops::swiglu::Act;
use napkin_tensor::{CastLists, DType, Device, Error, Result, Runtime, Tensor};

type Program = fn(&[Tensor]) -> Result<Tensor>;

/// Inputs of the given shapes; the first `grads` of them require gradients.
fn inputs(rt: &Runtime, shapes: &[&[u64]], grads: usize, dtype: DType) -> Vec<Tensor> {
    let make = |(i, shape): (usize, &&[u64])| {
        let x = rt.randn(shape, dtype).unwrap();
        if i < grads { x.require_grad().unwrap() } else { x }
    };
    shapes.iter().enumerate().map(make).collect()
}

/// Value and gradients of a program under a loss that weighs every element differently.
fn evaluate(rt: &Runtime, program: Program, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let y = program(inputs).unwrap();
    let count = y.elements();
    let weights = rt.arange(count, 0.3, 0.7, y.dtype()).unwrap().sin().unwrap().view(y.shape()).unwrap();
    y.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
    let grads = inputs.iter().filter(|t| t.requires_grad()).map(|t| {
        let grad = t.grad().unwrap();
        t.zero_grad();
        grad
    });
    std::iter::once(y.clone()).chain(grads).map(|t| t.to_vec_or_empty()).collect()
}

trait ToVec {
    fn to_vec_or_empty(&self) -> Vec<f64>;
}

impl ToVec for Tensor {
    fn to_vec_or_empty(&self) -> Vec<f64> {
        if self.runtime().holds_data() { self.to_vec().unwrap() } else { Vec::new() }
    }
}

fn close(a: &[Vec<f64>], b: &[Vec<f64>], tolerance: f64, what: &str) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len(), "{what} {i}");
        for (x, y) in a.iter().zip(b) {
            assert!((x - y).abs() <= tolerance * (1.0 + x.abs()), "{what}, result {i}: {x} {y}");
        }
    }
}

/// One row: a fused program, its composition, and what it works on.
struct Case {
    name: &'static str,
    shapes: &'static [&'static [u64]],
    grads: usize,
    fused: Program,
    composed: Program,
}

fn normalised(x: &Tensor) -> Result<Tensor> {
    let h = x.size(-1) as f64;
    let d = x.sub(&x.sum(&[-1], true)?.div_scalar(h)?)?;
    let variance = d.mul(&d)?.sum(&[-1], true)?.div_scalar(h)?;
    d.mul(&variance.add_scalar(1e-2)?.rsqrt()?)
}

fn rms(x: &Tensor) -> Result<Tensor> {
    let mean = x.mul(x)?.sum(&[-1], true)?.div_scalar(x.size(-1) as f64)?;
    x.mul(&mean.add_scalar(1e-2)?.rsqrt()?)
}

fn gelu_erf(x: &Tensor) -> Result<Tensor> {
    let erf = x.mul_scalar(std::f64::consts::FRAC_1_SQRT_2)?.erf()?;
    x.mul_scalar(0.5)?.mul(&erf.add_scalar(1.0)?)
}

fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    let cube = x.mul(x)?.mul(x)?.mul_scalar(0.044_715)?;
    let inner = x.add(&cube)?.mul_scalar((2.0 / std::f64::consts::PI).sqrt())?.tanh()?;
    x.mul_scalar(0.5)?.mul(&inner.add_scalar(1.0)?)
}

fn silu(x: &Tensor) -> Result<Tensor> {
    x.mul(&x.sigmoid()?)
}

/// Rotation of the first `2 m` channels, whose pairs have been put side by side as two halves `m` wide.
fn rotate(first: &Tensor, second: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<(Tensor, Tensor)> {
    Ok((first.mul(cos)?.sub(&second.mul(sin)?)?, second.mul(cos)?.add(&first.mul(sin)?)?))
}

const ROW: &[u64] = &[2, 3, 5];
const H: &[u64] = &[5];
const HEADS: &[u64] = &[2, 3, 4, 6];

const CASES: &[Case] = &[
    Case {
        name: "layer_norm",
        shapes: &[ROW, H, H],
        grads: 3,
        fused: |t| t[0].layer_norm(Some(&t[1]), Some(&t[2]), 1e-2),
        composed: |t| normalised(&t[0])?.mul(&t[1])?.add(&t[2]),
    },
    Case {
        name: "layer_norm without bias",
        shapes: &[ROW, H],
        grads: 2,
        fused: |t| t[0].layer_norm(Some(&t[1]), None, 1e-2),
        composed: |t| normalised(&t[0])?.mul(&t[1]),
    },
    Case {
        name: "layer_norm without weight",
        shapes: &[ROW, H],
        grads: 2,
        fused: |t| t[0].layer_norm(None, Some(&t[1]), 1e-2),
        composed: |t| normalised(&t[0])?.add(&t[1]),
    },
    Case {
        name: "layer_norm plain, frozen weight, of a transposed input",
        shapes: &[&[3, 5, 2], H],
        grads: 1,
        fused: |t| t[0].transpose(1, 2)?.layer_norm(Some(&t[1]), None, 1e-2)?.layer_norm(None, None, 1e-2),
        composed: |t| normalised(&normalised(&t[0].transpose(1, 2)?)?.mul(&t[1])?),
    },
    Case {
        name: "rms_norm",
        shapes: &[ROW, H],
        grads: 2,
        fused: |t| t[0].rms_norm(Some(&t[1]), 1e-2),
        composed: |t| rms(&t[0])?.mul(&t[1]),
    },
    Case {
        name: "rms_norm with unit offset, frozen weight, and plain",
        shapes: &[ROW, H],
        grads: 1,
        fused: |t| t[0].rms_norm_unit_offset(&t[1], 1e-2)?.rms_norm(None, 1e-2),
        composed: |t| rms(&rms(&t[0])?.mul(&t[1].add_scalar(1.0)?)?),
    },
    Case {
        name: "rms_norm with unit offset",
        shapes: &[ROW, H],
        grads: 2,
        fused: |t| t[0].rms_norm_unit_offset(&t[1], 1e-2),
        composed: |t| rms(&t[0])?.mul(&t[1].add_scalar(1.0)?),
    },
    Case { name: "gelu", shapes: &[ROW], grads: 1, fused: |t| t[0].gelu(), composed: |t| gelu_erf(&t[0]) },
    Case { name: "gelu_tanh", shapes: &[ROW], grads: 1, fused: |t| t[0].gelu_tanh(), composed: |t| gelu_tanh(&t[0]) },
    Case { name: "silu", shapes: &[ROW], grads: 1, fused: |t| t[0].silu(), composed: |t| silu(&t[0]) },
    Case {
        name: "swiglu",
        shapes: &[ROW, ROW],
        grads: 2,
        fused: |t| t[0].swiglu(&t[1]),
        composed: |t| silu(&t[0])?.mul(&t[1]),
    },
    Case {
        name: "swiglu, up frozen",
        shapes: &[ROW, ROW],
        grads: 1,
        fused: |t| t[0].swiglu(&t[1]),
        composed: |t| silu(&t[0])?.mul(&t[1]),
    },
    Case {
        name: "swiglu, gate frozen",
        shapes: &[ROW, ROW],
        grads: 1,
        fused: |t| t[1].swiglu(&t[0]),
        composed: |t| silu(&t[1])?.mul(&t[0]),
    },
    Case {
        name: "geglu",
        shapes: &[ROW, ROW],
        grads: 2,
        fused: |t| t[0].gated(Act::GeluErf, &t[1]),
        composed: |t| gelu_erf(&t[0])?.mul(&t[1]),
    },
    Case {
        name: "geglu tanh",
        shapes: &[ROW, ROW],
        grads: 2,
        fused: |t| t[0].gated(Act::GeluTanh, &t[1]),
        composed: |t| gelu_tanh(&t[0])?.mul(&t[1]),
    },
    Case {
        name: "reglu",
        shapes: &[ROW, ROW],
        grads: 2,
        fused: |t| t[0].gated(Act::Relu, &t[1]),
        composed: |t| t[0].relu()?.mul(&t[1]),
    },
    Case {
        name: "glu, packed",
        shapes: &[&[2, 3, 10]],
        grads: 1,
        fused: |t| t[0].gated_packed(Act::Sigmoid),
        composed: |t| t[0].narrow(2, 0, 5)?.sigmoid()?.mul(&t[0].narrow(2, 5, 5)?),
    },
    Case {
        name: "glu",
        shapes: &[ROW, ROW],
        grads: 2,
        fused: |t| t[0].gated(Act::Sigmoid, &t[1]),
        composed: |t| t[0].sigmoid()?.mul(&t[1]),
    },
    Case {
        name: "rope, whole head, halves, strided",
        shapes: &[&[2, 4, 3, 6], &[4, 3], &[4, 3]],
        grads: 1,
        fused: |t| t[0].transpose(1, 2)?.rope(&t[1], &t[2], 6, RopeStyle::Half),
        composed: |t| {
            let x = t[0].transpose(1, 2)?;
            let (a, b) = rotate(&x.narrow(3, 0, 3)?, &x.narrow(3, 3, 3)?, &t[1], &t[2])?;
            Tensor::cat(&[&a, &b], 3)
        },
    },
    Case {
        name: "rope, partial, halves, tables of full width per batch",
        shapes: &[HEADS, &[2, 4, 4], &[2, 4, 4]],
        grads: 1,
        fused: |t| t[0].rope(&t[1], &t[2], 4, RopeStyle::Half),
        composed: |t| {
            let (x, pass) = (t[0].narrow(3, 0, 4)?, t[0].narrow(3, 4, 2)?);
            let table = |t: &Tensor| t.view(&[2, 1, 4, 4]);
            let (a, b) = (x.narrow(3, 0, 2)?, x.narrow(3, 2, 2)?);
            let turned = Tensor::cat(&[&b.neg()?, &a], 3)?;
            let y = x.mul(&table(&t[1])?)?.add(&turned.mul(&table(&t[2])?)?)?;
            Tensor::cat(&[&y, &pass], 3)
        },
    },
    Case {
        name: "rope, partial, interleaved",
        shapes: &[HEADS, &[1, 4, 2], &[1, 4, 2]],
        grads: 1,
        fused: |t| t[0].rope(&t[1], &t[2], 4, RopeStyle::Interleaved),
        composed: |t| {
            let pairs = t[0].narrow(3, 0, 4)?.reshape(&[2, 3, 4, 2, 2])?;
            let (a, b) = rotate(&pairs.select(4, 0)?, &pairs.select(4, 1)?, &t[1], &t[2])?;
            let wide = |t: Tensor| t.view(&[2, 3, 4, 2, 1]);
            let y = Tensor::cat(&[&wide(a)?, &wide(b)?], 4)?.view(&[2, 3, 4, 4])?;
            Tensor::cat(&[&y, &t[0].narrow(3, 4, 2)?], 3)
        },
    },
    Case {
        name: "dropout",
        shapes: &[ROW],
        grads: 1,
        fused: |t| t[0].dropout(0.4),
        composed: |t| t[0].dropout_composed(0.4),
    },
    Case {
        name: "grouped_linear",
        shapes: &[&[6, 3], &[3, 4, 3]],
        grads: 2,
        fused: |t| t[0].grouped_linear(&t[1], &t[0].runtime().tensor(&[2.0, 0.0, 4.0], &[3], DType::I64)?),
        composed: |t| {
            let first = t[0].narrow(0, 0, 2)?.linear(&t[1].select(0, 0)?, None)?;
            let last = t[0].narrow(0, 2, 4)?.linear(&t[1].select(0, 2)?, None)?;
            Tensor::cat(&[&first, &last], 0)
        },
    },
    Case {
        name: "grouped_linear_transposed",
        shapes: &[&[6, 3], &[2, 3, 4]],
        grads: 2,
        fused: |t| t[0].grouped_linear_transposed(&t[1], &t[0].runtime().tensor(&[5.0, 1.0], &[2], DType::I32)?),
        composed: |t| {
            let first = t[0].narrow(0, 0, 5)?.matmul(&t[1].select(0, 0)?)?;
            let last = t[0].narrow(0, 5, 1)?.matmul(&t[1].select(0, 1)?)?;
            Tensor::cat(&[&first, &last], 0)
        },
    },
    Case {
        name: "unary gradients in one op",
        shapes: &[ROW],
        grads: 1,
        fused: |t| t[0].tanh()?.add(&t[0].sigmoid()?)?.add(&t[0].softplus()?),
        composed: |t| {
            let (up, down) = (t[0].exp()?, t[0].neg()?.exp()?);
            let tanh = up.sub(&down)?.div(&up.add(&down)?)?;
            tanh.add(&down.add_scalar(1.0)?.reciprocal()?)?.add(&up.add_scalar(1.0)?.log()?)
        },
    },
];

#[test]
fn fused_equals_composed() {
    for case in CASES {
        let run = |program| {
            let rt = Runtime::with_seed(Device::Cpu, 7);
            let inputs = inputs(&rt, case.shapes, case.grads, DType::F64);
            evaluate(&rt, program, &inputs)
        };
        close(&run(case.fused), &run(case.composed), 1e-12, case.name);
    }
}

#[test]
fn costs_are_what_the_kernels_do_and_both_devices_agree() {
    for case in CASES {
        let rt = Runtime::with_seed(Device::Cpu, 7);
        let operands = inputs(&rt, case.shapes, case.grads, DType::F32);
        let before = rt.take_trace();
        rt.count_arithmetic();
        evaluate(&rt, case.fused, &operands);
        let (counts, trace) = (rt.take_counts(), rt.take_trace());
        assert_eq!(counts.len(), trace.ops.len());
        for (event, count) in trace.ops.iter().zip(counts) {
            let stated = event.cost.matmul + event.cost.elementwise + event.cost.recomputed;
            assert_eq!(stated, u128::from(count), "{}: {}", case.name, event.op.name());
        }

        let meta = Runtime::with_seed(Device::Meta, 7);
        let operands = inputs(&meta, case.shapes, case.grads, DType::F32);
        assert_eq!(before.ops.len(), meta.take_trace().ops.len());
        evaluate(&meta, case.fused, &operands);
        let traced = meta.take_trace();
        assert_eq!(traced.memory, trace.memory, "{}", case.name);
        let costs = |t: &napkin_tensor::Trace| t.ops.iter().map(|e| (e.op.name(), e.cost)).collect::<Vec<_>>();
        assert_eq!(costs(&traced), costs(&trace), "{}", case.name);
    }
}

#[test]
fn low_precision_statistics_are_f32_unless_asked_otherwise() {
    use napkin_tensor::ops::layer_norm::Stats;
    let rt = Runtime::new(Device::Meta);
    let x = rt.zeros(&[4, 8], DType::BF16).unwrap().require_grad().unwrap();
    let w = rt.ones(&[8], DType::BF16).unwrap().require_grad().unwrap();
    let kept = |f: &dyn Fn() -> Tensor| {
        let before = rt.live_bytes();
        let y = f();
        rt.live_bytes() - before - y.elements() * 2
    };
    assert_eq!(kept(&|| x.layer_norm(Some(&w), None, 1e-5).unwrap()), 2 * 4 * 4);
    assert_eq!(kept(&|| x.layer_norm_keeping(Some(&w), None, 1e-5, Stats::AsInput).unwrap()), 2 * 4 * 2);
    assert_eq!(kept(&|| x.rms_norm(Some(&w), 1e-5).unwrap()), 4 * 4);
    assert_eq!(kept(&|| x.gelu().unwrap()), 0);
    assert_eq!(kept(&|| x.dropout(0.1).unwrap()), 4 * 8);
    assert_eq!(kept(&|| x.dropout_composed(0.1).unwrap()), 4 * 8 * 2);
    // Statistics of f32 weights stay f32, as the reference has it.
    let wide = w.to_dtype(DType::F32).unwrap();
    assert_eq!(kept(&|| x.layer_norm_keeping(Some(&wide), None, 1e-5, Stats::AsInput).unwrap()), 2 * 4 * 4);
}

#[test]
fn backward_makes_one_buffer() {
    let rt = Runtime::new(Device::Meta);
    let x = rt.zeros(&[4, 8], DType::F32).unwrap();
    let programs: [(&str, Program); 7] = [
        ("tanh_backward", |t| t[0].tanh()),
        ("sigmoid_backward", |t| t[0].sigmoid()),
        ("relu_backward", |t| t[0].relu()),
        ("softplus_backward", |t| t[0].softplus()),
        ("gelu_backward", |t| t[0].gelu()),
        ("silu_backward", |t| t[0].silu()),
        ("dropout_backward", |t| t[0].dropout(0.5)),
    ];
    for (name, program) in programs {
        let leaf = x.detach().require_grad().unwrap();
        let y = program(&[leaf]).unwrap();
        let seed = rt.ones(y.shape(), DType::F32).unwrap();
        rt.take_trace();
        y.backward_with(seed).unwrap();
        let ops: Vec<_> = rt.take_trace().ops.iter().map(|e| e.op.name()).collect();
        assert_eq!(ops, [name]);
    }
}

#[test]
fn softplus_and_its_slope_stay_finite() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.tensor(&[-1000.0, 0.0, 30.0, 1000.0], &[4], DType::F32).unwrap().require_grad().unwrap();
    let y = x.softplus().unwrap();
    assert_eq!(y.to_vec().unwrap()[2..], [30.0, 1000.0]);
    y.sum_all().unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec().unwrap(), [0.0, 0.5, 1.0, 1.0]);
}

#[test]
fn dropout_drops_the_stated_share_and_nothing_at_zero() {
    let rt = Runtime::with_seed(Device::Cpu, 1);
    let x = rt.ones(&[10_000], DType::F32).unwrap();
    let y = x.dropout(0.25).unwrap().to_vec().unwrap();
    let left = y.iter().filter(|&&v| v != 0.0).count();
    assert!((7300..7700).contains(&left), "{left}");
    assert!(y.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6));
    assert!(x.dropout(0.0).unwrap().shares_storage_with(&x));
    assert!(x.dropout(1.0).unwrap().to_vec().unwrap().iter().all(|&v| v == 0.0));
    assert!(x.dropout_composed(1.0).unwrap().to_vec().unwrap().iter().all(|&v| v == 0.0));
    assert!(x.dropout(-0.1).is_err() && x.dropout(f64::NAN).is_err());
}

#[test]
fn wrong_operands_are_errors() {
    let rt = Runtime::new(Device::Cpu);
    let zeros = |shape: &[u64]| rt.zeros(shape, DType::F32).unwrap();
    let x = zeros(&[2, 3, 4, 6]);
    assert!(x.layer_norm(Some(&zeros(&[5])), None, 1e-5).is_err());
    assert!(x.layer_norm(None, None, f64::NAN).is_err());
    assert!(zeros(&[]).rms_norm(None, 1e-5).is_err());
    assert!(x.rope(&zeros(&[4, 6]), &zeros(&[4, 6]), 8, RopeStyle::Half).is_err());
    assert!(x.rope(&zeros(&[4, 5]), &zeros(&[4, 5]), 6, RopeStyle::Half).is_err());
    assert!(x.rope(&zeros(&[4, 6]), &zeros(&[4, 3]), 6, RopeStyle::Half).is_err());
    assert!(zeros(&[4, 6]).rope(&zeros(&[4, 6]), &zeros(&[4, 6]), 6, RopeStyle::Half).is_err());
    assert!(x.swiglu(&zeros(&[2])).is_err());
    assert!(zeros(&[3]).gated_packed(Act::Silu).is_err());
    let (rows, weight) = (zeros(&[6, 3]), zeros(&[2, 4, 3]));
    let sizes = |a: f64, b: f64| rt.tensor(&[a, b], &[2], DType::I64).unwrap();
    assert!(rows.grouped_linear(&weight, &sizes(3.0, 3.0)).is_ok());
    for (a, b) in [(3.0, 4.0), (1.0, 1.0), (-1.0, 7.0)] {
        assert!(rows.grouped_linear(&weight, &sizes(a, b)).is_err());
    }
    assert!(rows.grouped_linear(&weight, &zeros(&[2])).is_err());
    assert!(rows.grouped_linear_transposed(&weight, &sizes(3.0, 3.0)).is_err());
}

/// Deterministic numbers without a pattern.
fn wave(rt: &Runtime, count: u64, phase: f64, dtype: DType) -> Tensor {
    rt.arange(count, phase, 0.9, DType::F64).unwrap().sin().unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn in_place_updates() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.tensor(&[1.0, 2.0, 4.0], &[3], DType::F64).unwrap();
    let y = rt.tensor(&[2.0, -2.0, 8.0], &[3], DType::F64).unwrap();
    let z = rt.tensor(&[4.0], &[1], DType::F64).unwrap();
    let fresh = || x.copy().unwrap();
    let values = |t: Result<Tensor>| t.unwrap().to_vec().unwrap();
    assert_eq!(values(fresh().lerp_(&y, 0.25)), [1.25, 1.0, 5.0]);
    assert_eq!(values(fresh().lerp_(&y, 1.0)), [2.0, -2.0, 8.0]);
    assert_eq!(values(fresh().add_scaled_(&y, -0.5)), [0.0, 3.0, 0.0]);
    assert_eq!(values(fresh().addcmul_(&y, &z, 0.5)), [5.0, -2.0, 20.0]);
    assert_eq!(values(fresh().addcdiv_(&y, &z, 2.0)), [2.0, 1.0, 8.0]);
    assert!(z.lerp_(&y, 0.5).is_err());
    assert!(x.expand(&[2, 3]).unwrap().add_scaled_(&x, 1.0).is_err());
    assert!(rt.zeros(&[3], DType::I64).unwrap().addcmul_(&x, &y, 1.0).is_err());
}

#[test]
fn fused_adamw_equals_the_steps_of_the_loop() {
    let rt = Runtime::new(Device::Cpu);
    let new = |phase: f64| wave(&rt, 7, phase, DType::F64);
    let op = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 0, master: false };
    let (p, m, v) = (new(0.0), new(9.0).mul_scalar(0.0).unwrap(), new(9.0).mul_scalar(0.0).unwrap());
    let (q, n, w) = (p.copy().unwrap(), m.copy().unwrap(), v.copy().unwrap());
    for step in 1..=3 {
        let grad = new(f64::from(step));
        let op = AdamW { step: step as u64, ..op };
        let live = rt.live_bytes();
        p.adamw_(&grad, &m, &v, None, &op).unwrap();
        assert_eq!(rt.live_bytes(), live);
        // The reference's loop, op by op.
        q.mul_scalar_(1.0 - op.lr * op.weight_decay).unwrap();
        n.lerp_(&grad, 1.0 - op.beta1).unwrap();
        w.mul_scalar_(op.beta2).unwrap().addcmul_(&grad, &grad, 1.0 - op.beta2).unwrap();
        let root = w.sqrt().unwrap().div_scalar((1.0 - op.beta2.powi(step)).sqrt()).unwrap();
        let step_size = op.lr / (1.0 - op.beta1.powi(step));
        q.addcdiv_(&n, &root.add_scalar_(op.eps).unwrap(), -step_size).unwrap();
    }
    let values = |t: [&Tensor; 3]| t.map(|t| t.to_vec().unwrap()).to_vec();
    close(&values([&p, &m, &v]), &values([&q, &n, &w]), 1e-14, "adamw");
}

#[test]
fn the_parameter_is_the_rounded_master() {
    let rt = Runtime::new(Device::Cpu);
    let master = wave(&rt, 7, 0.3, DType::F32);
    let p = rt.zeros(&[7], DType::BF16).unwrap();
    let (m, v) = (rt.zeros(&[7], DType::F32).unwrap(), rt.zeros(&[7], DType::F32).unwrap());
    let op = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0, step: 1, master: true };
    let before = master.to_vec().unwrap();
    p.adamw_(&wave(&rt, 7, 1.0, DType::BF16), &m, &v, Some(&master), &op).unwrap();
    assert_eq!(p.to_vec().unwrap(), master.to_dtype(DType::BF16).unwrap().to_vec().unwrap());
    // The first step has length lr, whatever the gradient.
    for (a, b) in before.iter().zip(master.to_vec().unwrap()) {
        assert!(((a - b).abs() - 0.01).abs() < 1e-6);
    }
    let event = rt.take_trace().ops.into_iter().find(|e| e.op.name() == "adamw").unwrap();
    assert_eq!((event.cost.read, event.cost.written), (7 * (2 + 4 + 4 + 4), 7 * (2 + 4 + 4 + 4)));

    assert!(p.adamw_(&p, &m, &v, None, &op).is_err());
    assert!(p.adamw_(&p, &m, &v, Some(&master), &AdamW { step: 0, ..op.clone() }).is_err());
    assert!(p.adamw_(&p, &m, &v, Some(&master), &AdamW { beta1: 1.0, ..op.clone() }).is_err());
    assert!(p.adamw_(&p, &m, &m, Some(&master), &op).is_err(), "one tensor as two states");
    let leaf = p.require_grad().unwrap();
    assert!(leaf.adamw_(&m, &m.copy().unwrap(), &v, Some(&master), &op).is_err());
    let step = || leaf.adamw_(&m, &m.copy()?, &v, Some(&master), &op);
    assert!(rt.no_grad(step).is_ok());
}

#[test]
fn every_tensor_written_in_place_is_seen_by_the_tape() {
    let rt = Runtime::new(Device::Cpu);
    let x = wave(&rt, 4, 0.0, DType::F32).require_grad().unwrap();
    let (p, m, v) = (wave(&rt, 4, 1.0, DType::F32), wave(&rt, 4, 2.0, DType::F32), wave(&rt, 4, 3.0, DType::F32));
    let op = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0, step: 1, master: false };
    for kept in [&p, &m, &v] {
        let y = x.mul(kept).unwrap().sum_all().unwrap();
        p.adamw_(&p, &m, &v, None, &op).unwrap();
        assert!(matches!(y.backward(), Err(Error::SavedWasChanged { .. })));
        rt.clear_tape();
    }
}

#[test]
fn autocast_follows_the_lists() {
    let dtypes = |lists, program: Program| {
        let rt = Runtime::new(Device::Meta);
        let x = rt.zeros(&[4, 8], DType::BF16).unwrap();
        let w = rt.zeros(&[8], DType::F32).unwrap();
        let wide = rt.zeros(&[2, 3, 8], DType::F32).unwrap();
        rt.with_autocast(DType::BF16, lists, || program(&[x, w, wide]).unwrap().dtype())
    };
    for (cpu, cuda, program) in [
        (DType::BF16, DType::F32, (|t| t[0].layer_norm(Some(&t[1]), Some(&t[1]), 1e-5)) as Program),
        (DType::BF16, DType::F32, |t| t[0].rms_norm(Some(&t[1]), 1e-5)),
        (DType::BF16, DType::F32, |t| t[0].softplus()),
        (DType::BF16, DType::BF16, |t| t[0].gelu()),
        (DType::BF16, DType::BF16, |t| t[0].swiglu(&t[0])),
        (DType::BF16, DType::BF16, |t| t[0].dropout(0.5)),
        (DType::F32, DType::F32, |t| Tensor::cat(&[&t[0], &t[2].select(0, 0)?], 0)),
        (DType::BF16, DType::BF16, |t| t[0].grouped_linear(&t[2], &t[0].runtime().zeros(&[2], DType::I64)?)),
    ] {
        assert_eq!((dtypes(CastLists::Cpu, program), dtypes(CastLists::Cuda, program)), (cpu, cuda));
    }
}
