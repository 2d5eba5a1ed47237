//! The fast kernels on sizes where they change their ways: nothing, one element, odd rows, more than one piece of work.
//!
//! Against the plain kernels, and with the same bits on any number of threads.

use crate::inputs::{Inputs, loss};
use napkin_tensor::cpu::Threads;
use napkin_tensor::ops::adamw::AdamW;
use napkin_tensor::ops::layer_norm::Stats;
use napkin_tensor::ops::nll_loss::Reduction;
use napkin_tensor::ops::{rope::RopeStyle, swiglu::Act};
use napkin_tensor::{DType, Device, Kernels, Result, Tensor};

/// A program on `rows width` operands.
type Case = (&'static str, fn(&mut Inputs, u64, u64) -> Result<Vec<Tensor>>);

const CASES: &[Case] = &[
    ("add, mul of a row and a column", |g, n, h| {
        let (x, row, column) = (g.float(&[n, h])?, g.float(&[h])?, g.float(&[n, 1])?);
        Ok(vec![x.add(&row)?, x.mul(&column)?, x.add(&x)?])
    }),
    ("in place", |g, n, h| {
        let (x, y) = (g.target(&[n, h])?, g.data(&[h])?);
        Ok(vec![x.add_(&y)?, x.mul_scalar_(1.5)?])
    }),
    ("unary", |g, n, h| {
        let x = g.float(&[n, h])?;
        Ok(vec![x.exp()?, x.tanh()?, x.gelu()?, x.gelu_tanh()?, x.silu()?])
    }),
    ("gated", |g, n, h| {
        let (gate, up, both) = (g.float(&[n, h])?, g.float(&[n, h])?, g.float(&[n, 2 * h])?);
        Ok(vec![gate.swiglu(&up)?, both.gated_packed(Act::Silu)?])
    }),
    ("masks", |g, n, h| {
        let (x, mask) = (g.float(&[n, h])?, g.mask(&[n, h])?);
        Ok(vec![x.masked_fill(&mask, -2.0)?, x.dropout(0.3)?])
    }),
    ("copies", |g, n, h| {
        let x = g.float(&[n, h])?;
        let turned = x.t()?.contiguous()?;
        let deep = x.unsqueeze(0)?.expand(&[3, n, h])?.permute(&[2, 0, 1])?.copy()?;
        Ok(vec![turned, deep, Tensor::cat(&[&x, &x], 1)?, Tensor::cat(&[&x, &x], 0)?])
    }),
    ("copy_ into a part", |g, n, h| {
        let (x, y) = (g.target(&[n, h + 3])?, g.data(&[n, h])?);
        x.narrow(1, 2, h)?.copy_(&y)?;
        Ok(vec![x])
    }),
    ("casts", |g, n, h| {
        let x = g.data(&[n, h])?;
        [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::Bool]
            .map(|d| x.to_dtype(d))
            .into_iter()
            .collect()
    }),
    ("triangles", |g, n, h| {
        let x = g.float(&[2, n, h])?;
        Ok(vec![x.triu(1)?, x.tril(0)?, x.triu(-40)?, x.tril(40)?])
    }),
    ("where, clamp", |g, n, h| {
        let (x, y, mask) = (g.float(&[n, h])?, g.float(&[h])?, g.mask(&[n, 1])?);
        Ok(vec![mask.where_cond(&x, &y)?, x.clamp(-0.5, 0.5)?, x.relu()?, x.softplus()?])
    }),
    ("steps of optimizers", |g, n, h| {
        let (x, a, b) = (g.target(&[n, h])?, g.data(&[n, h])?, g.data(&[h])?);
        let b = b.mul(&b)?.add_scalar(0.5)?;
        Ok(vec![x.lerp_(&a, 0.1)?, x.add_scaled_(&a, 0.5)?, x.addcmul_(&a, &b, -0.5)?, x.addcdiv_(&a, &b, 2.0)?])
    }),
    ("layer_norm", |g, n, h| {
        let (x, w, b) = (g.float(&[n, h])?, g.float(&[h])?, g.float(&[h])?);
        let plain = x.layer_norm_keeping(None, None, 1e-5, Stats::AsInput)?;
        Ok(vec![x.layer_norm(Some(&w), Some(&b), 1e-5)?, plain])
    }),
    ("rms_norm", |g, n, h| {
        let (x, w) = (g.float(&[n, h])?, g.float(&[h])?);
        Ok(vec![x.rms_norm(Some(&w), 1e-5)?, x.rms_norm_unit_offset(&w, 1e-5)?])
    }),
    ("softmax", |g, n, h| {
        let x = g.float(&[n, h])?;
        Ok(vec![x.softmax(-1)?, x.log_softmax(-1)?, x.logsumexp(-1, false)?])
    }),
    ("cross_entropy", |g, n, h| {
        let (x, targets) = (g.float(&[n, h])?, g.index(&[n], h.max(1))?);
        let ignored = g.rt.full(&[1], -100.0, DType::I64)?;
        let targets = Tensor::cat(&[&ignored, &targets.narrow(0, n.min(1), n - n.min(1))?], 0)?.narrow(0, 0, n)?;
        let mut all = x.cross_entropy_with_lse(&targets, Reduction::Sum)?.into_vec();
        all.push(x.cross_entropy(&targets, Reduction::Mean)?);
        all.push(x.log_softmax(-1)?.nll_loss(&targets, Reduction::Sum)?);
        Ok(all)
    }),
    ("sums", |g, n, h| {
        let x = g.float(&[3, n, h])?;
        let all = x.narrow(0, 1, 1)?.sum_all()?;
        Ok(vec![
            x.sum(&[0, 1], false)?,
            x.sum(&[0, 2], false)?,
            x.sum(&[1], true)?,
            x.mean(&[-1], false)?,
            all.mul_scalar(0.01)?,
        ])
    }),
    ("embedding", |g, n, h| {
        let (table, ids) = (g.float(&[50, h])?, g.index(&[n], 50)?);
        Ok(vec![table.embedding(&ids)?, table.index(&ids)?])
    }),
    ("adamw", |g, n, h| {
        let op = AdamW { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-3, weight_decay: 0.1, step: 3, master: true };
        let (param, grad, mean) = (g.target(&[n, h])?, g.data(&[n, h])?, g.target(&[n, h])?);
        let square = mean.mul(&mean)?.to_dtype(DType::F32)?;
        let master = g.rt.full(&[n, h], 0.5, DType::F32)?;
        param.adamw_(&grad, &mean, &square, Some(&master), &op)?;
        Ok(vec![param, mean, square, master])
    }),
    ("rope", |g, n, h| {
        let (d, r) = (2 * h, h - h % 2);
        let (x, cos, sin) = (g.float(&[2, 3, n, d])?, g.data(&[n, r / 2])?, g.data(&[n, r / 2])?);
        let turned = x.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        Ok(vec![x.rope(&cos, &sin, r, RopeStyle::Half)?, turned.rope(&cos, &sin, r, RopeStyle::Interleaved)?])
    }),
    ("random", |g, n, h| {
        let (rt, dtype) = (g.rt.clone(), g.dtype);
        Ok(vec![
            rt.randn(&[n, h], dtype)?,
            rt.truncated_normal(&[n, h], 0.02, 2.0, dtype)?,
            rt.arange(n, 0.5, 0.25, dtype)?,
        ])
    }),
];

/// Cases that move numbers or draw them: nothing is rounded, or only once.
const EXACT: &[&str] = &["copies", "copy_ into a part", "casts", "masks", "random", "triangles"];

/// Results, each with whether it is one of an exact case, and gradients.
fn numbers(case: &Case, kernels: Kernels, seed: u64, dtype: DType, (n, h): (u64, u64)) -> Vec<(DType, bool, Vec<f64>)> {
    let strided = seed > 0 && n > 0;
    let mut g = Inputs::new(Device::Cpu, seed, dtype, strided);
    g.rt.set_kernels(kernels);
    let outputs = (case.1)(&mut g, n, h).unwrap_or_else(|e| panic!("{} of {n} {h}: {e}", case.0));
    let total = loss(&mut g, &outputs).unwrap();
    if let Some(total) = total.filter(Tensor::requires_grad) {
        total.backward().unwrap_or_else(|e| panic!("{} of {n} {h}: backward: {e}", case.0));
    }
    let grads = g.leaves.iter().filter_map(Tensor::grad);
    let exact = |at: usize| at < outputs.len() && EXACT.contains(&case.0);
    let all = outputs.iter().cloned().chain(grads);
    all.enumerate().map(|(at, t)| (t.dtype(), exact(at), t.to_vec().unwrap())).collect()
}

#[test]
fn every_size_computes_what_the_plain_kernels_compute() {
    for case in CASES {
        for size in [(0, 7), (1, 1), (2, 3), (7, 40), (33, 1031)] {
            for (seed, dtype) in [(0, DType::F32), (0, DType::BF16), (1, DType::F32), (2, DType::BF16), (3, DType::F16)]
            {
                let [fast, plain] = [Kernels::Fast, Kernels::Plain].map(|k| numbers(case, k, seed, dtype, size));
                for (at, ((dtype, exact, fast), (.., plain))) in fast.iter().zip(&plain).enumerate() {
                    assert_eq!(fast.len(), plain.len());
                    let unit = match dtype {
                        _ if *exact => 0.0,
                        DType::F64 => 1e-12,
                        DType::F32 => 1e-5,
                        DType::F16 => 4e-3,
                        DType::BF16 => 3e-2,
                        _ => 0.0,
                    };
                    let size_of = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
                    let bound = unit * plain.iter().fold(1.0, |top: f64, &x| top.max(size_of(x)));
                    for (i, (a, b)) in fast.iter().zip(plain).enumerate() {
                        let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound;
                        assert!(
                            same,
                            "{} of {size:?} (seed {seed}, {dtype}), result {at}, element {i}: {a} {b}",
                            case.0
                        );
                    }
                }
            }
        }
    }
}

/// A lost dispatch would not change a number, only the time.
#[test]
fn every_case_runs_on_fast_kernels_alone() {
    for case in CASES {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            numbers(case, Kernels::OnlyFast, 0, dtype, (4, 6));
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let pools = [1, 2, 3, 5].map(|n| Threads::new(n).unwrap());
    for case in CASES {
        for (dtype, size) in [(DType::F32, (150, 517)), (DType::BF16, (64, 1031)), (DType::F32, (2, 35_001))] {
            let run = |pool: &Threads| pool.run(|| numbers(case, Kernels::Fast, 0, dtype, size));
            let bits = |pool: &Threads| -> Vec<Vec<u64>> {
                run(pool).into_iter().map(|(.., x)| x.into_iter().map(f64::to_bits).collect()).collect()
            };
            let one = bits(&pools[0]);
            for pool in &pools[1..] {
                assert!(one == bits(pool), "{} on {} threads", case.0, pool.count());
            }
        }
    }
}

#[test]
fn long_sums_lose_little() {
    let rt = napkin_tensor::Runtime::new(Device::Cpu);
    // A running sum in f32 is off by 3e-4 here.
    let x = rt.full(&[3_000_000], 0.1, DType::F32).unwrap();
    let exact = 3e6 * f64::from(0.1f32);
    let sum = x.sum_all().unwrap().item().unwrap();
    assert!((sum / exact - 1.0).abs() < 2e-6, "{sum} {exact}");
    let columns = x.view(&[30_000, 100]).unwrap().sum(&[0], false).unwrap();
    assert!(columns.to_vec().unwrap().iter().all(|sum| (sum / (exact / 100.0) - 1.0).abs() < 1e-5));
}
