//! `napkin train` as its users run it: what it prints, what it saves, how it is stopped, and what it refuses.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("napkin-train-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, contents: &[u8]) -> String {
        fs::write(self.0.join(name), contents).unwrap();
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn napkin(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.args(words).stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    napkin(words).output().unwrap()
}

/// A model that trains in milliseconds, and flags of a short run.
const TINY: [&str; 26] = [
    "train",
    "--set",
    "hidden_size=16",
    "--set",
    "intermediate_size=24",
    "--set",
    "num_hidden_layers=1",
    "--set",
    "num_attention_heads=2",
    "--set",
    "num_key_value_heads=1",
    "--batch",
    "4",
    "--seq-len",
    "32",
    "--eval-batches",
    "2",
    "--eval-every",
    "0",
    "--save-every",
    "5",
    "--peak",
    "100GFLOP/s",
    "-j",
    "1",
    "--json",
];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&TINY[..], more].concat()
}

fn answer(words: &[&str]) -> Value {
    let output = run(words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Codes of what is wrong, and the whole of it.
fn refusal(words: &[&str]) -> (Vec<String>, String) {
    let output = run(words);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
    // Progress stands before the problems.
    let json: Value = serde_json::from_str(&said[said.find("\n{").map_or(0, |at| at + 1)..]).unwrap();
    let list = json["errors"].as_array().or(json["problems"].as_array()).unwrap_or_else(|| panic!("{said}")).clone();
    (list.iter().map(|p| p["code"].as_str().unwrap_or_default().to_owned()).collect(), said)
}

fn files_below(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files_below(&path));
        } else {
            all.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn a_run_learns_saves_and_allocates_what_was_predicted() {
    let scratch = Scratch::new("learns");
    let dir = scratch.path("run");
    let report = answer(&tiny(&["--steps", "40", "--lr", "1e-2", "--dir", &dir, "--log", &scratch.path("log.jsonl")]));
    let result = &report["result"];
    let number = |name: &str| result[name].as_f64().unwrap_or_else(|| panic!("{name}: {result}"));
    // Guessing among 256 bytes has a loss of ln 256 = 5.5; English letters alone have one of about 3.
    assert!((number("first_loss") - 5.545).abs() < 0.3 && number("last_loss") < 4.0, "{result}");
    assert_eq!(number("peak_bytes"), number("predicted_peak_bytes"));
    assert!(number("reserved_bytes") >= number("peak_bytes"));
    assert_eq!(number("tokens"), 40.0 * 4.0 * 32.0);
    let log = fs::read_to_string(scratch.path("log.jsonl")).unwrap();
    let steps: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<&Value> = steps.iter().filter(|line| line["loss"].is_number()).collect();
    assert_eq!(steps.len(), 40);
    for key in ["step", "loss", "lr", "grad_norm", "tokens", "seconds", "flop", "mfu", "peak_bytes"] {
        assert!(steps.iter().all(|line| line[key].is_number()), "{key}: {}", steps[3]);
    }
    assert!(Path::new(result["checkpoint"].as_str().unwrap()).join("model.safetensors").exists());
}

#[test]
fn a_resumed_run_is_the_run_that_was_never_stopped() {
    let scratch = Scratch::new("resumes");
    for (precision, how) in [
        ("fp32", &["--optimizer", "adamw"][..]),
        ("bf16-mixed", &["--optimizer", "muon"]),
        ("bf16-master", &["--optimizer", "adam-8bit"]),
        ("bf16-pure", &["--optimizer", "adafactor", "--stochastic-rounding"]),
        ("fp16-mixed", &["--optimizer", "lion"]),
        ("fp8", &["--optimizer", "adamw", "--recompute", "full"]),
    ] {
        let options = ["--precision", precision, "--steps", "12", "--dropout", "--grad-accum", "2"];
        let options = [&options, how].concat();
        let (whole, parts) = (scratch.path(&format!("{precision}-whole")), scratch.path(&format!("{precision}-parts")));
        let whole_run = answer(&tiny(&[&options[..], &["--dir", &whole]].concat()));
        answer(&tiny(&[&options[..], &["--dir", &parts, "--stop-after", "5"]].concat()));
        let rest = answer(&["train", "--resume", &parts, "--json", "--eval-batches", "2", "--peak", "100GFLOP/s"]);
        assert_eq!(rest["result"]["first_step"], 6, "{precision}");
        assert_eq!(rest["result"]["validation_loss"], whole_run["result"]["validation_loss"], "{precision}");
        let weights = |dir: &str| fs::read(Path::new(dir).join("step-00000012/model.safetensors")).unwrap();
        assert_eq!(weights(&whole), weights(&parts), "{precision}");
    }
}

/// At a learning rate of 1e-6 in bf16 nearly nothing moves, and beta2 of 0.999 keeps a mean of squares where it is.
#[test]
fn what_rounding_takes_from_updates_is_said() {
    let scratch = Scratch::new("rounding");
    let log = scratch.path("log.jsonl");
    let options = ["--precision", "bf16-pure", "--lr", "1e-6", "--steps", "4", "--no-save", "--watch-updates", "2"];
    let output = run(&tiny(&[&options[..], &["--log", &log]].concat()));
    let said = String::from_utf8(output.stderr).unwrap();
    let vanished =
        said.lines().filter(|line| line.contains("of the updates vanished: they are less than half")).count();
    assert_eq!(vanished, 2, "steps 2 and 4: {said}");
    assert!(said.contains("of the running means cannot decay"), "{said}");
    let log = fs::read_to_string(&log).unwrap();
    let looked: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counts: Vec<&Value> = looked.iter().filter_map(|line| line.get("rounding")).collect();
    assert_eq!(counts.iter().map(|c| c.is_object()).collect::<Vec<_>>(), [false, true, false, true]);
    let (updated, vanished) = (counts[1]["updated"].as_u64().unwrap(), counts[1]["vanished"].as_u64().unwrap());
    assert!(updated > 5000 && vanished * 10 > updated * 9, "{updated} {vanished}");

    let (_, said) = refusal(&tiny(&["--stochastic-rounding", "--no-save"]));
    assert!(said.contains("--stochastic-rounding has nothing to round in fp32"), "{said}");
    let (_, said) = refusal(&tiny(&["--beta2", "1", "--no-save"]));
    assert!(said.contains("`1` is no decay"), "{said}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_step_saves_and_prints_the_summary() {
    use std::io::{BufRead, BufReader};
    let scratch = Scratch::new("ctrl-c");
    let dir = scratch.path("run");
    let mut child = napkin(&tiny(&["--steps", "1000000", "--dir", &dir, "--log-every", "0.01"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("step 3") {}
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    // Read on, so that the program is not stopped by a full pipe.
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{rest:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["result"]["stopped"], true);
    let step = report["result"]["last_step"].as_u64().unwrap();
    assert!(step >= 3);
    let saved = report["result"]["checkpoint"].as_str().unwrap();
    assert!(saved.ends_with(&format!("step-{step:08}")), "{saved}");
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_and_touches_nothing() {
    let scratch = Scratch::new("nan");
    let dir = scratch.path("run");
    answer(&tiny(&["--steps", "10", "--dir", &dir]));
    let before = files_below(Path::new(&dir));
    let (codes, said) =
        refusal(&["train", "--resume", &dir, "--steps", "400", "--lr", "1e30", "--clip", "0", "--json"]);
    // Another learning rate is another run, and so is other clipping.
    assert_eq!(codes, ["T0701", "T0701"], "{said}");
    let fresh = scratch.path("fresh");
    let (codes, said) =
        refusal(&tiny(&["--steps", "400", "--lr", "1e30", "--clip", "0", "--warmup", "0", "--dir", &fresh]));
    assert!(codes.iter().any(|code| code == "T0703" || code == "T0709"), "{said}");
    assert!(said.contains("--lr"), "{said}");
    assert_eq!(files_below(Path::new(&dir)), before);
}

#[test]
fn what_cannot_be_trained_is_said() {
    let scratch = Scratch::new("refused");
    let dir = scratch.path("run");
    answer(&tiny(&["--steps", "5", "--dir", &dir]));
    let text = scratch.file("text.txt", "to be or not to be, that is the question. ".repeat(100).as_bytes());
    let empty = scratch.file("empty.txt", b"");
    let short = scratch.file("short.txt", b"to be");
    let odd = scratch.file("odd.bin", &[1, 0, 2, 0, 3]);
    let tables: [(&[&str], &str); 9] = [
        (&["--data", &empty, "--dir", "x"], "empty"),
        (&["--data", &short, "--dir", "x"], "tokens"),
        (&["--data", &odd, "--ids", "u16", "--dir", "x"], "odd.bin"),
        (&["--data", "does-not-exist.bin", "--dir", "x"], "does-not-exist.bin"),
        (&["--dir", &dir], "--resume"),
        (&["--set", "vocab_size=100", "--dir", "x"], "--set vocab_size=256"),
        (&["--seq-len", "100000", "--dir", "x"], "positions"),
        (&["--precision", "fp12", "--steps", "0", "--dir", "x"], "fp12"),
        (&["--compile", "max", "--dir", "x"], "--compile"),
    ];
    for (flags, expected) in tables {
        let mut words = tiny(&[]);
        words.retain(|word| !(flags.contains(&"--seq-len") && (*word == "--seq-len" || *word == "32")));
        words.extend(flags);
        let (_, said) = refusal(&words);
        assert!(said.contains(expected), "{flags:?}: {said}");
    }
    let (codes, said) = refusal(&["train", "llama-3.1-405b", "--no-save", "--json"]);
    assert_eq!(codes, ["T0711"], "what cannot fit is not begun: {said}");
    let (_, said) = refusal(&["train", "--resume", &dir, "--data", &text, "--json"]);
    assert!(said.contains("T0702"), "{said}");
    let (_, said) = refusal(&["train", "--resume", &scratch.path("nothing"), "--json"]);
    assert!(said.contains("T0707") || said.contains("cannot be read"), "{said}");
    assert!(!Path::new("x").exists(), "nothing is made before all is known to be right");
}

#[test]
fn a_recorded_run_is_held_against_its_prediction() {
    let scratch = Scratch::new("record");
    let record = scratch.path("run.json");
    answer(&tiny(&["--steps", "8", "--no-save", "--record", &record]));
    let report = answer(&["reconcile", &record, "--json"]);
    let result = &report["result"];
    for pair in ["parameters", "ops", "matmul_flop", "allocated_peak_bytes"] {
        assert_eq!(result[pair]["predicted"], result[pair]["measured"], "{pair}: {result}");
    }
    // The model is far smaller than the program around it: what is checked is that nothing is left over by much.
    let unexplained = result["heap"]["unexplained_bytes"].as_i64().unwrap();
    assert!(unexplained.abs() < 200_000, "{result}");
    let time = &result["time"];
    assert_eq!(time["timed_steps"], 5, "the first three steps are for something else");
    let classes: f64 =
        time["classes"].as_array().unwrap().iter().map(|c| c["measured_seconds"].as_f64().unwrap()).sum();
    let rest = time["between_ops_seconds"].as_f64().unwrap() + time["waiting_seconds"].as_f64().unwrap();
    assert!((classes + rest - time["measured_seconds"].as_f64().unwrap()).abs() < 1e-9, "{time}");

    // An optimizer of many ops, whose decay is one more op where there is any; many micro-batches.
    let muon = scratch.path("muon.json");
    answer(&tiny(&["--steps", "4", "--no-save", "--record", &muon, "--optimizer", "muon", "--weight-decay", "0.1"]));
    let ops = &answer(&["reconcile", &muon, "--json"])["result"]["ops"];
    assert_eq!(ops["predicted"], ops["measured"]);

    // Held against another model, it is a run of something else.
    let other = run(&["reconcile", "gpt2", &record]);
    assert_eq!(other.status.code(), Some(1));
    let said = String::from_utf8_lossy(&other.stderr).into_owned() + &String::from_utf8_lossy(&other.stdout);
    assert!(said.contains("T0720"), "{said}");

    // Nothing is overwritten, and a record has its own step.
    let before = fs::read(&record).unwrap();
    assert!(refusal(&tiny(&["--steps", "8", "--no-save", "--record", &record])).1.contains("exists already"));
    assert_eq!(fs::read(&record).unwrap(), before);
    assert!(refusal(&["reconcile", &record, "--batch", "2", "--json"]).1.contains("has its own step"));
    for (flag, value) in [("--batch", "0"), ("--seq-len", "0"), ("--grad-accum", "0"), ("--grad-accum", "100000000000")]
    {
        assert!(refusal(&["reconcile", "gpt2", flag, value, "--json"]).1.contains(flag), "{flag} {value}");
    }
    let config = scratch.file("config.json", b"{\"napkin_record\": 1, \"model\": 3}");
    assert!(refusal(&["reconcile", &config, "--json"]).1.contains("`model` is 3, not a text"));
    let torn = scratch.file("torn.json", &before[..before.len() / 2]);
    assert!(refusal(&["reconcile", &torn, "--json"]).0.contains(&"T0722".to_owned()));
    assert!(refusal(&["reconcile", "gpt2", &scratch.path("nothing.json"), "--json"]).1.contains("cannot be read"));
}

#[test]
fn a_model_that_predicts_no_number_is_not_saved() {
    let scratch = Scratch::new("nan-saved");
    let dir = scratch.path("run");
    // The last update takes the weights beyond all numbers: no loss of a training step shows it any more.
    let (codes, said) =
        refusal(&tiny(&["--steps", "1", "--weight-decay", "1e45", "--dir", &dir, "--log-every", "1e300"]));
    assert!(codes.contains(&"T0703".to_owned()) && said.contains("validation loss after step 1"), "{said}");
    assert!(files_below(Path::new(&dir)).iter().all(|(path, _)| !path.ends_with("model.safetensors")));
}
