//! `napkin checkpoint`: in from transformers, verified, shown, out again; and what is said of damage.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn napkin(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.args(words).env_remove("COLUMNS").env("NO_COLOR", "1").output().expect("the program starts")
}

fn ends(words: &[&str], code: i32) -> (String, String) {
    let output = napkin(words);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {out}{err}");
    (out, err)
}

fn reference(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/reference/models").join(name);
    path.to_str().unwrap().to_owned()
}

/// A fresh folder, and a path in it as text.
fn scratch(name: &str) -> (PathBuf, impl Fn(&str) -> String) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let base = folder.clone();
    (folder, move |name| base.join(name).to_str().unwrap().to_owned())
}

#[test]
fn in_shown_verified_and_out() {
    let (_, path) = scratch("checkpoint_round");
    let (runs, out) = (path("runs"), path("out"));
    let (said, _) = ends(&["checkpoint", "import", &reference("llama"), &runs], 0);
    assert!(said.starts_with("imported 21 tensors of a llama model"), "{said}");
    let (shown, _) = ends(&["checkpoint", "show", &runs], 0);
    for part in ["weights of a llama model", "4,848 parameters", "model.safetensors", "bf16", "step-00000000"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let (json, _) = ends(&["checkpoint", "show", &runs, "--json"], 0);
    for part in ["\"schema\": \"napkin.checkpoint-show/1\"", "\"parameters\": 4848", "\"kind\": \"weights\""] {
        assert!(json.contains(part), "{part}: {json}");
    }
    let (whole, _) = ends(&["checkpoint", "verify", &runs], 0);
    assert!(whole.starts_with("whole: every checksum is right"), "{whole}");
    ends(&["checkpoint", "export", &runs, &out, "--dtype", "f32"], 0);
    let (shown, _) = ends(&["checkpoint", "show", &out], 0);
    assert!(shown.contains("no manifest") && shown.contains("f32"), "{shown}");
    // What it is at the meta device: a folder of a checkpoint is a folder of a model.
    let (params, _) = ends(&["params", &format!("{runs}/step-00000000")], 0);
    assert!(params.starts_with("4,848 parameters"), "{params}");
}

#[test]
fn damage_is_answered_with_no() {
    let (folder, path) = scratch("checkpoint_damage");
    let runs = path("runs");
    ends(&["checkpoint", "import", &reference("gpt2"), &runs], 0);
    let file = folder.join("runs/step-00000000/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 4;
    fs::write(&file, bytes).unwrap();
    let (said, _) = ends(&["checkpoint", "verify", &runs], 1);
    // A file of it is held against the manifest beside it too.
    let (of_file, _) = ends(&["checkpoint", "verify", file.to_str().unwrap()], 1);
    assert!(of_file.starts_with("not whole: 1 file is wrong"), "{of_file}");
    assert!(said.starts_with("not whole: 1 file is wrong"), "{said}");
    assert!(said.contains("error[T0611]: tensor `transformer.wte.weight` is damaged"), "{said}");
    let (json, _) = ends(&["checkpoint", "verify", &runs, "--json"], 1);
    assert!(json.contains("\"whole\": false") && json.contains("\"code\": \"T0611\""), "{json}");
    let (_, refused) = ends(&["checkpoint", "export", &runs, &path("out")], 2);
    assert!(refused.contains("transformer.wte.weight") && !folder.join("out").exists(), "{refused}");
}

#[test]
fn what_cannot_be_asked() {
    let (folder, path) = scratch("checkpoint_wrong");
    fs::write(folder.join("manifest.json"), r#"{"step": 4200, "optimizer_state_dit": "optim.bin"}"#).unwrap();
    let (said, _) = ends(&["checkpoint", "verify", &path("manifest.json")], 1);
    assert!(said.contains("did you mean `optimizer_state_dict`?"), "{said}");
    let (_, said) = ends(&["checkpoint", "show", &path("none")], 2);
    assert!(said.contains("T0604"), "{said}");
    let (_, said) =
        ends(&["checkpoint", "import", &reference("gpt2"), &path("runs"), "--dtype", "fp8", "--set", "x"], 2);
    assert!(said.contains("--dtype: `fp8` is no dtype of parameters") && said.contains("--set: `x`"), "{said}");
}
