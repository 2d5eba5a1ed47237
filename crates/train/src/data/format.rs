//! What a file of tokens is: its own header, that of another tool, a NumPy array, text, or nothing but ids.
//!
//! Napkin's header is 128 bytes, little-endian; the ids follow.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `89 4E 54 4F 4B 0D 0A 1A`: no text, and damaged by every conversion of line breaks |
//! | 8..12 | version, 1 |
//! | 12..16 | bits of one unsigned id: 16 or 32 |
//! | 16..24 | number of ids |
//! | 24..32 | size of the vocabulary |
//! | 32..36 | CRC-32 of the vocabulary ([`Vocabulary::crc32`]) |
//! | 36..40 | id of the end of a text; all ones if there is none |
//! | 40..44 | CRC-32 of the ids |
//! | 44..48 | CRC-32 of this header with these four bytes zero |
//! | 48..112 | name of the tokenizer, padded with zeros |
//! | 112..128 | zeros |

use std::fmt;
use std::path::Path;

use super::error::DataError;
use super::id_type::IdType;
use super::npy;
use super::tokenizer::Tokenizer;

/// Which kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Napkin's own, with the vocabulary in its header.
    Napkin,
    /// Ids and nothing else.
    Raw,
    /// A NumPy array.
    Npy,
    /// The shards of llm.c: 256 words of header.
    LlmC,
    /// A text, whose bytes are the ids.
    Text,
}

impl Format {
    /// Its name in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Napkin => "napkin",
            Self::Raw => "raw",
            Self::Npy => "npy",
            Self::LlmC => "llm.c",
            Self::Text => "text",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the ids stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Name of the tokenizer, at most 64 bytes.
    pub tokenizer: String,
    /// Number of ids, special tokens counted.
    pub size: u64,
    /// CRC-32 of all tokens in the order of their ids, each as id and length (`u32`, little-endian) and bytes. It
    /// tells two vocabularies of one size apart. Zero if it is not known.
    pub crc32: u32,
    /// Id of the end of a text, if the vocabulary has one.
    pub end_of_text: Option<u32>,
}

/// What a file says about its ids, and where these stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub format: Format,
    pub dtype: IdType,
    /// Number of ids.
    pub count: u64,
    /// First byte of the ids.
    pub offset: usize,
    pub vocabulary: Option<Vocabulary>,
    /// CRC-32 of the ids, if the header has one.
    pub crc32: Option<u32>,
}

const MAGIC: [u8; 8] = *b"\x89NTOK\r\n\x1a";
const VERSION: u32 = 1;
const NO_TOKEN: u32 = u32::MAX;
const NAME_BYTES: usize = 64;

/// Bytes of Napkin's header. A multiple of 64, so that ids are aligned for every vector load.
pub(crate) const HEADER_BYTES: usize = 128;

/// llm.c's magic numbers, its type of ids and tokenizer: `dev/data/data_common.py` of that project.
const LLM_C: [(u32, IdType, &str, u64, u32); 2] =
    [(20_240_520, IdType::U16, "gpt2", 50_257, 50_256), (20_240_801, IdType::U32, "llama-3", 128_256, 128_001)];
const LLM_C_HEADER_BYTES: usize = 256 * 4;

/// Napkin's header.
pub(crate) fn header(dtype: IdType, count: u64, vocabulary: &Vocabulary, ids_crc32: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &MAGIC);
    put(8, &VERSION.to_le_bytes());
    put(12, &(dtype.bytes() as u32 * 8).to_le_bytes());
    put(16, &count.to_le_bytes());
    put(24, &vocabulary.size.to_le_bytes());
    put(32, &vocabulary.crc32.to_le_bytes());
    put(36, &vocabulary.end_of_text.unwrap_or(NO_TOKEN).to_le_bytes());
    put(40, &ids_crc32.to_le_bytes());
    let name = vocabulary.tokenizer.as_bytes();
    put(48, &name[..name.len().min(NAME_BYTES)]);
    let crc32 = crc32fast::hash(&bytes);
    bytes[44..48].copy_from_slice(&crc32.to_le_bytes());
    bytes
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_le_bytes(*field))
}

fn read_header(bytes: &[u8]) -> Result<Layout, String> {
    let Some(&header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Err("ends inside its header".to_owned());
    };
    let field = |at| u32_at(&header, at).unwrap_or_default();
    let mut blank = header;
    blank[44..48].fill(0);
    if field(8) != VERSION {
        return Err(format!("has version {}, and version {VERSION} is known", field(8)));
    }
    if crc32fast::hash(&blank) != field(44) {
        return Err("has a damaged header: its checksum is another".to_owned());
    }
    let dtype = match field(12) {
        16 => IdType::U16,
        32 => IdType::U32,
        bits => return Err(format!("has ids of {bits} bits, and 16 and 32 are known")),
    };
    let name = header[48..48 + NAME_BYTES].split(|&byte| byte == 0).next().unwrap_or_default();
    let vocabulary = Vocabulary {
        tokenizer: String::from_utf8_lossy(name).into_owned(),
        size: u64_at(&header, 24).unwrap_or_default(),
        crc32: field(32),
        end_of_text: Some(field(36)).filter(|&id| id != NO_TOKEN),
    };
    Ok(Layout {
        format: Format::Napkin,
        dtype,
        count: u64_at(&header, 16).unwrap_or_default(),
        offset: HEADER_BYTES,
        vocabulary: Some(vocabulary),
        crc32: Some(field(40)),
    })
}

fn read_llm_c(bytes: &[u8], dtype: IdType, tokenizer: &str, size: u64, end_of_text: u32) -> Result<Layout, String> {
    if bytes.len() < LLM_C_HEADER_BYTES {
        return Err("ends inside its header".to_owned());
    }
    let count = u32_at(bytes, 8).unwrap_or_default();
    let vocabulary = Vocabulary { tokenizer: tokenizer.to_owned(), size, crc32: 0, end_of_text: Some(end_of_text) };
    Ok(Layout {
        format: Format::LlmC,
        dtype,
        count: u64::from(count),
        offset: LLM_C_HEADER_BYTES,
        vocabulary: Some(vocabulary),
        crc32: None,
    })
}

/// The layout that the file's own header gives, if it has one. The error is the format and what is wrong, in words.
pub(crate) fn by_header(bytes: &[u8]) -> Result<Option<Layout>, (Format, String)> {
    if bytes.starts_with(&MAGIC) {
        return read_header(bytes).map(Some).map_err(|what| (Format::Napkin, what));
    }
    if bytes.starts_with(&npy::MAGIC) {
        let header = npy::read(bytes).map_err(|what| (Format::Npy, what))?;
        return Ok(Some(Layout {
            format: Format::Npy,
            dtype: header.dtype,
            count: header.count,
            offset: header.offset,
            vocabulary: None,
            crc32: None,
        }));
    }
    let known = u32_at(bytes, 0).and_then(|magic| LLM_C.into_iter().find(|row| row.0 == magic));
    // Both numbers are above every vocabulary, so no file of ids begins like this.
    known
        .map(|(_, dtype, name, size, end)| read_llm_c(bytes, dtype, name, size, end))
        .transpose()
        .map_err(|what| (Format::LlmC, what))
}

/// Decides what a file is. `asked` is the type of ids that the user named.
pub(crate) fn detect(path: &Path, bytes: &[u8], asked: Option<IdType>) -> Result<Layout, DataError> {
    if bytes.is_empty() {
        return Err(DataError::Empty { path: path.to_owned() });
    }
    let layout = match by_header(bytes) {
        Ok(Some(layout)) => layout,
        Ok(None) => return without_header(path, bytes, asked),
        Err((format, what)) => return Err(DataError::BadHeader { path: path.to_owned(), format, what }),
    };
    if let Some(asked) = asked.filter(|&asked| asked != layout.dtype) {
        return Err(DataError::OtherType { path: path.to_owned(), header: layout.dtype, asked });
    }
    let present = bytes.len().saturating_sub(layout.offset) as u64;
    let expected = layout.count.saturating_mul(layout.dtype.bytes() as u64);
    if present != expected {
        return Err(DataError::WrongLength {
            path: path.to_owned(),
            format: layout.format,
            count: layout.count,
            expected,
            bytes: present,
        });
    }
    if layout.count == 0 {
        return Err(DataError::Empty { path: path.to_owned() });
    }
    Ok(layout)
}

fn without_header(path: &Path, bytes: &[u8], asked: Option<IdType>) -> Result<Layout, DataError> {
    let all = bytes.len() as u64;
    let layout = |format, dtype: IdType, vocabulary| Layout {
        format,
        dtype,
        count: all / dtype.bytes() as u64,
        offset: 0,
        vocabulary,
        crc32: None,
    };
    let text = looks_like_text(bytes);
    match asked {
        // A few ids may be letters by chance.
        Some(asked) if text && asked != IdType::U8 && bytes.len() >= 64 => {
            Err(DataError::TextAsIds { path: path.to_owned(), asked })
        }
        Some(dtype) if !all.is_multiple_of(dtype.bytes() as u64) => {
            Err(DataError::OddBytes { path: path.to_owned(), bytes: all, dtype })
        }
        Some(dtype) => Ok(layout(Format::Raw, dtype, None)),
        None if text => {
            let bytes = Tokenizer::bytes(false).vocabulary().clone();
            Ok(layout(Format::Text, IdType::U8, Some(bytes)))
        }
        None => match foreign(bytes) {
            Some((what, help)) => Err(DataError::NotTokens { path: path.to_owned(), what, help }),
            None => Err(DataError::UnknownWidth { path: path.to_owned(), bytes: all, likely: likely_width(bytes) }),
        },
    }
}

/// How much of a file is looked at to tell what it is.
const HEAD: usize = 4096;

/// True if the first bytes are text: UTF-8 without control characters, or nearly all of it printable ASCII.
pub(crate) fn looks_like_text(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(HEAD)];
    let control = |byte: &u8| matches!(byte, 0..=8 | 14..=26 | 28..=31 | 127);
    if head.contains(&0) {
        return false;
    }
    let utf8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        // Cut inside a character.
        Err(error) => error.error_len().is_none(),
    };
    let plain = head.iter().filter(|byte| byte.is_ascii() && !control(byte)).count();
    (utf8 && !head.iter().any(control)) || plain * 10 > head.len() * 9
}

/// What a file without ids is, by its first bytes, and how to get at ids. Ids can begin like this by chance, so it is
/// asked only where their type is not known.
pub(crate) fn foreign(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const KNOWN: [(&[u8], &str, &str); 9] = [
        (&[0x1F, 0x8B, 8], "a gzip file", "gunzip it"),
        (&[0x28, 0xB5, 0x2F, 0xFD], "a Zstandard file", "unzstd it"),
        (b"\xFD7zXZ\0", "an xz file", "unxz it"),
        (b"PK\x03\x04", "a zip archive, such as .npz or a PyTorch checkpoint", "numpy.save of the array of ids in it"),
        (b"PAR1", "a Parquet file", "write the text of its columns to a file and tokenize that"),
        (b"ARROW1", "an Arrow file", "write the text of its columns to a file and tokenize that"),
        (b"GGUF", "a GGUF model", ""),
        (b"\x7FELF", "a program", ""),
        (b"%PDF-", "a PDF document", "pdftotext makes a text of it"),
    ];
    if is_safetensors(bytes, bytes.len() as u64) {
        return Some(("a safetensors file", ""));
    }
    KNOWN.into_iter().find(|(magic, ..)| bytes.starts_with(magic)).map(|(_, what, help)| (what, help))
}

/// Whether a file of `file_bytes` that begins with `bytes` seems to be safetensors: eight bytes of length, then a JSON object.
pub(crate) fn is_safetensors(bytes: &[u8], file_bytes: u64) -> bool {
    let length = u64_at(bytes, 0).unwrap_or_default();
    bytes.get(8) == Some(&b'{') && length > 1 && length < file_bytes
}

/// Fewest words of 32 bits that tell a width. Of six 16-bit ids in the upper halves, all are below 8 with a chance of
/// (8 / 65)^6, 3 in a million, even in a vocabulary of 65 letters.
const FEWEST_WORDS: usize = 6;

/// The width that the first ids seem to have, if one of the two makes more sense.
///
/// Ids below 65,536 stored in 32 bits have a zero in every second 16-bit word, which 16-bit ids have once in a
/// while. 32-bit ids of a vocabulary of some hundred thousand have small numbers there.
pub(crate) fn likely_width(bytes: &[u8]) -> Option<IdType> {
    let head = &bytes[..bytes.len().min(16 * HEAD)];
    let (words, _) = head.as_chunks::<4>();
    if words.len() < FEWEST_WORDS || head.iter().all(|byte| *byte == 0) {
        return None;
    }
    let high = |word: &[u8; 4]| u16::from_le_bytes([word[2], word[3]]);
    let small = words.iter().filter(|word| high(word) < 8).count();
    // A damaged id or two change nothing.
    if small * 1000 >= words.len() * 999 {
        return Some(IdType::U32);
    }
    (small * 2 < words.len()).then_some(IdType::U16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u16s(ids: impl IntoIterator<Item = u16>) -> Vec<u8> {
        ids.into_iter().flat_map(u16::to_le_bytes).collect()
    }

    fn u32s(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
        ids.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn open(bytes: &[u8], asked: Option<IdType>) -> Result<Layout, DataError> {
        detect(Path::new("f"), bytes, asked)
    }

    fn vocabulary() -> Vocabulary {
        Vocabulary { tokenizer: "gpt2".to_owned(), size: 50_257, crc32: 7, end_of_text: Some(50_256) }
    }

    #[test]
    fn own_header_comes_back() {
        for (dtype, body) in [(IdType::U16, u16s([1, 2, 3])), (IdType::U32, u32s([1, 2, 3]))] {
            let mut file = header(dtype, 3, &vocabulary(), 11).to_vec();
            file.extend(body);
            let layout = open(&file, None).unwrap();
            assert_eq!((layout.format, layout.dtype, layout.count, layout.offset), (Format::Napkin, dtype, 3, 128));
            assert_eq!((layout.vocabulary, layout.crc32), (Some(vocabulary()), Some(11)));
            assert!(matches!(open(&file, Some(IdType::I64)), Err(DataError::OtherType { .. })));
        }
    }

    #[test]
    fn every_flipped_bit_of_the_own_header_is_found() {
        let whole = header(IdType::U16, 0, &vocabulary(), 0);
        for bit in 64..HEADER_BYTES * 8 {
            let mut file = whole;
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(open(&file, None), Err(DataError::BadHeader { .. })), "bit {bit}");
        }
        for len in 8..HEADER_BYTES {
            assert!(matches!(open(&whole[..len], None), Err(DataError::BadHeader { .. })), "{len}");
        }
    }

    #[test]
    fn other_headers() {
        for (magic, dtype, body) in [(20_240_520, IdType::U16, u16s([9, 8])), (20_240_801, IdType::U32, u32s([9, 8]))] {
            let mut file = u32s([magic, 1, 2].into_iter().chain([0; 253]));
            file.extend(&body);
            let layout = open(&file, None).unwrap();
            assert_eq!((layout.format, layout.dtype, layout.count, layout.offset), (Format::LlmC, dtype, 2, 1024));
            assert!(matches!(open(&file[..file.len() - 1], None), Err(DataError::WrongLength { bytes, expected, .. })
                if bytes == body.len() as u64 - 1 && expected == body.len() as u64));
            file.push(0);
            assert!(matches!(open(&file, None), Err(DataError::WrongLength { .. })));
            assert!(matches!(open(&file[..1023], None), Err(DataError::BadHeader { format: Format::LlmC, .. })));
        }
    }

    #[test]
    fn ids_without_a_header_want_a_width() {
        let narrow = u16s((0..2000).map(|i| i * 17 % 50_000));
        let wide = u32s((0..2000).map(|i| i * 97 % 120_000));
        assert!(matches!(open(&narrow, None), Err(DataError::UnknownWidth { likely: Some(IdType::U16), .. })));
        assert!(matches!(open(&wide, None), Err(DataError::UnknownWidth { likely: Some(IdType::U32), .. })));
        assert_eq!(open(&narrow, Some(IdType::U16)).unwrap().count, 2000);
        assert_eq!(open(&wide, Some(IdType::U32)).unwrap().count, 2000);
        assert!(matches!(open(&wide[..7999], Some(IdType::U32)), Err(DataError::OddBytes { bytes: 7999, .. })));
        assert!(matches!(open(&[], None), Err(DataError::Empty { .. })));
        // A vocabulary of letters, and nothing at all.
        assert_eq!(likely_width(&u16s((0..2000).map(|i| i * 7 % 65))), Some(IdType::U16));
        assert_eq!(likely_width(&[0; 4000]), None);
        // Few ids say as much as they can, and fewer nothing.
        for (bytes, width) in [(u32s(70_000..70_006), IdType::U32), (u16s(40_000..40_012), IdType::U16)] {
            assert_eq!(likely_width(&bytes), Some(width));
            assert_eq!(likely_width(&bytes[..bytes.len() - 4]), None, "{width}");
        }
    }

    #[test]
    fn files_of_other_kinds_are_named() {
        let mut safetensors = 300_u64.to_le_bytes().to_vec();
        safetensors.extend(format!("{:<300}", "{\"a\":{}}").bytes());
        safetensors.extend([0; 64]);
        let gzip = [0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3, 0xCB, 0x48];
        for (bytes, name) in [(&safetensors[..], "a safetensors file"), (&gzip, "a gzip file")] {
            assert!(matches!(open(bytes, None), Err(DataError::NotTokens { what, .. }) if what == name));
            assert!(open(bytes, Some(IdType::U16)).is_ok(), "ids may begin like that");
        }
    }

    #[test]
    fn text_is_known_by_its_bytes() {
        let text = "It was the best of times, it was the worst of times — or was it?\n".repeat(100);
        let layout = open(text.as_bytes(), None).unwrap();
        assert_eq!((layout.format, layout.dtype, layout.count), (Format::Text, IdType::U8, text.len() as u64));
        assert!(matches!(open(text.as_bytes(), Some(IdType::U16)), Err(DataError::TextAsIds { .. })));
        assert_eq!(open(text.as_bytes(), Some(IdType::U8)).unwrap().format, Format::Raw);
        // Old text of one byte per letter; a character cut by the end of what is looked at.
        assert!(looks_like_text(&b"na\xEFve text of another century, mostly without accents".repeat(3)));
        assert!(looks_like_text(&format!("x{}", "é".repeat(HEAD)).into_bytes()));
        for binary in [&b"\x7FELF\x02\x01\x01\0\0"[..], &[200; 64], &u16s(0..500), &[1, 2, 3, 4]] {
            assert!(!looks_like_text(binary), "{binary:?}");
        }
    }
}
