//! A run in fp16-mixed: it searches for its loss scale, and a resumed run goes on with the scale it had.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_train::checkpoint::{Keep, Store, latest};
use napkin_train::data::{OpenOptions, Order, TokenFile};
use napkin_train::run::{Run, Settings, Start};
use nn::optim::Hyper;
use nn::scaler::LossScaler;
use nn::step::Precision;
use nn::{Profile, Recompute, Schedule, TrainingOptions};
use plan::model::Model;
use std::sync::Arc;
use tensor::CastLists;

const CONFIG: &str = r#"{"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2,
    "n_positions": 16, "resid_pdrop": 0.1, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#;

fn start(model: &Model) -> Start<'_> {
    let ids: Vec<u32> = (0..2000u32).map(|i| i / 50).collect();
    let file = Arc::new(TokenFile::from_ids("stairs", &ids, &OpenOptions::default()).unwrap());
    let training = TrainingOptions {
        profile: Profile::Fused,
        precision: Precision::Fp16Mixed,
        optimizer: "adamw".parse().unwrap(),
        hyper: Hyper::default(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        dropout: true,
        clip_norm: Some(1.0),
        objective: nn::Objective::DEFAULT,
        stochastic_rounding: false,
    };
    let settings = Settings {
        training,
        schedule: Schedule::constant(1e-3, 12),
        batch: 1,
        seq_len: 2,
        order: Order::Shuffled,
        seed: 1,
        val_fraction: 0.0,
    };
    Start {
        model,
        config: CONFIG.to_owned(),
        settings,
        weights: None,
        train: file.whole(),
        validation: None,
        expected: units::Bytes(0),
    }
}

fn scale(run: &Run) -> f64 {
    run.training().scaler().map(LossScaler::scale).unwrap()
}

#[test]
fn a_skipped_batch_is_made_up_for_and_a_resumed_run_knows_of_it() {
    let model = Model::from_text("tiny", "config.json", CONFIG.as_bytes(), &[], None).unwrap();
    let mut whole = Run::new(start(&model)).unwrap();
    let first = whole.step().unwrap();
    assert!(!first.skipped.is_empty(), "65536 times the gradient of two equal tokens is more than f16 holds");
    assert_eq!(scale(&whole), 65536.0 / 2f64.powi(first.skipped.len() as i32));
    assert_eq!(first.tokens, 2 * (1 + first.skipped.len() as u64), "tokens of skipped batches were read");
    assert_eq!((whole.step_number(), whole.training().optimizer().steps()), (1, 1), "an update for each step");
    let mut losses = vec![first.loss];
    let folder = tempfile::tempdir().unwrap();
    for step in 2..=12 {
        if step == 5 {
            Store::open(folder.path(), Keep { last: 1, best: false }).unwrap().save(&whole.snapshot(None)).unwrap();
        }
        losses.push(whole.step().unwrap().loss);
    }
    assert!(whole.is_done());
    assert!(losses.iter().all(|loss| loss.is_finite()));

    let saved = latest(folder.path()).unwrap().checkpoint.unwrap();
    let mut resumed = Run::resume(start(&model), &saved).unwrap();
    assert_eq!(resumed.step_number(), 4);
    let again: Vec<f64> = (5..=12).map(|_| resumed.step().unwrap().loss).collect();
    assert_eq!(again, losses[4..], "the same batches, masks and scales: the same bits");
    assert_eq!(resumed.training().scaler(), whole.training().scaler());
}
