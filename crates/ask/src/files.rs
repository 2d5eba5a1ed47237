//! Where named files come from: a disk, a page into which they were dropped, a program that handed them over.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, ErrorKind};

/// Files by name.
pub trait Files: Debug {
    /// The bytes of a file, or of standard input for `-`: at most `limit` and one more, so that who reads them can refuse
    /// what is longer.
    ///
    /// # Errors
    /// As the system says it.
    fn bytes(&self, name: &str, limit: u64) -> io::Result<Vec<u8>>;

    /// Whether there is something of that name.
    fn exists(&self, name: &str) -> bool;

    /// The name of `file` in the folder `name`, if that is a folder.
    fn in_folder(&self, name: &str, file: &str) -> Option<String>;
}

/// Files that were handed over, by name.
#[derive(Clone, Debug, Default)]
pub struct Given(pub BTreeMap<String, Vec<u8>>);

impl Files for Given {
    fn bytes(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let bytes = self.0.get(name).ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no such file"))?;
        let end = usize::try_from(limit.saturating_add(1)).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes[..end].to_vec())
    }

    fn exists(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn in_folder(&self, _name: &str, _file: &str) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_read_up_to_a_limit() {
        let files = Given(BTreeMap::from([("a.json".to_owned(), b"{\"k\": 1}".to_vec())]));
        assert!(files.exists("a.json") && !files.exists("b.json"));
        assert_eq!(files.bytes("a.json", 3).unwrap(), b"{\"k\"");
        assert_eq!(files.bytes("a.json", 300).unwrap().len(), 8);
        assert_eq!(files.bytes("b.json", 3).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
