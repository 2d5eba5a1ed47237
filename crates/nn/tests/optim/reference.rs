//! Weights after some updates, held against the reference.

use crate::bench::{Bench, PARAMS, STEPS, every_kind, gradient, line, optimizer};
use napkin_nn::ParamKind;
use napkin_nn::optim::{Kind, orthogonalize};
use tensor::{DType, Device, Runtime, Tensor};

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
