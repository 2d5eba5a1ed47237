//! Parameters, FLOP and bytes against the reference counts made by running PyTorch and transformers on model shapes.
//!
//! `tests/truth/README.md` says how the tables were made. A config whose family is not known yet is skipped; those that
//! are known must match. `NAPKIN_TRUTH=pythia cargo test -p napkin-plan --test truth -- --nocapture` looks at some only.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use napkin_plan::sharding::Sharding;
use napkin_plan::timeline::Timeline;
use nn::blocks::Blocks;
use nn::config::Config;
use nn::families::{self, Loaded};
use nn::optim::OptimizerKind;
use nn::param::ParamKind;
use nn::step::{self, Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tensor::{CastLists, Phase};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/truth")
}

fn rows(table: &str) -> Vec<Vec<String>> {
    let filter = std::env::var("NAPKIN_TRUTH").unwrap_or_default();
    let text = fs::read_to_string(folder().join(table)).unwrap();
    let rows = text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    rows.filter(|row| row[0].contains(&filter)).collect()
}

/// The model of a reference config; `None` if its family is not known yet.
fn load(config: &str) -> Option<Loaded> {
    let file = format!("{config}.json");
    let bytes = fs::read(folder().join("configs").join(&file)).unwrap();
    let (config, diagnostics) = Config::parse(&file, &bytes);
    let config = config.unwrap_or_else(|| panic!("{diagnostics}"));
    let known = families::names();
    let family = config.model_type().filter(|t| known.contains(t))?.to_owned();
    let loaded = families::load(&config, None).unwrap_or_else(|e| panic!("{file} ({family}): {e}"));
    // The reference counts a wrapper with all its parts.
    loaded.uncounted.is_empty().then_some(loaded)
}

fn options(batch: u64, seq_len: u64, profile: Profile) -> StepOptions {
    StepOptions {
        batch,
        seq_len,
        profile,
        precision: Precision::Fp32,
        optimizer: "adamw-forloop".parse::<OptimizerKind>().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        steps: 1,
        warm: false,
        dropout: false,
        objective: nn::Objective::DEFAULT,
        offload: nn::Offload::NONE,
        in_backward: false,
        until: Until::Backward,
    }
}

fn report(what: &str, checked: usize, wrong: &[String]) {
    assert!(checked > 0, "{what}: nothing was checked");
    println!("{what}: {checked} checked, {} differ", wrong.len());
    assert!(wrong.is_empty(), "{what}: {} of {checked} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn parameters_are_equal() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for row in rows("params.csv") {
        let Some(loaded) = load(&row[0]) else { continue };
        let mut params = step::parameters(&loaded.spec).unwrap();
        params.extend(step::tower_parameters(&loaded.spec).unwrap());
        let sum = |f: &dyn Fn(&step::ParamInfo) -> u64| params.iter().map(f).sum::<u64>();
        let got = [
            sum(&|p| p.elements),
            sum(&|p| p.elements * (1 + p.tied.len() as u64)),
            sum(&|p| if p.trainable { p.elements } else { 0 }),
            sum(&|p| match p.kind {
                ParamKind::Expert { experts, top_k } => p.elements / experts * top_k,
                _ => p.elements,
            }),
            sum(&|p| if p.kind == ParamKind::Embedding { p.elements } else { 0 }),
        ];
        checked += 1;
        for (name, (got, want)) in
            ["total", "untied", "trainable", "active", "embedding"].iter().zip(got.iter().zip(&row[2..]))
        {
            if got.to_string() != *want {
                wrong.push(format!("{} ({}) {name}: {got}, reference {want}", row[0], row[1]));
            }
        }
    }
    report("parameters", checked, &wrong);
}

/// A config of the tables either has equal parameters and FLOP, which the tests beside this one hold, or stands in
/// `truth/uncovered.csv` with the reason.
#[test]
fn every_config_is_covered_or_named() {
    let table = fs::read_to_string(folder().join("uncovered.csv")).unwrap();
    let named: BTreeMap<&str, &str> = table.lines().skip(1).map(|line| line.split_once(',').unwrap()).collect();
    assert!(named.values().all(|reason| !reason.is_empty()), "each has a reason");
    let (mut equal, mut wrong) = (0, Vec::new());
    let configs = rows("params.csv");
    for row in &configs {
        match (load(&row[0]).is_some(), named.contains_key(row[0].as_str())) {
            (true, false) => equal += 1,
            (false, true) => {}
            (true, true) => wrong.push(format!("{} ({}) is answered and named as uncovered", row[0], row[1])),
            (false, false) => wrong.push(format!("{} ({}) is neither answered nor named", row[0], row[1])),
        }
    }
    for name in named.keys().filter(|name| configs.iter().all(|row| row[0] != **name)) {
        // With a filter the tables are not whole.
        if std::env::var("NAPKIN_TRUTH").is_err() {
            wrong.push(format!("{name} is named as uncovered and in no table"));
        }
    }
    println!("{equal} of {} reference configs are answered, each with equal parameters and FLOP", configs.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flops_are_equal() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for row in rows("flops.csv") {
        let Some(loaded) = load(&row[0]) else { continue };
        let profile: Profile = row[3].parse().unwrap();
        let (batch, seq) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        let traced = step::trace(&loaded.spec, &options(batch, seq, profile)).unwrap();
        let forward = traced.trace.cost(|e| e.phase == Phase::Forward).matmul_dense;
        let both = forward + traced.trace.cost(|e| e.phase == Phase::Backward).matmul_dense;
        checked += 1;
        if (forward.to_string(), both.to_string()) != (row[4].clone(), row[5].clone()) {
            let ratio = forward as f64 / row[4].parse::<f64>().unwrap();
            wrong.push(format!(
                "{} b{batch} s{seq} {profile}: {forward} / {both}, reference {} / {} (forward x {ratio:.5})",
                row[0], row[4], row[5]
            ));
        }
    }
    report("flops", checked, &wrong);
}

#[test]
fn memory_is_within_a_percent() {
    let (mut checked, mut wrong, mut worst) = (0, Vec::new(), 0.0f64);
    // A smaller number of percent shows what is left of the difference.
    let allowed = std::env::var("NAPKIN_TRUTH_PERCENT").map_or(1.0, |text| text.parse::<f64>().unwrap()) / 100.0;
    let rows = rows("memory.csv");
    let runs: Vec<&[Vec<String>]> = rows.chunk_by(|a, b| a[..8] == b[..8]).collect();
    for run in runs {
        let row = &run[0];
        let Some(loaded) = load(&row[0]) else { continue };
        let (batch, seq) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        let steps = if run.iter().any(|r| r[8].ends_with('2')) { 2 } else { 1 };
        let options = StepOptions {
            precision: row[4].parse().unwrap(),
            autocast: if row[4].ends_with("cuda_lists") { CastLists::Cuda } else { CastLists::Cpu },
            optimizer: row[5].parse().unwrap(),
            recompute: if row[6] == "1" { Recompute::Full } else { Recompute::None },
            dropout: row[7] == "config",
            until: Until::Optimizer,
            steps,
            ..options(batch, seq, row[3].parse().unwrap())
        };
        let traced = step::trace(&loaded.spec, &options).unwrap();
        let phases = Timeline::of(&traced, &options, Sharding::default(), Blocks::of(&loaded.spec.names)).phases;
        checked += 1;
        for want in run {
            let got = phases.iter().find(|p| p.name == want[8]).unwrap();
            for (what, got, want) in [("peak", got.peak_bytes, &want[9]), ("end", got.end_bytes(), &want[10])] {
                let Ok(want) = want.parse::<f64>() else { continue };
                let error = (got as f64 - want) / want;
                worst = worst.max(error.abs());
                if error.abs() > allowed {
                    wrong.push(format!(
                        "{} {} {what}: {got}, reference {want} ({:+.2} %)",
                        row[..8].join(" "),
                        run.iter()
                            .find(|r| r[9].parse::<f64>() == Ok(want) || r[10].parse::<f64>() == Ok(want))
                            .map_or("", |r| &r[8]),
                        100.0 * error
                    ));
                }
            }
        }
    }
    println!("largest error {:.3} %", 100.0 * worst);
    report("memory runs", checked, &wrong);
}
