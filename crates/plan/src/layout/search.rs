//! Every layout of a run on so many devices: which are legal, which fit, how long each takes.

use nn::{ModelSpec, Recompute};
use units::{Bytes, Diagnostic, Diagnostics, Params};

use super::check::{check, moe};
use super::estimate::{Estimate, Run, same_traces};
use super::{ContextParallel, Layout};
use crate::states::{ParameterBytes, Zero};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Devices, all of which are used.
    pub devices: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Memory of a device.
    pub capacity: Bytes,
    /// Largest micro-batch that is tried.
    pub micro_batch: u64,
}

/// A layout that is out of the question, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejected {
    /// The layout.
    pub layout: Layout,
    /// What it does not fit into first.
    pub limit: Limit,
}

/// The first limit that a layout hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Parameters, gradients and states alone do not fit: so many bytes.
    States(Bytes),
    /// With what a step needs beside them they do not: so many bytes.
    Memory(Bytes),
}

/// All layouts of a run.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Those that fit, the fastest first.
    pub fits: Vec<(Layout, Estimate)>,
    /// Those that do not.
    pub rejected: Vec<Rejected>,
    /// Layouts that cannot be traced, by reason, with how many there are of each.
    pub untraced: Vec<(String, usize)>,
}

impl Found {
    /// How many layouts were looked at.
    pub fn tried(&self) -> usize {
        self.fits.len() + self.rejected.len() + self.untraced.iter().map(|(_, count)| count).sum::<usize>()
    }
}

/// Divisors of `n` that are at most `most`, from the smallest.
fn divisors(n: u64, most: u64) -> Vec<u64> {
    (1..=most.min(n)).filter(|d| n.is_multiple_of(*d)).collect()
}

/// Most ranks along one axis but that of the replicas.
const MOST_RANKS: u64 = 1 << 10;

/// Every legal layout: all divisions of the devices into tp (with the stream divided by position), pp, cp, ep and replicas,
/// every stage of ZeRO that goes with them, micro-batches of powers of two, with and without recomputation.
pub fn layouts(model: &ModelSpec, seq_len: u64, per_node: u64, wanted: &Wanted) -> Vec<Layout> {
    let heads = model.layers.iter().filter_map(|layer| layer.attention().map(|attention| attention.kv_heads)).min();
    let experts = model.layers.iter().find_map(|layer| moe(&layer.feed_forward)).map(|moe| moe.experts);
    // Matrices are shared inside a node: over a slower network each exchange takes longer than the work it saves.
    let tps = divisors(wanted.devices, heads.unwrap_or(1).min(per_node));
    let mut all = Vec::new();
    for tp in tps {
        for pp in divisors(wanted.devices / tp, (model.depth() as u64).min(MOST_RANKS)) {
            let rest = wanted.devices / tp / pp;
            // A sequence is shared where it is long.
            let cps = if seq_len < 1 << 15 { vec![1] } else { divisors(rest, per_node) };
            for cp in cps {
                let dp = rest / cp;
                let eps = experts.map_or(vec![1], |experts| {
                    divisors(tp * cp * dp, experts.min(MOST_RANKS))
                        .into_iter()
                        .filter(|ep| experts.is_multiple_of(*ep))
                        .collect()
                });
                for ep in eps {
                    for zero in [0, 1, 3] {
                        // What a pipeline holds of many micro-batches is gathered anew for each: nobody does that.
                        if (zero > 0 && dp * cp == 1) || (zero == 3 && pp > 1) {
                            continue;
                        }
                        for micro_batch in (0..).map(|power| 1u64 << power).take_while(|b| *b <= wanted.micro_batch) {
                            let step = dp.saturating_mul(micro_batch);
                            if !wanted.global_batch.is_multiple_of(step) || wanted.global_batch / step < pp {
                                continue;
                            }
                            for recompute in [Recompute::None, Recompute::Full] {
                                all.push(Layout {
                                    dp,
                                    tp,
                                    sp: tp > 1,
                                    cp,
                                    context: ContextParallel::AllToAll,
                                    ep,
                                    pp,
                                    zero,
                                    micro_batch,
                                    grad_accum: wanted.global_batch / step,
                                    recompute,
                                    ..Layout::default()
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    all.retain(|layout| check(layout, model, seq_len, Some(wanted.devices)).is_ok());
    all
}

/// Bytes of parameters, gradients and states of the fullest rank at least: an even share of the model's. Nothing is known
/// where states depend on the shapes of parameters.
fn states(run: &Run<'_>, parameters: u64, layout: &Layout) -> Bytes {
    let Some(each) = ParameterBytes::of(run.step.precision, run.step.optimizer.kind) else { return Bytes::ZERO };
    let held = Params(parameters / layout.tp / layout.pp / layout.ep);
    let zero = Zero::ALL.get(usize::from(layout.zero)).copied().unwrap_or_default();
    each.on_device(held, zero, layout.sharing_ranks())
}

/// Looks at every layout.
///
/// # Errors
/// If there is none to look at, or the hardware table has no rate for the arithmetic.
pub fn search(run: &Run<'_>, wanted: &Wanted) -> Result<Found, Diagnostics> {
    let model = &run.model.spec;
    let all = layouts(model, run.step.seq_len, run.cluster.per_node, wanted);
    if all.is_empty() {
        let message =
            format!("no layout of {} sequences over {} devices is legal", wanted.global_batch, wanted.devices);
        let problem = Diagnostic::error("T0479", message)
            .why("replicas × micro-batch must divide the sequences of a step, and every stage needs a micro-batch")
            .help("a --gbs that more numbers divide, or another -n");
        return Err(Diagnostics::from(problem));
    }
    let parameters: u64 = crate::params::parameters(run.model)?.iter().map(|param| param.elements).sum();
    let mut found = Found::default();
    let mut waiting: Vec<Layout> = Vec::new();
    for layout in all {
        let states = states(run, parameters, &layout);
        if states > wanted.capacity {
            found.rejected.push(Rejected { layout, limit: Limit::States(states) });
        } else {
            waiting.push(layout);
        }
    }
    while let Some(first) = waiting.first().cloned() {
        let (alike, rest): (Vec<Layout>, Vec<Layout>) =
            waiting.into_iter().partition(|layout| *layout == first || same_traces(layout, &first));
        waiting = rest;
        match run.traces(&first) {
            Err(problems) => {
                let reason = problems.iter().next().map_or_else(String::new, |problem| problem.message.clone());
                match found.untraced.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += alike.len(),
                    None => found.untraced.push((reason, alike.len())),
                }
            }
            Ok(traces) => {
                for layout in alike {
                    let estimate = run.estimate(&layout, &traces)?;
                    if estimate.device > wanted.capacity {
                        found.rejected.push(Rejected { layout, limit: Limit::Memory(estimate.device) });
                    } else {
                        found.fits.push((layout, estimate));
                    }
                }
            }
        }
    }
    found.fits.sort_by(|(_, a), (_, b)| a.time.seconds().total_cmp(&b.time.seconds()).then(a.device.cmp(&b.device)));
    Ok(found)
}

/// Of layouts sorted by time, those that no other beats in both time and memory.
pub fn pareto(fits: &[(Layout, Estimate)]) -> Vec<&(Layout, Estimate)> {
    let mut least = Bytes(u64::MAX);
    fits.iter()
        .filter(|(_, estimate)| {
            let better = estimate.device < least;
            least = least.min(estimate.device);
            better
        })
        .collect()
}

/// Why `other` takes longer than `best`: the line of the step that grew most.
pub fn loses_by(best: &Estimate, other: &Estimate, recomputes: (bool, bool)) -> &'static str {
    let (a, b) = (&best.time, &other.time);
    let lines = [
        (
            b.passes - a.passes,
            if recomputes == (false, true) {
                "recomputation"
            } else {
                "its passes: exchanges inside them, small products"
            },
        ),
        (b.bubble - a.bubble, "idle time in the pipeline"),
        (b.gradients - a.gradients, "exchange of gradients"),
        (b.parameters - a.parameters, "exchange of parameters"),
        (b.optimizer - a.optimizer, "the update"),
        (b.stragglers - a.stragglers, "waiting for the slowest node"),
    ];
    lines.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("", |(_, why)| why)
}
