//! Blocks of a model over stages of a pipeline.

use super::*;
use napkin_nn::pipeline::{Pass, PipelineRank};
use napkin_nn::spec::Ends;

/// The passes of rank `rank` of `p`: one forward, one backward, once as many micro-batches are on their way as there are
/// ranks behind it.
fn one_forward_one_backward(p: usize, rank: usize, micro_batches: usize) -> Vec<Pass> {
    let warm_up = (p - rank - 1).min(micro_batches);
    let forward = |micro_batch| Pass::Forward { chunk: 0, micro_batch };
    let mut passes: Vec<Pass> = (0..warm_up).map(forward).collect();
    for micro_batch in 0..micro_batches {
        passes.extend((warm_up + micro_batch < micro_batches).then(|| forward(warm_up + micro_batch)));
        passes.push(Pass::Backward { chunk: 0, micro_batch });
    }
    passes
}

/// Blocks of a model over two stages, as even as can be.
fn stages(spec: &ModelSpec, rank: u64) -> Result<ModelSpec, Vec<String>> {
    let (all, half) = (spec.layers.len(), spec.layers.len().div_ceil(2));
    spec.stage(if rank == 0 { 0..half } else { half..all }, Ends::of(rank as usize, 2))
}

#[test]
fn blocks_over_two_stages() {
    let mut names = Vec::new();
    for (name, _) in FAMILIES {
        for ranks in [Ranks::ALONE, Ranks { tp: 2, sp: true, ..Ranks::ALONE }] {
            let spec = load(name);
            if spec.layers.len() < 2 || spec.share(ranks).is_err() || stages(&spec, 0).is_err() {
                continue;
            }
            for profile in [Profile::Fused, Profile::HfEager] {
                pipeline_of_two(name, ranks, profile);
            }
            names.push(*name);
        }
    }
    println!("{names:?}");
    assert!(names.len() >= 100, "{}", names.len());
}

fn pipeline_of_two(name: &str, ranks: Ranks, profile: Profile) {
    const MICRO_BATCHES: usize = BATCH as usize;
    let spec = &load(name);
    let params = whole(spec);
    let (loss, expected, _) = gradients(spec, profile, (BATCH, 0), None, |param| params[&param.name].1.clone());
    // Names of a table that is also the head.
    let tied: BTreeMap<String, String> = step::parameters(spec)
        .unwrap()
        .into_iter()
        .flat_map(|p| p.tied.into_iter().map(move |other| (other, p.name.clone())).collect::<Vec<_>>())
        .collect();
    let of_whole = |name: &str| tied.get(name).cloned().unwrap_or_else(|| name.to_owned());
    let options = StepOptions {
        batch: 1,
        grad_accum_steps: BATCH,
        precision: Precision::Fp32,
        autocast: CastLists::Cpu,
        ..step_options(profile)
    };
    let threads = Threads::in_orders(&[&[(Axis::Tp, ranks.tp), (Axis::Pp, 2)], &[(Axis::Ep, 1)]]);
    let results = thread::scope(|scope| {
        let run = |rank: u64| {
            let (threads, params, of_whole) = (&threads, &params, &of_whole);
            scope.spawn(move || {
                let (tp, pp) = (rank % ranks.tp, rank / ranks.tp);
                let spec = &load(name);
                let own = stages(&spec.share(ranks).unwrap(), pp).unwrap();
                let runtime = Runtime::with_seed(Device::Cpu, 7);
                runtime.set_recording(false);
                runtime.set_peers(Rc::new(threads.peers(rank)));
                let mut pipeline = PipelineRank::new(&runtime, &[own], 2, &options).unwrap();
                runtime.no_grad(|| {
                    for param in pipeline.stages()[0].model().params() {
                        let name = of_whole(&param.name);
                        let values = part(spec, &name, &params[&name], &param.shape, tp);
                        let values = runtime.tensor(&values, &param.shape, DType::F32).unwrap();
                        param.tensor.detach().copy_(&values).unwrap();
                    }
                });
                let mut losses = 0.0;
                for pass in one_forward_one_backward(2, pp as usize, MICRO_BATCHES) {
                    let (Pass::Forward { micro_batch, .. } | Pass::Backward { micro_batch, .. }) = pass;
                    let first = micro_batch as u64 * SEQ_LEN;
                    let ids: Vec<f64> = (first..first + SEQ_LEN).map(|i| ((i * i + 3 * i) % 13) as f64).collect();
                    let tokens = runtime.input(&ids, &[1, SEQ_LEN], DType::I64).unwrap();
                    let next: Vec<f64> = ids[1..].iter().copied().chain([-100.0]).collect();
                    let targets = runtime.input(&next, &[1, SEQ_LEN], DType::I64).unwrap();
                    let shifts = profile.is_hf() || spec.task != Task::NextToken;
                    pipeline.set_batch(tokens.clone(), if shifts { tokens } else { targets });
                    if let Some(loss) = pipeline.pass(pass, 1).unwrap() {
                        losses += loss.item().unwrap() / MICRO_BATCHES as f64;
                    }
                }
                pipeline.add_up_tables().unwrap();
                pipeline.stages()[0].add_up_gradients().unwrap();
                let params = pipeline.stages()[0].model().params();
                let of = |t: &Tensor| t.grad().map(|g| (g.shape().to_vec(), g.to_vec().unwrap()));
                let gradients: Tensors = params.iter().filter_map(|p| Some((p.name.clone(), of(&p.tensor)?))).collect();
                (losses, gradients)
            })
        };
        let all: Vec<_> = (0..2 * ranks.tp).map(run).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let what = format!("{name} {profile} {ranks:?} pp 2");
    let got = results[ranks.tp as usize].0;
    assert!((got - loss).abs() < 1e-5 * loss.abs(), "{what}: loss {got}, of the whole {loss}");
    let floor = 1e-3 * expected.values().map(|(_, g)| largest(g)).fold(0.0, f64::max);
    let mut seen = std::collections::BTreeSet::new();
    for (rank, (_, gradients)) in results.iter().enumerate() {
        for (param, (shape, got)) in gradients {
            let name = of_whole(param);
            let whole = &expected[&name];
            // Experts that all ranks have whole have seen the rows of a rank's own positions.
            if ranks.tp > 1 && name.contains("expert") {
                seen.insert(name);
                continue;
            }
            let want = part(spec, &name, whole, shape, rank as u64 % ranks.tp);
            let most = want.iter().zip(got).fold(0f64, |m, (w, g)| m.max((g - w).abs()));
            let scale = name.strip_suffix(".bias").and_then(|module| expected.get(&format!("{module}.weight")));
            let scale = scale.map_or(0.0, |(_, g)| largest(g)).max(largest(&whole.1)).max(floor);
            assert!(most <= 3e-5 * scale, "{what}: gradient of {param} on rank {rank} is off by {:.1e}", most / scale);
            seen.insert(name);
        }
    }
    assert!(expected.keys().all(|name| seen.contains(name)), "{what}: every parameter is in a stage");
}
