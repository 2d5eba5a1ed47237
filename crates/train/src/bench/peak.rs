//! What this processor can do at most: its clock, and loops of nothing but multiply-adds.

use super::dot;
use crate::probe::cpu;
use plan::hardware::Precision;
use plan::report::Value;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;
use tensor::cpu::lanes::{self, Kernel, Lanes};
use tensor::cpu::simd::{Level, level};

/// Times each loop is run; the best counts, for a ceiling is what is reached when nothing disturbs.
const ROUNDS: usize = 12;
/// Seconds of one run of a loop.
const LOOP_SECONDS: f64 = 0.02;

/// What some threads reach together.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// Threads that worked.
    pub threads: usize,
    /// Cycles per second of a core, all of them busy.
    pub clock: f64,
    /// FLOP/s of all threads together.
    pub rates: Vec<Loop>,
}

/// What a loop of multiply-adds reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// Type of the factors; sums are f32.
    pub precision: Precision,
    /// Width of a vector, in bits.
    pub vector_bits: u32,
    /// FLOP/s of all threads together, of each round.
    pub rates: Vec<f64>,
}

impl Loop {
    /// The best rate.
    pub fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }
}

/// What this processor can do at most, and the product that says why.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// What one thread reaches.
    pub one: Ceiling,
    /// What all reach.
    pub all: Ceiling,
}

impl Peak {
    /// Measures one thread and `threads` of them.
    pub fn measure(threads: usize) -> Self {
        let one = Ceiling::measure(1);
        let all = if threads == 1 { one.clone() } else { Ceiling::measure(threads) };
        Self { one, all }
    }

    /// Types that were measured, and what one core does in a cycle: whole instructions, as units can start them.
    pub fn flop_per_cycle(&self) -> Vec<(Precision, f64)> {
        let mut all: Vec<_> = self.one.rates.iter().map(|l| (l.precision, self.one.per_cycle(l))).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        all.dedup_by_key(|(precision, _)| *precision);
        all
    }

    /// Width of the vectors of the fastest f32 loop, in bits.
    pub fn vector_bits(&self) -> u32 {
        let fp32 = self.one.rates.iter().filter(|l| l.precision == Precision::Fp32);
        fp32.max_by(|a, b| a.best().total_cmp(&b.best())).map_or(0, |l| l.vector_bits)
    }

    /// Cores that the threads have to themselves: fewer than threads where two of these share one.
    pub fn cores(&self) -> u32 {
        let flop = self.flop_per_cycle();
        let Some(&(precision, per_cycle)) = flop.iter().find(|(p, _)| *p == Precision::Fp32) else { return 1 };
        let cores = self.all.best(precision) / (per_cycle * self.all.clock);
        (cores.round() as u32).clamp(1, self.all.threads as u32)
    }

    /// Peak of all threads: cores × clock × FLOP per cycle, in FLOP/s.
    pub fn rate(&self, precision: Precision) -> Option<f64> {
        let flop = self.flop_per_cycle().into_iter().find(|(p, _)| *p == precision)?.1;
        Some(f64::from(self.cores()) * self.all.clock * flop)
    }

    /// The same; in f32 where the type has no instructions of its own, for it is then computed in f32.
    pub fn rate_or_fp32(&self, precision: Precision) -> f64 {
        self.rate(precision).or_else(|| self.rate(Precision::Fp32)).unwrap_or_default()
    }

    /// Peak of one core, in FLOP/s.
    pub fn rate_of_one(&self, precision: Precision) -> Option<f64> {
        let flop = self.flop_per_cycle().into_iter().find(|(p, _)| *p == precision)?.1;
        Some(self.one.clock * flop)
    }
}

impl Ceiling {
    /// Measures `threads` threads that work at the same time.
    pub fn measure(threads: usize) -> Self {
        let clocks = together(threads, chain);
        let clock = (0..threads).map(|t| clocks.iter().map(|round| round[t]).fold(0.0, f64::max)).sum::<f64>();
        let mut rates = vec![Loop::measure(threads, Precision::Fp32, multiply_adds(level()))];
        if level() == Level::Avx512 {
            // Some cores do the same work in narrower vectors, or more of it.
            rates.push(Loop::measure(threads, Precision::Fp32, multiply_adds(Level::Avx2)));
        }
        if let Some(dot) = dot::bf16() {
            rates.push(Loop::measure(threads, Precision::Bf16, dot));
        }
        Self { threads, clock: clock / threads as f64, rates }
    }

    /// The best rate in a type.
    pub fn best(&self, precision: Precision) -> f64 {
        self.rates.iter().filter(|l| l.precision == precision).map(Loop::best).fold(0.0, f64::max)
    }

    /// FLOP of a core in a cycle: as measured, but whole instructions where it is close to that.
    fn per_cycle(&self, of: &Loop) -> f64 {
        let measured = of.best() / self.threads as f64 / self.clock;
        let instruction = f64::from(of.vector_bits / if of.precision == Precision::Bf16 { 16 } else { 32 }) * 2.0;
        let whole = (measured / instruction).round() * instruction;
        if whole > 0.0 && (measured - whole).abs() <= 0.12 * whole { whole } else { measured }
    }

    /// All of it, for programs.
    pub fn value(&self) -> Value {
        let loops = self.rates.iter().map(|l| {
            Value::map()
                .with("precision", l.precision.name())
                .with("vector_bits", l.vector_bits)
                .with("flop_per_second", l.best())
                .with("samples_flop_per_second", Value::list(l.rates.iter().copied()))
        });
        Value::map()
            .with("threads", self.threads)
            .with("clock_hertz", self.clock)
            .with("loops", Value::List(loops.collect()))
    }
}

/// A loop: runs so many rounds, and says what they were.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub run: fn(u64),
    /// FLOP of a round.
    pub flop: u64,
    pub vector_bits: u32,
}

impl Loop {
    fn measure(threads: usize, precision: Precision, work: Work) -> Self {
        let rounds = rounds_for(work.run);
        let rates = together(threads, || timed(|| (work.run)(rounds)).recip() * (rounds * work.flop) as f64);
        Self { precision, vector_bits: work.vector_bits, rates: rates.iter().map(|r| r.iter().sum()).collect() }
    }
}

/// Rounds that take about [`LOOP_SECONDS`].
fn rounds_for(run: fn(u64)) -> u64 {
    let mut rounds = 1000;
    loop {
        let seconds = timed(|| run(rounds));
        if seconds >= LOOP_SECONDS / 4.0 {
            return (rounds as f64 * LOOP_SECONDS / seconds) as u64 + 1;
        }
        rounds *= 4;
    }
}

/// Seconds that the processor worked for this thread in `f`; where the system does not say, that passed.
fn timed(f: impl FnOnce()) -> f64 {
    let (start, worked) = (Instant::now(), cpu::thread_time());
    f();
    match (worked, cpu::thread_time()) {
        (Some(before), Some(after)) => (after.get() - before.get()).max(1e-9),
        _ => start.elapsed().as_secs_f64(),
    }
}

/// Runs `measure` on several threads at once, several times: one number of each thread for each round.
fn together(threads: usize, measure: impl Fn() -> f64 + Sync) -> Vec<Vec<f64>> {
    let barrier = Barrier::new(threads);
    let one = || -> Vec<f64> {
        (0..ROUNDS)
            .map(|_| {
                barrier.wait();
                measure()
            })
            .collect()
    };
    let columns: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().expect("a loop does not panic")).collect()
    });
    (0..ROUNDS).map(|round| columns.iter().map(|column| column[round]).collect()).collect()
}

/// Cycles per second: a chain of additions and exclusive ors of registers, each of which waits for the one before and
/// takes one cycle. What the system calls the clock is often that of another state, or none at all in a virtual machine.
fn chain() -> f64 {
    const PAIRS: u64 = 16;
    const ROUNDS: u64 = 600_000;
    let (a, b) = (black_box(0x9E37_79B9_7F4A_7C15_u64), black_box(0xD1B5_4A32_D192_ED03_u64));
    let mut x = black_box(1u64);
    let seconds = timed(|| {
        for _ in 0..ROUNDS {
            for _ in 0..PAIRS {
                x = x.wrapping_add(a) ^ b;
            }
            x = black_box(x);
        }
    });
    (ROUNDS * PAIRS * 2) as f64 / seconds
}

/// Sums that do not wait for each other: more than any core has multiply-adds under way.
const SUMS: usize = 12;
/// The same where vectors are made of narrower ones, and registers are few.
const PORTABLE_SUMS: usize = 5;
/// Multiply-adds of each sum in a round.
const UNROLLED: usize = 8;

/// Independent multiply-adds, which touch nothing but registers.
struct MultiplyAdds<const N: usize>(u64);

impl<const N: usize> Kernel for MultiplyAdds<N> {
    type Output = ();

    #[allow(clippy::inline_always)] // compiled for the instruction set of its caller
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (factor, term) = (lanes.splat(black_box(0.999)), lanes.splat(black_box(0.001)));
        let mut sums = [lanes.splat(black_box(1.0)); N];
        for _ in 0..self.0 {
            for _ in 0..UNROLLED {
                for sum in &mut sums {
                    *sum = lanes.fma(*sum, factor, term);
                }
            }
        }
        let total = sums.into_iter().fold(lanes.splat(0.0), |total, sum| lanes.add(total, sum));
        black_box(lanes.sum(total));
    }
}

/// The loop in f32 for an instruction set that the processor has.
fn multiply_adds(set: Level) -> Work {
    fn run<const N: usize>(set: Level, rounds: u64) {
        // A set that is not there would measure nothing: the caller has asked.
        let _ = lanes::on(set, MultiplyAdds::<N>(rounds));
    }
    let (run, lanes, sums): (fn(u64), u32, usize) = match set {
        Level::Avx512 => (|rounds| run::<SUMS>(Level::Avx512, rounds), 16, SUMS),
        Level::Avx2 => (|rounds| run::<SUMS>(Level::Avx2, rounds), 8, SUMS),
        Level::Portable => (|rounds| run::<PORTABLE_SUMS>(Level::Portable, rounds), 8, PORTABLE_SUMS),
    };
    Work { run, flop: 2 * u64::from(lanes) * (sums * UNROLLED) as u64, vector_bits: lanes * 32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceiling(threads: usize, clock: f64, rates: &[(Precision, u32, f64)]) -> Ceiling {
        let of = |&(precision, vector_bits, rate)| Loop { precision, vector_bits, rates: vec![rate * 0.9, rate] };
        Ceiling { threads, clock, rates: rates.iter().map(of).collect() }
    }

    #[test]
    fn the_peak_is_whole_instructions_per_cycle_on_the_cores_there_are() {
        use Precision::{Bf16, Fp32};
        // One 512-bit or two 256-bit multiply-adds in a cycle, and a bf16 product of twice as many; two cores.
        let one = ceiling(1, 3.7e9, &[(Fp32, 512, 117.0e9), (Fp32, 256, 115.0e9), (Bf16, 512, 231.0e9)]);
        let all = ceiling(2, 3.6e9, &[(Fp32, 512, 228.0e9), (Fp32, 256, 226.0e9), (Bf16, 512, 455.0e9)]);
        let peak = Peak { one: one.clone(), all };
        assert_eq!(peak.flop_per_cycle(), [(Fp32, 32.0), (Bf16, 64.0)]);
        assert_eq!((peak.cores(), peak.vector_bits()), (2, 512));
        assert_eq!(peak.rate(Fp32), Some(2.0 * 3.6e9 * 32.0));
        assert_eq!(peak.rate_of_one(Bf16), Some(3.7e9 * 64.0));
        // Two threads of one core reach what one does.
        let shared = ceiling(2, 3.6e9, &[(Fp32, 512, 116.0e9)]);
        assert_eq!(Peak { one, all: shared }.cores(), 1);
        // What is no whole number of instructions is taken as it is.
        let odd = ceiling(1, 1e9, &[(Fp32, 256, 24e9)]);
        assert_eq!(Peak { one: odd.clone(), all: odd }.flop_per_cycle(), [(Fp32, 24.0)]);
    }

    #[test]
    fn loops_run_and_the_clock_is_that_of_a_processor() {
        let clock = (0..5).map(|_| chain()).fold(0.0, f64::max);
        assert!((2e8..8e9).contains(&clock), "{clock}");
        let work = multiply_adds(level());
        let rate = Loop {
            rates: (0..3).map(|_| timed(|| (work.run)(20_000)).recip() * (20_000 * work.flop) as f64).collect(),
            precision: Precision::Fp32,
            vector_bits: work.vector_bits,
        };
        // Between one addition in four cycles and four vectors in one.
        let per_cycle = rate.best() / clock;
        assert!(per_cycle > 0.25 && per_cycle < f64::from(work.vector_bits / 32) * 8.0, "{per_cycle}");
    }
}
