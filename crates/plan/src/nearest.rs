//! Names that look like a mistyped one.

use nn::config::edit_distance;

/// Most names proposed.
const MOST: usize = 3;

/// The candidates of which at most half the letters are wrong, nearest first.
pub fn nearest<'a>(query: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let query = query.to_lowercase();
    let length = query.chars().count();
    let mut near: Vec<(usize, &str)> = candidates
        .into_iter()
        .map(|name| {
            let name_lower = name.to_lowercase();
            // `lama-3` is one letter from the beginning of `llama-3.1-8b`.
            let beginning: String = name_lower.chars().take(length + 1).collect();
            let distance = edit_distance(&query, &name_lower).min(edit_distance(&query, &beginning) + 1);
            // What somebody typed the beginning of is near whatever its length.
            (if length >= 2 && name.starts_with(&query) { 1 } else { distance }, name)
        })
        .filter(|(distance, _)| distance * 2 <= length)
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names() {
        let names = ["fp32", "bf16-master", "bf16-mixed", "bf16-pure"];
        assert_eq!(nearest("bf16_mixd", names), ["bf16-mixed"]);
        assert_eq!(nearest("bf16", names), ["bf16-master", "bf16-mixed", "bf16-pure"]);
        assert_eq!(nearest("completely different", names), [""; 0]);
        assert_eq!(nearest("", names), [""; 0]);
        assert_eq!(nearest("4", ["0", "1"]), [""; 0]);
        assert_eq!(nearest("6m", ["6n", "6nd"]), ["6n"]);
        assert_eq!(nearest("lama-3", ["llama-3.1-8b", "qwen3-4b"]), ["llama-3.1-8b"]);
    }
}
