//! The wall-clock time of a run, line by line: its training, and everything that is none.

use units::{Diagnostic, Seconds, Tokens};

use crate::cluster::constants::rules;
use crate::phrase;
use crate::report::{Assumption, Cell, Column, Origin, Row, Table, Value};

/// Something that holds up training now and then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pause {
    /// How long once.
    pub takes: Seconds,
    /// Training from one to the next.
    pub every: Seconds,
}

/// Failures that stop the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Time of one device between two of them.
    pub between: Seconds,
    /// From a failure until training goes on; `None`: the usual.
    pub restart: Option<Seconds>,
}

impl Failures {
    /// The time of one device between two that one large run saw.
    pub fn measured() -> Seconds {
        Seconds::new(rules().get("between_failures_h") * 3600.0).unwrap_or_default()
    }

    fn restart(&self) -> f64 {
        self.restart.map_or_else(|| rules().get("restart_s"), Seconds::get)
    }
}

/// What there is around the training of a run; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Around {
    /// Tokens per second that data loading delivers, beside training.
    pub loader: Option<f64>,
    /// Evaluations.
    pub evaluation: Option<Pause>,
    /// Saves.
    pub saves: Option<Pause>,
    /// Failures.
    pub failures: Option<Failures>,
}

/// Seconds of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wall {
    /// Steps.
    pub training: f64,
    /// Waiting for data.
    pub data: f64,
    /// Evaluations.
    pub evaluation: f64,
    /// Saves.
    pub saves: f64,
    /// Failures that are expected.
    pub failures: f64,
    /// Restarts after them.
    pub restarts: f64,
    /// Work since the last save, done again.
    pub lost: f64,
}

impl Wall {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.training + self.data + self.evaluation + self.saves + self.restarts + self.lost
    }

    /// Part of it that is steps which count.
    pub fn goodput(&self) -> f64 {
        self.training / self.seconds()
    }

    /// For people.
    pub fn table(&self) -> Table {
        let columns = [Column::left("wall clock"), Column::right(""), Column::right("share")];
        let mut table = Table::new("", columns);
        let seconds = |value: f64| Cell::from(Seconds::new(value).unwrap_or_default());
        let lines = [
            ("training", self.training),
            ("waiting for data", self.data),
            ("evaluation", self.evaluation),
            ("saves", self.saves),
            ("restarts", self.restarts),
            ("work done again", self.lost),
        ];
        for (name, value) in lines.into_iter().filter(|(_, value)| *value > 0.0) {
            let row = Row::new([Cell::from(name), seconds(value), Cell::Percent(value / self.seconds())]);
            let failures = phrase!["after ", Cell::Number { value: self.failures, decimals: 1 }, " failures"];
            table.rows.push(if name == "restarts" { row.note(failures) } else { row });
        }
        table.total = Some(Row::new([Cell::from("the run"), seconds(self.seconds()), Cell::Empty]));
        table
    }

    /// For programs.
    pub fn value(&self) -> Value {
        Value::map()
            .with("training_seconds", self.training)
            .with("data_seconds", self.data)
            .with("evaluation_seconds", self.evaluation)
            .with("save_seconds", self.saves)
            .with("restart_seconds", self.restarts)
            .with("lost_seconds", self.lost)
            .with("failures", self.failures)
            .with("goodput", self.goodput())
    }
}

impl Around {
    /// Whether there is anything.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Seconds of a run whose steps take so many on so many devices, line by line.
    ///
    /// A failure loses half of what lies between two saves, in the mean, and half of all that was done where there are none;
    /// restarts and repeated work can fail in their turn.
    ///
    /// # Errors
    /// `T0488` where failures come faster than they are made up for.
    pub fn wall(&self, training: f64, tokens: Tokens, devices: u64) -> Result<Wall, Diagnostic> {
        let loading = self.loader.map_or(0.0, |rate| tokens.get() as f64 / rate);
        let data = (loading - training).max(0.0);
        let times = |pause: &Pause| (training / pause.every.get()).floor();
        let total = |pause: Option<Pause>| pause.map_or(0.0, |pause| times(&pause) * pause.takes.get());
        let (evaluation, saves) = (total(self.evaluation), total(self.saves));
        let useful = training + data + evaluation + saves;
        let between = match self.saves {
            Some(pause) if training > 0.0 => (useful * pause.every.get() / training).min(useful),
            _ => useful,
        };
        let restart = self.failures.map_or(0.0, |failures| failures.restart());
        let rate = self.failures.map_or(0.0, |failures| devices as f64 / failures.between.get());
        // Each second brings `rate` failures, and each failure a restart and half of what lies between saves.
        let share = rate * (restart + between / 2.0);
        if share >= 1.0 {
            let cost = restart + between / 2.0;
            let message = format!("a failure every {:.0} s costs {cost:.0} s: the run never ends", 1.0 / rate);
            let problem = Diagnostic::error("T0488", message)
                .why("each failure repeats what was done since the last save, half of an interval in the mean");
            let interval = self.best_interval(devices).unwrap_or((2.0 * restart.max(1.0) / rate).sqrt());
            return Err(problem
                .help(format!("--save TIME/{interval:.0}s"))
                .help("fewer devices, or a faster --restart"));
        }
        let wall = useful / (1.0 - share);
        let failures = wall * rate;
        let restarts = failures * restart;
        // What rounding leaves of nothing is nothing.
        let lost = if rate > 0.0 { (wall - useful - restarts).max(0.0) } else { 0.0 };
        Ok(Wall { training, data, evaluation, saves, failures, restarts, lost })
    }

    /// Seconds between saves at which saves and lost work together cost least: `√(2 × save × time between failures)`.
    ///
    /// Source: Young 1974, Communications of the ACM 17(9).
    pub fn best_interval(&self, devices: u64) -> Option<f64> {
        let between = self.failures?.between.get() / devices as f64;
        Some((2.0 * self.saves?.takes.get() * between).sqrt())
    }

    /// What is taken for granted.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let Some(failures) = self.failures else { return Vec::new() };
        let restart = Seconds::new(failures.restart()).unwrap_or_default();
        let from = if failures.restart.is_some() { Origin::Given } else { Origin::Default };
        vec![
            Assumption::new("between_failures", "failures", failures.between, Origin::Given)
                .why("of one device between two that stop the run")
                .flag("--mtbf"),
            Assumption::new("restart", "restart", restart, from)
                .why("from a failure until training goes on (data/time/rules.toml)")
                .flag("--restart"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(value: f64) -> Seconds {
        Seconds::new(value).unwrap()
    }

    /// 10,000 steps of 10 s on 1,024 devices; an evaluation of 60 s in 10,000 s, a save of 20 s in 1,000 s.
    fn run() -> Around {
        let pause = |takes, every| Some(Pause { takes: seconds(takes), every: seconds(every) });
        Around {
            loader: Some(2e6),
            evaluation: pause(60.0, 10_000.0),
            saves: pause(20.0, 1000.0),
            failures: Some(Failures { between: seconds(50_000.0 * 3600.0), restart: Some(seconds(600.0)) }),
        }
    }

    fn wall(run: &Around, devices: u64) -> Wall {
        run.wall(1e5, Tokens(100_000_000_000), devices).unwrap()
    }

    #[test]
    fn lines_are_those_of_the_closed_forms() {
        let time = wall(&run(), 1024);
        assert!((time.training - 1e5).abs() < 1e-6 && (time.evaluation - 600.0).abs() < 1e-9);
        assert!((time.saves - 2000.0).abs() < 1e-9 && time.data.abs() < 1e-12);
        // A failure every 50,000 h / 1024 = 175,781 s.
        assert!((time.failures - time.seconds() / 175_781.25).abs() < 1e-9);
        assert!((time.restarts - 600.0 * time.failures).abs() < 1e-9);
        // Half of an interval of 1,026 s is lost at each.
        assert!((time.lost / time.failures - 513.0).abs() < 1e-6, "{}", time.lost / time.failures);
    }

    #[test]
    fn slow_data_holds_up_training() {
        // 100 B tokens at 800,000 a second are 125,000 s.
        let time = wall(&Around { loader: Some(8e5), ..run() }, 1024);
        assert!((time.data - 25_000.0).abs() < 1e-6);
    }

    #[test]
    fn a_run_without_failures_is_its_steps_and_pauses() {
        let time = wall(&Around { failures: None, ..run() }, 1024);
        assert!((time.seconds() - 102_600.0).abs() < 1e-6 && time.lost == 0.0);
        assert!((time.goodput() - 1e5 / 102_600.0).abs() < 1e-12);
        assert_eq!(wall(&Around::default(), 8).seconds(), 1e5);
    }

    /// A run with failures drawn one by one from a small generator of numbers.
    fn simulated(run: &Around, training: f64, devices: u64, seed: u64) -> f64 {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let (failures, saves) = (run.failures.unwrap(), run.saves.unwrap());
        let mean = failures.between.get() / devices as f64;
        let interval = saves.every.get() + saves.takes.get();
        let mut wall = 0.0;
        for _ in 0..(training / saves.every.get()) as u64 {
            // An interval counts once it passes without a failure.
            loop {
                let failure = -mean * uniform().ln();
                if failure >= interval {
                    wall += interval;
                    break;
                }
                wall += failure + failures.restart();
            }
        }
        wall
    }

    #[test]
    fn failures_cost_what_a_simulation_of_them_does() {
        let run = Around { evaluation: None, loader: None, ..run() };
        let expected: f64 = (0..20).map(|seed| simulated(&run, 2e6, 8192, seed)).sum::<f64>() / 20.0;
        let time = run.wall(2e6, Tokens(1), 8192).unwrap().seconds();
        assert!((time / expected - 1.0).abs() < 0.01, "{time} {expected}");
    }

    #[test]
    fn no_interval_is_better_than_the_best() {
        let best = run().best_interval(1024).unwrap();
        let of = |interval: f64| {
            let saves = Some(Pause { takes: seconds(20.0), every: seconds(interval) });
            wall(&Around { saves, evaluation: None, ..run() }, 1024).seconds()
        };
        for other in [best / 3.0, best * 3.0] {
            assert!(of(best) < of(other));
        }
    }

    #[test]
    fn a_run_that_cannot_end_says_how_it_could() {
        let problem = run().wall(1e5, Tokens(1), 1 << 20).unwrap_err();
        assert!(problem.to_string().contains("never ends"), "{problem}");
    }

    /// Llama 3, section 3.3.4: 419 unexpected interruptions of 16,384 devices in 54 days.
    #[test]
    fn the_measured_rate_is_that_of_its_run() {
        let between = Failures::measured().get() / 16_384.0;
        assert!((54.0 * 86_400.0 / between - 419.0).abs() < 2.0, "{between}");
    }
}
