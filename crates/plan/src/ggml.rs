//! The types of tensors in GGUF files, from `data/formats/ggml.csv`.

use std::sync::LazyLock;

/// A type: so many elements in a block of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlType {
    /// Its number in files.
    pub id: u32,
    /// Its name; in lower case if it is a plain number format.
    pub name: &'static str,
    /// Elements of a block.
    pub block: u64,
    /// Bytes of a block, scales within.
    pub bytes: u64,
}

static TYPES: LazyLock<Vec<GgmlType>> =
    LazyLock::new(|| include_str!("../../../data/formats/ggml.csv").lines().filter_map(row).collect());

fn row(line: &'static str) -> Option<GgmlType> {
    let mut fields = line.split(',');
    let mut next = || fields.next();
    let id = next()?.parse().ok()?;
    Some(GgmlType { id, name: next()?, block: next()?.parse().ok()?, bytes: next()?.parse().ok()? })
}

impl GgmlType {
    /// All types, by their numbers.
    pub fn all() -> &'static [Self] {
        &TYPES
    }

    /// The type of that number.
    pub fn by_id(id: u32) -> Option<&'static Self> {
        TYPES.iter().find(|one| one.id == id)
    }

    /// Whether blocks hold scales beside their elements.
    pub const fn is_quantized(&self) -> bool {
        self.block > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a weight as llama.cpp's own documentation of its types states them.
    #[test]
    fn bits_per_weight_are_those_of_the_source() {
        for (name, bits) in [
            ("Q4_0", 4.5),
            ("Q4_1", 5.0),
            ("Q5_0", 5.5),
            ("Q5_1", 6.0),
            ("Q8_0", 8.5),
            ("Q2_K", 2.625),
            ("Q3_K", 3.4375),
            ("Q4_K", 4.5),
            ("Q5_K", 5.5),
            ("Q6_K", 6.5625),
            ("IQ2_XXS", 2.0625),
            ("IQ2_XS", 2.3125),
            ("IQ3_XXS", 3.0625),
            ("IQ1_S", 1.5625),
            ("IQ4_NL", 4.5),
            ("IQ3_S", 3.4375),
            ("IQ4_XS", 4.25),
            ("IQ1_M", 1.75),
            ("TQ1_0", 1.6875),
            ("TQ2_0", 2.0625),
            ("MXFP4", 4.25),
            ("NVFP4", 4.5),
        ] {
            let one = TYPES.iter().find(|one| one.name == name).unwrap();
            assert_eq!((one.bytes * 8) as f64 / one.block as f64, bits, "{name}");
        }
    }

    #[test]
    fn every_row_is_read_and_no_number_stands_twice() {
        let rows = include_str!("../../../data/formats/ggml.csv").lines().filter(|line| !line.starts_with('#'));
        assert_eq!(TYPES.len(), rows.count() - 1);
        assert!(TYPES.windows(2).all(|two| two[0].id < two[1].id));
    }
}
