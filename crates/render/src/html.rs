//! Reports as HTML: a page that needs nothing else and runs nothing, or a part of somebody else's.

use std::fmt::Write as _;

use plan::report::{
    Align, Assumption, Block, Chart, Column, Derivation, HeatCell, Report, Row, Sample, StepTimeline, Stretch, Table,
};
use units::{Bytes, Diagnostic};

use crate::format::{Units, cell, column_texts, memory, phrase, piece};
use crate::svg::{ChartOptions, STYLE as CHARTS, bucket_class, chart, escape, swatch};

/// Style of pages; that of charts stands beside it.
const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1b1b; --quiet: #5c5c5c; --rule: #d9d9d9; --no: #b3400a; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181b; --ink: #e8e8e8; --quiet: #a8a8a8; --rule: #3a3d42; --no: #ff9d6b; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--rule); } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.quiet { color: var(--quiet); } .no { color: var(--no); font-weight: 600; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; font-weight: normal; }
thead th, tfoot td { font-weight: 600; } tfoot td { border-top: 1px solid var(--rule); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; } details { margin: .4rem 0; } summary { cursor: pointer; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
svg.key { vertical-align: -2px; margin-right: .4rem; } svg.share { vertical-align: -1px; } nav a { margin-right: 1rem; } code { overflow-wrap: anywhere; }
@media print { details > *:not(summary) { display: block; } body { margin: 0; max-width: none; } }
";

/// The report as a page of its own, with its parts behind it.
pub fn html(report: &Report, units: Units) -> String {
    let title = phrase(&report.headline.answer, units);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>napkin: {}</title>\n\
         <style>{STYLE}{CHARTS}</style>\n</head>\n<body>\n<main>\n",
        escape(&title)
    );
    if !report.parts.is_empty() {
        page.push_str("<nav aria-label=\"parts\">");
        for part in &report.parts {
            let _ = write!(page, "<a href=\"#{0}\">{0}</a>", part.kind);
        }
        page.push_str("</nav>\n");
    }
    for (place, report) in std::iter::once(report).chain(&report.parts).enumerate() {
        let _ = writeln!(page, "<section id=\"{}\">", report.kind);
        if place > 0 {
            let _ = writeln!(page, "<h2>{}</h2>", report.kind);
        }
        page.push_str(&headline(report, if place == 0 { "h1" } else { "h3" }, units));
        page.push_str(&body(report, ChartOptions { units, ..ChartOptions::default() }));
        page.push_str("</section>\n");
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// A report as a part of a page: no style, no script; classes are those of [`style`](crate::style) and of tables.
pub fn fragment(report: &Report, options: ChartOptions) -> String {
    headline(report, "h2", options.units) + &body(report, options)
}

/// What a page shows of a report, in pieces: one that has most of them already replaces the others alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// The answer, as text.
    pub answer: String,
    /// What qualifies it, as text.
    pub remarks: Vec<String>,
    /// Charts, tables, notes and warnings, formulas: HTML, in their order.
    pub shown: Vec<String>,
    /// What was assumed, as HTML; empty where nothing was.
    pub assumed: String,
}

/// A report in the pieces of a page; together they are what [`fragment`] says.
pub fn pieces(report: &Report, options: ChartOptions) -> Pieces {
    let units = options.units;
    let mut shown = shown(report, options);
    shown.extend(Some(derivations(&report.derivations, units)).filter(|html| !html.is_empty()));
    Pieces {
        answer: phrase(&report.headline.answer, units),
        remarks: report.headline.qualifiers.iter().map(|remark| phrase(remark, units)).collect(),
        shown,
        assumed: assumptions(&report.assumptions, units),
    }
}

fn headline(report: &Report, level: &str, units: Units) -> String {
    let class = if report.verdict == plan::report::Verdict::No { "answer no" } else { "answer" };
    let mut out = format!("<{level} class=\"{class}\">{}</{level}>\n", escape(&phrase(&report.headline.answer, units)));
    for remark in &report.headline.qualifiers {
        let _ = writeln!(out, "<p>{}</p>", escape(&phrase(remark, units)));
    }
    if !report.command.is_empty() {
        let _ = writeln!(out, "<p class=\"quiet\"><code>{}</code></p>", escape(&report.command));
    }
    out
}

fn body(report: &Report, options: ChartOptions) -> String {
    shown(report, options).concat()
        + &assumptions(&report.assumptions, options.units)
        + &derivations(&report.derivations, options.units)
}

/// Each chart, each table, and what is noted.
fn shown(report: &Report, options: ChartOptions) -> Vec<String> {
    let units = options.units;
    let drawn = |chart: &&Chart| !matches!(chart, Chart::Timeline(timeline) if timeline.samples.is_empty());
    let figures = report.charts.iter().filter(drawn).map(|one| figure(report, one, options));
    let blocks = report.blocks.iter().map(|one| block(one, units));
    let mut noted = String::new();
    for note in &report.notes {
        let _ = writeln!(noted, "<p>{}</p>", escape(&phrase(note, units)));
    }
    for warning in &report.warnings {
        problem(&mut noted, warning);
    }
    figures.chain(blocks).chain(Some(noted).filter(|html| !html.is_empty())).collect()
}

/// A chart, with the same as a table.
fn figure(report: &Report, drawn: &Chart, options: ChartOptions) -> String {
    format!(
        "<figure id=\"{}-{}\">\n<div class=\"scroll\">{}</div>\n\
         <details><summary>as a table</summary>\n{}</details>\n</figure>\n",
        report.kind,
        drawn.id(),
        chart(drawn, options),
        twin(drawn, options.units)
    )
}

fn problem(out: &mut String, problem: &Diagnostic) {
    let _ = writeln!(out, "<pre class=\"no\">{}</pre>", escape(problem.to_string().trim_end()));
}

fn title(out: &mut String, title: &str) {
    if !title.is_empty() {
        let _ = writeln!(out, "<h3>{}</h3>", escape(title));
    }
}

fn block(block: &Block, units: Units) -> String {
    let mut made = String::new();
    let out = &mut made;
    match block {
        Block::KeyValues { title: words, rows } => {
            title(out, words);
            out.push_str("<div class=\"scroll\"><table>\n");
            for row in rows {
                let _ = writeln!(
                    out,
                    "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"quiet\">{}</td></tr>",
                    escape(&row.key),
                    escape(&piece(&row.value, units).joined()),
                    escape(&phrase(&row.note, units))
                );
            }
            out.push_str("</table></div>\n");
        }
        Block::Table(one) => table(out, one, units),
        Block::Text { title: words, lines } => {
            title(out, words);
            for line in lines {
                let _ = writeln!(out, "<p>{}</p>", escape(&phrase(line, units)));
            }
        }
    }
    made
}

/// A share as a bar; its text is in the column beside it.
fn share(value: f64) -> String {
    let width = (value.clamp(0.0, 1.0) * 100.0).round();
    format!(
        "<svg class=\"napkin share\" viewBox=\"0 0 100 10\" width=\"100\" height=\"10\" aria-hidden=\"true\">\
         <rect class=\"track\" width=\"100\" height=\"10\"/><rect class=\"b1\" width=\"{width}\" height=\"10\"/></svg>"
    )
}

fn table(out: &mut String, table: &Table, units: Units) {
    title(out, &table.title);
    let rows: Vec<&Row> = table.rows.iter().chain(&table.total).collect();
    // A bar is markup, all else are words.
    let is_bar = |at: usize, row: &Row| matches!(row.cells.get(at), Some(plan::report::Cell::Bar(_)));
    let columns: Vec<Vec<String>> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let texts = column_texts(&rows, at, column, units, share);
            texts
                .iter()
                .zip(&rows)
                .map(|(text, row)| if is_bar(at, row) { text.clone() } else { escape(text) })
                .collect()
        })
        .collect();
    let notes = rows.iter().any(|row| !row.note.is_empty());
    out.push_str("<div class=\"scroll\"><table>\n");
    let class = |column: &Column| if column.align == Align::Right { " class=\"number\"" } else { "" };
    if table.columns.iter().any(|column| !column.name.is_empty()) {
        out.push_str("<thead><tr>");
        for column in &table.columns {
            let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(column), escape(&column.name));
        }
        out.push_str(if notes { "<th></th></tr></thead>\n" } else { "</tr></thead>\n" });
    }
    for (at, row) in rows.iter().enumerate() {
        let last = at == table.rows.len();
        out.push_str(if last { "<tfoot><tr>" } else { "<tr>" });
        for (place, (column, texts)) in table.columns.iter().zip(&columns).enumerate() {
            let indent = if place == 0 { "&#160;&#160;".repeat(usize::from(row.indent)) } else { String::new() };
            let _ = write!(out, "<td{}>{indent}{}</td>", class(column), texts[at]);
        }
        if notes {
            let _ = write!(out, "<td class=\"quiet\">{}</td>", escape(&phrase(&row.note, units)));
        }
        out.push_str(if last { "</tr></tfoot>\n" } else { "</tr>\n" });
    }
    out.push_str("</table></div>\n");
}

fn assumptions(all: &[Assumption], units: Units) -> String {
    let mut out = String::new();
    if all.is_empty() {
        return out;
    }
    let _ = writeln!(
        out,
        "<details class=\"assumed\" open><summary>assumed ({})</summary>\n<div class=\"scroll\"><table>",
        all.len()
    );
    for one in all {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"quiet\">{}</td><td class=\"quiet\">{} <code>{}</code></td></tr>",
            escape(&one.label),
            escape(&piece(&one.value, units).joined()),
            one.from.name(),
            escape(&phrase(&one.why, units)),
            escape(one.flag)
        );
    }
    out.push_str("</table></div>\n</details>\n");
    out
}

fn derivations(all: &[Derivation], units: Units) -> String {
    let mut out = String::new();
    if all.is_empty() {
        return out;
    }
    let _ =
        writeln!(out, "<details class=\"derived\"><summary>how the numbers come about ({})</summary>\n<dl>", all.len());
    for one in all {
        let _ = writeln!(
            out,
            "<dt><code>{}</code> = {}</dt><dd><code>{}</code><br>{}<br><span class=\"quiet\">{}; {}</span></dd>",
            escape(&one.of),
            escape(&cell(&one.result, units)),
            escape(&one.expression),
            escape(&phrase(&one.substituted, units)),
            escape(&one.source),
            escape(one.anchor)
        );
    }
    out.push_str("</dl>\n</details>\n");
    out
}

/// What a chart shows as a table, for who would rather read, or cannot see it.
fn twin(chart: &Chart, units: Units) -> String {
    use plan::report::Cell;
    let mut out = String::new();
    let made = match chart {
        Chart::Timeline(timeline) => return buckets(timeline, units),
        Chart::Bar(stack) => {
            let mut made = Table::new("", [Column::left("bucket"), Column::one_unit("bytes")]);
            for (name, bytes) in &stack.segments {
                made.rows.push(Row::new([Cell::from(name.as_str()), (*bytes).into()]));
            }
            made.total = Some(Row::new([Cell::from("in all"), stack.total().into()]));
            made
        }
        Chart::Tree(tree) => {
            let mut made = Table::new("", [Column::left("module"), Column::right("FLOP"), Column::right("share")]);
            for branch in &tree.branches {
                let row =
                    Row::new([Cell::from(branch.name.as_str()), branch.size.clone(), Cell::Percent(branch.share)]);
                made.rows.push(row.indent(branch.level));
            }
            made
        }
        Chart::Roofline(roofline) => {
            let names = ["FLOP", "FLOP per byte", "at least"].map(Column::right);
            let mut made = Table::new("", std::iter::once(Column::left("op")).chain(names));
            for dot in &roofline.dots {
                made.rows.push(Row::new([
                    Cell::from(dot.name.as_str()),
                    dot.flop.into(),
                    dot.intensity.into(),
                    dot.time.into(),
                ]));
            }
            made
        }
        Chart::Heat(heat) => {
            let columns = heat.columns.iter().map(|value| Column::right(format!("{} {value}", heat.x)));
            let mut made = Table::new("", std::iter::once(Column::left(heat.y.as_str())).chain(columns));
            for (row, value) in heat.rows.iter().enumerate() {
                let cells = heat.cells.iter().skip(row * heat.columns.len()).take(heat.columns.len());
                let cells = cells.map(|cell| match cell {
                    HeatCell::None => Cell::Empty,
                    HeatCell::TooLarge => "too large".into(),
                    HeatCell::Best { share, .. } => Cell::Percent(*share),
                });
                made.rows.push(Row::new(std::iter::once(Cell::from(*value)).chain(cells)));
            }
            made
        }
        Chart::Curve(curve) => {
            let lines = curve.lines.iter().map(|(name, _)| Column::right(name.as_str()));
            let mut made = Table::new("", std::iter::once(Column::right("devices")).chain(lines));
            let counts = curve.lines.first().map(|(_, points)| points.as_slice()).unwrap_or_default();
            for (at, (count, _)) in counts.iter().enumerate() {
                let times = curve.lines.iter().map(|(_, points)| points.get(at).map(|(_, time)| *time).into());
                made.rows.push(Row::new(std::iter::once(Cell::from(*count)).chain(times)));
            }
            made
        }
        Chart::Bits(bits) => {
            let names = ["format", "sign", "exponent", "fraction", "value"].map(Column::left);
            let mut made = Table::new("", names);
            for strip in &bits.strips {
                let digits: String = strip.bits.iter().map(|bit| if *bit { '1' } else { '0' }).collect();
                let (sign, rest) = digits.split_at(strip.sign.min(digits.len()));
                let (exponent, fraction) = rest.split_at(strip.exponent.min(rest.len()));
                let cells = [strip.format.as_str(), sign, exponent, fraction, strip.value.as_str()];
                made.rows.push(Row::new(cells.map(Cell::from)));
            }
            made
        }
    };
    table(&mut out, &made, units);
    out
}

/// The buckets at the peak and at the end of each stretch: the same as the drawing, in numbers, and its key.
fn buckets(timeline: &StepTimeline, units: Units) -> String {
    let last = |stretch: &'_ Stretch| Some((stretch.name.clone(), timeline.samples.get(stretch.last_sample?)?));
    let ends: Vec<(String, &Sample)> = timeline.stretches.iter().filter_map(last).collect();
    let mut out = "<div class=\"scroll\"><table>\n<tr><th></th><th class=\"number\">at the peak</th>".to_owned();
    for (name, _) in &ends {
        let _ = write!(out, "<th class=\"number\">end of {}</th>", escape(name));
    }
    out.push_str("</tr>\n");
    let peak = timeline.samples.get(timeline.peak);
    let all: Vec<&Sample> = peak.into_iter().chain(ends.iter().map(|(_, sample)| *sample)).collect();
    let line = |out: &mut String, name: String, bytes: &dyn Fn(&Sample) -> u64| {
        let _ = write!(out, "<tr><th>{name}</th>");
        for sample in &all {
            let _ = write!(out, "<td class=\"number\">{}</td>", escape(&memory(Bytes(bytes(sample)), units)));
        }
        out.push_str("</tr>\n");
    };
    // As in the drawing: the first is at the bottom.
    for (number, bucket) in timeline.buckets.iter().enumerate().rev() {
        let name = format!("{}{}", swatch(bucket_class(bucket, number)), escape(bucket));
        line(&mut out, name, &|sample| sample.bytes[number]);
    }
    line(&mut out, "in all".to_owned(), &Sample::total);
    out.push_str("</table></div>\n");
    out
}
