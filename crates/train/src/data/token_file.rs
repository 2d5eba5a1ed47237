//! Token ids in a file that is mapped, never loaded.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::error::DataError;
use super::format::{self, Format, Layout, Vocabulary};
use super::id_type::IdType;
use super::map;
use super::span::Span;

/// How to open a token file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Type of the ids of a file without a header.
    pub dtype: Option<IdType>,
    /// Size of the model's vocabulary: ids at or above it are an error where they are read.
    pub vocab_size: Option<u64>,
}

/// Token ids, numbered from 0.
///
/// Reading touches only the pages of the ids that are read. The type may be sent to and shared with other threads.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    bytes: Bytes,
    layout: Layout,
    vocab_size: Option<u64>,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Bytes {
    fn all(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl TokenFile {
    /// Opens a token file, a NumPy array, or a text, whose bytes are then its ids.
    ///
    /// # Errors
    /// What the file is cannot be told, its header does not fit its body, or it was made for a larger vocabulary.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| DataError::io(path, "open", error))?;
        let meta = file.metadata().map_err(|error| DataError::io(path, "look at", error))?;
        if meta.is_file() && meta.len() == 0 {
            return Err(DataError::Empty { path: path.to_owned() });
        }
        // Pipes and devices cannot be mapped; the system says so.
        let map = map::map(&file).map_err(|error| DataError::io(path, "map", error))?;
        Self::new(path, Bytes::Mapped(map), options)
    }

    /// Takes a text that is part of the program; its bytes are the ids.
    ///
    /// # Errors
    /// The text is empty.
    pub fn from_text(name: &str, text: &'static str, options: &OpenOptions) -> Result<Self, DataError> {
        Self::new(Path::new(name), Bytes::Static(text.as_bytes()), options)
    }

    /// Takes ids in memory.
    ///
    /// # Errors
    /// There are none.
    pub fn from_ids(name: &str, ids: &[u32], options: &OpenOptions) -> Result<Self, DataError> {
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Self::new(Path::new(name), Bytes::Owned(bytes), &OpenOptions { dtype: Some(IdType::U32), ..*options })
    }

    fn new(path: &Path, bytes: Bytes, options: &OpenOptions) -> Result<Self, DataError> {
        let layout = format::detect(path, bytes.all(), options.dtype)?;
        if let (Some(vocabulary), Some(model)) = (&layout.vocabulary, options.vocab_size)
            && vocabulary.size > model
        {
            return Err(DataError::OtherVocabulary {
                path: path.to_owned(),
                tokenizer: vocabulary.tokenizer.clone(),
                file: vocabulary.size,
                model,
            });
        }
        Ok(Self { path: path.to_owned(), bytes, layout, vocab_size: options.vocab_size })
    }

    /// Number of ids.
    pub fn len(&self) -> u64 {
        self.layout.count
    }

    /// Never: a file without ids is not opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What kind of file it is.
    pub fn format(&self) -> Format {
        self.layout.format
    }

    /// How one id is stored.
    pub fn dtype(&self) -> IdType {
        self.layout.dtype
    }

    /// What the ids stand for, if the file says so.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        self.layout.vocabulary.as_ref()
    }

    /// Bytes of the ids on disk.
    pub fn body_bytes(&self) -> u64 {
        self.len() * self.dtype().bytes() as u64
    }

    /// The bytes of all ids.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes.all()[self.layout.offset..]
    }

    /// A number that other data hardly has: a CRC-32 of the type and count of the ids and of sixteen pages spread
    /// over them. A resumed run compares it with that of the run it continues.
    pub fn fingerprint(&self) -> u32 {
        const PAGE: usize = 4096;
        const PAGES: usize = 16;
        let body = self.body();
        let mut hash = crc32fast::Hasher::new();
        hash.update(self.dtype().name().as_bytes());
        hash.update(&self.len().to_le_bytes());
        let last = body.len().saturating_sub(PAGE);
        for page in 0..PAGES {
            // In 128 bits: the product can pass 64 for files on disks of the future.
            let start = (last as u128 * page as u128 / (PAGES as u128 - 1)) as usize;
            hash.update(&body[start..(start + PAGE).min(body.len())]);
        }
        hash.finalize()
    }

    /// The ids from index `start` on, as many as `out` takes.
    ///
    /// # Errors
    /// They lie outside the file, or one of them is no id of the vocabulary.
    pub fn read(&self, start: u64, out: &mut [u32]) -> Result<(), DataError> {
        self.read_below(start, out, None)
    }

    /// As [`read`](Self::read), for a vocabulary that may be smaller than that of the file.
    pub(crate) fn read_below(&self, start: u64, out: &mut [u32], vocab_size: Option<u64>) -> Result<(), DataError> {
        let end = start.saturating_add(out.len() as u64);
        if end > self.len() {
            return Err(DataError::OutOfRange { path: self.path.clone(), start, end, tokens: self.len() });
        }
        let width = self.dtype().bytes();
        let first = start as usize * width;
        let bytes = &self.body()[first..first + out.len() * width];
        let no_id = |(index, value): (usize, i64)| {
            let position = start + index as u64;
            DataError::NoId { path: self.path.clone(), position, value }
        };
        self.dtype().decode(bytes, out).map_err(no_id)?;
        let smaller = vocab_size.into_iter().chain(self.vocab_size).min();
        if let Some(vocab_size) = smaller
            && out.iter().copied().max().is_some_and(|id| u64::from(id) >= vocab_size)
        {
            let above = out.iter().position(|&id| u64::from(id) >= vocab_size).unwrap_or_default();
            let (position, id) = (start + above as u64, out[above]);
            return Err(DataError::AboveVocabulary { path: self.path.clone(), position, id, vocab_size });
        }
        Ok(())
    }

    /// The ids of a range.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn get(&self, range: std::ops::Range<u64>) -> Result<Vec<u32>, DataError> {
        let wanted = range.end.saturating_sub(range.start);
        if range.end > self.len() {
            let (start, end) = (range.start, range.end);
            return Err(DataError::OutOfRange { path: self.path.clone(), start, end, tokens: self.len() });
        }
        let mut out = vec![0; wanted as usize];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    /// All of it as one part.
    pub fn whole(self: &Arc<Self>) -> Span {
        Span::new(Arc::clone(self), "", 0..self.len())
    }

    /// Cuts a share off the end for validation: the first part is for training, and the two meet.
    ///
    /// # Errors
    /// `fraction` is not in `0..1`.
    pub fn split(self: &Arc<Self>, fraction: f64) -> Result<(Span, Span), DataError> {
        if !(0.0..1.0).contains(&fraction) {
            return Err(DataError::BadFraction { fraction });
        }
        let validation = (self.len() as f64 * fraction).round() as u64;
        let cut = self.len().saturating_sub(validation);
        let part = |name, range| Span::new(Arc::clone(self), name, range);
        Ok((part("training", 0..cut), part("validation", cut..self.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: u32, options: &OpenOptions) -> TokenFile {
        TokenFile::from_ids("ids", &(0..count).collect::<Vec<_>>(), options).unwrap()
    }

    #[test]
    fn ranges_end_where_the_file_ends() {
        let file = ids(10, &OpenOptions::default());
        assert_eq!(file.get(0..10).unwrap(), (0..10).collect::<Vec<_>>());
        assert_eq!(file.get(9..10).unwrap(), [9]);
        assert_eq!(file.get(10..10).unwrap(), [0; 0]);
        for range in [0..11, 10..11, 11..11, 5..u64::MAX] {
            assert!(matches!(file.get(range.clone()), Err(DataError::OutOfRange { .. })), "{range:?}");
        }
    }

    #[test]
    fn ids_above_the_vocabulary_are_found_where_they_stand() {
        let file = ids(100, &OpenOptions { vocab_size: Some(60), ..OpenOptions::default() });
        assert_eq!(file.get(0..60).unwrap().len(), 60);
        let found = file.get(50..70);
        assert!(matches!(found, Err(DataError::AboveVocabulary { position: 60, id: 60, vocab_size: 60, .. })));
    }

    #[test]
    fn the_two_parts_meet_and_miss_nothing() {
        for (count, fraction, training) in
            [(10, 0.1, 9), (10, 0.0, 10), (10, 0.25, 7), (10, 0.99, 0), (3, 0.5, 1), (1, 0.1, 1)]
        {
            let file = Arc::new(ids(count, &OpenOptions::default()));
            let (train, validation) = file.split(fraction).unwrap();
            assert_eq!(train.len(), training, "{count} {fraction}");
            let mut all = train.get(0..train.len()).unwrap();
            all.extend(validation.get(0..validation.len()).unwrap());
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
        let file = Arc::new(ids(10, &OpenOptions::default()));
        for fraction in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
            assert!(file.split(fraction).is_err(), "{fraction}");
        }
    }

    #[test]
    fn the_fingerprint_sees_type_count_and_ids() {
        let of = |ids: &[u32]| TokenFile::from_ids("", ids, &OpenOptions::default()).unwrap().fingerprint();
        let base: Vec<u32> = (0..3000).collect();
        let mut other = base.clone();
        other[2999] += 1;
        assert_eq!(of(&base), of(&base));
        assert_ne!(of(&base), of(&other));
        assert_ne!(of(&base), of(&base[..2999]));
        let text = TokenFile::from_text("", "a\0", &OpenOptions { dtype: Some(IdType::U8), vocab_size: None }).unwrap();
        assert_ne!(text.fingerprint(), of(&[97, 0]));
    }

    #[test]
    fn a_model_with_fewer_ids_than_the_tokenizer_is_refused() {
        let small = OpenOptions { vocab_size: Some(255), ..OpenOptions::default() };
        let padded = OpenOptions { vocab_size: Some(320), ..OpenOptions::default() };
        assert!(matches!(TokenFile::from_text("", "text", &small), Err(DataError::OtherVocabulary { .. })));
        assert_eq!(TokenFile::from_text("", "text", &padded).unwrap().get(0..4).unwrap(), [116, 101, 120, 116]);
    }
}
