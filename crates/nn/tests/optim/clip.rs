//! Clipping by the norm of all gradients.

use crate::bench::{Bench, PARAMS, gradient, line};
use napkin_nn::optim::GradNorm;
use tensor::DType;

/// The gradients of the first step, times `scale`.
fn with_gradients(scale: f64) -> Bench {
    let bench = Bench::new(DType::F32);
    for (index, param) in bench.params.iter().enumerate() {
        let values: Vec<f64> = gradient(index, param.tensor.shape(), 1).iter().map(|g| g * scale).collect();
        param.tensor.set_grad(Some(bench.runtime.tensor(&values, param.tensor.shape(), DType::F32).unwrap()));
    }
    bench
}

/// Of losses scaled by 1 and by 1024, which is taken out before.
#[test]
fn clipping_equals_the_reference() {
    for (max_norm, scale) in [(1.0, 1.0), (1000.0, 1.0), (1.0, 1024.0), (1000.0, 1024.0)] {
        let bench = with_gradients(scale);
        let norm = GradNorm::of(&bench.params, scale).unwrap().unwrap();
        norm.unscale_and_clip(max_norm).unwrap();
        let fourth = |p: &napkin_nn::Param| p.tensor.grad().unwrap().to_vec().unwrap()[3];
        let got: Vec<f64> =
            std::iter::once(norm.tensor().item().unwrap()).chain(bench.params.iter().map(fourth)).collect();
        let want = line("clip", &max_norm.to_string());
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{max_norm}: {got}, reference {want}");
        }
    }
}

#[test]
fn a_norm_without_limit_only_measures() {
    let bench = with_gradients(1.0);
    GradNorm::of(&bench.params, 1.0).unwrap().unwrap().unscale_and_clip(f64::INFINITY).unwrap();
    for (index, param) in bench.params.iter().enumerate() {
        assert_eq!(param.tensor.grad().unwrap().to_vec().unwrap(), gradient(index, param.tensor.shape(), 1));
    }
    let none = Bench::new(DType::F32);
    assert!(GradNorm::of(&none.params, 1.0).unwrap().is_none(), "no gradients, no norm");
}

/// Backward goes from the last parameter to the first, and what is not finite spreads that way.
#[test]
fn the_gradient_nearest_to_the_loss_is_named() {
    for bad in [f64::NAN, f64::INFINITY] {
        let bench = with_gradients(1.0);
        let name =
            || GradNorm::of(&bench.params, 1.0).unwrap().unwrap().first_non_finite().unwrap().map(|p| p.name.clone());
        assert_eq!(name(), None);
        for index in [0, 1, 3] {
            let mut values = gradient(index, PARAMS[index].1, 1);
            values[2] = bad;
            let grad = bench.runtime.tensor(&values, PARAMS[index].1, DType::F32).unwrap();
            bench.params[index].tensor.set_grad(Some(grad));
            assert_eq!(name().as_deref(), Some(PARAMS[index].0));
        }
    }
}

/// An f32 sum of 2^24 equal squares, one by one, stands still there.
#[test]
fn norms_of_large_gradients_do_not_stand_still() {
    let runtime = tensor::Runtime::new(tensor::Device::Cpu);
    let n = (1 << 24) + (1 << 23);
    let sum = runtime.ones(&[n], DType::F32).unwrap().sum_squares_all().unwrap();
    assert_eq!(sum.item().unwrap(), n as f64);
}
