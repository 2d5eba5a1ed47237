//! How far predicted steps are from measured ones, beside what simpler rules would have said.

use super::constants::Family;
use super::published::Measured;
use super::shape::Shape;

/// Errors of a set of rows, as parts of what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Rows.
    pub rows: usize,
    /// Mean of the magnitudes.
    pub mean: f64,
    /// Median of the magnitudes: the larger of the middle two where rows are even.
    pub median: f64,
    /// Mean with signs: above 0 where predictions are too long.
    pub bias: f64,
}

impl Summary {
    /// Of errors; nothing of none.
    pub fn of(errors: impl IntoIterator<Item = f64>) -> Option<Self> {
        let errors: Vec<f64> = errors.into_iter().collect();
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let rows = errors.len();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / rows as f64;
        Some(Self { rows, mean: mean(&sizes), median: *sizes.get(rows / 2)?, bias: mean(&errors) })
    }
}

/// Error of the model of time; nothing for a row that it cannot take.
pub fn error(row: &Measured) -> Option<f64> {
    let predicted = row.predict(Family::of(row.hardware))?.seconds();
    Some(predicted / row.seconds - 1.0)
}

/// Dense peak of all devices of a row.
fn peak(row: &Measured) -> Option<f64> {
    Some(row.hardware.peak(row.precision)?.rate.get() * row.degrees.ranks() as f64)
}

/// The utilization that fits rows best: the median of theirs.
pub fn fitted_mfu<'a>(rows: impl IntoIterator<Item = &'a Measured>) -> Option<f64> {
    let mut of: Vec<f64> =
        rows.into_iter().filter_map(|row| Some(row.model_flop()? / row.seconds / peak(row)?)).collect();
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied()
}

/// Error of one utilization for all.
pub fn error_at_mfu(row: &Measured, mfu: f64) -> Option<f64> {
    Some(row.model_flop()? / (peak(row)? * mfu) / row.seconds - 1.0)
}

/// Error of six FLOP for each parameter and token, at 40 % of the peak.
pub fn error_of_six_nd(row: &Measured) -> Option<f64> {
    Some(6.0 * row.parameters()? * row.tokens() / (peak(row)? * 0.4) / row.seconds - 1.0)
}

/// By how much the layout that would have been chosen is slower than the best that was measured: for each group of rows of
/// the same model, devices and batch that has several. How many rows the vocabulary is padded to follows from the layout.
pub fn regrets(rows: &[&Measured]) -> Vec<f64> {
    let same = |a: &Measured, b: &Measured| {
        a.set == b.set
            && a.hardware == b.hardware
            && a.degrees.ranks() == b.degrees.ranks()
            && (a.tokens() - b.tokens()).abs() < 0.5
            && Shape { vocab: b.shape.vocab, ..a.shape } == b.shape
            && a.experts == b.experts
    };
    let mut groups: Vec<Vec<(&Measured, f64)>> = Vec::new();
    for row in rows {
        let Some(time) = row.predict(Family::of(row.hardware)) else { continue };
        match groups.iter_mut().find(|group| same(group[0].0, row)) {
            Some(group) => group.push((row, time.seconds())),
            None => groups.push(vec![(row, time.seconds())]),
        }
    }
    let regret = |group: &Vec<(&Measured, f64)>| {
        let chosen = group.iter().min_by(|a, b| a.1.total_cmp(&b.1))?.0.seconds;
        let best = group.iter().map(|(row, _)| row.seconds).fold(f64::INFINITY, f64::min);
        (group.len() > 1).then_some(chosen / best - 1.0)
    };
    groups.iter().filter_map(regret).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::published;

    #[test]
    fn layouts_are_chosen_among_those_of_one_model() {
        let table = include_str!("../../../../data/published/times.csv");
        let rows = published::table(table);
        let row = |id: &str| rows.iter().find(|row| row.id == id).unwrap();
        let (slow, fast) = (row("us-0382"), row("us-0350"));
        let regret = regrets(&[slow, fast]);
        assert_eq!(regret, regrets(&[fast, slow]));
        assert!(regret == [0.0] || regret == [slow.seconds / fast.seconds - 1.0]);
        // One that shares heads of keys is another model.
        let other = Measured { shape: Shape { kv_heads: 8, ..fast.shape }, ..fast.clone() };
        assert!(regrets(&[slow, &other]).is_empty());
    }

    #[test]
    fn a_summary_is_that_of_its_errors() {
        let summary = Summary::of([0.1, -0.3, 0.05]).unwrap();
        assert_eq!(summary.rows, 3);
        assert!((summary.mean - 0.15).abs() < 1e-12 && (summary.bias + 0.05).abs() < 1e-12);
        assert!((summary.median - 0.1).abs() < 1e-12);
        assert_eq!(Summary::of([]), None);
    }
}
