//! Whether a checkpoint is what was written: every checksum is made again.

use super::manifest::{self, Document, FileEntry};
use super::problem::unreadable;
use super::saved::{changed, damaged, open_tensors, read_document, read_small};
use super::target::Target;
use super::{CONFIG, MANIFEST, TensorFile, Weights};
use plan::phrase;
use plan::report::{Cell, Column, Report, Row, Table, Value, Verdict};
use std::fs;
use std::path::Path;
use units::{Bytes, Diagnostics};

/// One file and what is wrong with it.
struct Finding {
    file: String,
    bytes: u64,
    tensors: u64,
    problems: Diagnostics,
}

/// Verifies a checkpoint, all checkpoints of a folder, a manifest, or files of weights.
///
/// The verdict is "no" if anything is damaged, missing or cut short.
///
/// # Errors
/// If there is nothing at `path` that could be verified.
pub fn verify(path: &Path) -> Result<Report, Diagnostics> {
    let mut checked = true;
    // A file of a checkpoint: its checksum stands in the manifest beside it.
    let folder = path.parent().filter(|folder| path.is_file() && folder.join(MANIFEST).is_file());
    let findings = match Target::at(folder.unwrap_or(path))? {
        Target::Checkpoint(path) => checkpoint(&path),
        Target::Store(_, all) => all.iter().flat_map(|path| checkpoint(path)).collect(),
        Target::Manifest(path) => vec![lone_manifest(&path)],
        Target::Weights(path) => {
            checked = false;
            weights(&path)
        }
    };
    Ok(report(path, findings, checked))
}

fn report(path: &Path, findings: Vec<Finding>, checked: bool) -> Report {
    let bad = findings.iter().filter(|finding| finding.problems.has_errors()).count() as u64;
    let bytes: u64 = findings.iter().map(|finding| finding.bytes).sum();
    let tensors: u64 = findings.iter().map(|finding| finding.tensors).sum();
    let answer = match bad {
        0 if checked => phrase!["whole: every checksum is right"],
        0 => phrase!["well formed; without a manifest there are no checksums to hold it against"],
        _ => phrase!["not whole: ", bad, if bad == 1 { " file is wrong" } else { " files are wrong" }],
    };
    let mut report = Report::new("checkpoint-verify", answer);
    report = report.qualified(phrase![findings.len() as u64, " files"]);
    report = report.qualified(phrase![tensors, " tensors"]).qualified(phrase![Bytes(bytes)]);
    report.verdict = if bad == 0 { Verdict::Answered } else { Verdict::No };
    let columns = [Column::left("file"), Column::right("tensors"), Column::right("bytes"), Column::left("")];
    let mut table = Table::new("", columns);
    let mut files = Vec::new();
    for finding in findings {
        let right = !finding.problems.has_errors();
        let count = (finding.tensors > 0).then_some(finding.tensors);
        table.rows.push(Row::new([
            finding.file.as_str().into(),
            count.into(),
            Bytes(finding.bytes).into(),
            Cell::from(match (right, checked) {
                (false, _) => "wrong",
                (true, true) => "right",
                (true, false) => "well formed",
            }),
        ]));
        let file = Value::map().with("file", finding.file.as_str()).with("bytes", finding.bytes);
        files.push(file.with("tensors", finding.tensors).with("right", right));
        report.warnings.extend(finding.problems);
    }
    report.blocks.push(table.into());
    report.inputs = Value::map().with("path", path.display().to_string());
    let result = Value::map().with("whole", bad == 0).with("checksums", checked).with("bytes", bytes);
    report.result = result.with("files", Value::list(files));
    report
}

/// Every file of a checkpoint against its manifest.
fn checkpoint(path: &Path) -> Vec<Finding> {
    let manifest = Finding::new(path, MANIFEST);
    let document = match read_document(path) {
        Ok(document) => document,
        Err(problems) => return vec![Finding { problems, ..manifest }],
    };
    let mut findings = vec![manifest];
    findings.extend(document.files.iter().map(|entry| file(path, &document, entry)));
    findings
}

fn file(folder: &Path, document: &Document, entry: &FileEntry) -> Finding {
    let mut finding = Finding::new(folder, entry.file);
    if entry.file == CONFIG {
        let path = folder.join(CONFIG);
        match read_small(&path, nn::config::MAX_BYTES as u64) {
            Ok(bytes) if FileEntry::plain(CONFIG, &bytes) == *entry => {}
            Ok(_) => finding.problems.push(changed(&path)),
            Err(problem) => finding.problems.push(problem),
        }
        return finding;
    }
    finding.tensors = entry.tensors.len() as u64;
    match open_tensors(folder, document, entry.file) {
        Ok(file) => tensors(&file, entry, &mut finding.problems),
        Err(problems) => finding.problems = problems,
    }
    finding
}

/// Every tensor of a file whose header is right.
fn tensors(file: &TensorFile, entry: &FileEntry, problems: &mut Diagnostics) {
    let mut whole = file.header_checksum();
    for tensor in file.tensors() {
        match file.checksum(tensor) {
            Ok(own) => {
                whole.combine(&own);
                if entry.tensor_crc32(&tensor.name) != Some(own.finalize()) {
                    problems.push(damaged(file.path(), &tensor.name));
                }
            }
            Err(problem) => problems.push(problem),
        }
    }
    if whole.finalize() != entry.crc32 && !problems.has_errors() {
        problems.push(changed(file.path()));
    }
}

/// A manifest without its files: only its own form.
fn lone_manifest(path: &Path) -> Finding {
    let mut finding = Finding::at(path);
    let name = path.display().to_string();
    let read = read_small(path, manifest::MAX_BYTES).map_err(Diagnostics::from);
    if let Err(problems) = read.and_then(|bytes| Document::parse(&name, &bytes)) {
        finding.problems = problems;
    }
    finding
}

/// Files of weights: only their form.
fn weights(path: &Path) -> Vec<Finding> {
    match Weights::open(path) {
        Ok(weights) => {
            let finding =
                |file: &TensorFile| Finding { tensors: file.tensors().len() as u64, ..Finding::at(file.path()) };
            weights.files().iter().map(finding).collect()
        }
        Err(problems) => vec![Finding { problems, ..Finding::at(path) }],
    }
}

impl Finding {
    fn new(folder: &Path, name: &str) -> Self {
        Self::at(&folder.join(name))
    }

    /// A file that is right so far.
    fn at(path: &Path) -> Self {
        let mut finding = Self { file: path.display().to_string(), bytes: 0, tensors: 0, problems: Diagnostics::new() };
        match fs::metadata(path) {
            Ok(about) => finding.bytes = about.len(),
            Err(error) => finding.problems.push(unreadable(path, &error)),
        }
        finding
    }
}
