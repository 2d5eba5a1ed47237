//! A part of a token file.

use std::ops::Range;
use std::sync::Arc;

use super::error::DataError;
use super::token_file::TokenFile;

/// Consecutive ids of a file, numbered from 0. Cheap to copy.
#[derive(Clone, Debug)]
pub struct Span {
    file: Arc<TokenFile>,
    /// What it is for: "training", "validation", or empty for all of the file.
    part: &'static str,
    range: Range<u64>,
    vocab_size: Option<u64>,
}

impl Span {
    pub(crate) fn new(file: Arc<TokenFile>, part: &'static str, range: Range<u64>) -> Self {
        Self { file, part, range, vocab_size: None }
    }

    /// The same ids, held against a model's vocabulary: where one at or above it is read, that is an error.
    pub fn with_vocab_size(self, vocab_size: u64) -> Self {
        Self { vocab_size: Some(vocab_size), ..self }
    }

    /// Number of ids.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The file it is a part of.
    pub fn file(&self) -> &Arc<TokenFile> {
        &self.file
    }

    /// The ids from index `start` on, as many as `out` takes. Behind the last one the first follows, as often as
    /// needed: a pass over the data goes on where the one before ended.
    ///
    /// # Errors
    /// There are no ids, or one of them is none of the vocabulary.
    pub fn read(&self, start: u64, out: &mut [u32]) -> Result<(), DataError> {
        if self.is_empty() && !out.is_empty() {
            return Err(self.too_short(out.len() as u64));
        }
        let mut at = start % self.len().max(1);
        let mut rest = out;
        while !rest.is_empty() {
            let here = (rest.len() as u64).min(self.len() - at);
            let (now, later) = rest.split_at_mut(here as usize);
            self.file.read_below(self.range.start + at, now, self.vocab_size)?;
            rest = later;
            at = 0;
        }
        Ok(())
    }

    /// The ids of a range that does not go over the end.
    ///
    /// # Errors
    /// It does, or one of the ids is none of the vocabulary.
    pub fn get(&self, range: Range<u64>) -> Result<Vec<u32>, DataError> {
        if range.end > self.len() {
            let (start, end) = (range.start, range.end);
            return Err(DataError::OutOfRange { path: self.file.path().to_owned(), start, end, tokens: self.len() });
        }
        let mut out = vec![0; range.end.saturating_sub(range.start) as usize];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    pub(crate) fn too_short(&self, window: u64) -> DataError {
        DataError::TooShort { path: self.file.path().to_owned(), part: self.part, tokens: self.len(), window }
    }
}

#[cfg(test)]
mod tests {
    use super::super::token_file::OpenOptions;
    use super::*;

    #[test]
    fn reading_goes_on_at_the_beginning() {
        let file = Arc::new(TokenFile::from_ids("", &[0, 1, 2, 3, 4, 5, 6, 7], &OpenOptions::default()).unwrap());
        let span = Span::new(Arc::clone(&file), "training", 2..6);
        let read = |start, len| {
            let mut out = vec![0; len];
            span.read(start, &mut out).unwrap();
            out
        };
        assert_eq!(read(0, 4), [2, 3, 4, 5]);
        assert_eq!(read(3, 3), [5, 2, 3]);
        assert_eq!(read(4 * 1_000_000_007 + 1, 10), [3, 4, 5, 2, 3, 4, 5, 2, 3, 4]);
        assert_eq!(span.get(1..4).unwrap(), [3, 4, 5]);
        assert!(span.get(1..5).is_err());
        let small = span.clone().with_vocab_size(5);
        assert_eq!(small.get(0..3).unwrap(), [2, 3, 4]);
        assert!(matches!(small.get(0..4), Err(DataError::AboveVocabulary { position: 5, id: 5, vocab_size: 5, .. })));
        let nothing = Span::new(file, "validation", 6..6);
        assert!(matches!(nothing.read(0, &mut [0]), Err(DataError::TooShort { tokens: 0, .. })));
    }
}
