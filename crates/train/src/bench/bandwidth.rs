//! Memory bandwidth: long vectors copied, and added up as in the triad of STREAM.
//!
//! Bytes are those a program names: one read and one write for a copy, two reads and one write for a triad. That a cache
//! may read what is about to be overwritten is not counted, as STREAM does not.

use super::samples::Samples;
use crate::probe::{cpu, memory};
use plan::report::Value;
use std::hint::black_box;
use std::sync::Barrier;
use tensor::cpu::simd::vectorized;

/// Vectors shorter than this may lie in a cache that the system does not tell of.
const LEAST_BYTES: u64 = 64 << 20;
/// As much longer than the largest cache as STREAM asks for.
const CACHES: u64 = 4;
/// No more than this share of what memory is free for the three vectors.
const SHARE: u64 = 8;
/// Samples of each loop.
const SAMPLES: usize = 7;

/// What some threads move together.
#[derive(Clone, Debug, PartialEq)]
pub struct Bandwidth {
    /// Threads that worked.
    pub threads: usize,
    /// Bytes of each vector.
    pub vector_bytes: u64,
    /// `a = b`.
    pub copy: Samples,
    /// `a = b + s c`.
    pub triad: Samples,
}

impl Bandwidth {
    /// Measures `threads` threads that work at the same time, each on a part of the vectors.
    pub fn measure(threads: usize) -> Self {
        Self::of(threads, vector_bytes())
    }

    fn of(threads: usize, bytes: u64) -> Self {
        let count = bytes as usize / size_of::<f32>() / threads;
        let barrier = Barrier::new(threads + 1);
        // For each loop, a first time and the samples after it.
        let [copy, triad] = std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut a = vec![0.0f32; count];
                    let (b, c) = (vec![1.0f32; count], vec![2.0f32; count]);
                    for loops in [copy as fn(&mut [f32], &[f32], &[f32]), triad] {
                        for _ in 0..=SAMPLES {
                            barrier.wait();
                            loops(&mut a, &b, &c);
                            barrier.wait();
                        }
                    }
                    black_box(a);
                });
            }
            [(); 2].map(|()| {
                let run = || {
                    barrier.wait();
                    barrier.wait();
                    Ok::<(), std::convert::Infallible>(())
                };
                let Ok(samples) = Samples::take(0.0, SAMPLES, SAMPLES, run);
                samples
            })
        });
        Self { threads, vector_bytes: (count * threads * size_of::<f32>()) as u64, copy, triad }
    }

    /// Bytes per second of the copy, by its median.
    pub fn copy_rate(&self) -> f64 {
        2.0 * self.vector_bytes as f64 / self.copy.median().get()
    }

    /// Bytes per second of the triad, by its median.
    pub fn triad_rate(&self) -> f64 {
        3.0 * self.vector_bytes as f64 / self.triad.median().get()
    }

    /// The better of both.
    pub fn rate(&self) -> f64 {
        self.copy_rate().max(self.triad_rate())
    }

    /// All of it, for programs.
    pub fn value(&self) -> Value {
        Value::map()
            .with("threads", self.threads)
            .with("vector_bytes", self.vector_bytes)
            .with("copy_bytes_per_second", self.copy_rate())
            .with("triad_bytes_per_second", self.triad_rate())
            .with("copy", self.copy.value())
            .with("triad", self.triad.value())
    }
}

/// Long enough to lie in no cache, short enough for the memory there is.
fn vector_bytes() -> u64 {
    let wanted = cpu::largest_cache().map_or(LEAST_BYTES, |cache| (cache.get() * CACHES).max(LEAST_BYTES));
    memory::available().map_or(wanted, |free| wanted.min(free.get() / SHARE / 3))
}

fn copy(a: &mut [f32], b: &[f32], _: &[f32]) {
    a.copy_from_slice(black_box(b));
    black_box(a);
}

fn triad(a: &mut [f32], b: &[f32], c: &[f32]) {
    let s = black_box(3.0f32);
    let (b, c) = (black_box(b), black_box(c));
    vectorized(|| {
        for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
            *a = b + s * c;
        }
    });
    black_box(a);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_the_loops_name() {
        let samples = |seconds: f64| Samples { first: 1.0, seconds: vec![seconds], cpu_seconds: Vec::new() };
        let measured = Bandwidth { threads: 2, vector_bytes: 1000, copy: samples(0.5), triad: samples(0.25) };
        assert_eq!((measured.copy_rate(), measured.triad_rate(), measured.rate()), (4000.0, 12_000.0, 12_000.0));
    }

    #[test]
    fn the_loops_do_their_work_on_every_thread() {
        let mut a = vec![0.0; 100];
        let (b, c) = (vec![1.0; 100], vec![2.0; 100]);
        copy(&mut a, &b, &c);
        assert_eq!(a, b);
        triad(&mut a, &b, &c);
        assert_eq!(a, vec![7.0; 100]);
        let measured = Bandwidth::of(3, 3 << 20);
        assert_eq!((measured.vector_bytes, measured.copy.seconds.len(), measured.triad.seconds.len()), (3 << 20, 7, 7));
        assert!(measured.rate() > 1e6);
    }
}
