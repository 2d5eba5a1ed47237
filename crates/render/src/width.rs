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

/// The words of a text on lines of at most `width` columns; a longer word stands alone.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut open = String::new();
        // Runs of spaces inside a line are layout and stay.
        for word in line.split_inclusive(' ') {
            if !open.is_empty() && columns(&open) + columns(word.trim_end()) > width {
                lines.push(open.trim_end().to_owned());
                open = String::new();
            }
            open.push_str(word);
        }
        lines.push(open.trim_end().to_owned());
    }
    lines
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
        assert_eq!(wrap("incomprehensible", 4), ["incomprehensible"]);
    }
}
