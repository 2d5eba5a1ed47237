//! Variants that no published config of the reference tables has: windows below the sequence length, partial rotation,
//! clamped queries, norms on queries, large heads; and families of which the tables hold no bytes.
//!
//! `truth/small.csv` was measured as the tables of `truth.rs` were (PyTorch 2.15, transformers 5.24, fake tensors on a
//! CPU): batch 2, 192 tokens, one step with gradients, dropout off.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::sharding::Sharding;
use napkin_plan::timeline::Timeline;
use nn::blocks::Blocks;
use nn::config::Config;
use nn::families;
use nn::optim::OptimizerKind;
use nn::step::{self, Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use std::fs;
use std::path::PathBuf;
use tensor::{CastLists, Phase};

/// Largest difference of bytes, of the reference. The counts of parameters and FLOP are equal.
const ALLOWED: f64 = 0.001;

/// A step as the reference was measured: f32, one parameter at a time, nothing there before it, up to its gradients.
fn step_of(batch: u64, seq_len: u64, profile: Profile) -> StepOptions {
    StepOptions {
        batch,
        optimizer: "adamw-forloop".parse::<OptimizerKind>().unwrap(),
        autocast: CastLists::Cpu,
        warm: false,
        until: Until::Backward,
        ..StepOptions::usual(seq_len, profile, Precision::Fp32)
    }
}

#[test]
fn small_variants_match() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/truth");
    let table = fs::read_to_string(folder.join("small.csv")).unwrap();
    let mut wrong = Vec::new();
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let number = |i: usize| cells[i].parse::<u64>().unwrap();
        let file = format!("{}.json", cells[0]);
        let (config, problems) = Config::parse(&file, &fs::read(folder.join("small").join(&file)).unwrap());
        let config = config.unwrap_or_else(|| panic!("{problems}"));
        let loaded = families::load(&config, None).unwrap_or_else(|e| panic!("{file}: {e}"));
        let options = StepOptions {
            precision: cells[2].parse::<Precision>().unwrap(),
            recompute: if cells[3] == "1" { Recompute::Full } else { Recompute::None },
            ..step_of(2, 192, cells[1].parse().unwrap())
        };
        let traced = step::trace(&loaded.spec, &options).unwrap();
        let params: u64 = traced.params.iter().map(|p| p.elements).sum();
        let flop = |phases: &[Phase]| traced.trace.cost(|e| phases.contains(&e.phase)).matmul_dense;
        let (forward, backward) = (flop(&[Phase::Forward]), flop(&[Phase::Backward, Phase::Recompute]));
        let counts = (params, forward, backward);
        let expected = (number(4), u128::from(number(5)), u128::from(number(6)));
        if counts != expected {
            wrong.push(format!("{}: {counts:?}, reference {expected:?}", cells[..4].join(" ")));
        }
        let phases = Timeline::of(&traced, &options, Sharding::default(), Blocks::of(&loaded.spec.names)).phases;
        let phase = |name| phases.iter().find(|p| p.name == name).unwrap();
        let (fwd, bwd) = (phase("fwd1"), phase("bwd1"));
        let bytes = [fwd.peak_bytes, fwd.end_bytes(), bwd.peak_bytes, bwd.end_bytes()];
        for ((got, column), name) in bytes.into_iter().zip(7..).zip(["fwd1 peak", "fwd1 end", "bwd1 peak", "bwd1 end"])
        {
            let error = (got as f64 - number(column) as f64) / number(column) as f64;
            if error.abs() > ALLOWED {
                let (row, want) = (cells[..4].join(" "), number(column));
                wrong.push(format!("{row} {name}: {got}, reference {want} ({:+.2} %)", 100.0 * error));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

/// Parameters, those that are trained, FLOP of forward and of both passes of a step: `cells` are sequences, tokens, profile.
fn counts(spec: &nn::ModelSpec, cells: &[String]) -> String {
    let (batch, seq_len) = (cells[0].parse().unwrap(), cells[1].parse().unwrap());
    let options = step_of(batch, seq_len, cells[2].parse().unwrap());
    let traced = step::trace(spec, &options).unwrap();
    let params: u64 = traced.params.iter().map(|p| p.elements).sum();
    let trained: u64 = traced.params.iter().filter(|p| p.trainable).map(|p| p.elements).sum();
    let flop = |phase: Phase| traced.trace.cost(|e| e.phase == phase).matmul_dense;
    let (forward, backward) = (flop(Phase::Forward), flop(Phase::Backward));
    format!("{params},{trained},{forward},{}", forward + backward)
}

/// The small config that `nn/tests/data/tiny` has of a family.
fn tiny(name: &str) -> Config {
    let file = format!("{name}.json");
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../nn/tests/data/tiny");
    let (config, problems) = Config::parse(&file, &fs::read(folder.join(&file)).unwrap());
    config.unwrap_or_else(|| panic!("{problems}"))
}

fn rows(table: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/truth").join(table)).unwrap();
    text.lines().skip(1).map(|row| row.split(',').map(str::to_owned).collect()).collect()
}

/// Every family on its small config, as transformers' own model runs it.
#[test]
fn tiny_models_have_the_counts_of_the_reference() {
    let mut wrong = Vec::new();
    for cells in rows("tiny.csv") {
        let loaded = families::load(&tiny(&cells[0]), None).unwrap_or_else(|e| panic!("{}: {e}", cells[0]));
        let (got, want) = (counts(&loaded.spec, &cells[1..4]), cells[4..].join(","));
        if got != want {
            wrong.push(format!("{}: {got}, reference {want}", cells[..4].join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

/// The same configs where `architectures` names another class of the family: bodies, decoders alone, classifiers.
#[test]
fn the_class_that_is_named_is_the_one_that_is_counted() {
    let mut wrong = Vec::new();
    for cells in rows("classes.csv") {
        let class = [("architectures".to_owned(), format!("[\"{}\"]", cells[1]))];
        let (config, problems) = tiny(&cells[0]).with_overrides(&class);
        assert!(problems.is_empty(), "{problems}");
        let loaded = families::load(&config, None).unwrap_or_else(|e| panic!("{}: {e}", cells[0]));
        assert!(loaded.resolved.diagnostics.is_empty(), "{}: {:?}", cells[1], loaded.resolved.diagnostics);
        let (got, want) = (counts(&loaded.spec, &cells[2..5]), cells[5..].join(","));
        if got != want {
            wrong.push(format!("{} {}: {got}, reference {want}", cells[1], cells[4]));
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

/// A class that is not modelled is named, with what is counted in its place.
#[test]
fn a_class_that_is_not_counted_is_said() {
    for (name, class) in [
        ("llama", "LlamaForTokenClassification"),
        ("gpt2", "GPT2DoubleHeadsModel"),
        ("bart", "BartForQuestionAnswering"),
        ("t5", "T5ForCausalLM"),
        ("whisper", "WhisperForAudioClassification"),
        ("bert", "BertForPreTraining"),
    ] {
        let (config, _) = tiny(name).with_overrides(&[("architectures".to_owned(), format!("[\"{class}\"]"))]);
        let loaded = families::load(&config, None).unwrap_or_else(|e| panic!("{class}: {e}"));
        let warned = loaded.resolved.diagnostics.iter().any(|d| d.code == "T0117" && d.message.contains(class));
        assert!(warned || loaded.spec.not_modelled.iter().any(|what| what.contains(class)), "{class} is not named");
    }
}

/// Wrappers of an image encoder and a language model, small: the parameters of the whole and of what is not the text, and
/// an image that runs through.
#[test]
fn parts_beside_the_language_model_have_the_parameters_of_the_reference() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/truth");
    let table = fs::read_to_string(folder.join("towers.csv")).unwrap();
    let mut wrong = Vec::new();
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let file = format!("{}.json", cells[0]);
        let (config, problems) = Config::parse(&file, &fs::read(folder.join("towers").join(&file)).unwrap());
        let config = config.unwrap_or_else(|| panic!("{problems}"));
        let loaded = families::load(&config, None).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(loaded.uncounted.is_empty(), "{file}: {:?}", loaded.uncounted);
        let text = step::parameters(&loaded.spec).unwrap();
        let parts = step::tower_parameters(&loaded.spec).unwrap();
        let all = || text.iter().chain(&parts);
        let total: u64 = all().map(|p| p.elements).sum();
        let untied: u64 = all().map(|p| p.elements * (1 + p.tied.len() as u64)).sum();
        let vision: u64 = parts.iter().map(|p| p.elements).sum();
        let got = format!("{total},{untied},{vision}");
        if got != cells[1..].join(",") {
            wrong.push(format!("{file}: {got}, reference {}", cells[1..].join(",")));
        }
        let said = loaded.spec.not_modelled.iter().any(|what| what.starts_with("of the image encoder"));
        assert_eq!(said, ["gemma4", "mllama", "qwen2_5_vl"].contains(&cells[0]), "{file}: what is simplified is said");
        for tower in &loaded.spec.towers {
            let cost = step::tower_cost(tower, Profile::Fused).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert!(
                cost.positions > 0 && cost.forward.matmul > 0 && cost.backward.matmul > cost.forward.matmul,
                "{file}"
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Parameters of wrappers whose file says at its top, in its text part or nowhere that head and embedding are one.
#[test]
fn wrappers_tie_where_their_classes_do() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/truth");
    let table = fs::read_to_string(folder.join("tied.csv")).unwrap();
    let mut wrong = Vec::new();
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let file = format!("{}.json", cells[0]);
        let bytes = fs::read(folder.join("towers").join(&file)).unwrap();
        let mut whole: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let say = |object: &mut serde_json::Value, word: &str| {
            let object = object.as_object_mut().unwrap();
            object.remove("tie_word_embeddings");
            if let Ok(tied) = word.parse::<bool>() {
                object.insert("tie_word_embeddings".to_owned(), tied.into());
            }
        };
        say(&mut whole, cells[1]);
        say(&mut whole["text_config"], cells[2]);
        let (config, problems) = Config::parse(&file, whole.to_string().as_bytes());
        let config = config.unwrap_or_else(|| panic!("{problems}"));
        let spec = families::load(&config, None).unwrap_or_else(|e| panic!("{row}: {e}")).spec;
        let text = step::parameters(&spec).unwrap();
        let parts = step::tower_parameters(&spec).unwrap();
        let total: u64 = text.iter().chain(&parts).map(|p| p.elements).sum();
        if total.to_string() != cells[3] {
            wrong.push(format!("{row}: {total}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}
