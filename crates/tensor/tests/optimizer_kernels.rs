//! Fast kernels of optimizer ops on operands of more than one piece: what the plain kernels compute, on any number of
//! threads.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::cpu::Threads;
use napkin_tensor::ops::{adamw::AdamW, adamw_8bit::AdamW8bit, blockwise::BLOCK};
use napkin_tensor::rng::Stream;
use napkin_tensor::{DType, Device, Kernels, Runtime};

/// Runs a program with the plain kernels, and with the fast ones on one thread and on three.
fn three_ways(program: impl Fn(&Runtime) -> Vec<f64> + Send + Sync) -> [Vec<f64>; 3] {
    let run = |kernels, threads| {
        let work = || {
            let rt = Runtime::with_seed(Device::Cpu, 9);
            rt.set_recording(false);
            rt.set_kernels(kernels);
            program(&rt)
        };
        Threads::new(threads).unwrap().run(work)
    };
    [run(Kernels::Plain, 1), run(Kernels::Fast, 1), run(Kernels::Fast, 3)]
}

#[test]
fn sums_of_squares() {
    // Long rows, many short rows, wide and narrow columns, stacks of matrices.
    for (shape, dims) in [
        (vec![3, 12_001], vec![0, 1]),
        (vec![12_001, 3], vec![-1]),
        (vec![1, 40_003], vec![-1]),
        (vec![70, 1100], vec![-2]),
        (vec![3, 200, 5], vec![-2]),
        (vec![3, 200, 5], vec![-2, -1]),
    ] {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            let [plain, one, three] = three_ways(|rt| {
                let x = rt.randn(&shape, dtype).unwrap();
                x.sum_squares(&dims, true).unwrap().to_vec().unwrap()
            });
            assert_eq!(one, three, "{shape:?} {dims:?} {dtype}");
            for (fast, plain) in one.iter().zip(&plain) {
                assert!((fast - plain).abs() <= 1e-5 * plain, "{shape:?} {dims:?} {dtype}: {fast}, plain {plain}");
            }
        }
    }
}

#[test]
fn stochastic_rounding() {
    let [plain, one, three] = three_ways(|rt| {
        let x = rt.randn(&[201, 233], DType::F32).unwrap();
        let rounded = rt.zeros(&[201, 233], DType::BF16).unwrap();
        rounded.stochastic_round_(&x, rt.rng().for_stream(Stream::Rounding), 5).unwrap();
        rounded.to_vec().unwrap()
    });
    assert!(plain == one && one == three);
}

#[test]
fn steps_on_moments_in_bytes() {
    let shape = [201, 233];
    let blocks = [(201u64 * 233).div_ceil(BLOCK)];
    for master in [false, true] {
        let [plain, one, three] = three_ways(|rt| {
            let dtype = if master { DType::BF16 } else { DType::F32 };
            let param = rt.randn(&shape, dtype).unwrap();
            let copy = master.then(|| param.to_dtype(DType::F32).unwrap());
            let moment = || (rt.zeros(&shape, DType::U8).unwrap(), rt.zeros(&blocks, DType::F32).unwrap());
            let (first, second) = (moment(), moment());
            for step in 1..=3 {
                let grad = rt.randn(&shape, dtype).unwrap();
                let op = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, step, master };
                let moments = ((&first.0, &first.1), (&second.0, &second.1));
                param.adamw_8bit_(&grad, moments.0, moments.1, copy.as_ref(), &AdamW8bit(op)).unwrap();
            }
            let all = [Some(&param), copy.as_ref(), Some(&first.0), Some(&first.1), Some(&second.0), Some(&second.1)];
            all.into_iter().flatten().flat_map(|t| t.to_vec().unwrap()).collect()
        });
        assert!(one == three, "master {master}");
        assert!(plain == one, "master {master}");
    }
}
