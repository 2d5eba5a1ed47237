//! Rows against predictions: parameters, FLOP per token, peak memory, seconds of a step.

use std::fmt;
use std::str::FromStr;

use super::architecture::{self, Described};
use super::conventions::{Convention, Count, Terms};
use super::facts::Traces;
use super::memory::{self, PeakKind};
use super::row::{Reading, Row};
use crate::cluster::constants::Family;
use crate::cluster::published::Measured;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quantity {
    /// Parameters of the model.
    Params,
    /// FLOP of a token.
    Flops,
    /// Peak memory of a device.
    Memory,
    /// Seconds of a step.
    Time,
}

impl Quantity {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Params, Self::Flops, Self::Memory, Self::Time];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Params => "params",
            Self::Flops => "flops",
            Self::Memory => "memory",
            Self::Time => "time",
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = Self::ALL.iter().map(|one| one.name()).collect();
        let found = Self::ALL.into_iter().find(|one| one.name() == text.trim());
        found.ok_or_else(|| format!("unknown quantity `{text}`: valid are {}", names.join(", ")))
    }
}

/// A printed number and ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// As printed.
    pub reported: Reading,
    /// As predicted.
    pub predicted: f64,
}

impl Compared {
    /// Relative error of the prediction.
    pub fn error(&self) -> f64 {
        self.predicted / self.reported.value - 1.0
    }

    /// What of it the digits that were not printed cannot explain, without sign.
    pub fn beyond(&self) -> f64 {
        ((self.predicted - self.reported.value).abs() - self.reported.slack).max(0.0) / self.reported.value
    }
}

/// What came of one check of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Index of the row.
    pub row: usize,
    /// What was checked.
    pub quantity: Quantity,
    /// Which memory it is.
    pub kind: Option<PeakKind>,
    /// How it was predicted: the convention, the recipe.
    pub how: String,
    /// What the row leaves open, and how it was closed.
    pub assumed: Vec<String>,
    /// The comparison, or why there is none.
    pub outcome: Result<Compared, String>,
}

/// Checks rows; models that several rows have are traced once.
#[derive(Debug, Default)]
pub struct Judge {
    traces: Traces,
}

/// How, what was assumed, and what is compared.
type Verdict = (String, Vec<String>, Compared);

impl Judge {
    /// All checks that a row supports.
    pub fn row(&mut self, index: usize, row: &Row, wanted: impl Fn(Quantity) -> bool) -> Vec<Judged> {
        let mut all = Vec::new();
        let mut push = |quantity, verdict: Result<Verdict, String>| {
            let (how, assumed, outcome) = match verdict {
                Ok((how, assumed, compared)) => (how, assumed, Ok(compared)),
                Err(why) => (String::new(), Vec::new(), Err(why)),
            };
            all.push(Judged { row: index, quantity, kind: None, how, assumed, outcome });
        };
        let states_params = row.supports("params") || row.supports("params_rounded");
        if wanted(Quantity::Params) && states_params && row.parameters.is_some() {
            push(Quantity::Params, self.params(row));
        }
        let states_flops = row.supports("flops") && (!row.usable_for.is_empty() || row.mfu.is_some());
        if wanted(Quantity::Flops) && states_flops {
            push(Quantity::Flops, self.flops(row));
        }
        let states_memory = row.memory.is_some() || row.activations.is_some();
        if wanted(Quantity::Memory) && row.supports("memory") && (!row.usable_for.is_empty() || states_memory) {
            let empty = |why| (None, String::new(), Vec::new(), Err(why));
            let (kind, how, assumed, outcome) = memory::peak(row)
                .map_or_else(empty, |peak| (Some(peak.kind), peak.how, peak.assumed, Ok(peak.compared)));
            all.push(Judged { row: index, quantity: Quantity::Memory, kind, how, assumed, outcome });
        }
        if let Some(timed) = row.timed.as_ref().filter(|_| wanted(Quantity::Time)) {
            all.push(Judged { row: index, ..time(row, timed) });
        }
        all
    }

    fn params(&mut self, row: &Row) -> Result<Verdict, String> {
        let reported = row.parameters.ok_or("no count in the row")?;
        let Described { config, assumed } = architecture::describe(row)?;
        let counts = self.traces.counts(&row.model, &config)?;
        Ok((String::new(), assumed, Compared { reported, predicted: counts.stored.as_f64() }))
    }

    fn flops(&mut self, row: &Row) -> Result<Verdict, String> {
        let convention = Convention::of(row)?;
        let reported = per_token(row)?;
        let compared = |predicted| Compared { reported, predicted };
        let (name, mut row) = (convention.name.to_owned(), row.clone());
        match convention.count {
            Count::PerParameter { recomputed, plain } => {
                let parameters = row.parameters.ok_or("no parameters in the row")?.value;
                let each = if row.recompute == "full" { recomputed } else { plain };
                return Ok((name, Vec::new(), compared(each as f64 * parameters)));
            }
            Count::DenseWidth(_, width) => {
                let s = &mut row.sizes;
                (s.experts, s.top_k, s.expert_width, s.intermediate) = (None, None, None, Some(width));
            }
            _ => {}
        }
        let seq_len = row.seq_len.ok_or("no sequence length in the row")?;
        let Described { config, assumed } = architecture::describe(&row)?;
        let facts = self.traces.facts(&row.model, &config, seq_len)?;
        let mut extra = 0.0;
        if convention.predictors {
            extra = 3.0 * self.predictors(&row, &config, seq_len)?;
        }
        let (name, predicted) = match convention.count {
            Count::Either(versions) => {
                let error = |terms: &Terms| (facts.flop(*terms, &row) / reported.value - 1.0).abs();
                let nearest = versions.iter().min_by(|a, b| error(a).total_cmp(&error(b)));
                let terms = nearest.ok_or("no version")?;
                let version = if *terms == versions[0] { "full" } else { "causal" };
                (format!("{name}, version not stated: {version} attention is nearer"), facts.flop(*terms, &row))
            }
            Count::Terms(terms) | Count::DenseWidth(terms, _) => (name, facts.flop(terms, &row)),
            Count::PerParameter { .. } => return Err("no terms".to_owned()),
        };
        let name =
            if convention.predictors { format!("{name}, with one layer that predicts a further token") } else { name };
        Ok((name, assumed, compared(predicted + extra)))
    }

    /// Forward FLOP of a layer that predicts a further token: a block like the last, a map from 2h to h, the head again.
    fn predictors(&mut self, row: &Row, config: &str, seq_len: u64) -> Result<f64, String> {
        let layers = row.sizes.layers.ok_or("no layers in the row")?;
        let hidden = row.sizes.hidden.ok_or("no width in the row")?;
        let mut longer = row.clone();
        longer.sizes.layers = layers.checked_add(1);
        // A label of its own, so that no preset is taken.
        longer.model.push_str(" longer");
        let more = architecture::describe(&longer)?.config;
        let mut same = row.clone();
        same.model.push_str(" longer");
        let base = architecture::describe(&same)?.config;
        let (more, base) =
            (self.traces.facts(&row.model, &more, seq_len)?, self.traces.facts(&row.model, &base, seq_len)?);
        let facts = self.traces.facts(&row.model, config, seq_len)?;
        Ok(facts.predictor(more.forward() - base.forward(), hidden))
    }
}

/// The step of a row.
fn time(row: &Row, timed: &Measured) -> Judged {
    let predicted = timed.predict(Family::of(timed.hardware)).ok_or("the layout does not divide the model");
    let reported = row.step_time.ok_or("no time of a step in the row");
    let outcome = predicted.and_then(|time| Ok(Compared { reported: reported?, predicted: time.seconds() }));
    let mut how = format!("{} on {}", timed.framework.name(), timed.hardware.display);
    if timed.slow {
        how.push_str(", on a network as its job measured it");
    }
    Judged {
        row: 0,
        quantity: Quantity::Time,
        kind: None,
        how,
        assumed: Vec::new(),
        outcome: outcome.map_err(str::to_owned),
    }
}

/// FLOP of a token as the row's numbers say it.
fn per_token(row: &Row) -> Result<Reading, String> {
    let quotient = |over: Reading, under: Reading, scale: f64| {
        let value = scale * over.value / under.value;
        Reading { value, slack: value * (over.relative() + under.relative()) }
    };
    let usable = |reading: Reading| {
        let fine = reading.value.is_finite() && reading.value > 0.0;
        if fine { Ok(reading) } else { Err("the row's numbers give no FLOP of a token".to_owned()) }
    };
    let rate = row.rate.map(|rate| rounded_rate(row, rate));
    if let (Some(tflops), Some(rate)) = (row.tflops, rate) {
        return usable(quotient(tflops, rate, 1e12));
    }
    if let (Some(mfu), Some(rate), Some(peak)) = (row.mfu, rate, row.peak.or_else(|| peak_of(&row.convention))) {
        return usable(quotient(mfu, rate, peak * 1e10));
    }
    if let (Some(flop), Some(tokens)) = (row.flop, row.tokens) {
        return usable(quotient(flop, tokens, 1.0));
    }
    let sequence = row.notes.contains("per sequence") || row.notes.contains("-token sequence");
    if let (Some(flop), Some(seq_len)) = (row.flop, row.seq_len.filter(|_| sequence)) {
        return usable(quotient(flop, Reading { value: seq_len as f64, slack: 0.0 }, 1.0));
    }
    Err("no FLOP of a token in the row: TFLOP/s or MFU and peak, with tokens per second".to_owned())
}

/// A rate with the rounding of what it was made of: the time of a step, or whole sequences per second of all devices.
fn rounded_rate(row: &Row, rate: Reading) -> Reading {
    let mut slack = rate.slack;
    if let Some(time) = row.step_time.filter(|_| row.inferred.contains("tokens_per_s from step time")) {
        slack = rate.value * time.relative();
    }
    if let (Some(devices), Some(seq_len)) = (row.layout.devices, row.seq_len) {
        let sequences = rate.value * devices as f64 / seq_len.max(1) as f64;
        if sequences >= 1.0 && (sequences - sequences.round()).abs() < 1e-9 * sequences {
            slack = slack.max(0.5 * rate.value / sequences);
        }
    }
    Reading { slack, ..rate }
}

/// The peak that a convention's text divides by, in TFLOP/s: `.../989e12`, `..., /312`.
fn peak_of(convention: &str) -> Option<f64> {
    let under = convention.rsplit_once('/')?.1.trim();
    let peak: f64 = under.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').next()?.parse().ok()?;
    let peak = if peak > 1e9 { peak / 1e12 } else { peak };
    (peak.is_finite() && peak > 0.0).then_some(peak)
}
