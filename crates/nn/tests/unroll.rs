//! The trace of a model whose blocks are written out as often as they are there is that of the whole model, event by event.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::families::{self, FAMILIES};
use napkin_nn::pipeline::{Accumulation, Pass, Rank};
use napkin_nn::spec::Ends;
use napkin_nn::step::{self, Checked, Precision, StepOptions, StepTrace, Until};
use napkin_nn::{ModelSpec, Offload, Profile, Recompute};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use tensor::ops::create::{Create, Fill};
use tensor::{Device, Op, Runtime};

/// Every family with its blocks over and over again: `times` of them where they are alike, else that often all of them.
fn deep(times: usize) -> impl Iterator<Item = (&'static str, ModelSpec)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
    let filter = std::env::var("NAPKIN_TINY").unwrap_or_default();
    let names = FAMILIES.iter().map(|(name, _)| *name).filter(move |name| name.contains(&filter));
    names.map(move |name| {
        let bytes = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let (config, _) = Config::parse(name, &bytes);
        let mut spec = families::load(&config.unwrap(), None).unwrap().spec;
        let alike = spec.layers.iter().all(|layer| *layer == spec.layers[0]);
        let blocks = if alike { times } else { times * spec.layers.len() };
        spec.layers = spec.layers.iter().cycle().take(blocks).cloned().collect();
        (name, spec)
    })
}

fn options(profile: Profile, precision: Precision) -> StepOptions {
    StepOptions { batch: 2, ..StepOptions::usual(6, profile, precision) }
}

/// The values that random parameters would get are no part of what is compared: they depend on how many there are.
fn without_values(mut traced: StepTrace) -> StepTrace {
    for event in &mut traced.trace.ops {
        if let Op::Create(Create { fill, .. }) = &mut event.ran_mut().op
            && let Fill::Random { .. } = fill
        {
            *fill = Fill::Data(None);
        }
    }
    traced
}

/// What was found of it where it was written out; panics where that is not what the whole model is.
fn written_out(what: &str, spec: &ModelSpec, options: &StepOptions, before: Option<Checked>) -> Option<Checked> {
    let (unrolled, checked) = step::unrolled(spec, options, before)?;
    let step = unrolled.clone();
    assert_same(what, unrolled, step::run(&Runtime::new(Device::Meta), spec, options).unwrap());
    Some(checked.with_step(Some(step)))
}

fn assert_same(what: &str, unrolled: StepTrace, whole: StepTrace) {
    let [unrolled, whole] = [unrolled, whole].map(without_values);
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
}

#[test]
fn what_is_written_out_is_the_whole_model() {
    let base = options(Profile::Fused, Precision::Bf16Mixed);
    let eager = options(Profile::HfEager, Precision::Fp32);
    let ways: Vec<(&str, StepOptions)> = vec![
        ("fused", base),
        ("hf-eager", eager),
        ("hf-sdpa", options(Profile::HfSdpa, Precision::Bf16Mixed)),
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
    let again = AtomicU64::new(0);
    // Every family in two ways, and each of the others in every third family. Two threads share them.
    let traced_whole = |half: usize| {
        let mut found: Vec<(&str, &str, bool)> = Vec::new();
        for (i, (name, spec)) in families.iter().enumerate().skip(half).step_by(2) {
            assert_eq!(step::parameters(spec).unwrap(), step::parameters_of_all(spec).unwrap(), "{name}");
            for (k, (way, options)) in ways.iter().enumerate() {
                let has_profile = options.profile != Profile::HfSdpa || spec.has_sdpa;
                if has_profile && (k < 2 || (i + k) % 3 == 0) {
                    let what = format!("{name} {way}");
                    let checked = written_out(&what, spec, options, None);
                    found.push((way, name, checked.is_none()));
                    // Other sizes of the batch need no other check, another step does.
                    let Some(checked) = checked.filter(|_| k == 0 || (i + k) % 9 == 0) else { continue };
                    // The second is written into the place of the first.
                    let larger = StepOptions { batch: 3, seq_len: 12, ..*options };
                    let checked = written_out(&what, spec, &larger, Some(checked)).unwrap();
                    again.fetch_add(checked.steps(), Ordering::Relaxed);
                    let other = StepOptions { grad_accum_steps: options.grad_accum_steps + 1, ..larger };
                    let checked = written_out(&what, spec, &other, Some(checked));
                    assert!(checked.is_none_or(|checked| checked.steps() == 0), "{what}");
                }
            }
        }
        found
    };
    let mut all = std::thread::scope(|scope| {
        let other = scope.spawn(|| traced_whole(1));
        let mut all = traced_whole(0);
        all.extend(other.join().unwrap());
        all
    });
    all.sort_unstable();
    let again = again.into_inner();
    assert!(again > 150 || families.len() < FAMILIES.len(), "{again}");
    // No family is traced whole that needs not be.
    for (way, _) in &ways {
        let of: Vec<_> = all.iter().filter(|(of, ..)| of == way).collect();
        let whole: Vec<&str> = of.iter().filter(|(.., whole)| *whole).map(|(_, name, _)| *name).collect();
        match *way {
            _ if families.len() < FAMILIES.len() => println!("{way}: traced whole: {whole:?}"),
            "fused" => assert_eq!(whole.join(" "), WHOLE),
            // The scales of all maps lie in one tensor.
            "fp8" => assert!(whole.len() > of.len() / 2, "{whole:?}"),
            _ => assert!(whole.len() < of.len() / 3, "{way}: {whole:?}"),
        }
    }
}

/// Stages of a pipeline, each with micro-batches between whose passes others run.
#[test]
fn a_stage_that_is_written_out_is_the_whole_stage() {
    let forward = |micro_batch| Pass::Forward { chunk: 0, micro_batch };
    let backward = |micro_batch| Pass::Backward { chunk: 0, micro_batch };
    let passes = [forward(0), forward(1), backward(0), forward(2), backward(1), backward(2)];
    let mut written = 0;
    for (i, (name, spec)) in deep(12).enumerate() {
        let n = spec.layers.len();
        let blocks = [0..n - 1, 1..n - 1, 1..n][i % 3].clone();
        let Ok(stage) = spec.stage(blocks, Ends::of(i % 3, 3)) else { continue };
        let precision = if i % 2 == 0 { Precision::Bf16MasterFp32Grads } else { Precision::Bf16Mixed };
        let options = StepOptions { grad_accum_steps: 3, ..options(Profile::Fused, precision) };
        let how = if i % 2 == 0 { Accumulation::InProducts } else { Accumulation::AtOnce };
        let stages = std::slice::from_ref(&stage);
        let rank = Rank { stages, ranks: 2, options: &options, passes: &passes, accumulation: how };
        let [unrolled, whole] = [rank.trace(), rank.trace_of_all()].map(Result::unwrap);
        // Random parameters of the one are numbered as those of a few blocks, of the other as those of all.
        written += usize::from(unrolled.trace.ops != whole.trace.ops);
        assert_same(name, unrolled, whole);
    }
    assert!(written > 100, "{written}");
}

/// Families that are traced whole with the fused profile: with an encoder or around patches, with blocks that run repeatedly or
/// share something by number, or whose first blocks leave something to others than the next.
const WHOLE: &str = "albert bart blenderbot blenderbot-small blt data2vec-audio deepseek_v4 falcon_mamba gemma3n_text gemma4 \
    m2m_100 mamba mamba2 marian mbart mllama mllama_text_model modernbert mpnet mt5 mvp pegasus plbart rwkv t5 \
    umt5 whisper xlnet zamba zamba2";
