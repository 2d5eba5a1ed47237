//! What a file of tokens is, what is in it, and what is wrong with it.

use std::fs::File;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use units::{Diagnostic, Diagnostics, Location};

use super::error::DataError;
use super::format::{self, Format, Layout, Vocabulary};
use super::id_type::IdType;
use super::map;
use super::npy;
use super::tokenizer::Tokenizer;

/// What to look at, and what to hold it against.
#[derive(Debug, Default)]
pub struct Inspect {
    /// The file.
    pub path: PathBuf,
    /// Type of the ids of a file without a header.
    pub dtype: Option<IdType>,
    /// Size of the vocabulary that the ids must stay below; otherwise that of the file's header.
    pub vocab_size: Option<u64>,
    /// What turns the ids of a file without a header into text.
    pub tokenizer: Option<Tokenizer>,
}

/// What was found.
#[derive(Debug)]
pub struct Inspection {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub file_bytes: u64,
    /// Which kind of file; nothing if it cannot be told or holds no ids.
    pub format: Option<Format>,
    /// First byte of the ids.
    pub offset: u64,
    /// Ids that the header announces, if there is a header.
    pub stated: Option<u64>,
    /// What the ids stand for, if the file or the user says so.
    pub vocabulary: Option<Vocabulary>,
    /// Size of the vocabulary that the ids were held against.
    pub vocab_size: Option<u64>,
    /// The ids. Two readings where the type is not known, the likelier first.
    pub readings: Vec<Reading>,
    /// The first ids of the first reading as text, if the tokenizer is known.
    pub text: Option<String>,
    /// The most frequent ids of the first reading as text, if the tokenizer is known.
    pub tokens: Vec<String>,
    /// All that is wrong.
    pub problems: Diagnostics,
}

/// The ids of a file under one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The type.
    pub dtype: IdType,
    /// Number of ids.
    pub count: u64,
    /// Smallest value.
    pub min: i64,
    /// Largest value.
    pub max: i64,
    /// How many different ids below 2^20 there are.
    pub distinct: u64,
    /// Values that are negative or not below 2^20, more than the largest vocabularies have.
    pub beyond: u64,
    /// Entropy of the frequencies of single ids, in nats per token: the loss of a model that knows nothing else.
    pub entropy: f64,
    /// Values that are negative or at or above the vocabulary, and the index and value of the first.
    pub above: Option<(u64, u64, i64)>,
    /// The most frequent ids with their counts, most frequent first.
    pub top: Vec<(u32, u64)>,
    /// The first values.
    pub first: Vec<i64>,
}

/// How many of the most frequent ids are kept.
const TOP: usize = 10;
/// How many of the first ids are kept.
const FIRST: usize = 16;
/// Ids that are counted one by one.
const COUNTED: usize = 1 << 20;
/// Bytes that a thread reads before progress is told.
const BLOCK: usize = 16 << 20;

impl Inspect {
    /// Looks at all of the file. `progress` is told how many bytes of how many are done.
    ///
    /// # Errors
    /// The file cannot be read at all.
    pub fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Inspection, DataError> {
        let path = &self.path;
        let file = File::open(path).map_err(|error| DataError::io(path, "open", error))?;
        let meta = file.metadata().map_err(|error| DataError::io(path, "look at", error))?;
        let mut found = Inspection {
            path: path.clone(),
            file_bytes: meta.len(),
            format: None,
            offset: 0,
            stated: None,
            vocabulary: self.tokenizer.as_ref().map(|tokenizer| tokenizer.vocabulary().clone()),
            vocab_size: self.vocab_size.or(self.tokenizer.as_ref().map(|tokenizer| tokenizer.vocabulary().size)),
            readings: Vec::new(),
            text: None,
            tokens: Vec::new(),
            problems: Diagnostics::new(),
        };
        if meta.is_file() && meta.len() == 0 {
            found.problems.push(DataError::Empty { path: path.clone() });
            return Ok(found);
        }
        let map = map::map(&file).map_err(|error| DataError::io(path, "map", error))?;
        let bytes: &[u8] = &map;
        found.file_bytes = bytes.len() as u64;
        match format::by_header(bytes) {
            Ok(Some(layout)) => self.with_header(&mut found, bytes, &layout, progress),
            Ok(None) => self.without_header(&mut found, bytes, progress),
            Err((format, what)) => {
                found.format = Some(format);
                found.problems.push(DataError::BadHeader { path: path.clone(), format, what });
            }
        }
        self.decode(&mut found);
        for problem in &mut found.problems.0 {
            // That is what is being done.
            problem.help.retain(|way| !way.starts_with("napkin inspect"));
        }
        Ok(found)
    }

    fn with_header(&self, found: &mut Inspection, bytes: &[u8], layout: &Layout, progress: &mut dyn FnMut(u64, u64)) {
        let path = &self.path;
        found.format = Some(layout.format);
        found.offset = layout.offset as u64;
        found.stated = Some(layout.count);
        if layout.vocabulary.is_some() {
            found.vocabulary.clone_from(&layout.vocabulary);
        }
        found.vocab_size = found.vocab_size.or_else(|| layout.vocabulary.as_ref().map(|vocabulary| vocabulary.size));
        if let Some(asked) = self.dtype.filter(|_| layout.format == Format::Npy) {
            found.problems.push(as_raw(path, layout, asked));
        } else if let Some(asked) = self.dtype.filter(|&asked| asked != layout.dtype) {
            found.problems.push(DataError::OtherType { path: path.clone(), header: layout.dtype, asked });
        }
        let body = &bytes[layout.offset.min(bytes.len())..];
        let expected = layout.count.saturating_mul(layout.dtype.bytes() as u64);
        if body.len() as u64 != expected {
            found.problems.push(DataError::WrongLength {
                path: path.clone(),
                format: layout.format,
                count: layout.count,
                expected,
                bytes: body.len() as u64,
            });
        } else if layout.count == 0 {
            found.problems.push(DataError::Empty { path: path.clone() });
        }
        if body.starts_with(&npy::MAGIC) {
            found.problems.push(npy_in_body(path));
        }
        let body = &body[..body.len().min(usize::try_from(expected).unwrap_or(usize::MAX))];
        let crc32 = self.read(found, body, layout.dtype, progress);
        if let Some(stated) = layout.crc32.filter(|&stated| body.len() as u64 == expected && stated != crc32) {
            found.problems.push(damaged(path, stated, crc32));
        }
    }

    fn without_header(&self, found: &mut Inspection, bytes: &[u8], progress: &mut dyn FnMut(u64, u64)) {
        let path = &self.path;
        let is_text = format::looks_like_text(bytes);
        let likely = format::likely_width(bytes);
        match self.dtype {
            Some(asked) if is_text && asked != IdType::U8 => {
                found.format = Some(Format::Text);
                found.problems.push(DataError::TextAsIds { path: path.clone(), asked });
                self.read(found, bytes, asked, progress);
            }
            None if is_text => {
                found.format = Some(Format::Text);
                found.vocabulary = Some(Tokenizer::bytes(false).vocabulary().clone());
                self.read(found, bytes, IdType::U8, progress);
            }
            Some(asked) => {
                found.format = Some(Format::Raw);
                let widths = [IdType::U16, IdType::U32];
                if let Some(likely) = likely.filter(|&likely| likely != asked && widths.contains(&asked)) {
                    found.problems.push(other_width(path, asked, likely));
                }
                self.read(found, bytes, asked, progress);
            }
            None => {
                if let Some((what, help)) = format::foreign(bytes) {
                    found.problems.push(DataError::NotTokens { path: path.clone(), what, help });
                    return;
                }
                found.format = Some(Format::Raw);
                let unknown = DataError::UnknownWidth { path: path.clone(), bytes: found.file_bytes, likely };
                // Without a type there is no answer to train on, but one to look at.
                found.problems.push(Diagnostic { severity: units::Severity::Warning, ..unknown.diagnostic() });
                let first = likely.unwrap_or(IdType::U16);
                let second = if first == IdType::U16 { IdType::U32 } else { IdType::U16 };
                self.read(found, bytes, first, progress);
                // Problems of the reading that is likely wrong are none of the file.
                let of_the_file = found.problems.clone();
                self.read(found, bytes, second, progress);
                found.problems = of_the_file;
            }
        }
    }

    /// Adds a reading and what is wrong with it. Answers the CRC-32 of its bytes.
    fn read(&self, found: &mut Inspection, body: &[u8], dtype: IdType, progress: &mut dyn FnMut(u64, u64)) -> u32 {
        let path = &self.path;
        let width = dtype.bytes();
        if !body.len().is_multiple_of(width) {
            found.problems.push(DataError::OddBytes { path: path.clone(), bytes: body.len() as u64, dtype });
        }
        let (counts, crc32) = count(body, dtype, found.vocab_size, progress);
        if let Some((above, position, value)) = counts.above {
            found.problems.push(above_vocabulary(path, &counts, above, position, value, found.vocab_size));
        }
        if counts.count > 0 {
            found.readings.push(counts);
        }
        crc32
    }

    fn decode(&self, found: &mut Inspection) {
        let Some(reading) = found.readings.first() else { return };
        let by_name;
        let tokenizer = match (&self.tokenizer, &found.vocabulary) {
            (Some(given), _) => given,
            (None, Some(vocabulary)) => {
                by_name = Tokenizer::of(vocabulary);
                let Some(known) = &by_name else { return };
                known
            }
            (None, None) => return,
        };
        let first: Vec<u32> = reading.first.iter().map(|&id| u32::try_from(id).unwrap_or(u32::MAX)).collect();
        let text = |ids: &[u32]| String::from_utf8_lossy(&tokenizer.decode(ids)).into_owned();
        found.text = Some(text(&first));
        found.tokens = reading.top.iter().map(|&(id, _)| text(&[id])).collect();
    }
}

impl Inspection {
    /// True if the file can be trained on.
    pub fn is_usable(&self) -> bool {
        !self.problems.has_errors()
    }
}

/// Counts of a part of the ids.
struct Counts {
    each: Vec<u64>,
    count: u64,
    min: i64,
    max: i64,
    beyond: u64,
    above: Option<(u64, u64, i64)>,
    crc32: crc32fast::Hasher,
}

impl Counts {
    fn new() -> Self {
        let crc32 = crc32fast::Hasher::new();
        Self { each: Vec::new(), count: 0, min: i64::MAX, max: i64::MIN, beyond: 0, above: None, crc32 }
    }

    /// Adds a block that begins with id number `first`.
    fn add(&mut self, block: &[u8], dtype: IdType, first: u64, vocab_size: Option<u64>) {
        self.crc32.update(block);
        let mut position = first;
        let limit = vocab_size.and_then(|size| i64::try_from(size).ok()).unwrap_or(i64::MAX);
        dtype.values(block, |value| {
            self.min = self.min.min(value);
            self.max = self.max.max(value);
            match usize::try_from(value) {
                Ok(id) if id < COUNTED => {
                    if id >= self.each.len() {
                        self.each.resize((id + 1).next_power_of_two(), 0);
                    }
                    self.each[id] += 1;
                }
                _ => self.beyond += 1,
            }
            if value < 0 || value >= limit {
                self.above.get_or_insert((0, position, value)).0 += 1;
            }
            position += 1;
        });
        self.count += position - first;
    }

    fn merge(&mut self, other: &Self) {
        if self.each.len() < other.each.len() {
            self.each.resize(other.each.len(), 0);
        }
        for (sum, more) in self.each.iter_mut().zip(&other.each) {
            *sum += more;
        }
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.beyond += other.beyond;
        self.above = match (self.above, other.above) {
            (Some(a), Some(b)) => {
                let first = if a.1 < b.1 { a } else { b };
                Some((a.0 + b.0, first.1, first.2))
            }
            (one, other) => one.or(other),
        };
    }
}

/// Counts all ids, each thread the blocks that come to it.
fn count(body: &[u8], dtype: IdType, vocab_size: Option<u64>, progress: &mut dyn FnMut(u64, u64)) -> (Reading, u32) {
    let mut workers: Vec<Counts> = (0..rayon::current_num_threads()).map(|_| Counts::new()).collect();
    let mut crc32 = crc32fast::Hasher::new();
    let round_bytes = BLOCK * workers.len();
    for (round, bytes) in body.chunks(round_bytes).enumerate() {
        let start = round * round_bytes;
        workers.par_iter_mut().zip(bytes.par_chunks(BLOCK)).enumerate().for_each(|(index, (worker, block))| {
            let first = (start + index * BLOCK) / dtype.bytes();
            worker.add(block, dtype, first as u64, vocab_size);
        });
        for worker in &mut workers {
            crc32.combine(&std::mem::take(&mut worker.crc32));
        }
        progress((start + bytes.len()) as u64, body.len() as u64);
    }
    let mut all = Counts::new();
    for worker in &workers {
        all.merge(worker);
    }
    let mut first = Vec::new();
    dtype.values(&body[..body.len().min(FIRST * dtype.bytes())], |value| first.push(value));
    (all.reading(dtype, first), crc32.finalize())
}

impl Counts {
    fn reading(self, dtype: IdType, first: Vec<i64>) -> Reading {
        let mut top: Vec<(u32, u64)> = (0..).zip(self.each).filter(|&(_, count)| count > 0).collect();
        let total = self.count as f64;
        let nats = |&(_, count): &(u32, u64)| {
            let share = count as f64 / total;
            -share * share.ln()
        };
        // What is not counted one by one is taken as one id: the entropy is then a lower bound.
        let rest = if self.beyond > 0 { nats(&(0, self.beyond)) } else { 0.0 };
        let entropy = top.iter().map(nats).sum::<f64>() + rest;
        let distinct = top.len() as u64;
        top.sort_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        top.truncate(TOP);
        Reading {
            dtype,
            count: self.count,
            min: self.min,
            max: self.max,
            distinct,
            beyond: self.beyond,
            entropy,
            above: self.above,
            top,
            first,
        }
    }
}

fn at(path: &Path) -> Location {
    Location::file(path.display().to_string())
}

fn as_raw(path: &Path, layout: &Layout, asked: IdType) -> Diagnostic {
    let (offset, header) = (layout.offset, layout.dtype);
    let noise = offset / asked.bytes();
    let message =
        format!("this is a NumPy array of {header}; read as raw {asked} it would begin with {noise} ids of noise");
    Diagnostic::error("T0506", message)
        .at(at(path))
        .why(format!("its first {offset} bytes are a header, which says the type"))
        .help("leave --ids out, here and where it is trained on")
}

fn npy_in_body(path: &Path) -> Diagnostic {
    Diagnostic::error("T0506", "the first ids are the header of a NumPy array")
        .at(at(path))
        .why("whoever made the file read an .npy file as raw ids")
        .help("make it again from numpy.load(path)")
}

fn damaged(path: &Path, stated: u32, crc32: u32) -> Diagnostic {
    Diagnostic::error("T0518", format!("the ids have the checksum {crc32:08x}, and the header says {stated:08x}"))
        .at(at(path))
        .why("the file was changed after it was written: a damaged disk, a bad copy, or an edit")
        .help("make or copy the file again")
}

fn other_width(path: &Path, asked: IdType, likely: IdType) -> Diagnostic {
    let why = if likely == IdType::U32 {
        "every second value is below 8, as the upper halves of 32-bit ids are"
    } else {
        "the values are far above every vocabulary, as two 16-bit ids read as one are"
    };
    Diagnostic::error("T0503", format!("the ids look like {likely}, and were read as {asked}"))
        .at(at(path))
        .why(why)
        .help(format!("--ids {likely}"))
}

fn above_vocabulary(
    path: &Path,
    reading: &Reading,
    above: u64,
    position: u64,
    value: i64,
    vocab_size: Option<u64>,
) -> Diagnostic {
    let share = above as f64 / reading.count as f64 * 100.0;
    let what = match vocab_size {
        Some(size) if reading.min < 0 => format!("negative, or at or above the vocabulary of {size}"),
        Some(size) => format!("at or above the vocabulary of {size}"),
        None => "negative".to_owned(),
    };
    let problem = Diagnostic::error("T0507", format!("{above} of {} tokens ({share:.2} %) are {what}", reading.count))
        .at(at(path))
        .label(at(path), format!("the first is {value}, token {position}"))
        .why("a model has no embedding for them: another tokenizer made the file, or its width is another");
    match u64::try_from(reading.max) {
        Ok(max) if max < COUNTED as u64 => {
            problem.help(format!("a model with vocab_size {} or more, if the tokenizer is right", max + 1))
        }
        _ => problem,
    }
}
