//! Tensors of other programs' files under the names that a model has them by.
//!
//! The parameters of a model here are named as in transformers. What remains is what files differ in: whether they were
//! saved with the prefix of the body, whether a tied head is stored, and buffers that follow from the config.

use super::problem::place;
use super::{StoredTensor, TensorFile, Weights};
use nn::Model;
use nn::step::ParamInfo;
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
    /// Whether there are parts beside a language model, so that the one or the other may stand in a module of its own.
    wrapped: bool,
}

impl<'a> Names<'a> {
    /// Of parameters, of tensors tied to them and of buffers.
    pub fn of(model: &'a Model) -> Self {
        Self::with(model, &[])
    }

    /// As [`of`](Self::of), and of the parts of a wrapper around the model.
    pub fn with(model: &'a Model, parts: &'a [ParamInfo]) -> Self {
        let params = model.params().iter().flat_map(|p| std::iter::once(&p.name).chain(&p.tied));
        let parameters = parts.iter().flat_map(|p| std::iter::once(&p.name).chain(&p.tied));
        let buffers = model.buffers().iter().map(|(name, _)| name);
        let mut known: Vec<&str> = params.chain(parameters).chain(buffers).map(String::as_str).collect();
        known.sort_unstable();
        Self { body: format!("{}.", model.spec().names.body), known, wrapped: !parts.is_empty() }
    }

    /// Whether a tensor of the model has this name.
    pub fn knows(&self, name: &str) -> bool {
        self.known.binary_search(&name).is_ok()
    }

    /// The name that the model knows it by: as it is, with the prefix of the body, or in a wrapper without the modules that
    /// hold the language model and the image encoder, which releases of transformers put in other places.
    pub fn canonical(&self, stored: &str) -> String {
        let prefixed = |name: &str| format!("{}{name}", self.body);
        let mut forms = vec![stored.to_owned(), prefixed(stored)];
        if self.wrapped {
            let outer = format!("model.{stored}");
            let holds = |part: &&str| !["language_model", "vision_model"].contains(part);
            let bare = stored.split('.').filter(holds).collect::<Vec<_>>().join(".");
            forms.extend(self.behind(&outer));
            forms.extend([outer, prefixed(&bare), format!("model.{bare}"), bare]);
        }
        forms.into_iter().find(|name| self.knows(name)).unwrap_or_else(|| stored.to_owned())
    }
}

impl Names<'_> {
    /// The name of a tensor in the second stack of the image encoder of Llama 3.2, which is here the gated blocks behind the
    /// first stack.
    fn behind(&self, stored: &str) -> Option<String> {
        let (stack, rest) = stored.split_once(".global_transformer.layers.")?;
        let (block, rest) = rest.split_once('.')?;
        let name = |block: usize, rest: &str| format!("{stack}.transformer.layers.{block}.{rest}");
        let first = (0..self.known.len()).find(|block| self.knows(&name(*block, "gate_attn")))?;
        Some(name(first.checked_add(block.parse().ok()?)?, rest))
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
