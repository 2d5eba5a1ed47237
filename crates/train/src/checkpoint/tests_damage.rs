//! Damage: every byte of a checkpoint, files cut short or gone, headers that somebody made up.

use super::testing::{contents, folder, snapshot};
use super::{Checkpoint, Keep, NamedTensor, Store, TensorFile, Weights, show, verify};
use plan::report::{Report, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use tensor::{Device, Runtime};

const FILES: [&str; 4] = ["config.json", "model.safetensors", "optimizer.safetensors", "manifest.json"];

fn saved(dir: &Path) -> PathBuf {
    Store::open(dir, Keep { last: 9, best: false }).unwrap().save(&snapshot(3)).unwrap().path
}

/// The problems of a verification that says no.
fn refused(path: &Path) -> Report {
    let report = verify(path).unwrap();
    assert_eq!(report.verdict, Verdict::No, "{}", path.display());
    assert!(!report.warnings.is_empty());
    report
}

/// Whether reading all of it into a model finds something wrong.
fn load_fails(path: &Path) -> bool {
    let Ok(checkpoint) = Checkpoint::open(path) else { return true };
    let runtime = Runtime::new(Device::Cpu);
    let blank = |tensors: Vec<NamedTensor>| -> Vec<NamedTensor> {
        let zeros = |t: &NamedTensor| runtime.zeros(t.tensor.shape(), t.tensor.dtype()).unwrap();
        tensors.iter().map(|t| NamedTensor::new(t.name.as_str(), &zeros(t))).collect()
    };
    let original = snapshot(3);
    checkpoint.load_model(&blank(original.model)).is_err()
        || checkpoint.load_optimizer(&blank(original.optimizer)).is_err()
}

#[test]
fn a_whole_checkpoint_is_verified() {
    let dir = folder();
    let path = saved(dir.path());
    for path in [path.as_path(), dir.path(), &path.join("manifest.json")] {
        let report = verify(path).unwrap();
        assert_eq!(report.verdict, Verdict::Answered);
        assert!(report.warnings.is_empty());
    }
    assert!(!load_fails(&path));
    assert_eq!(verify(&path.join("model.safetensors")).unwrap().verdict, Verdict::Answered);
}

#[test]
fn a_flipped_bit_in_any_byte_is_found_and_its_tensor_named() {
    let dir = folder();
    let path = saved(dir.path());
    let original = snapshot(3);
    for name in FILES {
        let file = path.join(name);
        let bytes = fs::read(&file).unwrap();
        // Where the bytes of each tensor stand.
        let tensors: Vec<_> = match TensorFile::open(&file) {
            Ok(open) => {
                let data = open.bytes() - open.tensors().last().map_or(0, |last| last.offset + last.bytes);
                let place = |t: &super::StoredTensor| (data + t.offset..data + t.offset + t.bytes, t.name.clone());
                open.tensors().iter().map(place).collect()
            }
            Err(_) => Vec::new(),
        };
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&file, &flipped).unwrap();
            let report = refused(&path);
            let problem = &report.warnings[0];
            assert!(problem.location.as_ref().unwrap().file.ends_with(name), "{name} byte {at}: {problem}");
            if let Some((_, tensor)) = tensors.iter().find(|(range, _)| range.contains(&(at as u64))) {
                assert_eq!(problem.code, "T0611", "{name} byte {at}");
                assert!(problem.message.contains(&format!("tensor `{tensor}`")), "{name} byte {at}: {problem}");
            }
            assert!(load_fails(&path), "{name} byte {at}: loaded");
        }
        fs::write(&file, &bytes).unwrap();
    }
    let all: u64 = contents(&original.model).iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert!(all > 200 && !load_fails(&path));
}

#[test]
fn files_cut_short_grown_or_gone_are_found() {
    let dir = folder();
    let path = saved(dir.path());
    for name in FILES {
        let file = path.join(name);
        let bytes = fs::read(&file).unwrap();
        for length in [0, 1, 7, 8, 9, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&file, &bytes[..length]).unwrap();
            assert!(refused(&path).warnings[0].to_string().contains(name), "{name} cut to {length}");
            assert!(load_fails(&path), "{name} cut to {length}");
        }
        fs::write(&file, [bytes.as_slice(), b"\n"].concat()).unwrap();
        refused(&path);
        assert!(load_fails(&path), "{name} grown");
        fs::remove_file(&file).unwrap();
        refused(&path);
        assert!(load_fails(&path), "{name} gone");
        fs::write(&file, &bytes).unwrap();
    }
    // Of two checkpoints, the file of one in the place of the other's.
    let other = folder();
    let mut later = snapshot(4);
    later.model.pop();
    let other = Store::open(other.path(), Keep { last: 1, best: false }).unwrap().save(&later).unwrap().path;
    for name in FILES.into_iter().filter(|name| *name != "config.json") {
        let own = fs::read(path.join(name)).unwrap();
        fs::copy(other.join(name), path.join(name)).unwrap();
        refused(&path);
        fs::write(path.join(name), own).unwrap();
    }
    assert!(!load_fails(&path));
}

/// A file with this header before this many zero bytes.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn made_up_headers_are_refused_with_a_reason() {
    let huge = u64::MAX / 2;
    let table: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "0 bytes are too few"),
        (vec![1, 2, 3], "3 bytes are too few"),
        (u64::MAX.to_le_bytes().to_vec(), "says its header has 18446744073709551615 bytes"),
        (100_000_001u64.to_le_bytes().to_vec(), "says its header has 100000001 bytes"),
        (9u64.to_le_bytes().to_vec(), "says its header has 9 bytes; the file has 8"),
        (with_header("", 0), "its header is wrong"),
        (with_header("[]", 0), "its header is wrong"),
        (with_header("{", 0), "its header is wrong"),
        (with_header(&"[".repeat(100_000), 0), "its header is wrong"),
        (with_header(r#"{"a": 1}"#, 0), "its header is wrong"),
        ([&2u64.to_le_bytes()[..], b"\xff\xfe"].concat(), "its header is not text"),
        // A shape that has another size than its bytes.
        (
            with_header(r#"{"a":{"dtype":"F16","shape":[3,5],"data_offsets":[0,32]}}"#, 32),
            "15 elements of F16 take 30 bytes",
        ),
        // Overlap, a hole, backwards, beyond the end, and more than can be counted.
        (
            with_header(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
                6,
            ),
            "`b` begins at byte 2 of the data, inside `a`",
        ),
        (with_header(r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#, 8), "4 bytes before `a`"),
        (with_header(r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}}"#, 4), "said to end at byte 0"),
        (
            with_header(r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#, 3),
            "cut short: its header names 4 bytes of tensors, 3 are there",
        ),
        (with_header(r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#, 5), "too long: its header names 4"),
        (with_header(r#"{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}"#, 4), "its header is wrong"),
        (with_header(r#"{"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}}"#, 4), "its header is wrong"),
        (
            with_header(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, 0),
            "cannot be counted",
        ),
        (
            with_header(&format!(r#"{{"a":{{"dtype":"U8","shape":[{huge}],"data_offsets":[0,{huge}]}}}}"#), 0),
            "cut short",
        ),
        // As large as a length can be in all: each part is right, the sum is not.
        (
            with_header(
                &format!(
                    "{{{}}}",
                    (0..8u64)
                        .map(|i| {
                            let part = (1u64 << 61) - 1;
                            format!(
                                r#""t{i}":{{"dtype":"U8","shape":[{part}],"data_offsets":[{},{}]}}"#,
                                i * part,
                                (i + 1) * part
                            )
                        })
                        .collect::<Vec<_>>()
                        .join(",")
                ),
                0,
            ),
            "cut short",
        ),
    ];
    let dir = folder();
    for (i, (bytes, reason)) in table.into_iter().enumerate() {
        let file = dir.path().join(format!("{i}.safetensors"));
        fs::write(&file, bytes).unwrap();
        let problem = TensorFile::open(&file).unwrap_err();
        assert_eq!(problem.code, "T0610", "{i}");
        assert!(problem.message.contains(reason), "{i}: {problem}");
        assert_eq!(verify(&file).unwrap().verdict, Verdict::No, "{i}");
        assert!(show(&file).is_err(), "{i}");
    }
}

#[test]
fn odd_headers_that_are_right_are_read() {
    let dir = folder();
    let file = dir.path().join("a.safetensors");
    for (header, data, tensors) in [
        (r#"{"__metadata__":{"key":"value"}}"#, 0, 0),
        (r#"{"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}      "#, 8, 1),
        (
            r#"{"n":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"m":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}"#,
            8,
            2,
        ),
        (r#"{"q":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}"#, 2, 1),
    ] {
        fs::write(&file, with_header(header, data)).unwrap();
        assert_eq!(TensorFile::open(&file).unwrap().tensors().len(), tensors, "{header}");
        show(&file).unwrap();
    }
}

#[test]
fn no_mutated_file_panics() {
    let dir = folder();
    let path = saved(dir.path());
    let rng = tensor::rng::Rng::new(5, tensor::rng::Stream::DataOrder);
    for name in ["model.safetensors", "manifest.json"] {
        let file = path.join(name);
        let bytes = fs::read(&file).unwrap();
        for round in 0..400 {
            let mut mutated = bytes.clone();
            let draw = |i: u64, below: usize| (rng.bits64(round, i) % below as u64) as usize;
            for i in 0..=draw(0, 4) as u64 {
                let at = draw(10 * i + 1, mutated.len().min(1500));
                match draw(10 * i + 2, 4) {
                    0 => mutated[at] = draw(10 * i + 3, 256) as u8,
                    1 => mutated.insert(at, b"0123456789{}[],:\"-e"[draw(10 * i + 3, 19)]),
                    2 => drop(mutated.remove(at)),
                    _ => mutated.truncate(mutated.len() - draw(10 * i + 3, 64).min(mutated.len() - 1)),
                }
            }
            fs::write(&file, &mutated).unwrap();
            if mutated != bytes {
                refused(&path);
                assert!(load_fails(&path), "{name} round {round}");
            }
            // Without a manifest to hold it against, whatever it says.
            let alone = dir.path().join("alone.safetensors");
            fs::write(&alone, &mutated).unwrap();
            if let Ok(weights) = Weights::open(&alone) {
                let read = |(file, tensor): (&TensorFile, &super::StoredTensor)| {
                    file.read(tensor, &mut vec![0; tensor.bytes as usize]).unwrap()
                };
                weights.tensors().map(read).for_each(drop);
            }
        }
        fs::write(&file, &bytes).unwrap();
    }
}

#[test]
fn an_index_is_held_against_its_files() {
    let dir = folder();
    let index = dir.path().join("model.safetensors.index.json");
    let one = |name: &str| format!(r#"{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}"#);
    fs::write(dir.path().join("1.safetensors"), with_header(&one("a"), 4)).unwrap();
    fs::write(dir.path().join("2.safetensors"), with_header(&one("b"), 4)).unwrap();
    fs::write(&index, r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#).unwrap();
    for path in [dir.path(), &index] {
        assert_eq!(Weights::open(path).unwrap().tensors().count(), 2);
        assert_eq!(verify(path).unwrap().verdict, Verdict::Answered);
    }
    for (text, said) in [
        ("", "the index is not JSON"),
        ("[]", "no `weight_map`"),
        (r#"{"weight_map": {"a": "../1.safetensors"}}"#, "no file beside the index"),
        (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "no file beside the index"),
        (r#"{"weight_map": {"a": 7}}"#, "no file beside the index"),
        (r#"{"weight_map": {"a": ".."}}"#, "no file beside the index"),
        (r#"{"weight_map": {"a": "3.safetensors"}}"#, "it is not there"),
        (r#"{"weight_map": {"c": "1.safetensors"}}"#, "tensor `a` is not in the index"),
        (r#"{"weight_map": {"c": "1.safetensors"}}"#, "tensor `c` is only in the index"),
    ] {
        fs::write(&index, text).unwrap();
        let problems = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(problems.contains(said), "{text}: {problems}");
    }
    fs::remove_file(&index).unwrap();
    assert!(Weights::open(dir.path()).unwrap_err().to_string().contains("neither model.safetensors"));
    fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    assert!(Weights::open(dir.path()).unwrap_err().to_string().contains("save_pretrained"));
}

#[test]
fn what_is_shown_is_what_was_saved() {
    let dir = folder();
    let path = saved(dir.path());
    let report = show(&path).unwrap();
    let count = |name: &str| report.result.get(name).and_then(plan::report::Value::as_uint);
    assert_eq!((count("step"), count("tokens")), (Some(3), Some(3 * 4096)));
    // Twelve tensors of 6 elements, a scalar and an empty one.
    assert_eq!(count("parameters"), Some(12 * 6 + 1));
    let hyper = report.result.get("optimizer").and_then(|o| o.get("hyper")).and_then(|h| h.get("lr"));
    assert_eq!(hyper.and_then(plan::report::Value::as_f64), Some(0.1 + 0.2));
    let whole = show(dir.path()).unwrap();
    assert_eq!(whole.headline, report.headline);
    assert!(matches!(whole.result.get("checkpoints"), Some(plan::report::Value::List(all)) if all.len() == 1));
    assert_eq!(show(&path.join("manifest.json")).unwrap().headline.answer, report.headline.answer);
    for nothing in [dir.path().join("none"), dir.path().join(".lock")] {
        assert!(show(&nothing).is_err());
    }
}
