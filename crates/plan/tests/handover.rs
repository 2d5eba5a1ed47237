//! Layouts to and from engines: every option that is written is one that the engine has, what is written is read back as
//! it was, and no text panics a reader. `handover/engines.py` holds what is written against the engines' own classes.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::handover::{Around, Engine, Export, Run, export, options, read, settled};
use napkin_plan::layout::{ContextParallel, Layout, Schedule, check};
use napkin_plan::model::Model;
use napkin_plan::presets::PRESETS;
use napkin_plan::sharding::{Gathering, Wrap};
use nn::offload::Offload;
use nn::optim::{Kind, OptimizerKind};
use nn::step::Precision;
use nn::{HeadLoss, Recompute};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::cell::Cell;
use tensor::rng::{Rng, Stream};
use units::{Bytes, Diagnostics, Seconds};

fn model(name: &str) -> Model {
    let (_, text) = PRESETS.iter().find(|(preset, _)| *preset == name).unwrap();
    Model::from_text(name, "config.json", text.as_bytes(), &[], None).unwrap()
}

fn run(model: &Model, precision: Precision) -> Run<'_> {
    Run {
        name: &model.name,
        model: &model.spec,
        seq_len: 4096,
        precision,
        optimizer: "adamw".parse().unwrap(),
        loss: HeadLoss::Whole,
        devices_per_node: 8,
        steps: None,
        memory: Some(Bytes(61 << 30)),
        step_time: Some(Seconds::new(4.1).unwrap()),
    }
}

/// Every option is in the table of its engine, with a value it takes.
fn known(engine: Engine, export: &Export) {
    for (name, value) in export.settings.iter() {
        let option = options::of(engine).get(name);
        assert!(option.is_some(), "{engine} has no option {name}");
        assert!(option.unwrap().takes(value), "{engine}: {name} = {value:?}");
    }
}

fn codes(problems: &Diagnostics) -> Vec<&'static str> {
    let mut codes: Vec<_> = problems.iter().map(|problem| problem.code).collect();
    codes.sort_unstable();
    codes
}

fn degree() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1u64, 1, 2, 4, 8])
}

/// Mostly what engines do unasked.
fn gathering() -> impl Strategy<Value = Gathering> {
    let seldom = || prop::bool::weighted(0.1);
    (seldom(), seldom(), any::<bool>(), seldom()).prop_map(|(whole, alone, reshard, adds)| Gathering {
        wrap: if whole { Wrap::Model } else { Wrap::Block },
        prefetch: !alone,
        reshard,
        sync: !adds,
    })
}

fn layouts(moe: bool) -> impl Strategy<Value = Layout> {
    let data = (degree(), degree(), any::<bool>(), degree(), any::<bool>(), degree(), degree());
    let schedule = (degree(), 1u64..4, prop::sample::select(&Schedule::ALL[..]));
    let states = (0u8..4, prop::option::of(degree()), gathering(), 1u64..3, 1u64..9);
    let rest = (0usize..3, any::<[bool; 2]>(), any::<prop::sample::Index>());
    (data, schedule, states, rest).prop_map(
        move |(
            (dp, tp, sp, cp, ring, ep, etp),
            (pp, chunks, schedule),
            (zero, shard, gathering, micro, steps),
            rest,
        )| {
            let (recompute, [optimizer, uneven], index) = rest;
            let virtual_stages = if schedule == Schedule::Interleaved && pp > 1 { chunks } else { 1 };
            // Thirty-two blocks, of which one moves to another stage.
            let stages = (pp * virtual_stages) as usize;
            let mut blocks = Layout { pp, virtual_stages, ..Layout::default() }.blocks_of(32);
            let to = index.index(stages);
            if blocks[0] > 1 {
                blocks[0] -= 1;
                blocks[to] += 1;
            }
            Layout {
                dp,
                tp,
                sp: sp && tp > 1,
                cp,
                context: if ring { ContextParallel::Ring } else { ContextParallel::AllToAll },
                ep: if moe { ep } else { 1 },
                etp: if moe { etp } else { 1 },
                imbalance: 1.0,
                pp,
                virtual_stages,
                schedule,
                blocks: (uneven && pp > 1).then_some(blocks),
                zero,
                shard,
                gathering,
                micro_batch: micro,
                grad_accum: steps * pp,
                recompute: [Recompute::None, Recompute::Selective, Recompute::Full][recompute],
                offload: Offload { activations: false, optimizer },
            }
        },
    )
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::default() }
}

/// Exports what can be exported, holds it against the tables, and reads it back. Tells which engines took it.
fn round(model: &Model, layout: &Layout, precision: Precision) -> Vec<Engine> {
    let mut took = Vec::new();
    for engine in Engine::ALL {
        let run = Run { loss: engine.usual_loss(), ..run(model, precision) };
        let Ok(export) = export(engine, layout, &run) else { continue };
        known(engine, &export);
        took.push(engine);
        let around = Around { file: "run", model: &model.spec, devices: Some(layout.devices()) };
        let taken = read(engine, &export.text, &around).unwrap_or_else(|e| panic!("{engine}\n{}\n{e}", export.text));
        let mut expected = settled(layout, &model.spec);
        // What a program decides is in no file.
        let mut recipe = precision;
        if engine == Engine::DeepSpeed {
            expected.recompute = Recompute::None;
        }
        if engine == Engine::Fsdp {
            (expected.micro_batch, expected.grad_accum) = (1, 1);
            expected.gathering.sync = expected.zero < 2;
            recipe = if precision == Precision::Bf16Pure { Precision::Fp32 } else { precision };
        }
        assert_eq!(taken.layout, expected, "{engine}\n{}", export.text);
        assert_eq!(taken.precision, Some(recipe), "{engine}");
        assert!(taken.seq_len.is_none_or(|len| len == 4096));
        let unread = taken.warnings.iter().filter(|w| matches!(w.code, "T0496" | "T0497" | "T0498"));
        assert_eq!(unread.count(), 0, "{engine}\n{}\n{:?}", export.text, taken.warnings);
    }
    took
}

#[test]
fn layouts_go_to_engines_and_come_back() {
    let models = [model("llama-3.1-8b"), model("mixtral-8x7b"), model("deepseek-v2-lite")];
    for model in &models {
        let moe = model.name != "llama-3.1-8b";
        let config = cases(6000);
        let taken: [Cell<u32>; 5] = [const { Cell::new(0) }; 5];
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let both = (layouts(moe), prop::sample::select(&Precision::ALL[..]));
        runner
            .run(&both, |(layout, precision)| {
                if check(&layout, &model.spec, 4096, None).is_ok() {
                    for engine in round(model, &layout, precision) {
                        let count = &taken[engine as usize];
                        count.set(count.get() + 1);
                    }
                }
                Ok(())
            })
            .unwrap();
        // Enough of them on every engine that has the model.
        let least: [u32; 5] = match model.name.as_str() {
            "llama-3.1-8b" => [200, 50, 50, 10, 50],
            "mixtral-8x7b" => [200, 0, 50, 1, 0],
            _ => [200, 10, 50, 1, 0],
        };
        let counts = taken.map(Cell::into_inner);
        assert!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{} {counts:?}", model.name);
    }
}

/// An update or a loss that was planned is in the file, or in what the program is asked for, or refused.
#[test]
fn updates_and_losses_are_not_lost() {
    let model = model("llama-3.1-8b");
    let layout = |engine| match engine {
        Engine::Fsdp | Engine::Torchtitan => Layout { dp: 8, zero: 3, ..Layout::default() },
        _ => Layout { dp: 8, ..Layout::default() },
    };
    let mut said = [0; 5];
    for engine in Engine::ALL {
        let plain = Run { loss: engine.usual_loss(), ..run(&model, engine.usual_precision()) };
        let layout = layout(engine);
        let around = Around { file: "run", model: &model.spec, devices: Some(8) };
        for kind in nn::optim::Kind::ALL {
            for form in ["", "-foreach", "-forloop"] {
                let Ok(optimizer) = format!("{}{form}", kind.name()).parse() else { continue };
                match export(engine, &layout, &Run { optimizer, ..plain }) {
                    Err(problems) => assert_eq!(codes(&problems), ["T0490"], "{engine} {optimizer}: {problems}"),
                    Ok(export) => {
                        known(engine, &export);
                        let taken = read(engine, &export.text, &around).unwrap();
                        let same = |read: OptimizerKind| {
                            read == optimizer || (read.kind, optimizer.kind) == (Kind::AdamW, Kind::Adam)
                        };
                        let adam = matches!(optimizer.kind, Kind::Adam | Kind::AdamW);
                        let asked = export.warnings.iter().any(|w| w.message.ends_with(&optimizer.to_string()));
                        assert!(taken.optimizer.map_or(asked || adam, same), "{engine} {optimizer}\n{}", export.text);
                        said[engine as usize] += 1;
                    }
                }
            }
        }
        for loss in [HeadLoss::Whole, HeadLoss::Parallel, HeadLoss::Fused, HeadLoss::Chunked(8)] {
            match export(engine, &layout, &Run { loss, ..plain }) {
                Err(problems) => assert_eq!(codes(&problems), ["T0490"], "{engine} {loss}: {problems}"),
                Ok(export) => {
                    known(engine, &export);
                    let taken = read(engine, &export.text, &around).unwrap();
                    let asked = export.warnings.iter().any(|w| w.message.ends_with(&format!("loss {loss}")));
                    let usual = asked || loss == HeadLoss::Whole;
                    assert!(taken.loss.map_or(usual, |read| read == loss), "{engine} {loss}\n{}", export.text);
                }
            }
        }
    }
    assert!(said.iter().all(|count| *count >= 3), "{said:?}");
}

/// A change of the layout, in words that a table can hold.
fn with(change: impl FnOnce(&mut Layout)) -> Layout {
    let mut layout = Layout { dp: 8, zero: 1, grad_accum: 8, ..Layout::default() };
    change(&mut layout);
    layout
}

#[test]
fn what_an_engine_cannot_do_is_refused_all_at_once() {
    use Engine::{DeepSpeed, Fsdp, Megatron, Nanotron, Torchtitan};
    use Precision::{Bf16MasterFp32Grads as Master, Bf16Mixed as Mixed, Bf16Pure, Fp8, Fp32};
    let llama = "llama-3.1-8b";
    let rows: Vec<(Engine, &str, Layout, Precision, &[&str])> = vec![
        (Megatron, llama, with(|l| (l.pp, l.schedule) = (4, Schedule::GPipe)), Master, &["schedule gpipe"]),
        (
            Megatron,
            llama,
            with(|l| (l.pp, l.schedule) = (4, Schedule::ZeroBubble)),
            Mixed,
            &["zero-bubble", "bf16-mixed"],
        ),
        (Megatron, llama, with(|l| (l.zero, l.gathering.reshard) = (3, false)), Master, &["keeps gathered"]),
        (Megatron, llama, with(|l| (l.zero, l.offload.optimizer) = (0, true)), Master, &["host with zero 0"]),
        (Megatron, "mixtral-8x7b", with(|l| (l.tp, l.etp) = (2, 2)), Master, &["without sp"]),
        (Megatron, "gemma-2-9b", with(|_| {}), Master, &["scaled", "capped", "norms do not stand", "differs between"]),
        (Megatron, "falcon-7b", with(|_| {}), Master, &["norms do not stand"]),
        (Megatron, llama, with(|l| l.dp = 12), Master, &["nodes of 8"]),
        (Torchtitan, llama, with(|l| l.zero = 2), Master, &["zero 2", "bf16-master-fp32-grads"]),
        (Torchtitan, llama, with(|l| (l.zero, l.tp) = (3, 2)), Mixed, &["tp without sp"]),
        (Torchtitan, llama, with(|l| (l.zero, l.tp, l.sp) = (0, 2, true)), Mixed, &["zero 0 with tp"]),
        (Torchtitan, llama, with(|l| (l.zero, l.recompute) = (3, Recompute::Selective)), Mixed, &["attention core"]),
        (Torchtitan, "qwen3-8b", with(|l| (l.zero, l.pp) = (3, 2)), Mixed, &["stages"]),
        (Torchtitan, "gpt2", with(|l| l.zero = 3), Mixed, &["family `gpt2`"]),
        (DeepSpeed, llama, with(|l| (l.pp, l.tp, l.sp) = (2, 2, true)), Fp8, &["pp 2", "tp with sp", "fp8"]),
        (DeepSpeed, llama, with(|l| l.cp = 2), Fp32, &["a ring"]),
        (DeepSpeed, llama, with(|l| l.shard = Some(4)), Fp32, &["some of the replicas"]),
        (DeepSpeed, llama, with(|l| l.zero = 0), Bf16Pure, &["bf16-pure with zero 0"]),
        (Megatron, llama, with(|l| (l.zero, l.gathering.wrap) = (3, Wrap::Model)), Master, &["one unit"]),
        (Torchtitan, llama, with(|l| (l.zero, l.gathering.sync) = (3, false)), Mixed, &["added up whole"]),
        (DeepSpeed, llama, with(|l| (l.zero, l.gathering.sync) = (2, false)), Fp32, &["added up whole"]),
        (Fsdp, llama, with(|l| (l.zero, l.gathering.prefetch) = (3, false)), Mixed, &["without fetching ahead"]),
        (Fsdp, llama, with(|l| l.pp = 2), Master, &["pp 2", "zero 1", "bf16-master-fp32-grads"]),
        (Fsdp, llama, with(|l| (l.zero, l.tp, l.sp) = (3, 2, true)), Mixed, &["tp with sp"]),
        (Fsdp, "mixtral-8x7b", with(|l| (l.zero, l.ep) = (3, 2)), Mixed, &["ep 2"]),
        (Nanotron, llama, with(|l| l.zero = 2), Mixed, &["zero 2", "bf16-mixed"]),
        (
            Nanotron,
            llama,
            with(|l| (l.pp, l.virtual_stages, l.schedule) = (4, 2, Schedule::Interleaved)),
            Master,
            &["schedule interleaved", "virtual stages"],
        ),
        (Nanotron, "mixtral-8x7b", with(|_| {}), Master, &["experts"]),
        (Nanotron, "gpt2", with(|_| {}), Master, &["RMSNorm", "SwiGLU", "biases", "rotary"]),
        (Nanotron, llama, with(|l| l.offload.optimizer = true), Master, &["on the host"]),
    ];
    for (engine, name, layout, precision, words) in rows {
        let model = model(name);
        let run = Run { seq_len: 1024, ..run(&model, precision) };
        let problems = export(engine, &layout, &run).expect_err(&format!("{engine} {name} {layout}"));
        let text = problems.to_string();
        for word in words {
            assert!(text.contains(word), "{engine} {name} {layout}: no `{word}` in\n{text}");
        }
        assert!(problems.iter().all(|p| p.is_error() && p.code.starts_with("T049") && !p.help.is_empty()), "{text}");
    }
}

/// Real files with bytes, words and numbers changed.
#[test]
fn changed_files_are_answered() {
    const WORDS: [&str; 12] =
        ["0", "-1", "18446744073709551615", "99999999999999999999", "1e300", "\"", "$X", "(", "\\", "[", "=", "\u{e9}"];
    let model = model("llama-3.1-8b");
    let layouts = [
        with(|l| (l.pp, l.tp, l.sp, l.cp) = (2, 2, true, 2)),
        with(|l| (l.zero, l.pp, l.virtual_stages, l.schedule) = (3, 4, 2, Schedule::Interleaved)),
        with(|l| (l.zero, l.offload.optimizer) = (3, true)),
        with(|l| (l.pp, l.tp, l.sp) = (2, 2, true)),
    ];
    let rng = Rng::new(5, Stream::DataOrder);
    let mut next = 0;
    let mut below = |end: usize| {
        next += 1;
        (rng.uniform_f64(0, next) * end as f64) as usize
    };
    let mut answers = [[0; 2]; 5];
    for (engine, layout) in
        Engine::ALL.into_iter().flat_map(|engine| layouts.iter().map(move |layout| (engine, layout)))
    {
        for precision in [Precision::Bf16MasterFp32Grads, Precision::Bf16Mixed] {
            let run = Run { loss: engine.usual_loss(), ..run(&model, precision) };
            let Ok(export) = export(engine, layout, &run) else { continue };
            for _ in 0..80 {
                let mut text = export.text.clone().into_bytes();
                for _ in 0..=below(3) {
                    let at = below(text.len().max(1)).min(text.len());
                    let to = (at + below(8)).min(text.len());
                    let word = WORDS[below(WORDS.len())];
                    text.splice(at..to, word.bytes());
                }
                let text = String::from_utf8_lossy(&text);
                for devices in [None, Some(16), Some(u64::MAX)] {
                    let around = Around { file: "run", model: &model.spec, devices };
                    match read(engine, &text, &around) {
                        Ok(taken) => {
                            answers[engine as usize][0] += 1;
                            let _ = check(&taken.layout, &model.spec, taken.seq_len.unwrap_or(4096), devices);
                        }
                        Err(problems) => {
                            answers[engine as usize][1] += 1;
                            assert!(problems.has_errors() && !problems.to_string().is_empty());
                        }
                    }
                }
            }
        }
    }
    assert!(answers.iter().flatten().all(|count| *count > 0), "{answers:?}");
}

#[test]
fn an_illegal_layout_is_not_handed_over() {
    let model = model("llama-3.1-8b");
    for engine in Engine::ALL {
        for layout in [with(|l| l.dp = 0), with(|l| l.tp = 3), with(|l| l.pp = u64::MAX)] {
            let problems = export(engine, &layout, &run(&model, Precision::Bf16Mixed)).unwrap_err();
            assert!(problems.iter().any(|problem| problem.code.starts_with("T048")), "{engine}: {problems}");
        }
    }
}

#[test]
fn scripts_of_megatron_are_read() {
    // The forms of the examples that come with Megatron-LM: variables, lists, comments, one option commented out.
    let script = "#!/bin/bash\nGPUS_PER_NODE=8\nNUM_NODES=${SLURM_NNODES:-16}\nTP=8\n\
        DISTRIBUTED_ARGS=(\n    --nproc_per_node $GPUS_PER_NODE\n    --nnodes $NUM_NODES\n    --master_port ${PORT:-6000}\n)\n\
        ARGS=(\n    --num-layers 126\n    --hidden-size 16384\n    --group-query-attention\n    --num-query-groups 8\n    --seq-length 8192\n\
        # --context-parallel-size 2\n    --tensor-model-parallel-size $TP\n    --pipeline-model-parallel-size ${PP:-8}\n    --sequence-parallel\n\
        --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split\n    --num-layers-per-virtual-pipeline-stage 4\n\
        --micro-batch-size 1 --global-batch-size=256 --bf16 --use-distributed-optimizer --recompute-activations\n    \"--lr 8e-5\"\n)\n\
        torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${ARGS[@]} --tp-comm-overlap --moe-grouped-gem --log-interval 1\n";
    let model = model("llama-3.1-405b");
    let around = Around { file: "run.sh", model: &model.spec, devices: None };
    let taken = read(Engine::Megatron, script, &around).unwrap();
    let mut blocks = vec![4; 32];
    (blocks[0], blocks[31]) = (3, 3);
    let expected = Layout {
        dp: 2,
        tp: 8,
        sp: true,
        pp: 8,
        virtual_stages: 4,
        schedule: Schedule::Interleaved,
        blocks: Some(blocks),
        zero: 1,
        grad_accum: 128,
        recompute: Recompute::Selective,
        ..Layout::default()
    };
    assert_eq!(taken.layout, expected);
    assert_eq!((taken.seq_len, taken.precision), (Some(8192), Some(Precision::Bf16MasterFp32Grads)));
    check(&taken.layout, &model.spec, 8192, Some(128)).unwrap();
    let codes: Vec<_> = taken.warnings.iter().map(|w| w.code).collect();
    assert_eq!(codes, ["T0497", "T0498"]);
    assert!(taken.warnings[0].message.contains("--tp-comm-overlap"));
    assert_eq!(taken.warnings[1].help, ["`--moe-grouped-gemm`"]);
}

#[test]
fn files_of_torchtitan_are_read() {
    let text = "[model]\nname = \"llama3\"\nflavor = \"405B\"\nconverters = \"float8\"\n[optimizer]\nlr = 8e-5\n[training]\nbatch_size = 2\n\
        seq_len = 8192\nmax_norm = 1.0\nsteps = 3000\n[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 8\n\
        enable_async_tensor_parallel = true\n[activation_checkpoint]\nmode = 'full'\n";
    let model = model("llama-3.1-405b");
    let around = Around { file: "run.toml", model: &model.spec, devices: Some(128) };
    let taken = read(Engine::Torchtitan, text, &around).unwrap();
    let expected =
        Layout { dp: 16, tp: 8, sp: true, zero: 3, micro_batch: 2, recompute: Recompute::Full, ..Layout::default() };
    assert_eq!(taken.layout, expected);
    assert_eq!((taken.seq_len, taken.precision), (Some(8192), Some(Precision::Fp8)));
    assert_eq!(taken.warnings.iter().map(|w| w.code).collect::<Vec<_>>(), ["T0497"]);
    let odd = read(Engine::Torchtitan, &text.replace("= -1", "= 4"), &around).unwrap_err();
    assert_eq!(codes(&odd), ["T0496"]);
    let open = read(Engine::Torchtitan, text, &Around { devices: None, ..around }).unwrap_err();
    assert_eq!(codes(&open), ["T0495"]);
    // Its own split of 126 blocks over 8 stages, and a pipeline that is filled twice.
    let text = "training = { local_batch_size = 8, global_batch_size = 32, dtype = \"bfloat16\" }\n[parallelism]\n\
        data_parallel_shard_degree = 2\npipeline_parallel_degree = 4\npipeline_parallel_schedule = \"Interleaved1F1B\"\n\
        pipeline_parallel_microbatch_size = 2\n[activation_checkpoint]\nmode = \"none\"\n";
    let taken = read(Engine::Torchtitan, text, &Around { devices: None, ..around }).unwrap();
    let expected = Layout {
        dp: 2,
        pp: 4,
        virtual_stages: 2,
        schedule: Schedule::Interleaved,
        blocks: Some(vec![15, 16, 16, 16, 16, 16, 16, 15]),
        zero: 3,
        gathering: Gathering { reshard: false, ..Gathering::USUAL },
        micro_batch: 2,
        grad_accum: 8,
        ..Layout::default()
    };
    assert_eq!(taken.layout, expected);
    assert_eq!(taken.warnings.iter().map(|w| w.code).collect::<Vec<_>>(), ["T0499"]);
}

#[test]
fn files_of_deepspeed_are_read() {
    // As the integration of transformers writes them.
    let text = r#"{
        "bf16": {"enabled": "auto"}, "fp16": {"enabled": true, "loss_scale": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
            "overlap_comm": true, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": "auto", "sub_group_size": 1e9},
        "gradient_accumulation_steps": 4, "gradient_clipping": "auto", "train_batch_size": 64, "tensorboard": {"enabled": false},
        "tensor_parallel": {"autotp_size": 2}, "mystery": null, "stepz_per_print": 10}"#;
    let model = model("llama-3.1-8b");
    let around = Around { file: "ds.json", model: &model.spec, devices: Some(16) };
    let taken = read(Engine::DeepSpeed, text, &around).unwrap();
    let offload = Offload { activations: false, optimizer: true };
    let expected = Layout { dp: 8, tp: 2, zero: 3, micro_batch: 2, grad_accum: 4, offload, ..Layout::default() };
    assert_eq!(taken.layout, expected);
    assert_eq!(taken.precision, Some(Precision::Fp16Mixed));
    let codes: Vec<_> = taken.warnings.iter().map(|w| w.code).collect();
    assert_eq!(codes, ["T0499", "T0499", "T0497", "T0498"]);
    assert!(taken.warnings[2].message.contains("sub_group_size"));
    assert_eq!(taken.warnings[3].help, ["`steps_per_print`"]);
}

#[test]
fn files_of_nanotron_and_accelerate_are_read() {
    let model = model("llama-3.1-8b");
    let around = Around { file: "run.yaml", model: &model.spec, devices: None };
    let text = "general: {project: a, seed: 42}\nmodel:\n  dtype: bfloat16\n  model_config:\n    hidden_size: 4096\n    num_hidden_layers: 24\n\
        optimizer:\n  accumulate_grad_in_fp32: true\n  clip_grad: 1.0\n  zero_stage: 1\nparallelism:\n  dp: 8\n  expert_parallel_size: 1\n  pp: 4\n\
        \x20 pp_engine: 1f1b\n  tp: 2\n  tp_linear_async_communication: true\n  tp_mode: reduce_scatter # sequence parallel\ntokens:\n\
        \x20 batch_accumulation_per_replica: 8\n  micro_batch_size: 2\n  sequence_length: 4_096\ndata_stages:\n- name: a\n  data: {seed: 1}\n\
        profiler: null\n";
    let taken = read(Engine::Nanotron, text, &around).unwrap();
    let expected =
        Layout { dp: 8, tp: 2, sp: true, pp: 4, zero: 1, micro_batch: 2, grad_accum: 8, ..Layout::default() };
    assert_eq!(taken.layout, expected);
    assert_eq!((taken.seq_len, taken.precision), (Some(4096), Some(Precision::Bf16MasterFp32Grads)));
    // Even stages are a guess, and the model is another.
    assert_eq!(taken.warnings.iter().map(|w| w.code).collect::<Vec<_>>(), ["T0499", "T0496"]);

    // What `accelerate config` writes for FSDP1, and for FSDP2.
    let text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\ndowncast_bf16: 'no'\nfsdp_config:\n\
        \x20 fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_backward_prefetch: BACKWARD_PRE\n  fsdp_cpu_ram_efficient_loading: true\n\
        \x20 fsdp_forward_prefetch: true\n  fsdp_offload_params: false\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_use_orig_params: true\n\
        machine_rank: 0\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\n";
    let taken = read(Engine::Fsdp, text, &around).unwrap();
    assert_eq!(
        taken.layout,
        Layout {
            dp: 16,
            zero: 3,
            gathering: Gathering { reshard: false, sync: false, ..Gathering::USUAL },
            ..Layout::default()
        }
    );
    assert_eq!(taken.precision, Some(Precision::Bf16Mixed));
    let text =
        text.replace("fsdp_sharding_strategy: SHARD_GRAD_OP", "fsdp_version: 2\n  fsdp_activation_checkpointing: true");
    let taken = read(Engine::Fsdp, &text, &around).unwrap();
    let gathering = Gathering { sync: false, ..Gathering::USUAL };
    let expected = Layout { dp: 16, zero: 3, gathering, recompute: Recompute::Full, ..Layout::default() };
    assert_eq!(taken.layout, expected);
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let model = model("llama-3.1-8b");
    let around = Around { file: "run", model: &model.spec, devices: Some(8) };
    let rows: &[(Engine, &str, &[&str])] = &[
        (Engine::Megatron, "--micro-batch-size 0", &["T0494"]),
        (Engine::Megatron, "", &["T0494"]),
        (Engine::Megatron, "echo --made-up 3", &["T0494"]),
        (Engine::Megatron, "--bf16 'x", &["T0494"]),
        (Engine::Megatron, "--tensor-model-parallel-size 3 --micro-batch-size 1", &["T0496"]),
        (Engine::Megatron, "--tensor-model-parallel-size $TP --micro-batch-size 1", &["T0494"]),
        (
            Engine::Megatron,
            "--tensor-model-parallel-size 99999999999999999999 --micro-batch-size -4",
            &["T0494", "T0494"],
        ),
        (Engine::Megatron, "--micro-batch-size 1 --global-batch-size 12", &["T0496"]),
        (Engine::Megatron, "--micro-batch-size 1 --bf16 --fp16", &["T0496"]),
        (Engine::Megatron, "--micro-batch-size 1 --sequence-parallel=yes", &["T0494"]),
        (
            Engine::Megatron,
            "--micro-batch-size 1 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            &["T0496"],
        ),
        (
            Engine::Megatron,
            "--micro-batch-size 1 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 \
             --num-virtual-stages-per-pipeline-rank 4",
            &["T0496"],
        ),
        (
            Engine::Megatron,
            "--micro-batch-size 1 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'E|x'",
            &["T0494"],
        ),
        (Engine::Megatron, "--micro-batch-size 1 --num-virtual-stages-per-pipeline-rank 4000000000000", &["T0496"]),
        (Engine::Megatron, "--micro-batch-size 1 --use-torch-fsdp2 --use-megatron-fsdp", &["T0496"]),
        (Engine::Torchtitan, "[parallelism]\ntensor_parallel_degree = 0", &["T0494"]),
        (Engine::Torchtitan, "[parallelism]\ntensor_parallel_degree = \"two\"", &["T0494"]),
        (Engine::Torchtitan, "[parallelism", &["T0494"]),
        (Engine::Torchtitan, "[parallelism]\ndata_parallel_shard_degree = 4", &["T0496"]),
        (
            Engine::Torchtitan,
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"zigzag\"",
            &["T0494"],
        ),
        (
            Engine::Torchtitan,
            "parallelism = { pipeline_parallel_degree = 2, module_fqns_per_model_part = [[\"layers.1\"]] }",
            &["T0494"],
        ),
        (Engine::DeepSpeed, "{", &["T0201"]),
        (Engine::DeepSpeed, "[]", &["T0494"]),
        (Engine::DeepSpeed, "{}", &["T0495"]),
        (Engine::DeepSpeed, r#"{"train_batch_size": 12}"#, &["T0496"]),
        (Engine::DeepSpeed, r#"{"train_batch_size": 8, "zero_optimization": {"stage": 4}}"#, &["T0494"]),
        (
            Engine::DeepSpeed,
            r#"{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 3}"#,
            &["T0496"],
        ),
        (
            Engine::DeepSpeed,
            r#"{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}"#,
            &["T0496"],
        ),
        (Engine::Fsdp, "distributed_type: DEEPSPEED\nnum_processes: 8", &["T0496"]),
        (Engine::Fsdp, "num_processes: 6\nparallelism_config: {parallelism_config_tp_size: 4}", &["T0496"]),
        (
            Engine::Fsdp,
            "num_processes: 8\nparallelism_config:\n  parallelism_config_dp_shard_size: 4",
            &["T0496", "T0496"],
        ),
        (Engine::Fsdp, "a: &a {}\nb: *a", &["T0494"]),
        (Engine::Fsdp, "fsdp_config: [", &["T0494"]),
        (Engine::Nanotron, "parallelism: {dp: 0, tp: two, pp: 1}", &["T0494", "T0494"]),
        (Engine::Nanotron, "parallelism: {dp: 8, expert_parallel_size: 2}", &["T0490"]),
        (Engine::Nanotron, "parallelism: {dp: 4}", &["T0496"]),
        (Engine::Nanotron, "optimizer: {zero_stage: 2}\nparallelism: {dp: 8}", &["T0494"]),
        (Engine::Nanotron, "parallelism:\n\tdp: 8", &["T0494"]),
    ];
    for (engine, text, expected) in rows {
        let problems = read(*engine, text, &around).expect_err(text);
        let found = codes(&problems);
        let found: Vec<&str> = found
            .iter()
            .map(|code| if code.starts_with("T02") || code.starts_with("T01") { "T0201" } else { code })
            .collect();
        assert_eq!(found, *expected, "{engine} {text}\n{problems}");
    }
    let long = "x ".repeat(1 << 20);
    assert_eq!(codes(&read(Engine::Megatron, &long, &around).unwrap_err()), ["T0494"]);
}

/// A file that says nothing is no layout.
#[test]
fn a_file_without_options_is_refused() {
    let model = model("llama-3.1-8b");
    let around = Around { file: "run.yaml", model: &model.spec, devices: Some(8) };
    for text in ["", "\n# nothing\n", "7", "[1, 2]", "words", "---\n- a: 1\n"] {
        for engine in [Engine::Fsdp, Engine::Nanotron] {
            let refused = read(engine, text, &around).unwrap_err();
            assert!(codes(&refused).contains(&"T0494"), "{engine} {text:?}: {refused}");
        }
    }
}
