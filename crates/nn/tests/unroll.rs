//! The trace of a model whose blocks are written out as often as they are there is that of the whole model, event by event.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::families::{self, FAMILIES};
use napkin_nn::step::{self, Precision, StepOptions, StepTrace, Until};
use napkin_nn::{ModelSpec, Offload, Profile, Recompute};
use std::path::PathBuf;
use tensor::ops::create::{Create, Fill};
use tensor::{Device, Op, Runtime};

/// Every family with its blocks over and over again.
fn deep(times: usize) -> impl Iterator<Item = (&'static str, ModelSpec)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
    let filter = std::env::var("NAPKIN_TINY").unwrap_or_default();
    let names = FAMILIES.iter().map(|(name, _)| *name).filter(move |name| name.contains(&filter));
    names.map(move |name| {
        let bytes = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let (config, _) = Config::parse(name, &bytes);
        let mut spec = families::load(&config.unwrap(), None).unwrap().spec;
        spec.layers = spec.layers.iter().cycle().take(times * spec.layers.len()).cloned().collect();
        (name, spec)
    })
}

fn options(profile: Profile, precision: Precision) -> StepOptions {
    StepOptions { batch: 2, ..StepOptions::usual(6, profile, precision) }
}

/// The values that random parameters would get are no part of what is compared: they depend on how many there are.
fn without_values(mut traced: StepTrace) -> StepTrace {
    for event in &mut traced.trace.ops {
        if let Op::Create(Create { fill, .. }) = &mut event.op
            && let Fill::Random { .. } = fill
        {
            *fill = Fill::Data(None);
        }
    }
    traced
}

/// Whether it was written out; panics where that is not what the whole model is.
fn written_out(what: &str, spec: &ModelSpec, options: &StepOptions) -> bool {
    let Some(unrolled) = step::unrolled(spec, options) else { return false };
    let whole = without_values(step::run(&Runtime::new(Device::Meta), spec, options).unwrap());
    let unrolled = without_values(unrolled);
    assert_eq!(unrolled.params, whole.params, "{what}");
    assert_eq!((unrolled.buffer_bytes, unrolled.host), (whole.buffer_bytes, whole.host), "{what}");
    assert_eq!(unrolled.trace.modules, whole.trace.modules, "{what}");
    assert_eq!(unrolled.trace.marks, whole.trace.marks, "{what}");
    assert_eq!(unrolled.trace.storages, whole.trace.storages, "{what}");
    assert_eq!(unrolled.trace.memory, whole.trace.memory, "{what}");
    for (i, (one, other)) in unrolled.trace.ops.iter().zip(&whole.trace.ops).enumerate() {
        assert_eq!(one, other, "{what}: op {i}");
    }
    assert_eq!(unrolled.trace.ops.len(), whole.trace.ops.len(), "{what}");
    true
}

#[test]
fn what_is_written_out_is_the_whole_model() {
    let base = options(Profile::Fused, Precision::Bf16Mixed);
    let eager = options(Profile::HfEager, Precision::Fp32);
    let ways: Vec<(&str, StepOptions)> = vec![
        ("fused", base),
        ("hf-sdpa", options(Profile::HfSdpa, Precision::Bf16Mixed)),
        ("hf-eager", eager),
        ("masters", options(Profile::Fused, Precision::Bf16MasterFp32Grads)),
        ("fp8", options(Profile::Fused, Precision::Fp8)),
        ("two cold steps", StepOptions { steps: 2, warm: false, ..base }),
        ("micro-batches", StepOptions { grad_accum_steps: 2, ..eager }),
        ("recompute full", StepOptions { recompute: Recompute::Full, ..base }),
        ("recompute full hf", StepOptions { recompute: Recompute::Full, ..eager }),
        ("recompute selective", StepOptions { recompute: Recompute::Selective, ..base }),
        ("muon", StepOptions { optimizer: "muon".parse().unwrap(), ..base }),
        ("foreach", StepOptions { optimizer: "adamw-foreach".parse().unwrap(), ..eager }),
        ("in backward", StepOptions { in_backward: true, ..base }),
        ("offload", StepOptions { offload: Offload { activations: true, optimizer: true }, ..base }),
        ("forward", StepOptions { until: Until::Forward, ..base }),
    ];
    let families: Vec<_> = deep(9).collect();
    // Shared by two threads.
    let traced_whole = |half: usize| {
        let mut found: Vec<(&str, &str)> = Vec::new();
        for (name, spec) in families.iter().skip(half).step_by(2) {
            for (way, options) in &ways {
                let has_profile = options.profile != Profile::HfSdpa || spec.has_sdpa;
                if has_profile && !written_out(&format!("{name} {way}"), spec, options) {
                    found.push((way, name));
                }
            }
        }
        found
    };
    let (mut found, rest) = std::thread::scope(|scope| {
        let other = scope.spawn(|| traced_whole(1));
        (traced_whole(0), other.join().unwrap())
    });
    found.extend(rest);
    found.sort_unstable();
    let whole = ways
        .iter()
        .map(|(way, _)| (*way, found.iter().filter(|(of, _)| of == way).map(|(_, name)| *name).collect::<Vec<_>>()));
    let families = families.len();
    // No family is traced whole that needs not be.
    let filtered = families < FAMILIES.len();
    for (way, names) in whole {
        match way {
            _ if filtered => println!("{way}: traced whole: {names:?}"),
            "fused" => assert_eq!(names.join(" "), WHOLE),
            // The scales of all maps lie in one tensor.
            "fp8" => assert!(names.len() >= families / 2, "{names:?}"),
            _ => assert!(names.len() <= families / 4, "{way}: {names:?}"),
        }
    }
}

/// Families that are traced whole with the fused profile: with an encoder or around patches, with blocks that run repeatedly or
/// share something by number, or whose first blocks leave something to others than the next.
const WHOLE: &str = "albert bart blenderbot blenderbot-small blt data2vec-audio deepseek_v4 falcon_mamba gemma3n_text gemma4 \
    m2m_100 mamba mamba2 marian mbart mllama mllama_text_model modernbert mpnet mt5 mvp pegasus plbart rwkv t5 \
    umt5 whisper xlnet zamba zamba2";
