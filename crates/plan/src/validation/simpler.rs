//! Times beside what simpler rules would have said of them, and what the layout that would have been chosen loses.

use std::collections::BTreeMap;

use super::judge::{Judged, Quantity};
use super::row::Row;
use crate::cluster::accuracy::{Summary, error, error_at_mfu, error_of_six_nd, fitted_mfu, regrets};
use crate::cluster::published::Measured;
use crate::report::{Cell, Column, Row as Line, Table};

/// One line for each source, slow networks apart: errors of the model of time, of one utilization that was fitted on the
/// other rows of the source (`split` fit), and of 6 FLOP for each parameter and token at 40 % of the peak. The regret is by
/// how much the layout of shortest predicted time was slower than the best that was measured for the same model, devices
/// and batch.
pub(super) fn table(rows: &[Row], judged: &[Judged]) -> Option<Table> {
    let mut sources: BTreeMap<(&str, bool), Vec<&Measured>> = BTreeMap::new();
    for one in judged.iter().filter(|one| one.quantity == Quantity::Time && one.outcome.is_ok()) {
        if let Some(timed) = &rows[one.row].timed {
            sources.entry((&timed.set, timed.slow)).or_default().push(timed);
        }
    }
    let names = ["rows", "mean error", "at one MFU", "6ND at 40 %", "layouts", "mean regret"];
    let columns = std::iter::once(Column::left("source")).chain(names.map(Column::right));
    let mut table = Table::new("times beside simpler rules", columns);
    for ((set, slow), timed) in &sources {
        let all = rows.iter().filter_map(|row| row.timed.as_deref());
        let mfu = fitted_mfu(all.filter(|row| row.fit && row.set == *set && row.slow == *slow));
        let mean = |of: &dyn Fn(&Measured) -> Option<f64>| {
            let summary = Summary::of(timed.iter().filter_map(|row| of(row)));
            summary.map_or(Cell::Empty, |summary| percent(summary.mean))
        };
        // Jobs on slow networks had each its own: what was fastest says nothing of layouts.
        let regrets = if *slow { Vec::new() } else { regrets(timed) };
        let regret = regrets.iter().sum::<f64>() / regrets.len() as f64;
        let name = if *slow { format!("{set}, slow network") } else { (*set).to_owned() };
        table.rows.push(Line::new([
            Cell::from(name),
            Cell::from(timed.len() as u64),
            mean(&error),
            mfu.map_or(Cell::Empty, |mfu| mean(&|row| error_at_mfu(row, mfu))),
            mean(&error_of_six_nd),
            Cell::from(regrets.len() as u64),
            if regrets.is_empty() { Cell::Empty } else { percent(regret) },
        ]));
    }
    (!table.rows.is_empty()).then_some(table)
}

fn percent(share: f64) -> Cell {
    Cell::Text(format!("{:.1} %", 100.0 * share))
}
