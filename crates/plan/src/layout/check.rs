//! What is legal, and what would be.

use super::{ContextParallel, Layout, Schedule};
use nn::spec::{AttentionSpec, FeedForwardSpec, ModelSpec, MoeSpec};
use units::{Diagnostic, Diagnostics};

use crate::model::{MOST_POSITIONS, MOST_TOKENS};

/// All that is wrong with dividing a model on sequences of `seq_len` tokens by a layout, over `devices` where that number
/// is given; each problem names the nearest legal choices.
///
/// # Errors
/// `T0480` for degrees that do not make the number of devices, `T0481` for sizes that do not divide, `T0482` for a pipeline
/// that cannot run, `T0483` for combinations that mean nothing.
pub fn check(layout: &Layout, model: &ModelSpec, seq_len: u64, devices: Option<u64>) -> Result<(), Diagnostics> {
    let mut problems = Diagnostics::new();
    let degrees = [
        ("dp", layout.dp),
        ("tp", layout.tp),
        ("cp", layout.cp),
        ("ep", layout.ep),
        ("etp", layout.etp),
        ("pp", layout.pp),
        ("virtual stages", layout.virtual_stages),
        ("micro-batch", layout.micro_batch),
        ("grad-accum", layout.grad_accum),
    ];
    for (name, degree) in degrees {
        if degree == 0 {
            problems.push(Diagnostic::error("T0480", format!("{name} is 0")).help("1 divides nothing"));
        }
    }
    // Every micro-batch is a pass that is looked at; of GPipe every one is held.
    let most = if layout.schedule == Schedule::GPipe { MOST_HELD } else { MOST_MICRO_BATCHES };
    if layout.grad_accum > most {
        let message = format!("{} micro-batches of a step on one replica", layout.grad_accum);
        problems.push(Diagnostic::error("T0482", message).help(format!("--grad-accum of at most {most}")));
    }
    let tokens = layout.global_batch().saturating_mul(seq_len);
    if seq_len > MOST_POSITIONS || u128::from(tokens) > MOST_TOKENS || layout.micro_batch > MOST_MICRO_BATCHES {
        let message = format!("{tokens} tokens a step, in sequences of {seq_len}");
        problems.push(Diagnostic::error("T0482", message).help("fewer and shorter sequences"));
    }
    if problems.has_errors() {
        return Err(problems);
    }
    groups(layout, devices, &mut problems);
    sizes(layout, model, seq_len, &mut problems);
    pipeline(layout, model, &mut problems);
    if problems.has_errors() { Err(problems) } else { Ok(()) }
}

/// Most micro-batches of a step that are looked at one by one.
const MOST_MICRO_BATCHES: u64 = 1 << 20;

/// Most micro-batches whose activations a rank holds at once.
pub(super) const MOST_HELD: u64 = 1 << 10;

fn groups(layout: &Layout, devices: Option<u64>, problems: &mut Diagnostics) {
    let product = layout.devices();
    if let Some(devices) = devices.filter(|devices| *devices != product) {
        let rest = layout.tp.saturating_mul(layout.cp).saturating_mul(layout.pp);
        let problem = Diagnostic::error(
            "T0480",
            format!(
                "dp {} × tp {} × cp {} × pp {} = {product}, not {devices} devices",
                layout.dp, layout.tp, layout.cp, layout.pp
            ),
        );
        problems.push(if devices.is_multiple_of(rest) {
            problem.help(format!("dp {} uses all of them", devices / rest))
        } else {
            let above = (devices / rest + 1).saturating_mul(rest);
            let choices = match devices / rest {
                0 => above.to_string(),
                below => format!("{} or {above}", below * rest),
            };
            problem.help(format!("tp × cp × pp must divide the devices: {choices} devices would do"))
        });
    }
    let (ranks, expert) = (layout.stage_ranks(), layout.ep.saturating_mul(layout.etp));
    if !ranks.is_multiple_of(expert) {
        problems.push(
            Diagnostic::error(
                "T0480",
                format!("ep {} × etp {} does not divide the {ranks} ranks of a stage", layout.ep, layout.etp),
            )
            .why("experts are divided over the same ranks as the rest: tp × cp × dp of them")
            .help(format!("ep × etp: {}", nearest(expert, |n| ranks.is_multiple_of(n), ranks))),
        );
    }
    if layout.zero > 3 {
        problems.push(Diagnostic::error("T0483", format!("zero {}", layout.zero)).help("zero is 0, 1, 2 or 3"));
    }
    if let Some(shard) = layout.shard {
        let replicas = layout.dp.saturating_mul(layout.cp);
        if shard == 0 || !replicas.is_multiple_of(shard) {
            problems.push(
                Diagnostic::error("T0480", format!("states divided over {shard} of {replicas} replicas"))
                    .help(nearest(shard, |n| replicas.is_multiple_of(n), replicas)),
            );
        }
        let (held, expert) = (shard.saturating_mul(layout.tp), layout.ep.saturating_mul(layout.etp));
        if expert > 0 && !held.is_multiple_of(expert) {
            let message = format!(
                "ep {} × etp {} does not divide the {held} ranks that hold all states once",
                layout.ep, layout.etp
            );
            let legal = |n: u64| replicas.is_multiple_of(n) && n.saturating_mul(layout.tp).is_multiple_of(expert);
            let problem =
                Diagnostic::error("T0480", message).why("states over some of the replicas: these hold all experts");
            problems.push(problem.help(format!("shard: {}", nearest(shard, legal, replicas))));
        }
    }
    if layout.sp && layout.tp == 1 {
        problems.push(
            Diagnostic::error("T0483", "sequence parallel without tensor parallel")
                .why("it divides what lies between matrices over the ranks that share these")
                .help("tp 2 or more, or no sp"),
        );
    }
    if layout.imbalance < 1.0 || !layout.imbalance.is_finite() {
        problems.push(
            Diagnostic::error("T0483", format!("an imbalance of {} of the experts", layout.imbalance))
                .help("1 is balanced; 1.2 gives the fullest rank a fifth more than the mean"),
        );
    }
}

fn sizes(layout: &Layout, model: &ModelSpec, seq_len: u64, problems: &mut Diagnostics) {
    let mut divides = |what: String, count: u64, name: &str, degree: u64| {
        if degree > 1 && !count.is_multiple_of(degree) {
            let problem = Diagnostic::error("T0481", format!("{name} {degree} does not divide {what}"));
            problems.push(problem.help(format!("{name}: {}", nearest(degree, |n| count.is_multiple_of(n), count))));
        }
    };
    let attention = |size: fn(&AttentionSpec) -> u64| {
        let mut all: Vec<u64> = model.layers.iter().filter_map(|layer| layer.attention().map(size)).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let heads = attention(|a| a.heads);
    for count in &heads {
        divides(format!("{count} attention heads"), *count, "tp", layout.tp);
    }
    let kv_heads = attention(|a| a.kv_heads);
    for count in &kv_heads {
        divides(format!("{count} key/value heads"), *count, "tp", layout.tp);
    }
    let mut widths: Vec<u64> = model
        .layers
        .iter()
        .filter_map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Mlp(mlp) => Some(mlp.intermediate_size),
            FeedForwardSpec::Beside(both) => Some(both.mlp.intermediate_size),
            _ => None,
        })
        .collect();
    widths.sort_unstable();
    widths.dedup();
    for width in widths {
        divides(format!("an intermediate_size of {width}"), width, "tp", layout.tp);
    }
    if layout.sp {
        divides(format!("sequences of {seq_len} tokens"), seq_len / layout.cp, "tp (with sp)", layout.tp);
    }
    if layout.cp > 1 {
        match layout.context {
            // Each rank has one part from the front and one from the back, so that all see as many pairs.
            ContextParallel::Ring => {
                let half = if seq_len.is_multiple_of(2) { seq_len / 2 } else { 1 };
                divides(format!("half of {seq_len} tokens"), half, "cp", layout.cp);
            }
            ContextParallel::AllToAll => {
                divides(format!("sequences of {seq_len} tokens"), seq_len, "cp", layout.cp);
                for count in heads.iter().chain(&kv_heads) {
                    divides(format!("the {} heads of a rank", count / layout.tp), count / layout.tp, "cp", layout.cp);
                }
            }
        }
    }
    let experts: Vec<&MoeSpec> = model.layers.iter().filter_map(|layer| moe(&layer.feed_forward)).collect();
    match experts.first() {
        Some(moe) => {
            divides(format!("{} experts", moe.experts), moe.experts, "ep", layout.ep);
            let width = moe.intermediate_size;
            divides(format!("experts of width {width}"), width, "etp", layout.etp);
        }
        None if layout.ep > 1 || layout.etp > 1 => {
            problems.push(
                Diagnostic::error("T0483", format!("ep {} etp {}: the model has no experts", layout.ep, layout.etp))
                    .help("ep 1 and etp 1"),
            );
        }
        None => {}
    }
}

/// The mixture in a feed-forward part.
pub(crate) fn moe(part: &FeedForwardSpec) -> Option<&MoeSpec> {
    match part {
        FeedForwardSpec::Moe(moe) => Some(moe),
        FeedForwardSpec::Beside(both) => Some(&both.moe),
        _ => None,
    }
}

fn pipeline(layout: &Layout, model: &ModelSpec, problems: &mut Diagnostics) {
    let layers = model.depth() as u64;
    let stages = layout.pp.saturating_mul(layout.virtual_stages);
    if let Some(blocks) = &layout.blocks {
        let sum = blocks.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        if blocks.len() as u64 != stages || sum != layers {
            problems.push(
                Diagnostic::error(
                    "T0482",
                    format!("{} stages with {sum} blocks in all, of a model with {layers}", blocks.len()),
                )
                .help(format!("{stages} numbers, one for each stage, that sum to {layers}"))
                .help(even(layout, layers)),
            );
        }
    }
    if stages > layers {
        problems.push(
            Diagnostic::error("T0482", format!("{stages} stages for {layers} blocks: some would have none"))
                .help(format!("pp × virtual stages of at most {layers}"))
                .help(format!("pp: {}", nearest(layout.pp, |pp| pp * layout.virtual_stages <= layers, layers))),
        );
    }
    if layout.pp == 1 && layout.virtual_stages > 1 {
        problems.push(
            Diagnostic::error("T0482", format!("{} virtual stages without a pipeline", layout.virtual_stages))
                .help("pp 2 or more, or one virtual stage"),
        );
    }
    if layout.virtual_stages > 1 && layout.schedule != Schedule::Interleaved {
        let text = format!("{} virtual stages under schedule {}", layout.virtual_stages, layout.schedule);
        problems.push(Diagnostic::error("T0482", text).help("schedule interleaved"));
    }
    if layout.schedule == Schedule::Interleaved && layout.pp > 1 && !layout.grad_accum.is_multiple_of(layout.pp) {
        let problem = Diagnostic::error(
            "T0482",
            format!("{} micro-batches on {} interleaved stages", layout.grad_accum, layout.pp),
        )
        .why("interleaved stages take micro-batches in groups of as many as there are stages");
        let up = layout.grad_accum.next_multiple_of(layout.pp);
        problems.push(problem.help(format!("grad-accum {up}")));
    }
    if layout.pp > 1 && layout.grad_accum < layout.pp {
        problems.push(Diagnostic::warning(
            "T0482",
            format!(
                "{} micro-batches on {} stages: some stages are always idle, and some engines refuse it",
                layout.grad_accum, layout.pp
            ),
        ));
    }
}

/// Blocks as even as can be, where that many stages can have some.
fn even(layout: &Layout, layers: u64) -> String {
    let stages = layout.pp.saturating_mul(layout.virtual_stages);
    if stages == 0 || stages > layers.min(64) {
        return "no --blocks: as even as can be".to_owned();
    }
    let blocks = Layout { blocks: None, ..layout.clone() }.blocks_of(layers);
    format!("--blocks {}", blocks.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
}

/// The legal degrees next to `wanted`, below and above.
fn nearest(wanted: u64, legal: impl Fn(u64) -> bool, most: u64) -> String {
    // Beyond this no degree is meant; the search must not grow with a size in a file.
    const FARTHEST: u64 = 1 << 16;
    let below = (1..=wanted.min(most).min(FARTHEST)).rev().find(|n| legal(*n));
    let above = (wanted.saturating_add(1)..=most.min(wanted.saturating_add(FARTHEST))).find(|n| legal(*n));
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above}"),
        (Some(one), None) | (None, Some(one)) => one.to_string(),
        (None, None) => "1".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::presets;

    fn model(name: &str) -> ModelSpec {
        let (name, text) = presets::find(name).unwrap();
        Model::from_text(name, name, text.as_bytes(), &[], None).unwrap().spec
    }

    fn problems(layout: &Layout, model: &ModelSpec, devices: Option<u64>) -> Vec<Diagnostic> {
        check(layout, model, 4096, devices).err().into_iter().flatten().filter(Diagnostic::is_error).collect()
    }

    /// A layout of a model on devices, and the code, words and choices of each of its problems.
    type Case<'a> = (&'a ModelSpec, Option<u64>, Layout, &'a [(&'a str, &'a str, &'a str)]);

    /// Each problem with its code, its words and the choices it names: llama-3.1-8b has 32 heads, 8 of keys and values, 32 blocks
    /// and an `intermediate_size` of 14,336; mixtral-8x7b 8 experts of the same width.
    #[test]
    fn problems_name_the_nearest_legal_choices() {
        let plain = Layout::default;
        let (llama, mixtral) = (model("llama-3.1-8b"), model("mixtral-8x7b"));
        let rows: Vec<Case<'_>> = vec![
            (
                &llama,
                Some(64),
                Layout { tp: 8, pp: 4, ..plain() },
                &[("T0480", "= 32, not 64 devices", "dp 2 uses all")],
            ),
            (&llama, Some(60), Layout { tp: 8, dp: 4, ..plain() }, &[("T0480", "not 60", "56 or 64 devices would do")]),
            (
                &llama,
                None,
                Layout { tp: 6, ..plain() },
                &[
                    ("T0481", "tp 6 does not divide 32 attention heads", "tp: 4 or 8"),
                    ("T0481", "tp 6 does not divide 8 key/value heads", "tp: 4 or 8"),
                    ("T0481", "intermediate_size of 14336", "tp: 4 or 7"),
                ],
            ),
            (&llama, None, Layout { tp: 16, ..plain() }, &[("T0481", "8 key/value heads", "tp: 8")]),
            (&llama, None, Layout { tp: 1, sp: true, ..plain() }, &[("T0483", "sequence parallel", "tp 2 or more")]),
            (&llama, None, Layout { cp: 3, ..plain() }, &[("T0481", "cp 3 does not divide", "cp: 2 or 4")]),
            (
                &llama,
                None,
                Layout { ep: 2, dp: 2, ..plain() },
                &[("T0483", "the model has no experts", "ep 1 and etp 1")],
            ),
            (
                &mixtral,
                None,
                Layout { ep: 3, dp: 3, ..plain() },
                &[("T0481", "ep 3 does not divide 8 experts", "ep: 2 or 4")],
            ),
            (
                &mixtral,
                None,
                Layout { ep: 4, dp: 6, ..plain() },
                &[("T0480", "the 6 ranks of a stage", "ep × etp: 3 or 6")],
            ),
            (
                &mixtral,
                None,
                Layout { etp: 5, tp: 5, ..plain() },
                &[
                    ("T0481", "attention heads", "tp: 4 or 8"),
                    ("T0481", "key/value heads", "tp: 4 or 8"),
                    ("T0481", "etp 5 does not divide experts of width 14336", "etp: 4 or 7"),
                ],
            ),
            (
                &llama,
                None,
                Layout { pp: 64, grad_accum: 64, ..plain() },
                &[("T0482", "64 stages for 32 blocks", "pp: 32")],
            ),
            (
                &llama,
                None,
                Layout { pp: 3, grad_accum: 3, blocks: Some(vec![8, 8, 8]), ..plain() },
                &[("T0482", "3 stages with 24 blocks", "--blocks 11,11,10")],
            ),
            (
                &llama,
                None,
                Layout { pp: 4, virtual_stages: 2, schedule: Schedule::Interleaved, grad_accum: 6, ..plain() },
                &[("T0482", "6 micro-batches on 4 interleaved stages", "grad-accum 8")],
            ),
            (
                &llama,
                None,
                Layout { dp: 8, zero: 1, shard: Some(3), ..plain() },
                &[("T0480", "over 3 of 8 replicas", "2 or 4")],
            ),
            (&llama, None, Layout { zero: 4, ..plain() }, &[("T0483", "zero 4", "zero is 0, 1, 2 or 3")]),
            (&llama, None, Layout { tp: 0, pp: 0, ..plain() }, &[("T0480", "tp is 0", "1"), ("T0480", "pp is 0", "1")]),
        ];
        for (model, devices, layout, expected) in rows {
            let found = problems(&layout, model, devices);
            assert_eq!(found.len(), expected.len(), "{layout:?}: {found:?}");
            for ((code, message, help), problem) in expected.iter().zip(&found) {
                assert_eq!(problem.code, *code, "{problem:?}");
                assert!(problem.message.contains(message), "{message} in {problem:?}");
                assert!(problem.help.iter().any(|one| one.contains(help)), "{help} in {problem:?}");
            }
        }
    }

    /// What is named is legal: with it the problem is gone.
    #[test]
    fn what_is_named_is_legal() {
        for (name, experts) in [("llama-3.1-70b", false), ("mixtral-8x7b", true), ("qwen3-235b-a22b", true)] {
            let model = model(name);
            for degree in 2..40 {
                let mut layouts = vec![
                    (Layout { tp: degree, ..Layout::default() }, "tp"),
                    (Layout { cp: degree, ..Layout::default() }, "cp"),
                    (Layout { pp: degree, grad_accum: degree, ..Layout::default() }, "pp"),
                ];
                if experts {
                    layouts.push((Layout { ep: degree, dp: degree, ..Layout::default() }, "ep"));
                }
                for (layout, axis) in layouts {
                    for problem in problems(&layout, &model, None) {
                        let said = problem.help.iter().find_map(|help| help.strip_prefix(&format!("{axis}: ")));
                        let said = said.unwrap_or_else(|| panic!("{name} {axis} {degree}: {problem:?}"));
                        for choice in said.split(" or ").map(|word| word.parse::<u64>().unwrap()) {
                            let mut other = layout.clone();
                            let of = |layout: &mut Layout| match axis {
                                "tp" => layout.tp = choice,
                                "cp" => layout.cp = choice,
                                "pp" => (layout.pp, layout.grad_accum) = (choice, choice),
                                _ => (layout.ep, layout.dp) = (choice, choice),
                            };
                            of(&mut other);
                            let what = problem.message.split_once(' ').map_or("", |(_, rest)| rest);
                            let what = what.split_once(' ').map_or("", |(_, rest)| rest);
                            let left = problems(&other, &model, None);
                            assert!(
                                !left.iter().any(|one| one.message.ends_with(what)),
                                "{name} {axis} {choice}: {left:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
