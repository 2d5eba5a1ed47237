//! The fast kernels of attention against the plain ones, over shapes, options, layouts and types.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::cpu::Threads;
use napkin_tensor::ops::attention::Attention;
use napkin_tensor::{DType, Device, Kernels, Result, Runtime, Tensor};

/// How queries, keys, values and the gradient lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// b a s d
    Heads,
    /// b s a d, as after a projection.
    Tokens,
    /// Slices of one projection: b s (3 a) d.
    Fused,
    /// b a d s: the elements of a row lie apart.
    Apart,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    b: u64,
    a: u64,
    kv: u64,
    sq: u64,
    sk: u64,
    d: u64,
    dv: u64,
    causal: bool,
    window: Option<u64>,
    softcap: Option<f64>,
    bias: Option<[u64; 4]>,
    sinks: bool,
    order: Order,
}

const PLAIN: Case = Case {
    b: 1,
    a: 2,
    kv: 2,
    sq: 70,
    sk: 70,
    d: 16,
    dv: 16,
    causal: false,
    window: None,
    softcap: None,
    bias: None,
    sinks: false,
    order: Order::Tokens,
};
const CAUSAL: Case = Case { causal: true, ..PLAIN };

fn cases() -> Vec<Case> {
    vec![
        PLAIN,
        CAUSAL,
        Case { sq: 200, sk: 200, d: 64, dv: 64, b: 2, order: Order::Fused, ..CAUSAL },
        Case { sq: 64, sk: 64, d: 32, dv: 32, order: Order::Heads, ..CAUSAL },
        Case { sq: 17, sk: 129, d: 5, dv: 3, ..CAUSAL },
        Case { sq: 129, sk: 17, d: 24, dv: 40, order: Order::Heads, ..PLAIN },
        Case { sq: 100, sk: 163, d: 80, dv: 48, a: 6, kv: 2, ..CAUSAL },
        Case { sq: 90, sk: 90, order: Order::Apart, ..CAUSAL },
        Case { window: Some(1), ..CAUSAL },
        Case { window: Some(9), sq: 150, sk: 150, ..CAUSAL },
        Case { window: Some(70), sq: 130, sk: 200, d: 8, dv: 8, ..CAUSAL },
        Case { window: Some(1 << 40), ..CAUSAL },
        Case { softcap: Some(0.8), ..CAUSAL },
        Case { bias: Some([1, 1, 70, 70]), ..PLAIN },
        Case { bias: Some([1, 2, 70, 70]), softcap: Some(3.0), ..CAUSAL },
        Case { bias: Some([1, 1, 1, 70]), order: Order::Fused, ..CAUSAL },
        Case { sinks: true, a: 4, b: 2, ..CAUSAL },
        Case { sinks: true, a: 4, kv: 1, window: Some(20), bias: Some([1, 4, 1, 1]), softcap: Some(1.0), ..CAUSAL },
        Case { sq: 1, sk: 300, d: 64, dv: 64, a: 4, kv: 2, b: 2, ..CAUSAL },
        Case { sq: 1, sk: 1, d: 1, dv: 1, ..CAUSAL },
        Case { sq: 3, sk: 150, d: 20, dv: 7, window: Some(140), sinks: true, softcap: Some(2.0), ..CAUSAL },
        Case { sq: 4, sk: 131, bias: Some([1, 1, 4, 131]), order: Order::Apart, ..PLAIN },
        Case { sq: 5, sk: 131, order: Order::Heads, ..PLAIN },
    ]
}

/// A leaf of shape `(b heads s width)`, as it lies in memory, and the view of it that has this shape.
fn head_tensor(rt: &Runtime, order: Order, shape: [u64; 4], dtype: DType) -> Result<(Tensor, Tensor)> {
    let [b, heads, s, width] = shape;
    match order {
        Order::Heads => {
            let leaf = rt.randn(&[b, heads, s, width], dtype)?.require_grad()?;
            Ok((leaf.clone(), leaf))
        }
        Order::Tokens => {
            let leaf = rt.randn(&[b, s, heads, width], dtype)?.require_grad()?;
            Ok((leaf.clone(), leaf.transpose(1, 2)?))
        }
        Order::Fused => {
            let leaf = rt.randn(&[b, s, 3 * heads, width], dtype)?.require_grad()?;
            Ok((leaf.clone(), leaf.narrow(2, heads, heads)?.transpose(1, 2)?))
        }
        Order::Apart => {
            let leaf = rt.randn(&[b, heads, width, s], dtype)?.require_grad()?;
            Ok((leaf.clone(), leaf.transpose(2, 3)?))
        }
    }
}

impl Case {
    /// Result, log-sum-exp, and gradients of queries, keys, values and sinks.
    fn run(self, kernels: Kernels, dtype: DType) -> Result<Vec<Vec<f64>>> {
        let rt = Runtime::with_seed(Device::Cpu, 11);
        rt.set_kernels(Kernels::Plain);
        let (order, b) = (self.order, self.b);
        let (q_leaf, q) = head_tensor(&rt, order, [b, self.a, self.sq, self.d], dtype)?;
        let (k_leaf, k) = head_tensor(&rt, order, [b, self.kv, self.sk, self.d], dtype)?;
        let (v_leaf, v) = head_tensor(&rt, order, [b, self.kv, self.sk, self.dv], dtype)?;
        let (_, direction) = head_tensor(&rt, order, [b, self.a, self.sq, self.dv], dtype)?;
        let bias = self.bias.map(|shape| rt.randn(&shape, DType::F32)).transpose()?;
        let sinks = if self.sinks { Some(rt.randn(&[self.a], dtype)?.require_grad()?) } else { None };
        let op = Attention { causal: self.causal, window: self.window, softcap: self.softcap, ..Attention::full(0.3) };
        rt.set_kernels(kernels);
        let outs = q.attention_with_lse(&k, &v, bias.as_ref(), sinks.as_ref(), op)?;
        outs[0].mul(&direction.detach())?.sum_all()?.backward()?;
        let mut all = vec![outs[0].to_vec()?, outs[1].to_vec()?];
        for leaf in [Some(q_leaf), Some(k_leaf), Some(v_leaf), sinks].into_iter().flatten() {
            all.push(leaf.grad().unwrap().to_vec()?);
        }
        Ok(all)
    }
}

/// Largest difference, in units of the largest number, or of 1 if all are smaller: sums of such that cancel keep their
/// rounding.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
    a.iter().zip(b).map(|(x, y)| if x == y { 0.0 } else { (x - y).abs() / largest }).fold(0.0, f64::max)
}

#[test]
fn fast_kernels_give_what_the_plain_ones_give() {
    // A half result is rounded once; where the two sums round to different sides they are a spacing apart.
    for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::BF16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)] {
        for case in cases() {
            let fast = case.run(Kernels::Fast, dtype).unwrap();
            let plain = case.run(Kernels::Plain, dtype).unwrap();
            for (i, (fast, plain)) in fast.iter().zip(&plain).enumerate() {
                let error = difference(fast, plain);
                assert!(error <= tolerance, "{dtype:?}, output {i}: {error:e} in {case:?}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let case = Case { b: 3, a: 4, kv: 2, sq: 150, sk: 150, sinks: true, d: 40, dv: 24, ..CAUSAL };
    for dtype in [DType::F32, DType::BF16] {
        let on = |count| Threads::new(count).unwrap().run(|| case.run(Kernels::Fast, dtype).unwrap());
        let one = on(1);
        assert_eq!(one, on(2), "{dtype:?}");
        assert_eq!(one, on(3), "{dtype:?}");
    }
    let few = Case { sq: 1, sk: 4000, a: 8, ..CAUSAL };
    let on = |count| Threads::new(count).unwrap().run(|| few.run(Kernels::Fast, DType::F32).unwrap());
    assert_eq!(on(1), on(3));
}

#[test]
fn queries_without_any_key_give_zeros() {
    for sq in [1, 40] {
        let rt = Runtime::new(Device::Cpu);
        let make = |s: u64| rt.randn(&[1, 2, s, 16], DType::F32).unwrap().require_grad().unwrap();
        let (q, k, v) = (make(sq), make(80), make(80));
        // The first query sees nothing, the others all but the first 70 keys: the first tile has no weight at all.
        let mask: Vec<f64> =
            (0..sq * 80).map(|i| if i < 80 || i % 80 < 70 { f64::NEG_INFINITY } else { 0.0 }).collect();
        let mask = rt.tensor(&mask, &[sq, 80], DType::F32).unwrap();
        let outs = q.attention_with_lse(&k, &v, Some(&mask), None, Attention::full(0.25)).unwrap();
        outs[0].sum_all().unwrap().backward().unwrap();
        let y = outs[0].to_vec().unwrap();
        assert!(y[..16].iter().all(|&x| x == 0.0));
        assert_eq!(outs[1].to_vec().unwrap()[0], f64::NEG_INFINITY);
        let grads = [&q, &k, &v].map(|t| t.grad().unwrap().to_vec().unwrap());
        assert!(grads.iter().flatten().all(|g| g.is_finite()));
        assert!(grads[0][..16].iter().all(|&x| x == 0.0));
        if sq > 1 {
            let mean: f64 = (70..80).map(|j| v.to_vec().unwrap()[j * 16]).sum::<f64>() / 10.0;
            assert!((y[16] - mean).abs() < 1.0 && y[16] != 0.0);
        }
    }
}

#[test]
fn a_nan_stays_where_it_is_seen() {
    for sq in [2, 40] {
        let rt = Runtime::new(Device::Cpu);
        let q = rt.randn(&[1, 1, sq, 16], DType::F32).unwrap();
        let mut keys = vec![0.5; 40 * 16];
        keys[39 * 16] = f64::NAN;
        let k = rt.tensor(&keys, &[1, 1, 40, 16], DType::F32).unwrap();
        let v = rt.randn(&[1, 1, 40, 16], DType::F32).unwrap();
        let y = q.attention(&k, &v, None, None, Attention::causal(0.25)).unwrap().to_vec().unwrap();
        let last = y.len() - 16;
        assert!(y[..last].iter().all(|x| x.is_finite()));
        assert!(y[last..].iter().all(|x| x.is_nan()));
    }
}
