//! Reports and problems to streams and files. The only place that prints.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use plan::report::{Report, Verdict};
use render::{ChartOptions, TextOptions, Units};
use units::{Diagnostic, Diagnostics};

use crate::args::{ColorArg, OutputArgs, UnitsArg};
use crate::disk::was_read;

/// Columns where no terminal says how many it has.
const WIDTH: usize = 100;

/// Why there is no answer on standard output.
#[derive(Debug)]
pub enum Failure {
    /// The question was wrong.
    Bad(Diagnostics),
    /// Nobody reads on, which is their right.
    BrokenPipe,
    /// Napkin is wrong; the user has been told.
    Internal,
}

impl From<Diagnostics> for Failure {
    fn from(problems: Diagnostics) -> Self {
        Self::Bad(problems)
    }
}

/// Prints text.
///
/// # Errors
/// [`Failure::BrokenPipe`] if the reader is gone, a diagnostic for any other trouble of the stream.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::BrokenPipe),
        Err(error) => Err(Diagnostics::from(Diagnostic::error("", format!("cannot print: {error}"))).into()),
    }
}

/// Says what is wrong, on standard error.
pub fn problems(problems: &Diagnostics, json: bool) {
    let text = if json { render::problems_json(problems) } else { render::problems_text(problems) };
    // Where standard error is closed there is nobody to tell.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Says something on the way, on standard error.
pub fn remark(line: &str) {
    // As above.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Markdown,
    Csv,
    Json,
    Html,
    Svg,
    Trace,
}

impl Format {
    fn of(path: &Path) -> Result<Self, Diagnostic> {
        if is_trace(path) {
            return Ok(Self::Trace);
        }
        match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
            "txt" => Ok(Self::Text),
            "md" => Ok(Self::Markdown),
            "csv" => Ok(Self::Csv),
            "json" => Ok(Self::Json),
            "html" => Ok(Self::Html),
            "svg" => Ok(Self::Svg),
            _ => Err(Diagnostic::error("", format!("`{}` has no extension that is a format", path.display()))
                .help("end it in .txt, .md, .csv, .json, .html or .svg")
                .help("or, of a ledger, in .trace.json")),
        }
    }
}

/// `step.trace.json`: a file for trace viewers, not a report.
fn is_trace(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(".trace.json"))
}

/// Whether the name of a file asks for a step moment by moment.
pub fn shows_a_step(file: &str) -> bool {
    let path = Path::new(file);
    is_trace(path) || path.extension().is_some_and(|extension| extension == "html")
}

fn not_drawn(path: &Path, format: Format) -> Diagnostic {
    let problem = |what| Diagnostic::error("", format!("`{}`: this answer has no {what}", path.display()));
    match format {
        Format::Trace => problem("step to show").help("napkin ledger MODEL --timeline -o step.trace.json"),
        _ => problem("drawing").help("end the file in .html for the answer as a page"),
    }
}

/// What an answer may have beside words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shows {
    /// A drawing.
    pub drawing: bool,
    /// A step moment by moment.
    pub step: bool,
}

impl Shows {
    const fn has(self, format: Format) -> bool {
        match format {
            Format::Svg => self.drawing,
            Format::Trace => self.step,
            _ => true,
        }
    }
}

/// Where a report goes and in which form; checked before any work is done.
#[derive(Debug)]
pub struct Sink {
    files: Vec<(PathBuf, Format)>,
    json: bool,
    force: bool,
    text: TextOptions,
}

impl Sink {
    /// Reads the flags; `files` are the names behind `-o`.
    ///
    /// # Errors
    /// A file without a known extension, one whose form shows what the answer never has, and one that exists unless it may be
    /// overwritten.
    pub fn new(args: &OutputArgs, files: &[String], shows: Shows) -> Result<Self, Diagnostics> {
        let mut problems = Diagnostics::new();
        let mut formats = Vec::new();
        if args.json && !files.is_empty() {
            let problem = Diagnostic::error("", "`--json` is for the terminal, and -o has a file written");
            problems.push(problem.help("-o answer.json").help("--json > FILE"));
        }
        for path in files.iter().map(PathBuf::from) {
            match Format::of(&path) {
                Ok(format) if !shows.has(format) => problems.push(not_drawn(&path, format)),
                Ok(_) if path.exists() && !args.force => problems.push(exists(&path)),
                Ok(format) => formats.push((path, format)),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.has_errors() {
            return Err(problems);
        }
        let terminal = io::stdout().is_terminal();
        let color = match args.color {
            ColorArg::Always => true,
            ColorArg::Never => false,
            ColorArg::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let units = match args.units {
            UnitsArg::Iec => Units::Iec,
            UnitsArg::Si => Units::Si,
        };
        let text = TextOptions {
            width: width(),
            color,
            units,
            quiet: args.quiet,
            ascii: args.ascii,
            explain: args.explain,
            depth: args.depth,
        };
        Ok(Self { files: formats, json: args.json, force: args.force, text })
    }

    /// Writes the report.
    ///
    /// # Errors
    /// [`Failure`] where a file or stream cannot be written.
    pub fn write(&self, report: &Report) -> Result<Verdict, Failure> {
        if self.files.is_empty() {
            let format = if self.json { Format::Json } else { Format::Text };
            print(&self.form(report, format, self.text).unwrap_or_default())?;
        }
        let plain = TextOptions { color: false, width: WIDTH, ..self.text };
        for (path, format) in &self.files {
            let text =
                self.form(report, *format, plain).ok_or_else(|| not_drawn(path, *format)).map_err(Diagnostics::from)?;
            save(path, &text, self.force).map_err(Diagnostics::from)?;
        }
        Ok(report.verdict)
    }

    /// The report in a form; `None` where it has not what that form shows.
    fn form(&self, report: &Report, format: Format, text: TextOptions) -> Option<String> {
        match format {
            Format::Text => Some(render::text(report, &text)),
            Format::Markdown => Some(render::markdown(report, self.text.units)),
            Format::Csv => Some(render::csv(report)),
            Format::Json => Some(render::json(report)),
            Format::Html => Some(render::html(report, self.text.units)),
            Format::Svg => render::svg(report, ChartOptions { units: self.text.units, ..ChartOptions::default() }),
            Format::Trace => render::trace(report),
        }
    }
}

/// Writes a file; one that exists only by force, one that was read for the answer never.
///
/// # Errors
/// A file that exists or cannot be written.
pub fn save(path: &Path, text: &str, force: bool) -> Result<(), Diagnostic> {
    if was_read(path) {
        let problem =
            Diagnostic::error("", format!("`{}` was read for this answer, and stays as it is", path.display()));
        return Err(problem.help("another name behind -o"));
    }
    let file = if force { File::create(path) } else { OpenOptions::new().write(true).create_new(true).open(path) };
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => Diagnostic::error("", format!("cannot write `{}`: {error}", path.display())),
    })
}

/// A file that would be overwritten.
pub fn exists(path: &Path) -> Diagnostic {
    Diagnostic::error("", format!("`{}` exists already", path.display())).help("--force overwrites it")
}

fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    columns.or_else(terminal).unwrap_or(WIDTH)
}
