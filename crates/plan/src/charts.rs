//! What of a trace and a fleet is drawn.

use std::collections::BTreeMap;

use nn::step::StepOptions;
use tensor::meter::Cost;
use tensor::{Phase, Trace};
use units::{FlopPerByte, FlopPerSecond, Flops, Mfu, Seconds};

use crate::fleet::Fleet;
use crate::flops::with_times;
use crate::model::pattern;
use crate::report::{Branch, Cell, Curve, Dot, Roofline, Tree};
use crate::time::{Pace, USUAL_MFU};

/// Deepest level of a tree that is drawn: a block's parts.
const LEVELS: usize = 5;

/// The FLOP of forward and backward by module, blocks together.
pub fn flop_tree(trace: &Trace) -> Option<Tree> {
    let mut leaves: BTreeMap<Vec<String>, u128> = BTreeMap::new();
    for event in trace.ops.iter().filter(|event| matches!(event.phase, Phase::Forward | Phase::Backward)) {
        if event.cost.matmul == 0 {
            continue;
        }
        let path = pattern(trace.module(event.module));
        let path: Vec<String> = path.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        // A block and its number are one level.
        let mut parts: Vec<String> = Vec::new();
        for part in path {
            match parts.last_mut() {
                Some(last) if part == "*" => *last = format!("{last}.*"),
                _ => parts.push(part),
            }
        }
        parts.truncate(LEVELS);
        if parts.is_empty() {
            parts.push("loss".to_owned());
        }
        *leaves.entry(parts).or_default() += event.cost.matmul;
    }
    let whole: u128 = leaves.values().sum();
    if whole == 0 {
        return None;
    }
    let mut nodes: BTreeMap<Vec<String>, u128> = BTreeMap::new();
    for (path, flop) in &leaves {
        for depth in 1..=path.len() {
            *nodes.entry(path[..depth].to_vec()).or_default() += flop;
        }
    }
    let mut tree = Tree { title: "FLOP of forward and backward by module".to_owned(), branches: Vec::new() };
    grow(&nodes, &[], whole, &mut tree.branches);
    Some(tree)
}

/// Adds the nodes below `above`, the largest first, each with those below it.
fn grow(nodes: &BTreeMap<Vec<String>, u128>, above: &[String], whole: u128, branches: &mut Vec<Branch>) {
    let below = |path: &&Vec<String>| path.len() == above.len() + 1 && path.starts_with(above);
    let mut children: Vec<&Vec<String>> = nodes.keys().filter(below).collect();
    children.sort_by(|a, b| nodes[*b].cmp(&nodes[*a]).then_with(|| a.cmp(b)));
    for path in children {
        let flop = nodes[path];
        branches.push(Branch {
            level: u8::try_from(above.len()).unwrap_or(u8::MAX),
            name: path.last().cloned().unwrap_or_default(),
            size: Cell::Flops(Flops(flop)),
            share: flop as f64 / whole as f64,
        });
        grow(nodes, path, whole, branches);
    }
}

/// Least share of the work or of the traffic of a step that is drawn.
const VISIBLE: f64 = 1e-4;

/// Each kind of op of a step by its work and its bytes, on one device of the fleet; nothing where the device has no rate for
/// this arithmetic.
pub fn roofline(trace: &Trace, options: &StepOptions, fleet: &Fleet) -> Option<Roofline> {
    let peak = fleet.peak().ok()?.rate;
    let bandwidth = fleet.hardware.memory.bandwidth;
    let mut ops: BTreeMap<&'static str, Cost> = BTreeMap::new();
    for (event, _) in with_times(trace, options).filter(|(event, _)| event.phase != Phase::Init) {
        *ops.entry(event.op.name()).or_default() += event.cost;
    }
    let work = |cost: &Cost| cost.matmul_dense + cost.elementwise;
    let bytes = |cost: &Cost| cost.read.saturating_add(cost.written);
    let all_work: u128 = ops.values().map(work).sum();
    let all_bytes: u128 = ops.values().map(|cost| u128::from(bytes(cost))).sum();
    let mut roofline = Roofline {
        device: fleet.hardware.display.clone(),
        arithmetic: fleet.precision.name().to_owned(),
        peak,
        bandwidth,
        dots: Vec::new(),
    };
    for (name, cost) in &ops {
        let (flop, moved) = (work(cost), bytes(cost));
        let visible = flop as f64 > VISIBLE * all_work as f64 || moved as f64 > VISIBLE * all_bytes as f64;
        if flop == 0 || moved == 0 || !visible {
            continue;
        }
        let intensity = flop as f64 / moved as f64;
        let time = (flop as f64 / peak.get()).max(moved as f64 / bandwidth.get());
        roofline.dots.push(Dot {
            name: (*name).to_owned(),
            flop: Flops(flop),
            intensity: FlopPerByte::new(intensity).ok()?,
            time: Seconds::new(time).ok()?,
        });
    }
    roofline.dots.sort_by(|a, b| b.time.get().total_cmp(&a.time.get()).then_with(|| a.name.cmp(&b.name)));
    Some(roofline)
}

/// The time of a run on powers of two around the devices of the fleet: at the utilization that is given, or at those that are
/// usual; at a deadline, at the one it asks for.
pub fn curve(flop: Flops, fleet: &Fleet, pace: Pace) -> Option<Curve> {
    let peak = fleet.peak().ok()?.rate.get();
    let devices = fleet.devices.max(1);
    let paces: Vec<f64> = match pace {
        Pace::Unknown => USUAL_MFU.to_vec(),
        Pace::Mfu(mfu) | Pace::Predicted(mfu) => vec![mfu.get()],
        Pace::Deadline(time) => vec![flop.as_f64() / time.get() / (peak * devices as f64)],
    };
    let middle = devices.ilog2();
    let mut counts: Vec<u64> = (middle.saturating_sub(4)..=(middle + 4).min(62)).map(|power| 1 << power).collect();
    counts.push(devices);
    counts.sort_unstable();
    counts.dedup();
    let mut lines = Vec::new();
    for pace in paces {
        let mfu = Mfu::new(pace).ok()?;
        let rate = |count: u64| FlopPerSecond::new(peak * count as f64).ok();
        let points: Option<Vec<_>> = counts.iter().map(|&count| Some((count, flop / (rate(count)? * mfu)))).collect();
        lines.push((format!("at {} MFU", units::percent(pace)), points?));
    }
    let title = "Time of the run against devices, at one utilization on any number of them".to_owned();
    Some(Curve { title, lines, at: devices })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::presets;
    use nn::Profile;
    use nn::step::Precision;

    fn traced() -> (StepOptions, std::rc::Rc<nn::step::StepTrace>) {
        let (name, text) = presets::find("qwen3-0.6b").unwrap();
        let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
        let options = StepOptions::usual(512, Profile::Fused, Precision::Bf16Mixed);
        (options, model.trace(&options).unwrap())
    }

    #[test]
    fn every_branch_is_the_sum_of_those_under_it_and_no_more() {
        let (_, traced) = traced();
        let tree = flop_tree(&traced.trace).unwrap();
        let model: u128 = traced
            .trace
            .ops
            .iter()
            .filter(|event| matches!(event.phase, Phase::Forward | Phase::Backward))
            .map(|event| event.cost.matmul)
            .sum();
        let size = |branch: &Branch| match branch.size {
            Cell::Flops(flop) => flop.get(),
            _ => panic!("FLOP"),
        };
        let roots: u128 = tree.branches.iter().filter(|branch| branch.level == 0).map(size).sum();
        assert_eq!(roots, model);
        for (at, branch) in tree.branches.iter().enumerate() {
            let under = tree.branches[at + 1..].iter().take_while(|other| other.level > branch.level);
            let children: u128 = under.filter(|other| other.level == branch.level + 1).map(size).sum();
            assert!(children <= size(branch), "{}", branch.name);
        }
    }

    #[test]
    fn the_roofline_has_products_right_of_what_only_moves() {
        let (options, traced) = traced();
        let hardware = crate::hardware::find("h100-sxm").unwrap().clone();
        let fleet = Fleet {
            hardware,
            devices: 1,
            devices_given: false,
            precision: crate::hardware::Precision::Bf16,
            precision_given: false,
        };
        let roofline = roofline(&traced.trace, &options, &fleet).unwrap();
        // 989.5e12 FLOP/s over 3.35e12 B/s (data/hardware/h100-sxm.toml).
        assert!((roofline.ridge() - 989.5e12 / 3.35e12).abs() < 1e-9);
        let of = |name: &str| roofline.dots.iter().find(|dot| dot.name == name).unwrap().intensity.get();
        assert!(of("linear") > 10.0 * of("rms_norm"), "{:?}", roofline.dots);
    }
}
