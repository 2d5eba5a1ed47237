//! `napkin validate`: the committed tables of published runs against `docs/validation.md`, and what is refused.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command that `docs/validation.md` is made by, but for the file.
const MADE_BY: [&str; 6] = [
    "validate",
    "data/published/published.csv",
    "data/published/layouts.csv",
    "data/published/times.csv",
    "--rows",
    "outside",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_napkin")).args(words).current_dir(root()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The document names its command, and ends with what the command writes today.
#[test]
fn the_document_is_what_the_command_writes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made.md");
    let output = run(&[&MADE_BY[..], &["-o", file.to_str().unwrap()]].concat());
    // Some numbers are outside of the bounds: the answer is no.
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let document = fs::read_to_string(root().join("docs/validation.md")).unwrap();
    assert!(document.contains(&format!("napkin {}", MADE_BY.join(" "))));
    let made = fs::read_to_string(file).unwrap();
    // Its last line is the command, which names the file.
    let (made, _) = made.rsplit_once("\n`napkin").unwrap();
    assert!(made.len() > 1000 && document.ends_with(made), "docs/validation.md is stale: make it again");
}

#[test]
fn sources_and_quantities_are_chosen() {
    let table = "data/published/published.csv";
    let output = run(&["validate", table, "--source", "mosaic", "--quantity", "params", "--split", "test"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    // The table has 83 rows of this source in this split, each with its exact count.
    assert!(text.starts_with("83 of 83 numbers within bounds\n"), "{text}");
    assert!(text.contains("mosaic-002") && !text.contains("MPT-70b  nv"), "{text}");
}

#[test]
fn what_is_wrong_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("t.csv");
    fs::write(&table, "row_id,source_id,model,n_layers,d_model,n_heads,d_ff,vocab,seq_len\na,s,m,two,,,,,\n").unwrap();
    for (words, what) in [
        (vec!["validate", "no-such.csv"], "cannot be read"),
        (vec!["validate", table.to_str().unwrap()], "n_layers: `two` is no whole number"),
        (vec!["validate", "data/published/published.csv", "--source", "mosaik"], "--source mosaic"),
        (vec!["validate", "data/published/published.csv", "--quantity", "speed"], "valid are params, flops, memory"),
        (vec!["validate", "data/runtime.csv"], "no column row_id"),
    ] {
        let output = run(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(what), "{words:?}: {}", stderr(&output));
    }
}
