//! A safetensors file that is read: its header at once, each tensor when it is wanted.
//!
//! Tensors are read straight into the memory they are meant for. A map of the file would cost the same reads, and a file
//! that somebody cuts short while it is mapped kills the process, where a read gives an error.

use super::problem::{place, unreadable};
use crate::weights_file::{Encoding, Entry, safetensors, spelling};
use crc32fast::Hasher;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tensor::{DType, Tensor};
use units::Diagnostic;

/// Bytes read at once: hashed while they are in the cache.
const CHUNK: usize = 1 << 20;

/// One tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// Its dtype, as the file spells it.
    pub stored_as: String,
    /// Its dtype, if there is one here.
    pub dtype: Option<DType>,
    /// Its shape.
    pub shape: Vec<u64>,
    /// First byte, counted from the end of the header.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A safetensors file whose header is right.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    header_bytes: u64,
    header: Hasher,
    tensors: Vec<StoredTensor>,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// `T0604` if it cannot be read, `T0610` if it is not a whole safetensors file.
    pub fn open(path: &Path) -> Result<Self, Diagnostic> {
        let unreadable = |error| unreadable(path, &error);
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(Diagnostic::error("T0604", "not a file").at(place(path)));
        }
        let bytes = about.len();
        let text = safetensors::text(path, &mut file, bytes)?;
        let first = |problems: Vec<Diagnostic>| {
            let first = problems.into_iter().next();
            first.unwrap_or_else(|| Diagnostic::error("T0610", "not a whole safetensors file").at(place(path)))
        };
        let read = safetensors::parse(path, &text, bytes).map_err(first)?;
        let mut header = Hasher::new();
        header.update(&text);
        let tensors = read.tensors.into_iter().map(stored).collect();
        let (header_bytes, metadata) = (read.header_bytes, read.about);
        Ok(Self { path: path.to_owned(), file, bytes, header_bytes, header, tensors, metadata })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its tensors, in the order of their bytes.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Remarks of whoever wrote it.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Checksum of the header with its length, still open to be combined.
    pub(crate) fn header_checksum(&self) -> Hasher {
        self.header.clone()
    }

    /// Reads the bytes of a tensor and gives their checksum.
    ///
    /// # Errors
    /// `T0604` if they cannot be read.
    ///
    /// # Panics
    /// If `into` has another size than the tensor.
    pub fn read(&self, tensor: &StoredTensor, into: &mut [u8]) -> Result<u32, Diagnostic> {
        assert_eq!(into.len() as u64, tensor.bytes, "a place of the tensor's own size");
        let mut hasher = Hasher::new();
        self.seek(tensor)?;
        for chunk in into.chunks_mut(CHUNK) {
            self.read_chunk(chunk)?;
            hasher.update(chunk);
        }
        Ok(hasher.finalize())
    }

    /// Reads a tensor into `target`, which has its shape, converted to the dtype of `target`; gives the checksum of the
    /// bytes that were read.
    ///
    /// # Errors
    /// `T0604` if they cannot be read, `T0615` if they cannot be converted.
    pub fn read_tensor(&self, tensor: &StoredTensor, target: &Tensor) -> Result<u32, Diagnostic> {
        let refused = |error: tensor::Error| {
            Diagnostic::error("T0615", format!("tensor `{}`: {error}", tensor.name)).at(place(&self.path))
        };
        let Some(stored) = tensor.dtype.filter(|dtype| *dtype != target.dtype()) else {
            return target.with_bytes_mut(|bytes| self.read(tensor, bytes)).map_err(refused)?;
        };
        let runtime = target.runtime();
        let own = runtime.zeros(&tensor.shape, stored).map_err(refused)?;
        let read = own.with_bytes_mut(|bytes| self.read(tensor, bytes)).map_err(refused)??;
        runtime.no_grad(|| target.copy_(&own)).map_err(refused)?;
        Ok(read)
    }

    /// The checksum of a tensor's bytes as they are on disk now, still open to be combined.
    ///
    /// # Errors
    /// `T0604` if they cannot be read.
    pub(crate) fn checksum(&self, tensor: &StoredTensor) -> Result<Hasher, Diagnostic> {
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; CHUNK.min(tensor.bytes as usize)];
        let mut left = tensor.bytes as usize;
        self.seek(tensor)?;
        while left > 0 {
            let chunk = &mut buffer[..left.min(CHUNK)];
            self.read_chunk(chunk)?;
            hasher.update(chunk);
            left -= chunk.len();
        }
        Ok(hasher)
    }

    fn read_chunk(&self, chunk: &mut [u8]) -> Result<(), Diagnostic> {
        (&self.file).read_exact(chunk).map_err(|error| unreadable(&self.path, &error))
    }

    fn seek(&self, tensor: &StoredTensor) -> Result<(), Diagnostic> {
        let start = SeekFrom::Start(self.header_bytes + tensor.offset);
        (&self.file).seek(start).map(drop).map_err(|error| unreadable(&self.path, &error))
    }
}

fn stored(entry: Entry) -> StoredTensor {
    let stored_as = match entry.encoding {
        Encoding::Plain(dtype) => spelling(dtype),
        Encoding::Ggml(_) => entry.encoding.name(),
    };
    let (dtype, Entry { name, shape, offset, bytes, .. }) = (entry.encoding.dtype(), entry);
    StoredTensor { name, stored_as, dtype, shape, offset, bytes }
}
