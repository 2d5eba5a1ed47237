//! Questions that people asked in public about views, patterns and history, and the answers that are right, as
//! `shared/cases` collects them.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::einops::rearrange;
use napkin_tensor::meter::Role;
use napkin_tensor::{DType, Device, Runtime, Tensor, checkpoint};

fn arange(rt: &Runtime, shape: &[u64]) -> Tensor {
    let count = shape.iter().product();
    rt.arange(count, 0.0, 1.0, DType::F32).unwrap().view(shape).unwrap()
}

/// Bytes that ops have copied so far.
fn copied(rt: &Runtime) -> u64 {
    rt.take_trace().cost(|event| event.copy.is_some()).written
}

/// tensor-03: a reshape aliases where the layout allows it, copies where not, and the meter says which.
#[test]
fn a_reshape_says_whether_it_copies() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], DType::F32).unwrap();
    rt.take_trace();
    let flat = x.reshape(&[6]).unwrap();
    flat.select(0, 0).unwrap().copy_(&rt.full(&[], 99.0, DType::F32).unwrap()).unwrap();
    assert!(flat.shares_storage_with(&x));
    assert_eq!(x.to_vec().unwrap(), [99.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    rt.take_trace();
    let turned = x.t().unwrap().reshape(&[6]).unwrap();
    assert_eq!(copied(&rt), 24);
    assert!(!turned.shares_storage_with(&x));
    turned.select(0, 2).unwrap().copy_(&rt.full(&[], -1.0, DType::F32).unwrap()).unwrap();
    assert_eq!(x.to_vec().unwrap(), [99.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    // What must not copy is asked for as a view, and refused.
    assert!(x.t().unwrap().view(&[6]).is_err());
}

/// tensor-05: merging heads behind attention copies 2,048 bytes; splitting never does.
#[test]
fn merging_heads_needs_a_copy() {
    let rt = Runtime::new(Device::Meta);
    let (b, h, t, d) = (2, 8, 4, 16);
    let y = rt.zeros(&[b, h, t, d], DType::BF16).unwrap().transpose(1, 2).unwrap(); // b t h d
    let refused = y.view(&[b, t, h * d]).unwrap_err().to_string();
    assert!(refused.contains("16") && refused.contains("64"), "the strides that do not merge: {refused}");
    rt.take_trace();
    y.reshape(&[b, t, h * d]).unwrap();
    assert_eq!(copied(&rt), 2048);
    for split in [vec![b, t, h, 2, d / 2], vec![b, t, 2, h / 2, d]] {
        assert!(y.view(&split).unwrap().shares_storage_with(&y));
    }
    let written_so = rt.zeros(&[b, t, h, d], DType::BF16).unwrap();
    assert!(written_so.view(&[b, t, h * d]).unwrap().shares_storage_with(&written_so));
}

/// einops-02: in brackets, the leftmost name varies slowest.
#[test]
fn order_inside_brackets_matters() {
    let rt = Runtime::new(Device::Cpu);
    let x = arange(&rt, &[2, 2, 12]);
    let sizes = [("k1", 2), ("k2", 2), ("N2", 3)];
    let first = |pattern: &str| {
        let out = rearrange(&x, pattern, &sizes).unwrap(); // (N1 N2) C k1 k2
        out.select(0, 0).unwrap().select(0, 0).unwrap().to_vec().unwrap()
    };
    assert_eq!(first("N1 C (k1 k2 N2) -> (N1 N2) C k1 k2"), [0.0, 3.0, 6.0, 9.0]);
    assert_eq!(first("N1 C (N2 k1 k2) -> (N1 N2) C k1 k2"), [0.0, 1.0, 2.0, 3.0]);
}

/// einops-05: a bracket with a unit axis, b slowest.
#[test]
fn a_unit_axis_in_a_bracket_changes_nothing() {
    let rt = Runtime::new(Device::Cpu);
    let out = rearrange(&arange(&rt, &[2, 3]), "a b -> (b a 1)", &[]).unwrap();
    assert_eq!(out.shape(), [6]);
    assert_eq!(out.to_vec().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
}

/// autograd-01: a total that is kept with its history grows by a node with every step; detached, or as a number, it does
/// not. Backward of a step leaves nothing behind.
#[test]
fn a_running_total_keeps_its_history() {
    let nodes = |backward: bool, add: fn(&mut Tensor, &Tensor)| {
        let rt = Runtime::new(Device::Cpu);
        let w = rt.full(&[], 0.5, DType::F32).unwrap().require_grad().unwrap();
        let mut total = rt.zeros(&[], DType::F32).unwrap();
        for _ in 0..1000 {
            let loss = w.mul(&w).unwrap();
            add(&mut total, &loss);
            if backward {
                loss.backward().unwrap();
            }
        }
        rt.tape_len()
    };
    let kept: fn(&mut Tensor, &Tensor) = |total, loss| *total = total.add(loss).unwrap();
    let detached: fn(&mut Tensor, &Tensor) = |total, loss| *total = total.add(&loss.detach()).unwrap();
    let number: fn(&mut Tensor, &Tensor) = |_, loss| assert!(loss.item().unwrap() > 0.0);
    assert_eq!(nodes(false, kept), nodes(false, detached) + 1000);
    assert_eq!((nodes(true, detached), nodes(true, number)), (0, 0));
}

/// autograd-05: what a linear map keeps is its input, which a checkpointed region of one keeps as well.
#[test]
fn checkpointing_single_linear_maps_saves_nothing() {
    let kept = |regions: bool| {
        let rt = Runtime::new(Device::Meta);
        let weights: Vec<Tensor> = (0..8)
            .map(|_| rt.zeros(&[256, 256], DType::F32).unwrap().with_role(Role::Parameter).require_grad().unwrap())
            .collect();
        let mut x = rt.zeros(&[137, 256], DType::F32).unwrap();
        for weight in &weights {
            x = if regions {
                let weight = weight.clone();
                checkpoint(&[&x], move |x| Ok(std::iter::once(x[0].linear(&weight, None)?).collect()))
                    .unwrap()
                    .remove(0)
            } else {
                x.linear(weight, None).unwrap()
            };
        }
        let live = rt.live_bytes() - 8 * 256 * 256 * 4;
        // The result itself is held by its handle.
        live - 137 * 256 * 4
    };
    assert_eq!((kept(false), kept(true)), (1_122_304, 1_122_304));
}
