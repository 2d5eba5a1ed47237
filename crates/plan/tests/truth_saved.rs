//! What each module makes that is kept for backward, against what PyTorch keeps of it: `truth/saved.csv`. Of BLOOM, T5 and
//! models with dropout, whole blocks are compared: their modules add the residual stream or drop a branch themselves.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::model::pattern;
use napkin_plan::sharding::Sharding;
use napkin_plan::timeline::Device;
use nn::blocks::Blocks;
use nn::config::Config;
use nn::families;
use nn::step::{self, StepOptions, Until};
use nn::{Profile, Recompute};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tensor::{CastLists, Role};

/// The part of a model that a path lies in: a module of a block, or of the body, or what is outside of it. Tables of
/// positions, scaled embeddings and dropout in front of the blocks are one part: the reference makes them in small modules.
fn part(path: &str, body: &str) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    match parts.iter().position(|name| *name == "*") {
        Some(at) => parts[..(at + 2).min(parts.len())].join("."),
        None if path.starts_with(body) && !path.contains("norm") && !path.contains("ln_f") => body.to_owned(),
        None => path.to_owned(),
    }
}

/// Families whose modules add the residual stream themselves, where here the block does it; and dropout on branches.
fn adds_inside(case: &str) -> bool {
    case.starts_with("bloom") || case.starts_with("default-t5") || case.ends_with("config")
}

/// The parts of blocks as one.
fn by_block(parts: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for (name, bytes) in parts {
        let block = name.split_once(".*").map_or(name.as_str(), |(list, _)| list);
        *out.entry(block.to_owned()).or_default() += bytes;
    }
    out
}

/// PyTorch's kernel on a CPU keeps the statistics of a bf16 layer norm in bf16; on a GPU they are f32, as here: 4 bytes a row
/// more.
fn wider_statistics(name: &str, options: &StepOptions, count: u64) -> u64 {
    let norm = name.contains("ln_") || name.contains("layer_norm") || name.contains("layernorm");
    let narrow = options.precision == step::Precision::Bf16Pure;
    if norm && narrow { 4 * options.batch * options.seq_len * count } else { 0 }
}

#[test]
fn every_module_keeps_what_the_reference_keeps() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/truth");
    let table = fs::read_to_string(folder.join("saved.csv")).unwrap();
    let mut cases: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for row in table.lines().skip(1) {
        let (case, rest) = row.match_indices(',').nth(6).map(|(at, _)| row.split_at(at)).unwrap();
        let (module, bytes) = rest[1..].rsplit_once(',').unwrap();
        let module = if module == "(root)" { "" } else { module };
        *cases.entry(case.to_owned()).or_default().entry(module.to_owned()).or_default() +=
            bytes.parse::<u64>().unwrap();
    }
    let mut wrong = Vec::new();
    for (case, reference) in &cases {
        let cells: Vec<&str> = case.split(',').collect();
        let file = format!("{}.json", cells[0]);
        let (config, problems) = Config::parse(&file, &fs::read(folder.join("configs").join(&file)).unwrap());
        let config = config.unwrap_or_else(|| panic!("{problems}"));
        let loaded = families::load(&config, None).unwrap_or_else(|e| panic!("{file}: {e}"));
        let options = StepOptions {
            batch: cells[1].parse().unwrap(),
            seq_len: cells[2].parse().unwrap(),
            profile: cells[3].parse::<Profile>().unwrap(),
            precision: cells[4].parse().unwrap(),
            optimizer: "sgd-forloop".parse().unwrap(),
            recompute: if cells[5] == "1" { Recompute::Full } else { Recompute::None },
            grad_accum_steps: 1,
            autocast: if cells[4].ends_with("cuda_lists") { CastLists::Cuda } else { CastLists::Cpu },
            steps: 1,
            warm: false,
            dropout: cells[6] == "config",
            objective: nn::Objective::DEFAULT,
            offload: nn::Offload::NONE,
            in_backward: false,
            until: Until::Backward,
        };
        let traced = step::trace(&loaded.spec, &options).unwrap();
        let trace = &traced.trace;
        let end = trace.marks.iter().find(|mark| mark.name == "bwd1").unwrap().memory as usize;
        let mut device = Device::new(&traced, &options, Sharding::default(), Blocks::of(&loaded.spec.names));
        for event in 0..end {
            device.apply(event);
        }
        let body = loaded.spec.names.body;
        let mut right: BTreeMap<String, u64> = BTreeMap::new();
        for (module, bytes) in reference {
            *right.entry(part(module, body)).or_default() += bytes;
        }
        let layer_norm = !matches!(
            loaded.spec.final_norm.as_ref().map(|norm| norm.kind),
            Some(nn::spec::NormKind::Rms | nn::spec::NormKind::RmsUnitOffset)
        );
        let depth = loaded.spec.depth() as u64;
        for (name, bytes) in &mut right {
            if layer_norm {
                *bytes += wider_statistics(name, &options, if name.contains('*') { depth } else { 1 });
            }
        }
        let mut kept: BTreeMap<String, u64> = BTreeMap::new();
        for (id, held) in device.live().iter().enumerate() {
            if let Some((Role::Activation, bytes)) = *held {
                let path = pattern(trace.module(trace.storages[id].module));
                *kept.entry(part(&path, body)).or_default() += bytes;
            }
        }
        if adds_inside(case) {
            (kept, right) = (by_block(&kept), by_block(&right));
        }
        if kept != right {
            let names: std::collections::BTreeSet<&String> = kept.keys().chain(right.keys()).collect();
            let differ = names.into_iter().filter(|name| kept.get(*name) != right.get(*name));
            let each = differ.map(|name| format!("{name} {:?} {:?}", kept.get(name), right.get(name)));
            wrong.push(format!("{case}: {}", each.collect::<Vec<_>>().join("; ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
