//! Softmax, its logarithm and the losses against their compositions: values, gradients, costs, autocast.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::kernel::{Array, Counted, Data, Num};
use napkin_tensor::meter::{MemoryChange, OpEvent};
use napkin_tensor::ops::nll_loss::{IGNORE_INDEX, Reduction};
use napkin_tensor::{CastLists, DType, Device, Error, Phase, Result, Runtime, Tensor, Trace};

const REDUCTIONS: [Reduction; 2] = [Reduction::Mean, Reduction::Sum];

/// Value, gradient and trace of a function of one random `3 4 5` tensor, in a fixed random direction.
fn gradient_of(f: impl Fn(&Tensor) -> Result<Tensor>) -> (Vec<f64>, Vec<f64>, Trace) {
    let rt = Runtime::with_seed(Device::Cpu, 11);
    let x = rt.randn(&[3, 4, 5], DType::F64).unwrap().require_grad().unwrap();
    let y = f(&x).unwrap();
    let direction = rt.randn(y.shape(), DType::F64).unwrap();
    y.mul(&direction).unwrap().sum_all().unwrap().backward().unwrap();
    (y.to_vec().unwrap(), x.grad().unwrap().to_vec().unwrap(), rt.take_trace())
}

fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() < 1e-12 * (1.0 + y.abs()), "{x} {y}");
    }
}

fn same(fused: impl Fn(&Tensor) -> Result<Tensor>, composed: impl Fn(&Tensor) -> Result<Tensor>) -> Trace {
    let (f, c) = (gradient_of(fused), gradient_of(composed));
    close(&f.0, &c.0);
    close(&f.1, &c.1);
    check_counts(&f.2);
    f.2
}

/// Runs the kernels of all fused events over a counting scalar.
fn check_counts(trace: &Trace) {
    let array = |t: &napkin_tensor::meter::TensorRef| {
        let mut array = Array::full(t.layout.shape(), Counted::zero());
        array.data.iter_mut().enumerate().for_each(|(i, x)| *x = Counted::from_f64(0.1 + (i % 3) as f64));
        array
    };
    let fused = |e: &&OpEvent| ["softmax", "log_softmax", "nll", "cross"].iter().any(|n| e.op.name().starts_with(n));
    for event in trace.ops.iter().filter(fused) {
        let fill = |t| {
            let a: Array<Counted> = array(t);
            match t.dtype {
                DType::I64 => Data::Int(Array { shape: a.shape, data: (0..a.data.len() as i64).map(target).collect() }),
                _ => Data::Num(a),
            }
        };
        let inputs: Vec<_> = event.inputs.iter().map(fill).collect();
        let mut outputs: Vec<_> = event.outputs.iter().map(|t| Data::Num(array(t))).collect();
        let (result, count) = Counted::count(|| event.op.run(&inputs, &mut outputs));
        result.unwrap();
        assert_eq!(u128::from(count), event.cost.elementwise, "{}", event.op.name());
        assert_eq!(event.cost.matmul, 0);
    }
}

/// Targets of the 12 rows of 5 logits; every third is ignored.
fn target(i: i64) -> i64 {
    if i % 3 == 1 { IGNORE_INDEX } else { i * 7 % 5 }
}

fn targets(rt: &Runtime) -> Tensor {
    let t: Vec<f64> = (0..12).map(|i| target(i) as f64).collect();
    rt.input(&t, &[12], DType::I64).unwrap()
}

/// Ones at the targets that count.
fn picks(rt: &Runtime) -> Tensor {
    let hit = |i: i64| f64::from(u8::from(target(i / 5) == i % 5));
    rt.tensor(&(0..60).map(hit).collect::<Vec<_>>(), &[12, 5], DType::F64).unwrap()
}

fn scale(reduction: Reduction) -> f64 {
    if reduction == Reduction::Mean { -1.0 / 8.0 } else { -1.0 }
}

#[test]
fn softmax_and_its_logarithm() {
    for dim in [-1, 0, 1] {
        let composed = |x: &Tensor| {
            let e = x.exp()?;
            e.div(&e.sum(&[dim], true)?)
        };
        let trace = same(|x| x.softmax(dim), composed);
        assert_eq!(trace.ops.iter().filter(|e| e.op.name() == "softmax_backward").count(), 1);
        same(|x| x.log_softmax(dim), |x| composed(x)?.log());
        same(|x| x.transpose(0, 2)?.softmax(dim), |x| composed(&x.transpose(0, 2)?));
    }
}

#[test]
fn softmax_is_stable_and_row_major() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.tensor(&[1e4, 1e4, f64::NEG_INFINITY, -1e4], &[2, 2], DType::F32).unwrap();
    assert_eq!(x.softmax(1).unwrap().to_vec().unwrap(), [0.5, 0.5, 0.0, 1.0]);
    let log = x.log_softmax(1).unwrap().to_vec().unwrap();
    assert!((log[0] + 2f64.ln()).abs() < 1e-6 && log[2] == f64::NEG_INFINITY && log[3] == 0.0);
    assert!(x.t().unwrap().softmax(0).unwrap().is_contiguous());
    assert!(x.softmax(2).is_err());
    assert!(rt.zeros(&[2], DType::I64).unwrap().softmax(0).is_err());
    assert_eq!(rt.zeros(&[0, 3], DType::F32).unwrap().log_softmax(0).unwrap().shape(), [0, 3]);
}

#[test]
fn losses_equal_their_compositions() {
    for reduction in REDUCTIONS {
        let rows = |x: &Tensor| x.view(&[12, 5]);
        let composed = |x: &Tensor| {
            let e = rows(x)?.exp()?;
            let log = e.div(&e.sum(&[1], true)?)?.log()?;
            log.mul(&picks(x.runtime()))?.sum_all()?.mul_scalar(scale(reduction))
        };
        same(|x| rows(x)?.log_softmax(1)?.nll_loss(&targets(x.runtime()), reduction), composed);
        same(|x| rows(x)?.cross_entropy(&targets(x.runtime()), reduction), composed);
        // With a z-loss on the log-sum-exp, and with that alone.
        let lse = |x: &Tensor| rows(x)?.exp()?.sum(&[1], false)?.log();
        let z = |lse: Tensor| lse.mul(&lse)?.sum_all();
        same(
            |x| {
                let mut out = rows(x)?.cross_entropy_with_lse(&targets(x.runtime()), reduction)?;
                let lse = out.remove(1);
                out.remove(0).add(&z(lse)?)
            },
            |x| composed(x)?.add(&z(lse(x)?)?),
        );
        same(|x| z(rows(x)?.cross_entropy_with_lse(&targets(x.runtime()), reduction)?.remove(1)), |x| z(lse(x)?));
    }
}

#[test]
fn ignored_rows_and_wrong_targets() {
    let rt = Runtime::new(Device::Cpu);
    let big = f64::INFINITY;
    let x = rt.tensor(&[big, 0.0, 1.0, 1.0], &[2, 2], DType::F32).unwrap().require_grad().unwrap();
    let none = rt.input(&[-100.0, -100.0], &[2], DType::I64).unwrap();
    assert!(x.cross_entropy(&none, Reduction::Mean).unwrap().item().unwrap().is_nan());
    assert_eq!(x.cross_entropy(&none, Reduction::Sum).unwrap().item().unwrap(), 0.0);
    assert!(x.nll_loss(&none, Reduction::Mean).unwrap().item().unwrap().is_nan());
    let one = rt.input(&[-100.0, 1.0], &[2], DType::I64).unwrap();
    x.cross_entropy(&one, Reduction::Mean).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec().unwrap(), [0.0, 0.0, 0.5, -0.5]);
    for wrong in [2.0, -1.0] {
        let t = rt.input(&[0.0, wrong], &[2], DType::I64).unwrap();
        let expected = |op| Error::Index { op, value: wrong as i64, size: 2 };
        assert_eq!(x.cross_entropy(&t, Reduction::Sum).unwrap_err(), expected("cross_entropy"));
        assert_eq!(x.nll_loss(&t, Reduction::Sum).unwrap_err(), expected("nll_loss"));
    }
    let short = rt.input(&[0.0], &[1], DType::I64).unwrap();
    assert!(matches!(x.nll_loss(&short, Reduction::Sum), Err(Error::Shapes { .. })));
    assert!(matches!(x.nll_loss(&x, Reduction::Sum), Err(Error::Shapes { .. })));
    assert!(matches!(short.nll_loss(&short, Reduction::Sum), Err(Error::Rank { .. })));
    let floats = rt.zeros(&[2], DType::F32).unwrap();
    assert!(matches!(x.cross_entropy(&floats, Reduction::Sum), Err(Error::DType { .. })));
}

#[test]
fn kept_bytes_and_backward_buffers() {
    let (n, v) = (8, 100);
    let run = |loss: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
        let rt = Runtime::new(Device::Meta);
        let x = rt.randn(&[n, v], DType::BF16).unwrap().require_grad().unwrap();
        let t = rt.input(&vec![0.0; n as usize], &[n], DType::I64).unwrap();
        let y = loss(&x, &t);
        let kept = rt.live_bytes() - 2 * n * v - 8 * n;
        y.backward().unwrap();
        let grad = x.grad().unwrap();
        assert_eq!((grad.dtype(), grad.shape()), (DType::BF16, &[n, v][..]));
        let trace = rt.take_trace();
        let backward = trace.ops.iter().filter(|e| e.op.name().ends_with("_backward"));
        (kept, backward.map(|e| e.cost.written).collect::<Vec<_>>())
    };
    let fused = run(&|x, t| x.cross_entropy(t, Reduction::Mean).unwrap());
    assert_eq!(fused, (4 + 4 * n, vec![2 * n * v])); // loss, log-sum-exp
    let two = run(&|x, t| x.log_softmax(1).unwrap().nll_loss(t, Reduction::Mean).unwrap());
    assert_eq!(two, (2 * n * v + 2 + 4, vec![2 * n * v, 2 * n * v]));
    // As on a GPU under autocast: the result is f32, the input is not copied, its gradient is in its dtype.
    let wide = run(&|x, t| x.log_softmax_to(1, DType::F32).unwrap().nll_loss(t, Reduction::Mean).unwrap());
    assert_eq!(wide, (4 * n * v + 4 + 4, vec![4 * n * v, 2 * n * v]));
}

/// What is done with the logits between forward and backward, and what of them is held on to.
type Between = fn(&Runtime, &Tensor) -> Option<Tensor>;

/// Gradient of `x` through the cross-entropy of logits made of it, and how many tensors of their size backward allocates.
fn through_logits(
    device: Device,
    dtype: DType,
    make: fn(&Tensor) -> Result<Tensor>,
    between: Between,
) -> (Vec<f64>, usize) {
    // Rows longer than what a kernel looks at together, and more of them than a thread takes at once.
    let (n, v) = (12, 5000);
    let rt = Runtime::with_seed(device, 5);
    let x = rt.randn(&[n, v], dtype).unwrap().require_grad().unwrap();
    let t = targets(&rt);
    let logits = make(&x).unwrap();
    let loss = logits.cross_entropy(&t, Reduction::Mean).unwrap();
    let held = between(&rt, &logits);
    drop(logits);
    rt.begin("backward", Phase::Backward);
    loss.backward().unwrap();
    drop(held);
    let grad = if rt.holds_data() { x.grad().unwrap().to_vec().unwrap() } else { Vec::new() };
    let trace = rt.take_trace();
    let made = trace.memory[trace.marks[0].memory as usize..].iter().filter(|e| {
        matches!(e.change, MemoryChange::Alloc(_))
            && trace.storages[e.storage.0 as usize].bytes == n * v * dtype.size_in_bytes()
    });
    (grad, made.count())
}

#[test]
fn the_gradient_is_written_over_logits_that_nothing_else_holds() {
    let nothing: Between = |_, _| None;
    let apart: [Between; 3] = [
        |_, logits| Some(logits.detach()),
        |_, logits| Some(logits.detach().narrow(0, 1, 1).unwrap()),
        |rt, _| {
            rt.set_overwrite_saved(false);
            None
        },
    ];
    let double = |x: &Tensor| x.mul_scalar(2.0);
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        // The gradient of x only; else that of the logits too.
        let (expected, made) = through_logits(Device::Cpu, dtype, double, nothing);
        assert_eq!(made, 1, "{dtype}");
        assert_eq!(through_logits(Device::Meta, dtype, double, nothing).1, 1, "{dtype}");
        for between in apart {
            let (grad, made) = through_logits(Device::Cpu, dtype, double, between);
            assert!(grad == expected && made == 2, "{dtype}: {made}");
            assert_eq!(through_logits(Device::Meta, dtype, double, between).1, 2, "{dtype}");
        }
        // The gradient of the exponential needs its result: the tape holds it twice.
        let [held, free] = [apart[2], nothing].map(|between| through_logits(Device::Cpu, dtype, Tensor::exp, between));
        assert!(held == free, "{dtype}");
    }
}

#[test]
fn autocast_follows_the_lists() {
    for (lists, full) in [(CastLists::Cpu, DType::BF16), (CastLists::Cuda, DType::F32)] {
        let rt = Runtime::new(Device::Meta);
        let x = rt.randn(&[4, 6], DType::BF16).unwrap();
        let t = rt.input(&[0.0; 4], &[4], DType::I64).unwrap();
        rt.take_trace();
        rt.with_autocast(DType::BF16, lists, || {
            assert_eq!(x.softmax(1).unwrap().dtype(), full);
            assert_eq!(x.log_softmax(1).unwrap().dtype(), full);
            assert_eq!(x.cross_entropy(&t, Reduction::Mean).unwrap().dtype(), DType::F32);
        });
        assert!(rt.take_trace().ops.iter().all(|e| e.copy.is_none()));
        let loss = rt.with_autocast(DType::BF16, lists, || x.nll_loss(&t, Reduction::Mean).unwrap());
        assert_eq!(loss.dtype(), DType::F32);
        let wide = rt.zeros(&[2], DType::F64).unwrap();
        assert_eq!(rt.with_autocast(DType::BF16, lists, || wide.softmax(0).unwrap()).dtype(), DType::F64);
    }
}

#[test]
fn meta_and_cpu_emit_the_same_events() {
    let run = |device| {
        let rt = Runtime::new(device);
        let x = rt.randn(&[12, 5], DType::BF16).unwrap().require_grad().unwrap();
        let t = targets(&rt);
        let two = x.log_softmax(1).unwrap().nll_loss(&t, Reduction::Mean).unwrap();
        let one = x.softmax(0).unwrap().cross_entropy(&t, Reduction::Sum).unwrap();
        one.add(&two.to_dtype(DType::F32).unwrap()).unwrap().backward().unwrap();
        rt.take_trace()
    };
    let (meta, cpu) = (run(Device::Meta), run(Device::Cpu));
    assert_eq!(meta.ops.len(), cpu.ops.len());
    assert_eq!(meta.memory, cpu.memory);
}

#[test]
fn cross_entropy_gives_the_reference_numbers() {
    // PyTorch 2.15, cross_entropy of sin(0.7 i) as 4 x 5 logits in float64.
    let rt = Runtime::new(Device::Cpu);
    let logits: Vec<f64> = (0..20).map(|i| (f64::from(i) * 0.7).sin()).collect();
    let x = rt.tensor(&logits, &[4, 5], DType::F64).unwrap().require_grad().unwrap();
    let t = rt.input(&[1.0, -100.0, 4.0, 0.0], &[4], DType::I64).unwrap();
    let loss = x.cross_entropy(&t, Reduction::Mean).unwrap();
    close(&loss.to_vec().unwrap(), &[2.167_074_977_364_468_4]);
    loss.backward().unwrap();
    let grad = x.grad().unwrap().to_vec().unwrap();
    close(
        &[0, 1, 7, 19].map(|i| grad[i]),
        &[0.035_642_260_617_873_37, -0.265_452_771_508_884_8, 0.0, 0.150_827_427_004_793_07],
    );
}
