//! Input that nobody should have to think about: it must be refused, quickly, and never panic.

mod support;

use std::fmt::Write;
use std::time::{Duration, Instant};

use napkin_nn::config::Config;
use proptest::prelude::*;
use support::said;

/// Far above what any of these takes, far below what a quadratic pass would.
/// Not a benchmark: what is quadratic in these inputs takes hours.
const LIMIT: Duration = Duration::from_secs(60);

fn codes(bytes: &[u8]) -> Vec<&'static str> {
    let (config, problems) = Config::parse("config.json", bytes);
    assert_eq!(config.is_none(), problems.has_errors());
    problems.iter().map(|problem| problem.code).collect()
}

#[test]
fn refused_quickly() {
    let many = |item: &str, count: usize| format!("{{\"a\": [{}0]}}", item.repeat(count));
    let mut keys = String::new();
    for i in 0..200_000 {
        let _ = write!(keys, "\"k{i}\": \"1\", ");
    }
    let table: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("100 MB", vec![b'['; 100 << 20], &["T0101"]),
        ("a million brackets", vec![b'['; 1_000_000], &["T0106"]),
        ("a million objects", "{\"a\":".repeat(1_000_000).into_bytes(), &["T0106"]),
        ("129 deep", format!("{}{}", "[".repeat(129), "]".repeat(129)).into_bytes(), &["T0106"]),
        ("128 deep", format!("{}{}", "[".repeat(128), "]".repeat(128)).into_bytes(), &["T0108"]),
        ("a million values", many("0,", 1_000_000).into_bytes(), &["T0107"]),
        ("a long number", format!("{{\"a\": {}}}", "9".repeat(8 << 20)).into_bytes(), &[]),
        ("a long string", format!("{{\"a\": \"{}\"}}", "\\n".repeat(4 << 20)).into_bytes(), &[]),
        ("a long comment", format!("{{}} /*{}", "x".repeat(8 << 20)).into_bytes(), &["T0104"]),
        ("spaces", vec![b' '; 16 << 20], &["T0103"]),
        ("latin-1", b"{\"a\": \"caf\xe9\"}".to_vec(), &["T0102"]),
        ("utf-16", b"\xff\xfe{\x00}\x00".to_vec(), &["T0102"]),
        ("half a character", b"{\"a\": \"\xf0\x9f".to_vec(), &["T0102"]),
        ("many keys", format!("{{{keys}\"z\": 1}}").into_bytes(), &[]),
        ("zeros", vec![0; 1000], &["T0104"]),
    ];
    for (name, bytes, expected) in table {
        let start = Instant::now();
        assert_eq!(codes(&bytes), expected, "{name}");
        said(&bytes);
        assert!(start.elapsed() < LIMIT, "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn problems_of_one_kind_are_cut_off() {
    let same = "\"a\": NaN, ".repeat(50_000);
    let codes = codes(format!("{{{same} \"b\": 1}}").as_bytes());
    assert_eq!(codes.iter().filter(|code| **code == "T0109").count(), 21);
    assert_eq!(codes.iter().filter(|code| **code == "T0110").count(), 21);

    let mut wrong = String::new();
    for i in 0..50_000 {
        let _ = write!(wrong, "\"key{i}\": -1, ");
    }
    let said = said(format!("{{{wrong} \"b\": 1}}").as_bytes());
    assert!(said.contains("49901 more warnings"), "{said}");
    assert!(said.len() < 100_000);
}

#[test]
fn a_bad_byte_is_placed() {
    let expected = "\
error[T0102]: byte 0xe9 is not UTF-8 text
  --> config.json:2:12
   |
 2 |   \"a\": \"caf\u{fffd}\"}
   |            ^
   |
   = why: JSON is UTF-8
   = try: save the file as UTF-8, or check that it is a JSON file at all";
    assert_eq!(said(b"{\n  \"a\": \"caf\xe9\"}"), expected);
}

const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u",
    "d83d",
    "-",
    "1",
    "0",
    ".5",
    "e9",
    "NaN",
    "Infinity",
    "-Infinity",
    "true",
    "null",
    "True",
    "//",
    "/*",
    "*/",
    "#",
    "'",
    "\n",
    " ",
    "é",
    "\u{feff}",
    "\u{1f600}",
    "\"hidden_size\": ",
    "\"vocab_size\": ",
    "\"text_config\": {",
    "\"num_attention_heads\": ",
    "\"num_key_value_heads\": ",
    "18446744073709551616",
];

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        said(&bytes);
    }

    #[test]
    fn any_pieces_are_answered(picks in proptest::collection::vec(0..PIECES.len(), 0..60)) {
        let text: String = picks.iter().map(|pick| PIECES[*pick]).collect();
        said(text.as_bytes());
    }

    #[test]
    fn any_cut_or_change_is_answered(at in 0usize..1000, byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = include_bytes!("data/cfg_nested_text.json").to_vec();
        let at = at % bytes.len();
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] = byte;
        }
        said(&bytes);
    }

    #[test]
    fn any_override_is_answered(key in "[a-z_.0]{0,12}", value in "[\\[\\]{}\":,0-9a-z. é-]{0,16}") {
        let (config, _) = Config::parse("config.json", include_bytes!("data/cfg_kv_null.json"));
        if let Some(config) = config {
            let (config, _) = config.with_overrides(&[(key, value)]);
            let _ = support::read(&config);
        }
    }
}
