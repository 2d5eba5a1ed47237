//! Texts to a token file, in pieces: memory does not grow with the size of the texts, unless they come from a pipe.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use rayon::prelude::*;
use units::Diagnostics;

use super::error::DataError;
use super::format::Vocabulary;
use super::id_type::IdType;
use super::map;
use super::pieces::Pieces;
use super::tokenizer::Tokenizer;
use super::writer::TokenWriter;

/// What to tokenize, and how.
#[derive(Debug)]
pub struct Tokenize {
    /// Texts, in the order of their ids. `-` is standard input.
    pub inputs: Vec<PathBuf>,
    /// The token file.
    pub output: PathBuf,
    /// Turns text into ids.
    pub tokenizer: Tokenizer,
    /// Add the token for the end of a text behind every document.
    pub end_of_text: bool,
    /// What separates the documents in a file; it becomes no token. Without it, a file is one document.
    pub separator: Option<String>,
    /// Replace what is no UTF-8 with U+FFFD instead of refusing it.
    pub lossy: bool,
    /// Overwrite an existing file.
    pub force: bool,
    /// About how many bytes are tokenized at a time by one thread. The ids do not depend on it.
    pub piece_bytes: usize,
}

/// Bytes of a piece: long enough that threads have work, short enough that all pieces in flight are small.
pub const PIECE_BYTES: usize = 1 << 20;

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of text read.
    pub bytes: u64,
    /// Bytes of text there are.
    pub of: u64,
    /// Ids written.
    pub tokens: u64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokenized {
    /// The token file.
    pub output: PathBuf,
    /// Each input with its bytes and its ids.
    pub inputs: Vec<(PathBuf, u64, u64)>,
    /// What the ids stand for.
    pub vocabulary: Vocabulary,
    /// How an id is stored.
    pub dtype: IdType,
    /// Documents.
    pub documents: u64,
    /// Ids.
    pub tokens: u64,
    /// Bytes of the token file.
    pub file_bytes: u64,
    /// U+FFFD that stand for bytes that are no UTF-8.
    pub replaced: u64,
}

impl Tokenized {
    /// Bytes of text.
    pub fn text_bytes(&self) -> u64 {
        self.inputs.iter().map(|(_, bytes, _)| bytes).sum()
    }
}

/// Text, mapped if it is a file.
enum Text {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Text {
    fn open(path: &Path) -> Result<Self, DataError> {
        let read = |error| DataError::io(path, "read", error);
        if path == Path::new("-") {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).map_err(read)?;
            return Ok(Self::Read(bytes));
        }
        let mut file = File::open(path).map_err(|error| DataError::io(path, "open", error))?;
        let meta = file.metadata().map_err(read)?;
        if meta.is_file() && meta.len() > 0 {
            return map::map(&file).map(Self::Mapped).map_err(|error| DataError::io(path, "map", error));
        }
        // A pipe has no length, and neither has what the system makes up while it is read.
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(read)?;
        Ok(Self::Read(bytes))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read(bytes) => bytes,
        }
    }
}

/// A part of a text, and whether a document ends behind it.
struct Work {
    range: Range<usize>,
    ends_document: bool,
}

impl Tokenize {
    /// Does it. `progress` is told now and then how far it is.
    ///
    /// # Errors
    /// An input cannot be read or is empty, a text is no UTF-8, or the output cannot be written. No file is left then.
    pub fn run(&self, progress: &mut dyn FnMut(Progress)) -> Result<Tokenized, Diagnostics> {
        let mut texts = Vec::new();
        let mut problems = Diagnostics::new();
        for path in &self.inputs {
            match self.open(path) {
                Ok(text) => texts.push((path, text)),
                Err(error) => problems.push(error),
            }
        }
        let vocabulary = self.vocabulary().map_err(|error| problems.push(error)).ok();
        match vocabulary {
            Some(vocabulary) if !problems.has_errors() => Ok(self.write(&texts, vocabulary, progress)?),
            _ => Err(problems),
        }
    }

    fn open(&self, path: &Path) -> Result<Text, DataError> {
        let same = |path: &Path| fs::canonicalize(path).ok();
        if same(path).is_some() && same(path) == same(&self.output) {
            return Err(DataError::SameFile { path: path.to_owned() });
        }
        let text = Text::open(path)?;
        if text.bytes().is_empty() {
            return Err(DataError::Empty { path: path.to_owned() });
        }
        Ok(text)
    }

    fn vocabulary(&self) -> Result<Vocabulary, DataError> {
        let vocabulary = self.tokenizer.vocabulary().clone();
        if self.end_of_text && vocabulary.end_of_text.is_none() {
            return Err(DataError::NoEndOfText { tokenizer: vocabulary.tokenizer });
        }
        Ok(vocabulary)
    }

    fn write(
        &self,
        texts: &[(&PathBuf, Text)],
        vocabulary: Vocabulary,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Tokenized, DataError> {
        let of = texts.iter().map(|(_, text)| text.bytes().len() as u64).sum();
        let end_of_text = vocabulary.end_of_text.filter(|_| self.end_of_text);
        let mut writer = TokenWriter::create(&self.output, vocabulary.clone(), self.force)?;
        let mut done = Tokenized {
            output: self.output.clone(),
            inputs: Vec::new(),
            vocabulary,
            dtype: writer.dtype(),
            documents: 0,
            tokens: 0,
            file_bytes: 0,
            replaced: 0,
        };
        let mut bytes_before = 0;
        // As many pieces in flight as keep every thread busy while the longest is finished.
        let batch_bytes = self.piece_bytes.saturating_mul(4 * rayon::current_num_threads());
        for (path, text) in texts {
            let bytes = text.bytes();
            let tokens_before = writer.count();
            let mut work = self.work(bytes).peekable();
            while work.peek().is_some() {
                let mut batch = Vec::new();
                let mut in_batch = 0;
                while in_batch < batch_bytes
                    && let Some(next) = work.next()
                {
                    in_batch += next.range.len();
                    batch.push(next);
                }
                let encoded: Vec<Result<(Vec<u32>, u64), DataError>> =
                    batch.par_iter().map(|work| self.encode(path, bytes, work.range.clone())).collect();
                for (work, ids) in batch.iter().zip(encoded) {
                    let (ids, replaced) = ids?;
                    writer.push(&ids)?;
                    done.replaced += replaced;
                    if work.ends_document {
                        done.documents += 1;
                        if let Some(id) = end_of_text {
                            writer.push(&[id])?;
                        }
                    }
                }
                let read = batch.last().map_or(0, |work| work.range.end as u64);
                progress(Progress { bytes: bytes_before + read, of, tokens: writer.count() });
            }
            bytes_before += bytes.len() as u64;
            done.inputs.push(((*path).clone(), bytes.len() as u64, writer.count() - tokens_before));
        }
        done.tokens = writer.count();
        done.file_bytes = writer.finish()?;
        Ok(done)
    }

    /// The parts of a text in order. Documents without a byte are left out.
    fn work<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = Work> + 'a {
        documents(bytes, self.separator.as_deref().unwrap_or_default().as_bytes()).flat_map(move |document| {
            let anywhere = self.tokenizer.is_bytes();
            Pieces::new(&bytes[document.clone()], self.piece_bytes, anywhere).map(move |piece| Work {
                ends_document: document.start + piece.end == document.end,
                range: document.start + piece.start..document.start + piece.end,
            })
        })
    }

    /// The ids of a part, and how many U+FFFD had to be put into it.
    fn encode(&self, path: &Path, bytes: &[u8], range: Range<usize>) -> Result<(Vec<u32>, u64), DataError> {
        let part = &bytes[range.clone()];
        if self.tokenizer.is_bytes() {
            return Ok((Tokenizer::encode_bytes(part), 0));
        }
        let long = |found: super::BlankTooLong| DataError::BlankTooLong {
            path: path.to_owned(),
            position: (range.start + found.start) as u64,
            bytes: found.len as u64,
        };
        match std::str::from_utf8(part) {
            Ok(text) => Ok((self.tokenizer.encode(text).map_err(long)?, 0)),
            Err(_) if self.lossy => {
                let text = String::from_utf8_lossy(part);
                let stand_ins = |text: &str| text.matches(char::REPLACEMENT_CHARACTER).count() as u64;
                // Some may have stood in the text before.
                let before = part.utf8_chunks().map(|chunk| stand_ins(chunk.valid())).sum::<u64>();
                let replaced = stand_ins(&text) - before;
                Ok((self.tokenizer.encode(&text).map_err(long)?, replaced))
            }
            Err(error) => {
                let at = range.start + error.valid_up_to();
                Err(DataError::NotUtf8 {
                    path: path.to_owned(),
                    position: at as u64,
                    byte: bytes[at],
                    line: 1 + memchr::memchr_iter(b'\n', &bytes[..at]).count() as u64,
                    likely: likely_encoding(bytes, at),
                })
            }
        }
    }
}

/// The stretches between separators that are not empty.
fn documents<'a>(bytes: &'a [u8], separator: &'a [u8]) -> impl Iterator<Item = Range<usize>> + 'a {
    // An empty separator separates nothing.
    let found = (!separator.is_empty()).then(|| memchr::memmem::find_iter(bytes, separator));
    let mut ends = found.into_iter().flatten().chain([bytes.len()]);
    let mut start = 0;
    std::iter::from_fn(move || {
        let end = ends.next()?;
        let document = start..end;
        start = (end + separator.len()).min(bytes.len());
        Some(document)
    })
    .filter(|document| !document.is_empty())
}

/// The encoding of a text that is no UTF-8 from byte `at` on.
fn likely_encoding(bytes: &[u8], at: usize) -> Option<&'static str> {
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return Some("utf-16");
    }
    let around = &bytes[at.saturating_sub(200)..(at + 200).min(bytes.len())];
    let plain = around.iter().filter(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()).count();
    // Western text of one byte for each letter is mostly ASCII.
    (plain * 10 > around.len() * 8).then_some("windows-1252")
}
