//! Speed of fused attention, forward and backward, as a share of this processor's multiply-add peak in the same run.
//!
//!     cargo bench -p napkin-tensor --bench attention -- [--threads N] [--json]
//!
//! Times are CPU time of all threads, the least of many calls: a busy machine makes calls slower, never faster. FLOP are
//! those of pairs that are seen: 4 per pair and element of a head forward, 10 backward, which makes the scores again.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::apply::apply;
use napkin_tensor::cpu::Threads;
use napkin_tensor::cpu::lanes::{Kernel, Lanes, dispatch};
use napkin_tensor::ops::attention::{Attention, AttentionBackward, pairs};
use napkin_tensor::{DType, Device, Runtime, Tensor};
use std::io::Write as _;

struct Case {
    name: &'static str,
    b: u64,
    a: u64,
    sq: u64,
    sk: u64,
    d: u64,
}

const CASES: [Case; 6] = [
    Case { name: "b4 a12 s256 d64", b: 4, a: 12, sq: 256, sk: 256, d: 64 },
    Case { name: "b1 a12 s1024 d64", b: 1, a: 12, sq: 1024, sk: 1024, d: 64 },
    Case { name: "b8 a4 s256 d64", b: 8, a: 4, sq: 256, sk: 256, d: 64 },
    Case { name: "b1 a16 s1024 d64", b: 1, a: 16, sq: 1024, sk: 1024, d: 64 },
    Case { name: "b1 a8 s512 d128", b: 1, a: 8, sq: 512, sk: 512, d: 128 },
    Case { name: "decode b1 a12 s1024 d64", b: 1, a: 12, sq: 1, sk: 1024, d: 64 },
];

/// CPU time of all threads of this process, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Least CPU seconds of a call of each, measured in turns.
fn least<const N: usize>(calls: [&mut dyn FnMut(); N]) -> [f64; N] {
    let time = |count: u32, call: &mut dyn FnMut()| {
        let before = cpu_seconds();
        (0..count).for_each(|_| call());
        (cpu_seconds() - before) / f64::from(count)
    };
    // So many that reading the time does not count.
    let mut calls = calls.map(|call| {
        call();
        ((1e-3 / time(3, call)).clamp(1.0, 1e3) as u32, call)
    });
    let mut least = [f64::INFINITY; N];
    for _ in 0..60 {
        for (least, (count, call)) in least.iter_mut().zip(&mut calls) {
            *least = least.min(time(*count, call));
        }
    }
    least
}

/// Multiply-adds over numbers in registers.
struct Peak(u32);

impl Kernel for Peak {
    type Output = (f64, f32);

    #[allow(clippy::inline_always)] // compiled for the instruction set by being inlined
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        let mut sums = [l.splat(1.0); 12];
        let (x, y) = (l.splat(std::hint::black_box(0.5)), l.splat(std::hint::black_box(0.5)));
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = l.fma(*sum, x, y);
            }
        }
        let total = sums.into_iter().fold(l.splat(0.0), |total, sum| l.add(total, sum));
        (f64::from(self.0) * (2 * sums.len() * L::COUNT) as f64, l.sum(total))
    }
}

/// FLOP/s of the peak, CPU seconds of forward, and of backward.
fn measure(case: &Case, dtype: DType) -> [f64; 3] {
    let rt = Runtime::with_seed(Device::Cpu, 1);
    rt.set_recording(false);
    let heads = |s: u64, first: u64| -> Tensor {
        // As slices of one projection, rounded to the type.
        let projection = rt.randn(&[case.b, s, 3 * case.a, case.d], dtype).unwrap();
        projection.narrow(2, first * case.a, case.a).unwrap().transpose(1, 2).unwrap()
    };
    let (q, k, v) = (heads(case.sq, 0), heads(case.sk, 1), heads(case.sk, 2));
    let op = Attention::causal(1.0 / (case.d as f64).sqrt());
    let grad = rt.randn(&[case.b, case.sq, case.a, case.d], dtype).unwrap().transpose(1, 2).unwrap();
    let run = || q.attention_with_lse(&k, &v, None, None, op.clone()).unwrap();
    let outs = run();
    let mut flop = 0.0;
    let mut peak = || flop = std::hint::black_box(dispatch(Peak(10_000))).0;
    let mut forward = || drop(run());
    let mut backward = || {
        let inputs = [&q, &k, &v, &outs[0], &outs[1], &grad];
        drop(apply(AttentionBackward { of: op.clone() }.into(), &inputs).unwrap());
    };
    let [peak, forward, backward] = least([&mut peak, &mut forward, &mut backward]);
    [flop / peak, forward, backward]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads = args.iter().position(|a| a == "--threads").map_or(1, |i| args[i + 1].parse().unwrap());
    let json = args.iter().any(|a| a == "--json");
    let mut out = std::io::stdout().lock();
    if !json {
        writeln!(out, "{:<32}{:>9}{:>6}{:>12}{:>6}", "CPU ms, share of peak", "forward", "", "backward", "").unwrap();
    }
    for case in &CASES {
        for (name, dtype) in [("fp32", DType::F32), ("bf16", DType::BF16), ("fp16", DType::F16)] {
            let [peak, forward, backward] = Threads::new(threads).unwrap().run(|| measure(case, dtype));
            let seen = (case.b * case.a * pairs(case.sq, case.sk, true, None) * case.d) as f64;
            let share = |flop: f64, seconds: f64| flop * seen / seconds / peak;
            if json {
                let times = format!(r#""forward":{forward:e},"backward":{backward:e}"#);
                writeln!(out, r#"{{"case":"{}","dtype":"{name}","threads":{threads},{times}}}"#, case.name).unwrap();
            } else {
                let (shares, name) = ([share(4.0, forward), share(10.0, backward)], format!("{} {name}", case.name));
                let times = [forward, backward].map(|seconds| seconds * 1e3);
                writeln!(out, "{name:<32}{:>9.3}{:>6.2}{:>12.3}{:>6.2}", times[0], shares[0], times[1], shares[1])
                    .unwrap();
            }
        }
    }
}
