//! The wall-clock time of a run, line by line: steps, and everything that is no step.

use units::Diagnostic;

/// A run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Steps.
    pub steps: u64,
    /// Seconds of a step.
    pub step: f64,
    /// Devices.
    pub devices: u64,
    /// Seconds that loading the data of a step takes, beside the step before.
    pub loading: f64,
    /// Steps from one evaluation to the next, and seconds of one.
    pub evaluation: Option<(u64, f64)>,
    /// Steps from one save to the next, and seconds for which one holds up training.
    pub checkpoint: Option<(u64, f64)>,
    /// Hours of one device between two failures that stop the run (`between_failures_h` of the rules is what one large run
    /// saw); nothing for a run that none stops.
    pub between_failures: Option<f64>,
    /// Seconds from a failure until training goes on.
    pub restart: f64,
}

/// Seconds of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunTime {
    /// Steps.
    pub training: f64,
    /// Waiting for data.
    pub data: f64,
    /// Evaluations.
    pub evaluation: f64,
    /// Saves.
    pub checkpoints: f64,
    /// Failures that are expected.
    pub failures: f64,
    /// Restarts after them.
    pub restarts: f64,
    /// Work since the last save, done again.
    pub lost: f64,
}

impl RunTime {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.training + self.data + self.evaluation + self.checkpoints + self.restarts + self.lost
    }

    /// Part of it that is steps which count.
    pub fn goodput(&self) -> f64 {
        self.training / self.seconds()
    }
}

impl Run {
    /// Seconds of it, line by line.
    ///
    /// A failure loses half of what lies between two saves, in the mean, and all that was done where there are none; restarts
    /// and repeated work can fail in their turn.
    ///
    /// # Errors
    /// `T0488` where failures come faster than they are made up for.
    pub fn time(&self) -> Result<RunTime, Diagnostic> {
        let steps = self.steps as f64;
        let times = |every: u64| (self.steps / every.max(1)) as f64;
        let training = steps * self.step;
        let data = steps * (self.loading - self.step).max(0.0);
        let evaluation = self.evaluation.map_or(0.0, |(every, seconds)| times(every) * seconds);
        let checkpoints = self.checkpoint.map_or(0.0, |(every, seconds)| times(every) * seconds);
        let useful = training + data + evaluation + checkpoints;
        let between = match self.checkpoint {
            Some((every, _)) => useful * every as f64 / steps.max(1.0),
            None => useful,
        };
        let rate = self.between_failures.map_or(0.0, |hours| self.devices as f64 / (hours * 3600.0));
        // Each second brings `rate` failures, and each failure a restart and half of what lies between saves.
        let share = rate * (self.restart + between.min(useful) / 2.0);
        if share >= 1.0 {
            let message = format!(
                "a failure every {:.0} s costs {:.0} s: the run never ends",
                1.0 / rate,
                self.restart + between / 2.0
            );
            return Err(Diagnostic::error("T0488", message)
                .why("each failure repeats what was done since the last save, half of an interval in the mean")
                .help(format!("save every {:.0} s", self.best_interval().unwrap_or(1.0)))
                .help("fewer devices, or a faster restart"));
        }
        let wall = useful / (1.0 - share);
        let failures = wall * rate;
        Ok(RunTime {
            training,
            data,
            evaluation,
            checkpoints,
            failures,
            restarts: failures * self.restart,
            lost: wall - useful - failures * self.restart,
        })
    }

    /// Seconds between saves at which saves and lost work together cost least: `√(2 × save × time between failures)`.
    ///
    /// Source: Young 1974, Communications of the ACM 17(9).
    pub fn best_interval(&self) -> Option<f64> {
        let (_, seconds) = self.checkpoint?;
        let between = self.between_failures? * 3600.0 / self.devices as f64;
        Some((2.0 * seconds * between).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Run = Run {
        steps: 10_000,
        step: 10.0,
        devices: 1024,
        loading: 1.0,
        evaluation: Some((1000, 60.0)),
        checkpoint: Some((100, 20.0)),
        between_failures: Some(50_000.0),
        restart: 600.0,
    };

    #[test]
    fn lines_are_those_of_the_closed_forms() {
        let time = RUN.time().unwrap();
        assert!((time.training - 1e5).abs() < 1e-6 && (time.evaluation - 600.0).abs() < 1e-9);
        assert!((time.checkpoints - 2000.0).abs() < 1e-9 && time.data.abs() < 1e-12);
        // A failure every 50,000 h / 1024 = 175,781 s.
        assert!((time.failures - time.seconds() / 175_781.25).abs() < 1e-9);
        assert!((time.restarts - 600.0 * time.failures).abs() < 1e-9);
        // Half of an interval of 1,026 s is lost at each.
        assert!((time.lost / time.failures - 513.0).abs() < 1e-6, "{}", time.lost / time.failures);
    }

    #[test]
    fn slow_data_holds_up_every_step() {
        let time = Run { loading: 12.5, ..RUN }.time().unwrap();
        assert!((time.data - 2.5 * 10_000.0).abs() < 1e-6);
    }

    #[test]
    fn a_run_without_failures_is_its_steps_and_pauses() {
        let time = Run { between_failures: None, ..RUN }.time().unwrap();
        assert!((time.seconds() - 102_600.0).abs() < 1e-6);
        assert!((time.goodput() - 1e5 / 102_600.0).abs() < 1e-12);
    }

    /// A run with failures drawn one by one from a small generator of numbers.
    fn simulated(run: &Run, seed: u64) -> f64 {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let mean = run.between_failures.unwrap() * 3600.0 / run.devices as f64;
        let (every, save) = run.checkpoint.unwrap();
        let interval = every as f64 * run.step + save;
        let mut wall = 0.0;
        for _ in 0..run.steps / every {
            // An interval counts once it passes without a failure.
            loop {
                let failure = -mean * uniform().ln();
                if failure >= interval {
                    wall += interval;
                    break;
                }
                wall += failure + run.restart;
            }
        }
        wall
    }

    #[test]
    fn failures_cost_what_a_simulation_of_them_does() {
        let run = Run { evaluation: None, devices: 8192, steps: 200_000, ..RUN };
        let expected: f64 = (0..20).map(|seed| simulated(&run, seed)).sum::<f64>() / 20.0;
        let time = run.time().unwrap().seconds();
        assert!((time / expected - 1.0).abs() < 0.01, "{time} {expected}");
    }

    #[test]
    fn no_interval_is_better_than_the_best() {
        let best = RUN.best_interval().unwrap();
        let wall = |interval: f64| {
            let every = (interval / RUN.step).round() as u64;
            Run { checkpoint: Some((every, 20.0)), evaluation: None, ..RUN }.time().unwrap().seconds()
        };
        for other in [best / 3.0, best * 3.0] {
            assert!(wall(best) < wall(other));
        }
    }

    #[test]
    fn a_run_that_cannot_end_says_how_it_could() {
        let problem = Run { devices: 1 << 20, ..RUN }.time().unwrap_err();
        assert!(problem.to_string().contains("never ends"), "{problem}");
    }
}
