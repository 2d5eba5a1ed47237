//! The header of a GGUF file: keys with values, then the tensors with their types and places.
//!
//! No library at hand reads the header alone and bounds what it takes for it, so this is our own, after
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> (versions 2 and 3). Values are skipped unless they say what
//! the file is.

use super::entry::{Encoding, Entry, Format, Header};
use super::ranges::{Problems, check, shown};
use crate::checkpoint::place;
use plan::ggml::GgmlType;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use units::Diagnostic;

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Largest header that is read: a vocabulary of a million tokens with its merges takes a third of it.
const MAX_HEADER: u64 = 100_000_000;

/// Longest key, as in the specification.
const MAX_KEY: u64 = 65_535;

/// Longest name of a tensor. The specification has 64; programs that write longer ones exist.
const MAX_NAME: u64 = 4096;

/// Most dimensions of a tensor (`GGML_MAX_DIMS`).
const MAX_RANK: u32 = 4;

/// Deepest array of arrays that is followed.
const MAX_DEPTH: u32 = 4;

/// Longest value that is kept.
const MAX_KEPT: u64 = 256;

/// Where tensors begin, unless the file says otherwise: at multiples of this.
const ALIGNMENT: u64 = 32;

const CODE: &str = "T0630";
const HELP: &str = "take it again from where it came from, or convert the model again";

/// Keys whose values are kept; `split.*` tells the part of a model in several files.
fn is_kept(key: &str) -> bool {
    matches!(key, "general.architecture" | "general.name" | "general.file_type" | "general.alignment")
        || key.starts_with("split.")
}

fn problems(path: &Path) -> Problems<'_> {
    Problems::new(path, CODE, HELP)
}

/// Reads the header of a file of `file_bytes`.
///
/// # Errors
/// `T0604` if it cannot be read, `T0630`: all that is wrong with it, at least one problem.
pub(crate) fn read(path: &Path, source: impl Read, file_bytes: u64) -> Result<Header, Vec<Diagnostic>> {
    let mut scan = Scan { path, source, at: 0, file_bytes };
    let (version, count, keys) = scan.opening().map_err(|problem| vec![*problem])?;
    let mut found = problems(path);
    let about = scan.keys(keys, &mut found).map_err(|problem| vec![*problem])?;
    let alignment = about.get("general.alignment").map_or(Some(ALIGNMENT), |text| text.parse().ok());
    let alignment =
        alignment.filter(|alignment| *alignment > 0 && alignment.is_multiple_of(8) && *alignment <= 1 << 30);
    let Some(alignment) = alignment else {
        let said = about.get("general.alignment").map_or("", String::as_str);
        return Err(vec![found.one(format!("`general.alignment` is {said}, and must be a multiple of 8 up to 2^30"))]);
    };
    let mut tensors = scan.tensors(count, alignment, &mut found).map_err(|problem| vec![*problem])?;
    found.finish()?;
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    // The padding before the data may be absent where there is no data.
    let header_bytes = scan.at.next_multiple_of(alignment).min(file_bytes);
    let mut found = problems(path);
    check(&mut found, &tensors, file_bytes - header_bytes, alignment);
    found.finish()?;
    let mut about = about;
    about.insert("version".to_owned(), version.to_string());
    Ok(Header { path: path.to_owned(), format: Format::Gguf, file_bytes, header_bytes, tensors, about })
}

type Scanned<T> = Result<T, Box<Diagnostic>>;

/// A place in the header. Nothing is taken that the file is too short for.
struct Scan<'a, R> {
    path: &'a Path,
    source: R,
    at: u64,
    file_bytes: u64,
}

impl<R: Read> Scan<'_, R> {
    fn wrong(&self, why: impl Into<String>) -> Box<Diagnostic> {
        Box::new(problems(self.path).one(why))
    }

    /// Moves on by `bytes`, if the file has them.
    fn claim(&mut self, bytes: u64, what: &str) -> Scanned<()> {
        let start = self.at;
        let end = start.saturating_add(bytes);
        if end > self.file_bytes {
            let left = self.file_bytes - start;
            return Err(
                self.wrong(format!("{what} at byte {start} is said to have {bytes} bytes; the file has {left} more"))
            );
        }
        if end > MAX_HEADER {
            return Err(self.wrong(format!(
                "{what} at byte {start} ends behind the {MAX_HEADER} bytes that are read of a header"
            )));
        }
        self.at = end;
        Ok(())
    }

    fn unreadable(&self, error: &io::Error) -> Box<Diagnostic> {
        Box::new(Diagnostic::error("T0604", format!("cannot be read: {error}")).at(place(self.path)))
    }

    fn take<const N: usize>(&mut self, what: &str) -> Scanned<[u8; N]> {
        self.claim(N as u64, what)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(|error| self.unreadable(&error))?;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Scanned<u32> {
        self.take(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Scanned<u64> {
        self.take(what).map(u64::from_le_bytes)
    }

    fn skip(&mut self, bytes: u64, what: &str) -> Scanned<()> {
        self.claim(bytes, what)?;
        let skipped = io::copy(&mut (&mut self.source).take(bytes), &mut io::sink());
        skipped.map(drop).map_err(|error| self.unreadable(&error))
    }

    /// A string of at most `most` bytes.
    fn string(&mut self, most: u64, what: &str) -> Scanned<String> {
        let start = self.at;
        let length = self.u64(what)?;
        if length > most {
            return Err(self.wrong(format!("{what} at byte {start} has {length} bytes, and {most} are the most")));
        }
        self.claim(length, what)?;
        let mut bytes = vec![0; length as usize];
        self.source.read_exact(&mut bytes).map_err(|error| self.unreadable(&error))?;
        String::from_utf8(bytes).map_err(|_| self.wrong(format!("{what} at byte {start} is no UTF-8")))
    }

    /// Version, number of tensors, number of keys.
    fn opening(&mut self) -> Scanned<(u32, u64, u64)> {
        if self.take::<4>("the magic number")? != MAGIC {
            return Err(self.wrong("not a GGUF file: it does not begin with `GGUF`"));
        }
        let version = self.u32("the version")?;
        match version {
            2 | 3 => {}
            1 => return Err(self.wrong("version 1 of GGUF, in use for weeks of 2023; versions 2 and 3 are read")),
            _ if version.swap_bytes() <= 3 => {
                return Err(self.wrong("a GGUF file of a big-endian machine; little-endian ones are read"));
            }
            _ => return Err(self.wrong(format!("version {version} of GGUF; versions 2 and 3 are read"))),
        }
        let tensors = self.u64("the number of tensors")?;
        Ok((version, tensors, self.u64("the number of keys")?))
    }

    fn keys(&mut self, count: u64, found: &mut Problems) -> Scanned<BTreeMap<String, String>> {
        let mut about = BTreeMap::new();
        let mut names = BTreeSet::new();
        for number in 0..count {
            let key = self.string(MAX_KEY, &format!("key {} of {count}", number + 1))?;
            let what = format!("the value of {}", shown(&key));
            let kind = self.u32(&what)?;
            if is_kept(&key) {
                let text = self.kept(kind, &what)?;
                about.insert(key.clone(), text);
            } else {
                self.value(kind, &what, 0)?;
            }
            if let Some(key) = names.replace(key) {
                found.push(format!("key {} stands twice", shown(&key)));
            }
        }
        Ok(about)
    }

    /// A value as text.
    fn kept(&mut self, kind: u32, what: &str) -> Scanned<String> {
        Ok(match kind {
            0 => u8::from_le_bytes(self.take(what)?).to_string(),
            2 => u16::from_le_bytes(self.take(what)?).to_string(),
            3 => i16::from_le_bytes(self.take(what)?).to_string(),
            4 => self.u32(what)?.to_string(),
            5 => i32::from_le_bytes(self.take(what)?).to_string(),
            8 => self.string(MAX_KEPT, what)?,
            10 => self.u64(what)?.to_string(),
            11 => i64::from_le_bytes(self.take(what)?).to_string(),
            _ => return Err(self.wrong(format!("{what} has type {kind}; a number or a string is expected"))),
        })
    }

    /// Skips a value.
    fn value(&mut self, kind: u32, what: &str, depth: u32) -> Scanned<()> {
        if let Some(size) = size(kind) {
            return self.skip(size, what);
        }
        match kind {
            8 => {
                let length = self.u64(what)?;
                self.skip(length, what)
            }
            9 if depth >= MAX_DEPTH => {
                Err(self.wrong(format!("{what} is an array in {MAX_DEPTH} arrays at byte {}", self.at)))
            }
            9 => {
                let (inner, count) = (self.u32(what)?, self.u64(what)?);
                if let Some(size) = size(inner) {
                    return self.skip(size.saturating_mul(count), what);
                }
                // Each takes eight bytes at least, so the file ends before a hostile count does.
                for _ in 0..count {
                    self.value(inner, what, depth + 1)?;
                }
                Ok(())
            }
            _ => Err(self.wrong(format!("{what} has type {kind}, which is none of the format, at byte {}", self.at))),
        }
    }

    fn tensors(&mut self, count: u64, alignment: u64, found: &mut Problems) -> Scanned<Vec<Entry>> {
        let mut tensors = Vec::new();
        let mut names = BTreeSet::new();
        for number in 0..count {
            let what = format!("tensor {} of {count}", number + 1);
            let name = self.string(MAX_NAME, &what)?;
            let rank = self.u32(&what)?;
            if rank > MAX_RANK {
                return Err(
                    self.wrong(format!("{what}, {}: {rank} dimensions, and {MAX_RANK} are the most", shown(&name)))
                );
            }
            let mut shape = Vec::new();
            for _ in 0..rank {
                shape.push(self.u64(&what)?);
            }
            let (kind, offset) = (self.u32(&what)?, self.u64(&what)?);
            match entry(&name, shape, kind, offset, alignment) {
                Ok(tensor) => tensors.push(tensor),
                Err(why) => found.push(format!("tensor {}: {why}", shown(&name))),
            }
            if let Some(name) = names.replace(name) {
                found.push(format!("two tensors are named {}", shown(&name)));
            }
        }
        Ok(tensors)
    }
}

/// Bytes of a value of a type that has a size.
const fn size(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

fn entry(name: &str, mut shape: Vec<u64>, kind: u32, offset: u64, alignment: u64) -> Result<Entry, String> {
    let Some(kind) = GgmlType::by_id(kind) else {
        return Err(format!("type {kind} is none that is known; newer programs may have added it"));
    };
    // The fastest dimension stands first.
    let row = shape.first().copied().unwrap_or(1);
    shape.reverse();
    let product = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
    if product.is_none() {
        return Err(format!("the elements of its shape {shape:?} cannot be counted in 64 bits"));
    }
    let elements = shape.iter().product();
    let encoding = Encoding::Ggml(kind);
    let Some(bytes) = encoding.bytes(elements, row) else {
        return Err(format!(
            "rows of {row} elements are no whole blocks of {} ({} elements), or too many",
            kind.name, kind.block
        ));
    };
    if !offset.is_multiple_of(alignment) {
        return Err(format!("its data begins at byte {offset}, no multiple of {alignment}"));
    }
    if offset.checked_add(bytes).is_none() {
        return Err(format!("its data begins at byte {offset} and has {bytes} bytes: no file is as long"));
    }
    Ok(Entry { name: name.to_owned(), encoding, shape, elements, offset, bytes })
}
