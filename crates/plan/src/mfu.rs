//! Which utilization a measured speed is, under each convention, and what is wrong where it cannot be.

use units::{Diagnostic, Diagnostics, FlopPerSecond, Flops, Mfu, Seconds, TokensPerSecond};

use crate::fleet::Fleet;
use crate::formulas::{self, known};
use crate::hardware::{self, Precision};
use crate::phrase;
use crate::report::{Assumption, Block, Cell, Column, Derivation, KeyValue, Origin, Phrase, Report, Row, Table, Value};
use crate::time::{USUAL_MFU, implausible};
use crate::work::Work;

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// Training: work of a token, and how fast tokens go by.
    Tokens {
        /// Work of one token.
        work: Work,
        /// Tokens per second.
        rate: TokensPerSecond,
        /// True if the rate is that of one device, false if it is that of all.
        per_device: bool,
    },
    /// One matrix multiplication on one device.
    Matmul {
        /// Rows of the left operand.
        m: u64,
        /// Contracted dimension.
        k: u64,
        /// Columns of the right operand.
        n: u64,
        /// How long it took.
        time: Seconds,
    },
    /// A utilization that somebody printed, of another peak than the right one.
    Printed {
        /// What was printed.
        mfu: Mfu,
        /// The peak that it was computed with.
        peak: FlopPerSecond,
    },
}

/// The question.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What was measured.
    pub measured: Measured,
    /// On what.
    pub fleet: Fleet,
}

/// A utilization under one convention.
struct Line {
    name: String,
    per_token: Option<Flops>,
    rate: FlopPerSecond,
    mfu: Mfu,
    /// Whether tokens of padding are left out.
    useful: bool,
}

impl Request {
    /// Answers it.
    ///
    /// # Errors
    /// As [`Request::answer`].
    pub fn report(&self) -> Result<Report, Diagnostics> {
        self.answer().map(|(_, report)| report)
    }

    /// Answers it: the utilization under the first convention, and the report that says it.
    ///
    /// # Errors
    /// `T0404` for more than the peak, with the likely cause; no time, no work, a device without a rate.
    pub fn answer(&self) -> Result<(Mfu, Report), Diagnostics> {
        if self.fleet.devices == 0 {
            return Err(Diagnostic::error("", "nothing runs on no devices").help("--devices 8").into());
        }
        let peak = self.fleet.peak()?;
        let total = self.fleet.total_peak()?;
        let lines = self.lines(total)?;
        let Some(first) = lines.first() else {
            return Err(Diagnostic::error("", "no work to measure").into());
        };
        if first.mfu.is_impossible() {
            return Err(self.impossible(first, total).into());
        }
        let useful = lines.iter().find(|line| line.useful).map(|line| line.mfu);
        let of = phrase!["of ", total, " (", peak.precision.name(), ", dense) on ", self.fleet.name()];
        let mut report = Report::new("mfu", phrase![first.mfu, " MFU"]).qualified(of);
        if let Some(useful) = useful {
            report = report.qualified(phrase![useful, " of useful tokens"]);
        }
        let mut rows = vec![KeyValue::new("achieved", first.rate).note(self.how(first))];
        let note = phrase![self.fleet.name(), ", ", peak.precision.name(), ", dense · ", peak.source.to_string()];
        rows.push(KeyValue::new("peak", total).note(note));
        // A faster arithmetic has a higher peak: utilization falls although the run got faster. So both are shown.
        if let (Precision::Fp8, Some(bf16)) = (self.fleet.precision, self.fleet.hardware.peak(Precision::Bf16)) {
            let share = first.rate / (bf16.rate * self.fleet.devices as f64);
            rows.push(
                KeyValue::new("of bf16", Cell::Percent(share))
                    .note(phrase!["to compare with a run in bf16: ", bf16.rate]),
            );
        }
        report.blocks.push(Block::key_values("", rows));
        if lines.len() > 1 {
            let columns = [Column::left("convention"), Column::right("per token"), Column::right("MFU")];
            let mut table = Table::new("conventions", columns);
            for line in &lines {
                table.rows.push(Row::new([line.name.as_str().into(), line.per_token.into(), line.mfu.into()]));
            }
            report.blocks.push(table.into());
        }
        report.inputs = Value::map().with("measured", self.inputs()).with("hardware", self.fleet.inputs());
        let each = lines.iter().map(|line| {
            Value::map()
                .with("convention", line.name.as_str())
                .with("flop_per_token", line.per_token)
                .with("mfu", line.mfu)
        });
        report.result = Value::map()
            .with("mfu", first.mfu)
            .with("flop_per_second", first.rate)
            .with("peak_flop_per_second", total)
            .with("conventions", Value::List(each.collect()));
        if let Measured::Matmul { m, k, n, .. } = self.measured {
            report.result.insert("flop", formulas::matmul_flop(m, k, n));
        }
        report.assumptions = self.assumptions();
        report.derivations.push(Derivation {
            of: "MFU".to_owned(),
            formula: "mfu",
            expression: known("mfu").expression.to_owned(),
            substituted: phrase![first.rate, " ÷ (", self.fleet.devices, " × ", peak.rate, ")"],
            result: first.mfu.into(),
            source: known("mfu").source.to_owned(),
            anchor: known("mfu").anchor,
        });
        if !matches!(self.measured, Measured::Matmul { .. }) {
            report.warnings.extend(implausible(first.mfu));
        }
        if let Measured::Tokens { work, .. } = &self.measured {
            report.warnings.extend(work.warnings.iter().cloned());
        }
        Ok((first.mfu, report))
    }

    fn lines(&self, total: FlopPerSecond) -> Result<Vec<Line>, Diagnostic> {
        let bad = |error: units::RangeError| Diagnostic::error("", error.to_string());
        let line = |name: String, per_token, rate: FlopPerSecond| {
            Mfu::achieved(rate, total).map(|mfu| Line { name, per_token, rate, mfu, useful: false }).map_err(bad)
        };
        match &self.measured {
            Measured::Tokens { work, rate, per_device } => {
                let devices = if *per_device { self.fleet.devices as f64 } else { 1.0 };
                let each = work.per_token.iter().map(|(convention, flop)| {
                    let rate = FlopPerSecond::new(flop.as_f64() * rate.get() * devices).map_err(bad)?;
                    line(convention.name().to_owned(), Some(*flop), rate)
                });
                let mut lines = each.collect::<Result<Vec<Line>, _>>()?;
                if let (Some(share), Some(first)) = (work.useful, lines.first()) {
                    let (name, flop) = (format!("{}, useful tokens", first.name), first.per_token);
                    lines.push(Line { useful: true, ..line(name, flop, first.rate * share)? });
                }
                Ok(lines)
            }
            Measured::Matmul { m, k, n, time } => {
                if *time == Seconds::ZERO {
                    return Err(Diagnostic::error("", "nothing is computed in no time").help("--seconds 0.16"));
                }
                Ok(vec![line("matmul".to_owned(), None, formulas::matmul_flop(*m, *k, *n) / *time)?])
            }
            Measured::Printed { mfu, peak } => {
                Ok(vec![line("printed".to_owned(), None, *peak * mfu.get() * self.fleet.devices as f64)?])
            }
        }
    }

    fn how(&self, line: &Line) -> Phrase {
        match &self.measured {
            Measured::Tokens { rate, per_device, .. } => {
                let flop = phrase![line.per_token, " per token × ", *rate];
                if *per_device { flop.and(" × ").and(self.fleet.devices) } else { flop }
            }
            Measured::Matmul { m, k, n, time } => {
                phrase!["2 × ", *m, " × ", *k, " × ", *n, " = ", formulas::matmul_flop(*m, *k, *n), " in ", *time]
            }
            Measured::Printed { mfu, peak } => phrase![*mfu, " of ", *peak, ", as printed"],
        }
    }

    fn inputs(&self) -> Value {
        match &self.measured {
            Measured::Tokens { work, rate, per_device } => {
                let map = Value::map().with("model", work.inputs());
                map.with("tokens_per_second", *rate).with("per_device", *per_device)
            }
            Measured::Matmul { m, k, n, time } => {
                Value::map().with("m", *m).with("k", *k).with("n", *n).with("seconds", *time)
            }
            Measured::Printed { mfu, peak } => {
                Value::map().with("printed_mfu", *mfu).with("printed_peak_flop_per_second", *peak)
            }
        }
    }

    fn assumptions(&self) -> Vec<Assumption> {
        let mut all = self.fleet.assumptions();
        if let Measured::Tokens { work, .. } = &self.measured {
            all.extend(work.assumptions.iter().cloned());
        }
        if let Measured::Tokens { per_device: false, .. } = self.measured
            && self.fleet.devices > 1
        {
            let why = phrase!["the rate is that of all devices together"];
            all.push(
                Assumption::new("per_device", "tokens", Cell::Text("of all".into()), Origin::Default)
                    .why(why)
                    .flag("--per-device"),
            );
        }
        all
    }

    /// More than the peak: says what most likely is wrong, nearest cause first.
    fn impossible(&self, line: &Line, total: FlopPerSecond) -> Diagnostic {
        let mut problem = Diagnostic::error("T0404", format!("{} of the peak cannot be", line.mfu)).why(format!(
            "{} achieved, and {} has a dense peak of {total} in {}",
            line.rate,
            self.fleet.name(),
            self.fleet.precision
        ));
        for cause in self.causes(line.rate) {
            problem = problem.help(cause);
        }
        problem.help(
            "look at the number of tokens and at the time: a first step, or a clock that does not wait for the device",
        )
    }

    fn causes(&self, rate: FlopPerSecond) -> Vec<String> {
        let mut causes = Vec::new();
        let devices = self.fleet.devices as f64;
        let each = rate.get() / devices;
        let plausible = |share: f64| (0.05..=0.85).contains(&share);
        match &self.measured {
            Measured::Tokens { per_device: true, .. } if self.fleet.devices > 1 => {
                if let Ok(peak) = self.fleet.total_peak()
                    && let Ok(mfu) = Mfu::new(each / peak.get())
                {
                    causes.push(format!("without --per-device, if the rate is that of all devices: {mfu}"));
                }
            }
            Measured::Tokens { .. } if self.fleet.devices == 1 => {
                if let Ok(peak) = self.fleet.peak()
                    && let Ok(mfu) = Mfu::new(each / peak.rate.get() / 8.0)
                    && plausible(mfu.get())
                {
                    causes.push(format!("-n 8, if the tokens are those of a node of 8 devices: {mfu}"));
                }
            }
            _ => {}
        }
        // A faster arithmetic of the same device.
        for peak in self.fleet.hardware.peaks().iter().filter(|peak| peak.precision != self.fleet.precision) {
            if let Ok(mfu) = Mfu::new(each / peak.rate.get())
                && plausible(mfu.get())
                && peak.precision.name().starts_with(['b', 'f', 't'])
            {
                causes.push(format!(
                    "--dtype {}, if the multiplications ran in it: {mfu} of {}",
                    peak.precision, peak.rate
                ));
            }
        }
        // Another card.
        let mut others: Vec<(f64, String)> = hardware::table()
            .iter()
            .filter(|other| other.name != self.fleet.hardware.name && other.kind == self.fleet.hardware.kind)
            .filter_map(|other| {
                let peak = other.peak(self.fleet.precision)?;
                let share = each / peak.rate.get();
                plausible(share).then(|| (share, format!("--hw {} ({})", other.name, units::percent(share))))
            })
            .collect();
        // The card on which the run would have been an ordinary one is the most likely.
        others.sort_by(|a, b| (a.0 - USUAL_MFU[1]).abs().total_cmp(&(b.0 - USUAL_MFU[1]).abs()));
        let names: Vec<String> = others.into_iter().take(4).map(|(_, name)| name).collect();
        if !names.is_empty() {
            causes.push(format!("{}, if it ran on another card", names.join(", ")));
        }
        causes
    }
}
