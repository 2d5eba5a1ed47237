//! Weights stored in few bits: codes, a scale for each block of them, and what scales and zeros need in their turn.
//!
//! A matrix `(n k)` is packed in row-major order. What a format stores is told by [`Format::parts`]; what the stored
//! numbers stand for, by [`Reader`].

use crate::dtype::DType;
use crate::float_format::FloatFormat;
use crate::kernel::{Data, Num};
use crate::ops::blockwise::Code as ByteCode;
use smallvec::SmallVec;

/// What one code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Sixteen values at the quantiles of a normal distribution.
    Nf4,
    /// A float of four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
    E2m1,
    /// 0 to 15, less a zero of the block.
    Int4,
    /// -128 to 127.
    Int8,
    /// A float of eight bits.
    E4m3,
}

/// The weights that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// So many, one after another.
    Run(u64),
    /// Those of one output.
    Row,
    /// A square of so many outputs and inputs.
    Square(u64),
}

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As f32.
    F32,
    /// As f16.
    F16,
    /// A power of two, by its exponent in a byte.
    E8m0,
    /// A float of eight bits, times one f32 for the whole weight.
    E4m3,
    /// A byte, read as optimizer states in 8 bits are: blocks of 256 share an f32; their mean is kept apart.
    Bytes,
}

/// A format of packed weights.
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is, in words.
    pub what: &'static str,
    /// What a code stands for.
    pub code: Code,
    /// What shares a scale.
    pub block: Block,
    /// How that is stored.
    pub scale: Scale,
    /// Whether each block has a zero of four bits.
    pub zeros: bool,
    /// Whether each input says in 32 bits which group it belongs to (files of GPTQ).
    pub group_index: bool,
    /// Whether the product keeps its input for backward though no gradient asks for it.
    pub keeps_input: bool,
    /// Where the format is written down.
    pub source: &'static str,
}

/// A tensor that a packed weight is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name beside that of the weight, empty for the codes.
    pub name: &'static str,
    /// dtype.
    pub dtype: DType,
    /// Elements.
    pub elements: u64,
}

/// Bytes of a packed weight as a sum of what each run of weights, each output, each input and the whole take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Weights of a run, and its bytes; codes first.
    pub runs: SmallVec<[(u64, u64); 3]>,
    /// Bytes of an output.
    pub row: u64,
    /// Bytes of an input.
    pub column: u64,
    /// Bytes of the weight.
    pub whole: u64,
}

/// The formats.
pub const FORMATS: &[Format] = &[
    Format {
        name: "nf4",
        what: "bitsandbytes nf4: 4 bits, an f32 for each 64 weights",
        code: Code::Nf4,
        block: Block::Run(64),
        scale: Scale::F32,
        zeros: false,
        group_index: false,
        keeps_input: false,
        source: "Dettmers et al. 2023, arXiv:2305.14314, appendix E; bitsandbytes functional.quantize_4bit, blocksize 64",
    },
    Format {
        name: "nf4-dq",
        what: "bitsandbytes nf4 with double quantisation: 4 bits, a byte for each 64 weights, an f32 for each 256 of these",
        code: Code::Nf4,
        block: Block::Run(64),
        scale: Scale::Bytes,
        zeros: false,
        group_index: false,
        keeps_input: false,
        source: "Dettmers et al. 2023, arXiv:2305.14314, section 3; bitsandbytes functional.quantize_4bit, compress_statistics",
    },
    Format {
        name: "int8",
        what: "bitsandbytes LLM.int8(): 8 bits, an f32 for each output",
        code: Code::Int8,
        block: Block::Row,
        scale: Scale::F32,
        zeros: false,
        group_index: false,
        keeps_input: true,
        source: "Dettmers et al. 2022, arXiv:2208.07339; bitsandbytes nn.Int8Params (CB, SCB); MatMul8bitLt keeps its input",
    },
    Format {
        name: "gptq",
        what: "GPTQ files: 4 bits, groups of 128 with an f16 scale and a 4-bit zero, a group index per input",
        code: Code::Int4,
        block: Block::Run(128),
        scale: Scale::F16,
        zeros: true,
        group_index: true,
        keeps_input: false,
        source: "Frantar et al. 2022, arXiv:2210.17323; tensors qweight, qzeros, scales, g_idx of AutoGPTQ",
    },
    Format {
        name: "awq",
        what: "AWQ files: 4 bits, groups of 128 with an f16 scale and a 4-bit zero",
        code: Code::Int4,
        block: Block::Run(128),
        scale: Scale::F16,
        zeros: true,
        group_index: false,
        keeps_input: false,
        source: "Lin et al. 2023, arXiv:2306.00978; tensors qweight, qzeros, scales of AutoAWQ (gemm)",
    },
    Format {
        name: "fp8-block",
        what: "E4M3 with an f32 for each square of 128 x 128",
        code: Code::E4m3,
        block: Block::Square(128),
        scale: Scale::F32,
        zeros: false,
        group_index: false,
        keeps_input: false,
        source: "DeepSeek-V3 technical report, arXiv:2412.19437, section 3.3; weight_scale_inv of its files",
    },
    Format {
        name: "mxfp4",
        what: "E2M1 with a power of two for each 32 weights",
        code: Code::E2m1,
        block: Block::Run(32),
        scale: Scale::E8m0,
        zeros: false,
        group_index: false,
        keeps_input: false,
        source: "OCP Microscaling Formats (MX) v1.0, 2023, section 5",
    },
    Format {
        name: "nvfp4",
        what: "E2M1 with an E4M3 scale for each 16 weights and an f32 for the whole",
        code: Code::E2m1,
        block: Block::Run(16),
        scale: Scale::E4m3,
        zeros: false,
        group_index: false,
        keeps_input: false,
        source: "NVIDIA, Introducing NVFP4, 2025",
    },
];

/// Sixteen values of NF4. Source: arXiv:2305.14314, appendix E.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Magnitudes of E2M1. Source: OCP Microscaling Formats (MX) v1.0, table 5.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Scales in bytes that share an f32.
const SCALES: u64 = 256;

impl Format {
    /// The format of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = name.to_ascii_lowercase().replace('_', "-");
        FORMATS.iter().find(|format| format.name == name)
    }

    /// Bits of one code.
    pub const fn bits(&self) -> u64 {
        match self.code {
            Code::Nf4 | Code::E2m1 | Code::Int4 => 4,
            Code::Int8 | Code::E4m3 => 8,
        }
    }

    /// Blocks of a weight `(n k)`.
    pub fn blocks(&self, n: u64, k: u64) -> u64 {
        match self.block {
            Block::Run(run) => (n * k).div_ceil(run),
            Block::Row => n,
            Block::Square(side) => n.div_ceil(side) * k.div_ceil(side),
        }
    }

    /// Block of weight `(row, column)` of `(n k)`.
    fn block_of(&self, row: usize, column: usize, k: usize) -> usize {
        match self.block {
            Block::Run(run) => (row * k + column) / run as usize,
            Block::Row => row,
            Block::Square(side) => row / side as usize * k.div_ceil(side as usize) + column / side as usize,
        }
    }

    /// What a weight `(n k)` is stored as: codes, scales, then zeros or what reads the scales, then the group index.
    ///
    /// The first tensors, all but the group index, are what [`crate::ops::packed_linear`] reads, in this order.
    pub fn parts(&self, n: u64, k: u64) -> SmallVec<[Part; 4]> {
        let blocks = self.blocks(n, k);
        let part = |name, dtype, elements| Part { name, dtype, elements };
        let mut parts = SmallVec::new();
        parts.push(part("", DType::U8, (n * k * self.bits()).div_ceil(8)));
        let (name, dtype) = match self.scale {
            Scale::F32 => ("absmax", DType::F32),
            Scale::F16 => ("scales", DType::F16),
            Scale::E8m0 | Scale::E4m3 => ("scales", DType::U8),
            Scale::Bytes => ("absmax", DType::U8),
        };
        parts.push(part(name, dtype, blocks));
        match self.scale {
            Scale::E4m3 => parts.push(part("global_scale", DType::F32, 1)),
            // The last one is the mean that was taken off.
            Scale::Bytes => parts.push(part("nested_absmax", DType::F32, blocks.div_ceil(SCALES) + 1)),
            _ if self.zeros => parts.push(part("qzeros", DType::U8, blocks.div_ceil(2))),
            _ => {}
        }
        if self.group_index {
            parts.push(part("g_idx", DType::I32, k));
        }
        parts
    }

    /// What [`Self::parts`] come to for a weight, each.
    pub fn rates(&self) -> Rates {
        let scale = match self.scale {
            Scale::F32 => 4,
            Scale::F16 => 2,
            Scale::E8m0 | Scale::E4m3 | Scale::Bytes => 1,
        };
        let run = match self.block {
            Block::Run(run) => Some(run),
            Block::Square(side) => Some(side * side),
            Block::Row => None,
        };
        let mut runs = SmallVec::from_slice(&[(8 / self.bits(), 1)]);
        runs.extend(run.map(|run| (run, scale)));
        if self.scale == Scale::Bytes {
            runs.extend(run.map(|run| (run * SCALES, 4)));
        }
        if self.zeros {
            runs.extend(run.map(|run| (run * 2, 1)));
        }
        Rates {
            runs,
            row: if run.is_none() { scale } else { 0 },
            column: if self.group_index { 4 } else { 0 },
            whole: if matches!(self.scale, Scale::Bytes | Scale::E4m3) { 4 } else { 0 },
        }
    }

    /// Bytes of a weight `(n k)`, constants included.
    pub fn bytes(&self, n: u64, k: u64) -> u64 {
        self.parts(n, k).iter().map(|part| part.elements * part.dtype.size_in_bytes()).sum()
    }

    /// Tensors the product reads: without the group index.
    pub fn operands(&self) -> usize {
        2 + usize::from(self.zeros || matches!(self.scale, Scale::Bytes | Scale::E4m3))
    }

    fn value(&self, code: u8) -> f32 {
        match self.code {
            Code::Nf4 => NF4[usize::from(code)],
            Code::E2m1 => {
                let magnitude = E2M1[usize::from(code & 7)];
                if code & 8 == 0 { magnitude } else { -magnitude }
            }
            Code::Int4 => f32::from(code),
            Code::Int8 => f32::from(code as i8),
            Code::E4m3 => FloatFormat::of(DType::F8E4M3).map_or(0.0, |f| f.decode(u64::from(code)) as f32),
        }
    }

    /// The largest magnitude of a code.
    fn largest(&self) -> f32 {
        match self.code {
            Code::Nf4 => 1.0,
            Code::E2m1 => 6.0,
            Code::Int4 => 15.0,
            Code::Int8 => 127.0,
            Code::E4m3 => 448.0,
        }
    }

    /// Codes, scales and the rest of a weight `(n k)`, each number as it is stored; the group index last, if there is one.
    /// Each weight becomes the nearest code of its block's scale.
    pub fn pack(&self, n: u64, k: u64, weight: &[f64]) -> Vec<Vec<f64>> {
        let (rows, columns) = (n as usize, k as usize);
        let blocks = self.blocks(n, k) as usize;
        let mut low = vec![0f32; blocks];
        let mut high = vec![0f32; blocks];
        let at = |i: usize| self.block_of(i / columns, i % columns, columns);
        for (i, &w) in weight.iter().enumerate() {
            let block = at(i);
            low[block] = low[block].min(w as f32);
            high[block] = high[block].max(w as f32);
        }
        let wanted = |b: usize| match self.code {
            Code::Int4 => (high[b] - low[b]) / 15.0,
            _ => high[b].max(-low[b]) / self.largest(),
        };
        let (stored, second, scales) = self.pack_scales((0..blocks).map(wanted).collect());
        let zero = |b: usize| if scales[b] > 0.0 { (-low[b] / scales[b]).round().clamp(0.0, 15.0) } else { 0.0 };
        let all: Vec<f32> = (0..1usize << self.bits()).map(|code| self.value(code as u8)).collect();
        let nearest = |x: f32| {
            let distance = |code: &usize| (all[*code] - x).abs();
            let codes = (0..all.len()).filter(|code| all[*code].is_finite());
            codes.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
        };
        let mut codes = vec![0u8; (rows * columns * self.bits() as usize).div_ceil(8)];
        for (i, &w) in weight.iter().enumerate() {
            let block = at(i);
            let off = if self.zeros { zero(block) } else { 0.0 };
            let x = if scales[block] > 0.0 { w as f32 / scales[block] + off } else { off };
            let code = nearest(x) as u8;
            if self.bits() == 8 {
                codes[i] = code;
            } else {
                codes[i / 2] |= code << (4 * (i % 2));
            }
        }
        let mut parts: Vec<Vec<f64>> = Vec::new();
        parts.push(codes.into_iter().map(f64::from).collect());
        parts.push(stored);
        if self.zeros {
            let zeros: Vec<u8> = (0..blocks).map(|b| zero(b) as u8).collect();
            parts.push(zeros.chunks(2).map(|z| f64::from(z[0] | z.get(1).copied().unwrap_or(0) << 4)).collect());
        } else if !second.is_empty() {
            parts.push(second);
        }
        if self.group_index {
            let Block::Run(run) = self.block else { return parts };
            parts.push((0..k).map(|column| (column / run) as f64).collect());
        }
        parts
    }

    /// Scales as they are stored, what reads them, and what they are read as.
    fn pack_scales(&self, wanted: Vec<f32>) -> (Vec<f64>, Vec<f64>, Vec<f32>) {
        let plain = |scales: Vec<f32>| (scales.iter().map(|&s| f64::from(s)).collect(), Vec::new(), scales);
        match self.scale {
            Scale::F32 => plain(wanted),
            Scale::F16 => plain(wanted.into_iter().map(|s| half::f16::from_f32(s).to_f32()).collect()),
            Scale::E8m0 => {
                let byte = |s: f32| if s > 0.0 { (s.log2().ceil() + 127.0).clamp(0.0, 254.0) } else { 0.0 };
                let bytes: Vec<f32> = wanted.into_iter().map(byte).collect();
                let scales = bytes.iter().map(|&b| power_of_two(b as u8)).collect();
                (bytes.into_iter().map(f64::from).collect(), Vec::new(), scales)
            }
            Scale::E4m3 => {
                let global = wanted.iter().fold(0f32, |a, &s| a.max(s)) / 448.0;
                let format = FloatFormat::of(DType::F8E4M3);
                let bits = |s: f32| {
                    let part = if global > 0.0 { s / global } else { 0.0 };
                    format.map_or(0, |f| f.encode(f64::from(part)))
                };
                let bytes: Vec<u64> = wanted.into_iter().map(bits).collect();
                let read = |&b: &u64| format.map_or(0.0, |f| f.decode(b) as f32) * global;
                let scales = bytes.iter().map(read).collect();
                (bytes.into_iter().map(|b| b as f64).collect(), vec![f64::from(global)], scales)
            }
            Scale::Bytes => {
                let mean = wanted.iter().sum::<f32>() / wanted.len().max(1) as f32;
                let table = ByteCode::Signed.table();
                let (mut bytes, mut second, mut scales) = (Vec::new(), Vec::new(), Vec::new());
                for block in wanted.chunks(SCALES as usize) {
                    let largest = block.iter().fold(0f32, |a, s| a.max((s - mean).abs()));
                    for s in block {
                        let part = if largest > 0.0 { (s - mean) / largest } else { 0.0 };
                        let byte = table.byte(part);
                        bytes.push(f64::from(byte));
                        scales.push(table.value(byte) * largest + mean);
                    }
                    second.push(f64::from(largest));
                }
                second.push(f64::from(mean));
                (bytes, second, scales)
            }
        }
    }
}

fn power_of_two(byte: u8) -> f32 {
    (f32::from(byte) - 127.0).exp2()
}

/// Reads packed weights in the order a kernel asks for them.
pub(crate) struct Reader<T> {
    format: &'static Format,
    codes: Vec<i64>,
    zeros: Vec<i64>,
    scales: Vec<T>,
    values: [f32; 256],
    k: usize,
}

impl<T: Num> Reader<T> {
    /// Of a weight `(n k)` and what [`Format::parts`] says it is made of.
    pub(crate) fn new(format: &'static Format, parts: &[Data<T>], k: usize) -> Self {
        let second = parts.get(2);
        let scales = match (format.scale, second) {
            (Scale::F32 | Scale::F16, _) => parts[1].num().data.clone(),
            (Scale::E8m0, _) => {
                parts[1].ints().into_iter().map(|b| T::from_f64(f64::from(power_of_two(b as u8)))).collect()
            }
            (Scale::E4m3, Some(global)) => {
                let (global, float) = (global.num().data[0], FloatFormat::of(DType::F8E4M3));
                let read = |b: i64| T::from_f64(float.map_or(0.0, |f| f.decode(b as u64))) * global;
                parts[1].ints().into_iter().map(read).collect()
            }
            (Scale::Bytes, Some(second)) => {
                let (second, table): (&[T], _) = (&second.num().data, ByteCode::Signed.table());
                let mean = second[second.len() - 1];
                let read = |(i, b): (usize, i64)| {
                    T::from_f64(f64::from(table.value(b as u8))) * second[i / SCALES as usize] + mean
                };
                parts[1].ints().into_iter().enumerate().map(read).collect()
            }
            (Scale::E4m3 | Scale::Bytes, None) => Vec::new(),
        };
        let zeros = if format.zeros { second.map(Data::ints).unwrap_or_default() } else { Vec::new() };
        let values =
            std::array::from_fn(|code| if code >> format.bits() == 0 { format.value(code as u8) } else { 0.0 });
        Self { format, codes: parts[0].ints(), zeros, scales, values, k }
    }

    /// Weight `(row, column)`: one multiplication.
    pub(crate) fn at(&self, row: usize, column: usize) -> T {
        let (i, block) = (row * self.k + column, self.format.block_of(row, column, self.k));
        let nibble = |bytes: &[i64], i: usize| (bytes[i / 2] >> (4 * (i % 2))) & 15;
        let code = if self.format.bits() == 8 { self.codes[i] & 255 } else { nibble(&self.codes, i) };
        let zero = if self.format.zeros { nibble(&self.zeros, block) as f32 } else { 0.0 };
        T::from_f64(f64::from(self.values[code as usize] - zero)) * self.scales[block]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a weight, by hand from what each format's source says.
    #[test]
    fn bytes_of_a_weight() {
        let (n, k) = (4096, 4096);
        for (name, bits) in [
            ("nf4", 4.0 + 32.0 / 64.0),
            // arXiv:2305.14314, section 3: 0.127 bits beside the four; and one f32 for the mean.
            ("nf4-dq", 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0) + 32.0 / (4096.0 * 4096.0)),
            ("int8", 8.0 + 32.0 / 4096.0),
            ("gptq", 4.0 + 20.0 / 128.0 + 32.0 / 4096.0),
            ("awq", 4.0 + 20.0 / 128.0),
            ("fp8-block", 8.0 + 32.0 / (128.0 * 128.0)),
            ("mxfp4", 4.25),
            ("nvfp4", 4.5 + 32.0 / (4096.0 * 4096.0)),
        ] {
            let bytes = Format::find(name).unwrap().bytes(n, k);
            assert_eq!(bytes as f64 * 8.0, bits * (n * k) as f64, "{name}");
        }
    }

    /// A packed weight is off by at most half the widest gap of its codes, in units of its block's scale.
    #[test]
    fn packing_is_near() {
        let (n, k) = (6, 256);
        let weight: Vec<f64> = (0..n * k).map(|i| f64::from((i * 7919 % 1009) as u32) / 504.5 - 1.0).collect();
        for format in FORMATS {
            let parts = format.pack(n, k, &weight);
            let expected = format.parts(n, k);
            let sizes: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
            assert_eq!(sizes, expected.iter().map(|part| part.elements).collect::<Vec<_>>(), "{}", format.name);
            let data: Vec<Data<f64>> = parts
                .iter()
                .zip(&expected)
                .take(format.operands())
                .map(|(part, expected)| {
                    let shape = vec![part.len()];
                    if expected.dtype.is_float() {
                        Data::Num(crate::kernel::Array { shape, data: part.clone() })
                    } else {
                        let data = part.iter().map(|&x| x as i64).collect();
                        Data::Int(crate::kernel::Array { shape, data })
                    }
                })
                .collect();
            let reader = Reader::new(format, &data, k as usize);
            // Widest gap over largest code; and what rounding the scale itself may add.
            let worst = match format.code {
                Code::Nf4 => 0.16,
                Code::E2m1 => 0.36,
                Code::Int4 => 0.08,
                Code::Int8 => 0.005,
                Code::E4m3 => 0.04,
            };
            for (i, w) in weight.iter().enumerate() {
                let is = reader.at(i / k as usize, i % k as usize);
                assert!((is - w).abs() <= worst, "{} weight {i}: {w} became {is}", format.name);
            }
        }
    }
}
