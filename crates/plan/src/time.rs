//! How long a run takes, what it costs, and which utilization a deadline asks for.

use units::{Diagnostic, Diagnostics, Flops, Hfu, Mfu, Seconds, Tokens};

use crate::charts;
use crate::fleet::Fleet;
use crate::formulas::{self, known};
use crate::phrase;
use crate::report::{
    Assumption, Block, Cell, Chart, Column, Derivation, KeyValue, Origin, Phrase, Report, Row, Table, Value, Verdict,
};
use crate::wall::{Around, Wall};
use crate::work::{Convention, Work};

/// What well-run training reaches; the answer is a range over it where nobody gives an MFU.
pub const USUAL_MFU: [f64; 3] = [0.3, 0.4, 0.5];

/// Above this an MFU is more often a mistake than an achievement.
pub const PLAUSIBLE_MFU: f64 = 0.65;

/// What is known of the speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Nothing: the answer is a range.
    Unknown,
    /// The utilization: the answer is a time.
    Mfu(Mfu),
    /// The utilization that is predicted of a layout: the answer is a time.
    Predicted(Mfu),
    /// The time: the answer is a utilization.
    Deadline(Seconds),
}

/// The question.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Work of one token.
    pub work: Work,
    /// How many tokens.
    pub tokens: Tokens,
    /// On what.
    pub fleet: Fleet,
    /// How fast, as far as that is known.
    pub pace: Pace,
    /// US dollars for one device and hour.
    pub price: Option<f64>,
    /// What there is around its steps.
    pub around: Around,
}

/// One run at one utilization.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    mfu: Mfu,
    time: Seconds,
    device_hours: f64,
    cost: Option<f64>,
    /// Line by line, where there is more than its steps.
    wall: Option<Wall>,
}

/// Device-hours in three digits, with as many decimals as that takes.
fn hours(hours: f64) -> Cell {
    let decimals = match hours {
        100.0.. => return Cell::Short(hours.round() as u128),
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => return Cell::Tiny(hours),
    };
    Cell::Number { value: hours, decimals }
}

impl Request {
    fn run(&self, flop: Flops, mfu: Mfu) -> Result<Run, Diagnostic> {
        let steps = flop / (self.fleet.total_peak()? * mfu);
        if !self.around.is_any() {
            return Ok(self.spent(mfu, steps));
        }
        let wall = self.around.wall(steps.get(), self.tokens, self.fleet.devices)?;
        let time = Seconds::new(wall.seconds()).map_err(|error| Diagnostic::error("T0488", error.to_string()))?;
        Ok(Run { wall: Some(wall), ..self.spent(mfu, time) })
    }

    fn spent(&self, mfu: Mfu, time: Seconds) -> Run {
        let device_hours = time.hours() * self.fleet.devices as f64;
        Run { mfu, time, device_hours, cost: self.price.map(|price| price * device_hours), wall: None }
    }

    /// Answers it.
    ///
    /// # Errors
    /// No tokens, devices or work; a device without a rate for this arithmetic; a count beyond what can be held.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut problems = Diagnostics::new();
        if self.tokens.is_zero() {
            problems.push(Diagnostic::error("", "no tokens to train on").help("--tokens 15T"));
        }
        if self.fleet.devices == 0 {
            problems.push(Diagnostic::error("", "a run needs a device").help("--devices 1"));
        }
        if matches!(self.pace, Pace::Mfu(mfu) | Pace::Predicted(mfu) if mfu == Mfu::ZERO) {
            problems.push(Diagnostic::error("", "at an MFU of 0 the run never ends").help("--mfu 0.4"));
        }
        if matches!(self.pace, Pace::Deadline(time) if time == Seconds::ZERO) {
            problems.push(Diagnostic::error("", "no run ends in no time").help("--days 30"));
        }
        let flop = self.tokens * self.work.flop_per_token();
        if flop.is_saturated() {
            problems.push(Diagnostic::error("", "the run has more FLOP than can be counted (2^128)"));
        }
        if let Err(problem) = self.fleet.peak() {
            problems.push(problem);
        }
        if problems.has_errors() {
            return Err(problems);
        }
        let mut report = match self.pace {
            Pace::Mfu(mfu) | Pace::Predicted(mfu) => self.at(flop, mfu)?,
            Pace::Unknown => self.range(flop)?,
            Pace::Deadline(time) => self.deadline(flop, time)?,
        };
        report.inputs = Value::map()
            .with("model", self.work.inputs())
            .with("tokens", self.tokens)
            .with("hardware", self.fleet.inputs())
            .with("price_usd_per_device_hour", self.price);
        report.assumptions.extend(self.assumptions());
        report.assumptions.extend(self.work.assumptions.iter().cloned());
        report.charts.extend(charts::curve(flop, &self.fleet, self.pace).map(Chart::Curve));
        report.warnings.extend(self.work.warnings.iter().cloned());
        report.derivations.insert(0, self.derive_work(flop));
        Ok(report)
    }

    fn at(&self, flop: Flops, mfu: Mfu) -> Result<Report, Diagnostic> {
        let run = self.run(flop, mfu)?;
        let on = phrase!["on ", self.fleet.name(), " at ", Cell::RoundPercent(mfu.get()), " MFU"];
        let mut report = Report::new("time", run.time).qualified(on);
        let rate = self.fleet.total_peak()? * mfu;
        let mut rows = self.rows(flop)?;
        let times = phrase![
            self.fleet.devices,
            " × ",
            self.fleet.peak()?.rate,
            " × ",
            Cell::Number { value: mfu.get(), decimals: 2 }
        ];
        rows.push(KeyValue::new("rate", rate).note(times));
        rows.push(KeyValue::new("device-hours", hours(run.device_hours)));
        rows.extend(self.cost_row(run));
        report.blocks.push(Block::key_values("", rows));
        report.blocks.extend(run.wall.map(|wall| wall.table().into()));
        report.result = self.result(flop, run);
        let (from, why) = match self.pace {
            Pace::Predicted(_) => (Origin::Derived, phrase!["from the predicted time of a step"]),
            _ => (Origin::Given, Phrase::default()),
        };
        report.assumptions.push(Assumption::new("mfu", "MFU", mfu_cell(mfu), from).why(why).flag("--mfu"));
        report.derivations.extend(self.derive_time(flop, run)?);
        report.warnings.extend(implausible(mfu));
        Ok(report)
    }

    fn range(&self, flop: Flops) -> Result<Report, Diagnostic> {
        let mut runs = Vec::new();
        for value in USUAL_MFU {
            if let Ok(mfu) = Mfu::new(value) {
                runs.push(self.run(flop, mfu)?);
            }
        }
        let [slow, middle, fast] = runs[..] else { unreachable!("three usual utilizations") };
        let at = phrase![
            "on ",
            self.fleet.name(),
            " at ",
            Cell::RoundPercent(fast.mfu.get()),
            " to ",
            Cell::RoundPercent(slow.mfu.get()),
            " MFU"
        ];
        // Data that come no faster decide it, however fast the devices are.
        let mut report = if fast.time == slow.time {
            Report::new("time", phrase![slow.time]).qualified(phrase!["on ", self.fleet.name(), ": the loader decides"])
        } else {
            Report::new("time", phrase![fast.time, " to ", slow.time]).qualified(at)
        };
        report.blocks.push(Block::key_values("", self.rows(flop)?));
        let mut columns = vec![Column::right("MFU"), Column::right("time"), Column::right("device-hours")];
        if self.price.is_some() {
            columns.push(Column::right("cost"));
        }
        let mut table = Table::new("", columns);
        for run in &runs {
            let cells = [
                Cell::RoundPercent(run.mfu.get()),
                run.time.into(),
                hours(run.device_hours),
                run.cost.map_or(Cell::Empty, Cell::Dollars),
            ];
            table.rows.push(Row::new(cells.into_iter().take(table.columns.len())));
        }
        report.blocks.push(table.into());
        let each = runs.iter().map(|run| self.result(flop, *run));
        report.result = self.result(flop, middle).with("range", Value::List(each.collect()));
        let why = phrase!["what well-run training reaches; the middle, 0.40, is the one in JSON"];
        let value = Cell::from(format!("{:.2} to {:.2}", slow.mfu.get(), fast.mfu.get()));
        report.assumptions.push(Assumption::new("mfu", "MFU", value, Origin::Default).why(why).flag("--mfu"));
        report.derivations.extend(self.derive_time(flop, middle)?);
        Ok(report)
    }

    fn deadline(&self, flop: Flops, time: Seconds) -> Result<Report, Diagnostic> {
        let achieved = flop / time;
        let total = self.fleet.total_peak()?;
        let share = achieved / total;
        let mfu = Mfu::new(share).map_err(|error| Diagnostic::error("", error.to_string()))?;
        let run = self.spent(mfu, time);
        let in_time = phrase!["for ", time, " on ", self.fleet.name()];
        let mut report = Report::new("time", phrase![mfu, " MFU"]).qualified(in_time);
        let mut rows = self.rows(flop)?;
        rows.push(KeyValue::new("rate", achieved).note(phrase![flop, " ÷ ", time]));
        if let (Convention::SixN, Some(n)) = (self.work.convention(), self.work.parameters) {
            let recomputed = formulas::training_flop_recomputed(n, self.tokens) / time;
            let hfu = Hfu::new(recomputed / total).map_err(|error| Diagnostic::error("", error.to_string()))?;
            rows.push(
                KeyValue::new("HFU", hfu).note(phrase!["if everything is recomputed: 8·N·D, one forward pass more"]),
            );
        }
        rows.push(KeyValue::new("device-hours", hours(run.device_hours)));
        rows.extend(self.cost_row(run));
        report.blocks.push(Block::key_values("", rows));
        report.result = self.result(flop, run);
        if mfu.is_impossible() {
            report.verdict = Verdict::No;
            report.headline.qualifiers.push(phrase!["not possible: more than the dense peak"]);
        } else {
            report.warnings.extend(implausible(mfu));
        }
        // Enough devices to arrive in time at the middle of the usual range.
        let usual = USUAL_MFU[1];
        let needed = (achieved.get() / (self.fleet.peak()?.rate.get() * usual)).ceil();
        report.result.insert("devices_at_usual_mfu", needed as u128);
        if needed > self.fleet.devices as f64 {
            report.notes.push(phrase![
                Cell::Count(needed as u128),
                " × ",
                self.fleet.hardware.display.as_str(),
                " would do it at ",
                Cell::RoundPercent(usual),
                " MFU"
            ]);
        }
        let given = Cell::from(time);
        report.assumptions.push(Assumption::new("days", "time", given, Origin::Given).flag("--days"));
        report.derivations.push(Derivation {
            of: "MFU".to_owned(),
            formula: "mfu",
            expression: known("mfu").expression.to_owned(),
            substituted: phrase![achieved, " ÷ (", self.fleet.devices, " × ", self.fleet.peak()?.rate, ")"],
            result: mfu.into(),
            source: known("mfu").source.to_owned(),
            anchor: known("mfu").anchor,
        });
        Ok(report)
    }

    /// The rows that every answer begins with.
    fn rows(&self, flop: Flops) -> Result<Vec<KeyValue>, Diagnostic> {
        let per_token = match (self.work.convention(), self.work.parameters) {
            (Convention::SixN, Some(n)) => phrase!["6 × ", Cell::Exact(u128::from(n.get())), " params"],
            _ => phrase![self.work.flop_per_token(), " per token"],
        };
        let note = per_token.and(" × ").and(Cell::Exact(u128::from(self.tokens.get()))).and(" tokens");
        let mut rows = vec![KeyValue::new("work", flop).note(note)];
        if let Some(attention) = self.work.attention {
            let share = Cell::Percent(attention / self.work.flop_per_token());
            rows.push(KeyValue::new("attention", share).note(phrase!["of the work is attention scores and values"]));
        }
        if let (Convention::Causal | Convention::Full, Some(n)) = (self.work.convention(), self.work.parameters) {
            // Of experts only those count that a token uses.
            let (n, name) = self.work.active.map_or((n, "6·N·D: "), |active| (active, "6·N·D, N active: "));
            let six = formulas::training_flop(n, self.tokens);
            let note = phrase![name, Cell::Change(six / flop - 1.0), ", no attention, embeddings counted as compute"];
            rows.push(KeyValue::new("check", six).note(note));
        }
        let peak = self.fleet.peak()?;
        let note = phrase![peak.precision.name(), ", dense · ", peak.source.to_string()];
        rows.push(KeyValue::new("peak", peak.rate).note(note));
        Ok(rows)
    }

    fn cost_row(&self, run: Run) -> Option<KeyValue> {
        let (cost, price) = (run.cost?, self.price?);
        let note = phrase![hours(run.device_hours), " device-hours × ", Cell::Dollars(price)];
        Some(KeyValue::new("cost", Cell::Dollars(cost)).note(note))
    }

    fn result(&self, flop: Flops, run: Run) -> Value {
        let rate = flop / run.time;
        Value::map()
            .with("days", run.time.days())
            .with("seconds", run.time)
            .with("flop", flop)
            .with("flop_per_token", self.work.flop_per_token())
            .with("convention", self.work.convention().name())
            .with("device_hours", run.device_hours)
            .with("mfu", run.mfu)
            .with("flop_per_second", rate)
            .with("tokens_per_second", self.tokens / run.time)
            .with("cost_usd", run.cost)
            .with("wall", run.wall.map_or(Value::Null, |wall| wall.value()))
    }

    fn assumptions(&self) -> Vec<Assumption> {
        let mut all = self.fleet.assumptions();
        all.extend(self.around.assumptions());
        let name = self.work.convention().name();
        let counted = Assumption::new("flop_per_token", "FLOP per token", name, Origin::Derived);
        all.push(match self.work.convention() {
            Convention::SixN => counted.why(phrase![
                "no config.json, so attention is not counted; pass a config.json to count it (8B at 8k context: +6.8 %)"
            ]),
            Convention::Given => counted.flag("--flops-per-token"),
            Convention::Causal => counted.why(phrase!["exactly the pairs that the mask leaves"]),
            Convention::Full => counted.why(phrase!["the full square of attention"]),
        });
        all
    }

    fn derive_work(&self, flop: Flops) -> Derivation {
        let formula = known("6nd");
        let tokens = Cell::Exact(u128::from(self.tokens.get()));
        let (expression, source, substituted) = match (self.work.convention(), self.work.parameters) {
            (Convention::SixN, Some(n)) => (
                formula.expression.to_owned(),
                formula.source.to_owned(),
                phrase!["6 × ", Cell::Exact(u128::from(n.get())), " × ", tokens],
            ),
            (convention, _) => (
                "FLOP per token · D".to_owned(),
                format!("FLOP per token: {}", convention.name()),
                phrase![Cell::Exact(self.work.flop_per_token().get()), " × ", tokens],
            ),
        };
        let of = "work".to_owned();
        Derivation { of, formula: "6nd", expression, substituted, result: flop.into(), source, anchor: formula.anchor }
    }

    fn derive_time(&self, flop: Flops, run: Run) -> Result<Vec<Derivation>, Diagnostic> {
        let peak = self.fleet.peak()?;
        let share = Cell::Number { value: run.mfu.get(), decimals: 2 };
        let time = phrase![flop, " ÷ (", self.fleet.devices, " × ", peak.rate, " × ", share, ")"];
        let hours = phrase![self.fleet.devices, " × ", run.time];
        let one = |of: &str, id, substituted, result| {
            let formula = known(id);
            Derivation {
                of: of.to_owned(),
                formula: id,
                expression: formula.expression.to_owned(),
                substituted,
                result,
                source: formula.source.to_owned(),
                anchor: formula.anchor,
            }
        };
        let steps = run.wall.map_or(run.time.get(), |wall| wall.training);
        let steps = Seconds::new(steps).map_err(|error| Diagnostic::error("", error.to_string()))?;
        let mut all = vec![one(if run.wall.is_some() { "training" } else { "time" }, "time", time, steps.into())];
        if let Some(wall) = run.wall {
            let seconds = |value: f64| Cell::from(Seconds::new(value).unwrap_or_default());
            let mut lines = phrase![seconds(wall.training)];
            for value in [wall.data, wall.evaluation, wall.saves, wall.restarts, wall.lost] {
                lines = lines.and(" + ").and(seconds(value));
            }
            all.push(one("time", "wall", lines, run.time.into()));
        }
        all.push(one("device-hours", "device-hours", hours, Cell::Short(run.device_hours.round() as u128)));
        Ok(all)
    }
}

fn mfu_cell(mfu: Mfu) -> Cell {
    Cell::Number { value: mfu.get(), decimals: 2 }
}

/// A remark on a utilization that few reach.
pub fn implausible(mfu: Mfu) -> Option<Diagnostic> {
    (mfu.get() > PLAUSIBLE_MFU).then(|| {
        let message = format!("an MFU of {mfu} is rare: well-run training reaches 30 to 50 %");
        Diagnostic::warning("T0403", message)
            .help("check the device, the number of tokens and the time it is computed from")
    })
}
