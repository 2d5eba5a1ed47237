//! Runs of nanotron over tensor, pipeline and data parallelism: reserved memory of the first stage, and which runs find none.
//!
//! Nothing is fitted to them.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use napkin_plan::validation::{Judge, PeakKind, Quantity, Row, runs_out};
use std::path::Path;

/// Rows of a table, each with the content of one column that is no part of a row.
fn rows(table: &str, column: &str) -> Vec<(Row, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/published").join(table);
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader.headers().unwrap().clone();
    let records: Result<Vec<csv::StringRecord>, _> = reader.records().collect();
    let read = |(i, record): (usize, &csv::StringRecord)| {
        let cell = |name: &str| record.get(header.iter().position(|column| column == name)?);
        (Row::read(i as u64 + 2, cell).unwrap(), cell(column).unwrap_or_default().to_owned())
    };
    records.unwrap().iter().enumerate().map(read).collect()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Every fourth of the rows that state memory.
#[test]
fn reserved_bytes_of_the_first_stage() {
    let (mut judge, mut all) = (Judge::default(), Vec::new());
    for (i, (row, _)) in rows("layouts.csv", "row_id").iter().enumerate().step_by(4) {
        for judged in judge.row(i, row, |quantity| quantity == Quantity::Memory) {
            if let (Some(PeakKind::Reserved), Ok(compared)) = (judged.kind, judged.outcome) {
                println!("{} {} {:+.1} % {} {}", row.split, row.id, 100.0 * compared.error(), judged.how, row.notes);
                all.push((row.split.clone(), compared.error().abs()));
            }
        }
    }
    assert!(all.len() > 240, "{}", all.len());
    for split in ["fit", "test"] {
        let errors: Vec<f64> = all.iter().filter(|(of, _)| of == split).map(|(_, error)| *error).collect();
        let (count, median) = (errors.len(), median(errors));
        println!("{split}: {count} rows, median {:.1} %", 100.0 * median);
        assert!(median < 0.08, "{split}: {median}");
    }
}

/// A sample of 120 runs that ran and 60 that ran out (see `SOURCES.csv`).
#[test]
fn runs_that_find_no_memory() {
    let mut counts = [[0_u32; 2]; 2];
    for (row, status) in rows("fits.csv", "status") {
        let (l, out) = (&row.layout, status == "oom");
        match runs_out(&row) {
            Ok(predicted) => {
                counts[usize::from(out)][usize::from(predicted != out)] += 1;
                if predicted != out {
                    println!(
                        "{} {} {} said {predicted}: tp {:?} pp {:?} dp {:?} zero {} micro-batch {:?} x {:?} {}",
                        row.id,
                        row.model,
                        status,
                        l.tp,
                        l.pp,
                        l.dp,
                        l.sharding,
                        row.micro_batch,
                        row.grad_accum,
                        row.notes
                    );
                }
            }
            Err(why) => println!("{} {status}: {why}", row.id),
        }
    }
    let [ran, ran_out] = counts;
    println!(
        "of {} that ran {} are refused; of {} that ran out {} are not",
        ran[0] + ran[1],
        ran[1],
        ran_out[0] + ran_out[1],
        ran_out[1]
    );
    assert_eq!((ran[0] + ran[1], ran_out[0] + ran_out[1]), (120, 60));
    assert!(ran[1] * 20 <= 120 && ran_out[0] * 10 >= 60 * 8, "{counts:?}");
}
