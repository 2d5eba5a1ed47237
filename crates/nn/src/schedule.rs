//! The learning rate over a run.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

/// How the learning rate falls after warmup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decay {
    /// It stays.
    Constant,
    /// In a straight line to the floor at the last step.
    Linear,
    /// Along half a cosine to the floor at the last step. Source: Loshchilov and Hutter, arXiv:1608.03983.
    Cosine,
    /// Stays, and falls in a straight line to the floor over the last part of the run (warmup, stable, decay). Source: Hu
    /// et al., arXiv:2404.06395.
    Wsd,
}

impl Decay {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Constant, Self::Linear, Self::Cosine, Self::Wsd];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Linear => "linear",
            Self::Cosine => "cosine",
            Self::Wsd => "wsd",
        }
    }
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Decay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|d| d.name() == name)
            .ok_or_else(|| format!("unknown schedule `{text}`: valid are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A learning rate for every optimizer step of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate, reached at the end of warmup.
    pub peak: f64,
    /// The rate at the last step.
    pub floor: f64,
    /// Steps in which the rate rises in a straight line to the peak; the first has `peak / warmup_steps`.
    pub warmup_steps: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// What comes after warmup.
    pub decay: Decay,
    /// Steps of the decay of [`Decay::Wsd`] at the end of the run; the others decay from the end of warmup on.
    pub decay_steps: u64,
}

impl Schedule {
    /// The same rate at every step.
    pub const fn constant(lr: f64, steps: u64) -> Self {
        Self { peak: lr, floor: lr, warmup_steps: 0, steps, decay: Decay::Constant, decay_steps: 0 }
    }

    /// Learning rate of optimizer step `step`, counted from 1. Beyond the run it stays what it was at the end.
    pub fn lr(&self, step: u64) -> f64 {
        if self.warmup_steps > 0 && step <= self.warmup_steps {
            return self.peak * step as f64 / self.warmup_steps as f64;
        }
        // The first step of the decay has the peak, the last step of the run the floor.
        let part = |from: u64| {
            let length = self.steps.saturating_sub(from).saturating_sub(1).max(1);
            (step.saturating_sub(from).saturating_sub(1) as f64 / length as f64).min(1.0)
        };
        let line = |part: f64| self.peak + (self.floor - self.peak) * part;
        match self.decay {
            Decay::Constant => self.peak,
            Decay::Linear => line(part(self.warmup_steps)),
            Decay::Cosine => self.floor + (self.peak - self.floor) * 0.5 * (1.0 + (PI * part(self.warmup_steps)).cos()),
            Decay::Wsd => line(part(self.steps.saturating_sub(self.decay_steps).max(self.warmup_steps))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay) -> Schedule {
        Schedule { peak: 1.0, floor: 0.1, warmup_steps: 4, steps: 104, decay, decay_steps: 20 }
    }

    #[test]
    fn warmup_rises_in_a_line_and_the_last_step_has_the_floor() {
        for decay in Decay::ALL {
            let s = schedule(decay);
            assert_eq!([1, 2, 3, 4].map(|step| s.lr(step)), [0.25, 0.5, 0.75, 1.0], "{decay}");
            assert_eq!(s.lr(5), 1.0, "{decay}");
            let end = if decay == Decay::Constant { 1.0 } else { 0.1 };
            assert!((s.lr(104) - end).abs() < 1e-15, "{decay}");
            assert_eq!(s.lr(10_000), s.lr(104), "{decay}");
            assert!((5..104).all(|step| s.lr(step + 1) <= s.lr(step)), "{decay}: never rises after warmup");
        }
    }

    #[test]
    fn half_way_is_half_way() {
        // 99 steps from the first of the decay (5) to the last (104).
        let cosine = schedule(Decay::Cosine);
        assert!((cosine.lr(54) + cosine.lr(55) - 2.0 * 0.55).abs() < 1e-12, "symmetric about its middle");
        let wsd = schedule(Decay::Wsd);
        assert_eq!(wsd.lr(85), 1.0);
        assert!((wsd.lr(86) - (1.0 - 0.9 / 19.0)).abs() < 1e-12);
    }

    #[test]
    fn short_runs_have_a_rate() {
        for decay in Decay::ALL {
            for (steps, warmup_steps) in [(0, 0), (1, 0), (1, 1), (2, 5)] {
                let s = Schedule { warmup_steps, steps, ..schedule(decay) };
                assert!((0..5).all(|step| s.lr(step).is_finite()), "{decay} {steps} {warmup_steps}");
            }
        }
    }
}
