//! What is wrong with a file of tokens is said, with the remedy.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use napkin_train::data::{Format, IdType, Inspect, Inspection, OpenOptions, TokenFile, TokenWriter, Tokenizer};

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn inspect(path: PathBuf, dtype: Option<IdType>, vocab_size: Option<u64>) -> Inspection {
    Inspect { path, dtype, vocab_size, tokenizer: None }.run(&mut |_, _| {}).unwrap()
}

fn codes(found: &Inspection) -> Vec<&'static str> {
    found.problems.iter().map(|problem| problem.code).collect()
}

fn u16s(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    ids.into_iter().flat_map(|id| (id as u16).to_le_bytes()).collect()
}

fn u32s(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    ids.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Ids as irregular as those of a text, below 50,257.
fn ids() -> impl Iterator<Item = u32> {
    (0..5000_u32).map(|i| i.wrapping_mul(2_654_435_761) % 50_257)
}

#[test]
fn counts() {
    let files = Files::new();
    // 1, 2, 2, 4, 4, 4, 4 and nothing else: H = sum of p ln (1 / p) with p = 1/7, 2/7, 4/7.
    let path = files.write("ids", &u16s([4, 2, 4, 1, 4, 2, 4]));
    let found = inspect(path, Some(IdType::U16), Some(4));
    let [reading] = &found.readings[..] else { panic!("{:?}", found.readings) };
    assert_eq!((reading.count, reading.min, reading.max, reading.distinct), (7, 1, 4, 3));
    assert_eq!(reading.top, [(4, 4), (2, 2), (1, 1)]);
    assert_eq!(reading.first, [4, 2, 4, 1, 4, 2, 4]);
    assert_eq!(reading.above, Some((4, 0, 4)));
    let entropy = (7_f64.ln() + 2.0 * (3.5_f64).ln() + 4.0 * 1.75_f64.ln()) / 7.0;
    assert!((reading.entropy - entropy).abs() < 1e-12);
    assert_eq!(codes(&found), ["T0507"]);
    assert!(found.problems.to_string().contains("4 of 7 tokens (57.14 %) are at or above the vocabulary of 4"));
    assert!(found.problems.to_string().contains("vocab_size 5 or more"));
}

#[test]
fn large_files_are_counted_by_several_threads() {
    let files = Files::new();
    let count = 40_000_000_u64;
    let mut bytes = u16s((0..count).map(|i| (i % 1000) as u32));
    // Behind the first blocks of all threads of most machines.
    let place = 39_999_990_usize;
    bytes[2 * place..2 * place + 2].copy_from_slice(&2000_u16.to_le_bytes());
    let mut last = 0;
    let path = files.write("ids", &bytes);
    let request = Inspect { path, dtype: Some(IdType::U16), vocab_size: Some(1500), tokenizer: None };
    let found = request
        .run(&mut |done, of| {
            assert!(done > last && of == 2 * count);
            last = done;
        })
        .unwrap();
    assert_eq!(last, 2 * count);
    let reading = &found.readings[0];
    assert_eq!((reading.count, reading.distinct, reading.max), (count, 1001, 2000));
    assert_eq!(reading.above, Some((1, place as u64, 2000)));
    assert_eq!(reading.top[0], (0, 40_000));
}

#[test]
fn a_wrong_width_is_seen_both_ways() {
    let files = Files::new();
    let wide = files.write("wide", &u32s(ids().map(|id| id * 2)));
    let narrow = files.write("narrow", &u16s(ids()));
    for (path, wrong, right) in [(&wide, IdType::U16, IdType::U32), (&narrow, IdType::U32, IdType::U16)] {
        let found = inspect(path.clone(), Some(wrong), None);
        assert_eq!(codes(&found), ["T0503"], "{wrong}");
        assert_eq!(found.problems[0].help, [format!("--ids {right}")]);
        assert!(!found.is_usable());
        assert!(inspect(path.clone(), Some(right), Some(101_000)).is_usable());
        // Without a type, both are shown and the right one comes first.
        let found = inspect(path.clone(), None, None);
        assert_eq!(found.readings.iter().map(|reading| reading.dtype).collect::<Vec<_>>(), [right, wrong]);
        assert_eq!(codes(&found), ["T0503"]);
        assert!(found.problems[0].help[0].starts_with(&format!("--ids {right}")));
    }
}

#[test]
fn bytes_left_over() {
    let files = Files::new();
    let mut bytes = u16s(ids());
    bytes.push(1);
    let found = inspect(files.write("odd", &bytes), Some(IdType::U16), Some(50_257));
    assert_eq!(codes(&found), ["T0504"]);
    assert_eq!(found.readings[0].count, 5000);
}

#[test]
fn numpy_arrays() {
    let files = Files::new();
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{:<117}\n", "{'descr': '<u2', 'fortran_order': False, 'shape': (5000,), }").bytes());
    npy.extend(u16s(ids()));
    let path = files.write("ids.npy", &npy);
    let found = inspect(path.clone(), None, Some(50_257));
    assert!(found.is_usable());
    assert_eq!((found.format, found.offset, found.stated), (Some(Format::Npy), 128, Some(5000)));
    assert_eq!(found.readings[0].first[..3], ids().take(3).map(i64::from).collect::<Vec<_>>());

    let found = inspect(path, Some(IdType::U16), None);
    assert_eq!(codes(&found), ["T0506"]);
    assert!(found.problems[0].message.contains("64 ids of noise"), "{}", found.problems);

    // Read as raw ids by another tool and written with a header of its own.
    let mut shard = u32s([20_240_520, 1, npy.len() as u32 / 2].into_iter().chain([0; 253]));
    shard.extend(&npy);
    let found = inspect(files.write("shard.bin", &shard), None, None);
    assert_eq!(found.format, Some(Format::LlmC));
    assert!(codes(&found).contains(&"T0506"), "{}", found.problems);

    let found = inspect(files.write("cut.npy", &npy[..npy.len() - 5]), None, None);
    assert_eq!(codes(&found), ["T0505", "T0504"]);
    assert_eq!((found.stated, found.readings[0].count), (Some(5000), 4997));
    let found = inspect(files.write("head.npy", &npy[..50]), None, None);
    assert_eq!(codes(&found), ["T0506"]);
    assert!(found.readings.is_empty());
}

#[test]
fn own_files() {
    let files = Files::new();
    let tokenizer = Tokenizer::by_name("gpt2").unwrap();
    let path = files.0.path().join("tokens.bin");
    let mut writer = TokenWriter::create(&path, tokenizer.vocabulary().clone(), false).unwrap();
    writer.push(&tokenizer.encode("Hello world, hello world").unwrap()).unwrap();
    writer.finish().unwrap();
    let found = inspect(path.clone(), None, None);
    assert!(found.is_usable(), "{}", found.problems);
    assert_eq!((found.format, found.vocab_size), (Some(Format::Napkin), Some(50_257)));
    assert_eq!(found.text.as_deref(), Some("Hello world, hello world"));
    assert_eq!(found.tokens[0], " world");
    assert_eq!(codes(&inspect(path.clone(), None, Some(100))), ["T0507"]);

    let whole = fs::read(&path).unwrap();
    for bit in [0, 7, 40] {
        let mut flipped = whole.clone();
        flipped[128 + bit / 8] ^= 1 << (bit % 8);
        let found = inspect(files.write("flipped", &flipped), None, None);
        assert_eq!(codes(&found), ["T0518"], "bit {bit}");
    }
    assert_eq!(codes(&inspect(files.write("cut", &whole[..whole.len() - 2]), None, None)), ["T0505"]);
    assert_eq!(codes(&inspect(files.write("header", &whole[..100]), None, None)), ["T0506"]);
}

#[test]
fn what_holds_no_tokens() {
    let files = Files::new();
    assert_eq!(codes(&inspect(files.write("empty", b""), None, None)), ["T0502"]);
    let text = files.write("text.bin", &b"Call me Ishmael. Some years ago, never mind how long precisely. ".repeat(9));
    let found = inspect(text.clone(), None, None);
    assert!(found.is_usable() && found.format == Some(Format::Text));
    assert!(found.text.unwrap().starts_with("Call me"));
    assert_eq!(codes(&inspect(text, Some(IdType::U16), None)), ["T0511"]);
    let zip = [&b"PK\x03\x04\x14\0\0\0\x08\0"[..], &[0xFF; 50]].concat();
    let found = inspect(files.write("ids.npz", &zip), None, None);
    assert_eq!(codes(&found), ["T0519"]);
    assert!(found.readings.is_empty());
    let negative: Vec<u8> = [5_i32, -1, 7].into_iter().flat_map(i32::to_le_bytes).collect();
    let found = inspect(files.write("negative", &negative), Some(IdType::I32), None);
    assert_eq!(codes(&found), ["T0507"]);
    assert_eq!(found.readings[0].above, Some((1, 1, -1)));
    assert!(Inspect { path: files.0.path().join("none"), ..Inspect::default() }.run(&mut |_, _| {}).is_err());
}

/// Files of every kind, small.
fn samples() -> Vec<Vec<u8>> {
    let files = Files::new();
    let own = files.0.path().join("own");
    let mut writer = TokenWriter::create(&own, Tokenizer::bytes(true).vocabulary().clone(), false).unwrap();
    writer.push(&[256; 40]).unwrap();
    writer.finish().unwrap();
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{:<117}\n", "{'descr': '<i8', 'fortran_order': False, 'shape': (9,), }").bytes());
    npy.extend([7; 72]);
    let mut shard = u32s([20_240_801, 7, 10].into_iter().chain([0; 253]));
    shard.extend(u32s(0..10));
    let text = "Some text – of more than sixty-four bytes, so that it is known as text.\n".repeat(2).into_bytes();
    vec![fs::read(&own).unwrap(), npy, shard, text, u16s(ids().take(64))]
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 400, ..Default::default() })]

    /// Whatever a file holds, it is opened or refused, and looked at, without a panic; what is opened can be read.
    #[test]
    fn no_file_panics(
        which in 0..5_usize,
        changes in proptest::collection::vec((0..1200_usize, proptest::num::u8::ANY), 0..4),
        cut in 0..1200_usize,
        dtype in 0..6_usize,
    ) {
        thread_local!(static SAMPLES: Vec<Vec<u8>> = samples());
        let mut bytes = SAMPLES.with(|all| all[which].clone());
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        // Every other file keeps its length.
        bytes.truncate(if cut % 2 == 0 { bytes.len() } else { cut });
        let files = Files::new();
        let path = files.write("f", &bytes);
        let dtype = IdType::ALL.get(dtype).copied();
        let found = inspect(path.clone(), dtype, Some(300));
        let shown = found.report();
        proptest::prop_assert!(!shown.headline.answer.is_empty());
        if let Ok(file) = TokenFile::open(&path, &OpenOptions { dtype, vocab_size: None }) {
            // An id may be none, which is an error and not a panic.
            let _ = file.get(0..file.len());
            proptest::prop_assert!(!file.is_empty() && file.body_bytes() <= bytes.len() as u64);
        }
    }
}
