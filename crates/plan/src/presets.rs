//! Models by name: configurations of well-known releases, compiled in.
//!
//! `data/models/SOURCES.csv` says where each came from.

/// Name and text of a `config.json`.
macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../data/models/", $name, ".json")))),*]
    };
}

/// All presets by name, in order.
pub const PRESETS: &[(&str, &str)] = presets![
    "bloom-560m",
    "codellama-34b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "distilgpt2",
    "falcon-180b",
    "falcon-7b",
    "gemma-2-9b",
    "gemma-2b",
    "gemma-3-1b",
    "gpt-oss-120b",
    "gpt2",
    "gpt2-medium",
    "gpt2-xl",
    "kimi-k2",
    "llama-2-70b",
    "llama-2-7b",
    "llama-3.1-405b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-3.2-3b",
    "llama-3.3-70b",
    "mistral-7b",
    "mistral-large-2",
    "mixtral-8x22b",
    "mixtral-8x7b",
    "olmo-2-13b",
    "olmo-2-32b",
    "opt-6.7b",
    "opt-66b",
    "phi-3.5-mini",
    "pythia-1.4b",
    "pythia-160m",
    "qwen2-0.5b",
    "qwen2-7b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen3-0.6b",
    "qwen3-235b-a22b",
    "qwen3-4b",
    "qwen3-8b",
    "smollm2-135m",
    "smollm2-360m",
];

/// The text of a preset's config; case and underscores do not matter.
pub fn find(name: &str) -> Option<(&'static str, &'static str)> {
    let wanted = name.to_lowercase().replace('_', "-");
    PRESETS.iter().find(|(known, _)| *known == wanted).copied()
}

/// Names of all presets.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_found() {
        let all: Vec<_> = names().collect();
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(find("Llama_3.1_8B").map(|(name, _)| name), Some("llama-3.1-8b"));
        assert!(find("llama-9").is_none());
    }

    #[test]
    fn every_preset_has_a_source() {
        let sources = include_str!("../../../data/models/SOURCES.csv");
        for name in names() {
            assert!(sources.lines().any(|line| line.starts_with(&format!("{name},"))), "{name}");
        }
    }
}
