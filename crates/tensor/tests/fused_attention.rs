//! Fused attention against its composition of small ops: values, gradients, costs, layouts.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::kernel::{Array, Counted, Data, Num};
use napkin_tensor::ops::attention::{Attention, pairs};
use napkin_tensor::{CastLists, Cost, DType, Device, Error, Op, Phase, Role, Runtime, Tensor};

/// One case: sizes and what is switched on.
#[derive(Clone, Copy, Debug)]
struct Case {
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
}

const B: u64 = 2;
const PLAIN: Case = Case {
    a: 2,
    kv: 2,
    sq: 5,
    sk: 5,
    d: 3,
    dv: 3,
    causal: false,
    window: None,
    softcap: None,
    bias: None,
    sinks: false,
};
const CAUSAL: Case = Case { causal: true, ..PLAIN };

fn cases() -> Vec<Case> {
    vec![
        PLAIN,
        CAUSAL,
        Case { dv: 4, a: 6, ..CAUSAL },
        Case { sq: 2, ..CAUSAL },
        Case { sq: 7, sk: 3, ..PLAIN },
        Case { window: Some(1), ..CAUSAL },
        Case { window: Some(3), sq: 4, sk: 6, ..CAUSAL },
        Case { window: Some(99), ..CAUSAL },
        Case { a: 4, kv: 1, softcap: Some(0.7), ..CAUSAL },
        Case { bias: Some([1, 1, 5, 5]), ..PLAIN },
        Case { bias: Some([2, 2, 5, 5]), ..CAUSAL },
        Case { bias: Some([2, 1, 1, 5]), softcap: Some(2.0), ..PLAIN },
        Case { sinks: true, ..CAUSAL },
        Case { sinks: true, a: 4, window: Some(2), bias: Some([1, 4, 1, 1]), softcap: Some(1.0), ..CAUSAL },
        Case { sq: 1, sk: 1, d: 1, dv: 1, a: 1, kv: 1, ..CAUSAL },
    ]
}

impl Case {
    fn op(self) -> Attention {
        Attention { causal: self.causal, window: self.window, softcap: self.softcap, ..Attention::full(0.37) }
    }

    fn sees(self, i: u64, j: u64) -> bool {
        let last = i + self.sk - if self.causal { self.sq } else { 0 };
        !self.causal || (j <= last && self.window.is_none_or(|w| last - j < w))
    }

    /// q, k, v, bias, sinks.
    fn inputs(self, rt: &Runtime, dtype: DType) -> Vec<Option<Tensor>> {
        let make = |shape: &[u64]| Some(rt.randn(shape, dtype).unwrap());
        vec![
            make(&[B, self.a, self.sq, self.d]),
            make(&[B, self.kv, self.sk, self.d]),
            make(&[B, self.kv, self.sk, self.dv]),
            self.bias.and_then(|shape| make(&shape)),
            if self.sinks { make(&[self.a]) } else { None },
        ]
    }

    fn run(self, fused: bool) -> (Vec<f64>, Vec<Option<Vec<f64>>>, napkin_tensor::Trace) {
        let rt = Runtime::with_seed(Device::Cpu, 5);
        let t: Vec<Option<Tensor>> = self
            .inputs(&rt, DType::F64)
            .into_iter()
            .enumerate()
            .map(|(i, t)| t.map(|t| if i == 3 { t } else { t.require_grad().unwrap() }))
            .collect();
        let (q, k, v) = (t[0].as_ref().unwrap(), t[1].as_ref().unwrap(), t[2].as_ref().unwrap());
        let direction = rt.randn(&[B, self.a, self.sq, self.dv], DType::F64).unwrap();
        rt.begin("fwd", Phase::Forward);
        let y = if fused {
            q.attention(k, v, t[3].as_ref(), t[4].as_ref(), self.op()).unwrap()
        } else {
            self.composed(&rt, q, k, v, t[3].as_ref(), t[4].as_ref())
        };
        let values = y.to_vec().unwrap();
        y.mul(&direction).unwrap().sum_all().unwrap().backward().unwrap();
        let grads = t.iter().map(|t| t.as_ref().and_then(Tensor::grad).map(|g| g.to_vec().unwrap())).collect();
        (values, grads, rt.take_trace())
    }

    fn composed(
        self,
        rt: &Runtime,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        bias: Option<&Tensor>,
        sinks: Option<&Tensor>,
    ) -> Tensor {
        let group = self.a / self.kv;
        let repeat = |t: &Tensor| {
            let (s, d) = (t.size(2), t.size(3));
            let wide = t.unsqueeze(2).unwrap().expand(&[B, self.kv, group, s, d]).unwrap();
            wide.reshape(&[B, self.a, s, d]).unwrap()
        };
        let mut scores = q.matmul(&repeat(k).t().unwrap()).unwrap().mul_scalar(0.37).unwrap();
        if let Some(cap) = self.softcap {
            scores = scores.div_scalar(cap).unwrap().tanh().unwrap().mul_scalar(cap).unwrap();
        }
        if let Some(bias) = bias {
            scores = scores.add(bias).unwrap();
        }
        let pairs = (0..self.sq).flat_map(|i| (0..self.sk).map(move |j| (i, j)));
        let mask: Vec<f64> = pairs.map(|(i, j)| if self.sees(i, j) { 0.0 } else { f64::NEG_INFINITY }).collect();
        scores = scores.add(&rt.tensor(&mask, &[self.sq, self.sk], DType::F64).unwrap()).unwrap();
        let weights = match sinks {
            None => scores.softmax(-1).unwrap(),
            Some(sinks) => {
                let raised = scores.exp().unwrap();
                let sink = sinks.exp().unwrap().view(&[self.a, 1, 1]).unwrap();
                raised.div(&raised.sum(&[-1], true).unwrap().add(&sink).unwrap()).unwrap()
            }
        };
        weights.matmul(&repeat(v)).unwrap()
    }
}

fn close(a: &[f64], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() < 1e-12 * (1.0 + y.abs()), "{what}: {x} {y}");
    }
}

#[test]
fn fused_equals_composed() {
    for case in cases() {
        let (fused, composed) = (case.run(true), case.run(false));
        close(&fused.0, &composed.0, &format!("{case:?}"));
        for (i, (f, c)) in fused.1.iter().zip(&composed.1).enumerate() {
            assert_eq!(f.is_some(), c.is_some());
            close(f.as_deref().unwrap_or(&[]), c.as_deref().unwrap_or(&[]), &format!("gradient {i} of {case:?}"));
        }
    }
}

#[test]
fn pairs_are_those_that_are_seen() {
    for sk in 0..9 {
        for sq in 0..=sk {
            for window in [None, Some(1), Some(2), Some(4), Some(20)] {
                for causal in [false, true] {
                    if causal || window.is_none() {
                        let case = Case { sq, sk, causal, window, ..PLAIN };
                        let seen = (0..sq).map(|i| (0..sk).filter(|&j| case.sees(i, j)).count() as u64).sum::<u64>();
                        assert_eq!(pairs(sq, sk, causal, window), seen, "{sq} {sk} {causal} {window:?}");
                    }
                }
            }
        }
    }
    let (s, w) = (4096, 1024);
    assert_eq!(pairs(s, s, true, None), s * (s + 1) / 2);
    assert_eq!(pairs(s, s, true, Some(w)), s * w - w * (w - 1) / 2);
}

/// Arithmetic of the kernel of an event, run over dense random operands of its shapes.
fn counted(event: &napkin_tensor::meter::OpEvent) -> u128 {
    let fill = |t: &napkin_tensor::meter::TensorRef| {
        let mut array = Array::full(t.layout.shape(), Counted::zero());
        for (i, x) in array.data.iter_mut().enumerate() {
            *x = Counted::from_f64(0.1 + (i % 7) as f64 * 0.2);
        }
        Data::Num(array)
    };
    let inputs: Vec<_> = event.inputs.iter().map(fill).collect();
    let mut outputs: Vec<_> =
        event.outputs.iter().map(|t| Data::Num(Array::full(t.layout.shape(), Counted::zero()))).collect();
    let (result, count) = Counted::count(|| event.op.run(&inputs, &mut outputs));
    result.unwrap();
    u128::from(count)
}

#[test]
fn costs_are_what_the_kernels_do() {
    for case in cases() {
        let trace = case.run(true).2;
        let mut found = 0;
        for event in trace.ops.iter().filter(|e| e.op.name().starts_with("attention")) {
            let Cost { matmul, elementwise, recomputed, .. } = event.cost;
            assert_eq!(counted(event), matmul + recomputed + elementwise, "{} of {case:?}", event.op.name());
            found += 1;
        }
        assert_eq!(found, 2);
    }
}

#[test]
fn the_three_counts_of_a_causal_layer() {
    let case = Case { sq: 8, sk: 8, d: 4, dv: 4, ..CAUSAL };
    let trace = case.run(true).2;
    let of = |name: &str| trace.cost(|e| e.op.name() == name);
    let heads = u128::from(B * case.a);
    let (forward, backward) = (of("attention"), of("attention_backward"));
    assert_eq!(forward.matmul, heads * 4 * 4 * 36);
    assert_eq!(forward.matmul_dense, heads * 4 * 4 * 64);
    assert_eq!(backward.matmul, heads * 8 * 4 * 36);
    assert_eq!(backward.matmul_dense, heads * 10 * 4 * 64);
    assert_eq!(backward.recomputed, heads * 2 * 4 * 36);
}

#[test]
fn layouts_saved_bytes_and_buffers_are_those_of_the_reference() {
    let rt = Runtime::new(Device::Meta);
    let (b, s, a, kv, d) = (2, 16, 4, 2, 8);
    let make = |heads: u64| {
        let t = rt.randn(&[b, s, heads, d], DType::BF16).unwrap().require_grad().unwrap();
        t.transpose(1, 2).unwrap()
    };
    let (q, k, v) = (make(a), make(kv), make(kv));
    let out = q.attention_with_lse(&k, &v, None, None, Attention::causal(1.0)).unwrap();
    assert_eq!(out[0].stride(), q.stride());
    assert_eq!((out[1].stride(), out[1].dtype()), (&[64, 1, 4][..], DType::F32));
    assert_eq!(rt.live_bytes(), 2 * b * s * d * (2 * a + 2 * kv) + 4 * b * s * a);
    let merged = out[0].transpose(1, 2).unwrap().view(&[b, s, a * d]).unwrap();
    drop((out, q, k, v));
    merged.sum_all().unwrap().backward().unwrap();
    let trace = rt.take_trace();
    let event = trace.ops.iter().find(|e| e.op.name() == "attention_backward").unwrap();
    assert_eq!(event.outputs.len(), 3);
    assert_eq!(event.outputs[1].layout.strides(), [(s * kv * d) as i64, d as i64, (kv * d) as i64, 1]);
    // Contiguous q: the result is contiguous too; gradients lie as b s a d all the same.
    let q = rt.randn(&[b, a, s, d], DType::F32).unwrap();
    let y = q.attention(&q, &q, None, None, Attention::full(1.0)).unwrap();
    assert!(y.is_contiguous());
    assert_eq!(y.storage().role(), Role::Temporary);
}

#[test]
fn a_row_without_any_key_gives_zeros() {
    let rt = Runtime::new(Device::Cpu);
    let q = rt.randn(&[1, 1, 2, 2], DType::F64).unwrap().require_grad().unwrap();
    let k = rt.randn(&[1, 1, 2, 2], DType::F64).unwrap().require_grad().unwrap();
    let low = f64::NEG_INFINITY;
    let mask = rt.tensor(&[low, low, 0.0, 0.0], &[2, 2], DType::F64).unwrap();
    let y = q.attention(&k, &k, Some(&mask), None, Attention::full(1.0)).unwrap();
    assert_eq!(y.to_vec().unwrap()[..2], [0.0, 0.0]);
    y.sum_all().unwrap().backward().unwrap();
    let grad = q.grad().unwrap().to_vec().unwrap();
    assert_eq!(grad[..2], [0.0, 0.0]);
    assert!(k.grad().unwrap().to_vec().unwrap().iter().all(|g| g.is_finite()));
}

#[test]
fn wrong_operands_are_refused() {
    let rt = Runtime::new(Device::Meta);
    let t = |shape: &[u64]| rt.zeros(shape, DType::F32).unwrap();
    let (q, k) = (t(&[2, 4, 5, 8]), t(&[2, 2, 5, 8]));
    let ask = |q: &Tensor, k: &Tensor, v: &Tensor, op| q.attention(k, v, None, None, op).unwrap_err();
    let full = Attention::full(1.0);
    assert!(matches!(ask(&q, &t(&[2, 3, 5, 8]), &t(&[2, 3, 5, 8]), full.clone()), Error::Shapes { .. }));
    assert!(matches!(ask(&q, &t(&[2, 0, 5, 8]), &t(&[2, 0, 5, 8]), full.clone()), Error::Shapes { .. }));
    assert!(matches!(ask(&q, &t(&[2, 2, 5, 6]), &k, full.clone()), Error::Shapes { .. }));
    assert!(matches!(ask(&q, &k, &t(&[2, 2, 6, 8]), full.clone()), Error::Shapes { .. }));
    assert!(matches!(ask(&t(&[4, 5, 8]), &k, &k, full.clone()), Error::Rank { .. }));
    assert!(matches!(ask(&t(&[2, 4, 6, 8]), &k, &k, Attention::causal(1.0)), Error::Shapes { .. }));
    for op in [
        Attention { window: Some(2), ..full.clone() },
        Attention { window: Some(0), ..Attention::causal(1.0) },
        Attention { softcap: Some(0.0), ..full.clone() },
        Attention::full(f64::NAN),
    ] {
        assert!(matches!(ask(&q, &k, &k, op), Error::Argument { .. }));
    }
    let half = k.to_dtype(DType::BF16).unwrap();
    assert!(matches!(ask(&q, &half, &k, full.clone()), Error::NoPromotion { .. }));
    let more = |bias: Option<&Tensor>, sinks: Option<&Tensor>| q.attention(&k, &k, bias, sinks, full.clone());
    assert!(matches!(more(Some(&t(&[5, 4])), None), Err(Error::Broadcast { .. })));
    assert!(matches!(more(Some(&t(&[3, 2, 4, 5, 5])), None), Err(Error::Broadcast { .. })));
    assert!(matches!(more(None, Some(&t(&[3]))), Err(Error::Shapes { .. })));
    let wants = t(&[5, 5]).require_grad().unwrap();
    assert_eq!(more(Some(&wants), None).unwrap_err(), Error::NoGradient { op: "attention", input: 3 });
    let lse = q.require_grad().unwrap().attention_with_lse(&k, &k, None, None, full).unwrap().remove(1);
    assert!(matches!(lse.sum_all().unwrap().backward(), Err(Error::Backward(_))));
}

#[test]
fn autocast_lowers_attention_on_both_lists() {
    for lists in [CastLists::Cpu, CastLists::Cuda] {
        let rt = Runtime::new(Device::Meta);
        let q = rt.randn(&[1, 2, 4, 8], DType::F32).unwrap();
        let y = rt.with_autocast(DType::BF16, lists, || q.attention(&q, &q, None, None, Attention::full(1.0)).unwrap());
        assert_eq!(y.dtype(), DType::BF16);
    }
}

#[test]
fn meta_and_cpu_emit_the_same_events() {
    for case in cases() {
        let run = |device| {
            let rt = Runtime::new(device);
            let t = case.inputs(&rt, DType::BF16);
            let grad = |i: usize| t[i].clone().map(|t: Tensor| t.require_grad().unwrap());
            let (q, k, v, sinks) = (grad(0).unwrap(), grad(1).unwrap(), grad(2).unwrap(), grad(4));
            let y = q.attention(&k, &v, t[3].as_ref(), sinks.as_ref(), case.op()).unwrap();
            y.sum_all().unwrap().backward().unwrap();
            rt.take_trace()
        };
        let (meta, cpu) = (run(Device::Meta), run(Device::Cpu));
        assert_eq!(meta.ops, cpu.ops);
        assert_eq!(meta.memory, cpu.memory);
    }
}

#[test]
fn the_op_is_public() {
    let op: Op = Attention::causal(0.5).into();
    assert_eq!(op.name(), "attention");
}

/// A tensor of sines, as the reference script makes them.
fn sines(rt: &Runtime, shape: &[u64], k: f64) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product::<u64>()).map(|i| (i as f64 * 0.7 * k).sin()).collect();
    rt.tensor(&values, shape, DType::F64).unwrap().require_grad().unwrap()
}

#[test]
fn grouped_causal_attention_gives_the_reference_numbers() {
    // PyTorch 2.15, scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.5) in float64.
    let rt = Runtime::new(Device::Cpu);
    let (q, k, v) = (sines(&rt, &[1, 4, 3, 2], 1.0), sines(&rt, &[1, 2, 3, 2], 1.3), sines(&rt, &[1, 2, 3, 2], 1.7));
    let y = q.attention(&k, &v, None, None, Attention::causal(0.5)).unwrap();
    let cosines: Vec<f64> = (0..24).map(|i| f64::from(i).cos()).collect();
    let direction = rt.tensor(&cosines, &[1, 4, 3, 2], DType::F64).unwrap();
    y.mul(&direction).unwrap().sum_all().unwrap().backward().unwrap();
    let at = |t: &Tensor, places: [usize; 3]| places.map(|i| t.to_vec().unwrap()[i]);
    let grad = |t: &Tensor, places| at(&t.grad().unwrap(), places);
    close(&at(&y, [3, 10, 23]), &[0.153_344_840_670_085_58, 0.171_820_638_765_436_02, 0.152_125_478_903_463_45], "y");
    close(
        &grad(&q, [3, 10, 23]),
        &[-0.049_584_486_167_894_466, -0.129_977_070_375_578_03, 0.038_902_919_086_790_014],
        "dq",
    );
    close(
        &grad(&k, [1, 5, 11]),
        &[-0.092_448_586_724_344_76, 0.038_459_475_605_635_49, -0.104_157_502_861_072_56],
        "dk",
    );
    close(&grad(&v, [1, 5, 11]), &[0.432_121_181_502_878_87, 0.102_212_243_136_341_49, -0.303_662_854_744_075_9], "dv");
}
