//! What the code of a source does that its rows do not say: rows of `data/published/recipes.csv`.

use std::sync::OnceLock;

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Implementation profile.
    Profile,
    /// Whether the head is the token table.
    Head,
    /// What is recomputed, where the row does not say it.
    Recompute,
    /// The optimizer, where the row names none: how `AdamW` runs.
    Optimizer,
    /// How the optimizer that the row names runs.
    Kernels,
    /// What products with packed weights keep.
    Packed,
    /// How norms run.
    Norms,
    /// How the loss runs.
    Loss,
    /// Buckets of gradients of replicas that share nothing.
    Buckets,
    /// How updated parameters are gathered.
    Gather,
    /// Rows of the token table are filled up to a multiple of so many for each rank of a matrix.
    Vocabulary,
    /// How ranks share a sequence.
    Context,
    /// How rows are spread over experts.
    Experts,
    /// In which order a pipeline works.
    Schedule,
    /// Which blocks a stage of a pipeline has; none: as many as every other.
    Stages,
    /// Whether what was gathered for maps is kept.
    Gathered,
    /// Buffers, by name, in which what ranks gather lies.
    GatherBuffers,
    /// When blocks that collectives used are free again.
    Streams,
    /// The engine, where its ways are known.
    Engine,
    /// Bytes of buffers of one communicator, where the source's nodes take more than the usual.
    Communicators,
    /// By what part predictions of what is reserved are off.
    Error,
    /// Kind of row of which too little is known.
    Unknown,
}

impl Of {
    const ALL: [Self; 22] = [
        Self::Profile,
        Self::Head,
        Self::Recompute,
        Self::Optimizer,
        Self::Kernels,
        Self::Packed,
        Self::Norms,
        Self::Loss,
        Self::Buckets,
        Self::Gather,
        Self::Vocabulary,
        Self::Context,
        Self::Experts,
        Self::Schedule,
        Self::Stages,
        Self::Gathered,
        Self::GatherBuffers,
        Self::Streams,
        Self::Engine,
        Self::Communicators,
        Self::Error,
        Self::Unknown,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Head => "head",
            Self::Recompute => "recompute",
            Self::Optimizer => "optimizer",
            Self::Kernels => "kernels",
            Self::Packed => "packed",
            Self::Norms => "norms",
            Self::Loss => "loss",
            Self::Buckets => "buckets",
            Self::Gather => "gather",
            Self::Vocabulary => "vocabulary",
            Self::Context => "context",
            Self::Experts => "experts",
            Self::Schedule => "schedule",
            Self::Stages => "stages",
            Self::Gathered => "gathered",
            Self::GatherBuffers => "gather buffers",
            Self::Streams => "streams",
            Self::Engine => "engine",
            Self::Communicators => "communicators",
            Self::Error => "error",
            Self::Unknown => "unknown",
        }
    }
}

/// A rule of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whose.
    pub source_id: &'static str,
    /// About what.
    pub of: Of,
    /// What it is.
    pub value: &'static str,
    /// Where that stands.
    pub source: &'static str,
    /// The words in which it is reported.
    pub reason: &'static str,
}

/// All rules.
pub fn table() -> &'static [Rule] {
    static TABLE: OnceLock<Vec<Rule>> = OnceLock::new();
    TABLE.get_or_init(|| lines().filter_map(rule).collect())
}

fn lines() -> impl Iterator<Item = &'static str> {
    let text = include_str!("../../../../data/published/recipes.csv");
    text.lines().filter(|line| !line.starts_with('#')).skip(1)
}

fn rule(line: &'static str) -> Option<Rule> {
    let fields: Vec<&'static str> = line.splitn(5, ',').collect();
    let [source_id, of, value, source, reason] = fields[..] else { return None };
    let of = Of::ALL.into_iter().find(|one| one.name() == of)?;
    Some(Rule { source_id, of, value, source, reason })
}

/// The rule of a source, if it has one.
pub fn find(source_id: &str, of: Of) -> Option<&'static Rule> {
    table().iter().find(|rule| rule.source_id == source_id && rule.of == of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nn::Profile;

    #[test]
    fn every_rule_is_read_and_has_a_source() {
        assert_eq!(table().len(), lines().count());
        let sources = include_str!("../../../../data/published/SOURCES.csv");
        for rule in table() {
            assert!(sources.lines().any(|line| line.split(',').next() == Some(rule.source_id)), "{rule:?}");
            assert!(rule.source.contains('/') && rule.source.len() > 20 && rule.reason.len() > 20, "{rule:?}");
            let known: &[&str] = match rule.of {
                Of::Profile => &[Profile::Fused.name(), Profile::HfSdpa.name(), Profile::HfEager.name()],
                Of::Head => &["untied"],
                Of::Recompute => &["none", "full", "selective"],
                Of::Optimizer | Of::Kernels => &["fused", "foreach"],
                Of::Packed => &["keep inputs"],
                Of::Norms => &["fused"],
                Of::Loss => &["parallel"],
                Of::Buckets => &["2 1048576 26214400"],
                Of::Gather => &["copies"],
                Of::Vocabulary => &["128"],
                Of::Context => &["all-to-all"],
                Of::Experts => &["balanced"],
                Of::Schedule => &["1f1b"],
                Of::Stages => &["by cost"],
                Of::Engine => &["megatron", "nanotron"],
                Of::Gathered => &["again"],
                Of::GatherBuffers => &["allgather allgather2"],
                Of::Streams => &["recorded"],
                Of::Unknown => &["full_ft"],
                Of::Communicators | Of::Error => &[],
            };
            let number = matches!(rule.of, Of::Communicators | Of::Error);
            assert!(if number { rule.value.parse::<f64>().is_ok() } else { known.contains(&rule.value) }, "{rule:?}");
            let same = table().iter().filter(|other| other.source_id == rule.source_id && other.of == rule.of);
            assert_eq!(same.count(), 1, "{rule:?}");
        }
    }
}
