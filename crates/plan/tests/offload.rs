//! What moves to the host: the same ops, the bytes that were saved, and none of the states.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::ledger::{self, Request};
use napkin_plan::model::Model;
use napkin_plan::on_device::OnDevice;
use napkin_plan::params::{Counts, parameters};
use napkin_plan::presets;
use napkin_plan::sharding::Sharding;
use napkin_plan::timeline::{Phase, Timeline};
use nn::blocks::Blocks;
use nn::step::{Precision, StepOptions, StepTrace, Until};
use nn::{Offload, Profile, Recompute};
use tensor::meter::MemoryChange;
use tensor::{CastLists, Role};
use units::Bytes;

fn options(profile: Profile, recompute: Recompute, offload: Offload) -> StepOptions {
    StepOptions {
        batch: 2,
        seq_len: 256,
        profile,
        precision: Precision::Bf16Mixed,
        optimizer: "adamw-foreach".parse().unwrap(),
        recompute,
        grad_accum_steps: 1,
        autocast: CastLists::Cuda,
        steps: 2,
        warm: false,
        dropout: false,
        objective: nn::Objective::DEFAULT,
        offload,
        in_backward: false,
        until: Until::Optimizer,
    }
}

fn phases(model: &Model, traced: &StepTrace, options: &StepOptions) -> Vec<Phase> {
    Timeline::of(traced, options, Sharding::default(), Blocks::of(&model.spec.names)).phases
}

fn phase<'a>(phases: &'a [Phase], name: &str) -> &'a Phase {
    phases.iter().find(|phase| phase.name == name).unwrap()
}

fn models() -> Vec<Model> {
    ["gpt2", "qwen3-0.6b"]
        .map(|name| {
            let (name, text) = presets::find(name).unwrap();
            Model::from_text(name, name, text.as_bytes(), &[], None).unwrap()
        })
        .into()
}

#[test]
fn saved_tensors_leave_and_come_back() {
    for model in models() {
        for profile in [Profile::Fused, Profile::HfSdpa] {
            for recompute in [Recompute::None, Recompute::Full] {
                let plain = options(profile, recompute, Offload::NONE);
                let moved = options(profile, recompute, "activations".parse().unwrap());
                let [here, there] = [&plain, &moved].map(|options| model.trace(options).unwrap());
                let name = format!("{} {profile} {}", model.name, recompute.name());
                assert_eq!(here.trace.ops, there.trace.ops, "{name}");
                let [a, b] = [(&here, &plain), (&there, &moved)].map(|(t, o)| phases(&model, t, o));
                let saved = |phases: &[Phase]| phase(phases, "fwd2").end_by_role[Role::Activation as usize];
                // What is left is small, or not read before the backward pass begins with it.
                assert!(saved(&b) * 3 < saved(&a), "{name}: {} of {}", saved(&b), saved(&a));
                assert!(there.host.activations >= saved(&a) - saved(&b), "{name}");
                assert!(there.host.activations_peak <= 2 * there.host.activations, "{name}");
                for (a, b) in a.iter().zip(&b) {
                    assert_eq!(a.name, b.name);
                    assert!(b.peak_bytes <= a.peak_bytes, "{name} {}", a.name);
                    // Parameters, gradients and states stay.
                    for role in [Role::Parameter, Role::Gradient, Role::OptimizerState] {
                        assert_eq!(a.end_by_role[role as usize], b.end_by_role[role as usize], "{name} {}", a.name);
                    }
                }
                assert_balanced(&there, &name);
            }
        }
    }
}

/// Nothing is allocated twice or freed twice.
fn assert_balanced(traced: &StepTrace, name: &str) {
    let mut live = vec![false; traced.trace.storages.len()];
    for event in &traced.trace.memory {
        let live = &mut live[event.storage.0 as usize];
        match event.change {
            MemoryChange::Alloc(_) => assert!(!std::mem::replace(live, true), "{name}: {event:?}"),
            MemoryChange::Role(_) => assert!(*live, "{name}: {event:?}"),
            MemoryChange::Free => assert!(std::mem::replace(live, false), "{name}: {event:?}"),
        }
    }
    assert!(traced.trace.memory.is_sorted_by_key(|event| event.op), "{name}");
}

/// 8 bytes of moments for each parameter, and nothing that an update makes; 4 bytes there and 4 back.
#[test]
fn states_and_updates_are_on_the_host() {
    for model in models() {
        let all: Offload = "activations,optimizer".parse().unwrap();
        let options = options(Profile::HfSdpa, Recompute::None, all);
        let traced = model.trace(&options).unwrap();
        let params = Counts::of(&parameters(&model).unwrap()).stored.get();
        // One counter for each tensor, too.
        assert!(traced.host.states >= 8 * params && traced.host.states < 8 * params + 4096, "{}", model.name);
        assert_eq!(traced.host.update, 8 * params, "{}", model.name);
        let phases = phases(&model, &traced, &options);
        assert!(phases.iter().all(|phase| phase.peak_by_role[Role::OptimizerState as usize] == 0));
        let update = phase(&phases, "opt2");
        assert_eq!(update.peak_bytes, phase(&phases, "bwd2").end_bytes());
        assert_balanced(&traced, &model.name);
    }
}

fn paging(paged: bool) -> Request<'static> {
    Request {
        options: options(Profile::HfSdpa, Recompute::None, Offload::NONE),
        sharding: Sharding::default(),
        hardware: None,
        runtime: Bytes(0),
        runtime_given: true,
        paged,
        process: None,
        depth: 1,
        timeline: false,
    }
}

/// The states of a parameter of 100,000 elements are paged, those of one of fewer are not (`get_state_buffer` of bitsandbytes).
#[test]
fn small_states_are_not_paged() {
    for (rows, fits) in [(1000, true), (999, false)] {
        let config = format!(
            r#"{{"model_type": "gpt2", "n_embd": 100, "n_head": 4, "n_layer": 1, "n_positions": 256, "vocab_size": {rows}}}"#
        );
        let model = Model::from_text("small", "small", config.as_bytes(), &[], None).unwrap();
        let (ledger, traced) = ledger::ledger(&model, &paging(true)).unwrap();
        let capacity = Some(Bytes(ledger.peak_bytes - 1));
        let device = OnDevice::named(Blocks::of(&model.spec.names), &traced, &ledger, &paging(true), capacity);
        assert_eq!((device.fits(), device.paged), (fits, fits.then_some(Bytes(1))), "{rows}");
    }
}

/// GPT-2 has 124,318,464 parameters in tensors of 100,000 or more, its token and position tables and four maps of each block,
/// with two states of 4 bytes: what is missing of the device may be these, and not a byte more.
#[test]
fn paged_states_are_on_the_host_where_the_device_is_full() {
    let (name, text) = presets::find("gpt2").unwrap();
    let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
    let pageable = 8 * (50_257 * 768 + 1024 * 768 + 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072));
    let (ledger, traced) = ledger::ledger(&model, &paging(true)).unwrap();
    let on = |paged, capacity| {
        let blocks = Blocks::of(&model.spec.names);
        OnDevice::named(blocks, &traced, &ledger, &paging(paged), Some(Bytes(capacity)))
    };
    let all = ledger.peak_bytes;
    for (capacity, moved) in [(all, None), (all - 1, Some(1)), (all - pageable, Some(pageable))] {
        let device = on(true, capacity);
        assert!(device.fits(), "{capacity}");
        assert_eq!((device.total, device.paged), (Bytes(capacity.min(all)), moved.map(Bytes)));
    }
    let short = on(true, all - pageable - 1);
    assert!(!short.fits() && short.paged.is_none() && short.total == Bytes(all));
    assert!(!on(false, all - 1).fits());
}
