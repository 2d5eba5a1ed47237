//! The header of a NumPy array file, versions 1 to 3.
//!
//! Written out here because the crates that read whole arrays bring a parser of Python literals with them, and three
//! keys are wanted. Source: NumPy Enhancement Proposal 1 and `numpy.lib.format`.

use super::id_type::IdType;

/// The first bytes of every `.npy` file.
pub(crate) const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Where the ids begin and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub dtype: IdType,
    pub count: u64,
    pub offset: usize,
}

/// Reads the header. The error is what is wrong with it, in words.
pub(crate) fn read(bytes: &[u8]) -> Result<Header, String> {
    let short = || "ends inside its header".to_owned();
    let version = *bytes.get(6).ok_or_else(short)?;
    // The length of the header's text: two bytes in version 1, four in 2 and 3.
    let (text_start, text_len) = match version {
        1 => (10, u16::from_le_bytes(field(bytes, 8).ok_or_else(short)?) as usize),
        2 | 3 => (12, u32::from_le_bytes(field(bytes, 8).ok_or_else(short)?) as usize),
        _ => return Err(format!("has format version {version}, and 1 to 3 are known")),
    };
    let offset = text_start + text_len;
    let text = bytes.get(text_start..offset).ok_or_else(short)?;
    let text = std::str::from_utf8(text).map_err(|_| "has a header that is no text".to_owned())?;

    let descr = quoted(value(text, "descr").ok_or("names no type")?).ok_or("is an array of records, not of ids")?;
    let dtype = match descr {
        "|u1" => IdType::U8,
        "<u2" => IdType::U16,
        "<u4" => IdType::U32,
        "<i4" => IdType::I32,
        "<i8" => IdType::I64,
        _ if descr.starts_with('>') => return Err(format!("is big-endian (`{descr}`)")),
        _ => return Err(format!("is an array of `{descr}`, and token ids are u1, u2, u4, i4 or i8")),
    };
    let shape = value(text, "shape").and_then(|rest| rest.strip_prefix('(')).and_then(|rest| rest.split_once(')'));
    let (shape, _) = shape.ok_or("has no shape")?;
    let sizes: Vec<&str> = shape.split(',').map(str::trim).filter(|size| !size.is_empty()).collect();
    // A one-dimensional array is the same in both orders, so `fortran_order` says nothing about it.
    let &[size] = &sizes[..] else {
        return Err(format!("has {} dimensions, shape ({shape}), and token ids are a single row", sizes.len()));
    };
    let count = size.parse().map_err(|_| format!("has a shape that is no number: ({shape})"))?;
    Ok(Header { dtype, count, offset })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// What stands behind `'key':` in the header's dictionary.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    ['\'', '"'].into_iter().find_map(|quote| {
        let (_, rest) = text.split_once(&format!("{quote}{key}{quote}"))?;
        Some(rest.trim_start().strip_prefix(':')?.trim_start())
    })
}

/// The string at the start of `text`.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|&first| first == '\'' || first == '"')?;
    text[1..].split_once(quote).map(|(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `numpy.lib.format.write_array_header_1_0` pads it: to a multiple of 64 with spaces and a line break.
    fn npy(version: u8, dictionary: &str) -> Vec<u8> {
        let prefix = if version == 1 { 10 } else { 12 };
        let len = (prefix + dictionary.len() + 1).next_multiple_of(64) - prefix;
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        if version == 1 {
            bytes.extend((len as u16).to_le_bytes());
        } else {
            bytes.extend((len as u32).to_le_bytes());
        }
        bytes.extend(format!("{dictionary:<width$}\n", width = len - 1).bytes());
        bytes
    }

    #[test]
    fn rows_of_integers() {
        for (descr, dtype) in [
            ("<u2", IdType::U16),
            ("<u4", IdType::U32),
            ("<i4", IdType::I32),
            ("<i8", IdType::I64),
            ("|u1", IdType::U8),
        ] {
            for version in 1..=3 {
                let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (1234567,), }}");
                let header = read(&npy(version, &text)).unwrap();
                assert_eq!(header, Header { dtype, count: 1_234_567, offset: 128 });
            }
        }
        let text = r#"{"shape":(3,),"descr":"<u2","fortran_order":True}"#;
        assert_eq!(read(&npy(1, text)).unwrap().count, 3);
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (text, what) in [
            ("{'descr': '>u2', 'fortran_order': False, 'shape': (3,), }", "is big-endian (`>u2`)"),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
                "is an array of `<f4`, and token ids are u1, u2, u4, i4 or i8",
            ),
            (
                "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }",
                "has 2 dimensions, shape (3, 4), and token ids are a single row",
            ),
            (
                "{'descr': '<u2', 'fortran_order': False, 'shape': (), }",
                "has 0 dimensions, shape (), and token ids are a single row",
            ),
            ("{'descr': [('a', '<u2')], 'shape': (3,)}", "is an array of records, not of ids"),
            ("{'shape': (3,)}", "names no type"),
            ("{'descr': '<u2'}", "has no shape"),
            ("{'descr': '<u2', 'shape': (x,)}", "has a shape that is no number: (x,)"),
        ] {
            assert_eq!(read(&npy(1, text)).unwrap_err(), what, "{text}");
        }
        let whole = npy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }");
        for len in 6..whole.len() {
            assert_eq!(read(&whole[..len]).unwrap_err(), "ends inside its header", "{len}");
        }
        assert_eq!(read(&npy(9, "{}")).unwrap_err(), "has format version 9, and 1 to 3 are known");
    }
}
