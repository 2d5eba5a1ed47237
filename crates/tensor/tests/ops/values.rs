//! What the ops compute, on numbers small enough to check by hand.

use napkin_tensor::{DType, Device, Runtime, Tensor};

fn runtime() -> Runtime {
    Runtime::new(Device::Cpu)
}

fn floats(rt: &Runtime, values: &[f64], shape: &[u64]) -> Tensor {
    rt.tensor(values, shape, DType::F32).unwrap()
}

fn ints(rt: &Runtime, values: &[f64], shape: &[u64]) -> Tensor {
    rt.tensor(values, shape, DType::I64).unwrap()
}

#[track_caller]
fn is(t: &Tensor, shape: &[u64], values: &[f64]) {
    assert_eq!((t.shape(), t.to_vec().unwrap()), (shape, values.to_vec()));
}

#[test]
fn reductions() {
    let rt = runtime();
    let x = floats(&rt, &[1., 5., 5., 2., 2., f64::NAN], &[2, 3]);
    is(&x.mean(&[1], true).unwrap().narrow(0, 0, 1).unwrap(), &[1, 1], &[f64::from(11.0f32 / 3.0)]);
    let (values, indices) = x.max(1, false).unwrap();
    is(&indices, &[2], &[1., 2.]);
    assert!(values.to_vec().unwrap()[1].is_nan() && values.to_vec().unwrap()[0] == 5.0);
    is(&x.argmax(0, true).unwrap(), &[1, 3], &[1., 0., 1.]);
    let (values, indices) = x.topk(2, 1).unwrap();
    is(&indices, &[2, 2], &[1., 2., 2., 0.]);
    is(&values.narrow(0, 0, 1).unwrap(), &[1, 2], &[5., 5.]);
    is(&ints(&rt, &[1., 2., 3., 4.], &[2, 2]).cumsum(0).unwrap(), &[2, 2], &[1., 2., 4., 6.]);
}

#[test]
fn sums_of_integers_are_i64() {
    let mask = runtime().tensor(&[1.0; 300], &[300], DType::Bool).unwrap();
    let sum = mask.sum_all().unwrap();
    assert_eq!((sum.dtype(), sum.item().unwrap()), (DType::I64, 300.0));
    assert_eq!(mask.cumsum(0).unwrap().dtype(), DType::I64);
}

#[test]
fn logsumexp_neither_overflows_nor_makes_nan() {
    let rt = runtime();
    let infinite = f64::NEG_INFINITY;
    let x = floats(&rt, &[1000., 1000., infinite, infinite, infinite, 3.], &[3, 2]);
    is(&x.logsumexp(1, false).unwrap(), &[3], &[f64::from(1000.0 + 2.0f32.ln()), infinite, 3.0]);
}

#[test]
fn by_index() {
    let rt = runtime();
    let x = floats(&rt, &[0., 1., 10., 11., 20., 21.], &[3, 2]);
    is(&x.embedding(&ints(&rt, &[2., 0.], &[2, 1])).unwrap(), &[2, 1, 2], &[20., 21., 0., 1.]);
    is(&x.gather(0, &ints(&rt, &[2., 0.], &[1, 2])).unwrap(), &[1, 2], &[20., 1.]);
    let (index, source) = (ints(&rt, &[1., 1., 0., 1.], &[2, 2]), floats(&rt, &[1., 2., 3., 4.], &[2, 2]));
    is(&x.scatter_add(1, &index, &source).unwrap(), &[3, 2], &[0., 4., 13., 15., 20., 21.]);
    is(&x.scatter(1, &index, &source).unwrap(), &[3, 2], &[0., 2., 3., 4., 20., 21.]);
    is(&x.index_add(&ints(&rt, &[1., 1.], &[2]), &source).unwrap(), &[3, 2], &[0., 1., 14., 17., 20., 21.]);
    is(&ints(&rt, &[2., 0.], &[2]).one_hot(3).unwrap(), &[2, 3], &[0., 0., 1., 1., 0., 0.]);
}

#[test]
fn joining_and_choosing() {
    let rt = runtime();
    let (x, y) = (floats(&rt, &[1., 2., 3., 4.], &[2, 2]), floats(&rt, &[5., 6.], &[2, 1]));
    is(&Tensor::cat(&[&x, &y], 1).unwrap(), &[2, 3], &[1., 2., 5., 3., 4., 6.]);
    is(&Tensor::stack(&[&y, &y], 0).unwrap(), &[2, 2, 1], &[5., 6., 5., 6.]);
    is(&x.triu(1).unwrap(), &[2, 2], &[0., 2., 0., 0.]);
    is(&x.tril(0).unwrap(), &[2, 2], &[1., 0., 3., 4.]);
    let mask = y.less(&x.add_scalar(3.0).unwrap()).unwrap();
    is(&mask, &[2, 2], &[0., 0., 0., 1.]);
    is(&mask.where_cond(&x, &y).unwrap(), &[2, 2], &[5., 5., 6., 4.]);
    is(&x.masked_fill(&mask, f64::NEG_INFINITY).unwrap(), &[2, 2], &[1., 2., 3., f64::NEG_INFINITY]);
    is(&x.greater(&floats(&rt, &[2.], &[])).unwrap(), &[2, 2], &[0., 0., 1., 1.]);
    is(&x.not_equal(&floats(&rt, &[2.], &[])).unwrap(), &[2, 2], &[1., 0., 1., 1.]);
}
