//! A walk over the public surface, top to bottom.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::{DType, Device, KeepSet, Phase, Runtime, Tensor, checkpoint, checkpoint_keeping};

fn grad(t: &Tensor) -> Vec<f64> {
    t.grad().unwrap().to_vec().unwrap()
}

#[test]
fn a_linear_layer_costs_4_in_backward_2_where_something_is_frozen() {
    let flops = |x_grad: bool, w_grad: bool| {
        let rt = Runtime::new(Device::Meta);
        let wrap = |t: Tensor, on: bool| if on { t.require_grad().unwrap() } else { t };
        let x = wrap(rt.randn(&[3, 5], DType::F32).unwrap(), x_grad);
        let w = wrap(rt.randn(&[7, 5], DType::F32).unwrap(), w_grad);
        let y = x.linear(&w, None).unwrap().sum_all().unwrap();
        y.backward().unwrap();
        let trace = rt.take_trace();
        (
            trace.cost(|e| e.phase != Phase::Backward).matmul / (3 * 5 * 7),
            trace.cost(|e| e.phase == Phase::Backward).matmul / (3 * 5 * 7),
        )
    };
    assert_eq!(flops(true, true), (2, 4));
    assert_eq!(flops(false, true), (2, 2));
    assert_eq!(flops(true, false), (2, 2));
}

#[test]
fn gradients_of_a_small_program() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::F64).unwrap().require_grad().unwrap();
    let y = x.t().unwrap().mul(&x).unwrap().tanh().unwrap().sum_all().unwrap();
    y.backward().unwrap();
    let sech2 = |v: f64| 1.0 - v.tanh() * v.tanh();
    let expected = [2.0 * sech2(1.0), 6.0 * sech2(6.0), 4.0 * sech2(6.0), 8.0 * sech2(16.0)];
    for (g, e) in grad(&x).iter().zip(expected) {
        assert!((g - e).abs() < 1e-12, "{g} {e}");
    }
    assert_eq!(rt.tape_len(), 0);
}

#[test]
fn checkpoint_gives_the_same_gradients_and_keeps_less() {
    let run = |with: bool, early: bool| {
        let rt = Runtime::with_seed(Device::Cpu, 3);
        rt.set_early_stop(early);
        let w = rt.randn(&[4, 4], DType::F64).unwrap().require_grad().unwrap();
        let mut x = rt.randn(&[2, 4], DType::F64).unwrap();
        for _ in 0..3 {
            let w = w.clone();
            let block = move |t: &[Tensor]| {
                Ok([t[0].linear(&w, None)?.tanh()?.exp()?.sin()?.add(&t[0])?].into_iter().collect())
            };
            x = if with { checkpoint(&[&x], block).unwrap() } else { block(&[x]).unwrap() }.remove(0);
        }
        let live = rt.live_bytes();
        x.sum_all().unwrap().backward().unwrap();
        let trace = rt.take_trace();
        (grad(&w), live, trace.cost(|e| e.phase == Phase::Recompute).matmul)
    };
    let (plain, kept) = (run(false, false), run(true, false));
    assert_eq!(plain.0, kept.0);
    assert_eq!(plain.0, run(true, true).0);
    assert!(kept.1 < plain.1);
    assert_eq!((plain.2, kept.2), (0, 3 * 2 * 2 * 4 * 4));
}

#[test]
fn keeping_some_results_of_a_region_changes_no_number_and_saves_their_work() {
    let run = |keep: KeepSet| {
        let rt = Runtime::with_seed(Device::Cpu, 5);
        let w = rt.randn(&[4, 4], DType::F64).unwrap().require_grad().unwrap();
        let x = rt.randn(&[2, 4], DType::F64).unwrap();
        let inner = w.clone();
        // Ops of the region: 0 linear, 1 tanh, 2 linear, 3 exp, 4 add.
        let block = move |t: &[Tensor]| {
            let a = t[0].linear(&inner, None)?.tanh()?;
            Ok(std::iter::once(a.linear(&inner, None)?.exp()?.add(&t[0])?).collect())
        };
        let y = checkpoint_keeping(&[&x], keep, block).unwrap().remove(0);
        y.sum_all().unwrap().backward().unwrap();
        let trace = rt.take_trace();
        (grad(&w), trace.cost(|e| e.phase == Phase::Recompute).matmul / (2 * 2 * 4 * 4), rt.live_bytes())
    };
    let none = run(KeepSet::NONE);
    assert_eq!(none.1, 2);
    // The second linear's result is only needed to make the exponential.
    let kept = run(KeepSet::NONE.with(3));
    assert_eq!((kept.0.clone(), kept.1), (none.0.clone(), 1));
    let both = run(KeepSet::NONE.with(1).with(3));
    assert_eq!((both.0, both.1, both.2), (none.0, 0, none.2));
}

#[test]
fn writing_a_view_writes_its_base_and_overlap_is_refused() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.tensor(&[0., 1., 2., 3., 4., 5.], &[2, 3], DType::F32).unwrap();
    let flat = x.reshape(&[6]).unwrap();
    flat.narrow(0, 0, 1).unwrap().copy_(&rt.full(&[1], 99.0, DType::F32).unwrap()).unwrap();
    assert_eq!(x.to_vec().unwrap(), [99., 1., 2., 3., 4., 5.]);
    let copied = x.t().unwrap().reshape(&[6]).unwrap();
    assert!(!copied.shares_storage_with(&x));
    let wide = rt.zeros(&[2, 1], DType::F32).unwrap().expand(&[2, 3]).unwrap();
    assert!(wide.add_scalar_(1.0).is_err());
}
