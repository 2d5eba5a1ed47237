//! The utilization of a logged run: at the median step, without pauses, over all steps.

use units::{Diagnostic, Diagnostics, Flops, Mfu, Seconds, TokensPerSecond};

use crate::fleet::Fleet;
use crate::mfu::{self, Measured};
use crate::phrase;
use crate::report::{Assumption, Block, Cell, Column, KeyValue, Origin, Phrase, Report, Row, Table, Value};
use crate::step_log::Line;
use crate::time::PLAUSIBLE_MFU;
use crate::work::Work;

/// A step longer than this many medians is a pause: compilation, an evaluation, a checkpoint.
const PAUSE: f64 = 1.5;
/// Below this a utilization is more often a mistake than a slow run.
const LOW_MFU: f64 = 0.05;

/// The question.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Lines of the log, as [`step_log::read`](crate::step_log::read) gives them.
    pub lines: Vec<Line>,
    /// Work of a token; without it the log has to say the FLOP of a step.
    pub work: Option<Work>,
    /// Tokens of a step, where the log does not say them or says something else.
    pub tokens_per_step: Option<f64>,
    /// On what.
    pub fleet: Fleet,
    /// Whether the tokens are those of one device.
    pub per_device: bool,
}

/// A step with a time.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    /// As the log numbers it, or its line.
    number: u64,
    seconds: f64,
    tokens: f64,
    note: String,
}

/// What the steps come to.
struct Speeds {
    /// Median time of all steps.
    median: f64,
    /// Median time of the steps that are no pauses.
    median_without: f64,
    /// Tokens per second at the median step.
    rate: f64,
    /// The same over the steps that are no pauses.
    rate_without: f64,
    /// All tokens over all time.
    rate_all: f64,
    /// Time of all steps.
    total: f64,
    /// Indices of pauses.
    pauses: Vec<usize>,
}

impl Request {
    /// Answers it.
    ///
    /// # Errors
    /// `T0421` where the log says no tokens, `T0422` where the work of a token is unknown; as
    /// [`mfu::Request::report`], which refuses more than the peak with the likely causes.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let (steps, told) = self.steps()?;
        let speeds = Speeds::of(&steps);
        let work = self.work(&steps)?;
        let named = self.tokens_per_step.is_none()
            && self.lines.iter().all(|line| line.rate_per_device && line.tokens.is_none());
        let per_device = self.per_device || named;
        let rate = |value: f64| TokensPerSecond::new(value).map_err(|error| Diagnostic::error("", error.to_string()));
        let at = |value: f64| -> Result<(Mfu, Report), Diagnostics> {
            let measured = Measured::Tokens { work: work.clone(), rate: rate(value)?, per_device };
            let answer = mfu::Request { measured, fleet: self.fleet.clone() }.answer();
            answer.map_err(|problems| self.explained(problems, &steps, value, &work))
        };
        let (without, mut report) = at(speeds.rate_without)?;
        let without = without.get();
        let scaled = |rate: f64| without * rate / speeds.rate_without;
        let (median, all) = (scaled(speeds.rate), scaled(speeds.rate_all));
        // The median of all steps is slower than that without pauses. Their mean need not be, where the steps with the most
        // tokens are the fastest: it is refused for more than the peak, too.
        if all > without {
            at(speeds.rate_all)?;
        }

        let timed = told.timed;
        let step_words = if timed {
            phrase!["at the median step of ", seconds(speeds.median_without), ", pauses left out"]
        } else {
            phrase!["at the median rate, pauses left out"]
        };
        report.headline.qualifiers.insert(0, step_words);
        let columns = [
            Column::left(""),
            Column::right("MFU"),
            Column::right("tokens"),
            Column::right("step"),
            Column::right("steps"),
        ];
        let mut table = Table::new("over the log", columns);
        let left = speeds.pauses.len();
        for (name, mfu, rate, time, count) in [
            ("median step, without pauses", without, speeds.rate_without, speeds.median_without, steps.len() - left),
            ("median step", median, speeds.rate, speeds.median, steps.len()),
            ("all steps, all time", all, speeds.rate_all, speeds.total / steps.len() as f64, steps.len()),
        ] {
            let time = if timed { Cell::from(seconds(time)) } else { Cell::Empty };
            let rate = TokensPerSecond::new(rate).map(Cell::from).unwrap_or_default();
            table.rows.push(Row::new([name.into(), Cell::Percent(mfu), rate, time, (count as u64).into()]));
        }
        report.blocks.insert(0, table.into());
        if left > 0 {
            let lines = speeds.pauses.iter().take(12).map(|&i| pause_words(&steps, i, &speeds, timed));
            report.blocks.insert(1, Block::text("left out", lines));
        }
        self.one_or_all(&mut report, without, per_device);
        report.blocks.extend(self.printed(&steps, without));
        report.result.insert("steps", steps.len());
        if timed {
            report.result.insert("median_step_seconds", speeds.median);
            report.result.insert("median_step_seconds_without_pauses", speeds.median_without);
        }
        report.result.insert("mfu_at_median", median);
        report.result.insert("mfu_at_median_without_pauses", without);
        report.result.insert("mfu_over_all_steps", all);
        report.result.insert("pauses", Value::list(speeds.pauses.iter().map(|&i| steps[i].number)));
        let excluded = speeds.pauses.iter().map(|&i| {
            Value::map()
                .with("step", steps[i].number)
                .with("seconds", timed.then_some(steps[i].seconds))
                .with("why", why(&steps, i))
        });
        report.result.insert("excluded", Value::List(excluded.collect()));
        report.assumptions.extend(told.assumptions);
        if named && !self.per_device {
            let why = phrase!["the name of the rate says so"];
            report.assumptions.push(Assumption::new("per_device", "tokens", "of one device", Origin::File).why(why));
        }
        if without < LOW_MFU && report.warnings.iter().all(|warning| warning.code != "T0423") {
            report.warnings.push(Self::low(without));
        }
        Ok(report)
    }

    /// Steps with their times and tokens, and how the log was read.
    fn steps(&self) -> Result<(Vec<Step>, Told), Diagnostics> {
        let mut told = Told { timed: true, assumptions: Vec::new() };
        let lines = &self.lines;
        let totals = self.tokens_per_step.is_none() && are_totals(lines);
        let mut out: Vec<Step> = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            let mut tokens = self.tokens_per_step.or(line.tokens);
            if totals {
                let before = if i == 0 { None } else { lines[i - 1].tokens };
                // The first total stands for as many as the second adds.
                let next = lines.get(i + 1).and_then(|next| Some(next.tokens? - line.tokens?));
                tokens = before.zip(line.tokens).map(|(a, b)| b - a).or(next);
            }
            let step = match (line.seconds, tokens, line.rate) {
                (Some(seconds), Some(tokens), _) => (seconds, tokens),
                (Some(seconds), None, Some(rate)) => (seconds, rate * seconds),
                (None, Some(tokens), Some(rate)) if rate > 0.0 => (tokens / rate, tokens),
                // A rate alone: the time of one token.
                (None, None, Some(rate)) if rate > 0.0 => {
                    told.timed = false;
                    (1.0 / rate, 1.0)
                }
                _ => continue,
            };
            if step.0 > 0.0 && step.1 > 0.0 && step.0.is_finite() && step.1.is_finite() {
                let number = line.step.unwrap_or(line.line as u64);
                out.push(Step { number, seconds: step.0, tokens: step.1, note: line.note.clone() });
            }
        }
        if out.is_empty() {
            return Err(Diagnostic::error("T0421", "the log says no tokens: only times")
                .why("read are tokens of a step (tokens, num_tokens) and rates (tokens_per_sec, tok/s, tps)")
                .help("--tokens-per-step 491520: micro-batch × sequence length × accumulation × devices")
                .into());
        }
        if totals {
            let why = phrase!["they grow from line to line: those of all steps so far"];
            told.assumptions.push(Assumption::new("tokens", "tokens", "differences", Origin::File).why(why));
        }
        Ok((out, told))
    }

    /// The work of a token: as given, or as the log's own count of a step.
    fn work(&self, steps: &[Step]) -> Result<Work, Diagnostics> {
        if let Some(work) = &self.work {
            return Ok(work.clone());
        }
        let flop = self.lines.iter().find_map(|line| Some(line.flop? / self.tokens_per_step.or(line.tokens)?));
        match flop {
            Some(flop) if (1.0..1e30).contains(&flop) && !steps.is_empty() => {
                Ok(Work { model: "log".to_owned(), ..Work::given(Flops(flop.round() as u128)) })
            }
            _ => Err(Diagnostic::error("T0422", "the work of a token is not known")
                .help("llama-3.1-8b")
                .help("path/to/config.json")
                .help("--flops-per-token 51.47GFLOP")
                .into()),
        }
    }

    /// The refusal of more than the peak, with what the log adds.
    fn explained(&self, problems: Diagnostics, steps: &[Step], rate: f64, work: &Work) -> Diagnostics {
        let Ok(peak) = self.fleet.total_peak() else { return problems };
        let share = work.flop_per_token().as_f64() * rate / peak.get();
        let mut out = Diagnostics::new();
        for mut problem in problems {
            if problem.code == "T0404" {
                if (LOW_MFU..=PLAUSIBLE_MFU).contains(&(share / 1000.0)) && steps.iter().all(|step| step.seconds < 1.0)
                {
                    problem = problem
                        .help("times in seconds that are written as milliseconds: a thousandth of it is plausible");
                }
                problem = problem.help("tokens of padding are no tokens of the model: count those that the loss sees");
            }
            out.push(problem);
        }
        out
    }

    /// Whose tokens the log counts decides by the number of devices: both readings, and a warning where the other is likelier.
    fn one_or_all(&self, report: &mut Report, mfu: f64, per_device: bool) {
        let devices = self.fleet.devices as f64;
        if self.fleet.devices < 2 {
            return;
        }
        let (all, one) = if per_device { (mfu / devices, mfu) } else { (mfu, mfu * devices) };
        let shown = |share: f64| if share > 1.0 { Cell::from("impossible") } else { Cell::Percent(share) };
        let count = self.fleet.devices;
        let rows = [
            KeyValue::new("tokens of one device", shown(one)).note(phrase![if per_device {
                "as read"
            } else {
                "with --per-device"
            }]),
            KeyValue::new(format!("tokens of all {count}"), shown(all)).note(phrase![if per_device {
                "without --per-device"
            } else {
                "as read"
            }]),
        ];
        report.blocks.insert(1, Block::key_values("whose tokens the log counts", rows));
        report.result.insert("mfu_if_tokens_of_one_device", Some(one).filter(|share| *share <= 1.0));
        report.result.insert("mfu_if_tokens_of_all_devices", Some(all).filter(|share| *share <= 1.0));
        if !per_device && all < LOW_MFU && (LOW_MFU..=PLAUSIBLE_MFU).contains(&one) {
            let message = format!("{} is low: the tokens may be those of one device of {count}", units::percent(all));
            report.warnings.push(
                Diagnostic::warning("T0423", message)
                    .effect(format!("then the MFU is {}", units::percent(one)))
                    .help("--per-device"),
            );
        }
    }

    /// What the log itself printed, and the peak that this means.
    fn printed(&self, steps: &[Step], mfu: f64) -> Option<Block> {
        let mut printed: Vec<f64> =
            self.lines.iter().filter_map(|line| line.mfu).filter(|share| *share > 0.0).collect();
        if printed.is_empty() || steps.is_empty() {
            return None;
        }
        let median = median(&mut printed);
        let ratio = mfu / median;
        let mut note = phrase!["median of what the log says"];
        if (ratio - 1.0).abs() > 0.02
            && let Ok(peak) = self.fleet.peak()
        {
            let meant = units::FlopPerSecond::new(peak.rate.get() * ratio).map(Cell::from).unwrap_or_default();
            note = note.and(phrase!["; with this work it means a peak of ", meant, " for each device"]);
        }
        Some(Block::key_values("", [KeyValue::new("printed", Cell::Percent(median)).note(note)]))
    }

    fn low(mfu: f64) -> Diagnostic {
        let message = format!("an MFU of {} is low: well-run training reaches 30 to 50 %", units::percent(mfu));
        let mut problem = Diagnostic::warning("T0424", message);
        if mfu * 1000.0 <= PLAUSIBLE_MFU && mfu * 1000.0 >= LOW_MFU {
            problem = problem
                .help("times in milliseconds are read as seconds where no unit says otherwise: name the key `ms`");
        }
        problem.help("the device may have waited for data, or the step is bound by something else than products")
    }
}

/// How the log was read.
struct Told {
    /// Whether steps have times, not only rates.
    timed: bool,
    assumptions: Vec<Assumption>,
}

/// Whether the tokens of the lines are those of all steps so far.
fn are_totals(lines: &[Line]) -> bool {
    let all: Vec<f64> = lines.iter().filter_map(|line| line.tokens).collect();
    let steps: Vec<f64> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (least, most) = steps.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), step| (a.min(*step), b.max(*step)));
    // Batches of different sizes may grow for a while, but not by steps of one size.
    all.len() >= 3 && all.len() == lines.len() && least > 0.0 && most <= 4.0 * least
}

impl Speeds {
    fn of(steps: &[Step]) -> Self {
        let median_of = |of: &dyn Fn(&Step) -> f64, keep: &dyn Fn(usize) -> bool| {
            let mut values: Vec<f64> =
                steps.iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, step)| of(step)).collect();
            median(&mut values)
        };
        // By the time of a token, so that packed batches of different sizes are no pauses.
        let each = |step: &Step| step.seconds / step.tokens;
        let usual = median_of(&each, &|_| true);
        let pauses: Vec<usize> = (0..steps.len()).filter(|&i| each(&steps[i]) > PAUSE * usual).collect();
        let time = |step: &Step| step.seconds;
        let (all, kept) = (|_: usize| true, |i: usize| each(&steps[i]) <= PAUSE * usual);
        let total = steps.iter().map(time).sum::<f64>();
        Self {
            median: median_of(&time, &all),
            median_without: median_of(&time, &kept),
            rate: 1.0 / usual,
            rate_without: 1.0 / median_of(&each, &kept),
            rate_all: steps.iter().map(|step| step.tokens).sum::<f64>() / total,
            total,
            pauses,
        }
    }
}

/// The median: of an even number the mean of the middle two. 0 of none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => 0.0,
        (n, half) if n % 2 == 1 => values[half],
        (_, half) => f64::midpoint(values[half - 1], values[half]),
    }
}

fn seconds(time: f64) -> Seconds {
    Seconds::new(time).unwrap_or(Seconds::ZERO)
}

/// Why a step was left out.
fn why(steps: &[Step], i: usize) -> String {
    match (i, steps[i].note.as_str()) {
        (_, note) if !note.is_empty() => note.to_owned(),
        (0, _) => "first step: compilation, first allocations".to_owned(),
        _ => "a pause, such as an evaluation or a checkpoint".to_owned(),
    }
}

fn pause_words(steps: &[Step], i: usize, speeds: &Speeds, timed: bool) -> Phrase {
    let step = &steps[i];
    let times = step.seconds / step.tokens * speeds.rate_without;
    let longer = Cell::Number { value: times, decimals: 1 };
    let number = Cell::Count(u128::from(step.number));
    let start = phrase!["step ", number, ": "];
    let start = if timed { start.and(phrase![seconds(step.seconds), ", "]) } else { start };
    start.and(phrase![longer, " × the median: ", why(steps, i)])
}
