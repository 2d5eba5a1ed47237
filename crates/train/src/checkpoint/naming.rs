//! Tensors of other programs' files under the names that a model has them by.
//!
//! The parameters of a model here are named as in transformers. What remains is what files differ in: whether they were
//! saved with the prefix of the body, whether a tied head is stored, and buffers that follow from the config.

use super::problem::place;
use super::{StoredTensor, TensorFile, Weights};
use nn::Model;
use std::collections::BTreeMap;
use units::{Diagnostic, Diagnostics};

/// A tensor and its file.
pub(crate) type Stored<'a> = (&'a TensorFile, &'a StoredTensor);

/// Stored tensors by the names of the model.
pub(crate) struct Named<'a> {
    /// Those for the model.
    pub tensors: BTreeMap<String, Stored<'a>>,
    /// Names of buffers that follow from the config.
    pub ignored: Vec<String>,
}

/// Finds the model's name of every stored tensor.
///
/// # Errors
/// `T0613` if two tensors are stored under names of one, `T0622` if a tied tensor is stored twice with other bytes.
pub(crate) fn named<'a>(weights: &'a Weights, model: &Model) -> Result<Named<'a>, Diagnostics> {
    let names = Names::of(model);
    let mut out = Named { tensors: BTreeMap::new(), ignored: Vec::new() };
    let mut problems = Diagnostics::new();
    for (file, stored) in weights.tensors() {
        let name = names.canonical(&stored.name);
        if !names.knows(&name) && is_derived(&stored.name, &stored.shape) {
            out.ignored.push(stored.name.clone());
            continue;
        }
        if let Some((_, other)) = out.tensors.insert(name, (file, stored)) {
            let message = format!("`{}` and `{}` are one tensor of the model", other.name, stored.name);
            problems.push(Diagnostic::error("T0613", message).at(place(file.path())));
        }
    }
    for param in model.params() {
        for alias in &param.tied {
            let Some(second) = out.tensors.remove(alias) else { continue };
            match out.tensors.get(&param.name) {
                // Programs that store shared memory once keep the name they come to first.
                None => drop(out.tensors.insert(param.name.clone(), second)),
                Some(first) if same(*first, second)? => {}
                Some(_) => {
                    let message = format!("`{alias}` differs from `{}`, to which the config ties it", param.name);
                    let problem = Diagnostic::error("T0622", message).at(place(second.0.path()));
                    problems.push(problem.help("--set tie_word_embeddings=false"));
                }
            }
        }
    }
    if problems.has_errors() { Err(problems) } else { Ok(out) }
}

/// The names of a model.
pub(crate) struct Names<'a> {
    /// Prefix of everything but the head, with its dot.
    pub body: String,
    known: Vec<&'a str>,
}

impl<'a> Names<'a> {
    /// Of parameters, of tensors tied to them and of buffers.
    pub fn of(model: &'a Model) -> Self {
        let params = model.params().iter().flat_map(|p| std::iter::once(&p.name).chain(&p.tied));
        let buffers = model.buffers().iter().map(|(name, _)| name);
        let mut known: Vec<&str> = params.chain(buffers).map(String::as_str).collect();
        known.sort_unstable();
        Self { body: format!("{}.", model.spec().names.body), known }
    }

    /// Whether a tensor of the model has this name.
    pub fn knows(&self, name: &str) -> bool {
        self.known.binary_search(&name).is_ok()
    }

    /// The name with the prefix of the body, if the model knows it so and not as it is.
    pub fn canonical(&self, stored: &str) -> String {
        let prefixed = format!("{}{stored}", self.body);
        if !self.knows(stored) && self.knows(&prefixed) { prefixed } else { stored.to_owned() }
    }
}

/// Whether a tensor is a buffer that older releases stored though it follows from the config: a causal mask, its fill
/// value, frequencies of a rotation. By name and shape, because a name alone may be that of a parameter elsewhere.
pub(crate) fn is_derived(name: &str, shape: &[u64]) -> bool {
    let last_two: Vec<&str> = name.rsplitn(3, '.').take(2).collect();
    match (last_two.as_slice(), shape) {
        (["bias", "attn" | "attention"], [1, 1, rows, columns]) => rows == columns,
        (["masked_bias", "attn" | "attention"], [] | [1]) | (["inv_freq", "rotary_emb"], [_]) => true,
        _ => false,
    }
}

/// Whether two stored tensors are equal.
fn same((file, a): Stored<'_>, (other, b): Stored<'_>) -> Result<bool, Diagnostic> {
    if a.stored_as != b.stored_as || a.shape != b.shape {
        return Ok(false);
    }
    Ok(file.checksum(a)?.finalize() == other.checksum(b)?.finalize())
}
