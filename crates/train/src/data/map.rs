//! The one place where a file becomes memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps a whole file for reading. Its pages are read when they are touched and can be dropped by the system at any
/// time, so that opening costs no memory, however large the file is.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is only read. A file that another program shortens while it is mapped ends this process with a
    // signal at the next read behind its end, as it does every program that maps files; one that is overwritten gives
    // other ids, which are checked against the vocabulary after they have been copied out. No reference into the map
    // is used as anything but bytes, and every pattern of bytes is valid.
    unsafe { Mmap::map(file) }
}
