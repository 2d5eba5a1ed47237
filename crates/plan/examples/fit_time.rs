//! Fits the constants of the model of time that are marked `fitted` in `data/time`, on rows marked `fit` alone:
//!
//!     cargo run --release -p napkin-plan --example fit_time [Hopper]
//!
//! prints, for each architecture, the values that stand in its file, those that fit best, and errors on the rows that were
//! used. Rows whose network was slower than it should be are left out.
//!
//! What is made small is the sum of |ln(predicted / measured)|, each row with the weight 1/√n of its set of n rows, so that a
//! large set does not drown a small one. Beyond 0.5 a row counts a fifth: such rows were disturbed by something that no row
//! tells. The search is that of Nelder and Mead 1965, over logarithms.

#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;

use napkin_plan as plan;
use plan::cluster::accuracy::Summary;
use plan::cluster::constants::{Family, Kind, families};
use plan::cluster::published::{Measured, table};

const TABLE: &str = include_str!("../../../data/published/times.csv");
const STEPS: usize = 300;

fn main() {
    let rows: Vec<Measured> = table(TABLE).into_iter().filter(|row| row.fit && !row.slow).collect();
    let wanted = std::env::args().nth(1);
    for family in families().iter().filter(|family| wanted.as_ref().is_none_or(|wanted| *wanted == family.architecture))
    {
        let own: Vec<&Measured> =
            rows.iter().filter(|row| Family::of(row.hardware).architecture == family.architecture).collect();
        if own.is_empty() {
            continue;
        }
        let fitted: Vec<&str> =
            family.constants.iter().filter(|one| one.kind == Kind::Fitted).map(|one| one.name.as_str()).collect();
        let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
        for row in &own {
            *sizes.entry(&row.set).or_default() += 1.0;
        }
        let with = |logs: &[f64]| {
            fitted.iter().zip(logs).fold(family.clone(), |family, (name, log)| family.with(name, log.exp()))
        };
        let loss = |logs: &[f64]| -> f64 {
            let family = with(logs);
            own.iter()
                .filter_map(|row| {
                    let error = (row.predict(&family)?.seconds() / row.seconds).ln().abs();
                    let error = if error < 0.5 { error } else { 0.5 + 0.2 * (error - 0.5) };
                    Some(error / sizes[row.set.as_str()].sqrt())
                })
                .sum()
        };
        let start: Vec<f64> = fitted.iter().filter_map(|name| family.get(name)).map(f64::ln).collect();
        let best = nelder_mead(&loss, &start);
        println!("{}: loss {:.4} as it stands, {:.4} at best", family.architecture, loss(&start), loss(&best));
        for ((name, from), to) in fitted.iter().zip(&start).zip(&best) {
            println!("  {name} = {:.4}, best {:.4}", from.exp(), to.exp());
        }
        let family = with(&best);
        for set in sizes.keys() {
            let errors = own.iter().filter(|row| row.set == *set);
            let errors = errors.filter_map(|row| Some(row.predict(&family)?.seconds() / row.seconds - 1.0));
            if let Some(Summary { rows, mean, median, bias }) = Summary::of(errors) {
                println!(
                    "  {set}: {rows} rows, mean {:.1} %, median {:.1} %, bias {:+.1} %",
                    mean * 100.0,
                    median * 100.0,
                    bias * 100.0
                );
            }
        }
    }
}

/// The point at which a function is least, near a start.
fn nelder_mead(loss: &dyn Fn(&[f64]) -> f64, start: &[f64]) -> Vec<f64> {
    let n = start.len();
    let mut points: Vec<(f64, Vec<f64>)> = vec![(loss(start), start.to_vec())];
    for axis in 0..n {
        let mut point = start.to_vec();
        point[axis] += 0.2;
        points.push((loss(&point), point));
    }
    for _ in 0..STEPS {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let centre: Vec<f64> =
            (0..n).map(|axis| points[..n].iter().map(|(_, point)| point[axis]).sum::<f64>() / n as f64).collect();
        let (worst, last) = points[n].clone();
        let along = |step: f64| {
            let point: Vec<f64> =
                centre.iter().zip(&last).map(|(centre, last)| centre + step * (last - centre)).collect();
            (loss(&point), point)
        };
        let reflected = along(-1.0);
        if reflected.0 < points[0].0 {
            let further = along(-2.0);
            points[n] = if further.0 < reflected.0 { further } else { reflected };
        } else if reflected.0 < points[n - 1].0 {
            points[n] = reflected;
        } else {
            let nearer = along(0.5);
            if nearer.0 < worst {
                points[n] = nearer;
            } else {
                let best = points[0].1.clone();
                for (value, point) in &mut points[1..] {
                    for (coordinate, best) in point.iter_mut().zip(&best) {
                        *coordinate = best + 0.5 * (*coordinate - best);
                    }
                    *value = loss(point);
                }
            }
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.swap_remove(0).1
}
