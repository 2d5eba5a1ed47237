//! Names that were probably meant: spelling distance between keys and between model types.

use super::Config;

/// The names in `known` that `name` may be a misspelling of, closest first, at most three.
///
/// ```
/// use napkin_nn::config::near_matches;
/// assert_eq!(near_matches("Qwen-2", &["qwen2", "gpt2", "llama"]), ["qwen2"]);
/// assert_eq!(near_matches("num_key_value_head", &["num_key_value_heads", "num_heads"]), ["num_key_value_heads"]);
/// ```
pub fn near_matches(name: &str, known: &[&str]) -> Vec<String> {
    // Longer names are text in the wrong place, and comparing them is quadratic in their length.
    if name.len() > 100 {
        return Vec::new();
    }
    let wanted = letters(name);
    let limit = (wanted.len() / 5).max(1);
    let mut found: Vec<(usize, &str)> = known
        .iter()
        .filter(|candidate| **candidate != name)
        // Half as long again is too far for any limit; saves comparing each key of a large file.
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= name.len() / 2 + 1)
        .map(|candidate| (edit_distance(&wanted, &letters(candidate)), *candidate))
        .filter(|(distance, candidate)| *distance <= limit && candidate.len() > *distance)
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(3).map(|(_, candidate)| candidate.to_owned()).collect()
}

/// Whether the configuration has the five keys from which a Llama-like decoder can be built.
///
/// Offered to the user as a way on for a model type that is not known; never taken without saying so.
pub fn looks_like_llama(config: &Config) -> bool {
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
        .iter()
        .all(|key| config.effective().get(key).is_some_and(|value| !value.is_null()))
}

/// Lower-case letters and digits only: `-`, `_` and case are not what a misspelling is about.
fn letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Insertions, deletions, replacements and swaps of neighbouring letters that turn `a` into `b`.
///
/// ```
/// use napkin_nn::config::edit_distance;
/// assert_eq!(edit_distance("lama", "llama"), 1);
/// assert_eq!(edit_distance("h010", "h100"), 1);
/// ```
pub fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}
