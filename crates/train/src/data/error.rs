//! What can be wrong with token data.

use std::fmt;
use std::io;
use std::path::PathBuf;

use units::{Diagnostic, Location};

use super::format::Format;
use super::id_type::IdType;

/// A problem of token data. It becomes a [`Diagnostic`] at the boundary.
#[derive(Debug)]
#[non_exhaustive]
pub enum DataError {
    /// The system refused a file.
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, as in "cannot open".
        doing: &'static str,
        /// Its answer.
        error: io::Error,
    },
    /// A file without ids.
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Ids without a header, of unknown width.
    UnknownWidth {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What its first ids look like.
        likely: Option<IdType>,
    },
    /// Bytes that are no whole number of ids.
    OddBytes {
        /// The file.
        path: PathBuf,
        /// Bytes of its body.
        bytes: u64,
        /// Type of an id.
        dtype: IdType,
    },
    /// A body that is shorter or longer than the header says.
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Whose header.
        format: Format,
        /// Ids that the header announces.
        count: u64,
        /// Bytes that these take.
        expected: u64,
        /// Bytes that are there.
        bytes: u64,
    },
    /// A header that cannot be read.
    BadHeader {
        /// The file.
        path: PathBuf,
        /// Whose header.
        format: Format,
        /// What is wrong, as in "is big-endian".
        what: String,
    },
    /// The type that was asked for is not the one in the header.
    OtherType {
        /// The file.
        path: PathBuf,
        /// Type in the header.
        header: IdType,
        /// Type asked for.
        asked: IdType,
    },
    /// A file of a known kind that holds no ids.
    NotTokens {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// How to get at the ids.
        help: &'static str,
    },
    /// Text where ids were announced.
    TextAsIds {
        /// The file.
        path: PathBuf,
        /// Type that was asked for.
        asked: IdType,
    },
    /// An id that the model has no embedding for.
    AboveVocabulary {
        /// The file.
        path: PathBuf,
        /// Index of the id in the file.
        position: u64,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab_size: u64,
    },
    /// A file made for a larger vocabulary than the model has.
    OtherVocabulary {
        /// The file.
        path: PathBuf,
        /// Name of the file's tokenizer; may be empty.
        tokenizer: String,
        /// Size of the file's vocabulary.
        file: u64,
        /// Size of the model's vocabulary.
        model: u64,
    },
    /// A negative id, or one beyond 32 bits.
    NoId {
        /// The file.
        path: PathBuf,
        /// Index of the id in the file.
        position: u64,
        /// The value.
        value: i64,
    },
    /// Fewer ids than one sample takes.
    TooShort {
        /// The file.
        path: PathBuf,
        /// Which part of it: "training", "validation", or empty for all of it.
        part: &'static str,
        /// Ids there are.
        tokens: u64,
        /// Ids of one sample.
        window: u64,
    },
    /// A share for validation that is not in 0 to 1.
    BadFraction {
        /// The share.
        fraction: f64,
    },
    /// Bytes that are no UTF-8.
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Index of the first such byte.
        position: u64,
        /// That byte.
        byte: u8,
        /// Its line, from 1.
        line: u64,
        /// The encoding that the file seems to have.
        likely: Option<&'static str>,
    },
    /// Whitespace without end.
    BlankTooLong {
        /// The file.
        path: PathBuf,
        /// Index of its first byte.
        position: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A tokenizer without a token for the end of a text, where one is wanted.
    NoEndOfText {
        /// Its name.
        tokenizer: String,
    },
    /// An output that is also an input.
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// The thread that reads batches has ended, by an error that was reported before.
    NoMoreBatches,
    /// A file that would be overwritten.
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Ids asked for that lie outside.
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// First index asked for.
        start: u64,
        /// Index behind the last.
        end: u64,
        /// Ids there are.
        tokens: u64,
    },
}

impl DataError {
    pub(crate) fn io(path: impl Into<PathBuf>, doing: &'static str, error: io::Error) -> Self {
        Self::Io { path: path.into(), doing, error }
    }

    /// The problem for people.
    pub fn diagnostic(&self) -> Diagnostic {
        let at = |path: &PathBuf| Location::file(path.display().to_string());
        match self {
            Self::Io { path, doing, error } => {
                let problem =
                    Diagnostic::error("T0501", format!("cannot {doing} `{}`: {error}", path.display())).at(at(path));
                match error.kind() {
                    io::ErrorKind::NotFound => problem.help("check the path"),
                    io::ErrorKind::StorageFull => problem.help("free some space, or write to another disk"),
                    _ => problem,
                }
            }
            Self::Empty { path } => Diagnostic::error("T0502", "the file has no tokens")
                .at(at(path))
                .why("there is nothing to train on")
                .help("napkin tokenize TEXT... -o tokens.bin makes a token file"),
            Self::UnknownWidth { path, bytes, likely } => {
                let problem = Diagnostic::error(
                    "T0503",
                    format!("{bytes} bytes without a header: the type of the ids is unknown"),
                )
                .at(at(path))
                .why("the same bytes are valid ids of two widths, and a wrong guess trains on noise");
                match likely {
                    Some(dtype) => problem
                        .help(format!("--ids {dtype} (the first ids look like it)"))
                        .help(format!("napkin inspect {} shows both readings", path.display())),
                    None => problem.help("--ids u16 or --ids u32"),
                }
            }
            Self::OddBytes { path, bytes, dtype } => {
                Diagnostic::error("T0504", format!("{bytes} bytes are no whole number of {dtype} ids"))
                    .at(at(path))
                    .why(format!(
                        "an id takes {} bytes, and {} are left over: the file is cut, or has another type or a header",
                        dtype.bytes(),
                        bytes % dtype.bytes() as u64
                    ))
                    .help(format!("napkin inspect {}", path.display()))
            }
            Self::WrongLength { path, format, count, expected, bytes } => {
                let (what, why) = if bytes < expected {
                    ("the file is cut", "whoever wrote or copied it was stopped")
                } else {
                    ("the file is longer than its header says", "it was appended to, or the header is another file's")
                };
                let said = format!(
                    "{what}: its {format} header announces {count} ids in {expected} bytes, and {bytes} are there"
                );
                Diagnostic::error("T0505", said).at(at(path)).why(why).help("make or copy the file again")
            }
            Self::BadHeader { path, format, what } => {
                let problem = Diagnostic::error("T0506", format!("this {format} file {what}")).at(at(path));
                match format {
                    Format::Npy => problem.help("numpy.save(path, ids.ravel().astype('<u2')), or '<u4'"),
                    _ => problem.help("make or copy the file again"),
                }
            }
            Self::OtherType { path, header, asked } => {
                Diagnostic::error("T0506", format!("the header says {header}, and {asked} was asked for"))
                    .at(at(path))
                    .why("a file with a header is read as the header says")
                    .help("leave --ids out")
            }
            Self::NotTokens { path, what, help } => {
                let problem = Diagnostic::error("T0519", format!("this is {what}, not a file of tokens")).at(at(path));
                if help.is_empty() { problem } else { problem.help(*help) }
            }
            Self::TextAsIds { path, asked } => {
                Diagnostic::error("T0511", format!("this is text, and {asked} ids were announced"))
                    .at(at(path))
                    .why("the bytes of a text are valid ids of every width, and training on them teaches nothing")
                    .help("leave --ids out: the text is then read as bytes")
                    .help(format!("napkin tokenize {} -o tokens.bin --tokenizer gpt2", path.display()))
            }
            Self::AboveVocabulary { path, position, id, vocab_size } => Diagnostic::error(
                "T0507",
                format!("token {position} is {id}, at or above the vocabulary of {vocab_size}"),
            )
            .at(at(path))
            .why("the model has no embedding for it: another tokenizer made the file, or its width is another")
            .help(format!("napkin inspect {} --vocab {vocab_size}", path.display()))
            .help(format!("a model with --set vocab_size={} or more", u64::from(*id) + 1)),
            Self::OtherVocabulary { path, tokenizer, file, model } => {
                let made = if tokenizer.is_empty() { String::new() } else { format!(" of `{tokenizer}`") };
                Diagnostic::error(
                    "T0507",
                    format!("tokens{made} with a vocabulary of {file} for a model that knows {model}"),
                )
                .at(at(path))
                .why("ids above the model's vocabulary have no embedding")
                .help(format!("--set vocab_size={file}"))
                .help("napkin tokenize with the tokenizer of the model")
            }
            Self::NoId { path, position, value } => {
                Diagnostic::error("T0508", format!("token {position} is {value}, which is no token id"))
                    .at(at(path))
                    .why("ids are 0 to 4294967295")
                    .help(format!("napkin inspect {}", path.display()))
            }
            Self::TooShort { path, part, tokens, window } => {
                let part = if part.is_empty() { String::new() } else { format!(" for {part}") };
                Diagnostic::error("T0509", format!("{tokens} tokens{part} are fewer than one sample of {window}"))
                    .at(at(path))
                    .why("a sample is a window of the file, and the target of each token is the one behind it")
                    .help("a shorter --seq-len, more text, or another --val-fraction")
            }
            Self::BadFraction { fraction } => {
                Diagnostic::error("T0510", format!("{fraction} is no share of the data for validation"))
                    .help("--val-fraction 0.1, or any number from 0 to below 1")
            }
            Self::NotUtf8 { path, position, byte, line, likely } => {
                let line = u32::try_from(*line).unwrap_or(u32::MAX);
                let place = Location { line, ..Location::file(path.display().to_string()) };
                let problem = Diagnostic::error("T0516", format!("byte {position} (0x{byte:02X}) is no UTF-8"))
                    .at(place)
                    .why("the encodings are defined on text in UTF-8; the tokenizer `bytes` takes anything");
                let problem = match likely {
                    Some(name) => problem.help(format!("iconv -f {name} -t utf-8 (the file seems to be {name})")),
                    None => problem.help("iconv -f ENCODING -t utf-8"),
                };
                problem.help("--lossy puts U+FFFD in the place of what is no UTF-8").help("--tokenizer bytes")
            }
            Self::BlankTooLong { path, position, bytes } => {
                Diagnostic::error("T0517", format!("{bytes} bytes of whitespace in a row from byte {position} on"))
                    .at(at(path))
                    .why("the pattern by which the encoding splits a text cannot be matched against that much of it")
                    .help("shorten it, or --tokenizer bytes")
            }
            Self::NoEndOfText { tokenizer } => {
                Diagnostic::error("T0515", format!("`{tokenizer}` has no token for the end of a text"))
                    .help("another --tokenizer")
            }
            Self::SameFile { path } => {
                Diagnostic::error("T0513", format!("`{}` is an input and the output", path.display()))
                    .why("writing it would destroy what is to be read")
                    .help("another name behind -o")
            }
            Self::NoMoreBatches => Diagnostic::error("T0514", "there are no more batches")
                .why("the thread that reads them has ended, by the problem reported before"),
            Self::Exists { path } => {
                Diagnostic::error("T0513", format!("`{}` exists already", path.display())).help("--force overwrites it")
            }
            Self::OutOfRange { path, start, end, tokens } => {
                Diagnostic::error("T0512", format!("tokens {start} to {end} were asked for, and there are {tokens}"))
                    .at(at(path))
            }
        }
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.diagnostic().message)
    }
}

impl std::error::Error for DataError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<DataError> for Diagnostic {
    fn from(error: DataError) -> Self {
        error.diagnostic()
    }
}

impl From<DataError> for units::Diagnostics {
    fn from(error: DataError) -> Self {
        error.diagnostic().into()
    }
}
