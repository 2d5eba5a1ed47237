//! The filesystem calls of a save, behind a door, so that tests can kill a save between any two of them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// What a save asks of a filesystem.
pub(crate) trait Disk {
    /// Makes a folder that is not there yet.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file that is not there yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Gives a file or folder another name in the same folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a folder with all that is in it.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
}

/// A file being written.
pub(crate) trait Output: Write {
    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The filesystem of the operating system.
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Ok(Box::new(File::create_new(path)?))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // Elsewhere a folder cannot be opened, and names are durable by the filesystem's own journal.
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

impl Output for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}
