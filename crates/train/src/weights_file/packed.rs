//! Weights in packed formats, known by the constants that stand beside them.
//!
//! | format | weight | constants beside it | source |
//! |---|---|---|---|
//! | bitsandbytes 4-bit | `W` U8, two in a byte | `W.absmax`, `W.quant_map`, `W.nested_*`, `W.quant_state.*` | bitsandbytes `functional.py`, `QuantState.as_dict` |
//! | bitsandbytes int8 | `S.weight` I8 | `S.SCB`, `S.weight_format` | bitsandbytes `nn/modules.py`, `Linear8bitLt` |
//! | GPTQ, AWQ | `S.qweight` I32 | `S.qzeros`, `S.scales`, `S.g_idx` | AutoGPTQ, AutoAWQ `WQLinear` |
//! | fp8, int8 | `W` F8 or I8 | `W_scale_inv`, `W_scale`, `S.input_scale` | DeepSeek-V3 `README_WEIGHTS.md`; compressed-tensors |
//! | packed 4-bit | `S.weight_packed` | `S.weight_scale`, `S.weight_zero_point`, `S.weight_shape`, ... | compressed-tensors |
//! | mxfp4 | `W_blocks` U8 | `W_scales` | gpt-oss |

use super::entry::{Encoding, Entry, total};
use super::group::Group;
use safetensors::tensor::Dtype;
use std::collections::{BTreeMap, BTreeSet};

/// A format of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Packing {
    /// bitsandbytes, normal-float 4.
    Nf4,
    /// bitsandbytes, 4-bit float.
    Fp4,
    /// bitsandbytes, rows of 8-bit integers.
    Int8,
    /// GPTQ with this many bits.
    Gptq(u64),
    /// AWQ with this many bits.
    Awq(u64),
    /// 8-bit floats with scales.
    Fp8,
    /// 8-bit integers with scales.
    ScaledInt8,
    /// 4-bit floats with shared 8-bit exponents.
    Mxfp4,
    /// 4-bit floats with 8-bit float scales.
    Nvfp4,
    /// Integers of this many bits in words, as compressed-tensors packs them; 0 where nothing says how many.
    Words(u64),
}

impl Packing {
    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Nf4 => "bitsandbytes nf4".to_owned(),
            Self::Fp4 => "bitsandbytes fp4".to_owned(),
            Self::Int8 => "bitsandbytes int8".to_owned(),
            Self::Gptq(bits) => format!("GPTQ {bits}-bit"),
            Self::Awq(bits) => format!("AWQ {bits}-bit"),
            Self::Fp8 => "fp8 with scales".to_owned(),
            Self::ScaledInt8 => "int8 with scales".to_owned(),
            Self::Mxfp4 => "mxfp4".to_owned(),
            Self::Nvfp4 => "nvfp4".to_owned(),
            Self::Words(0) => "packed words".to_owned(),
            Self::Words(bits) => format!("packed {bits}-bit"),
        }
    }
}

/// A weight of the model: one tensor, with the constants of its packing.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Its name without what the packing adds.
    pub name: String,
    /// Part of the model.
    pub group: Group,
    /// How its own tensor is stored.
    pub encoding: Encoding,
    /// Elements; `None` if nothing says how many are packed.
    pub elements: Option<u64>,
    /// Its shape, if packing keeps it.
    pub shape: Option<Vec<u64>>,
    /// Bytes of its own tensor.
    pub bytes: u64,
    /// Bytes of scales, zero points and tables beside it.
    pub constants: u64,
    /// Tensors beside it.
    pub companions: u64,
    /// How it is packed, if it is.
    pub packing: Option<Packing>,
}

impl Weight {
    /// Bytes of its own tensor and of those beside it.
    pub fn all_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.constants)
    }
}

/// The weights that stored tensors are, in their order. `bits` is what the config says of packed integers.
pub(crate) fn weights(entries: &[&Entry], bits: Option<u64>) -> Vec<Weight> {
    let names: BTreeMap<&str, &Entry> = entries.iter().map(|entry| (entry.name.as_str(), *entry)).collect();
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    let mut packed: BTreeMap<&str, (Packing, String, Option<u64>, u64, u64)> = BTreeMap::new();
    for &entry in entries {
        let Some(found) = Found::of(entry, &names, bits) else { continue };
        let beside: BTreeSet<&str> =
            found.beside.iter().filter_map(|name| names.get(name.as_str())).map(|e| e.name.as_str()).collect();
        let constants = total(beside.iter().map(|name| names[name].bytes));
        packed.insert(&entry.name, (found.packing, found.name, found.elements, constants, beside.len() as u64));
        taken.extend(beside);
    }
    let mut out = Vec::with_capacity(entries.len() - taken.len());
    for &entry in entries.iter().filter(|entry| !taken.contains(entry.name.as_str())) {
        let plain = (entry.name.clone(), Some(entry.elements), 0, 0);
        let (packing, (name, elements, constants, companions)) = match packed.remove(entry.name.as_str()) {
            Some((packing, name, elements, constants, companions)) => {
                (Some(packing), (name, elements, constants, companions))
            }
            None => (None, plain),
        };
        let keeps = elements == Some(entry.elements);
        out.push(Weight {
            group: Group::of(&name),
            name,
            encoding: entry.encoding,
            elements,
            shape: keeps.then(|| entry.shape.clone()),
            bytes: entry.bytes,
            constants,
            companions,
            packing,
        });
    }
    out
}

/// A packed weight, and the names its constants may have.
struct Found {
    packing: Packing,
    name: String,
    elements: Option<u64>,
    beside: Vec<String>,
}

impl Found {
    fn of(entry: &Entry, names: &BTreeMap<&str, &Entry>, bits: Option<u64>) -> Option<Self> {
        let Encoding::Plain(dtype) = entry.encoding else { return None };
        let name = entry.name.as_str();
        let beside = |stem: &str, ends: &[&str]| ends.iter().map(|end| format!("{stem}{end}")).collect::<Vec<_>>();
        let has = |name: &str| names.get(name).copied();
        if let Some(stem) = name.strip_suffix(".qweight") {
            let (scales, zeros) = (has(&format!("{stem}.scales"))?, has(&format!("{stem}.qzeros")));
            let (packing, elements) = words(entry, scales, zeros, bits)?;
            let beside = beside(stem, &[".qzeros", ".scales", ".g_idx"]);
            return Some(Self { packing, name: format!("{stem}.weight"), elements: Some(elements), beside });
        }
        if let Some(stem) = name.strip_suffix(".weight_packed") {
            has(&format!("{stem}.weight_scale"))?;
            let (packing, elements) = if dtype == Dtype::U8 {
                (Packing::Nvfp4, entry.elements.checked_mul(2))
            } else {
                let bits = bits.filter(|bits| (1..=8).contains(bits)).unwrap_or(0);
                (Packing::Words(bits), (entry.bytes.checked_mul(8)?).checked_div(bits))
            };
            let ends = [
                ".weight_scale",
                ".weight_zero_point",
                ".weight_shape",
                ".weight_g_idx",
                ".weight_global_scale",
                ".input_global_scale",
                ".input_scale",
            ];
            return Some(Self { packing, name: format!("{stem}.weight"), elements, beside: beside(stem, &ends) });
        }
        if let Some(stem) = name.strip_suffix("_blocks").filter(|_| dtype == Dtype::U8) {
            has(&format!("{stem}_scales")).filter(|scales| scales.elements.checked_mul(16) == Some(entry.elements))?;
            let (name, elements) = (stem.to_owned(), entry.elements.checked_mul(2));
            return Some(Self { packing: Packing::Mxfp4, name, elements, beside: beside(stem, &["_scales"]) });
        }
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let same = |packing, ends: Vec<String>| {
            Some(Self { packing, name: name.to_owned(), elements: Some(entry.elements), beside: ends })
        };
        match dtype {
            Dtype::U8 if has(&format!("{name}.absmax")).is_some() => {
                let fp4 = has(&format!("{name}.quant_state.bitsandbytes__fp4")).is_some();
                let packing = if fp4 { Packing::Fp4 } else { Packing::Nf4 };
                let ends = [
                    ".absmax",
                    ".quant_map",
                    ".nested_absmax",
                    ".nested_quant_map",
                    ".quant_state.bitsandbytes__nf4",
                    ".quant_state.bitsandbytes__fp4",
                ];
                let elements = entry.elements.checked_mul(2);
                Some(Self { packing, name: name.to_owned(), elements, beside: beside(name, &ends) })
            }
            Dtype::U8 if has(&format!("{name}_scale_2")).is_some() => {
                let mut ends = beside(name, &["_scale", "_scale_2"]);
                ends.push(format!("{stem}.input_scale"));
                let (name, elements) = (name.to_owned(), entry.elements.checked_mul(2));
                Some(Self { packing: Packing::Nvfp4, name, elements, beside: ends })
            }
            Dtype::I8 if has(&format!("{stem}.SCB")).is_some() => {
                same(Packing::Int8, beside(stem, &[".SCB", ".weight_format"]))
            }
            Dtype::I8 | Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ => {
                let mut ends = beside(name, &["_scale_inv", "_scale", "_zero_point"]);
                if !ends.iter().any(|end| has(end).is_some()) {
                    return None;
                }
                ends.extend(beside(stem, &[".input_scale", ".activation_scale"]));
                same(if dtype == Dtype::I8 { Packing::ScaledInt8 } else { Packing::Fp8 }, ends)
            }
            _ => None,
        }
    }
}

/// Which of GPTQ and AWQ packed the words, and how many elements are in them.
///
/// Scales have a column for each output. GPTQ packs along inputs, so its words have as many columns; AWQ packs along
/// outputs, as both pack their zero points: the columns of these tell the bits.
fn words(entry: &Entry, scales: &Entry, zeros: Option<&Entry>, bits: Option<u64>) -> Option<(Packing, u64)> {
    let columns = |entry: &Entry| entry.shape.last().copied().filter(|columns| *columns > 0);
    let outputs = columns(scales)?;
    let from_zeros = zeros
        .and_then(columns)
        .map(|columns| u128::from(columns) * 32)
        .filter(|all| all.is_multiple_of(u128::from(outputs)));
    let from_zeros = from_zeros.map(|all| (all / u128::from(outputs)) as u64);
    let bits = from_zeros.or(bits).filter(|bits| (1..=8).contains(bits))?;
    let elements = entry.elements.checked_mul(32)? / bits;
    let gptq = columns(entry)? == outputs;
    Some((if gptq { Packing::Gptq(bits) } else { Packing::Awq(bits) }, elements))
}
