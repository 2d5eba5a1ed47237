//! A prediction against steps that are made, with a witness of the heap: every byte has a name.
//!
//! In a binary of its own and one test, for the heap that is counted is that of the whole process.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_train::probe::heap;
use napkin_train::reconcile::{Record, ceilings, measure};
use napkin_train::run::{Predicted, Settings, predict, predict_whole};
use nn::Recompute;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::step::{Precision, StepOptions, Until};
use plan::model::Model;
use plan::reconcile::{Gaps, Request};
use tensor::CastLists;
use tensor::cpu::Threads;

#[global_allocator]
static HEAP: heap::Counting<std::alloc::System> = heap::Counting(std::alloc::System);

const GPT2: &str =
    r#"{"model_type": "gpt2", "n_layer": 3, "n_embd": 256, "n_head": 4, "n_positions": 128, "vocab_size": 4096}"#;
const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": true}"#;

fn options(precision: Precision, recompute: Recompute, grad_accum_steps: u64, kind: Kind) -> StepOptions {
    StepOptions {
        batch: 8,
        seq_len: 128,
        profile: nn::Profile::Fused,
        precision,
        optimizer: OptimizerKind { kind, implementation: Implementation::Fused },
        recompute,
        grad_accum_steps,
        autocast: CastLists::Cpu,
        steps: 2,
        warm: false,
        dropout: false,
        objective: nn::Objective::DEFAULT,
        offload: nn::Offload::NONE,
        in_backward: false,
        until: Until::Optimizer,
    }
}

#[test]
fn every_byte_between_predicted_and_measured_has_a_name() {
    heap::count();
    let pool = Threads::new(2).unwrap();
    pool.run(|| {
        let peak = Some(units::FlopPerSecond::new(1e11).unwrap());
        let ceilings = ceilings(2, Precision::Fp32, peak).unwrap();
        for (config, precision, recompute, accumulate, kind) in [
            (GPT2, Precision::Fp32, Recompute::None, 1, Kind::AdamW),
            (LLAMA, Precision::Bf16Mixed, Recompute::Full, 3, Kind::AdamW),
            (GPT2, Precision::Bf16Pure, Recompute::None, 1, Kind::Muon),
        ] {
            let case = format!("{precision}, {recompute:?}");
            let model = Model::from_text("m", "m.json", config.as_bytes(), &[], None).unwrap();
            let settings = Settings::of_steps(&options(precision, recompute, accumulate, kind), 4);
            let predicted = predict_whole(&model.spec, &settings).unwrap();
            let short = predict(&model.spec, &settings).unwrap();
            let numbers = |p: &Predicted| (p.parameters, p.peak_bytes, p.model_flop, p.hardware_flop);
            assert_eq!(numbers(&short), numbers(&predicted), "{case}: two micro-batches stand for all");
            let measured = measure(&model.spec, &settings, &predicted, 2, ceilings).unwrap();

            assert_eq!(measured.allocated, Some(predicted.peak_bytes), "{case}");
            assert_eq!(measured.parameters, predicted.parameters.get(), "{case}");
            let work = measured.work.as_ref().unwrap();
            assert_eq!(*work, plan::reconcile::StepWork::of(&predicted.trace), "{case}");
            let (step, _) = measured.timed.as_ref().unwrap();
            assert_eq!((step.ops.len(), step.steps), (work.ops.len(), 2), "{case}");
            assert!(step.ops.iter().sum::<f64>() <= step.seconds, "{case}");

            let gaps = Gaps::of_heap(predicted.peak_bytes, measured.heap.as_ref().unwrap());
            let at = work.ops[measured.heap.as_ref().unwrap().op as usize].as_str();
            assert!(gaps.unexplained_share().abs() < 0.001, "{case}, in {at}: {} of {gaps:?}", gaps.unexplained());
            let named = |key| gaps.named.iter().find(|gap| gap.key == key).unwrap().bytes;
            assert!(named("packing") > 0 && named("bookkeeping") > 0 && named("before") > 0, "{case}: {gaps:?}");
            assert_eq!((named("cached"), named("untouched")), (0, 0), "{case}: tensors lie apart");
            // Of the first program alone: later ones get memory again that the system has backed already.
            #[cfg(target_os = "linux")]
            if precision == Precision::Fp32 {
                let process = measured.process.as_ref().unwrap();
                let gaps = Gaps::of_process(predicted.peak_bytes, process);
                assert!(gaps.unexplained_share().abs() < 0.005, "{case}: {gaps:?}");
                assert!(process.peak >= process.now, "{case}");
            }

            let request = Request {
                parameters: predicted.parameters,
                trace: &predicted.trace,
                model_flop: predicted.model_flop,
                precision,
                measured: &measured,
            };
            assert_eq!(request.report().warnings, [], "{case}");

            let record = Record { model: "m".into(), config: model.config.clone(), settings, measured };
            let text = record.to_text();
            assert!(Record::is_one(text.as_bytes()) && !Record::is_one(config.as_bytes()));
            let again = Record::from_text("run.json", text.as_bytes()).unwrap();
            assert_eq!(again.measured, record.measured, "{case}");
            assert_eq!((again.config, again.settings.to_json()), (record.config, record.settings.to_json()), "{case}");
        }
        refusals();
    });
}

/// What is no record is refused, with all that is wrong with it.
fn refusals() {
    let refused = |text: &str| {
        let problems = Record::from_text("run.json", text.as_bytes()).unwrap_err();
        problems.iter().map(|p| format!("{} {}", p.code, p.message)).collect::<Vec<_>>().join("\n")
    };
    assert!(refused("{").starts_with("T0722 `run.json` is no record of a run"));
    assert!(refused(r#"{"model_type": "gpt2"}"#).contains("it has no `napkin_record`"));
    assert!(refused(r#"{"napkin_record": 99}"#).contains("of another version"));
    let empty = refused(r#"{"napkin_record": 1, "measured": {"heap": {"parts_bytes": {"x": 3, "scratch": "y"}}}}"#);
    for problem in [
        "`config` is absent",
        "`settings` is absent",
        "`allocated_peak_bytes` is absent",
        "`counted_bytes` is absent",
        "`parts_bytes` has `x`, which is not known",
        "`parts_bytes.scratch` is \"y\", not a whole number",
    ] {
        assert!(empty.contains(problem), "{problem}: {empty}");
    }
}
