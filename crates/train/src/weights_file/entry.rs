//! A tensor as the header of a file describes it, and the file.

use crate::checkpoint::from_safetensors;
use plan::ggml::GgmlType;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::DType;

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A dtype of safetensors.
    Plain(Dtype),
    /// A type of GGUF.
    Ggml(&'static GgmlType),
}

impl Encoding {
    /// Its name: that of the dtype where there is one here, else as the format spells it.
    pub fn name(self) -> String {
        match self {
            Self::Plain(dtype) => match from_safetensors(dtype) {
                Some(own) => own.name().to_owned(),
                None => spelling(dtype).to_ascii_lowercase(),
            },
            Self::Ggml(one) => one.name.to_owned(),
        }
    }

    /// The dtype, if it is one.
    pub fn dtype(self) -> Option<DType> {
        match self {
            Self::Plain(dtype) => from_safetensors(dtype),
            Self::Ggml(one) => DType::ALL.into_iter().find(|dtype| dtype.name() == one.name),
        }
    }

    /// Whether scales stand among the elements.
    pub const fn is_quantized(self) -> bool {
        matches!(self, Self::Ggml(one) if one.is_quantized())
    }

    /// Bytes of `elements`, of which `row` stand together; `None` if they do not fill whole blocks or cannot be counted.
    pub fn bytes(self, elements: u64, row: u64) -> Option<u64> {
        match self {
            Self::Plain(dtype) => {
                let bits = elements.checked_mul(dtype.bitsize() as u64)?;
                bits.is_multiple_of(8).then_some(bits / 8)
            }
            Self::Ggml(one) => (elements / one.block).checked_mul(one.bytes).filter(|_| row.is_multiple_of(one.block)),
        }
    }
}

/// The dtype as the format spells it.
pub(crate) fn spelling(dtype: Dtype) -> String {
    serde_json::to_value(dtype).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// One tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// How it is stored.
    pub encoding: Encoding,
    /// Its shape, slowest dimension first.
    pub shape: Vec<u64>,
    /// Number of elements.
    pub elements: u64,
    /// First byte, counted from the end of the header.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Which kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON header and tensors.
    Safetensors,
    /// The files of llama.cpp.
    Gguf,
}

impl Format {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "GGUF",
        }
    }
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where it is.
    pub path: PathBuf,
    /// Which kind.
    pub format: Format,
    /// Size of the file.
    pub file_bytes: u64,
    /// Bytes before the first tensor.
    pub header_bytes: u64,
    /// Its tensors, in the order of their bytes.
    pub tensors: Vec<Entry>,
    /// What it says about itself.
    pub about: BTreeMap<String, String>,
}

impl Header {
    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        total(self.tensors.iter().map(|tensor| tensor.bytes))
    }
}

/// A sum of sizes that files state, as large as 64 bits hold: files together may say more than one can.
pub(crate) fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}
