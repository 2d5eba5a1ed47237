//! The MODEL argument: a file, a folder, a preset, `-`, or `dense:70B`.

use plan::work::Work;
use units::{Diagnostic, Params};

/// What the user called a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// A bare parameter count.
    Dense {
        /// The words, such as `dense:70B`.
        name: String,
        /// The count.
        parameters: Params,
    },
}

/// Reads the argument.
///
/// # Errors
/// A count that is none, and anything that is no bare count as long as no command traces models.
pub fn model(text: &str) -> Result<Model, Diagnostic> {
    match text.strip_prefix("dense:") {
        Some(count) => {
            let parameters: Params = count.parse()?;
            if parameters.is_zero() {
                return Err(Diagnostic::error("", format!("`{text}` has no parameters")).help("dense:70B"));
            }
            Ok(Model::Dense { name: text.to_owned(), parameters })
        }
        None => Err(Diagnostic::error("", format!("`{text}` is no bare parameter count"))
            .why("this command does not read model configurations yet")
            .help("dense:70B")),
    }
}

impl Model {
    /// Its parameters.
    pub fn parameters(&self) -> Params {
        match self {
            Self::Dense { parameters, .. } => *parameters,
        }
    }

    /// Its work for one token.
    pub fn work(&self) -> Work {
        match self {
            Self::Dense { name, parameters } => Work::dense(name, *parameters),
        }
    }
}
