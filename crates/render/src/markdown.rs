//! Reports as Markdown, for issues and documents.

use std::fmt::Write as _;

use plan::report::{Align, Block, Report, Row, Table};

use crate::format::{Units, column_texts, phrase, piece};

/// Columns of a bar that is full.
const BAR: usize = 20;

/// The report as Markdown, with tables as GitHub reads them.
pub fn markdown(report: &Report, units: Units) -> String {
    let mut out = format!("**{}**", escape(&phrase(&report.headline.answer, units)));
    for remark in &report.headline.qualifiers {
        let _ = write!(out, " · {}", escape(&phrase(remark, units)));
    }
    out.push('\n');
    for block in &report.blocks {
        out.push('\n');
        match block {
            Block::KeyValues { title, rows } => {
                heading(&mut out, title);
                out.push_str("| | | |\n|---|---:|---|\n");
                for row in rows {
                    cells(&mut out, &[row.key.clone(), piece(&row.value, units).joined(), phrase(&row.note, units)]);
                }
            }
            Block::Table(one) => table(&mut out, one, units),
            Block::Text { title, lines } => {
                heading(&mut out, title);
                for line in lines {
                    let _ = writeln!(out, "- {}", escape(&phrase(line, units)));
                }
            }
        }
    }
    if !report.assumptions.is_empty() {
        out.push_str("\nAssumed:\n\n");
        for one in &report.assumptions {
            let value = piece(&one.value, units).joined();
            let _ = write!(out, "- {} {} ({}", escape(&one.label), escape(&value), one.from.name());
            if !one.flag.is_empty() {
                let _ = write!(out, ", `{}`", one.flag);
            }
            out.push(')');
            if !one.why.is_empty() {
                let _ = write!(out, ": {}", escape(&phrase(&one.why, units)));
            }
            out.push('\n');
        }
    }
    for warning in &report.warnings {
        let _ = write!(out, "\n```text\n{warning}\n```\n");
    }
    if !report.command.is_empty() {
        let _ = write!(out, "\n`{}`\n", report.command);
    }
    for part in &report.parts {
        let _ = write!(out, "\n## {}\n\n{}", part.kind, markdown(part, units));
    }
    out
}

fn heading(out: &mut String, title: &str) {
    if !title.is_empty() {
        let _ = write!(out, "### {}\n\n", escape(title));
    }
}

fn table(out: &mut String, table: &Table, units: Units) {
    heading(out, &table.title);
    let all: Vec<&Row> = table.rows.iter().chain(&table.total).collect();
    let columns: Vec<Vec<String>> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| column_texts(&all, at, column, units, |share| crate::format::bar(share, BAR)))
        .collect();
    let has_notes = all.iter().any(|row| !row.note.is_empty());
    let mut names: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
    let mut rule: Vec<&str> =
        table.columns.iter().map(|column| if column.align == Align::Right { "---:" } else { "---" }).collect();
    if has_notes {
        names.push(String::new());
        rule.push("---");
    }
    cells(out, &names);
    let _ = writeln!(out, "|{}|", rule.join("|"));
    for (at, row) in all.iter().enumerate() {
        let mut line: Vec<String> = columns.iter().map(|column| column[at].clone()).collect();
        if let Some(first) = line.first_mut() {
            first.insert_str(0, &"\u{a0}\u{a0}".repeat(usize::from(row.indent)));
        }
        if has_notes {
            line.push(phrase(&row.note, units));
        }
        cells(out, &line);
    }
}

fn cells(out: &mut String, cells: &[String]) {
    for cell in cells {
        let _ = write!(out, "| {} ", escape(cell));
    }
    out.push_str("|\n");
}

/// Keeps a module path such as `layers.*.mlp` or a `|` from being markup.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | '|' | '*' | '_' | '`' | '<' | '[') {
            out.push('\\');
        }
        out.push(if c == '\n' { ' ' } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::phrase;
    use plan::report::Column;
    use units::Bytes;

    #[test]
    fn tables_align_and_escape() {
        let mut report = Report::new("ledger", phrase![Bytes::gib(3), " free"]);
        let mut table = Table::new("memory", [Column::left("line"), Column::one_unit("size")]);
        table.rows.push(Row::new(["layers.*".into(), Bytes::gib(2).into()]).note(phrase!["a|b"]));
        table.rows.push(Row::new(["mlp".into(), Bytes::gib(1).into()]).indent(1));
        report.blocks.push(table.into());
        assert_eq!(
            markdown(&report, Units::Iec),
            "**3.00 GiB free**\n\n### memory\n\n| line | size |  |\n|---|---:|---|\n\
             | layers.\\* | 2.00 GiB | a\\|b |\n| \u{a0}\u{a0}mlp | 1.00 |  |\n"
        );
    }
}
