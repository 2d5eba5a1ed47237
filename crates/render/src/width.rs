//! How wide text is on a terminal.

/// Terminal columns of a text: enough of the East Asian width rules to keep columns straight.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(char_columns).sum()
}

fn char_columns(c: char) -> usize {
    match u32::from(c) {
        0x300..=0x36f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
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
