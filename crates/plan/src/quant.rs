//! What numbers take in the formats that weights and caches are kept in, constants included.
//!
//! Facts are in `data/formats/weights.csv`, the block types of GGUF in `data/formats/ggml.csv`; what models are computed with
//! while they are packed, in [`tensor::packed`].

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use nn::ParamKind;
use nn::config::Config;
use nn::step::ParamInfo;
use units::{Bytes, Diagnostic, Params};

use crate::ggml::GgmlType;
use crate::nearest::nearest;

/// Which tensors of a model a format is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covers {
    /// Every one.
    All,
    /// Matrices of blocks; embeddings, head, norms and biases stay in 16 bits.
    Blocks,
    /// Matrices of routed experts.
    Experts,
}

/// So many bytes for each run of so many elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Elements of a run; the last one may be shorter and takes as much.
    pub elements: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// A number format with its constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its name.
    pub name: &'static str,
    /// Other names it answers to.
    pub aliases: Vec<&'static str>,
    /// The elements, then the constants of groups of them.
    pub runs: Vec<Run>,
    /// Bytes of constants of a row of a matrix.
    pub row: u64,
    /// Bytes of constants of a column.
    pub column: u64,
    /// Bytes of constants of a tensor.
    pub tensor: u64,
    /// Which tensors are in it.
    pub covers: Covers,
    /// Whether engines keep keys and values in it.
    pub in_caches: bool,
    /// Who says so.
    pub source: &'static str,
}

/// Bytes of an element of what a format leaves out.
const WIDE: u64 = 2;

static FORMATS: LazyLock<Vec<Format>> = LazyLock::new(|| {
    let mut all: Vec<Format> = include_str!("../../../data/formats/weights.csv").lines().filter_map(row).collect();
    // What has the name of one of those is that one: a file of its own kind around the same numbers.
    let is_known = |name: &str| all.iter().any(|format| format.name.eq_ignore_ascii_case(name));
    let blocks = GgmlType::all().iter().filter(|kind| kind.is_quantized() && !is_known(kind.name));
    let blocks: Vec<Format> = blocks.map(of_ggml).collect();
    all.extend(blocks);
    all
});

fn row(line: &'static str) -> Option<Format> {
    let mut fields = line.splitn(9, ',');
    let name = fields.next().filter(|name| !name.starts_with('#') && *name != "name")?;
    let aliases = fields.next()?.split_whitespace().collect();
    let run = |text: &str| {
        let (elements, bytes) = text.split_once(':')?;
        Some(Run { elements: elements.parse().ok()?, bytes: bytes.parse().ok()? })
    };
    let runs = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (row, column, tensor) = (number()?, number()?, number()?);
    let (runs, row, column, tensor) = if runs == "packed" {
        let rates = tensor::packed::Format::find(name)?.rates();
        let runs = rates.runs.iter().map(|&(elements, bytes)| Run { elements, bytes }).collect();
        (runs, rates.row, rates.column, rates.whole)
    } else {
        (runs.split('+').map(run).collect::<Option<_>>()?, row, column, tensor)
    };
    let covers = match fields.next()? {
        "all" => Covers::All,
        "blocks" => Covers::Blocks,
        _ => Covers::Experts,
    };
    let in_caches = fields.next()? == "yes";
    Some(Format { name, aliases, runs, row, column, tensor, covers, in_caches, source: fields.next()? })
}

/// A block type of GGUF, all of whose constants lie in its blocks.
fn of_ggml(kind: &'static GgmlType) -> Format {
    Format {
        name: kind.name,
        aliases: Vec::new(),
        runs: vec![Run { elements: kind.block, bytes: kind.bytes }],
        row: 0,
        column: 0,
        tensor: 0,
        covers: Covers::All,
        in_caches: matches!(kind.name, "Q8_0" | "Q5_1" | "Q5_0" | "Q4_1" | "Q4_0" | "IQ4_NL"),
        source: "ggml-common.h of llama.cpp",
    }
}

/// Every format, those of GGUF last.
pub fn formats() -> &'static [Format] {
    &FORMATS
}

impl Format {
    /// The format of that name.
    ///
    /// # Errors
    /// `T0451` with the names that look like it.
    pub fn find(name: &str) -> Result<&'static Self, Diagnostic> {
        let plain = |text: &str| text.to_lowercase().replace('_', "-");
        let wanted = plain(name.trim());
        let is = |format: &&Self| std::iter::once(&format.name).chain(&format.aliases).any(|own| plain(own) == wanted);
        formats().iter().find(is).ok_or_else(|| {
            let near = nearest(&wanted, formats().iter().map(|format| format.name));
            let all = || {
                formats().iter().take_while(|format| !format.name.starts_with('Q')).map(|format| format.name).collect()
            };
            let help: Vec<&str> = if near.is_empty() { all() } else { near };
            Diagnostic::error("T0451", format!("`{}` is no number format", name.trim())).help(help.join(", "))
        })
    }

    /// 16 bits without constants.
    pub fn bf16() -> &'static Self {
        FORMATS.iter().find(|format| format.name == "bf16").expect("a row of the table")
    }

    /// Bytes of so many elements in a row, their groups' constants included.
    pub fn run_bytes(&self, elements: u64) -> u64 {
        let bytes = self.runs.iter().map(|run| elements.div_ceil(run.elements).saturating_mul(run.bytes));
        bytes.fold(0, u64::saturating_add)
    }

    /// Bits of an element, constants of groups included.
    pub fn bits(&self) -> f64 {
        8.0 * self.runs.iter().map(|run| run.bytes as f64 / run.elements as f64).sum::<f64>()
    }

    /// Whether a parameter is kept in it.
    pub fn takes(&self, param: &ParamInfo) -> bool {
        match self.covers {
            Covers::All => true,
            Covers::Blocks => {
                matches!(param.kind, ParamKind::Matrix | ParamKind::Expert { .. }) && param.shape.len() >= 2
            }
            Covers::Experts => matches!(param.kind, ParamKind::Expert { .. }) && param.shape.len() >= 3,
        }
    }

    /// Bytes of a parameter: in this format if it takes it, else in 16 bits.
    pub fn bytes_of(&self, param: &ParamInfo) -> u64 {
        if !self.takes(param) {
            return param.elements * WIDE;
        }
        let columns = param.shape.last().copied().unwrap_or(1).max(1);
        let rows = param.elements / columns;
        self.run_bytes(param.elements) + self.row * rows + self.column * columns + self.tensor
    }
}

/// The format that the `quantization_config` of a config states; `None` if there is none.
///
/// # Errors
/// What it states, where no format here is that.
pub fn stated(config: &Config) -> Option<Result<&'static Format, String>> {
    let stated = config.find("quantization_config").filter(|found| found.value.is_object())?;
    let text = |path: &str| -> Option<String> {
        let found = config.find(&format!("quantization_config.{path}"))?;
        (!found.value.is_null())
            .then(|| found.value.as_str().map_or_else(|| found.value.to_string(), str::to_lowercase))
    };
    let is = |path: &str| text(path).as_deref() == Some("true");
    let bits_in_groups = |method: &str| {
        let bits = text("bits").or(text("w_bit")).unwrap_or_else(|| "4".to_owned());
        let group = text("group_size").or(text("q_group_size")).unwrap_or_else(|| "128".to_owned());
        format!("{method}-{bits}bit-g{group}")
    };
    let name = match text("quant_method").as_deref() {
        Some("fp8" | "fbgemm_fp8") if text("weight_block_size").is_some() => "fp8-block".to_owned(),
        Some("fp8" | "fbgemm_fp8") => "fp8".to_owned(),
        Some("mxfp4") => "mxfp4".to_owned(),
        Some(method @ ("gptq" | "awq")) => bits_in_groups(method),
        Some("bitsandbytes") if is("load_in_8bit") => "int8".to_owned(),
        Some("bitsandbytes") => {
            let code = text("bnb_4bit_quant_type").unwrap_or_else(|| "fp4".to_owned());
            if is("bnb_4bit_use_double_quant") { format!("{code}-dq") } else { code }
        }
        Some("compressed-tensors") => {
            let of = |key: &str| text(&format!("config_groups.group_0.weights.{key}")).unwrap_or_default();
            match (text("format").as_deref(), of("type").as_str(), of("num_bits").as_str(), of("strategy").as_str()) {
                (Some("nvfp4-pack-quantized"), ..) => "nvfp4".to_owned(),
                (_, "float", "8", "block") => "fp8-block".to_owned(),
                (_, "float", "8", _) => "fp8".to_owned(),
                (_, "int", "8", _) => "int8".to_owned(),
                (_, kind, bits, _) => format!("{kind}{bits}-g{}", of("group_size")),
            }
        }
        Some("modelopt") => text("quant_algo").unwrap_or_default(),
        _ => return Some(Err(stated.value.to_string())),
    };
    Some(Format::find(&name).map_err(|_| stated.value.to_string()))
}

/// Whether a problem is that `quantization_config` was not understood, or the note that stands for it where it is.
pub fn is_of_stored(problem: &Diagnostic) -> bool {
    problem.code == "T0325" || problem.code == "T0118" && problem.message.contains("`quantization_config`")
}

/// How the weights of a model are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage {
    /// In a format with its constants.
    Format(&'static Format),
    /// So many bytes for every parameter, whatever it is.
    PerParameter(f64),
}

impl Storage {
    /// Bytes of a parameter.
    pub fn bytes_of(&self, param: &ParamInfo) -> u64 {
        match self {
            Self::Format(format) => format.bytes_of(param),
            Self::PerParameter(bytes) => (param.elements as f64 * bytes).round() as u64,
        }
    }

    /// Bytes of a bare count of parameters, all of them in it.
    pub fn bytes(&self, params: Params) -> Bytes {
        Bytes((params.as_f64() * self.bytes_per_parameter()).round() as u64)
    }

    /// Bytes of one parameter that is in it.
    pub fn bytes_per_parameter(&self) -> f64 {
        match self {
            Self::Format(format) => format.bits() / 8.0,
            Self::PerParameter(bytes) => *bytes,
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(format) => f.pad(format.name),
            Self::PerParameter(bytes) => write!(f, "{bytes} B per parameter"),
        }
    }
}

impl FromStr for Storage {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<Self, Diagnostic> {
        Format::find(text).map(Self::Format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a weight by hand: elements, then scales and zeros of their groups.
    #[test]
    fn bits_of_a_weight() {
        for (name, bits) in [
            ("bf16", 16.0),
            ("bfloat16", 16.0),
            ("int8", 8.0),
            ("fp8_block", 8.0 + 32.0 / 16_384.0),
            ("nf4", 4.0 + 32.0 / 64.0),
            ("nf4-dq", 4.0 + 8.0 / 64.0 + 32.0 / 16_384.0),
            ("awq", 4.0 + 16.0 / 128.0 + 4.0 / 128.0),
            ("gptq", 4.0 + 16.0 / 128.0 + 4.0 / 128.0),
            ("mxfp4", 4.25),
            ("nvfp4", 4.5),
            ("q4_k", 4.5),
            ("Q8_0", 8.5),
            ("iq4_nl", 4.5),
        ] {
            assert!((Format::find(name).unwrap().bits() - bits).abs() < 1e-12, "{name}");
        }
        assert!(formats().len() > 35);
        let problem = Format::find("nf5").unwrap_err();
        assert!(problem.message.contains("`nf5` is no number format") && problem.help[0].contains("nf4"), "{problem}");
    }

    /// As the configs of published models state it.
    #[test]
    fn formats_that_configs_state() {
        for (text, name) in [
            (r#"{"quant_method": "gptq", "bits": 4, "group_size": 128}"#, Some("gptq")),
            (r#"{"quant_method": "awq", "bits": 4, "group_size": 64}"#, Some("awq-4bit-g64")),
            (r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#, Some("fp8-block")),
            (r#"{"quant_method": "mxfp4"}"#, Some("mxfp4")),
            (r#"{"quant_method": "bitsandbytes", "load_in_8bit": true}"#, Some("int8")),
            (
                r#"{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
                    "bnb_4bit_use_double_quant": true}"#,
                Some("nf4-dq"),
            ),
            (
                r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0":
                    {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}}"#,
                Some("int4-g32"),
            ),
            (r#"{"quant_method": "gptq", "bits": 3, "group_size": 128}"#, None),
            (r#"{"quant_method": "quip"}"#, None),
        ] {
            let whole = format!(r#"{{"model_type": "llama", "quantization_config": {text}}}"#);
            let (config, _) = Config::parse("config.json", whole.as_bytes());
            let found = stated(&config.unwrap()).unwrap().ok().map(|format| format.name);
            assert_eq!(found, name, "{text}");
        }
        let (plain, _) = Config::parse("config.json", br#"{"model_type": "llama"}"#);
        assert!(stated(&plain.unwrap()).is_none());
    }

    /// What training packs weights in takes the bytes that the table says.
    #[test]
    fn packed_weights_agree() {
        for packed in tensor::packed::FORMATS {
            for shape in [[4096, 11_008], [256, 512]] {
                let param = ParamInfo {
                    name: String::new(),
                    shape: shape.to_vec(),
                    elements: shape.iter().product(),
                    kind: ParamKind::Expert { experts: 1, top_k: 1 },
                    tied: Vec::new(),
                    trainable: false,
                    replicated: false,
                    share: nn::Share::Whole,
                    packed_bytes: None,
                };
                let three = ParamInfo { shape: vec![1, shape[0], shape[1]], ..param };
                let format = Format::find(packed.name).unwrap();
                assert_eq!(format.bytes_of(&three), packed.bytes(shape[0], shape[1]), "{}", packed.name);
            }
        }
    }

    /// One matrix of 4096 x 11008 in each format, by hand.
    #[test]
    fn bytes_of_a_matrix() {
        let param = |kind, shape: &[u64]| ParamInfo {
            name: String::new(),
            shape: shape.to_vec(),
            elements: shape.iter().product(),
            kind,
            tied: Vec::new(),
            trainable: true,
            replicated: false,
            share: nn::Share::Whole,
            packed_bytes: None,
        };
        let n = 4096 * 11_008;
        let matrix = param(ParamKind::Matrix, &[4096, 11_008]);
        for (name, bytes) in [
            ("bf16", 2 * n),
            ("int8", n + 4 * 4096),
            ("fp8", n + 4),
            ("fp8-block", n + 32 * 86 * 4),
            ("nf4", n / 2 + n / 64 * 4),
            ("nf4-dq", n / 2 + n / 64 + n / 16_384 * 4 + 4),
            ("gptq", n / 2 + n / 128 * 2 + n / 256 + 4 * 11_008),
            ("q4_k", n / 256 * 144),
            // Only of experts.
            ("mxfp4", 2 * n),
        ] {
            assert_eq!(Format::find(name).unwrap().bytes_of(&matrix), bytes, "{name}");
        }
        let embedding = param(ParamKind::Embedding, &[32_000, 4096]);
        assert_eq!(Format::find("nf4").unwrap().bytes_of(&embedding), 2 * 32_000 * 4096);
        assert_eq!(Format::find("q4_k").unwrap().bytes_of(&embedding), 32_000 * 4096 / 256 * 144);
        let experts = param(ParamKind::Expert { experts: 32, top_k: 4 }, &[32, 5760, 2880]);
        assert_eq!(Format::find("mxfp4").unwrap().bytes_of(&experts), 32 * 5760 * 2880 / 32 * 17);
    }
}
