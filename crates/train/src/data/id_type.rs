//! How one token id is stored: little-endian integers of one, two, four or eight bytes.

use std::fmt;
use std::str::FromStr;

use units::Diagnostic;

/// The stored type of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdType {
    /// Bytes of a text.
    U8,
    /// Vocabularies up to 65,536.
    U16,
    /// Larger vocabularies.
    U32,
    /// As NumPy arrays of some tools have it.
    I32,
    /// NumPy's default integer.
    I64,
}

impl IdType {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::U8, Self::U16, Self::U32, Self::I32, Self::I64];

    /// Bytes of one id.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }

    /// The narrowest type, of those that token files are written in, for ids below `vocab_size`.
    pub const fn for_vocabulary(vocab_size: u64) -> Self {
        if vocab_size <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    /// Every whole value in `bytes`, in order.
    pub(crate) fn values(self, bytes: &[u8], mut each: impl FnMut(i64)) {
        match self {
            Self::U8 => bytes.iter().for_each(|&byte| each(i64::from(byte))),
            Self::U16 => bytes.as_chunks().0.iter().for_each(|&value| each(i64::from(u16::from_le_bytes(value)))),
            Self::U32 => bytes.as_chunks().0.iter().for_each(|&value| each(i64::from(u32::from_le_bytes(value)))),
            Self::I32 => bytes.as_chunks().0.iter().for_each(|&value| each(i64::from(i32::from_le_bytes(value)))),
            Self::I64 => bytes.as_chunks().0.iter().for_each(|&value| each(i64::from_le_bytes(value))),
        }
    }

    /// Decodes the ids in `bytes`, which hold exactly `out.len()` of them. What is no `u32` (negative or too large) is
    /// given back as the index in `out` and the value.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [u32]) -> Result<(), (usize, i64)> {
        fn each<const N: usize>(bytes: &[u8], out: &mut [u32], of: impl Fn([u8; N]) -> u32) {
            for (id, chunk) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
                *id = of(*chunk);
            }
        }
        fn checked<const N: usize>(
            bytes: &[u8],
            out: &mut [u32],
            of: impl Fn([u8; N]) -> i64,
        ) -> Result<(), (usize, i64)> {
            for (index, (id, chunk)) in out.iter_mut().zip(bytes.as_chunks::<N>().0).enumerate() {
                let value = of(*chunk);
                *id = u32::try_from(value).map_err(|_| (index, value))?;
            }
            Ok(())
        }
        debug_assert_eq!(bytes.len(), out.len() * self.bytes());
        match self {
            Self::U8 => each(bytes, out, |[byte]| u32::from(byte)),
            Self::U16 => each(bytes, out, |bytes| u32::from(u16::from_le_bytes(bytes))),
            Self::U32 => each(bytes, out, u32::from_le_bytes),
            Self::I32 => return checked(bytes, out, |bytes| i64::from(i32::from_le_bytes(bytes))),
            Self::I64 => return checked(bytes, out, i64::from_le_bytes),
        }
        Ok(())
    }
}

impl fmt::Display for IdType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IdType {
    type Err = Diagnostic;
    fn from_str(text: &str) -> Result<Self, Diagnostic> {
        let name = text.trim().to_lowercase();
        let long = name.replace("uint", "u").replace("int", "i");
        Self::ALL.into_iter().find(|one| one.name() == long).ok_or_else(|| {
            Diagnostic::error("", format!("`{text}` is no type of token ids")).help("u8, u16, u32, i32, i64")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_little_endian() {
        let bytes = [0x01, 0x02, 0x00, 0x00, 0xFE, 0xFF, 0xFF, 0x7F];
        let mut out = [0; 4];
        IdType::U16.decode(&bytes, &mut out).unwrap();
        assert_eq!(out, [0x0201, 0, 0xFFFE, 0x7FFF]);
        IdType::U32.decode(&bytes, &mut out[..2]).unwrap();
        IdType::I32.decode(&bytes, &mut out[2..]).unwrap();
        assert_eq!(out, [0x0201, 0x7FFF_FFFE, 0x0201, 0x7FFF_FFFE]);
        IdType::U8.decode(&bytes[..4], &mut out).unwrap();
        assert_eq!(out, [1, 2, 0, 0]);
    }

    #[test]
    fn what_is_no_id_is_named() {
        let mut out = [0; 2];
        let bytes: Vec<u8> = [7_i32, -3].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(IdType::I32.decode(&bytes, &mut out), Err((1, -3)));
        let bytes: Vec<u8> = [u32::MAX as i64, 1 << 32].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(IdType::I64.decode(&bytes, &mut out), Err((1, 1 << 32)));
        assert_eq!(out[0], u32::MAX);
    }

    #[test]
    fn names() {
        for one in IdType::ALL {
            assert_eq!(one.name().parse::<IdType>().unwrap(), one);
        }
        assert_eq!("UINT16".parse::<IdType>().unwrap(), IdType::U16);
        assert_eq!("int64".parse::<IdType>().unwrap(), IdType::I64);
        assert!("f32".parse::<IdType>().is_err());
        assert_eq!(IdType::for_vocabulary(65_536), IdType::U16);
        assert_eq!(IdType::for_vocabulary(65_537), IdType::U32);
    }
}
