//! A report as one page that needs nothing else: the drawing of the step, its numbers as a table, what it rests on.

use std::fmt::Write as _;

use plan::report::{Report, Sample, StepTimeline, Stretch};
use units::Bytes;

use crate::format::{Units, memory, phrase, piece};
use crate::svg::escape;
use crate::timeline::draw;

/// Colours that people who do not tell all colours apart tell apart (Okabe and Ito), each darker once more.
const STYLE: &str = "
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1b1b; --quiet: #6b6b6b; --rule: #d9d9d9; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181b; --ink: #e8e8e8; --quiet: #9a9a9a; --rule: #3a3d42; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1rem; } p.quiet, td.quiet { color: var(--quiet); }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg text.end { text-anchor: end; }
.grid { stroke: var(--rule); } .mark { stroke: var(--quiet); stroke-dasharray: 2 3; } .limit { stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 6 4; }
.peak { fill: none; stroke: var(--ink); stroke-width: 2; }
.b0 { fill: #999999; } .b1 { fill: #0072b2; } .b2 { fill: #56b4e9; } .b3 { fill: #009e73; } .b4 { fill: #f0e442; } .b5 { fill: #e69f00; }
.b6 { fill: #cc79a7; } .b7 { fill: #d55e00; } .b8 { fill: #00557f; } .b9 { fill: #6b4c9a; } .b10 { fill: #7f6a00; } .b11 { fill: #b0b0b0; }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
.key.b0 { background: #999999; } .key.b1 { background: #0072b2; } .key.b2 { background: #56b4e9; } .key.b3 { background: #009e73; }
.key.b4 { background: #f0e442; } .key.b5 { background: #e69f00; } .key.b6 { background: #cc79a7; } .key.b7 { background: #d55e00; }
.key.b8 { background: #00557f; } .key.b9 { background: #6b4c9a; } .key.b10 { background: #7f6a00; } .key.b11 { background: #b0b0b0; }
";

/// The report as a page; `None` where it has no timeline.
pub fn html(report: &Report, units: Units) -> Option<String> {
    let timeline = report.timeline.as_ref().filter(|timeline| !timeline.samples.is_empty())?;
    let headline = phrase(&report.headline.answer, units);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>napkin: {0}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape(&headline)
    );
    for remark in &report.headline.qualifiers {
        let _ = writeln!(page, "<p>{}</p>", escape(&phrase(remark, units)));
    }
    let _ = writeln!(page, "<p class=\"quiet\"><code>{}</code></p>", escape(&report.command));
    page.push_str(&draw(timeline, units));
    page.push_str(&buckets(timeline, units));
    page.push_str("<h2>assumed</h2>\n<table>\n");
    for one in &report.assumptions {
        let _ = writeln!(
            page,
            "<tr><th>{}</th><td>{}</td><td class=\"quiet\">{} {}</td></tr>",
            escape(&one.label),
            escape(&piece(&one.value, units).joined()),
            escape(&phrase(&one.why, units)),
            escape(one.flag)
        );
    }
    page.push_str("</table>\n");
    for warning in &report.warnings {
        let _ = writeln!(page, "<p>warning: {}</p>", escape(&warning.message));
    }
    page.push_str("</body>\n</html>\n");
    Some(page)
}

/// The buckets at the peak and at the end of each stretch: the same as the drawing, in numbers, and its key.
fn buckets(timeline: &StepTimeline, units: Units) -> String {
    let last = |stretch: &'_ Stretch| Some((stretch.name.clone(), timeline.samples.get(stretch.last_sample?)?));
    let ends: Vec<(String, &Sample)> = timeline.stretches.iter().filter_map(last).collect();
    let mut out = "<table>\n<tr><th></th><th class=\"number\">at the peak</th>".to_owned();
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
        let name = format!("<span class=\"key b{number}\"></span>{}", escape(bucket));
        line(&mut out, name, &|sample| sample.bytes[number]);
    }
    line(&mut out, "in all".to_owned(), &Sample::total);
    out.push_str("</table>\n");
    out
}
