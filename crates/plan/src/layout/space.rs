//! All layouts of a run on so many devices: the axes, what of their product is legal, and why the rest is not.

use nn::context::Recompute;
use nn::offload::Offload;
use nn::spec::ModelSpec;

use super::check::{MOST_HELD, check, moe};
use super::given::Given;
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
    /// Whether updates on the host are looked at, too.
    pub host_updates: bool,
    /// Axes that are not looked along.
    pub given: Given,
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
    /// Fewer micro-batches than stages, or more than are looked at.
    MicroBatches,
    /// Virtual stages do not divide the blocks, or stages the micro-batches.
    Virtual,
    /// States are divided over no replicas.
    Replicas,
    /// The engine cannot run it.
    Engine,
    /// It has other replicas or micro-batches than those given.
    Given,
}

impl Illegal {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Sizes,
        Self::Stages,
        Self::Batch,
        Self::MicroBatches,
        Self::Virtual,
        Self::Replicas,
        Self::Engine,
        Self::Given,
    ];

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Sizes => "heads, widths or experts are not divided by their ranks",
            Self::Stages => "more stages than blocks",
            Self::Batch => "replicas × micro-batch do not divide the sequences of a step",
            Self::MicroBatches => "fewer micro-batches than stages, or more than are looked at",
            Self::Virtual => "virtual stages do not divide the blocks, or stages the micro-batches",
            Self::Replicas => "nothing to divide states over",
            Self::Engine => "the engine cannot run it",
            Self::Given => "other replicas or micro-batches than those given",
        }
    }
}

/// Candidates by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The product of the axes.
    pub candidates: u64,
    /// Of them not legal, by [`Illegal::ALL`].
    pub illegal: [u64; Illegal::ALL.len()],
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

/// Of these the one that is given, where one is.
fn only(mut all: Vec<u64>, given: Option<u64>) -> Vec<u64> {
    all.retain(|one| given.is_none_or(|given| given == *one));
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
        let (given, mut ways, mut counts) = (&self.given, Vec::new(), Counts::default());
        let recomputes =
            given.recompute.map_or(vec![Recompute::None, Recompute::Selective, Recompute::Full], |one| vec![one]);
        let offloads = match given.offload {
            Some(offload) => vec![offload],
            None if self.host => {
                let optimizers: &[bool] = if self.host_updates { &[false, true] } else { &[false] };
                let both =
                    |optimizer: &bool| [false, true].map(|activations| Offload { activations, optimizer: *optimizer });
                optimizers.iter().flat_map(both).collect()
            }
            None => vec![Offload::NONE],
        };
        // Shorter parts of a sequence are looked at where somebody asks for them.
        let most_cp = if given.cp.is_some() { MOST_RANKS } else { (self.seq_len / FEWEST_TOKENS).clamp(1, MOST_RANKS) };
        for tp in only(divisors(self.devices, MOST_RANKS), given.tp) {
            for cp in only(divisors(self.devices / tp, most_cp), given.cp) {
                let inner = self.inner(tp, cp);
                let eps = experts.map_or(vec![1], |experts| divisors(experts, MOST_RANKS));
                for ep in only(eps, given.ep) {
                    let etps = if experts.is_some() { divisors(tp, MOST_RANKS) } else { vec![1] };
                    for etp in only(etps, given.etp) {
                        // How a sequence is shared means nothing where it is not.
                        let contexts = match given.context {
                            Some(context) => vec![context],
                            None if cp > 1 => vec![ContextParallel::AllToAll, ContextParallel::Ring],
                            None => vec![ContextParallel::AllToAll],
                        };
                        let sps = match given.sp {
                            Some(sp) => vec![sp],
                            None if tp > 1 => vec![false, true],
                            None => vec![false],
                        };
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
                            for (&recompute, &offload) in
                                recomputes.iter().flat_map(|one| offloads.iter().map(move |offload| (one, offload)))
                            {
                                ways.push(Way::of(&Layout { recompute, offload, ..layout.clone() }));
                            }
                        }
                    }
                }
            }
        }
        (ways, counts)
    }

    /// Orders of passes over so many ranks, each with the runs of blocks on a rank.
    fn orders(&self, pp: u64) -> Vec<(Schedule, u64)> {
        let given = &self.given;
        let chunks = |chunks: u64| given.virtual_stages.is_none_or(|given| given == chunks);
        let mut all = Vec::new();
        if chunks(1) && pp == 1 {
            all.push((Schedule::OneFOneB, 1));
        } else if chunks(1) {
            all.extend(match (given.schedule, self.engine) {
                (Some(Schedule::Interleaved), _) => vec![],
                (Some(schedule), _) => vec![(schedule, 1)],
                // Of the engines none puts off weight gradients with one stage on a rank.
                (None, Some(_)) => vec![(Schedule::OneFOneB, 1)],
                (None, None) => vec![(Schedule::OneFOneB, 1), (Schedule::ZeroBubble, 1)],
            });
        }
        if pp > 1 && given.schedule.is_none_or(|schedule| schedule == Schedule::Interleaved) {
            let most = (self.model.depth() as u64 / pp).max(1);
            all.extend((2..=most).filter(|one| chunks(*one)).map(|chunks| (Schedule::Interleaved, chunks)));
        }
        all
    }

    /// Numbers of sequences of a micro-batch.
    fn batches(&self) -> Vec<u64> {
        only(divisors(self.global_batch, self.micro_batch), self.given.micro_batch)
    }

    /// Pipeline stages.
    fn stages(&self, tp: u64, cp: u64) -> Vec<u64> {
        only(divisors(self.devices / tp / cp, MOST_RANKS), self.given.pp)
    }

    /// What is divided over replicas.
    fn zeros(&self) -> Vec<u8> {
        self.given.zero.map_or(vec![0, 1, 2, 3], |zero| vec![zero])
    }

    /// Candidates of a way.
    fn inner(&self, tp: u64, cp: u64) -> u64 {
        let each = (self.batches().len() * self.zeros().len()) as u64;
        self.stages(tp, cp).into_iter().map(|pp| each * self.orders(pp).len() as u64).sum()
    }

    /// The legal layouts of a way, those that have most in common one after another; the others are counted.
    pub fn layouts(&self, way: &Way, counts: &mut Counts) -> Vec<Layout> {
        let (tp, cp) = (way.ranks.tp, way.ranks.cp);
        let layers = self.model.depth() as u64;
        let (batches, zeros) = (self.batches(), self.zeros());
        let experts = self.model.layers.iter().any(|layer| moe(&layer.feed_forward).is_some());
        let mut all = Vec::new();
        for pp in self.stages(tp, cp) {
            let dp = self.devices / tp / cp / pp;
            let orders = self.orders(pp);
            let each = (orders.len() * zeros.len()) as u64;
            let expert = way.ranks.ep.saturating_mul(way.ranks.etp);
            let refused = if pp > layers {
                Some(Illegal::Stages)
            } else if !(tp * cp * dp).is_multiple_of(expert) {
                Some(Illegal::Sizes)
            } else if self.given.dp.is_some_and(|given| given != dp) {
                Some(Illegal::Given)
            } else {
                None
            };
            if let Some(why) = refused {
                counts.refuse(why, batches.len() as u64 * each);
                continue;
            }
            for &micro_batch in &batches {
                let step = dp.saturating_mul(micro_batch);
                if !self.global_batch.is_multiple_of(step) {
                    counts.refuse(Illegal::Batch, each);
                    continue;
                }
                let grad_accum = self.global_batch / step;
                if grad_accum < pp || self.given.grad_accum.is_some_and(|given| given != grad_accum) {
                    counts.refuse(if grad_accum < pp { Illegal::MicroBatches } else { Illegal::Given }, each);
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
                for &(schedule, virtual_stages) in &orders {
                    let divides = layers.is_multiple_of(pp * virtual_stages) && grad_accum.is_multiple_of(pp);
                    let held = schedule == Schedule::GPipe && grad_accum > MOST_HELD;
                    if held || (virtual_stages > 1 && !divides) {
                        counts.refuse(if held { Illegal::MicroBatches } else { Illegal::Virtual }, zeros.len() as u64);
                        continue;
                    }
                    for &zero in &zeros {
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
    if offload.optimizer && !updates_on_host(engine, layout) {
        return false;
    }
    let (ring, exchange) =
        (cp == 1 || layout.context == ContextParallel::Ring, cp == 1 || layout.context == ContextParallel::AllToAll);
    match engine {
        Engine::Megatron => {
            let usual = !matches!(layout.schedule, Schedule::GPipe | Schedule::ZeroBubble);
            usual && (!offload.activations || (pp == 1 && recompute == Recompute::None))
        }
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

/// Whether an engine makes the updates of such a layout on the host.
///
/// Source: the refusals of its exporter in [`handover`](crate::handover).
fn updates_on_host(engine: Engine, layout: &Layout) -> bool {
    let Layout { zero, tp, ep, .. } = *layout;
    match engine {
        Engine::Megatron => zero >= 1,
        Engine::Torchtitan => zero == 3,
        Engine::DeepSpeed => zero >= 1 && (tp == 1 || ep == 1),
        Engine::Fsdp => true,
        Engine::Nanotron => false,
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
