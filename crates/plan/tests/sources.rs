//! `docs/sources.md`: every table of facts and who says so, made from the tables themselves.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of a folder with this extension, in order.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(root().join("data").join(folder)).unwrap();
    let mut found: Vec<PathBuf> = all
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|own| own == extension))
        .collect();
    found.sort();
    found
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// Every source in a TOML file with its date, and the keys that stand beside it.
fn sources(value: &toml::Value, path: &str, out: &mut BTreeMap<(String, String), Vec<String>>) {
    match value {
        toml::Value::Table(table) => {
            let text = |key: &str| table.get(key).and_then(toml::Value::as_str).map(str::to_owned);
            if let Some(source) = text("source") {
                let date = text("date").unwrap_or_default();
                out.entry((source, date)).or_default().push(path.to_owned());
            }
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                sources(value, &path, out);
            }
        }
        toml::Value::Array(all) => all.iter().for_each(|value| sources(value, path, out)),
        _ => {}
    }
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*").replace('_', "\\_").replace('<', "\\<")
}

fn tomls(out: &mut String, folder: &str, title: &str) {
    let _ = write!(out, "\n## {title}\n\n| table | what | source | date |\n|---|---|---|---|\n");
    for file in files(folder, "toml") {
        let value: toml::Value = toml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let mut found = BTreeMap::new();
        sources(&value, "", &mut found);
        assert!(!found.is_empty(), "{} names no source", file.display());
        for ((source, date), mut keys) in found {
            keys.dedup();
            let cells = [stem(&file), keys.join(", "), source, date].map(|text| escape(&text));
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }
}

/// Rows of a CSV file: these columns, each row once.
fn csvs(out: &mut String, file: &str, title: &str, columns: &[&str]) {
    let _ = write!(out, "\n## {title}\n\n| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_path(root().join("data").join(file)).unwrap();
    let names = reader.headers().unwrap().clone();
    let at: Vec<usize> = columns
        .iter()
        .map(|column| names.iter().position(|name| name == *column).unwrap_or_else(|| panic!("{file}: {column}")))
        .collect();
    let mut seen = Vec::new();
    for row in reader.records() {
        let row = row.unwrap();
        let line = at.iter().map(|at| escape(row[*at].trim())).collect::<Vec<_>>().join(" | ");
        if !seen.contains(&line) {
            let _ = writeln!(out, "| {line} |");
            seen.push(line);
        }
    }
}

fn document() -> String {
    let mut out = "# Where the facts come from\n\nEvery number that Napkin did not compute stands in `data/`, beside its source. This is all of them, made from the\n\
                   tables: `BLESS=1 cargo test -p napkin-plan --test sources` writes it again.\n"
        .to_owned();
    tomls(&mut out, "hardware", "Accelerators");
    tomls(&mut out, "network", "Networks");
    tomls(&mut out, "time", "Constants of time");
    csvs(&mut out, "scaling_laws.csv", "Scaling laws", &["display", "source", "date"]);
    csvs(&mut out, "models/SOURCES.csv", "Presets", &["preset", "kind", "source_repository", "source_path"]);
    for engine in ["megatron", "torchtitan", "deepspeed", "fsdp", "nanotron"] {
        csvs(&mut out, &format!("engines/{engine}.csv"), &format!("Options of {engine}"), &["source", "read"]);
    }
    csvs(
        &mut out,
        "engines/overlap.csv",
        "Exchanges of engines beside passes",
        &["engine", "exchange", "source", "read"],
    );
    csvs(&mut out, "published/SOURCES.csv", "Published measurements", &["source_id", "document", "rows"]);
    out
}

#[test]
fn the_document_is_what_the_tables_say() {
    let path = root().join("docs/sources.md");
    let made = document();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), made, "docs/sources.md is stale");
}
