//! Diagnostics as text, in the manner of the Rust compiler.

use std::fmt::Write;
use std::iter::repeat_n;
use unicode_width::UnicodeWidthChar;

use super::{Diagnostic, Location};

/// Longest part of a source line that is printed, in characters.
const WIDTH: usize = 100;
/// Characters kept before the caret when a line is cut.
const BEFORE: usize = 40;
/// Narrowest line-number column, so that notes of different problems align.
const GUTTER: usize = 2;

/// One span with its remark.
struct Mark<'a> {
    location: &'a Location,
    text: &'a str,
    primary: bool,
}

/// The printed part of a source line with the caret's place in it, in terminal columns.
#[derive(PartialEq)]
struct Window {
    text: String,
    offset: usize,
    width: usize,
}

pub(super) fn render(diagnostic: &Diagnostic) -> String {
    let mut out = diagnostic.severity.to_string();
    if !diagnostic.code.is_empty() {
        push(&mut out, format_args!("[{}]", diagnostic.code));
    }
    push(&mut out, format_args!(": {}", clean(&diagnostic.message).replace('\n', "\n  ")));

    let marks = marks(diagnostic);
    if let ([], "", None, None, [help]) =
        (&marks[..], diagnostic.code, &diagnostic.why, &diagnostic.effect, &diagnostic.help[..])
        && !help.contains('\n')
    {
        push(&mut out, format_args!("     try: {}", clean(help)));
        return out;
    }

    let gutter = marks.iter().map(|mark| mark.location.line.to_string().len()).max().unwrap_or(0).max(GUTTER);
    let mut files: Vec<&str> = Vec::new();
    for mark in &marks {
        if !files.contains(&mark.location.file.as_str()) {
            files.push(&mark.location.file);
        }
    }
    let has_notes = diagnostic.why.is_some() || diagnostic.effect.is_some() || !diagnostic.help.is_empty();
    for (index, file) in files.iter().enumerate() {
        let here: Vec<&Mark> = marks.iter().filter(|mark| mark.location.file == *file).collect();
        let last = index + 1 == files.len();
        file_block(&mut out, &here, gutter, index == 0, has_notes || !last);
    }

    for (key, text) in [("why", &diagnostic.why), ("effect", &diagnostic.effect)] {
        if let Some(text) = text {
            note(&mut out, gutter, key, text);
        }
    }
    for help in &diagnostic.help {
        note(&mut out, gutter, "try", help);
    }
    out
}

/// The primary span first; the label that lies on it gives the words beside its caret.
fn marks(diagnostic: &Diagnostic) -> Vec<Mark<'_>> {
    let primary = diagnostic.location.as_ref();
    let beside = diagnostic.labels.iter().position(|label| Some(&label.location) == primary);
    let mut marks = Vec::with_capacity(diagnostic.labels.len() + 1);
    if let Some(location) = primary {
        let text = beside.map_or("", |index| diagnostic.labels[index].text.as_str());
        marks.push(Mark { location, text, primary: true });
    }
    for (index, label) in diagnostic.labels.iter().enumerate() {
        if Some(index) != beside {
            marks.push(Mark { location: &label.location, text: &label.text, primary: false });
        }
    }
    marks
}

fn file_block(out: &mut String, marks: &[&Mark], gutter: usize, first: bool, closed: bool) {
    let arrow = if first { "-->" } else { ":::" };
    heading(out, gutter, arrow, marks[0]);
    let mut shown: Vec<&Mark> =
        marks.iter().copied().filter(|m| m.location.line > 0 && m.location.source_line.is_some()).collect();
    shown.sort_by_key(|mark| (mark.location.line, !mark.primary, mark.location.column));

    if !shown.is_empty() {
        push(out, format_args!("\n{:gutter$} |", ""));
        let mut printed = None;
        for mark in shown {
            let window = window(mark.location);
            let line = (mark.location.line, window.text.clone());
            if printed.as_ref() != Some(&line) {
                push(out, format_args!("\n{:>gutter$} | {}", line.0, line.1));
                printed = Some(line);
            }
            let sign = if mark.primary { '^' } else { '-' };
            let mut row = String::with_capacity(window.offset + window.width);
            row.extend(repeat_n(' ', window.offset));
            row.extend(repeat_n(sign, window.width));
            let text = clean(mark.text).replace('\n', " ");
            let space = if text.is_empty() { "" } else { " " };
            push(out, format_args!("\n{:gutter$} | {row}{space}{text}", ""));
        }
        if closed {
            push(out, format_args!("\n{:gutter$} |", ""));
        }
    }
    for mark in marks.iter().skip(1).filter(|m| m.location.line == 0 || m.location.source_line.is_none()) {
        heading(out, gutter, ":::", mark);
    }
}

/// The place, with its remark where no source line can carry it.
fn heading(out: &mut String, gutter: usize, arrow: &str, mark: &Mark) {
    let Location { file, line, column, pointer, source_line, .. } = mark.location;
    push(out, format_args!("\n{:gutter$}{arrow} {}", "", clean(file)));
    if *line > 0 {
        push(out, format_args!(":{line}:{column}"));
    } else if !pointer.is_empty() {
        push(out, format_args!(" at {}", clean(pointer)));
    }
    if (*line == 0 || source_line.is_none()) && !mark.text.is_empty() {
        push(out, format_args!("  {}", clean(mark.text).replace('\n', " ")));
    }
}

fn note(out: &mut String, gutter: usize, key: &str, text: &str) {
    let indent = gutter + key.len() + 5;
    let text = clean(text).replace('\n', &format!("\n{:indent$}", ""));
    push(out, format_args!("\n{:gutter$} = {key}: {text}", ""));
}

fn window(location: &Location) -> Window {
    let source = location.source_line.as_deref().unwrap_or_default();
    let first_column = location.source_column.max(1);
    let caret = location.column.saturating_sub(first_column) as usize;
    let span = location.end_column.saturating_sub(location.column).max(1) as usize;

    let long = source.chars().nth(WIDTH).is_some();
    let skipped = if long { caret.saturating_sub(BEFORE) } else { 0 };
    let mut rest = source.chars().skip(skipped);
    let kept: Vec<char> = rest.by_ref().take(WIDTH).map(clean_char).collect();
    let cut_left = skipped > 0 || first_column > 1;
    let cut_right = rest.next().is_some();

    // A caret may stand one place behind the line, for something missing at its end.
    let at = (caret - skipped).min(kept.len());
    let end = at.saturating_add(span).min(kept.len()).max(at);
    let columns = |chars: &[char]| chars.iter().map(|&c| columns(c)).sum::<usize>();
    let mut text: String = kept.iter().collect();
    if cut_left {
        text.insert(0, '…');
    }
    if cut_right {
        text.push('…');
    }
    Window {
        text: text.trim_end().to_owned(),
        offset: usize::from(cut_left) + columns(&kept[..at]),
        width: columns(&kept[at..end]).max(1),
    }
}

/// Terminal columns of a character.
pub fn columns(c: char) -> usize {
    c.width().unwrap_or(1)
}

/// Keeps escapes and direction overrides in a user's file from driving the terminal.
fn clean_char(c: char) -> char {
    match c {
        '\t' => ' ',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

fn clean(text: &str) -> String {
    text.trim_end().chars().map(|c| if c == '\n' { c } else { clean_char(c) }).collect()
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: &str = "{\n\n\n\n\n\n\n\n\n\n  \"num_attention_heads\": 32,\n\n\n  \"num_key_value_heads\": 5,\n}\n";

    fn span(text: &str) -> Location {
        let start = CONFIG.find(text).unwrap() + text.len();
        let width = CONFIG[start..].find(',').unwrap();
        Location::in_source("my-model/config.json", CONFIG, start..start + width)
    }

    fn heads() -> Diagnostic {
        Diagnostic::error("T0203", "`num_attention_heads` is not divisible by `num_key_value_heads`")
            .at_labelled(span("\"num_key_value_heads\": "), "5 key/value heads")
            .label(span("\"num_attention_heads\": "), "32 query heads")
            .why("each key/value head serves an equal number of query heads")
            .help("--set num_key_value_heads=8   (valid: 1, 2, 4, 8, 16, 32)")
    }

    #[test]
    fn the_mock_up() {
        let expected = r#"error[T0203]: `num_attention_heads` is not divisible by `num_key_value_heads`
  --> my-model/config.json:14:26
   |
11 |   "num_attention_heads": 32,
   |                          -- 32 query heads
14 |   "num_key_value_heads": 5,
   |                          ^ 5 key/value heads
   |
   = why: each key/value head serves an equal number of query heads
   = try: --set num_key_value_heads=8   (valid: 1, 2, 4, 8, 16, 32)"#;
        assert_eq!(heads().render(), expected);
        assert_eq!(heads().to_string(), expected);
    }

    #[test]
    fn without_a_place() {
        let warning =
            Diagnostic::warning("T0117", "`sliding_window` is present but the layers that use it are not listed")
                .effect("attention FLOP counted as full causal on 32 of 32 layers")
                .help("--set layer_types=...");
        assert_eq!(
            warning.render(),
            "warning[T0117]: `sliding_window` is present but the layers that use it are not listed
   = effect: attention FLOP counted as full causal on 32 of 32 layers
   = try: --set layer_types=..."
        );
        let size = "80G".parse::<crate::Bytes>().unwrap_err();
        assert_eq!(
            Diagnostic::from(size).render(),
            "error: memory size `80G` has no clear unit: write `80GB` (80e9 bytes) or `80GiB` (85.9e9 bytes)"
        );
        assert_eq!(
            Diagnostic::error("", "dp × tp × pp = 4 × 4 × 2 = 32, but -n is 64").help("--dp 8").render(),
            "error: dp × tp × pp = 4 × 4 × 2 = 32, but -n is 64     try: --dp 8"
        );
    }

    #[test]
    fn files_without_text() {
        let problem = Diagnostic::error("T0101", "two files disagree")
            .at_labelled(Location::new("a.json", 7, 3..4), "here 32")
            .label(Location::file("b.json").pointer("/text_config/num_hidden_layers"), "here 36")
            .why("line one\nline two");
        assert_eq!(
            problem.render(),
            "error[T0101]: two files disagree
  --> a.json:7:3  here 32
  ::: b.json at /text_config/num_hidden_layers  here 36
   = why: line one
          line two"
        );
    }

    #[test]
    fn long_lines_are_cut_around_the_caret() {
        let source = format!("{}\"dp\": 3{}", "a".repeat(50_000_000), "b".repeat(50_000_000));
        let at = 50_000_000 + 6;
        for location in [
            Location::in_source("f", &source, at..at + 1),
            Location { source_line: Some(source.clone()), ..Location::new("f", 1, at as u32 + 1..at as u32 + 2) },
        ] {
            let text = Diagnostic::error("T0001", "bad").at_labelled(location, "three").render();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[1], "  --> f:1:50000007");
            assert!(lines[3].starts_with(" 1 | …aaa") && lines[3].ends_with("bbb…"), "{}", lines[3]);
            assert!(lines[3].chars().count() <= WIDTH + 7);
            let caret = lines[4].chars().position(|c| c == '^').unwrap();
            assert_eq!(lines[3].chars().nth(caret), Some('3'));
            assert!(lines[4].ends_with("^ three"));
        }
    }

    #[test]
    fn carets_stay_under_wide_characters_and_tabs() {
        let source = "\t日本\u{1b}: 5";
        let at = source.find('5').unwrap();
        let text = Diagnostic::error("T0001", "bad").at(Location::in_source("f", source, at..at + 1)).render();
        assert!(text.ends_with("\n 1 |  日本\u{fffd}: 5\n   |         ^"), "{text}");
    }

    proptest! {
        #[test]
        fn nothing_panics_or_escapes(
            source in any::<String>(), text in any::<String>(), start in 0_usize..300, end in 0_usize..300,
            line in any::<u32>(), column in any::<u32>(), end_column in any::<u32>(), first in any::<u32>(),
        ) {
            let made = Location {
                source_line: Some(source.clone()), source_column: first, ..Location::new("f", line, column..end_column)
            };
            let rendered = Diagnostic::error("T0001", text.as_str())
                .at(made)
                .label(Location::in_source(text.as_str(), &source, start..end), text.as_str())
                .help(text.as_str())
                .render();
            prop_assert!(rendered.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
