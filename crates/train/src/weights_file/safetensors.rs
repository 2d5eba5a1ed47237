//! The header of a safetensors file: eight bytes of length, then JSON.
//!
//! The entries are read with the format's own library. Its check of a whole header stops at the first problem, cannot tell
//! which of two tensors lies wrongly, and lets the later of two equal names win; here every problem has its tensor and bytes.
//! Format: <https://github.com/huggingface/safetensors#format>.

use super::entry::{Encoding, Entry, Format, Header, spelling};
use super::ranges::{Problems, check, shown};
use crate::checkpoint::unreadable;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::Path;
use units::Diagnostic;

/// Largest header that is read, as in the format's own library.
const MAX_HEADER: u64 = 100_000_000;

/// Most dimensions of a tensor, as in PyTorch.
const MAX_RANK: usize = 64;

const HELP: &str = "take it again from where it came from";

fn problems(path: &Path) -> Problems<'_> {
    Problems::new(path, "T0610", HELP)
}

fn invalid(path: &Path, why: impl fmt::Display) -> Diagnostic {
    problems(path).one(format!("not a whole safetensors file: {why}"))
}

/// The length and the header, as they are in a file of `file_bytes`.
///
/// # Errors
/// `T0604` if they cannot be read, `T0610` if they are not all there or too long.
pub(crate) fn text(path: &Path, source: &mut impl Read, file_bytes: u64) -> Result<Vec<u8>, Diagnostic> {
    if file_bytes < 8 {
        return Err(invalid(path, format!("{file_bytes} bytes are too few: the length of the header alone takes 8")));
    }
    let mut prefix = [0; 8];
    source.read_exact(&mut prefix).map_err(|error| unreadable(path, &error))?;
    let length = u64::from_le_bytes(prefix);
    if length > file_bytes - 8 {
        return Err(invalid(path, format!("it says its header has {length} bytes; the file has {file_bytes}")));
    }
    if length > MAX_HEADER {
        return Err(invalid(path, format!("it says its header has {length} bytes; the format allows {MAX_HEADER}")));
    }
    let mut all = prefix.to_vec();
    source.take(length).read_to_end(&mut all).map_err(|error| unreadable(path, &error))?;
    if all.len() as u64 != 8 + length {
        return Err(invalid(path, "it ends inside its header"));
    }
    Ok(all)
}

/// What `text` of a file of `file_bytes` says.
///
/// # Errors
/// `T0610`: all that is wrong with it, at least one problem.
pub(crate) fn parse(path: &Path, text: &[u8], file_bytes: u64) -> Result<Header, Vec<Diagnostic>> {
    let json = text.get(8..).unwrap_or_default();
    if let Err(error) = std::str::from_utf8(json) {
        let why = format!("its header is not text: byte {} of it is no UTF-8", error.valid_up_to());
        return Err(vec![invalid(path, why)]);
    }
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = reader.deserialize_map(Entries).and_then(|entries| reader.end().map(|()| entries));
    let entries = read.map_err(|error| vec![invalid(path, format!("its header is wrong: {error}"))])?;

    let mut problems = problems(path);
    let mut names = BTreeSet::new();
    let mut tensors = Vec::with_capacity(entries.tensors.len());
    for (name, info) in entries.tensors {
        match entry(&name, &info) {
            Ok(tensor) => tensors.push(tensor),
            Err(why) => problems.push(format!("tensor {}: {why}", shown(&name))),
        }
        if let Some(name) = names.replace(name) {
            problems.push(format!("two tensors are named {}", shown(&name)));
        }
    }
    // Without the tensors that are wrong in themselves, all ranges would seem to be.
    problems.finish()?;
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    let header_bytes = text.len() as u64;
    let mut problems = self::problems(path);
    check(&mut problems, &tensors, file_bytes.saturating_sub(header_bytes), 1);
    problems.finish()?;
    let (path, format) = (path.to_owned(), Format::Safetensors);
    Ok(Header { path, format, file_bytes, header_bytes, tensors, about: entries.metadata })
}

fn entry(name: &str, info: &TensorInfo) -> Result<Entry, String> {
    let shape: Vec<u64> = info.shape.iter().map(|&size| size as u64).collect();
    if shape.len() > MAX_RANK {
        return Err(format!("{} dimensions, and {MAX_RANK} are the most", shape.len()));
    }
    let uncountable = || format!("the elements of its shape {shape:?} cannot be counted in 64 bits");
    // A dimension of zero does not excuse the others: their product is taken somewhere.
    shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1))).ok_or_else(uncountable)?;
    let elements = shape.iter().product();
    let encoding = Encoding::Plain(info.dtype);
    let bits = u128::from(elements) * info.dtype.bitsize() as u128;
    let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
    let bytes = end
        .checked_sub(start)
        .ok_or_else(|| format!("its data is said to end at byte {end} and to begin at {start}"))?;
    if u128::from(bytes) * 8 != bits {
        let dtype = spelling(info.dtype);
        let why =
            if bits.is_multiple_of(8) { format!("take {} bytes", bits / 8) } else { "fill no whole byte".to_owned() };
        return Err(format!("{elements} elements of {dtype} {why}, its data range {start} to {end} has {bytes}"));
    }
    Ok(Entry { name: name.to_owned(), encoding, shape, elements, offset: start, bytes })
}

/// The JSON object of a header.
struct Entries;

#[derive(Default)]
struct Parts {
    tensors: Vec<(String, TensorInfo)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Visitor<'de> for Entries {
    type Value = Parts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts, A::Error> {
        let mut out = Parts::default();
        let mut described = false;
        while let Some(name) = map.next_key::<String>()? {
            let within = |error: A::Error| A::Error::custom(format!("{}: {error}", shown(&name)));
            if name == "__metadata__" {
                if std::mem::replace(&mut described, true) {
                    return Err(A::Error::custom("`__metadata__` stands twice"));
                }
                out.metadata = map.next_value().map_err(within)?;
            } else {
                let info = map.next_value().map_err(within)?;
                out.tensors.push((name, info));
            }
        }
        Ok(out)
    }
}
