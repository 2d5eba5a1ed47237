//! Benchmarks of this machine: the peak of its processor, its memory bandwidth, the matrix products of the engine held
//! against them, and whole training steps.

mod bandwidth;
mod dot;
mod matmul;
mod peak;
mod report;
mod samples;
mod step;

pub use bandwidth::Bandwidth;
pub use matmul::Product;
pub use peak::{Ceiling, Loop, Peak};
pub use samples::Samples;
pub(crate) use step::random_tokens;
pub use step::{StepRequest, Steps};

use crate::probe::{cpu, memory};
use plan::hardware::{Cpu, Hardware, Memory, OtherRate, Precision, Source, Variant};
use std::time::Instant;
use tensor::DType;
use tensor::cpu::Threads;
use units::{Bytes, BytesPerSecond, Diagnostic, FlopPerSecond};

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Sizes of the square matrices.
    pub sizes: Vec<u64>,
    /// Their types.
    pub dtypes: Vec<DType>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Peak in f32 of all threads, in FLOP/s, instead of the measured one; other types keep their ratio to it.
    pub peak: Option<FlopPerSecond>,
    /// Seconds after which no further product is begun.
    pub seconds: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name of the processor.
    pub name: String,
    /// Threads that can run at once.
    pub threads: usize,
    /// The peak.
    pub peak: Peak,
    /// The given peak in f32 of all threads, in FLOP/s.
    pub given: Option<FlopPerSecond>,
    /// Memory bandwidth of one thread, and of all.
    pub bandwidth: Vec<Bandwidth>,
    /// Matrix products, by type, then threads, then size.
    pub products: Vec<Product>,
    /// Products that there was no time for: type, threads, size.
    pub left_out: Vec<(DType, usize, u64)>,
    /// Main memory.
    pub memory: Option<Bytes>,
    /// Whether there are matrix units that nothing here reaches.
    pub has_matrix_units: bool,
}

/// Measures this machine. `progress` is told what comes next.
///
/// # Errors
/// A product that does not fit into memory; threads that the system does not start.
pub fn run(request: &Request, progress: &mut dyn FnMut(&str)) -> Result<Machine, Diagnostic> {
    let start = Instant::now();
    let threads = cpu::threads();
    progress("clock and peak");
    let peak = Peak::measure(threads);
    let mut bandwidth = Vec::new();
    for threads in if threads > 1 { vec![1, threads] } else { vec![1] } {
        progress(&format!("memory bandwidth, {}", counted(threads)));
        bandwidth.push(Bandwidth::measure(threads));
    }
    let mut machine = Machine {
        name: cpu::name(),
        threads,
        peak,
        given: request.peak,
        bandwidth,
        products: Vec::new(),
        left_out: Vec::new(),
        memory: memory::total(),
        has_matrix_units: cpu::has_matrix_units(),
    };
    let failed = |error: tensor::Error| Diagnostic::error("", error.to_string()).help("smaller --sizes");
    // Small ones first, so that what is left out for want of time is the largest.
    for &n in &request.sizes {
        for &threads in &request.threads {
            let pool = Threads::new(threads).map_err(failed)?;
            for &dtype in &request.dtypes {
                if start.elapsed().as_secs_f64() > request.seconds {
                    machine.left_out.push((dtype, threads, n));
                    continue;
                }
                progress(&format!("{n} × {n} × {n}, {}, {}", dtype.name(), counted(threads)));
                machine.products.push(Product::measure(n, dtype, &pool).map_err(failed)?);
            }
        }
    }
    machine.products.sort_by_key(|p| {
        let dtype = request.dtypes.iter().position(|d| *d == p.dtype);
        (dtype, p.threads, p.n)
    });
    Ok(machine)
}

/// `1 thread`, `2 threads`.
fn counted(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

impl Machine {
    /// Peak of so many threads, in FLOP/s. A type without an instruction of its own is computed in f32.
    pub fn peak_of(&self, precision: Precision, threads: usize) -> f64 {
        let measured = |precision| {
            if threads == 1 { self.peak.rate_of_one(precision) } else { self.peak.rate(precision) }
        };
        let fp32 = measured(Precision::Fp32).unwrap_or_default();
        let rate = measured(precision).unwrap_or(fp32);
        match self.given {
            // Of a given peak, one core has its share.
            Some(given) if threads == 1 => given.get() / f64::from(self.peak.cores()) * rate / fp32,
            Some(given) => given.get() * rate / fp32,
            None => rate,
        }
    }

    /// Memory bandwidth of all threads, in bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.bandwidth.iter().map(Bandwidth::rate).fold(0.0, f64::max)
    }

    /// This machine as an entry of the hardware table, measured on `date` (`2026-11`).
    ///
    /// # Errors
    /// A rate that is no positive number.
    pub fn hardware(&self, date: &str) -> Result<Hardware, Diagnostic> {
        let source = |document: &str| Source { document: document.to_owned(), date: date.to_owned() };
        let version = env!("CARGO_PKG_VERSION");
        let cores = self.peak.cores();
        let flop_per_cycle = [Precision::Fp32, Precision::Bf16, Precision::Fp16]
            .map(|p| (p, rounded(self.peak_of(p, self.threads) / f64::from(cores) / self.peak.all.clock)));
        let peak_source = match self.given {
            Some(_) => format!("given to napkin bench {version} as --peak; the clock is measured"),
            None => format!(
                "napkin bench {version}: clock by a chain of additions, FLOP per cycle by a loop of multiply-adds"
            ),
        };
        let cpu = Cpu {
            cores,
            clock_ghz: rounded(self.peak.all.clock / 1e9),
            vector_bits: self.peak.vector_bits(),
            flop_per_cycle: flop_per_cycle.into(),
            source: source(&peak_source),
        };
        let best = |dtype| {
            let rates = self.products.iter().filter(|p| p.dtype == dtype).map(Product::rate);
            rates.fold(None, |best: Option<f64>, rate| Some(best.map_or(rate, |best| best.max(rate))))
        };
        let measured = [DType::F32, DType::BF16, DType::F16].into_iter().filter_map(|dtype| {
            let document = format!("napkin bench {version}, best matrix product");
            Some(OtherRate::new(
                Precision::of(dtype),
                Variant::Measured,
                source(&document),
                rounded(best(dtype)? / 1e12),
            ))
        });
        let total = self.memory.unwrap_or(Bytes(1));
        let memory = Memory {
            kind: "main memory".to_owned(),
            nominal: total,
            reported: self.memory.map(|bytes| (bytes, source("MemTotal of the operating system"))),
            bandwidth: BytesPerSecond::new(rounded(self.bandwidth() / 1e9) * 1e9)
                .map_err(|e| Diagnostic::error("", e.to_string()))?,
            source: source(&format!("napkin bench {version}: copy and triad over vectors larger than the caches")),
        };
        let architecture = format!("{} with {}-bit vectors", std::env::consts::ARCH, cpu.vector_bits);
        Ok(Hardware::measured_cpu(&self.name, &architecture, cpu, memory, measured.collect())?)
    }
}

/// As many digits as a measurement has, and more.
fn rounded(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

/// Numbers without a pattern, the same ones every time.
///
/// A linear congruential generator, of which the high bits are the good ones (Knuth, MMIX).
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    /// Below `limit`, which is at most 2^32.
    fn below(&mut self, limit: u64) -> u64 {
        (self.next() * limit) >> 32
    }

    /// Between -1 and 1.
    fn signed(&mut self) -> f32 {
        (self.next() >> 8) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
