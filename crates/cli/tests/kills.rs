//! A run that is killed at random instants and resumed is the run that was never killed: every loss has the same bits,
//! and no step that was saved is lost.
//!
//! `NAPKIN_KILLS=1000 cargo test --release -p napkin-cli --test kills` kills a thousand times.
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use tensor::rng::{Rng, Stream};

/// Steps of a run: more than one life lasts, fewer than all together.
const STEPS: u64 = 60;
/// Kills unless the environment says otherwise.
const KILLS: u64 = 12;

/// Flags of a model so small that most of the time goes into saving.
const MODEL: [&str; 8] = [
    "--set",
    "hidden_size=16",
    "--set",
    "intermediate_size=24",
    "--set",
    "num_hidden_layers=1",
    "--set",
    "num_attention_heads=2",
];

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("napkin-kills-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn napkin(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Begins the run in `dir`, or goes on with it where a checkpoint is.
fn spawn(dir: &Path, log: &Path) -> Child {
    let (dir_text, log_text) = (dir.to_str().unwrap(), log.to_str().unwrap());
    // A given peak: measuring it would take longer than the run.
    let mut arguments = vec![
        "train",
        "--peak",
        "100GFLOP/s",
        "--save-every",
        "1",
        "--eval-every",
        "0",
        "--log",
        log_text,
        "-q",
        "-j",
        "1",
    ];
    if train::checkpoint::list(dir).unwrap().is_empty() {
        // Killed before it had saved anything: it begins anew, and so does its log.
        let _ = fs::remove_file(log);
        let steps = STEPS.to_string();
        arguments.extend(MODEL);
        arguments.extend(["--set", "num_key_value_heads=1", "--batch", "2", "--seq-len", "16", "--dir", dir_text]);
        return napkin(&[&arguments[..], &["--steps", &steps, "--dropout", "--eval-batches", "1"]].concat())
            .spawn()
            .unwrap();
    }
    arguments.extend(["--resume", dir_text, "--eval-batches", "1"]);
    napkin(&arguments).spawn().unwrap()
}

/// Bits of the loss and the gradient norm of every step in a log; a step that was made twice must agree with itself.
fn losses(log: &Path) -> BTreeMap<u64, (u64, u64)> {
    let mut steps = BTreeMap::new();
    let text = fs::read_to_string(log).unwrap_or_default();
    // The last line of a killed run may be cut, or run into the first of the next.
    for line in text.lines() {
        let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(step), Some(loss)) = (value["step"].as_u64(), value["loss"].as_f64()) else { continue };
        let bits = (loss.to_bits(), value["grad_norm"].as_f64().unwrap().to_bits());
        assert_eq!(*steps.entry(step).or_insert(bits), bits, "step {step} was made again with another result");
    }
    steps
}

#[test]
fn a_killed_run_goes_on_as_if_nothing_had_happened() {
    let kills: u64 = std::env::var("NAPKIN_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let scratch = Scratch::new();
    let reference = scratch.0.join("reference.jsonl");
    let begun = Instant::now();
    let whole = spawn(&scratch.0.join("reference"), &reference).wait_with_output().unwrap();
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let whole_run = begun.elapsed();
    let reference = losses(&reference);
    assert_eq!(reference.len() as u64, STEPS);

    let rng = Rng::new(std::process::id().into(), Stream::DataOrder);
    let (mut killed, mut round, mut draw) = (0, 0, 0);
    let mut resumed_at_more = 0u64;
    // When a kill comes is a draw: it goes on until enough of them have met a run that has saved.
    let enough = |resumed: u64| resumed > kills / 2;
    while killed < kills || !enough(resumed_at_more) {
        assert!(killed < 20 * kills, "most kills meet a run that has saved: {resumed_at_more} of {killed}");
        round += 1;
        let (dir, log) = (scratch.0.join(format!("run-{round}")), scratch.0.join(format!("run-{round}.jsonl")));
        let mut saved = 0;
        loop {
            let mut child = spawn(&dir, &log);
            draw += 1;
            sleep(whole_run.mul_f64(rng.uniform_f64(0, draw) * 0.5));
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            let finished = output.status.success();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(finished || output.status.code().is_none(), "after {killed} kills: {said}");
            // What is there loads, and is never older than what was there before.
            let latest = train::checkpoint::latest(&dir).unwrap_or_else(|problems| panic!("{problems}"));
            assert!(latest.skipped.is_empty(), "{}", latest.skipped);
            let step = latest.checkpoint.map_or(0, |c| c.training().unwrap().step);
            assert!(step >= saved, "step {saved} was saved, step {step} is left");
            saved = step;
            if finished {
                break;
            }
            killed += 1;
            resumed_at_more += u64::from(step > 0);
            if killed >= kills && enough(resumed_at_more) {
                let last = spawn(&dir, &log).wait_with_output().unwrap();
                assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
                break;
            }
        }
        assert_eq!(losses(&log), reference, "run {round}");
        let (a, b) = (scratch.0.join("reference"), dir);
        assert_eq!(newest_weights(&a), newest_weights(&b), "run {round}: the weights differ");
    }
}

fn newest_weights(dir: &Path) -> Vec<u8> {
    let (_, newest) = train::checkpoint::list(dir).unwrap().into_iter().next().unwrap();
    fs::read(newest.join("model.safetensors")).unwrap()
}
