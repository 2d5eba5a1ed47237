//! Models that transformers has saved: their logits here are those of transformers, and what is exported is what came in.
//!
//! `reference/models` is written by `reference/transformers_models.py`.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_train::checkpoint::{self, Checkpoint, Import, NamedTensor, TensorFile, Weights, model_tensors};
use nn::config::Config;
use nn::{Forward, Model, Profile, Recompute, families};
use plan::report::{Report, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::tempdir;
use tensor::{DType, Device, Runtime};

fn reference(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    [folder.join("models").join(name), folder.join("mixers").join(name)].into_iter().find(|path| path.exists()).unwrap()
}

fn import(name: &str, dtype: Option<DType>, to: &Path) -> Report {
    let request = Import { from: reference(name), to: to.to_owned(), overrides: Vec::new(), assume: None, dtype };
    checkpoint::import(&request).unwrap_or_else(|problems| panic!("{name}: {problems}"))
}

/// The largest difference of the logits from those of transformers, and the largest logit.
fn off(name: &str, model: &Model, runtime: &Runtime) -> (f64, f64) {
    let stored: serde_json::Value =
        serde_json::from_slice(&fs::read(reference(name).join("logits.json")).unwrap()).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let rows: Vec<Vec<f64>> = stored["tokens"].as_array().unwrap().iter().map(numbers).collect();
    let shape = [rows.len() as u64, rows[0].len() as u64];
    let tokens = runtime.input(&rows.concat(), &shape, DType::I64).unwrap();
    let mut forward = Forward::new(runtime, Profile::Fused, Recompute::None, shape[0], shape[1]);
    forward.training = false;
    let ours = runtime.no_grad(|| model.forward(&forward, &tokens)).unwrap().to_vec().unwrap();
    let theirs = numbers(&stored["logits"]);
    assert_eq!(ours.len(), theirs.len());
    let pairs = ours.iter().zip(&theirs);
    (pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max), theirs.iter().map(|x| x.abs()).fold(0.0, f64::max))
}

fn model(config: &str, dtype: DType) -> (Model, Runtime) {
    let config = Config::parse("config.json", config.as_bytes()).0.unwrap();
    let runtime = Runtime::new(Device::Cpu);
    let spec = families::load(&config, None).unwrap().spec;
    (Model::build(&runtime, &spec, dtype).unwrap(), runtime)
}

const MODELS: [&str; 4] = ["gpt2", "gpt2_hub", "llama", "llama_tied"];

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let dir = tempdir().unwrap();
        let report = import(name, None, dir.path());
        assert!(report.warnings.is_empty(), "{name}: {:?}", report.warnings);
        let saved = Checkpoint::open(&dir.path().join("step-00000000")).unwrap();
        let (model, runtime) = model(&saved.manifest().config, DType::F32);
        saved.load_weights(&model_tensors(&model)).unwrap();
        let (worst, largest) = off(name, &model, &runtime);
        assert!(largest > 1.0 && worst < 2e-6 * largest, "{name}: off by {worst:e} of {largest}");

        // Straight from the folder, without a checkpoint between.
        let (second, runtime) = self::model(&saved.manifest().config, DType::F32);
        let loaded = Weights::open(&reference(name)).unwrap().load(&second).unwrap();
        assert_eq!(off(name, &second, &runtime).0, worst);
        let stored_wide = name.starts_with("gpt2");
        assert_eq!(loaded.converted == 0, stored_wide, "{name}: {} tensors converted", loaded.converted);
        assert_eq!(loaded.ignored.len(), if name == "gpt2_hub" { 4 } else { 0 }, "{name}: {:?}", loaded.ignored);
    }
}

/// Models that mix positions by other means than attention, one with a table of positions of its own, and one with two
/// attentions in a block.
const MIXERS: [&str; 16] = [
    "mamba",
    "falcon_mamba",
    "mamba2",
    "bamba",
    "falcon_h1",
    "qwen3_5_text",
    "lfm2",
    "recurrent_gemma",
    "zamba",
    "zamba2",
    "ctrl",
    "rwkv",
    "xlstm",
    "longcat_flash",
    "xlnet",
    "deepseek_v4",
];

#[test]
fn logits_of_state_spaces_and_recurrences_are_those_of_transformers() {
    let mut wrong = Vec::new();
    for name in MIXERS {
        let config = fs::read_to_string(reference(name).join("config.json")).unwrap();
        let (model, runtime) = model(&config, DType::F32);
        Weights::open(&reference(name)).unwrap().load(&model).unwrap_or_else(|problems| panic!("{name}: {problems}"));
        let (worst, largest) = off(name, &model, &runtime);
        // The norm of each head of xLSTM magnifies rounding: logits of transformers in f32 and f64 differ by 1.6e-5 of the largest.
        let allowed = if name == "xlstm" { 5e-5 } else { 5e-6 };
        // NaN is wrong too.
        let close = worst < allowed * largest;
        if !close {
            wrong.push(format!("{name}: off by {worst:e} of {largest}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Bytes of all tensors by name.
fn contents(folder: &Path) -> BTreeMap<String, (String, Vec<u64>, Vec<u8>)> {
    let weights = Weights::open(folder).unwrap();
    let read = |(file, tensor): (&TensorFile, &checkpoint::StoredTensor)| {
        let mut bytes = vec![0; tensor.bytes as usize];
        file.read(tensor, &mut bytes).unwrap();
        (tensor.name.clone(), (tensor.stored_as.clone(), tensor.shape.clone(), bytes))
    };
    weights.tensors().map(read).collect()
}

#[test]
fn what_is_exported_is_what_came_in() {
    for name in ["gpt2", "llama", "llama_tied"] {
        let dir = tempdir().unwrap();
        let (checkpoints, out) = (dir.path().join("checkpoints"), dir.path().join("out"));
        import(name, None, &checkpoints);
        checkpoint::export(&checkpoints, None, &out).unwrap();
        assert_eq!(contents(&out), contents(&reference(name)), "{name}");
        let config = fs::read_to_string(out.join("config.json")).unwrap();
        assert_eq!(config, fs::read_to_string(reference(name).join("config.json")).unwrap(), "{name}");
        // A folder with something in it is left alone.
        assert_eq!(checkpoint::export(&checkpoints, None, &out).unwrap_err()[0].code, "T0601");
    }
}

#[test]
fn an_export_in_another_dtype_says_so_in_its_config() {
    let dir = tempdir().unwrap();
    let (checkpoints, out) = (dir.path().join("checkpoints"), dir.path().join("new/out"));
    let report = import("llama", Some(DType::F32), &checkpoints);
    assert_eq!(report.result.get("converted").and_then(Value::as_uint), Some(21));
    checkpoint::export(&checkpoints.join("step-00000000"), Some(DType::BF16), &out).unwrap();
    // bf16 to f32 and back loses nothing.
    assert_eq!(contents(&out), contents(&reference("llama")));
    let wide = dir.path().join("wide");
    checkpoint::export(&checkpoints, None, &wide).unwrap();
    let config = fs::read_to_string(wide.join("config.json")).unwrap();
    assert!(config.contains("\"dtype\": \"float32\""), "{config}");
    assert!(contents(&wide).values().all(|(dtype, ..)| dtype == "F32"));
}

/// A copy of a reference folder that may be changed.
fn copy(name: &str, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(reference(name)).unwrap() {
        let entry = entry.unwrap();
        fs::write(to.join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
    }
}

fn refusal(folder: &Path, overrides: &[(&str, &str)]) -> String {
    let request = Import {
        from: folder.to_owned(),
        to: folder.join("checkpoints"),
        overrides: overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        assume: None,
        dtype: None,
    };
    let problems = checkpoint::import(&request).unwrap_err();
    assert!(!request.to.join("step-00000000").exists());
    problems.to_string()
}

#[test]
fn weights_of_another_model_are_refused_tensor_by_tensor() {
    let dir = tempdir().unwrap();
    copy("llama_tied", dir.path());
    let wide = refusal(dir.path(), &[("vocab_size", "31")]);
    assert!(wide.contains("`model.embed_tokens.weight` has shape [29, 16]; the model has [31, 16]"), "{wide}");
    let untied = refusal(dir.path(), &[("tie_word_embeddings", "false")]);
    assert!(untied.contains("no tensor `lm_head.weight`, which the model has as f16 [29, 16]"), "{untied}");
    let shallow = refusal(dir.path(), &[("num_hidden_layers", "1")]);
    assert_eq!(shallow.matches("which the model does not have").count(), 9, "{shallow}");
    let deep = refusal(dir.path(), &[("num_hidden_layers", "3")]);
    assert_eq!(deep.matches("no tensor `model.layers.2.").count(), 9, "{deep}");

    let gpt2 = tempdir().unwrap();
    copy("gpt2", gpt2.path());
    fs::copy(reference("llama_tied").join("model.safetensors"), gpt2.path().join("model.safetensors")).unwrap();
    let other = refusal(gpt2.path(), &[]);
    assert!(other.contains("no tensor `transformer.wte.weight`") && other.contains("`model.norm.weight`"), "{other}");
    fs::remove_file(gpt2.path().join("config.json")).unwrap();
    assert!(refusal(gpt2.path(), &[]).contains("put the model's own config.json beside the weights"));
}

#[test]
fn a_stored_head_is_the_embedding_it_is_tied_to() {
    let dir = tempdir().unwrap();
    copy("gpt2_hub", dir.path());
    let file = dir.path().join("model.safetensors");
    let open = TensorFile::open(&file).unwrap();
    let head = open.tensor("lm_head.weight").unwrap().clone();
    let data = open.bytes() - open.tensors().last().map(|last| last.offset + last.bytes).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[(data + head.offset) as usize] ^= 1;
    fs::write(&file, bytes).unwrap();
    let said = refusal(dir.path(), &[]);
    assert!(said.contains("`lm_head.weight` differs from `transformer.wte.weight`"), "{said}");
    assert!(said.contains("--set tie_word_embeddings=false"), "{said}");
}

#[test]
fn a_model_under_the_name_of_its_head_alone_is_read() {
    // Programs that write shared memory once may keep either name.
    let config = fs::read_to_string(reference("gpt2").join("config.json")).unwrap();
    let (source, _) = model(&config, DType::F32);
    Weights::open(&reference("gpt2")).unwrap().load(&source).unwrap();
    let renamed: Vec<NamedTensor> = model_tensors(&source)
        .into_iter()
        .map(|t| if t.name == "transformer.wte.weight" { NamedTensor::new("lm_head.weight", &t.tensor) } else { t })
        .collect();
    let dir = tempdir().unwrap();
    let manifest = checkpoint::Manifest { family: "gpt2".to_owned(), config: config.clone(), training: None };
    let store = checkpoint::Store::open(dir.path(), checkpoint::Keep { last: 1, best: false }).unwrap();
    let saved = store.save(&checkpoint::Snapshot { manifest, model: renamed, optimizer: Vec::new() }).unwrap();
    let (target, runtime) = model(&config, DType::F32);
    Weights::open(&saved.path).unwrap().load(&target).unwrap();
    let (worst, largest) = off("gpt2", &target, &runtime);
    assert!(worst < 2e-6 * largest);
}
