//! Questions that people asked in public about data and checkpoints, and the answers that are right, as `shared/cases`
//! collects them. The bytes are those of its files.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_train::checkpoint::Checkpoint;
use napkin_train::data::{
    DataError, IdType, Inspect, Inspection, OpenOptions, Order, Sampler, TokenFile, TokenWriter, Vocabulary,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const U32_OVER_65535: [u32; 6] = [1, 70_000, 128_000, 65_536, 5, 119_546];
const U16: [u16; 12] = [0, 1, 2, 50_256, 65_535, 7, 8, 9, 10, 11, 12, 13];

fn write(folder: &Path, name: &str, bytes: Vec<u8>) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn u32s(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn u16s(ids: &[u16]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn inspect(path: &Path, dtype: Option<IdType>, vocab_size: u64) -> Inspection {
    let inspect = Inspect { path: path.to_owned(), dtype, vocab_size: Some(vocab_size), tokenizer: None };
    inspect.run(&mut |_, _| {}).unwrap()
}

/// data-01: ids above 65,535 are never written in 16 bits, and an id that is no word is refused with its place.
#[test]
fn ids_do_not_wrap() {
    let folder = tempfile::tempdir().unwrap();
    let all = write(folder.path(), "all.bin", u32s(&(0..119_547).collect::<Vec<u32>>()));
    // How many, and where and what the first is.
    assert_eq!(inspect(&all, Some(IdType::U32), 65_536).readings[0].above, Some((54_011, 65_536, 65_536)));
    fs::remove_file(all).unwrap();
    assert_eq!(IdType::for_vocabulary(65_536), IdType::U16);
    assert_eq!(IdType::for_vocabulary(119_547), IdType::U32);
    let vocabulary = |size| Vocabulary { tokenizer: "test".to_owned(), size, crc32: 0, end_of_text: None };
    let mut writer = TokenWriter::create(folder.path().join("a.bin"), vocabulary(65_536), false).unwrap();
    match writer.push(&U32_OVER_65535) {
        Err(DataError::AboveVocabulary { position, id, .. }) => assert_eq!((position, id), (1, 70_000)),
        other => panic!("{other:?}"),
    }
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of it");
    let path = write(folder.path(), "ids.bin", u32s(&U32_OVER_65535));
    let found = inspect(&path, Some(IdType::U32), 119_547);
    assert_eq!(found.readings[0].above, Some((1, 2, 128_000)));
}

/// data-03: ids read in another width, or a header read as ids, are diagnosed with the likely cause.
#[test]
fn another_width_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let wide = write(folder.path(), "u32.bin", u32s(&U32_OVER_65535));
    let found = inspect(&wide, Some(IdType::U16), 150_000);
    assert_eq!(found.readings[0].count, 12);
    assert!(found.problems.to_string().contains("u32"), "{}", found.problems);
    let narrow = write(folder.path(), "u16.bin", u16s(&U16));
    let found = inspect(&narrow, Some(IdType::U32), 150_000);
    assert_eq!(found.readings[0].count, 6);
    assert_eq!(found.readings[0].first[1], 3_293_577_218);
    assert!(found.problems.to_string().contains("u16"), "{}", found.problems);
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (6,), }";
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{header:<117}\n").bytes());
    npy.extend(u16s(&[10, 11, 12, 13, 14, 15]));
    let path = write(folder.path(), "tokens.bin", npy);
    let file = TokenFile::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(file.get(0..file.len()).unwrap(), [10, 11, 12, 13, 14, 15]);
    let found = inspect(&path, Some(IdType::U16), 150_000);
    assert!(found.problems.to_string().contains("NumPy"), "{}", found.problems);
}

/// data-05: as many starts as ids less the block; eight ids hold no block of eight with its target.
#[test]
fn the_last_window_counts_and_no_more() {
    let sampler = |ids: u64, block: u64| {
        let ids: Vec<u32> = (0..ids as u32).collect();
        let options = OpenOptions { dtype: Some(IdType::U16), ..OpenOptions::default() };
        let file = Arc::new(TokenFile::from_ids("ids", &ids, &options).unwrap());
        Sampler::new(&file.whole(), Order::Random, block + 1, 1, 0)
    };
    let said = sampler(8, 8).unwrap_err().to_string();
    assert!(said.contains('8') && said.contains('9'), "{said}");
    for ids in [9, 10, 20] {
        let sampler = sampler(ids, 8).unwrap();
        let starts: std::collections::BTreeSet<u64> = sampler.starts(0..2000).into_iter().collect();
        assert_eq!(starts.len() as u64, ids - 8, "{ids}");
        assert_eq!(starts.last(), Some(&(ids - 9)));
    }
}

/// checkpoint-01: after a stop in a later pass, the order goes on as it would have.
#[test]
fn a_resumed_pass_keeps_its_order() {
    let file = Arc::new(TokenFile::from_ids("ids", &(0..11).collect::<Vec<u32>>(), &OpenOptions::default()).unwrap());
    let sampler = Sampler::new(&file.whole(), Order::Shuffled, 2, 2, 7).unwrap();
    // Five steps are a pass over ten windows; two steps of the second are done.
    let whole: Vec<Vec<u64>> = (0..10).map(|step| sampler.at(step)).collect();
    let resumed = Sampler::new(&file.whole(), Order::Shuffled, 2, 2, 7).unwrap();
    let rest: Vec<Vec<u64>> = (7..10).map(|step| resumed.at(step)).collect();
    assert_eq!(rest, whole[7..]);
    let second: std::collections::BTreeSet<u64> = whole[5..].iter().flatten().copied().collect();
    assert_eq!(second.len(), 10, "nothing is seen twice in a pass");
    assert_ne!(whole[..5], whole[5..], "passes differ");
}

/// checkpoint-04: a misspelt key and all that is absent are said at once, and nothing is loaded.
#[test]
fn a_misspelt_manifest_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let step = folder.path().join("step-00004200");
    fs::create_dir(&step).unwrap();
    let typo = r#"{"epoch": 3, "step": 4200, "model_state_dict": "weights.bin", "optimizer_state_dit": "optim.bin", "lr": 0.00012}"#;
    fs::write(step.join("manifest.json"), typo).unwrap();
    let said = Checkpoint::open(&step).unwrap_err().to_string();
    for absent in ["optimizer_state_dict", "schedule", "scaler", "rng", "data_position"] {
        assert!(said.contains(&format!("`{absent}` is absent")), "{absent}: {said}");
    }
    assert!(said.contains("did you mean `optimizer_state_dict`?"), "{said}");
}
