//! Files that other programs wrote: `weights_files/make.py` with the formats' own packages, and `reference/models` with
//! transformers. The numbers are those that the packages print.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_train::weights_file::{Format, Stored, inspect};
use plan::model::Model;
use plan::report::{Report, Value, Verdict};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn own(name: &str) -> PathBuf {
    tests().join("weights_files").join(name)
}

fn model(folder: &Path, overrides: &[(&str, &str)]) -> Model {
    let text = fs::read(folder.join("config.json")).unwrap();
    let overrides: Vec<_> = overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Model::from_text("model", "config.json", &text, &overrides, None).unwrap()
}

fn get<'a>(report: &'a Report, path: &str) -> &'a Value {
    path.split('.').fold(&report.result, |value, key| match (value, key.parse::<usize>()) {
        (Value::List(items), Ok(index)) => &items[index],
        _ => value.get(key).unwrap_or_else(|| panic!("{key} of {path} in {:?}", report.result)),
    })
}

fn rows(path: &Path) -> Vec<(String, String, Vec<u64>, u64)> {
    let stored = Stored::open(path).unwrap();
    let mut rows: Vec<_> = stored
        .files
        .iter()
        .flat_map(|file| &file.tensors)
        .map(|tensor| (tensor.name.clone(), tensor.encoding.name(), tensor.shape.clone(), tensor.bytes))
        .collect();
    rows.sort();
    rows
}

fn row(name: &str, encoding: &str, shape: &[u64], bytes: u64) -> (String, String, Vec<u64>, u64) {
    (name.to_owned(), encoding.to_owned(), shape.to_vec(), bytes)
}

#[test]
fn every_tensor_of_safetensors_is_found() {
    let expected = [
        row("empty", "f16", &[0, 4], 0),
        row("flags", "bool", &[6], 6),
        row("narrow", "bf16", &[2, 2, 7], 56),
        row("number", "i64", &[], 8),
        row("wide", "f32", &[3, 5], 60),
    ];
    assert_eq!(rows(&own("plain.safetensors")), expected);
    let stored = Stored::open(&own("plain.safetensors")).unwrap();
    assert_eq!(stored.files[0].about["format"], "pt");

    let report = inspect(&own("fp8.safetensors"), None).unwrap();
    assert_eq!(get(&report, "packed.0.format"), &Value::from("fp8 with scales"));
    assert_eq!(get(&report, "packed.0.packed_bytes").as_uint(), Some(48 * 80));
    assert_eq!(get(&report, "packed.0.constants_bytes").as_uint(), Some(4));
    assert_eq!(get(&report, "parameters").as_uint(), Some(48 * 80 + 48));
}

#[test]
fn every_tensor_of_gguf_is_found() {
    let expected = [
        row("blk.0.attn_q.weight", "Q4_0", &[2, 256], 288),
        row("blk.0.ffn_down.weight", "Q4_K", &[2, 256], 288),
        row("blk.0.ffn_gate.weight", "Q6_K", &[2, 256], 420),
        row("blk.0.ffn_up.weight", "Q5_1", &[1, 256], 192),
        row("output.weight", "bf16", &[3, 256], 1536),
        row("output_norm.weight", "f32", &[256], 1024),
        row("token_embd.weight", "Q8_0", &[3, 256], 816),
    ];
    assert_eq!(rows(&own("tiny.gguf")), expected);
    let stored = Stored::open(&own("tiny.gguf")).unwrap();
    assert_eq!((stored.format(), stored.files[0].about["general.name"].as_str()), (Format::Gguf, "tiny"));
}

#[test]
fn models_that_transformers_saved_are_what_their_configs_say() {
    for (name, files) in [("gpt2", 1), ("gpt2_hub", 1), ("llama", 2), ("llama_tied", 1)] {
        let folder = tests().join("reference/models").join(name);
        let model = model(&folder, &[]);
        let report = inspect(&folder, Some(&model)).unwrap();
        assert_eq!(get(&report, "against_config.agrees"), &Value::Bool(true), "{name}: {:?}", report.result);
        // Half-precision weights have a note on training; nothing is a warning.
        assert_eq!(report.verdict, Verdict::Answered, "{name}");
        assert!(report.warnings.iter().all(|note| note.code == "T0633"), "{name}: {:?}", report.warnings);
        let Value::List(found) = get(&report, "files") else { panic!() };
        assert_eq!(found.len(), files);
        let bytes: u64 = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "safetensors"))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert_eq!(get(&report, "file_bytes").as_uint(), Some(u128::from(bytes)));
    }
    // Another config than that of the weights.
    let folder = tests().join("reference/models/llama");
    let report = inspect(&folder, Some(&model(&folder, &[("vocab_size", "7")]))).unwrap();
    assert_eq!(report.verdict, Verdict::No);
    let Value::List(shapes) = get(&report, "against_config.other_shape") else { panic!() };
    assert!(!shapes.is_empty());
}

/// The header of 400 GB in 100 files is read in no time: the data are holes, and reading them would take minutes.
#[test]
fn only_headers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=100 {
        let size = 4_000_000_000_u64;
        let json = format!(
            r#"{{"model.layers.{number}.mlp.up_proj.weight":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}"#
        );
        let path = folder.path().join(format!("model-{number:05}-of-00100.safetensors"));
        let mut file = File::create(path).unwrap();
        file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
        file.write_all(json.as_bytes()).unwrap();
        file.set_len(8 + json.len() as u64 + size).unwrap();
    }
    let started = std::time::Instant::now();
    let report = inspect(folder.path(), None).unwrap();
    assert_eq!(get(&report, "tensor_bytes").as_uint(), Some(400_000_000_000));
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
}
