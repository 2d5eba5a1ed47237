//! The time of a step on a cluster, as a search asks for it: `cargo bench -p napkin-plan --bench cluster`.

#![allow(clippy::unwrap_used)]

use divan::{Bencher, black_box};
use napkin_plan as plan;
use plan::cluster::constants::Family;
use plan::cluster::published::{Measured, table};
use plan::cluster::shape::block;

fn main() {
    divan::main();
}

/// GPT-3 175B on 512 A100: 16 stages, 96 micro-batches.
fn row() -> Measured {
    let rows = table(include_str!("../../../data/published/times.csv"));
    rows.into_iter().find(|row| row.id == "vt-m102").unwrap()
}

/// Ops and exchanges of one block: once for each way to divide it.
#[divan::bench]
fn one_block(bencher: Bencher<'_, '_>) {
    let row = row();
    let machine = row.machine(Family::of(row.hardware)).unwrap();
    bencher.bench(|| {
        let part = block(black_box(&row.shape), &row.share);
        machine.cost(&part.forward) + machine.cost(&part.backward) + machine.cost(&part.weights)
    });
}

/// A step, its pipeline pass by pass.
#[divan::bench]
fn step_simulated(bencher: Bencher<'_, '_>) {
    let row = row();
    let machine = row.machine(Family::of(row.hardware)).unwrap();
    let step = row.step(&machine).unwrap();
    bencher.bench(|| black_box(&step).time(&machine).seconds());
}

/// The same with the closed form of its pipeline.
#[divan::bench]
fn step_closed(bencher: Bencher<'_, '_>) {
    let row = row();
    let machine = row.machine(Family::of(row.hardware)).unwrap();
    let step = row.step(&machine).unwrap();
    bencher.bench(|| black_box(&step).time_closed(&machine).seconds());
}
