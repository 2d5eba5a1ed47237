//! Files as the system has them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ask::Files;

/// The files of this machine.
pub const DISK: Disk = Disk;

/// Files that were read.
static READ: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Whether a file is one that was read.
pub fn was_read(path: &Path) -> bool {
    let read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    path.canonicalize().is_ok_and(|path| read.contains(&path))
}

/// See [`DISK`].
#[derive(Clone, Copy, Debug)]
pub struct Disk;

impl Files for Disk {
    fn bytes(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let end = limit.saturating_add(1);
        match name {
            "-" => io::stdin().lock().take(end).read_to_end(&mut bytes)?,
            name => {
                let read = File::open(name)?.take(end).read_to_end(&mut bytes)?;
                READ.lock().unwrap_or_else(PoisonError::into_inner).extend(Path::new(name).canonicalize());
                read
            }
        };
        Ok(bytes)
    }

    fn exists(&self, name: &str) -> bool {
        Path::new(name).exists()
    }

    fn in_folder(&self, name: &str, file: &str) -> Option<String> {
        let folder = Path::new(name);
        folder.is_dir().then(|| folder.join(file).display().to_string())
    }
}
