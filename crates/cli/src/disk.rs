//! Files as the system has them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ask::Files;

/// The files of this machine.
pub const DISK: Disk = Disk;

/// See [`DISK`].
#[derive(Clone, Copy, Debug)]
pub struct Disk;

impl Files for Disk {
    fn bytes(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let end = limit.saturating_add(1);
        match name {
            "-" => io::stdin().lock().take(end).read_to_end(&mut bytes)?,
            name => File::open(name)?.take(end).read_to_end(&mut bytes)?,
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
