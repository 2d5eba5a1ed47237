//! The text that is part of the program: see `data/text/README.md`.

use super::error::DataError;
use super::token_file::{OpenOptions, TokenFile};

/// What the built-in text is called.
pub const BUILTIN_NAME: &str = "persuasion.txt (built in)";

const TEXT: &str = include_str!("../../../../data/text/persuasion.txt");

impl TokenFile {
    /// Jane Austen's *Persuasion*, 466,854 bytes of ASCII; its bytes are its ids.
    ///
    /// # Errors
    /// The model's vocabulary is smaller than 256.
    pub fn builtin(options: &OpenOptions) -> Result<Self, DataError> {
        Self::from_text(BUILTIN_NAME, TEXT, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_its_readme_says() {
        let file = TokenFile::builtin(&OpenOptions::default()).unwrap();
        assert_eq!(file.len(), 466_854);
        assert!(TEXT.is_ascii());
        assert_eq!(TEXT.lines().count(), 8_328);
    }
}
