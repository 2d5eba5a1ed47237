//! How wide text is on a terminal.

/// Terminal columns of a text.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(units::columns).sum()
}

/// The text with spaces behind it, `width` columns in all.
pub(crate) fn left(text: &str, width: usize) -> String {
    format!("{text}{:1$}", "", width.saturating_sub(columns(text)))
}

/// The text with spaces before it, `width` columns in all.
pub(crate) fn right(text: &str, width: usize) -> String {
    format!("{:1$}{text}", "", width.saturating_sub(columns(text)))
}

/// The words of a text on lines of at most `width` columns; a longer word stands alone, and a number keeps its unit.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut open = String::new();
        // Runs of spaces inside a line are layout and stay.
        let mut words = line.split_inclusive(' ').peekable();
        while let Some(word) = words.next() {
            let mut word = word.to_owned();
            while let Some(unit) = words.next_if(|next| belongs_to(&word, next)) {
                word.push_str(unit);
            }
            if !open.is_empty() && columns(&open) + columns(word.trim_end()) > width {
                lines.push(open.trim_end().to_owned());
                open = String::new();
                // Spaces between two words are the break itself.
                if word.trim().is_empty() {
                    continue;
                }
            }
            open.push_str(&word);
        }
        lines.push(open.trim_end().to_owned());
    }
    lines
}

/// Units that stand for themselves.
const UNITS: [&str; 16] =
    ["%", "days", "s", "ms", "µs", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "K", "M", "T", "P", "params"];

/// True if `next` is the unit of the number that `word` ends with, or the value of the flag that it is.
fn belongs_to(word: &str, next: &str) -> bool {
    if word.starts_with("--")
        && word.trim_end().trim_start_matches("--").bytes().all(|c| c.is_ascii_lowercase() || c == b'-')
    {
        return true;
    }
    let unit = next.trim_end().trim_end_matches([',', ';', ':', ')', '.']);
    let known = UNITS.contains(&unit)
        || ["FLOP", "B", "B/s", "FLOP/s", "FLOP/B"].iter().any(|base| {
            unit.strip_suffix(base).is_some_and(|prefix| ["", "k", "M", "G", "T", "P", "E"].contains(&prefix))
        });
    known && word.ends_with(' ') && word.trim_end().ends_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_and_narrow() {
        assert_eq!(columns("µs × 日本"), 9);
        assert_eq!(left("日", 4), "日  ");
        assert_eq!(right("8.03", 6), "  8.03");
        assert_eq!(wrap("one two  three", 8), ["one two", "three"]);
        assert_eq!(wrap("one  two", 3), ["one", "two"]);
        assert_eq!(wrap("incomprehensible", 4), ["incomprehensible"]);
        assert_eq!(wrap("attention 6.7 % of it", 13), ["attention", "6.7 % of it"]);
        assert_eq!(wrap("1 × 989.5 TFLOP/s, 2 of a", 11), ["1 ×", "989.5 TFLOP/s,", "2 of a"]);
    }
}
