//! Text to ids and back: the encodings of GPT-2 and its successors, and bytes.

use std::fmt;

use tiktoken_rs::CoreBPE;
use units::Diagnostic;

use super::format::Vocabulary;

/// Turns text into ids.
pub struct Tokenizer {
    kind: Kind,
    vocabulary: Vocabulary,
}

enum Kind {
    /// The ids are the bytes.
    Bytes,
    Bpe(Box<CoreBPE>),
}

/// A published encoding.
struct Encoding {
    /// Its name, and others by which it is known.
    names: &'static [&'static str],
    size: u64,
    end_of_text: u32,
    load: fn() -> Result<CoreBPE, String>,
}

/// All that `tiktoken-rs` ships, with the sizes that the original `tiktoken` states.
const ENCODINGS: [Encoding; 5] = [
    Encoding {
        names: &["gpt2", "r50k_base"],
        size: 50_257,
        end_of_text: 50_256,
        load: || tiktoken_rs::r50k_base().map_err(|error| error.to_string()),
    },
    Encoding {
        names: &["p50k_base"],
        size: 50_281,
        end_of_text: 50_256,
        load: || tiktoken_rs::p50k_base().map_err(|error| error.to_string()),
    },
    Encoding {
        names: &["cl100k_base"],
        size: 100_277,
        end_of_text: 100_257,
        load: || tiktoken_rs::cl100k_base().map_err(|error| error.to_string()),
    },
    Encoding {
        names: &["o200k_base"],
        size: 200_019,
        end_of_text: 199_999,
        load: || tiktoken_rs::o200k_base().map_err(|error| error.to_string()),
    },
    Encoding {
        names: &["o200k_harmony"],
        size: 201_088,
        end_of_text: 199_999,
        load: || tiktoken_rs::o200k_harmony().map_err(|error| error.to_string()),
    },
];

const BYTES: &str = "bytes";
/// The same with one more id, for the end of a text.
const BYTES_END: &str = "bytes_eot";

/// Whitespace in a row that the patterns of the encodings are matched against: their look-ahead keeps one state for
/// each, and the matcher gives up at a million.
const LONGEST_BLANK: usize = 100_000;

/// A stretch of whitespace that is longer than an encoding's pattern can be matched against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlankTooLong {
    /// Its first byte.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl Tokenizer {
    /// Every name that [`by_name`](Self::by_name) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ENCODINGS.iter().flat_map(|encoding| encoding.names).copied().chain([BYTES, BYTES_END])
    }

    /// The tokenizer of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn by_name(name: &str) -> Result<Self, Diagnostic> {
        let wanted = name.trim().to_lowercase();
        match &*wanted {
            BYTES => return Ok(Self::bytes(false)),
            BYTES_END => return Ok(Self::bytes(true)),
            _ => {}
        }
        let Some(encoding) = ENCODINGS.iter().find(|encoding| encoding.names.contains(&&*wanted)) else {
            let names: Vec<&str> = Self::names().collect();
            return Err(Diagnostic::error("T0515", format!("no tokenizer is called `{name}`")).help(names.join(", ")));
        };
        let bpe = (encoding.load)().map_err(|error| {
            Diagnostic::error("T0515", format!("the vocabulary of `{name}` cannot be read: {error}"))
        })?;
        let mut tokenizer = Self {
            kind: Kind::Bpe(Box::new(bpe)),
            vocabulary: Vocabulary {
                tokenizer: encoding.names[0].to_owned(),
                size: encoding.size,
                crc32: 0,
                end_of_text: Some(encoding.end_of_text),
            },
        };
        tokenizer.vocabulary.crc32 = tokenizer.checksum();
        Ok(tokenizer)
    }

    /// The bytes of a text as ids, with or without id 256 for the end of a text.
    pub fn bytes(end_of_text: bool) -> Self {
        let vocabulary = Vocabulary {
            tokenizer: if end_of_text { BYTES_END } else { BYTES }.to_owned(),
            size: 256 + u64::from(end_of_text),
            crc32: 0,
            end_of_text: end_of_text.then_some(256),
        };
        let mut tokenizer = Self { kind: Kind::Bytes, vocabulary };
        tokenizer.vocabulary.crc32 = tokenizer.checksum();
        tokenizer
    }

    /// The tokenizer that a file was made with, if it is one of these.
    pub fn of(vocabulary: &Vocabulary) -> Option<Self> {
        let found = Self::by_name(&vocabulary.tokenizer).ok()?;
        let same = found.vocabulary.size == vocabulary.size
            && (vocabulary.crc32 == 0 || found.vocabulary.crc32 == vocabulary.crc32);
        same.then_some(found)
    }

    /// Its name, size and special tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// True if every byte is a token, so that text may be cut anywhere and need not be UTF-8.
    pub fn is_bytes(&self) -> bool {
        matches!(self.kind, Kind::Bytes)
    }

    /// The ids of a text. What looks like a special token is text like any other.
    ///
    /// # Errors
    /// More than 100,000 characters of whitespace in a row, which the encodings' patterns cannot be matched against.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, BlankTooLong> {
        match &self.kind {
            Kind::Bytes => Ok(Self::encode_bytes(text.as_bytes())),
            Kind::Bpe(bpe) => {
                check_blanks(text)?;
                Ok(bpe.encode_ordinary(text))
            }
        }
    }

    /// The bytes as ids.
    pub(crate) fn encode_bytes(bytes: &[u8]) -> Vec<u32> {
        bytes.iter().map(|&byte| u32::from(byte)).collect()
    }

    /// The bytes of one token, which need not be whole characters; nothing if there is no such id.
    pub fn token(&self, id: u32) -> Option<Vec<u8>> {
        match &self.kind {
            Kind::Bytes => match u8::try_from(id) {
                Ok(byte) => Some(vec![byte]),
                Err(_) => (self.vocabulary.end_of_text == Some(id)).then(|| b"<|endoftext|>".to_vec()),
            },
            Kind::Bpe(bpe) => bpe.decode_bytes(&[id]).ok(),
        }
    }

    /// The bytes of several tokens. An id that is none becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let token = |&id| self.token(id).unwrap_or_else(|| "\u{FFFD}".as_bytes().to_vec());
        ids.iter().flat_map(token).collect()
    }

    /// See [`Vocabulary::crc32`].
    fn checksum(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        for id in 0..self.vocabulary.size as u32 {
            // Some encodings leave numbers out below their special tokens.
            if let Some(token) = self.token(id) {
                hash.update(&id.to_le_bytes());
                hash.update(&(token.len() as u32).to_le_bytes());
                hash.update(&token);
            }
        }
        hash.finalize()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

fn check_blanks(text: &str) -> Result<(), BlankTooLong> {
    // A stretch that long holds one of these places, so it is enough to look there.
    for place in (LONGEST_BLANK..text.len()).step_by(LONGEST_BLANK) {
        let at = (0..=place).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
        let start = text[..at].trim_end().len();
        let len = text.len() - text[at..].trim_start().len() - start;
        if len > LONGEST_BLANK {
            return Err(BlankTooLong { start, len });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the cookbook of `tiktoken`'s authors ("How to count tokens with tiktoken") and of GPT-2's own encoder.
    #[test]
    fn published_examples() {
        for (name, text, ids) in [
            ("gpt2", "Hello world", &[15_496, 995][..]),
            ("r50k_base", "tiktoken is great!", &[83, 1_134, 30_001, 318, 1_049, 0]),
            ("p50k_base", "antidisestablishmentarianism", &[415, 29_207, 44_390, 3_699, 1_042]),
            ("cl100k_base", "tiktoken is great!", &[83, 1_609, 5_963, 374, 2_294, 0]),
            ("o200k_base", "tiktoken is great!", &[83, 8_251, 2_488, 382, 2_212, 0]),
            ("bytes", "Hé", &[72, 195, 169]),
        ] {
            let tokenizer = Tokenizer::by_name(name).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}");
            assert_eq!(tokenizer.decode(ids), text.as_bytes(), "{name}");
        }
    }

    #[test]
    fn vocabularies_have_the_stated_size() {
        let mut checksums = Vec::new();
        for name in Tokenizer::names() {
            let tokenizer = Tokenizer::by_name(name).unwrap();
            let vocabulary = tokenizer.vocabulary();
            let size = vocabulary.size as u32;
            assert!(tokenizer.token(size - 1).is_some(), "{name}");
            assert!((size..size + 2000).all(|id| tokenizer.token(id).is_none()), "{name}");
            if let Some(id) = vocabulary.end_of_text {
                assert_eq!(tokenizer.token(id).unwrap(), b"<|endoftext|>", "{name}");
            }
            assert_eq!(Tokenizer::of(vocabulary).unwrap().vocabulary(), vocabulary);
            let other = Vocabulary { crc32: vocabulary.crc32 ^ 1, ..vocabulary.clone() };
            assert!(Tokenizer::of(&other).is_none(), "{name}");
            checksums.push(vocabulary.crc32);
        }
        checksums.sort_unstable();
        checksums.dedup();
        // `gpt2` and `r50k_base` are one vocabulary.
        assert_eq!(checksums.len(), Tokenizer::names().count() - 1);
        let marked = Tokenizer::bytes(true);
        assert_eq!((marked.vocabulary().size, marked.vocabulary().end_of_text), (257, Some(256)));
        assert_eq!(marked.decode(&[104, 256, 300]), "h<|endoftext|>\u{FFFD}".as_bytes());
        let unknown = Tokenizer::by_name("gpt3").unwrap_err();
        assert!(unknown.help[0].contains("gpt2"));
    }

    #[test]
    fn special_tokens_in_a_text_are_text() {
        let tokenizer = Tokenizer::by_name("gpt2").unwrap();
        let ids = tokenizer.encode("<|endoftext|>").unwrap();
        assert!(!ids.contains(&50_256));
        assert_eq!(tokenizer.decode(&ids), b"<|endoftext|>");
    }

    #[test]
    fn endless_whitespace_is_an_error_and_not_a_panic() {
        let tokenizer = Tokenizer::by_name("gpt2").unwrap();
        for blank in [" ", "\n", "\t", "\u{3000}"] {
            let short = format!("word{}word", blank.repeat(30_000));
            assert!(tokenizer.encode(&short).is_ok(), "{blank:?}");
            for (before, after) in [("", ""), ("word", "word"), ("é", ""), ("", "x")] {
                let long = format!("{before}{}{after}", blank.repeat(1_200_000 / blank.len()));
                let found = tokenizer.encode(&long).unwrap_err();
                assert_eq!(found, BlankTooLong { start: before.len(), len: 1_200_000 }, "{blank:?}");
            }
        }
        let longest = " ".repeat(LONGEST_BLANK);
        assert!(tokenizer.encode(&longest).is_ok());
        assert!(Tokenizer::bytes(false).encode(&" ".repeat(2_000_000)).is_ok());
    }
}
