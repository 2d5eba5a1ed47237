//! What of a model is trained, what is added to it, and how the rest is stored.
//!
//! This is no property of a config: whoever trains the model says it. It stands in the spec because it decides which
//! parameters there are.

use std::fmt;
use std::str::FromStr;
use tensor::DType;
use tensor::packed::Format;

/// How a model is fine-tuned. The default trains everything.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Tuning {
    /// Parameters that are not trained. With adapters, none of the model's own are, but for those of `trained`.
    pub frozen: Vec<Pattern>,
    /// If there are any, only these are trained of the model's own parameters.
    pub trained: Vec<Pattern>,
    /// Low-rank adapters.
    pub lora: Option<Lora>,
    /// How the frozen weights of linear maps in blocks are stored.
    pub packed: Option<&'static Format>,
    /// Whether products with packed weights keep their inputs though nothing asks for them, as those of bitsandbytes did
    /// before 0.43.2.
    pub packed_keeps_inputs: bool,
    /// Parameters that are trained whole beside adapters, in copies: the originals stay, frozen, and so does their dtype
    /// (`modules_to_save` of PEFT).
    pub copied: Vec<Pattern>,
    /// dtype of what is frozen and not packed; `None`: the 16 bits of a mixed recipe where there are adapters, else what
    /// the recipe gives parameters.
    pub frozen_dtype: Option<DType>,
}

/// Low-rank adapters beside linear maps: `y = x Wᵀ + (alpha / rank) (dropout(x) Aᵀ) Bᵀ`, only A and B trained.
///
/// Source: Hu et al. 2021, arXiv:2106.09685.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rank.
    pub rank: u64,
    /// Scale, before the division by the rank.
    pub alpha: f64,
    /// Dropout in front of A.
    pub dropout: f64,
    /// Linear maps that have one.
    pub targets: Targets,
    /// Stacks of experts that have one for each expert.
    pub stacks: Vec<StackTarget>,
    /// Whether the rows of each adapted weight are normalised and multiplied with magnitudes that are trained beside (`DoRA`).
    ///
    /// Source: Liu et al. 2024, arXiv:2402.09353.
    pub magnitudes: bool,
}

impl Lora {
    /// Beside all linear maps of blocks, scaled by twice the rank, without dropout.
    pub fn of_rank(rank: u64) -> Self {
        let (alpha, targets) = (2.0 * rank as f64, Targets::All);
        Self { rank, alpha, dropout: 0.0, targets, stacks: Vec::new(), magnitudes: false }
    }
}

/// Which linear maps have an adapter.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// All those of blocks.
    All,
    /// Those that one of these names.
    Named(Vec<Pattern>),
}

impl Targets {
    /// The names; none where all are meant.
    pub fn names(&self) -> &[Pattern] {
        match self {
            Self::All => &[],
            Self::Named(names) => names,
        }
    }

    /// Whether the linear map at `path` is one of them.
    pub fn has(&self, path: &str) -> bool {
        *self == Self::All || self.names().iter().any(|name| name.matches(path))
    }
}

/// Names stacks of experts, `gate_up_proj`, and perhaps a rank of their own, `gate_up_proj:32`. The scale is that of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackTarget {
    /// The stacks.
    pub name: Pattern,
    /// Rank of each expert's adapter, if it is not [`Lora::rank`].
    pub rank: Option<u64>,
}

impl fmt::Display for StackTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "{}:{rank}", self.name),
            None => self.name.fmt(f),
        }
    }
}

impl FromStr for StackTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, rank)) = text.split_once(':') else { return Ok(Self { name: text.parse()?, rank: None }) };
        match rank.trim().parse() {
            Ok(rank) if rank > 0 => Ok(Self { name: name.parse()?, rank: Some(rank) }),
            _ => Err(format!("`{text}`: a name, or a name and a rank of at least 1, such as gate_up_proj:32")),
        }
    }
}

/// Names some parameters or modules: parts separated by dots that follow each other somewhere in a path. `*` stands for
/// any letters of a part, `a-b` for the numbers from a to b.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Names everything.
    pub fn everything() -> Self {
        Self("*".to_owned())
    }

    /// Whether it names the parameter or module at `path`.
    pub fn matches(&self, path: &str) -> bool {
        let parts: Vec<&str> = self.0.split('.').collect();
        let path: Vec<&str> = path.split('.').collect();
        path.windows(parts.len()).any(|run| run.iter().zip(&parts).all(|(part, pattern)| fits(pattern, part)))
    }

    /// Whether it tells one block from another.
    pub fn picks_blocks(&self) -> bool {
        self.0.split('.').any(|part| part.starts_with(|c: char| c.is_ascii_digit()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() || text.split('.').any(str::is_empty) {
            return Err(format!("`{text}` names nothing: parts of a name are separated by single dots"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Whether one part of a path is what one part of a pattern says.
fn fits(pattern: &str, part: &str) -> bool {
    if let Some((first, last)) = pattern.split_once('-')
        && let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>())
    {
        return part.parse::<u64>().is_ok_and(|number| (first..=last).contains(&number));
    }
    let mut pieces = pattern.split('*');
    let Some(rest) = part.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let mut rest = rest;
    let mut ends = pattern.contains('*');
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
        ends = piece.is_empty();
    }
    // What a last `*` stands for is free; a last piece of letters must be the end, wherever it was found first.
    ends || rest.is_empty() || (pattern.contains('*') && part.ends_with(pattern.rsplit('*').next().unwrap_or_default()))
}

impl Tuning {
    /// Everything is trained.
    pub const PLAIN: Self = Self {
        frozen: Vec::new(),
        trained: Vec::new(),
        copied: Vec::new(),
        lora: None,
        packed: None,
        packed_keeps_inputs: false,
        frozen_dtype: None,
    };

    /// Whether everything is trained as the config says it.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the parameter of the model with this name is trained.
    pub fn trains(&self, name: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|p| p.matches(name));
        let only = self.lora.is_some() || self.packed.is_some() || !self.trained.is_empty();
        if only { any(&self.trained) && !any(&self.frozen) || any(&self.copied) } else { !any(&self.frozen) }
    }

    /// Whether the parameter with this name is trained in a copy.
    pub fn copies(&self, name: &str) -> bool {
        self.copied.iter().any(|pattern| pattern.matches(name))
    }

    /// The adapter of the linear map at this path of a module.
    pub fn adapter(&self, path: &str) -> Option<&Lora> {
        self.lora.as_ref().filter(|lora| lora.targets.has(path))
    }

    /// Rank and scale of the adapters of the experts that the parameter with this name holds in a stack.
    pub fn stack_adapter(&self, name: &str) -> Option<(u64, f64)> {
        let lora = self.lora.as_ref()?;
        let stack = lora.stacks.iter().find(|stack| stack.name.matches(name))?;
        Some((stack.rank.unwrap_or(lora.rank), lora.alpha / lora.rank as f64))
    }

    /// Whether blocks that are described alike are trained alike.
    pub fn is_uniform(&self) -> bool {
        let targets = self
            .lora
            .iter()
            .flat_map(|lora| lora.targets.names().iter().chain(lora.stacks.iter().map(|stack| &stack.name)));
        !self.frozen.iter().chain(&self.trained).chain(&self.copied).chain(targets).any(Pattern::picks_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_runs_of_a_path() {
        let path = "model.layers.12.self_attn.q_proj.weight";
        for (pattern, yes) in [
            ("q_proj", true),
            ("self_attn.q_proj", true),
            ("layers.12", true),
            ("layers.*.self_attn", true),
            ("layers.3-12", true),
            ("layers.13-20", false),
            ("*_proj", true),
            ("q_*", true),
            ("*attn", true),
            ("*", true),
            ("q", false),
            ("proj", false),
            ("*_pro", false),
            ("model.self_attn", false),
            ("model.layers.12.self_attn.q_proj.weight.more", false),
        ] {
            assert_eq!(pattern.parse::<Pattern>().unwrap().matches(path), yes, "{pattern}");
        }
        assert!("a*b".parse::<Pattern>().unwrap().matches("abbcb"));
        for wrong in ["", " ", "a..b", ".a", "a."] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
        for wrong in ["", "a:", "a:0", ":4", "a:x", "a:4:4"] {
            assert!(wrong.parse::<StackTarget>().is_err(), "{wrong}");
        }
        assert_eq!("experts.up_proj:8".parse::<StackTarget>().unwrap().to_string(), "experts.up_proj:8");
    }

    #[test]
    fn what_is_trained() {
        let pattern = |text: &str| vec![text.parse::<Pattern>().unwrap()];
        let all = Tuning::default();
        assert!(all.trains("model.norm.weight") && all.is_plain() && all.is_uniform());
        let but_one = Tuning { frozen: pattern("embed_tokens"), ..Tuning::default() };
        assert!(!but_one.trains("model.embed_tokens.weight") && but_one.trains("model.norm.weight"));
        let only = Tuning { trained: pattern("layers.0-3"), ..Tuning::default() };
        assert!(only.trains("model.layers.3.mlp.up_proj.weight") && !only.trains("model.norm.weight"));
        assert!(!only.is_uniform());
        let lora = Lora {
            targets: Targets::Named(pattern("q_proj")),
            stacks: vec!["up_proj:4".parse().unwrap()],
            ..Lora::of_rank(8)
        };
        let lora = Tuning { lora: Some(lora), trained: pattern("lm_head"), ..Tuning::default() };
        assert!(lora.trains("lm_head.weight") && !lora.trains("model.norm.weight"));
        assert!(lora.adapter("model.layers.0.self_attn.q_proj").is_some());
        assert!(lora.adapter("model.layers.0.self_attn.k_proj").is_none());
        assert_eq!(lora.stack_adapter("model.layers.0.mlp.experts.up_proj"), Some((4, 2.0)));
        assert!(lora.stack_adapter("model.layers.0.mlp.experts.down_proj").is_none());
    }
}
