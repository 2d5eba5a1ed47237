//! The answer: each row, each source, each quantity, and what could not be judged.

use std::collections::{BTreeMap, BTreeSet};

use super::judge::{Judge, Judged, Quantity};
use super::memory::PeakKind;
use super::row::Row;
use super::simpler;
use crate::phrase;
use crate::report::{Block, Cell, Column, Report, Row as Line, Table, Value, Verdict};

/// Largest error of a FLOP count that the digits of the source do not explain.
pub const FLOP_BOUND: f64 = 0.01;

/// Largest error of the time of a step that is not listed.
pub const TIME_BOUND: f64 = 0.25;

/// Largest median of the errors of times.
pub const TIME_MEDIAN: f64 = 0.10;

/// Which rows the report lists one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listed {
    /// All that were compared.
    #[default]
    All,
    /// Those outside of the bounds.
    Outside,
}

/// The question.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Names of the tables.
    pub tables: &'a [String],
    /// Their rows.
    pub rows: &'a [Row],
    /// Only these sources; none: all.
    pub sources: &'a [String],
    /// Only these quantities; none: all.
    pub quantities: &'a [Quantity],
    /// Only this split.
    pub split: Option<&'a str>,
    /// Which rows are listed.
    pub listed: Listed,
}

impl Judged {
    /// What it is compared with: the quantity, and of memory its kind.
    fn group(&self) -> (Quantity, Option<PeakKind>) {
        (self.quantity, self.kind)
    }

    /// Whether the comparison is within the bound of its quantity.
    pub fn within(&self) -> Option<bool> {
        let compared = self.outcome.as_ref().ok()?;
        Some(match self.quantity {
            Quantity::Params => compared.beyond() == 0.0,
            Quantity::Flops => compared.beyond() <= FLOP_BOUND,
            Quantity::Memory => compared.beyond() <= self.kind?.bound(),
            Quantity::Time => compared.beyond() <= TIME_BOUND,
        })
    }
}

/// Errors of several comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Summary {
    count: usize,
    within: usize,
    median: f64,
    mean: f64,
    worst: f64,
    bias: f64,
}

impl Summary {
    fn of<'a>(all: impl IntoIterator<Item = &'a Judged>) -> Self {
        let mut within = 0;
        let mut errors: Vec<f64> = Vec::new();
        for judged in all {
            if let Ok(compared) = &judged.outcome {
                errors.push(compared.error());
                within += usize::from(judged.within() == Some(true));
            }
        }
        let count = errors.len();
        let share = |sum: f64| if count == 0 { 0.0 } else { sum / count as f64 };
        let bias = share(errors.iter().sum());
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let middle = |i: usize| sizes.get(i).copied().unwrap_or(0.0);
        let median = if count % 2 == 1 {
            middle(count / 2)
        } else {
            f64::midpoint(middle(count.saturating_sub(2) / 2), middle(count / 2))
        };
        let worst = errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
        Self { count, within, median, mean: share(sizes.iter().sum()), worst, bias }
    }

    fn cells(&self) -> [Cell; 6] {
        let Self { count, within, median, mean, worst, bias } = *self;
        [
            Cell::from(count as u64),
            Cell::from(within as u64),
            hundredths(median),
            hundredths(mean),
            signed(worst),
            signed(bias),
        ]
    }

    fn value(&self) -> Value {
        Value::map()
            .with("compared", self.count)
            .with("within", self.within)
            .with("median_absolute_error", self.median)
            .with("mean_absolute_error", self.mean)
            .with("worst_error", self.worst)
            .with("mean_error", self.bias)
    }
}

/// A share in percent with two decimals.
fn hundredths(share: f64) -> Cell {
    Cell::Text(format!("{:.2} %", 100.0 * share))
}

/// The same with its sign.
fn signed(share: f64) -> Cell {
    let text = format!("{:+.2} %", 100.0 * share);
    Cell::Text(if text == "-0.00 %" || text == "+0.00 %" { "0.00 %".to_owned() } else { text })
}

impl Request<'_> {
    /// Checks all rows.
    pub fn judge(&self) -> Vec<Judged> {
        let mut judge = Judge::default();
        let wanted = |quantity| self.quantities.is_empty() || self.quantities.contains(&quantity);
        let chosen = |row: &&(usize, &Row)| {
            (self.sources.is_empty() || self.sources.contains(&row.1.source))
                && self.split.is_none_or(|split| row.1.split == split)
        };
        // Constants of time were fitted on some rows: those show how well it was done, and are asked for by name.
        let known = |judged: &Judged| {
            judged.quantity == Quantity::Time && self.split.is_none() && self.rows[judged.row].split == "fit"
        };
        let rows: Vec<(usize, &Row)> = self.rows.iter().enumerate().collect();
        let judged = rows.iter().filter(chosen).flat_map(|(index, row)| judge.row(*index, row, wanted));
        judged.filter(|judged| !known(judged)).collect()
    }

    /// Checks all rows and reports.
    pub fn report(&self) -> Report {
        let judged = self.judge();
        let all = Summary::of(&judged);
        let fails = groups(&judged).into_iter().any(|group| {
            let members = judged.iter().filter(|one| one.group() == group);
            let summary = Summary::of(members);
            match group.1 {
                // The bounds of measured memory and of time are of the median.
                Some(kind) if kind != PeakKind::Formula => summary.median > kind.bound(),
                None if group.0 == Quantity::Time => summary.median > TIME_MEDIAN,
                _ => summary.within < summary.count,
            }
        });
        let answer = phrase![all.within as u64, " of ", all.count as u64, " numbers within bounds"];
        let mut report = Report::new("validate", answer);
        let open = judged.iter().filter(|one| one.outcome.is_err()).count();
        if open > 0 {
            report = report.qualified(phrase![open as u64, " more cannot be judged"]);
        }
        report.verdict = if !fails && all.count > 0 { Verdict::Answered } else { Verdict::No };
        report.inputs = Value::map()
            .with("tables", Value::list(self.tables.iter().map(String::as_str)))
            .with("rows", self.rows.len())
            .with("sources", Value::list(self.sources.iter().map(String::as_str)))
            .with("quantities", Value::list(self.quantities.iter().map(|one| one.name())))
            .with("split", self.split);
        report.blocks.push(quantities(&judged).into());
        report.blocks.push(self.sources_table(&judged).into());
        report.blocks.extend(simpler::table(self.rows, &judged).map(Block::from));
        report.blocks.extend(self.rows_table(&judged).map(Block::from));
        report.blocks.extend(not_judged(&judged).map(Block::from));
        report.blocks.push(Block::text(
            "how it is judged",
            [
                phrase!["error: predicted / reported - 1; median and mean are of its absolute value, bias is its mean"],
                phrase!["params: equal to all digits that are printed"],
                phrase!["flops: FLOP of a token under the convention that the source states, within 1 % of what its TFLOP/s or MFU and its tokens per second say, rounding of the printed digits apart"],
                phrase!["memory: of rows that state one layout, recipe and moment in full; the bound of what was measured is one of the median"],
                phrase!["time: seconds of a step on rows that no constant was fitted on, unless --split fit asks for the others; the bound is one of the median, and rows farther off than 25 % count as outside"],
            ],
        ));
        report.result = self.result(&judged, &all);
        report
    }

    fn sources_table(&self, judged: &[Judged]) -> Table {
        let mut groups: BTreeMap<(Quantity, &str), Vec<&Judged>> = BTreeMap::new();
        for one in judged {
            groups.entry((one.quantity, self.rows[one.row].source.as_str())).or_default().push(one);
        }
        let mut table = Table::new("by source", columns(&["quantity", "source"], &["open"]));
        for ((quantity, source), group) in groups {
            let open = group.iter().filter(|one| one.outcome.is_err()).count();
            let summary = Summary::of(group);
            let mut cells = vec![Cell::from(quantity.name()), Cell::from(source)];
            if summary.count == 0 {
                cells.extend([Cell::from(0u64), Cell::Empty, Cell::Empty, Cell::Empty, Cell::Empty, Cell::Empty]);
            } else {
                cells.extend(summary.cells());
            }
            cells.push(if open > 0 { Cell::from(open as u64) } else { Cell::Empty });
            table.rows.push(Line::new(cells));
        }
        table
    }

    fn rows_table(&self, judged: &[Judged]) -> Option<Table> {
        let (title, keep): (&str, fn(&Judged) -> bool) = match self.listed {
            Listed::All => ("rows", |one| one.outcome.is_ok()),
            Listed::Outside => ("outside of the bounds", |one| one.within() == Some(false)),
        };
        let names = ["quantity", "row", "model", "reported", "predicted", "error", "beyond rounding", "how"];
        let left = ["quantity", "row", "model", "how"];
        let column = |name: &&str| if left.contains(name) { Column::left(*name) } else { Column::right(*name) };
        let mut table = Table::new(title, names.iter().map(column));
        for one in judged.iter().filter(|one| keep(one)) {
            let row = &self.rows[one.row];
            let Some(numbers) = numbers(one, row) else { continue };
            let mut cells =
                vec![Cell::from(one.quantity.name()), Cell::from(row.id.as_str()), Cell::from(row.model.as_str())];
            cells.extend(numbers);
            cells.push(Cell::from(one.how.as_str()));
            table.rows.push(Line::new(cells));
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn result(&self, judged: &[Judged], all: &Summary) -> Value {
        let by = |quantity: Quantity| Summary::of(judged.iter().filter(|one| one.quantity == quantity)).value();
        let present = Quantity::ALL.into_iter().filter(|q| judged.iter().any(|one| one.quantity == *q));
        let quantities = present.map(|quantity| (quantity.name().to_owned(), by(quantity))).collect();
        let rows = judged.iter().map(|one| {
            let row = &self.rows[one.row];
            let mut value = Value::map()
                .with("row", row.id.as_str())
                .with("source", row.source.as_str())
                .with("split", row.split.as_str())
                .with("quantity", one.quantity.name())
                .with("kind", one.kind.map(PeakKind::name));
            match &one.outcome {
                Ok(compared) => {
                    value.insert("unit", unit(one.quantity, row));
                    value.insert("reported", compared.reported.value);
                    value.insert("reported_slack", compared.reported.slack);
                    value.insert("predicted", compared.predicted);
                    value.insert("error", compared.error());
                    value.insert("within", one.within());
                    value.insert("how", one.how.as_str());
                    value.insert("assumed", Value::list(one.assumed.iter().map(String::as_str)));
                }
                Err(why) => value.insert("not_judged", why.as_str()),
            }
            value
        });
        all.value().with("by_quantity", Value::Map(quantities)).with("rows", Value::List(rows.collect()))
    }
}

fn columns(first: &[&str], last: &[&str]) -> Vec<Column> {
    let names = ["compared", "within", "median", "mean", "worst", "bias"];
    let left = first.iter().map(|name| Column::left(*name));
    left.chain(names.iter().chain(last).map(|name| Column::right(*name))).collect()
}

/// What is compared, in order.
fn groups(judged: &[Judged]) -> BTreeSet<(Quantity, Option<PeakKind>)> {
    judged.iter().filter(|one| one.outcome.is_ok()).map(Judged::group).collect()
}

fn quantities(judged: &[Judged]) -> Table {
    let mut table = Table::new("by quantity", columns(&["quantity"], &["bound"]));
    for group in groups(judged) {
        let summary = Summary::of(judged.iter().filter(|one| one.group() == group));
        let (name, bound) = match group {
            (Quantity::Time, None) => ("time".to_owned(), format!("{:.0} % median", 100.0 * TIME_MEDIAN)),
            (quantity, None) => {
                (quantity.name().to_owned(), if quantity == Quantity::Flops { "1 % each" } else { "exact" }.to_owned())
            }
            (quantity, Some(kind)) => {
                let what = if kind == PeakKind::Formula { "each" } else { "median" };
                (format!("{quantity}, {}", kind.name()), format!("{:.0} % {what}", 100.0 * kind.bound()))
            }
        };
        let mut cells = vec![Cell::from(name)];
        cells.extend(summary.cells());
        cells.push(Cell::from(bound));
        table.rows.push(Line::new(cells));
    }
    table
}

fn numbers(one: &Judged, row: &Row) -> Option<[Cell; 4]> {
    let compared = one.outcome.as_ref().ok()?;
    let shown = |value: f64| match one.quantity {
        Quantity::Params => Cell::Count(value.round() as u128),
        Quantity::Flops => Cell::Text(format!("{:.3} GFLOP", value / 1e9)),
        Quantity::Memory if row.activations.is_some() => Cell::Text(format!("{value:.2} %")),
        Quantity::Memory => Cell::Text(format!("{:.2} GiB", value / f64::from(1 << 30))),
        Quantity::Time => Cell::Text(format!("{value:.3} s")),
    };
    Some([
        shown(compared.reported.value),
        shown(compared.predicted),
        signed(compared.error()),
        hundredths(compared.beyond()),
    ])
}

/// What the numbers of a comparison count.
fn unit(quantity: Quantity, row: &Row) -> &'static str {
    match quantity {
        Quantity::Params => "parameters",
        Quantity::Flops => "FLOP/token",
        Quantity::Memory if row.activations.is_some() => "%",
        Quantity::Memory => "B",
        Quantity::Time => "s",
    }
}

/// Checks that could not be made, by reason.
fn not_judged(judged: &[Judged]) -> Option<Table> {
    let mut reasons: BTreeMap<(Quantity, &str), usize> = BTreeMap::new();
    for one in judged {
        if let Err(why) = &one.outcome {
            *reasons.entry((one.quantity, why)).or_default() += 1;
        }
    }
    let columns = [Column::left("quantity"), Column::left("reason"), Column::right("rows")];
    let mut table = Table::new("cannot be judged", columns);
    for ((quantity, why), count) in reasons {
        table.rows.push(Line::new([quantity.name().into(), why.into(), Cell::from(count as u64)]));
    }
    (!table.rows.is_empty()).then_some(table)
}
