//! Repeated measurements of one thing.

use crate::probe::cpu;
use plan::report::Value;
use std::time::Instant;
use units::Seconds;

/// Times of the same work, done again and again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The first time, which pays for what later ones find ready; in no statistic.
    pub first: f64,
    /// The times after it, in seconds, in the order they were taken.
    pub seconds: Vec<f64>,
    /// Processor time of each of them, all threads together, in seconds; empty where the system does not say.
    pub cpu_seconds: Vec<f64>,
}

/// A first run that took this many times the median is worth a warning.
const SLOW_FIRST: f64 = 1.5;

impl Samples {
    /// Times `work` once, and then until there are `least` samples and `budget` seconds are used, or `most` are there.
    ///
    /// # Errors
    /// What `work` returns.
    pub fn take<E>(budget: f64, least: usize, most: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        let mut once = || {
            let (start, before) = (Instant::now(), cpu::process_time());
            work()?;
            let used = before.zip(cpu::process_time()).map(|(before, after)| after.get() - before.get());
            Ok((start.elapsed().as_secs_f64(), used))
        };
        let mut samples = Self { first: once()?.0, ..Self::default() };
        let mut passed = 0.0;
        while samples.seconds.len() < least || (passed < budget && samples.seconds.len() < most) {
            let (seconds, used) = once()?;
            passed += seconds;
            samples.seconds.push(seconds);
            samples.cpu_seconds.extend(used);
        }
        Ok(samples)
    }

    /// The median.
    pub fn median(&self) -> Seconds {
        median(&self.seconds)
    }

    /// The median of the processor time, where it is known.
    pub fn cpu_median(&self) -> Option<Seconds> {
        (!self.cpu_seconds.is_empty()).then(|| median(&self.cpu_seconds))
    }

    /// How much of the time of `threads` threads the processor worked for them, where it is known.
    pub fn busy(&self, threads: usize) -> Option<f64> {
        let (used, passed) = (self.cpu_seconds.iter().sum::<f64>(), self.seconds.iter().sum::<f64>());
        (!self.cpu_seconds.is_empty() && passed > 0.0).then(|| used / passed / threads as f64)
    }

    /// Half of the way from the fastest to the slowest.
    pub fn spread(&self) -> Seconds {
        let (low, high) = self.seconds.iter().fold((f64::MAX, f64::MIN), |(l, h), &x| (l.min(x), h.max(x)));
        Seconds::new((high - low).max(0.0) / 2.0).unwrap_or(Seconds::ZERO)
    }

    /// The first run as a multiple of the median, where that is much.
    pub fn slow_first(&self) -> Option<f64> {
        let ratio = self.first / self.median().get();
        (ratio >= SLOW_FIRST).then_some(ratio)
    }

    /// All of it, for programs.
    pub fn value(&self) -> Value {
        Value::map()
            .with("first_seconds", self.first)
            .with("median_seconds", self.median())
            .with("spread_seconds", self.spread())
            .with("seconds", Value::list(self.seconds.iter().copied()))
            .with("cpu_seconds", Value::list(self.cpu_seconds.iter().copied()))
    }
}

/// The median; 0 of nothing.
fn median(samples: &[f64]) -> Seconds {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = |at: usize| sorted.get(at).copied().unwrap_or_default();
    let median = f64::midpoint(middle(sorted.len().saturating_sub(1) / 2), middle(sorted.len() / 2));
    Seconds::new(median).unwrap_or(Seconds::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_leaves_out_the_first_run_and_outliers() {
        let of =
            |first, seconds: &[f64], cpu: &[f64]| Samples { first, seconds: seconds.into(), cpu_seconds: cpu.into() };
        let samples = of(9.0, &[3.0, 1.0, 2.0, 100.0, 2.5], &[]);
        assert_eq!((samples.median().get(), samples.spread().get()), (2.5, 49.5));
        assert_eq!(samples.slow_first(), Some(3.6));
        assert_eq!((samples.cpu_median(), samples.busy(2)), (None, None));
        let even = of(2.0, &[1.0, 2.0], &[1.5, 3.0]);
        assert_eq!((even.median().get(), even.spread().get(), even.slow_first()), (1.5, 0.5, None));
        assert_eq!((even.cpu_median().map(Seconds::get), even.busy(2)), (Some(2.25), Some(0.75)));
    }

    #[test]
    fn sampling_stops_at_the_budget_but_not_before_the_least() {
        let count = |budget, least, most| {
            let mut runs = 0;
            let samples = Samples::take(budget, least, most, || {
                runs += 1;
                Ok::<(), ()>(())
            });
            assert_eq!(samples.unwrap().seconds.len() + 1, runs);
            runs
        };
        assert_eq!(count(0.0, 3, 100), 4);
        assert_eq!(count(60.0, 3, 10), 11);
        assert_eq!(Samples::take(1.0, 1, 2, || Err("no")), Err("no"));
    }
}
