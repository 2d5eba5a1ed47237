//! Documents and pictures that the product makes of itself are what it makes today. `BLESS=1` writes them again.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the program writes to a file of that name.
fn made(words: &str, name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    let output = command.args(words.split(' ')).arg("-o").arg(&file).current_dir(root()).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code < 2), "{words}: {output:?}");
    fs::read_to_string(file).unwrap()
}

fn check(path: &str, text: &str) {
    let path = root().join(path);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    assert!(known == text, "{} is stale: BLESS=1 cargo test -p napkin-cli --test docs", path.display());
}

#[test]
fn formulas() {
    let made = made("explain --all", "formulas.md");
    // The last line is the command, which names a file that is gone.
    let (made, _) = made.rsplit_once("\n`napkin").unwrap();
    let head = "# Formulas\n\nThe closed forms of the field that Napkin prints beside what it traces, each once, with who says so and where it\n\
                stands in the code. `napkin explain ID LETTER=VALUE` computes one. Made by `napkin explain --all -o docs/formulas.md`.\n\n";
    check("docs/formulas.md", &format!("{head}{made}"));
}

#[test]
fn pictures() {
    for (picture, words) in [
        ("ledger.svg", "plan llama-3.1-8b --hw h100-sxm -n 8 --seq-len 8192 --tokens 1T"),
        ("timeline.svg", "ledger llama-3.1-8b --hw h100-sxm -n 8 --zero 3 --seq-len 8192 --timeline"),
        ("flops.svg", "flops llama-3.1-8b --seq-len 8192"),
        ("bits.svg", "dtype 0.1"),
        ("time.svg", "time dense:70B --tokens 15T --hw h100-sxm -n 1024"),
    ] {
        check(&format!("docs/img/{picture}"), &made(words, picture));
    }
}

/// Pages and pictures of every kind of answer need nothing from outside and run nothing.
#[test]
fn pages_are_whole() {
    let page = made("report gpt2 --hw a100-sxm-80gb -n 2 --tokens 1B --gbs 8", "report.html");
    for part in ["id=\"report\"", "id=\"ledger\"", "id=\"flops\"", "id=\"layout\"", "napkin ledger gpt2", "as a table"]
    {
        assert!(page.contains(part), "{part}");
    }
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    for part in ["<script", "src=", "href=\"http", "@import", "<link"] {
        assert!(!outside.contains(part), "{part}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn the_manual_names_every_command() {
    let output = Command::new(env!("CARGO_BIN_EXE_napkin")).arg("man").output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.starts_with(".ie") || page.contains(".TH napkin 1"), "{page}");
    for command in ["plan", "ledger", "layout", "train", "man"] {
        assert!(page.contains(&format!("napkin\\-{command}(1)")), "{command}: {page}");
    }
    // Its flags are those that the command says it has; flags of all stand once.
    let section =
        |name: &str| page.split(&format!(".SH NAPKIN {name}\n")).nth(1).unwrap().split("\n.SH ").next().unwrap();
    assert!(section("LAYOUT").contains("\\-\\-virtual\\-stages") && !section("LEDGER").contains("virtual"));
    assert_eq!(page.matches("\n\\fB\\-\\-ascii").count(), 1);
    let output = Command::new(env!("CARGO_BIN_EXE_napkin")).args(["man", "legder"]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("ledger"));
    assert_eq!(output.status.code(), Some(2));
}
