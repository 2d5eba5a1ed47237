//! What is whole for a while of what FSDP divides, against PyTorch: `torch.distributed._tools.fsdp2_mem_tracker` of torch 2.15
//! followed two micro-batches of a Llama of six blocks, wrapped by `fully_shard` with parameters of bf16 and gradients reduced in
//! f32, over four ranks, and said at its peak what was gathered (`Unsharded Param`, `All Gather`), what was not reduced yet
//! (`Unsharded Grad`, `Reduce Scatter`), and what was there in parts. Gradients that a pass backward has just made are `Temp`
//! there, of which the rest is gradients of activations.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::layout::estimate::{Cluster, Run};
use napkin_plan::layout::{Layout, rank};
use napkin_plan::ledger::steady;
use napkin_plan::levers::{Divided, Measure, Setup};
use napkin_plan::model::Model;
use napkin_plan::sharding::{Gathering, Sharding, Wrap};
use napkin_plan::timeline::{Device, Timeline};
use nn::blocks::Blocks;
use nn::step::{Precision, StepOptions, StepTrace};
use nn::{Profile, Recompute};
use tensor::Role;

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8192, "tie_word_embeddings": false,
    "max_position_embeddings": 256}"#;

const ALL: u64 = 27_367_936;
const BLOCK: u64 = 4 * 512 * 512 + 3 * 512 * 1376 + 2 * 512;
const HEAD: u64 = 8192 * 512 + 512;
const RANKS: u64 = 4;
const USUAL: Gathering = Gathering::USUAL;

fn traced() -> (Model, StepOptions, StepTrace) {
    let model = Model::from_text("llama", "llama", CONFIG.as_bytes(), &[], None).unwrap();
    let usual = StepOptions::usual(256, Profile::HfSdpa, Precision::Bf16Mixed);
    let options = StepOptions { grad_accum_steps: 2, steps: 2, recompute: Recompute::None, ..usual };
    let traced = model.trace(&options).unwrap();
    (model, options, (*traced).clone())
}

/// Most that is gathered, and most that is not reduced, while a block runs; of a model that is one unit, at any op.
#[test]
fn units_are_those_of_pytorch() {
    let (model, options, traced) = traced();
    assert_eq!(traced.params.iter().map(|param| param.elements).sum::<u64>(), ALL);
    let blocks = Blocks::of(&model.spec.names);
    // Of 15,501,312 bytes of Temp those of the head and of a block.
    let leaving = 12_652_544 + 2 * HEAD + 2 * BLOCK;
    for (gathering, gathered, unreduced) in [
        // Unsharded Param 23,104,512 and All Gather 6,326,272; Reduce Scatter 12,652,544.
        (USUAL, 23_104_512 + 6_326_272, leaving),
        (Gathering { prefetch: false, ..USUAL }, 23_104_512, leaving),
        // Unsharded Param 54,735,872.
        (Gathering { reshard: false, ..USUAL }, 54_735_872, leaving),
        // Unsharded Grad 109,471,744, of which the parts are counted with their tensors until a block is reduced into them.
        (Gathering { sync: false, ..USUAL }, 23_104_512 + 6_326_272, 109_471_744 - 4 * (ALL - BLOCK) / RANKS),
        // Unsharded Grad 54,735,872, of which those of the tokens' table lie with the op that makes them, and Temp 109,471,744,
        // when Unsharded Param is no more.
        (Gathering { wrap: Wrap::Model, ..USUAL }, 54_735_872, 54_735_872 - 2 * 8192 * 512 + 109_471_744),
    ] {
        let sharding = Sharding { gathering, ..Sharding::new(3, RANKS) };
        let device = Device::new(&traced, &options, sharding, blocks);
        let trace = &traced.trace;
        let counts = |at: &usize| {
            let path = &trace.modules[trace.ops[*at].module.0 as usize];
            gathering.wrap == Wrap::Model || blocks.number(path).is_some()
        };
        let all: Vec<(u64, u64)> = (0..trace.ops.len()).filter(counts).map(|at| device.communication(at)).collect();
        let most = (all.iter().map(|(weights, _)| *weights).max(), all.iter().map(|(_, gradients)| *gradients).max());
        assert_eq!(most, (Some(gathered), Some(unreduced)), "{gathering:?}");
    }
}

/// The peak of a step has what the choices say: what is added up whole, and what stays gathered.
#[test]
fn a_peak_follows_its_choices() {
    let (model, options, traced) = traced();
    let peak = |sharding| {
        let phases = Timeline::of(&traced, &options, sharding, Blocks::of(&model.spec.names)).phases;
        let highest = phases[steady(&phases)].iter().max_by_key(|phase| phase.peak_bytes).unwrap().clone();
        (highest.peak_by_role[Role::Communication as usize], highest.peak_by_role[Role::Gradient as usize])
    };
    let with = |gathering| peak(Sharding { gathering, ..Sharding::new(3, RANKS) });
    assert!(with(Gathering { reshard: false, ..USUAL }).0 > 54_000_000);
    assert!(with(Gathering { sync: false, ..USUAL }).1 >= 109_471_744);
    // One micro-batch has nothing to add up.
    let alone = StepOptions { grad_accum_steps: 1, ..options };
    let one = model.trace(&alone).unwrap();
    let bytes = |gathering| {
        let sharding = Sharding { gathering, ..Sharding::new(2, RANKS) };
        let phases = Timeline::of(&one, &alone, sharding, Blocks::of(&model.spec.names)).phases;
        phases.iter().map(|phase| phase.peak_bytes).max().unwrap()
    };
    // Of ZeRO 2 parameters are whole anyway.
    assert_eq!(bytes(Gathering { reshard: false, wrap: Wrap::Model, prefetch: false, ..USUAL }), bytes(USUAL));
}

/// A rank of a layout is asked the same: `--no-reshard` is paid for in memory.
#[test]
fn layouts_pay_for_what_stays() {
    let (model, options, _) = traced();
    let step = StepOptions { grad_accum_steps: 1, ..options };
    let bytes = |gathering, grad_accum| {
        let layout = Layout { dp: RANKS, zero: 3, gathering, grad_accum, ..Layout::default() };
        rank::memory(&model.spec, &layout, &step, None).unwrap()[0].peak_bytes
    };
    // All six blocks, of which one or two are there in any case, at a peak that may stand elsewhere.
    let kept = Gathering { reshard: false, ..USUAL };
    let more = bytes(kept, 1) - bytes(USUAL, 1);
    assert!((2 * 3 * BLOCK..=2 * 5 * BLOCK).contains(&more), "{more}");
    // With further micro-batches, the same: two are all that is ever seen.
    let whole = Gathering { sync: false, ..USUAL };
    assert_eq!(bytes(whole, 2), bytes(whole, 5));
    assert!(bytes(whole, 2) > bytes(USUAL, 2) + 70_000_000);
}

/// The line of a layout names what is not as usual, where it has a part in the step.
#[test]
fn a_layout_names_its_choices() {
    let gathering = Gathering { wrap: Wrap::Model, prefetch: false, reshard: false, sync: false };
    let words = |zero, grad_accum| Layout { dp: 8, zero, gathering, grad_accum, ..Layout::default() }.to_string();
    assert_eq!(words(3, 2), "dp 8 zero 3 one-unit no-prefetch no-reshard no-sync · micro-batch 1 × 2");
    assert_eq!(words(3, 1), "dp 8 zero 3 one-unit no-prefetch no-reshard · micro-batch 1 × 1");
    assert_eq!(words(2, 2), "dp 8 zero 2 no-sync · micro-batch 1 × 2");
    assert_eq!(words(1, 2), "dp 8 zero 1 · micro-batch 1 × 2");
}

/// What stays whole for longer takes no less memory, what is fetched later no more, and more ranks hold no more each.
#[test]
fn choices_are_ordered() {
    for (preset, layers) in [
        ("gpt2", "n_layer"),
        ("qwen3-0.6b", "num_hidden_layers"),
        ("gemma-2-9b", "num_hidden_layers"),
        ("mixtral-8x7b", "num_hidden_layers"),
        ("deepseek-v2-lite", "num_hidden_layers"),
    ] {
        let (name, text) = napkin_plan::presets::find(preset).unwrap();
        let set = [(layers.to_owned(), "5".to_owned())];
        let model = Model::from_text(name, name, text.as_bytes(), &set, None).unwrap();
        for (recompute, grad_accum_steps, precision) in [
            (Recompute::None, 1, Precision::Bf16Mixed),
            (Recompute::Full, 3, Precision::Bf16Mixed),
            (Recompute::None, 3, Precision::Bf16MasterFp32Grads),
        ] {
            let usual = StepOptions::usual(256, Profile::Fused, precision);
            let options = StepOptions { recompute, grad_accum_steps, ..usual };
            let traced = model.trace(&options).unwrap();
            let peak = |ranks, gathering| {
                let sharding = Sharding { gathering, ..Sharding::new(3, ranks) };
                let phases = Timeline::of(&traced, &options, sharding, Blocks::of(&model.spec.names)).phases;
                phases[steady(&phases)].iter().map(|phase| phase.peak_bytes).max().unwrap()
            };
            let what = format!("{preset} {recompute:?} {grad_accum_steps} {precision}");
            let plain = peak(8, USUAL);
            assert!(peak(8, Gathering { prefetch: false, ..USUAL }) <= plain, "{what}");
            assert!(peak(8, Gathering { reshard: false, ..USUAL }) >= plain, "{what}");
            assert!(peak(8, Gathering { wrap: Wrap::Model, ..USUAL }) >= plain, "{what}");
            if grad_accum_steps > 1 {
                assert!(peak(8, Gathering { sync: false, ..USUAL }) >= plain, "{what}");
            }
            assert!(peak(16, USUAL) <= plain && peak(64, USUAL) <= peak(16, USUAL), "{what}");
        }
    }
}

/// Changes that would make a layout fit start from what it takes: outlines, which gather as is usual, have no say in another.
#[test]
fn levers_start_from_what_a_layout_takes() {
    let (model, options, _) = traced();
    let hardware = napkin_plan::hardware::find("h100-sxm").unwrap();
    let network = napkin_plan::cluster::network::find("infiniband-ndr").unwrap();
    let step = StepOptions { seq_len: 256, ..options };
    let gathering = Gathering { sync: false, ..USUAL };
    // Large enough by its batch that tensors alone have no room.
    let layout = Layout { dp: RANKS, zero: 3, gathering, grad_accum: 2, micro_batch: 1500, ..Layout::default() };
    let run = Run::new(&model, step, None, Cluster { hardware, per_node: 8, network }).unwrap();
    let measure = |layout: &Layout| {
        let taken = Divided::of(&run).measure(&Setup { layout: layout.clone(), step }).unwrap();
        assert!(!taken.fits);
        taken.bytes()
    };
    let usual = Layout { gathering: USUAL, ..layout.clone() };
    let bytes = |layout| rank::memory(&model.spec, layout, &run.step, None).unwrap()[0].peak_bytes;
    assert!(measure(&layout) - measure(&usual) >= bytes(&layout) - bytes(&usual));
    assert!(bytes(&layout) > bytes(&usual));
}
