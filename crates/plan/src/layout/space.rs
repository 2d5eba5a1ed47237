//! All layouts of a run on so many devices: the axes, what of their product is legal, and why the rest is not.

use nn::context::Recompute;
use nn::offload::Offload;
use nn::spec::ModelSpec;

use super::check::{check, moe};
use super::quick::Way;
use super::{ContextParallel, Layout, Schedule};
use crate::handover::Engine;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// Devices, all of which are used.
    pub devices: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Largest micro-batch that is tried.
    pub micro_batch: u64,
    /// Who is to run it: what it cannot is left out. `None`: nobody in particular.
    pub engine: Option<Engine>,
    /// Whether the link to the host is known, so that the time of activations there is.
    pub host: bool,
}

/// Why a candidate is no legal layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Illegal {
    /// Heads, widths, tokens or experts are not divided by the ranks that share them.
    Sizes,
    /// More stages than blocks.
    Stages,
    /// Replicas and micro-batch do not divide the sequences of a step.
    Batch,
    /// Fewer micro-batches than stages.
    MicroBatches,
    /// Virtual stages do not divide the blocks, or stages the micro-batches.
    Virtual,
    /// States are divided over no replicas.
    Replicas,
    /// The engine cannot run it.
    Engine,
}

impl Illegal {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Sizes, Self::Stages, Self::Batch, Self::MicroBatches, Self::Virtual, Self::Replicas, Self::Engine];

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Sizes => "heads, widths or experts are not divided by their ranks",
            Self::Stages => "more stages than blocks",
            Self::Batch => "replicas × micro-batch do not divide the sequences of a step",
            Self::MicroBatches => "fewer micro-batches than stages",
            Self::Virtual => "virtual stages do not divide the blocks, or stages the micro-batches",
            Self::Replicas => "nothing to divide states over",
            Self::Engine => "the engine cannot run it",
        }
    }
}

/// Candidates by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The product of the axes.
    pub candidates: u64,
    /// Of them not legal, by [`Illegal::ALL`].
    pub illegal: [u64; 7],
}

impl Counts {
    fn refuse(&mut self, why: Illegal, count: u64) {
        self.illegal[why as usize] += count;
    }

    /// Adds those of another part of the space.
    pub fn add(&mut self, other: &Self) {
        self.candidates += other.candidates;
        for (own, more) in self.illegal.iter_mut().zip(other.illegal) {
            *own += more;
        }
    }

    /// Legal ones.
    pub fn legal(&self) -> u64 {
        self.candidates - self.illegal.iter().sum::<u64>()
    }
}

/// Divisors of `n` that are at most `most`, from the smallest.
fn divisors(n: u64, most: u64) -> Vec<u64> {
    let small: Vec<u64> = (1..=n.isqrt()).filter(|d| n.is_multiple_of(*d)).collect();
    let large = small.iter().rev().map(|d| n / d).filter(|d| d * d > n);
    let mut all: Vec<u64> = small.iter().copied().chain(large).collect();
    all.retain(|d| *d <= most);
    all
}

/// Fewest tokens of a sequence that a rank has where ranks share it.
const FEWEST_TOKENS: u64 = 4096;

/// Most ranks along an axis but that of the replicas.
const MOST_RANKS: u64 = 1 << 10;

/// Most sequences of a step that are looked at.
const MOST_SEQUENCES: u64 = 1 << 20;

impl Axes<'_> {
    /// The ways to divide tensors, run again and offload; and the candidates that no way of these allows.
    pub fn ways(&self) -> (Vec<Way>, Counts) {
        let experts = self.model.layers.iter().find_map(|layer| moe(&layer.feed_forward)).map(|moe| moe.experts);
        let (mut ways, mut counts) = (Vec::new(), Counts::default());
        let recomputes = [Recompute::None, Recompute::Selective, Recompute::Full];
        let offloads: &[bool] = if self.host { &[false, true] } else { &[false] };
        for tp in divisors(self.devices, MOST_RANKS) {
            for cp in divisors(self.devices / tp, (self.seq_len / FEWEST_TOKENS).clamp(1, MOST_RANKS)) {
                let inner = self.inner(tp, cp);
                let eps = experts.map_or(vec![1], |experts| divisors(experts, MOST_RANKS));
                for ep in eps {
                    let etps = if experts.is_some() { divisors(tp, MOST_RANKS) } else { vec![1] };
                    for etp in etps {
                        // How a sequence is shared means nothing where it is not.
                        let contexts = [ContextParallel::AllToAll, ContextParallel::Ring];
                        let contexts = &contexts[..if cp > 1 { 2 } else { 1 }];
                        let sps: &[bool] = if tp > 1 { &[false, true] } else { &[false] };
                        for (&sp, &context) in
                            sps.iter().flat_map(|sp| contexts.iter().map(move |context| (sp, context)))
                        {
                            let layout = Layout {
                                tp,
                                sp,
                                cp,
                                ep,
                                etp,
                                context,
                                dp: self.devices / tp / cp,
                                ..Layout::default()
                            };
                            let here = inner * (recomputes.len() * offloads.len()) as u64;
                            counts.candidates += here;
                            // A batch that replicas do not divide is no matter of these.
                            let legal = (self.devices / tp / cp * tp * cp).is_multiple_of(ep * etp)
                                && check(&layout, self.model, self.seq_len, None).is_ok();
                            if !legal {
                                counts.refuse(Illegal::Sizes, here);
                                continue;
                            }
                            for recompute in recomputes {
                                for &activations in offloads {
                                    let offload = Offload { activations, optimizer: false };
                                    ways.push(Way::of(&Layout { recompute, offload, ..layout.clone() }));
                                }
                            }
                        }
                    }
                }
            }
        }
        (ways, counts)
    }

    /// Schedules of one stage on each rank.
    fn schedules(&self) -> &'static [Schedule] {
        match self.engine {
            // Of the engines none puts off weight gradients with one stage on a rank.
            None => &[Schedule::OneFOneB, Schedule::ZeroBubble],
            Some(_) => &[Schedule::OneFOneB],
        }
    }

    /// Candidates of a way.
    fn inner(&self, tp: u64, cp: u64) -> u64 {
        let orders = |pp: u64| {
            let chunks = (self.model.depth() as u64 / pp).max(1) - 1;
            if pp == 1 { 1 } else { self.schedules().len() as u64 + chunks }
        };
        let batches = divisors(self.global_batch, self.micro_batch).len() as u64;
        divisors(self.devices / tp / cp, MOST_RANKS).into_iter().map(|pp| batches * 4 * orders(pp)).sum()
    }

    /// The legal layouts of a way, those that have most in common one after another; the others are counted.
    pub fn layouts(&self, way: &Way, counts: &mut Counts) -> Vec<Layout> {
        let (tp, cp) = (way.ranks.tp, way.ranks.cp);
        let layers = self.model.depth() as u64;
        let batches = divisors(self.global_batch, self.micro_batch);
        let experts = self.model.layers.iter().any(|layer| moe(&layer.feed_forward).is_some());
        let mut all = Vec::new();
        for pp in divisors(self.devices / tp / cp, MOST_RANKS) {
            let dp = self.devices / tp / cp / pp;
            let schedules = self.schedules();
            let chunks = if pp == 1 { 0 } else { (layers / pp).max(1) - 1 };
            let orders = if pp == 1 { 1 } else { schedules.len() as u64 + chunks };
            let expert = way.ranks.ep.saturating_mul(way.ranks.etp);
            if pp > layers || !(tp * cp * dp).is_multiple_of(expert) {
                let why = if pp > layers { Illegal::Stages } else { Illegal::Sizes };
                counts.refuse(why, batches.len() as u64 * 4 * orders);
                continue;
            }
            for &micro_batch in &batches {
                let step = dp.saturating_mul(micro_batch);
                if !self.global_batch.is_multiple_of(step) {
                    counts.refuse(Illegal::Batch, 4 * orders);
                    continue;
                }
                let grad_accum = self.global_batch / step;
                if grad_accum < pp {
                    counts.refuse(Illegal::MicroBatches, 4 * orders);
                    continue;
                }
                let base = Layout {
                    dp,
                    tp,
                    sp: way.ranks.sp,
                    cp,
                    context: way.context,
                    ep: way.ranks.ep,
                    etp: way.ranks.etp,
                    pp,
                    micro_batch,
                    grad_accum,
                    recompute: way.recompute,
                    offload: way.offload,
                    ..Layout::default()
                };
                let plain = schedules.iter().take(if pp == 1 { 1 } else { schedules.len() }).map(|one| (*one, 1));
                let virtual_stages = (2..=chunks + 1).map(|chunks| (Schedule::Interleaved, chunks));
                for (schedule, virtual_stages) in plain.chain(virtual_stages) {
                    let divides = layers.is_multiple_of(pp * virtual_stages) && grad_accum.is_multiple_of(pp);
                    if virtual_stages > 1 && !divides {
                        counts.refuse(Illegal::Virtual, 4);
                        continue;
                    }
                    for zero in 0..=3 {
                        let layout = Layout { virtual_stages, schedule, zero, ..base.clone() };
                        if zero > 0 && dp * cp == 1 {
                            counts.refuse(Illegal::Replicas, 1);
                        } else if !self.engine.is_none_or(|engine| runs(engine, &layout, experts)) {
                            counts.refuse(Illegal::Engine, 1);
                        } else {
                            all.push(layout);
                        }
                    }
                }
            }
        }
        all
    }

    /// Whether the numbers can be counted at all.
    pub const fn countable(&self) -> bool {
        self.global_batch <= MOST_SEQUENCES && self.devices <= MOST_RANKS * MOST_RANKS && self.devices > 0
    }
}

/// Whether an engine runs such a layout; what it refuses beside, of models, is no matter of layouts.
///
/// Source: the refusals of its exporter in [`handover`](crate::handover).
fn runs(engine: Engine, layout: &Layout, experts: bool) -> bool {
    let Layout { dp, cp, ep, etp, pp, zero, sp, tp, recompute, offload, .. } = *layout;
    let plain = layout.schedule == Schedule::OneFOneB;
    let whole = recompute != Recompute::Selective;
    let with_the_rest = !experts || etp == tp;
    let (ring, exchange) =
        (cp == 1 || layout.context == ContextParallel::Ring, cp == 1 || layout.context == ContextParallel::AllToAll);
    match engine {
        Engine::Megatron => !offload.activations || (pp == 1 && recompute == Recompute::None),
        Engine::Torchtitan => {
            let states = match zero {
                0 => dp * cp == 1 || (tp == 1 && cp == 1 && pp == 1 && ep == 1),
                zero => zero == 3,
            };
            let shares =
                if ep == 1 { with_the_rest } else { (etp == 1 || etp == tp) && (dp * tp).is_multiple_of(ep * etp) };
            states && shares && sp == (tp > 1) && ring && whole && !offload.activations
        }
        Engine::DeepSpeed => {
            let shares = if ep == 1 { with_the_rest } else { etp == 1 && (cp == 1 || zero < 3) };
            pp == 1 && !sp && exchange && (cp == 1 || tp == 1) && shares && !offload.activations
        }
        Engine::Fsdp => {
            let expressed = whole && (recompute == Recompute::Full || !offload.activations);
            pp == 1 && zero == 3 && ep == 1 && with_the_rest && !sp && ring && expressed
        }
        // It divides states over replicas of whole sequences.
        Engine::Nanotron => {
            zero <= 1 && (zero == 0 || cp == 1) && plain && ring && !experts && whole && !offload.activations
        }
    }
}

#[cfg(test)]
mod tests {
    use super::divisors;

    #[test]
    fn divisors_are_those_found_by_trial() {
        for n in 1..200 {
            let tried: Vec<u64> = (1..=n).filter(|d| n % d == 0).collect();
            assert_eq!(divisors(n, u64::MAX), tried);
            assert!(divisors(n, 7).iter().all(|d| *d <= 7));
        }
    }
}
