//! What is unusual about a loss or a gradient norm, told from those before it.

use std::collections::VecDeque;

/// Steps that are looked back on.
const WINDOW: usize = 50;
/// Steps before anything can be unusual: at the start everything changes.
const SETTLED: usize = 20;
/// A loss this many deviations above the recent mean is a spike.
const DEVIATIONS: f64 = 5.0;
/// A norm this many times the recent median is a spike.
const TIMES: f64 = 4.0;

/// Something worth telling at once.
#[derive(Clone, Debug, PartialEq)]
pub enum Spike {
    /// The loss rose out of its recent band.
    Loss {
        /// The loss.
        loss: f64,
        /// Mean of the recent ones.
        mean: f64,
        /// Their standard deviation.
        deviation: f64,
    },
    /// The gradient is much longer than it was.
    GradNorm {
        /// The norm.
        norm: f64,
        /// Median of the recent ones.
        median: f64,
    },
}

impl std::fmt::Display for Spike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loss { loss, mean, deviation } => {
                write!(f, "loss {loss:.3}, where the last {WINDOW} were {mean:.3} ± {deviation:.3}")
            }
            Self::GradNorm { norm, median } => {
                write!(f, "gradient norm {norm:.3}, {:.1} times the median of the last {WINDOW}", norm / median)
            }
        }
    }
}

/// Looks at every step.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    losses: VecDeque<f64>,
    norms: VecDeque<f64>,
}

impl Watch {
    /// What is unusual about this step.
    pub fn see(&mut self, loss: f64, norm: Option<f64>) -> Vec<Spike> {
        let mut spikes = Vec::new();
        if self.losses.len() >= SETTLED {
            let count = self.losses.len() as f64;
            let mean = self.losses.iter().sum::<f64>() / count;
            let deviation = (self.losses.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
            if loss > mean + DEVIATIONS * deviation {
                spikes.push(Spike::Loss { loss, mean, deviation });
            }
        }
        push(&mut self.losses, loss);
        if let Some(norm) = norm {
            if self.norms.len() >= SETTLED {
                let median = median(&self.norms);
                if norm > TIMES * median {
                    spikes.push(Spike::GradNorm { norm, median });
                }
            }
            push(&mut self.norms, norm);
        }
        spikes
    }
}

fn push(recent: &mut VecDeque<f64>, value: f64) {
    if recent.len() == WINDOW {
        recent.pop_front();
    }
    recent.push_back(value);
}

fn median(values: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss that falls and trembles.
    fn calm(step: usize) -> f64 {
        4.0 - step as f64 * 0.01 + if step.is_multiple_of(2) { 0.05 } else { -0.05 }
    }

    #[test]
    fn a_calm_run_has_no_spikes() {
        let mut watch = Watch::default();
        for step in 0..200 {
            assert_eq!(watch.see(calm(step), Some(1.0 + calm(step) / 10.0)), []);
        }
    }

    #[test]
    fn a_jump_is_said_once_the_run_has_settled() {
        for (at, said) in [(5, false), (40, true)] {
            let mut watch = Watch::default();
            for step in 0..at {
                watch.see(calm(step), Some(1.0));
            }
            let spikes = watch.see(9.0, Some(30.0));
            assert_eq!(spikes.iter().any(|s| matches!(s, Spike::Loss { .. })), said);
            assert_eq!(spikes.iter().any(|s| matches!(s, Spike::GradNorm { .. })), said);
        }
    }

    #[test]
    fn a_constant_loss_is_none_but_a_higher_one_is() {
        let mut watch = Watch::default();
        for _ in 0..60 {
            assert_eq!(watch.see(2.0, None), []);
        }
        assert_eq!(watch.see(2.5, None).len(), 1);
    }
}
