//! The shortest time in which a budget trains a model: on more devices a run ends sooner and takes more device time, since each is
//! used less. Of every number of devices in powers of two, the best layout is looked for.

use units::{Diagnostic, Diagnostics, Seconds, Tokens};

use crate::formulas;
use crate::layout::Layout;
use crate::layout::answer;
use crate::layout::estimate::{Estimate, Run};
use crate::layout::given::Given;
use crate::layout::search::{Wanted, search};
use crate::phrase;
use crate::report::{Assumption, Cell, Column, Report, Row, Table, Value, Verdict};

/// The question.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model, its step, and where it runs.
    pub run: &'a Run<'a>,
    /// How many tokens.
    pub tokens: Tokens,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Largest micro-batch that is tried.
    pub micro_batch: u64,
    /// Time of one device that may be spent.
    pub spend: Seconds,
    /// When the run has to end, where that is said.
    pub deadline: Option<Seconds>,
    /// US dollars for one device and hour.
    pub price: Option<f64>,
    /// What the run is taken to be, and who says so.
    pub said: Vec<Assumption>,
}

/// A number of devices with its best layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Devices.
    pub devices: u64,
    /// How the run is divided over them.
    pub layout: Layout,
    /// What that takes.
    pub estimate: Estimate,
    /// How long the run takes.
    pub time: Seconds,
}

impl Size {
    /// Time of one device that the run takes.
    pub fn device_days(&self) -> f64 {
        self.time.days() * self.devices as f64
    }
}

/// So many times the least device time, or the budget, are beyond what more devices make up for.
const FAR: f64 = 2.0;

/// Power of two of the most devices that are tried.
const MOST: u32 = 14;

impl Request<'_> {
    /// The best layout of every number of devices on which one fits, from the fewest up: until one is beyond the budget behind
    /// others that are within it, or far beyond.
    ///
    /// # Errors
    /// If no number has a layout, or the run cannot be traced.
    pub fn sizes(&self) -> Result<Vec<Size>, Diagnostics> {
        let capacity = self.run.cluster.hardware.capacity();
        let tokens_per_step = self.global_batch.saturating_mul(self.run.step.seq_len).max(1);
        let steps = self.tokens.get().div_ceil(tokens_per_step) as f64;
        let mut sizes: Vec<Size> = Vec::new();
        let mut illegal = None;
        for devices in (0..=MOST).map(|power| 1u64 << power) {
            let wanted = Wanted {
                devices,
                global_batch: self.global_batch,
                capacity,
                micro_batch: self.micro_batch,
                engine: self.run.engine,
                most: 1,
                given: Given::default(),
                allocator: true,
            };
            let found = match search(self.run, &wanted) {
                Ok(found) => found,
                Err(problems) if sizes.is_empty() => {
                    illegal = Some(problems);
                    continue;
                }
                // More devices than the sequences of a step can be divided over.
                Err(_) => break,
            };
            let Some((layout, estimate)) = found.best.into_iter().next() else { continue };
            let time = Seconds::new(estimate.time.seconds() * steps);
            let time = time.map_err(|error| Diagnostic::error("T0489", error.to_string()))?;
            let size = Size { devices, layout, estimate, time };
            // A few devices may have room for slow layouts only, so that more of them take less time of each.
            let beyond = |size: &Size| size.device_days() > self.spend.days();
            let done = beyond(&size) && sizes.iter().any(|known| !beyond(known));
            let least = sizes.iter().map(Size::device_days).fold(f64::INFINITY, f64::min);
            let far = size.device_days() > FAR * least.max(self.spend.days());
            sizes.push(size);
            if done || far {
                break;
            }
        }
        match (sizes.is_empty(), illegal) {
            (false, _) => Ok(sizes),
            (true, Some(problems)) => Err(problems),
            (true, None) => {
                let message = format!("the model fits on no number of devices up to {}", 1u64 << MOST);
                Err(Diagnostic::error("T0489", message).help("another --hw, or a shorter --seq-len").into())
            }
        }
    }

    /// Whether a run is within budget and deadline.
    fn allows(&self, size: &Size) -> bool {
        size.device_days() <= self.spend.days() && self.deadline.is_none_or(|deadline| size.time <= deadline)
    }

    /// Answers it.
    ///
    /// # Errors
    /// As [`sizes`](Self::sizes).
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let sizes = self.sizes()?;
        let best = sizes.iter().filter(|size| self.allows(size)).min_by(|a, b| a.time.get().total_cmp(&b.time.get()));
        let whole = |days: f64| Cell::Short(days.ceil() as u128);
        let name = self.run.cluster.hardware.display.as_str();
        let spent = |days: f64| phrase![whole(days), " of ", whole(self.spend.days()), " device-days"];
        let mut report = if let Some(size) = best {
            Report::new("afford", phrase![size.time])
                .qualified(phrase!["on ", size.devices, " × ", name])
                .qualified(phrase![size.layout.to_string()])
                .qualified(spent(size.device_days()))
        } else {
            let least = sizes.iter().map(Size::device_days).fold(f64::INFINITY, f64::min);
            let said = phrase!["at least "].and(spent(least));
            Report { verdict: Verdict::No, ..Report::new("afford", phrase!["not within the budget"]).qualified(said) }
        };
        let mut columns = vec![
            Column::right("devices"),
            Column::left("best layout"),
            Column::right("MFU"),
            Column::right("time"),
            Column::right("device-days"),
        ];
        if self.price.is_some() {
            columns.push(Column::right("cost"));
        }
        let mut table = Table::new("", columns);
        let cost = |size: &Size| self.price.map(|price| price * size.device_days() * 24.0);
        for size in &sizes {
            let mut cells: Vec<Cell> = vec![
                size.devices.into(),
                size.layout.to_string().into(),
                Cell::Percent(size.estimate.mfu.get()),
                size.time.into(),
                whole(size.device_days()),
            ];
            cells.extend(cost(size).map(Cell::Dollars));
            let row = Row::new(cells);
            let late = self.deadline.is_some_and(|deadline| size.time > deadline);
            let why = if late { "too late" } else { "beyond the budget" };
            table.rows.push(if self.allows(size) { row } else { row.note(why) });
        }
        report.blocks.push(table.into());
        let one = |size: &Size| {
            Value::map()
                .with("devices", size.devices)
                .with("layout", size.layout.to_string())
                .with("mfu", size.estimate.mfu)
                .with("seconds", size.time)
                .with("device_days", size.device_days())
                .with("cost_usd", cost(size))
                .with("within", self.allows(size))
        };
        report.inputs = Value::map()
            .with("model", self.run.model.inputs())
            .with("tokens", self.tokens)
            .with("global_batch", self.global_batch)
            .with("spend_device_seconds", self.spend)
            .with("deadline_seconds", self.deadline);
        report.result = Value::map()
            .with("best", best.map_or(Value::Null, one))
            .with("sizes", Value::List(sizes.iter().map(one).collect()));
        if let Some(size) = best.or(sizes.first()) {
            let fullest = self.run.fullest(&size.layout, &self.run.traces(&size.layout)?, &size.estimate);
            report.derivations = answer::derivations(self.run, &size.layout, fullest.as_ref(), &size.estimate);
            let step = size.estimate.seconds();
            let seq_len = self.run.step.seq_len;
            let steps = phrase!["⌈", self.tokens, " ÷ (", self.global_batch, " × ", seq_len, ")⌉ × ", step];
            report.derivations.push(formulas::derive("time", "steps", steps, size.time));
        }
        report.assumptions.extend(self.said.iter().cloned());
        report.assumptions.extend(answer::assumptions(self.run));
        report.warnings = self.run.model.step_warnings(&self.run.step);
        report.notes.push(phrase!["without failures, checkpoints and evaluation"]);
        Ok(report)
    }
}
