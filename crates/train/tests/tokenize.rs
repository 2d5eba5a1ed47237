//! Texts to token files: the ids are those of the encodings' own programs, whatever the pieces.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use napkin_train::data::{OpenOptions, PIECE_BYTES, TokenFile, Tokenize, Tokenized, Tokenizer};

const NOVEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/text/persuasion.txt");

/// Name, number of ids of the novel, and CRC-32 of these ids as little-endian `u32`. Made with tokenizers 0.23.3 (`gpt2`,
/// from its `encoder.json` and `vocab.bpe`) and tiktoken 0.14.0 (all of them; the two agree on `gpt2`).
const REFERENCE: [(&str, u64, u32); 4] = [
    ("gpt2", 115_079, 2_634_189_717),
    ("p50k_base", 115_070, 3_416_083_440),
    ("cl100k_base", 111_689, 2_301_358_621),
    ("o200k_base", 111_152, 79_921_334),
];

fn request(inputs: &[PathBuf], output: &Path, tokenizer: Tokenizer) -> Tokenize {
    Tokenize {
        inputs: inputs.to_vec(),
        output: output.to_owned(),
        tokenizer,
        end_of_text: false,
        separator: None,
        lossy: false,
        force: false,
        piece_bytes: PIECE_BYTES,
    }
}

fn run(request: &Tokenize) -> (Tokenized, Vec<u32>) {
    let written = request.run(&mut |_| {}).unwrap();
    let file = TokenFile::open(&request.output, &OpenOptions::default()).unwrap();
    assert_eq!(file.vocabulary(), Some(&written.vocabulary));
    let ids = file.get(0..file.len()).unwrap();
    assert_eq!(written.tokens, ids.len() as u64);
    (written, ids)
}

fn code(request: &Tokenize) -> &'static str {
    let problems = request.run(&mut |_| {}).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems}");
    problems[0].code
}

fn crc32(ids: &[u32]) -> u32 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    crc32fast::hash(&bytes)
}

#[test]
fn a_novel_in_pieces_is_what_other_programs_make_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    for (piece_bytes, reference) in [4_000, 9_999, 70_001, PIECE_BYTES].into_iter().zip(REFERENCE) {
        let (name, tokens, checksum) = reference;
        let output = folder.path().join(name);
        let request = Tokenize { piece_bytes, ..request(&[NOVEL.into()], &output, Tokenizer::by_name(name).unwrap()) };
        let mut told = Vec::new();
        let written = request.run(&mut |progress| told.push(progress)).unwrap();
        assert!(told.windows(2).all(|pair| pair[0].bytes < pair[1].bytes && pair[0].tokens < pair[1].tokens));
        let last = told.last().unwrap();
        assert_eq!((last.bytes, last.of, last.tokens), (466_854, 466_854, tokens), "{name}");
        let ids = TokenFile::open(&output, &OpenOptions::default()).unwrap().get(0..written.tokens).unwrap();
        assert_eq!(crc32(&ids), checksum, "{name}");
        let text = request.tokenizer.decode(&ids);
        assert!(text == fs::read(NOVEL).unwrap(), "{name}: the text does not come back");
    }
}

#[test]
fn documents_end_where_they_are_said_to() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let a = write("a.txt", "one<|endoftext|>two<|endoftext|><|endoftext|>");
    let b = write("b.txt", "three");
    let tokenizer = || Tokenizer::by_name("gpt2").unwrap();
    let word = |text: &str| tokenizer().encode(text).unwrap();
    let end = [50_256];

    let files = [a.clone(), b.clone()];
    let whole = Tokenize { end_of_text: true, ..request(&files, &folder.path().join("1"), tokenizer()) };
    let (written, ids) = run(&whole);
    let text = word("one<|endoftext|>two<|endoftext|><|endoftext|>");
    assert_eq!(ids, [&text[..], &end, &word("three"), &end].concat());
    assert_eq!(written.documents, 2);
    assert_eq!(written.inputs, [(a.clone(), 45, text.len() as u64 + 1), (b.clone(), 5, 2)]);

    let separator = Some("<|endoftext|>".to_owned());
    let split = Tokenize { separator: separator.clone(), output: folder.path().join("2"), ..whole };
    let (written, ids) = run(&split);
    assert_eq!(ids, [&word("one")[..], &end, &word("two"), &end, &word("three"), &end].concat());
    assert_eq!(written.documents, 3);

    let unmarked = Tokenize { end_of_text: false, output: folder.path().join("3"), ..split };
    assert_eq!(run(&unmarked).1, [word("one"), word("two"), word("three")].concat());

    let bytes = Tokenize {
        tokenizer: Tokenizer::bytes(true),
        end_of_text: true,
        output: folder.path().join("4"),
        piece_bytes: 2,
        ..unmarked
    };
    let spelled: Vec<u32> = "one\u{100}two\u{100}three\u{100}".chars().map(u32::from).collect();
    assert_eq!(run(&bytes).1, spelled);

    let none = Tokenize { tokenizer: Tokenizer::bytes(false), output: folder.path().join("5"), ..bytes };
    assert_eq!(code(&none), "T0515");
}

#[test]
fn text_that_is_no_utf8() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latin.txt");
    let mut text = b"first line\nna\xEFve text, caf\xE9\n".to_vec();
    text.extend(b"more words of the same kind\n".repeat(400));
    fs::write(&path, &text).unwrap();
    let output = folder.path().join("out");
    let strict = Tokenize { piece_bytes: 100, ..request(&[path], &output, Tokenizer::by_name("gpt2").unwrap()) };
    let problems = strict.run(&mut |_| {}).unwrap_err();
    let shown = problems.to_string();
    assert_eq!(problems[0].code, "T0516");
    assert!(shown.contains("byte 13 (0xEF)") && shown.contains("latin.txt:2"), "{shown}");
    assert!(shown.contains("iconv -f windows-1252"), "{shown}");
    assert!(!output.exists(), "a file that failed is left behind");

    let lossy = Tokenize { lossy: true, ..strict };
    let (written, ids) = run(&lossy);
    assert_eq!(written.replaced, 2);
    assert_eq!(lossy.tokenizer.decode(&ids), String::from_utf8_lossy(&text).as_bytes());

    let raw = Tokenize { lossy: false, tokenizer: Tokenizer::bytes(false), force: true, ..lossy };
    assert_eq!(run(&raw).1, text.iter().map(|&byte| u32::from(byte)).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_done_leaves_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("text"), "a text").unwrap();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("blank"), " ".repeat(2_000_000)).unwrap();
    let of = |input: &str, output: &str| request(&[path(input)], &path(output), Tokenizer::by_name("gpt2").unwrap());
    assert_eq!(code(&of("none", "out")), "T0501");
    assert_eq!(code(&of("empty", "out")), "T0502");
    assert_eq!(code(&of("blank", "out")), "T0517");
    assert_eq!(code(&Tokenize { force: true, ..of("text", "text") }), "T0513");
    assert_eq!(code(&of("text", "empty")), "T0513");
    assert_eq!(code(&of("text", "no/such/folder")), "T0501");
    // All inputs are looked at before anything is written.
    let several = request(&[path("none"), path("text"), path("empty")], &path("out"), Tokenizer::bytes(false));
    assert_eq!(several.run(&mut |_| {}).unwrap_err().len(), 2);
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["blank", "empty", "text"]);
    assert_eq!(fs::read(path("text")).unwrap(), b"a text");
}
