//! Token files on a disk: written whole or not at all, read as they were written.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use napkin_train::data::{DataError, Format, IdType, OpenOptions, TokenFile, TokenWriter, Vocabulary};

fn vocabulary(size: u64) -> Vocabulary {
    Vocabulary { tokenizer: "test".to_owned(), size, crc32: 0xDEAD_BEEF, end_of_text: Some(size as u32 - 1) }
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for (size, dtype) in [(50_257_u64, IdType::U16), (1 << 16, IdType::U16), (200_019, IdType::U32)] {
        let path = folder.path().join(format!("{size}.bin"));
        let ids: Vec<u32> = (0..100_000_u64).map(|i| (i * 7919 % size) as u32).collect();
        let mut writer = TokenWriter::create(&path, vocabulary(size), false).unwrap();
        for piece in ids.chunks(777) {
            writer.push(piece).unwrap();
        }
        assert!(!path.exists(), "a file that is not finished has no name");
        let bytes = writer.finish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes);

        let file = TokenFile::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!((file.format(), file.dtype(), file.len()), (Format::Napkin, dtype, 100_000));
        assert_eq!(file.vocabulary(), Some(&vocabulary(size)));
        assert_eq!(file.get(0..100_000).unwrap(), ids);
    }
    assert_eq!(names(folder.path()).len(), 3);
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.bin");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(TokenWriter::create(&path, vocabulary(10), false), Err(DataError::Exists { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"precious");

    // With leave to overwrite, the old file stays until the new one is whole.
    let mut writer = TokenWriter::create(&path, vocabulary(10), true).unwrap();
    writer.push(&[1, 2]).unwrap();
    assert!(matches!(writer.push(&[3, 10]), Err(DataError::AboveVocabulary { position: 3, id: 10, .. })));
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let mut writer = TokenWriter::create(&path, vocabulary(10), true).unwrap();
    writer.push(&[1, 2]).unwrap();
    writer.finish().unwrap();
    assert_eq!(TokenFile::open(&path, &OpenOptions::default()).unwrap().get(0..2).unwrap(), [1, 2]);

    // A file that somebody makes meanwhile is kept, too.
    let path = folder.path().join("other.bin");
    let mut writer = TokenWriter::create(&path, vocabulary(10), false).unwrap();
    writer.push(&[1, 2]).unwrap();
    fs::write(&path, "precious").unwrap();
    assert!(matches!(writer.finish(), Err(DataError::Exists { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"precious");

    assert!(matches!(
        TokenWriter::create(folder.path().join("none.bin"), vocabulary(10), false).unwrap().finish(),
        Err(DataError::Empty { .. })
    ));
    let mut left = names(folder.path());
    left.sort();
    assert_eq!(left, ["other.bin", "tokens.bin"]);
}

#[test]
fn a_cut_file_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.bin");
    let mut writer = TokenWriter::create(&path, vocabulary(100), false).unwrap();
    writer.push(&[5; 50]).unwrap();
    writer.finish().unwrap();
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let error = TokenFile::open(&path, &OpenOptions::default()).unwrap_err();
        let expected = match len {
            0 => "T0502",
            // Less than the magic number: ids of unknown width.
            1..8 => "T0503",
            8..128 => "T0506",
            _ => "T0505",
        };
        assert_eq!(error.diagnostic().code, expected, "{len} bytes: {error}");
    }
}

#[test]
fn files_of_other_tools() {
    let folder = tempfile::tempdir().unwrap();
    // Bytes as `numpy.save(path, numpy.array([3, 1, 4, 1, 5], dtype="int64"))` writes them.
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{:<117}\n", "{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }").bytes());
    npy.extend([3_i64, 1, 4, 1, 5].into_iter().flat_map(i64::to_le_bytes));
    let path = folder.path().join("ids.npy");
    fs::write(&path, &npy).unwrap();
    let file = TokenFile::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!((file.format(), file.dtype()), (Format::Npy, IdType::I64));
    assert_eq!(file.get(0..5).unwrap(), [3, 1, 4, 1, 5]);

    let path = folder.path().join("text.txt");
    fs::write(&path, "a text\n").unwrap();
    let file = TokenFile::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(file.get(0..7).unwrap(), b"a text\n".map(u32::from));
}

#[test]
fn what_cannot_be_opened_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = TokenFile::open(folder.path().join("none"), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.diagnostic().code, "T0501");
    assert!(TokenFile::open(folder.path(), &OpenOptions::default()).is_err());
}
