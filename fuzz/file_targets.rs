//! What reads the headers of files that people download, one function per fuzz target. None may panic on any input.

use napkin_train::published;
use napkin_train::weights_file::{Header, read_gguf, read_safetensors};
use safetensors::tensor::Metadata;
use std::path::Path;
use units::Diagnostic;

/// A header that is read has tensors of countable bytes inside the file; one that is refused says why and where.
fn sound(read: &Result<Header, Vec<Diagnostic>>, file_bytes: u64) {
    match read {
        Ok(header) => {
            assert!(header.header_bytes <= file_bytes);
            for tensor in &header.tensors {
                let end = tensor.offset.checked_add(tensor.bytes).expect("countable");
                assert!(end <= file_bytes - header.header_bytes, "{tensor:?}");
            }
            assert!(header.tensor_bytes() <= file_bytes);
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|problem| problem.is_error() && problem.location.is_some()));
        }
    }
}

/// How long a file is that begins with `bytes`: as long as they are, or longer by what the first byte says.
fn lengths(bytes: &[u8]) -> [u64; 3] {
    let own = bytes.len() as u64;
    [own, own + u64::from(bytes.first().copied().unwrap_or(0)), own + (1 << 40)]
}

/// The header of a GGUF file.
pub fn gguf(bytes: &[u8]) {
    for file_bytes in lengths(bytes) {
        sound(&read_gguf(Path::new("fuzz.gguf"), bytes, file_bytes), file_bytes);
    }
}

/// The header of a safetensors file. What is taken here, the format's own library takes too.
pub fn safetensors(bytes: &[u8]) {
    for file_bytes in lengths(bytes) {
        let read = read_safetensors(Path::new("fuzz.safetensors"), bytes, file_bytes);
        sound(&read, file_bytes);
        if let Ok(header) = read {
            let text = &bytes[8..header.header_bytes as usize];
            let library: Metadata = serde_json::from_slice(text).expect("taken by the library");
            assert_eq!(library.data_len() as u64, file_bytes - header.header_bytes);
            assert_eq!(library.tensors().len(), header.tensors.len());
        }
    }
}

/// A table of published runs: its rows have names, or its problems a place.
pub fn published(bytes: &[u8]) {
    match published::read("fuzz.csv", bytes) {
        Ok(rows) => assert!(rows.iter().all(|row| !row.id.is_empty())),
        Err(problems) => {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|problem| problem.is_error() && problem.location.is_some()));
        }
    }
}
