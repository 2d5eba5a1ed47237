//! Stored tensors against the tensors they are read into: by name, all or none.

use super::problem::place;
use super::tensor_file::StoredTensor;
use super::tensors::NamedTensor;
use nn::config::near_matches;
use std::collections::BTreeMap;
use std::path::Path;
use tensor::DType;
use units::{Diagnostic, Diagnostics};

/// Most names that are compared with each other for misspellings: it is quadratic.
const MOST_COMPARED: usize = 200;

/// What a stored tensor must have of its target beside the name and the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtypes {
    /// The same dtype.
    Same,
    /// The same, or one of two floats that can be converted: not fp8, whose numbers mean nothing without their scales.
    Floats,
}

/// Each target with what is stored for it.
///
/// # Errors
/// All that does not fit, one problem for each tensor: `T0612` missing, `T0613` nobody's, `T0614` another shape, `T0615`
/// another dtype.
pub(crate) fn pairs<'a>(
    path: &Path,
    stored: &[(&str, &'a StoredTensor)],
    targets: &'a [NamedTensor],
    dtypes: Dtypes,
) -> Result<Vec<(&'a StoredTensor, &'a NamedTensor)>, Diagnostics> {
    let mut left: BTreeMap<&str, &'a StoredTensor> = stored.iter().copied().collect();
    let (mut found, mut missing, mut problems) = (Vec::with_capacity(targets.len()), Vec::new(), Vec::new());
    for target in targets {
        match left.remove(target.name.as_str()) {
            None => missing.push(target),
            Some(one) => match misfit(one, target, dtypes) {
                None => found.push((one, target)),
                Some(problem) => problems.push(problem),
            },
        }
    }
    let comparable = missing.len().max(left.len()) <= MOST_COMPARED;
    let names: Vec<&str> = left.keys().copied().filter(|_| comparable).collect();
    for target in &missing {
        let (name, own) = (&target.name, described(target.tensor.dtype().name(), target.tensor.shape()));
        let mut problem = Diagnostic::error("T0612", format!("no tensor `{name}`, which the model has as {own}"));
        if let Some(near) = near_matches(name, &names).first() {
            problem = problem.help(format!("there is `{near}`: is that a misspelling?"));
        }
        problems.push(problem);
    }
    for (name, one) in &left {
        let held = described(&one.stored_as, &one.shape);
        problems.push(Diagnostic::error("T0613", format!("tensor `{name}` ({held}), which the model does not have")));
    }
    if problems.is_empty() {
        return Ok(found);
    }
    Err(problems.into_iter().map(|problem| problem.at(place(path))).collect())
}

fn misfit(stored: &StoredTensor, target: &NamedTensor, dtypes: Dtypes) -> Option<Diagnostic> {
    let name = &target.name;
    let (dtype, shape) = (target.tensor.dtype(), target.tensor.shape());
    if stored.shape != shape {
        let message = format!("tensor `{name}` has shape {:?}; the model has {shape:?}", stored.shape);
        return Some(Diagnostic::error("T0614", message));
    }
    let converts = |dtype: DType| dtype.is_float() && !dtype.is_fp8();
    let fits = stored.dtype == Some(dtype)
        || dtypes == Dtypes::Floats && converts(dtype) && stored.dtype.is_some_and(converts);
    (!fits).then(|| {
        let held = &stored.stored_as;
        Diagnostic::error("T0615", format!("tensor `{name}` is stored as {held}; the model has it as {dtype}"))
    })
}

fn described(dtype: &str, shape: &[u64]) -> String {
    format!("{} {shape:?}", dtype.to_lowercase())
}
