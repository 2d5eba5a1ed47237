//! Opening a token file costs no memory, however large it is. Alone in its program: the resident set is the process's.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use napkin_train::data::{IdType, Loader, OpenOptions, Order, Sampler, TokenFile};

const TOKENS: u64 = 25 << 30;

/// The kernel's own number: pages of 4 KiB or whatever it has, hence the line in kB.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn fifty_gigabytes_are_opened_and_sampled_in_less_than_ten_megabytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.bin");
    let file = File::create(&path).unwrap();
    file.set_len(TOKENS * 2).unwrap();
    // The last id, so that the far end is known to be read.
    file.write_all_at(&513_u16.to_le_bytes(), TOKENS * 2 - 2).unwrap();
    drop(file);

    let before = resident_bytes();
    let options = OpenOptions { dtype: Some(IdType::U16), vocab_size: Some(50_257) };
    let tokens = Arc::new(TokenFile::open(&path, &options).unwrap());
    let opened = resident_bytes().saturating_sub(before);
    assert_eq!(tokens.len(), TOKENS);
    let (training, validation) = tokens.split(0.01).unwrap();
    assert_eq!(training.len() + validation.len(), TOKENS);
    let last = validation.get(validation.len() - 2..validation.len()).unwrap();
    assert_eq!(last, [0, 513]);
    let sampler = Sampler::new(&training, Order::Random, 1025, 8, 0).unwrap();
    let loader = Loader::new(training, sampler);
    for step in 0..4 {
        assert_eq!(loader.batch(step).unwrap().ids.len(), 8 * 1025);
    }
    let sampled = resident_bytes().saturating_sub(before);
    assert!(opened < 10_000_000, "opening took {opened} bytes");
    assert!(sampled < 10_000_000, "opening and sampling took {sampled} bytes");
}
