//! Tables of published measurements: CSV with a line of column names.

use csv::{ByteRecord, ReaderBuilder, Trim};
use plan::validation::{NEEDED, Row};
use std::collections::BTreeMap;
use units::{Diagnostic, Diagnostics, Location};

/// Most bytes of a table that is read.
pub const MOST_BYTES: usize = 64 << 20;
/// Most rows.
const MOST_ROWS: usize = 200_000;
/// Most problems that are told one by one.
const MOST_PROBLEMS: usize = 20;

/// Reads a table. Columns may stand in any order, and unknown ones are passed over.
///
/// # Errors
/// `T0801` for what is no such table, `T0802` for cells that are not what their column holds, with their lines.
pub fn read(file: &str, bytes: &[u8]) -> Result<Vec<Row>, Diagnostics> {
    if bytes.len() > MOST_BYTES {
        let message = format!("the table is longer than {} MiB", MOST_BYTES >> 20);
        return Err(Diagnostic::error("T0801", message).at(Location::file(file)).into());
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(bytes);
    let header = reader.byte_headers().cloned().map_err(|error| broken(file, &error))?;
    let columns = columns(file, &header)?;
    let mut problems = Diagnostics::new();
    let (mut rows, mut names): (Vec<Row>, BTreeMap<String, u64>) = (Vec::new(), BTreeMap::new());
    let mut more = 0usize;
    let mut tell = |problem: Diagnostic| {
        if problems.len() < MOST_PROBLEMS {
            problems.push(problem);
        } else {
            more += 1;
        }
    };
    let mut lines = Lines { bytes, at: 0, line: 1 };
    for record in reader.byte_records() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let mut problem = broken(file, &error);
                if let Some(position) = error.position() {
                    problem.location = Some(at(file, lines.of(position.byte())));
                }
                tell(problem);
                continue;
            }
        };
        let line = lines.of(record.position().map_or(0, csv::Position::byte));
        if rows.len() == MOST_ROWS {
            tell(Diagnostic::error("T0801", format!("more than {MOST_ROWS} rows")).at(at(file, line)));
            break;
        }
        let cell = |column: &str| {
            let bytes = record.get(*columns.get(column)?)?;
            // What is no text is no value of any column.
            Some(std::str::from_utf8(bytes).unwrap_or("\u{fffd}"))
        };
        match Row::read(line, cell) {
            Ok(row) if row.id.is_empty() => {
                tell(Diagnostic::error("T0802", "a row without row_id").at(at(file, line)));
            }
            Ok(row) => {
                if let Some(first) = names.insert(row.id.clone(), line) {
                    let message = format!("row_id `{}` is that of line {first} too", row.id);
                    tell(Diagnostic::error("T0802", message).at(at(file, line)));
                }
                rows.push(row);
            }
            Err(wrong) => {
                for wrong in wrong {
                    tell(Diagnostic::error("T0802", wrong.to_string()).at(at(file, line)));
                }
            }
        }
    }
    if more > 0 {
        problems
            .push(Diagnostic::error("T0802", format!("{more} more problems of this kind")).at(Location::file(file)));
    }
    if rows.is_empty() && !problems.has_errors() {
        problems.push(Diagnostic::error("T0801", "the table has no rows").at(Location::file(file)));
    }
    if problems.has_errors() { Err(problems) } else { Ok(rows) }
}

/// Lines of records, which come in order. The library counts a line late where it ends in a carriage return too.
struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u64,
}

impl Lines<'_> {
    /// The line of the record whose cells begin at or after this byte.
    fn of(&mut self, byte: u64) -> u64 {
        let from = usize::try_from(byte).unwrap_or(usize::MAX).clamp(self.at, self.bytes.len());
        let ends = self.bytes[from..].iter().take_while(|b| matches!(b, b'\n' | b'\r')).count();
        let to = from + ends;
        self.line += memchr::memchr_iter(b'\n', &self.bytes[self.at..to]).count() as u64;
        self.at = to;
        self.line
    }
}

fn at(file: &str, line: u64) -> Location {
    Location::new(file, u32::try_from(line).unwrap_or(u32::MAX), 0..0)
}

/// Where each column stands.
fn columns(file: &str, header: &ByteRecord) -> Result<BTreeMap<String, usize>, Diagnostics> {
    let mut columns = BTreeMap::new();
    let mut problems = Diagnostics::new();
    for (i, name) in header.iter().enumerate() {
        let name = String::from_utf8_lossy(name).into_owned();
        if columns.insert(name.clone(), i).is_some() && problems.len() < MOST_PROBLEMS {
            let name: String = name.chars().take(40).collect();
            problems.push(Diagnostic::error("T0801", format!("two columns are called `{name}`")).at(at(file, 1)));
        }
    }
    let missing = NEEDED.iter().filter(|names| !names.iter().any(|name| columns.contains_key(*name)));
    let missing: Vec<String> = missing.map(|names| names.join(" or ")).collect();
    if !missing.is_empty() {
        problems.push(
            Diagnostic::error("T0801", format!("no column {}", missing.join(", ")))
                .why("the first line names the columns; rows are read by them")
                .at(at(file, 1)),
        );
    }
    if problems.has_errors() { Err(problems) } else { Ok(columns) }
}

/// What the library of the format says, with the line.
fn broken(file: &str, error: &csv::Error) -> Diagnostic {
    let location = error.position().map_or_else(|| Location::file(file), |position| at(file, position.line()));
    let message = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} cells in a table of {expected_len} columns")
        }
        _ => format!("no CSV: {error}"),
    };
    Diagnostic::error("T0801", message).at(location)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = "row_id,source_id,model,n_layers,d_model,n_heads,d_ff,vocab,seq_len,notes";

    fn problems(text: &str) -> Vec<(u32, String)> {
        let found = read("t.csv", text.as_bytes()).unwrap_err();
        let line = |problem: &Diagnostic| problem.location.as_ref().map_or(0, |location| location.line);
        found.iter().map(|problem| (line(problem), problem.message.clone())).collect()
    }

    #[test]
    fn quotes_line_breaks_and_carriage_returns_are_read() {
        let text =
            format!("\u{feff}{HEADER}\r\na,s,\"x, \"\"y\"\"\",2,64,4,256,100,32,\"two\r\nlines\"\r\nb,s,m,3,,,,,,\r\n");
        let rows = read("t.csv", text.as_bytes()).unwrap();
        assert_eq!((rows[0].model.as_str(), rows[0].sizes.layers), ("x, \"y\"", Some(2)));
        assert_eq!((rows[1].id.as_str(), rows[1].line, rows[1].sizes.hidden), ("b", 4, None));
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        assert_eq!(problems(&format!("{HEADER}\n")), [(0, "the table has no rows".to_owned())]);
        let missing = "row_id,model,n_layers\na,b,1\n";
        assert_eq!(
            problems(missing),
            [(1, "no column source_id or set, d_model, n_heads, d_ff, vocab, seq_len".to_owned())]
        );
        let cells = format!("{HEADER}\na,s,m,2,64,4,256,100,32,\nb,s,m,two,64,4,-1,100,32,\na,s,m,1,1,1,1,1,1,\nc,s\n");
        assert_eq!(
            problems(&cells),
            [
                (3, "n_layers: `two` is no whole number".to_owned()),
                (3, "d_ff: `-1` is no whole number".to_owned()),
                (4, "row_id `a` is that of line 2 too".to_owned()),
                (5, "2 cells in a table of 10 columns".to_owned()),
            ]
        );
        assert_eq!(problems(&format!("{HEADER},notes\n"))[0], (1, "two columns are called `notes`".to_owned()));
    }

    #[test]
    fn problems_without_end_are_counted() {
        let text = format!("{HEADER}\n{}", "x,s,m,a,b,c,d,e,f,\n".repeat(500));
        let found = problems(&text);
        assert_eq!(found.len(), MOST_PROBLEMS + 1);
        assert_eq!(found[MOST_PROBLEMS].1, "2980 more problems of this kind");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Any change of a table is read or refused, and what is read is judged or not: nothing panics.
        #[test]
        fn changed_tables_are_read_or_refused(
            cuts in prop::collection::vec((0usize..2000, 0usize..12, "[\\PC\"\n,0-9e.]{0,6}"), 1..4)
        ) {
            let mut text = String::from(
                "row_id,source_id,model,n_layers,d_model,n_heads,n_kv_heads,head_dim,d_ff,ffn_gated,vocab,tied,pos_emb,\
                 n_experts,topk,seq_len,tokens_per_s_per_gpu,tflops_per_gpu,flop_convention,params_total,usable_for\n\
                 a,s,GPT-2,2,64,4,4,16,256,no,100,yes,learned,,,32,1000,0.1,sc21_96,113000,params;flops\n\
                 b,s,x,2,64,4,2,16,128,yes,100,no,rope,4,2,32,1e3,0.1,nv_bridge_causal_half,,flops\n"
            );
            for (start, len, with) in cuts {
                let floor = |mut i: usize| { while !text.is_char_boundary(i) { i -= 1; } i };
                let start = floor(start.min(text.len()));
                let end = floor((start + len).min(text.len())).max(start);
                text.replace_range(start..end, &with);
            }
            match read("t.csv", text.as_bytes()) {
                Err(problems) => prop_assert!(problems.iter().all(|problem| problem.location.is_some())),
                Ok(rows) => {
                    // Sizes that take long to trace are no matter of reading.
                    let small = |size: Option<u64>| size.is_none_or(|size| size < 4096);
                    let rows: Vec<Row> =
                        rows.into_iter().filter(|row| small(row.sizes.layers) && small(row.sizes.experts)).collect();
                    let judged = plan::validation::Request {
                        tables: &[],
                        rows: &rows,
                        sources: &[],
                        quantities: &[],
                        split: None,
                        listed: plan::validation::Listed::All,
                    };
                    let report = judged.report();
                    prop_assert!(report.result.get("compared").is_some());
                }
            }
        }
    }
}
