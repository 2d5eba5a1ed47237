//! The search over layouts: it looks at all there are, what it says of each is what the layout says by itself, and nothing
//! that it puts behind another is better.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::cluster::network;
use napkin_plan::hardware;
use napkin_plan::layout::estimate::{Cluster, Run};
use napkin_plan::layout::search::{Limit, Wanted, layouts, pareto, search};
use napkin_plan::layout::{ContextParallel, Layout, check, rank};
use napkin_plan::ledger::Ledger;
use napkin_plan::model::Model;
use napkin_plan::sharding::Sharding;
use nn::step::{Precision, StepOptions};
use nn::{Profile, Recompute};
use std::collections::BTreeSet;
use units::Bytes;

fn model(kind: &str) -> Model {
    let experts = r#", "num_local_experts": 4, "num_experts_per_tok": 2"#;
    let text = format!(
        r#"{{"model_type": "{kind}", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": false{}}}"#,
        if kind == "mixtral" { experts } else { "" }
    );
    Model::from_text("small", "small", text.as_bytes(), &[], None).unwrap()
}

fn step() -> StepOptions {
    StepOptions::usual(1024, Profile::Fused, Precision::Bf16MasterFp32Grads)
}

fn run(model: &Model) -> Run<'_> {
    let (hardware, network) = (hardware::find("h100-sxm").unwrap(), network::find("infiniband-ndr").unwrap());
    Run::new(model, step(), None, Cluster { hardware, per_node: 8, network }).unwrap()
}

fn wanted(devices: u64, capacity: u64) -> Wanted {
    Wanted { devices, global_batch: 32, capacity: Bytes(capacity), micro_batch: 4 }
}

/// What tells layouts of a search apart.
fn key(layout: &Layout) -> [u64; 9] {
    let Layout { dp, tp, cp, ep, pp, zero, micro_batch, grad_accum, .. } = *layout;
    [dp, tp, cp, ep, pp, u64::from(zero), micro_batch, grad_accum, u64::from(layout.recompute != Recompute::None)]
}

/// All numbers up to the devices, tried one by one.
#[test]
fn every_legal_layout_is_looked_at_once() {
    for kind in ["llama", "mixtral"] {
        let model = model(kind);
        let wanted = wanted(8, u64::MAX);
        let found = layouts(&model.spec, 1024, 8, &wanted);
        let keys: BTreeSet<_> = found.iter().map(key).collect();
        assert_eq!(keys.len(), found.len(), "no layout twice");
        let mut expected = BTreeSet::new();
        let each = 1..=8u64;
        for (tp, pp) in each.clone().flat_map(|tp| each.clone().map(move |pp| (tp, pp))) {
            for (dp, ep) in each.clone().flat_map(|dp| each.clone().map(move |ep| (dp, ep))) {
                for (zero, micro_batch) in [0, 1, 3].iter().flat_map(|zero| [1, 2, 4].map(|b| (*zero, b))) {
                    for (grad_accum, recompute) in
                        (1..=32).flat_map(|m| [Recompute::None, Recompute::Full].map(|r| (m, r)))
                    {
                        let context = ContextParallel::AllToAll;
                        let layout = Layout {
                            dp,
                            tp,
                            sp: tp > 1,
                            ep,
                            pp,
                            zero,
                            micro_batch,
                            grad_accum,
                            recompute,
                            context,
                            ..Layout::default()
                        };
                        let whole = layout.global_batch() == 32 && grad_accum >= pp;
                        let sensible = (zero == 0 || dp > 1) && (zero != 3 || pp == 1);
                        if whole && sensible && check(&layout, &model.spec, 1024, Some(8)).is_ok() {
                            expected.insert(key(&layout));
                        }
                    }
                }
            }
        }
        assert_eq!(keys, expected, "{kind}");
        assert!(keys.len() > 30, "{}", keys.len());
    }
}

#[test]
fn what_is_said_of_a_layout_is_what_it_says_by_itself() {
    let model = model("mixtral");
    let run = run(&model);
    let found = search(&run, &wanted(8, u64::MAX)).unwrap();
    assert!(found.fits.len() > 50 && found.rejected.is_empty(), "{}", found.fits.len());
    for (layout, estimate) in &found.fits {
        let own = run.estimate(layout, &run.traces(layout).unwrap()).unwrap();
        assert_eq!(*estimate, own, "{layout}");
    }
    for pair in found.fits.windows(2) {
        assert!(pair[0].1.time.seconds() <= pair[1].1.time.seconds());
    }
    let front = pareto(&found.fits);
    assert!(!front.is_empty());
    for (layout, estimate) in &found.fits {
        let beaten = |other: &&&(_, _)| -> bool {
            let (_, other): &(Layout, napkin_plan::layout::estimate::Estimate) = other;
            other.time.seconds() <= estimate.time.seconds() && other.device <= estimate.device
        };
        assert!(front.iter().any(|one| beaten(&one)), "{layout}: nothing of the front is as good");
    }
}

#[test]
fn what_does_not_fit_is_named_with_its_limit() {
    let model = model("llama");
    let run = run(&model);
    let all = search(&run, &wanted(8, u64::MAX)).unwrap();
    let mut bytes: Vec<u64> = all.fits.iter().map(|(_, estimate)| estimate.device.get()).collect();
    bytes.sort_unstable();
    let capacity = bytes[bytes.len() / 2];
    let some = search(&run, &wanted(8, capacity)).unwrap();
    assert_eq!(some.tried(), all.tried());
    assert_eq!(some.fits.len(), bytes.iter().filter(|&&b| b <= capacity).count());
    for rejected in &some.rejected {
        let own = all.fits.iter().find(|(layout, _)| *layout == rejected.layout).unwrap().1.device;
        match rejected.limit {
            // A bound from below: what is rejected by it would not have fitted.
            Limit::States(bytes) => assert!(bytes.get() > capacity && bytes <= own),
            Limit::Memory(bytes) => assert_eq!(bytes, own),
        }
    }
    let none = search(&run, &wanted(8, 1)).unwrap();
    assert!(none.fits.is_empty());
    assert!(search(&run, &Wanted { global_batch: 7, ..wanted(64, u64::MAX) }).is_err());
}

/// A layout of one device is what the ledger says, and replicas divide what they divide there.
#[test]
fn a_rank_alone_is_the_ledger() {
    let model = model("llama");
    for (zero, dp) in [(0, 1), (1, 4), (2, 4)] {
        let layout = Layout { dp, zero, micro_batch: 2, grad_accum: 2, ..Layout::default() };
        let rank = &rank::memory(&model.spec, &layout, &step(), None).unwrap()[0];
        let options = StepOptions { batch: 2, grad_accum_steps: 2, ..step() };
        let traced = model.trace(&options).unwrap();
        let ledger = Ledger::of(&traced, &options, Sharding::new(zero, dp), &model.spec.names, Bytes(0));
        assert_eq!(rank.peak_bytes, ledger.peak_bytes, "zero {zero} dp {dp}");
    }
}

/// Conservation over random layouts: what all ranks of a replica hold is the model, and what they hold alike has a name; what
/// they compute is what the model computes, and what goes over the wire arrives.
fn conserved(kind: &str, layout: &Layout) {
    use nn::ParamKind;
    use nn::Share;
    use tensor::Phase;
    let model = model(kind);
    if check(layout, &model.spec, 1024, None).is_err() {
        return;
    }
    let what = format!("{kind} {layout}");
    let ranks = rank::trace(&model.spec, layout, &step(), None, 0..layout.pp).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (mut divided, mut alike) = (0, 0);
    for param in ranks.iter().flat_map(|rank| &rank.traced.params) {
        let times = match (param.share, param.kind) {
            (Share::Part, ParamKind::Expert { .. }) => layout.ep * layout.etp,
            (Share::Part, _) => layout.tp,
            _ => 1,
        };
        divided += param.elements * times;
        // Norms and routers: each of the ranks that share matrices has them whole.
        alike += if param.share == Share::Part { 0 } else { param.elements };
    }
    let options = StepOptions { batch: layout.micro_batch, recompute: Recompute::None, ..step() };
    let whole = model.trace(&options).unwrap();
    let all: u64 = whole.params.iter().map(|param| param.elements).sum();
    assert_eq!(divided, all, "{what}: parameters");
    let small = |name: &str| name.contains("norm") || name.contains("gate.weight");
    let named: u64 = whole.params.iter().filter(|p| small(&p.name)).map(|p| p.elements).sum();
    assert_eq!(alike, named, "{what}: parameters that several ranks hold");
    for phase in [Phase::Forward, Phase::Backward] {
        let one = whole.trace.cost(|event| event.phase == phase).matmul;
        let of_ranks: u128 = ranks
            .iter()
            .map(|rank| {
                rank.traced.trace.cost(|event| event.phase == phase).matmul / u128::from(rank.options.grad_accum_steps)
            })
            .sum();
        assert_eq!(of_ranks * u128::from(layout.tp * layout.cp), one, "{what}: FLOP {}", phase.name());
    }
    let total = ranks.iter().fold(tensor::Cost::default(), |mut sum, rank| {
        let each = rank.traced.trace.cost(|_| true);
        // Ranks of different stages see different numbers of micro-batches in their traces.
        sum.sent += each.sent / rank.options.grad_accum_steps;
        sum.received += each.received / rank.options.grad_accum_steps;
        sum
    });
    if layout.pp == 1 {
        assert_eq!(total.sent, total.received, "{what}");
    }
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

        #[test]
        fn ranks_of_random_layouts_are_the_whole(
            moe in any::<bool>(),
            (tp, cp, pp) in (0u32..3, 0u32..2, 0u32..3),
            (dp, ep) in (0u32..3, 0u32..3),
            (micro_batch, grad_accum) in (1u64..3, 1u64..9),
            full in any::<bool>(),
        ) {
            let [tp, cp, pp, dp, ep] = [tp, cp, pp, dp, ep].map(|power| 1u64 << power);
            let layout = Layout {
                dp,
                tp,
                sp: tp > 1,
                cp,
                context: ContextParallel::AllToAll,
                ep: if moe { ep } else { 1 },
                pp,
                zero: u8::from(dp > 1),
                micro_batch,
                grad_accum,
                recompute: if full { Recompute::Full } else { Recompute::None },
                ..Layout::default()
            };
            conserved(if moe { "mixtral" } else { "llama" }, &layout);
        }
    }
}

/// Numbers that nobody means are refused, not counted to.
#[test]
fn steps_beyond_counting_are_refused() {
    let model = model("llama");
    for (grad_accum, micro_batch) in [(u64::MAX, 1), (1, u64::MAX), (1 << 21, 1), (1 << 20, 1 << 30)] {
        let layout = Layout { grad_accum, micro_batch, ..Layout::default() };
        assert!(check(&layout, &model.spec, 1024, None).is_err(), "{grad_accum} {micro_batch}");
        assert!(rank::memory(&model.spec, &layout, &step(), None).is_err());
    }
    let run = run(&model);
    for global_batch in [u64::MAX, 1_000_000_000_000, 1 << 40] {
        assert!(search(&run, &Wanted { global_batch, ..wanted(8, u64::MAX) }).is_err(), "{global_batch}");
    }
    // As many as are looked at, and what a rank holds does not depend on it.
    let of = |grad_accum| {
        let layout = Layout { pp: 4, grad_accum, ..Layout::default() };
        rank::memory(&model.spec, &layout, &step(), None).unwrap()
    };
    assert_eq!(of(1 << 20), of(64));
}
