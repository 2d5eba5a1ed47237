//! Reports as CSV: one quantity a line, exact and in its base unit, so that a spreadsheet can pivot it.

use plan::report::{Block, Cell, Report, Row, Table, Value};

use crate::format::{Units, phrase, piece};

/// The report as CSV with the columns `section,item,quantity,value,unit`. Rows of a tree have the names of their
/// parents before their own, joined by `/`.
pub fn csv(report: &Report) -> String {
    let mut out = String::from("section,item,quantity,value,unit\n");
    let headline = Cell::Text(phrase(&report.headline.answer, Units::Iec));
    line(&mut out, "", "answer", "", &headline);
    for block in &report.blocks {
        match block {
            Block::KeyValues { title, rows } => {
                for row in rows {
                    line(&mut out, title, &row.key, "", &row.value);
                }
            }
            Block::Table(table) => rows(&mut out, table),
            Block::Text { title, lines } => {
                for text in lines {
                    line(&mut out, title, "", "", &Cell::Text(phrase(text, Units::Iec)));
                }
            }
        }
    }
    for one in &report.assumptions {
        line(&mut out, "assumed", &one.label, one.from.name(), &one.value);
    }
    out
}

fn rows(out: &mut String, table: &Table) {
    let mut path: Vec<String> = Vec::new();
    for (row, is_total) in table.rows.iter().map(|row| (row, false)).chain(table.total.iter().map(|row| (row, true))) {
        let name = item(row, is_total);
        path.truncate(usize::from(row.indent));
        path.push(name);
        let item = path.join("/");
        for (column, cell) in table.columns.iter().zip(&row.cells).skip(1) {
            if !matches!(cell, Cell::Bar(_) | Cell::Empty) {
                line(out, &table.title, &item, &column.name, cell);
            }
        }
    }
}

/// The first cell names the row.
fn item(row: &Row, is_total: bool) -> String {
    let name = row.cells.first().map(|cell| piece(cell, Units::Iec).joined()).unwrap_or_default();
    if name.is_empty() && is_total { "total".to_owned() } else { name }
}

fn line(out: &mut String, section: &str, item: &str, quantity: &str, cell: &Cell) {
    let (value, unit) = cell.raw();
    let value = match value {
        Value::Bool(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Num(value) => value.to_string(),
        Value::Text(text) => text,
        Value::Null | Value::List(_) | Value::Map(_) => String::new(),
    };
    let fields = [section, item, quantity, &value, unit].map(field);
    out.push_str(&fields.join(","));
    out.push('\n');
}

/// Quoted where it must be (RFC 4180). A leading `=`, `+`, `-` or `@` of a text would be a formula to a spreadsheet; a
/// number may begin with a minus.
fn field(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '@']) || (text.starts_with('-') && text.parse::<f64>().is_err());
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::report::Column;
    use units::Bytes;

    #[test]
    fn trees_and_quotes() {
        let mut report = Report::new("ledger", "fits, just");
        let columns = [Column::left("line"), Column::one_unit("bytes"), Column::left("")];
        let mut table = Table::new("memory", columns);
        table.rows.push(Row::new(["activations".into(), Bytes(3).into(), Cell::Bar(0.6)]));
        table.rows.push(Row::new(["mlp".into(), Bytes(3).into()]).indent(1));
        table.total = Some(Row::new([Cell::Empty, Bytes(5).into()]));
        report.blocks.push(table.into());
        assert_eq!(
            csv(&report),
            "section,item,quantity,value,unit\n,answer,,\"fits, just\",\nmemory,activations,bytes,3,B\n\
             memory,activations/mlp,bytes,3,B\nmemory,total,bytes,5,B\n"
        );
        assert_eq!((field("-1.5"), field("=A1"), field("a\"b")), ("-1.5".into(), "'=A1".into(), "\"a\"\"b\"".into()));
    }
}
