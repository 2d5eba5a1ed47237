//! A token file in the making.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use super::error::DataError;
use super::format::{self, HEADER_BYTES, Vocabulary};
use super::id_type::IdType;

/// Writes a token file piece by piece. The file appears under its name when it is finished, whole, or not at all.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    /// Nothing once the file is in its place.
    temporary: Option<PathBuf>,
    out: BufWriter<File>,
    dtype: IdType,
    vocabulary: Vocabulary,
    force: bool,
    count: u64,
    crc32: crc32fast::Hasher,
    /// Encoded ids of one call, kept for the next.
    buffer: Vec<u8>,
}

impl TokenWriter {
    /// Begins a file. Ids take 16 bits if the vocabulary allows it, else 32.
    ///
    /// # Errors
    /// The file exists and `force` is not set, or its folder cannot be written to.
    pub fn create(path: impl AsRef<Path>, vocabulary: Vocabulary, force: bool) -> Result<Self, DataError> {
        let path = path.as_ref();
        refuse_existing(path, force)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary);
        let mut out = BufWriter::with_capacity(1 << 20, file.map_err(|error| DataError::io(path, "create", error))?);
        let begun = out.write_all(&[0; HEADER_BYTES]);
        let writer = Self {
            path: path.to_owned(),
            temporary: Some(temporary),
            out,
            dtype: IdType::for_vocabulary(vocabulary.size),
            vocabulary,
            force,
            count: 0,
            crc32: crc32fast::Hasher::new(),
            buffer: Vec::new(),
        };
        begun.map(|()| writer).map_err(|error| DataError::io(path, "write", error))
    }

    /// How an id is stored.
    pub fn dtype(&self) -> IdType {
        self.dtype
    }

    /// Ids written so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds ids at the end.
    ///
    /// # Errors
    /// One of them is not below the size of the vocabulary, or the disk is full.
    pub fn push(&mut self, ids: &[u32]) -> Result<(), DataError> {
        if let Some(index) = ids.iter().position(|&id| u64::from(id) >= self.vocabulary.size) {
            return Err(DataError::AboveVocabulary {
                path: self.path.clone(),
                position: self.count + index as u64,
                id: ids[index],
                vocab_size: self.vocabulary.size,
            });
        }
        self.buffer.clear();
        if self.dtype == IdType::U16 {
            self.buffer.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes()));
        } else {
            self.buffer.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        self.crc32.update(&self.buffer);
        self.count += ids.len() as u64;
        self.out.write_all(&self.buffer).map_err(|error| self.cannot_write(error))
    }

    /// Writes the header, brings all to the disk and gives the file its name. Answers the size of the file in bytes.
    ///
    /// # Errors
    /// There are no ids, somebody made a file of that name meanwhile, or the disk is full.
    pub fn finish(mut self) -> Result<u64, DataError> {
        if self.count == 0 {
            return Err(DataError::Empty { path: self.path.clone() });
        }
        let header = format::header(self.dtype, self.count, &self.vocabulary, self.crc32.clone().finalize());
        self.complete(&header).map_err(|error| self.cannot_write(error))?;
        refuse_existing(&self.path, self.force)?;
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path).map_err(|error| self.cannot_write(error))?;
        }
        self.temporary = None;
        sync_folder(&self.path).map_err(|error| self.cannot_write(error))?;
        Ok(HEADER_BYTES as u64 + self.count * self.dtype.bytes() as u64)
    }

    fn complete(&mut self, header: &[u8]) -> io::Result<()> {
        self.out.rewind()?;
        self.out.write_all(header)?;
        self.out.flush()?;
        self.out.get_ref().sync_all()
    }

    fn cannot_write(&self, error: io::Error) -> DataError {
        DataError::io(&self.path, "write", error)
    }
}

impl Drop for TokenWriter {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // An unfinished file is of no use; where it cannot be removed nobody can be told.
            let _ = fs::remove_file(temporary);
        }
    }
}

fn refuse_existing(path: &Path, force: bool) -> Result<(), DataError> {
    let Ok(there) = path.symlink_metadata() else { return Ok(()) };
    if !force {
        return Err(DataError::Exists { path: path.to_owned() });
    }
    if !there.is_file() {
        // The finished file takes the name: a device, a pipe or a link would be gone.
        let why = io::Error::other("it is a device, a link or a folder, and no file to be replaced");
        return Err(DataError::io(path, "write", why));
    }
    Ok(())
}

/// Brings the new name to the disk. Where folders cannot be opened, the system does this by itself.
fn sync_folder(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
