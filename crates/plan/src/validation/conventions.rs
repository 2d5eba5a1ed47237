//! How sources count the FLOP of a token. Each states it in words of its own; here they are a few terms, and the words
//! are matched to them. What matches nothing is not judged.

use super::row::Row;
use crate::work::Convention as Traced;

/// Which weights are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Those a token is multiplied with: no token table that is only looked up, head included, experts that are chosen.
    Multiplied,
    /// The same without the head.
    Blocks,
    /// All parameters, each once: token and position tables too.
    Stored,
    /// The same, three digits of it; a tied head that stands on another stage counts again, norms count on each device.
    StoredThreeDigits,
    /// As multiplied, with experts of two matrices where they have three.
    TwoMatrixExperts,
    /// As multiplied, heads as wide as the stream divided by their number.
    NarrowHeads,
}

/// Which pairs of positions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// All.
    Full,
    /// Half of them, in windows too.
    Half,
    /// Those that the mask leaves.
    Masked,
    /// None.
    None,
}

/// How many forward passes a step is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// Forward and the gradients of inputs: frozen weights.
    Two,
    /// Forward and backward.
    Three,
    /// Forward, again, and backward.
    Four,
    /// Four where the row recomputes everything, else three.
    AsRecomputed,
}

impl Passes {
    /// The number, for a row.
    pub fn of(self, row: &Row) -> f64 {
        match self {
            Self::Two => 2.0,
            Self::Three => 3.0,
            Self::Four => 4.0,
            Self::AsRecomputed => 3.0 + f64::from(u8::from(row.recompute == "full")),
        }
    }
}

/// FLOP of a token as a sum over weights and pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Weights.
    pub weights: Weights,
    /// Pairs.
    pub pairs: Pairs,
    /// Times forward, head apart.
    pub passes: Passes,
    /// Times forward of the head.
    pub head: Passes,
}

impl Terms {
    const fn new(weights: Weights, pairs: Pairs, passes: Passes) -> Self {
        Self { weights, pairs, passes, head: passes }
    }

    /// The count of the product that is exactly this one.
    pub fn traced(self) -> Option<Traced> {
        if self.weights != Weights::Multiplied || self.passes != Passes::Three || self.head != Passes::Three {
            return None;
        }
        match self.pairs {
            Pairs::Full => Some(Traced::Full),
            Pairs::Masked => Some(Traced::Causal),
            _ => None,
        }
    }
}

/// A way of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// By terms.
    Terms(Terms),
    /// The same; where the source does not say which of its versions it used, the nearer one is taken, and named.
    Either([Terms; 2]),
    /// So many for each parameter that the row prints; nothing else.
    PerParameter {
        /// Where everything is recomputed.
        recomputed: u64,
        /// Else.
        plain: u64,
    },
    /// By terms, of a model whose feed-forward parts are all dense and this wide.
    DenseWidth(Terms, u64),
}

/// A named way of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convention {
    /// Its name.
    pub name: &'static str,
    /// The count.
    pub count: Count,
    /// Whether layers for multi-token prediction are trained and counted where the model has them.
    pub predictors: bool,
}

use Count::{DenseWidth, Either, PerParameter};
use Pairs::{Full, Half, Masked, None as NoPairs};
use Passes::{AsRecomputed, Four, Three, Two};
use Weights::{Blocks, Multiplied, NarrowHeads, Stored, StoredThreeDigits, TwoMatrixExperts};

const fn terms(weights: Weights, pairs: Pairs, passes: Passes) -> Count {
    Count::Terms(Terms::new(weights, pairs, passes))
}

const FULL: Terms = Terms::new(Multiplied, Full, Three);
const CAUSAL: Terms = Terms::new(Multiplied, Masked, Three);

/// The conventions by how their text begins, in small letters; the first that fits is taken.
const BY_TEXT: &[(&str, &str, Count)] = &[
    ("sc21_96", "SC21, 4x forward, full attention", terms(Multiplied, Full, Four)),
    ("sc21 formula x3/4", "SC21, 3x forward, full attention", Count::Terms(FULL)),
    ("bigscience_8n", "8N of a rounded N, 6N without recomputation", PerParameter { recomputed: 8, plain: 6 }),
    ("8*n with n=12*l*h^2", "8N, blocks only", terms(Blocks, NoPairs, Four)),
    ("nv_bridge_causal_half", "Megatron Bridge, 6N + causal attention", Count::Terms(CAUSAL)),
    ("nemo/megatron tflops_per_gpu counter", "Megatron Bridge, 6N + causal attention", Count::Terms(CAUSAL)),
    ("6*(n incl. logits)+6*l*d_attn*s causal", "Megatron Bridge, 6N + causal attention", Count::Terms(CAUSAL)),
    ("4*(n incl. logits), no attention", "4N, no attention", terms(Multiplied, NoPairs, Two)),
    ("6*(n incl. logits), no attention", "6N, no attention", terms(Multiplied, NoPairs, Three)),
    ("about 4n + causal attention x2/3", "4N + causal attention, 2x forward", terms(Multiplied, Masked, Two)),
    ("gpt-oss counter <=26.04", "GPT-OSS counter to 26.04", terms(TwoMatrixExperts, Half, Three)),
    ("gpt-oss counter >=26.06", "GPT-OSS counter from 26.06", Count::Terms(CAUSAL)),
    ("nv_nemo_full", "NeMo, 6N + full attention", Count::Terms(FULL)),
    ("dgxc:", "DGX Cloud, 6N + full attention", Count::Terms(FULL)),
    ("dgxc grok1:", "DGX Cloud, 6N + causal attention", Count::Terms(CAUSAL)),
    ("nemo automodel calculator", "NeMo AutoModel calculators", Count::Terms(CAUSAL)),
    ("korthikanti", "3x forward, full attention", Count::Terms(FULL)),
    ("3x forward, full attention", "3x forward, full attention", Count::Terms(FULL)),
    ("mosaic:", "6N of all parameters + full attention", terms(Stored, Full, Three)),
    ("torchtitan apr-2024: 6*n_total", "6N of all parameters + full attention", terms(Stored, Full, Three)),
    ("torchtitan: 6*n(excl. input emb)", "torchtitan, 6N + full attention", Count::Terms(FULL)),
    ("ibm:", "PaLM, 6N of all parameters + full attention", terms(Stored, Full, Three)),
    ("palm", "PaLM, 6N of all parameters + full attention", terms(Stored, Full, Three)),
    ("tflops_figure/312; flops=6*(matmul params", "3x forward, full attention", Count::Terms(FULL)),
    ("matmul sum, full attention", "products of the step, full attention", Count::Terms(FULL)),
    ("levanter: matmul sum, full attention", "products of the step, full attention", Count::Terms(FULL)),
    ("6 flops per parameter", "6 per parameter of the label", PerParameter { recomputed: 6, plain: 6 }),
    ("3 flops per parameter", "3 per parameter of the label", PerParameter { recomputed: 3, plain: 3 }),
    (
        "internevo:",
        "InternEvo, 3x or 4x forward, head 3x",
        Count::Terms(Terms { head: Three, ..Terms::new(Multiplied, Full, AsRecomputed) }),
    ),
    ("maxtext pre-pr1988", "MaxText before the causal half", Count::Terms(FULL)),
    ("maxtext full attention", "MaxText before the causal half", Count::Terms(FULL)),
    ("maxtext", "MaxText", Either([FULL, CAUSAL])),
    ("nanotron_chart:", "nanotron, 6N of a rounded N + full attention", terms(StoredThreeDigits, Full, Three)),
];

/// Texts that state no formula.
const NO_FORMULA: &[&str] =
    &["none", "not stated", "model tflops, formula not stated", "nanotron model flops (formula not stated"];

impl Convention {
    /// The convention of a row.
    ///
    /// # Errors
    /// Why there is none.
    pub fn of(row: &Row) -> Result<Self, String> {
        let text = row.convention.trim().to_lowercase();
        if text.is_empty() || NO_FORMULA.iter().any(|none| text.starts_with(none)) {
            return Err("the source does not say how it counts".to_owned());
        }
        let label = super::architecture::plain(&row.model);
        if text.starts_with("nemo automodel calculator") && label.starts_with("gptoss") {
            // Its config has no `kv_channels`, and the calculator takes hidden size / heads for it.
            let count = terms(NarrowHeads, Masked, Three);
            return Ok(Self { name: "NeMo AutoModel calculator of GPT-OSS", count, predictors: false });
        }
        if let Some(count) = dense_width(&text) {
            return Ok(Self { name: "DGX Cloud, dense layers, causal attention", count, predictors: false });
        }
        if text.contains("flops per 8192-token sequence") {
            return Err("the source states the number itself, no formula".to_owned());
        }
        let found = BY_TEXT.iter().find(|(begin, _, _)| text.starts_with(begin));
        let (begin, name, count) = found
            .ok_or_else(|| format!("convention not known: {}", row.convention.chars().take(80).collect::<String>()))?;
        let megatron = ["nv_bridge_causal_half", "nemo/megatron tflops_per_gpu counter"].contains(begin);
        let without = row.model.to_lowercase().contains("w/o mtp");
        Ok(Self { name, count: *count, predictors: megatron && !without && label.starts_with("deepseekv3") })
    }
}

/// `dgxc llama4: s/(2h) causal attention, FFN counted as 16384 gated ... on every layer`.
fn dense_width(text: &str) -> Option<Count> {
    let rest = text.strip_prefix("dgxc llama4:")?.split_once("ffn counted as ")?.1;
    let width = rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(DenseWidth(CAUSAL, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(convention: &str, model: &str) -> Result<Convention, String> {
        Convention::of(&Row { convention: convention.to_owned(), model: model.to_owned(), ..Row::default() })
    }

    #[test]
    fn words_become_terms() {
        let bridge = "nv_bridge_causal_half: 6*matmul params (input emb excluded, logits incl.) + 6*L*d_attn*s";
        assert_eq!(of(bridge, "LLAMA3_8B").unwrap().count, Count::Terms(CAUSAL));
        assert!(!of(bridge, "LLAMA3_8B").unwrap().predictors);
        assert!(of(bridge, "DeepSeekV3").unwrap().predictors);
        assert!(!of(bridge, "DeepSeekV3 (w/o MTP)").unwrap().predictors);
        let llama4 = "dgxc llama4: s/(2h) causal attention, FFN counted as 16384 gated top-1 on every layer";
        assert_eq!(of(llama4, "x").unwrap().count, DenseWidth(CAUSAL, 16_384));
        assert_eq!(of("SC21 formula x3/4 (3x forward)", "x").unwrap().count, Count::Terms(FULL));
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        for (text, why) in [
            ("", "does not say"),
            ("none reported (TPS only)", "does not say"),
            ("dgxc llama4", "not known: dgxc llama4"),
            ("my own count", "not known: my own count"),
            ("dgxc nemotron-h: 2.816e15 FLOPs per 8192-token sequence", "the number itself"),
        ] {
            let problem = of(text, "x").unwrap_err();
            assert!(problem.contains(why), "{text}: {problem}");
        }
    }
}
