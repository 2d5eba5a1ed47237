//! What goes wrong with files, as diagnostics.

use std::io::{self, ErrorKind};
use std::path::Path;
use units::{Diagnostic, Location};

/// A file or folder that cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let problem = Diagnostic::error("T0604", format!("cannot be read: {error}")).at(place(path));
    match error.kind() {
        ErrorKind::PermissionDenied => problem.help(format!("chmod u+r {}", path.display())),
        _ => problem,
    }
}

/// Code of a disk that is full.
pub(crate) const NO_SPACE: &str = "T0602";

/// A checkpoint that cannot be written; what was there before is untouched.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> Diagnostic {
    let full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let problem = if full {
        Diagnostic::error(NO_SPACE, format!("no space for the checkpoint: {error}"))
            .help("free space, keep fewer checkpoints, or save to another disk")
    } else {
        let problem = Diagnostic::error("T0601", format!("the checkpoint cannot be written: {error}"));
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                problem.help("save to a folder that may be written")
            }
            ErrorKind::FileTooLarge => problem.help("save to a filesystem without this limit of file sizes"),
            _ => problem,
        }
    };
    problem.at(place(path))
}

/// A file as the place of a problem.
pub(crate) fn place(path: &Path) -> Location {
    Location::file(path.display().to_string())
}
