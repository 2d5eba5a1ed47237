//! Wrong operands are errors that name the op, never panics.

use napkin_tensor::{DType, Device, Error, Result, Runtime, Tensor};

#[test]
fn index_ops_refuse_what_they_cannot_do() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.zeros(&[3, 2], DType::F32).unwrap();
    let ints = |values: &[f64], shape: &[u64]| rt.tensor(values, shape, DType::I64).unwrap();
    let far = ints(&[3.0, 0.0], &[1, 2]);
    let back = ints(&[-1.0], &[1]);
    let ok = ints(&[0.0, 1.0], &[1, 2]);
    let row = rt.zeros(&[1, 2], DType::F32).unwrap();
    let scalar = rt.zeros(&[], DType::F32).unwrap();
    let half = rt.zeros(&[1, 2], DType::F16).unwrap();
    let cases: Vec<(Result<Tensor>, &str)> = vec![
        (x.gather(0, &far), "gather: index 3 is outside of a table of size 3"),
        (x.embedding(&back), "embedding: index -1 is outside of a table of size 3"),
        (x.scatter_add(0, &far, &row), "scatter_add: index 3 is outside"),
        (x.index_add(&back, &row), "index_add: index -1 is outside"),
        (x.gather(0, &row), "gather: dtype f32 is not supported"),
        (x.embedding(&x), "embedding: dtype f32"),
        (scalar.embedding(&ok), "embedding: expected 2 dimensions"),
        (x.gather(2, &ok), "gather: dimension 2 is out of range"),
        (x.gather(1, &ints(&[0.0; 4], &[4, 1])), "gather: shapes [3, 2] and [4, 1]"),
        (x.scatter(0, &ok, &x), "scatter: shapes [1, 2] and [3, 2]"),
        (x.scatter(0, &ok, &half), "scatter: f32 and f16"),
        (x.index_add(&ok, &row), "index_add: shapes [3, 2] and [1, 2]"),
        (x.topk(3, 1).map(|t| t.0), "topk: 3 elements from 0 are outside of dimension 1"),
        (rt.zeros(&[0], DType::F32).unwrap().max(0, false).map(|t| t.0), "max: 1 elements from 0 are outside"),
        (Tensor::cat(&[], 0), "cat: there is no tensor"),
        (Tensor::stack(&[], 0), "cat: there is no tensor"),
        (Tensor::cat(&[&x, &scalar], 0), "cat: shapes [3, 2] and []"),
        (Tensor::stack(&[&x, &row], 0), "stack: shapes [3, 2] and [1, 2]"),
        (x.where_cond(&x, &x), "where: dtype f32 is not supported, expected a bool mask"),
        (x.masked_fill(&x, 0.0), "masked_fill: dtype f32"),
        (ok.mean_all(), "mean: dtype i64"),
        (ok.logsumexp(0, false), "logsumexp: dtype i64"),
        (scalar.triu(0), "triu: expected 2 dimensions"),
        (ok.one_hot(1), "scatter_: index 1 is outside of a table of size 1"),
    ];
    for (result, message) in cases {
        let error = result.expect_err(message).to_string();
        assert!(error.contains(message), "{error}\nexpected: {message}");
    }
}

#[test]
fn in_place_on_a_leaf_is_refused_even_where_history_could_go_on() {
    let rt = Runtime::new(Device::Meta);
    let x = rt.zeros(&[3, 2], DType::F32).unwrap().require_grad().unwrap();
    let (indices, source) = (rt.zeros(&[1], DType::I64).unwrap(), rt.zeros(&[1, 2], DType::F32).unwrap());
    assert!(matches!(x.index_add_(&indices, &source), Err(Error::InPlaceOnGraph { .. })));
}
