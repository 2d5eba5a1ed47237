//! `tokenize` and `inspect` as their users run them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn napkin(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_napkin"))
        .args(words)
        .current_dir(folder)
        .env_remove("COLUMNS")
        .output()
        .expect("the program starts")
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is UTF-8")
}

/// The exit code, standard output and standard error.
fn run(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = napkin(folder, words);
    (output.status.code(), utf8(&output.stdout).to_owned(), utf8(&output.stderr).to_owned())
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.txt"), "Hello world").expect("a file");
    folder
}

#[test]
fn a_text_becomes_tokens_and_these_are_looked_at() {
    let folder = folder();
    let at = folder.path();
    let (code, out, err) = run(at, &["tokenize", "a.txt", "-o", "t.bin"]);
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(out.starts_with("2 tokens in t.bin   gpt2, u16, 132 B\n"), "{out}");
    // The ids of GPT-2's own encoder, behind 128 bytes of header.
    let file = fs::read(at.join("t.bin")).expect("the file");
    assert_eq!(file[128..], [15_496_u16, 995].map(u16::to_le_bytes).concat());

    let (code, out, err) = run(at, &["inspect", "t.bin", "gpt2"]);
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(out.contains("as text     \"Hello world\""), "{out}");
    let (code, out, _) = run(at, &["inspect", "t.bin", "--vocab", "15496", "--json"]);
    assert_eq!(code, Some(1));
    for part in ["\"usable\": false", "\"first_position\": 0", "\"T0507\"", "\"answered\": false"] {
        assert!(out.contains(part), "{part} in {out}");
    }

    // The report's own form, and the choice that was made.
    let (code, out, _) =
        run(at, &["tokenize", "a.txt", "-o", "b.bin", "--tokenizer", "bytes", "--end-of-text", "--json"]);
    assert_eq!(code, Some(0));
    for part in ["\"schema\": \"napkin.tokenize/1\"", "\"tokens\": 12", "\"size\": 257", "\"end_of_text\": 256"] {
        assert!(out.contains(part), "{part} in {out}");
    }
}

#[test]
fn mistakes_are_answered_and_nothing_is_overwritten() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("t.bin"), "precious").expect("a file");
    for (words, part) in [
        (&["tokenize", "a.txt", "-o", "t.bin"][..], "error[T0513]: `t.bin` exists already"),
        (&["tokenize", "a.txt"], "one token file is written, and 0 were named"),
        (&["tokenize", "a.txt", "-o", "x", "-o", "y"], "one token file is written, and 2 were named"),
        (&["tokenize", "a.txt", "-o", "x", "--tokenizer", "gpt9"], "error[T0515]: no tokenizer is called `gpt9`"),
        (&["tokenize", "a.txt", "none.txt", "-o", "x"], "error[T0501]: cannot open `none.txt`"),
        (&["tokenize", "a.txt", "-o", "x", "--separator", ""], "--separator"),
        (&["inspect", "none.bin"], "error[T0501]: cannot open `none.bin`"),
        (&["inspect", "t.bin", "--ids", "f32"], "--ids: `f32` is no type of token ids"),
        (&["inspect", "t.bin", "--vocab", "0"], "--vocab"),
    ] {
        let (code, out, err) = run(at, words);
        assert_eq!((code, &*out), (Some(2), ""), "{words:?}");
        assert!(err.contains(part), "{words:?}: {err}");
    }
    assert_eq!(fs::read(at.join("t.bin")).expect("the file"), b"precious");
    let left = fs::read_dir(at).expect("the folder").count();
    assert_eq!(left, 2, "only what was there");

    let (code, ..) = run(at, &["tokenize", "a.txt", "-o", "t.bin", "--force"]);
    assert_eq!(code, Some(0));
    assert_ne!(fs::read(at.join("t.bin")).expect("the file"), b"precious");
}

#[test]
fn a_run_on_tokens_of_another_vocabulary_says_which_token() {
    let folder = folder();
    let at = folder.path();
    let ids: Vec<u8> =
        (0..4000_u16).map(|i| if i == 2000 { 300 } else { i % 256 }).flat_map(u16::to_le_bytes).collect();
    fs::write(at.join("ids.bin"), ids).expect("a file");
    let (code, _, err) = run(at, &["train", "--data", "ids.bin", "--ids", "u16", "--steps", "500"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("error[T0507]: token 2000 is 300, at or above the vocabulary of 256"), "{err}");
    let (code, _, err) = run(at, &["train", "--data", "ids.bin", "--steps", "1"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("= try: --ids u16 (the first ids look like it)"), "{err}");
}

#[test]
fn weights_are_inspected_by_their_headers() {
    let folder = folder();
    let at = folder.path();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/reference/models");
    let llama = models.join("llama").display().to_string();
    let (code, out, err) = run(at, &["inspect", &llama]);
    assert_eq!((code, &*err), (Some(0), ""));
    for part in ["parameters of the config", "the same number", "attention", "with gradients and AdamW"] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let index = format!("{llama}/model.safetensors.index.json");
    let (code, out, _) = run(at, &["inspect", &index, "--json"]);
    assert_eq!(code, Some(0));
    for part in ["\"schema\": \"napkin.weights/1\"", "\"agrees\": true", "\"compared_by\": \"name\""] {
        assert!(out.contains(part), "{part} in {out}");
    }
    // Of another model: the answer is no.
    let (code, out, _) = run(at, &["inspect", &llama, "gpt2"]);
    assert_eq!(code, Some(1), "{out}");
    let (code, _, err) = run(at, &["inspect", &llama, "no-such-model"]);
    assert_eq!(code, Some(2), "{err}");
    // A config that cannot be read costs the comparison, not the answer.
    let weights = models.join("gpt2/model.safetensors");
    fs::copy(&weights, at.join("model.safetensors")).expect("a copy");
    fs::write(at.join("config.json"), r#"{"model_type": "nothing-known"}"#).expect("a file");
    let (code, out, _) = run(at, &["inspect", "model.safetensors"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("what is stored is not compared with the config"), "{out}");
    // Cut short: the place and the reason.
    let whole = fs::read(&weights).expect("the file");
    fs::write(at.join("model.safetensors"), &whole[..whole.len() - 1]).expect("a file");
    let (code, out, err) = run(at, &["inspect", "model.safetensors"]);
    assert_eq!((code, &*out), (Some(2), ""));
    assert!(err.contains("error[T0610]: cut short"), "{err}");
    // Ids may begin like weights by chance: whoever names their type has ids.
    let (code, ..) = run(at, &["inspect", "model.safetensors", "--ids", "u16", "--vocab", "65536"]);
    assert_ne!(code, Some(101));
}

#[test]
#[cfg(unix)]
fn a_link_or_device_is_not_replaced_by_a_file() {
    let folder = folder();
    let at = folder.path();
    std::os::unix::fs::symlink(at.join("elsewhere"), at.join("link.bin")).expect("a link");
    let (code, _, err) = run(at, &["tokenize", "a.txt", "-o", "link.bin", "--force"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("it is a device, a link or a folder"), "{err}");
    assert!(at.join("link.bin").is_symlink() && !at.join("elsewhere").exists());
}
