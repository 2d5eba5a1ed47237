use super::memory::{Gaps, Heap, HeapPart, Resident, ResidentPart};
use super::time::{Ceilings, Class, TimedStep, lines};
use super::{Measured, Request, StepWork};
use crate::report::{Report, Verdict};
use nn::step::Precision;
use tensor::{DType, Device, Phase, Role, Runtime, Trace};
use units::{Bytes, BytesPerSecond, FlopPerSecond, Flops, Params};

/// A product, a sum and an update, small enough to count by hand.
fn step(runtime: &Runtime) -> Trace {
    let w = runtime.randn(&[64, 32], DType::F32).unwrap().with_role(Role::Parameter).require_grad().unwrap();
    runtime.set_recording(true);
    let _ = runtime.take_trace();
    runtime.begin("fwd1", Phase::Forward);
    let x = runtime.randn(&[16, 32], DType::F32).unwrap();
    let y = x.linear(&w, None).unwrap().sum_all().unwrap();
    runtime.begin("bwd1", Phase::Backward);
    y.backward().unwrap();
    runtime.take_trace()
}

#[test]
fn what_a_step_did_is_counted_and_its_peak_is_the_meters() {
    for device in [Device::Meta, Device::Cpu] {
        let runtime = Runtime::new(device);
        let trace = step(&runtime);
        let work = StepWork::of(&trace);
        // y = x Wᵀ and dW = dyᵀ x, 2 m n k each; x wants no gradient.
        assert_eq!(work.matmul, Flops(2 * 2 * 16 * 64 * 32));
        assert_eq!(work.recomputed, Flops(0));
        assert_eq!(work.ops.len(), trace.ops.len());
        assert_eq!(work.peak, Bytes(runtime.peak_bytes()));
        assert_eq!(work.at_peak.iter().map(|(_, b)| b.get()).sum::<u64>(), work.peak.get());
        let parameters = work.at_peak.iter().find(|(role, _)| *role == Role::Parameter).unwrap().1;
        assert_eq!(parameters, Bytes(64 * 32 * 4));
    }
}

fn heap() -> Heap {
    let parts = vec![(HeapPart::Rounding, 40), (HeapPart::Packing, 300), (HeapPart::Earlier, -10)];
    Heap { counted: Bytes(10_400), op: 3, tensors: Bytes(9_900), parts }
}

#[test]
fn gaps_lead_from_predicted_to_measured_and_what_is_left_has_no_name() {
    let gaps = Gaps::of_heap(Bytes(10_000), &heap());
    let named: Vec<_> = gaps.named.iter().map(|gap| (gap.key, gap.bytes)).collect();
    assert_eq!(named, [("moment", -100), ("rounding", 40), ("packing", 300), ("earlier", -10)]);
    // 10,400 - 10,000 = 400 = -100 + 40 + 300 - 10 + 170.
    assert_eq!(gaps.unexplained(), 170);
    assert!((gaps.excess() - 0.04).abs() < 1e-12 && (gaps.unexplained_share() - 170.0 / 10_400.0).abs() < 1e-12);

    let process = Resident {
        now: Bytes(12_000),
        peak: Bytes(13_000),
        reserved: Bytes(10_500),
        parts: vec![(ResidentPart::Program, Bytes(900)), (ResidentPart::Heap, Bytes(500))],
    };
    let gaps = Gaps::of_process(Bytes(10_000), &process);
    assert_eq!(gaps.named[0].bytes, 500, "reserved above the prediction");
    assert_eq!(gaps.unexplained(), 2_000 - 500 - 900 - 500);
}

fn ceilings() -> Ceilings {
    Ceilings {
        fp32: FlopPerSecond::new(1e9).unwrap(),
        products: FlopPerSecond::new(2e9).unwrap(),
        bandwidth: BytesPerSecond::new(1e9).unwrap(),
        threads: 1,
    }
}

#[test]
fn each_op_takes_the_longer_of_its_flop_and_its_bytes() {
    let trace = step(&Runtime::new(Device::Meta));
    let ops: Vec<f64> = trace.ops.iter().map(|_| 1e-3).collect();
    let lines = lines(&trace, &ops, &ceilings());
    let products = lines.iter().find(|line| line.class == Class::Products).unwrap();
    // Both products at 2 GFLOP/s: 65,536 FLOP each, 32.8 µs; their 14,336 bytes take 14.3 µs.
    assert_eq!((products.ops, products.matmul), (2, 2 * 65_536));
    assert!((products.predicted - 2.0 * 65_536.0 / 2e9).abs() < 1e-12, "{products:?}");
    assert!((products.by_compute - products.predicted).abs() < 1e-15);
    assert!((products.measured - 2e-3).abs() < 1e-12);
    let reductions = lines.iter().find(|line| line.class == Class::Reductions).unwrap();
    // A sum of 16 × 64 numbers reads 4 KiB and writes 4 bytes; its 1,023 or 1,024 additions take less.
    assert!((reductions.predicted - (4096.0 + 4.0) / 1e9).abs() < 1e-12, "{reductions:?}");
    assert_eq!(lines.iter().map(|line| line.ops).sum::<u64>(), trace.ops.len() as u64);
}

fn reported(trace: &Trace, measured: &Measured) -> Report {
    let model_flop = Flops(131_072);
    let request = Request { parameters: Params(2048), trace, model_flop, precision: Precision::Fp32, measured };
    request.report()
}

#[test]
fn a_run_of_the_predicted_program_agrees_and_another_does_not() {
    let trace = step(&Runtime::new(Device::Meta));
    let work = StepWork::of(&step(&Runtime::new(Device::Cpu)));
    let timed = TimedStep { seconds: 0.5, waiting: 0.1, ops: vec![0.01; trace.ops.len()], steps: 3 };
    let measured = Measured {
        parameters: 2048,
        kernels: Flops(131_072),
        allocated: Some(work.peak),
        work: Some(work),
        heap: Some(heap()),
        process: None,
        timed: Some((timed, ceilings())),
    };
    let report = reported(&trace, &measured);
    assert_eq!(report.verdict, Verdict::Answered);
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    let time = report.result.get("time").unwrap();
    let between = time.get("between_ops_seconds").unwrap().as_f64().unwrap();
    assert!((between - (0.5 - 0.1 - 0.01 * trace.ops.len() as f64)).abs() < 1e-12);

    let mut other = measured.clone();
    other.work.as_mut().unwrap().ops[1] = "gather".into();
    let report = reported(&trace, &other);
    assert_eq!((report.verdict, report.warnings[0].code), (Verdict::No, "T0720"));
    assert!(report.warnings[0].message.contains("op 1") && report.warnings[0].message.contains("gather"));

    // One parameter more, one FLOP less: what was measured is what counts, not how it is rounded.
    assert_eq!(reported(&trace, &Measured { parameters: 2049, ..measured.clone() }).verdict, Verdict::No);
    let mut less = measured.clone();
    less.work.as_mut().unwrap().matmul = Flops(131_071);
    assert_eq!(reported(&trace, &less).verdict, Verdict::No);

    let short = Measured { work: None, timed: None, ..measured };
    let report = reported(&trace, &short);
    assert_eq!(report.warnings[0].code, "T0721");
    assert!(report.warnings[0].message.contains("the recording of a step, the time of a step"));
}
