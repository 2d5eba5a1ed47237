//! Predicted seconds of a step against those that others measured, on rows that no constant was fitted on.

// What is printed is the numbers behind the bounds, for `--nocapture`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use napkin_plan as plan;
use plan::cluster::accuracy::{Summary, error, error_at_mfu, error_of_six_nd, fitted_mfu, regrets};
use plan::cluster::published::{Measured, table};

fn rows() -> Vec<Measured> {
    table(include_str!("../../../data/published/times.csv"))
}

fn set<'a>(rows: &'a [Measured], name: &str, fit: bool) -> Vec<&'a Measured> {
    rows.iter().filter(|row| row.set == name && row.fit == fit && !row.slow).collect()
}

fn summary(rows: &[&Measured]) -> Summary {
    Summary::of(rows.iter().map(|row| error(row).unwrap())).unwrap()
}

#[test]
fn every_row_of_the_table_is_read() {
    let lines = include_str!("../../../data/published/times.csv").lines().count();
    assert_eq!(rows().len(), lines - 1);
}

/// Mean error published for the best model of the same rows: vTrain's own on both of its sets (Bang et al. 2024), `SimuMax`'s on
/// B200. The median is asked for where jobs ran beside others.
#[test]
fn errors_on_test_rows_are_below_those_of_the_best_peers() {
    let rows = rows();
    for (name, mean, median) in [
        ("vtrain_multi", 0.147, 0.147),
        ("vtrain_single", 0.084, 0.084),
        ("simumax_b200", 0.056, 0.056),
        ("ultrascale", 1.0, 0.10),
    ] {
        let found = summary(&set(&rows, name, false));
        println!("{name}: {found:?}");
        assert!(found.mean < mean && found.median <= median, "{name}: {found:?}");
    }
}

#[test]
fn slow_networks_are_predicted_from_what_their_jobs_measured() {
    let rows = rows();
    let slow: Vec<&Measured> = rows.iter().filter(|row| row.set == "ultrascale" && row.slow && !row.fit).collect();
    let found = summary(&slow);
    println!("slow networks: {found:?}");
    assert!(found.median <= 0.10, "{found:?}");
}

#[test]
fn simpler_rules_are_farther_off() {
    let rows = rows();
    for name in ["vtrain_multi", "vtrain_single", "simumax_b200", "ultrascale"] {
        let test = set(&rows, name, false);
        let found = summary(&test);
        let mfu = fitted_mfu(set(&rows, name, true)).unwrap();
        let one = Summary::of(test.iter().map(|row| error_at_mfu(row, mfu).unwrap())).unwrap();
        let six = Summary::of(test.iter().map(|row| error_of_six_nd(row).unwrap())).unwrap();
        println!("{name}: {:.3}, at one MFU of {mfu:.3} {:.3}, 6ND at 40 % {:.3}", found.mean, one.mean, six.mean);
        assert!(found.mean < one.mean && found.mean < six.mean, "{name}");
    }
}

#[test]
fn chosen_layouts_are_nearly_the_best_measured() {
    let rows = rows();
    for name in ["vtrain_multi", "vtrain_single", "ultrascale"] {
        let regrets = regrets(&set(&rows, name, false));
        let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
        println!("{name}: {} groups, mean regret {mean:.4}", regrets.len());
        assert!(mean < 0.045, "{name}: {mean}");
    }
}
