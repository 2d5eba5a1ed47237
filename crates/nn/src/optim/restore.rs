//! States that come from outside, held against what the rule asks for.

use super::OptimizerKind;
use super::state::State;
use crate::param::Param;
use std::collections::BTreeMap;
use tensor::{Role, Tensor};
use units::{Diagnostic, Diagnostics};

/// The states of each parameter, or all that is wrong with them.
pub(super) fn states(
    kind: OptimizerKind,
    master: bool,
    params: &[Param],
    steps: u64,
    tensors: Vec<(String, String, Tensor)>,
) -> Result<Vec<Option<State>>, Diagnostics> {
    let mut problems = Diagnostics::new();
    let mut given = BTreeMap::new();
    for (param, slot, tensor) in tensors {
        if given.insert((param.clone(), slot.clone()), tensor).is_some() {
            problems.push(problem(format!("optimizer state `{slot}` of `{param}` is given twice")));
        }
    }
    // Before the first update there is nothing to take over, unless the states were made ahead of it.
    let expected = steps > 0 || !given.is_empty();
    let mut states = Vec::new();
    for param in params {
        if !param.trainable || !expected {
            states.push(None);
            continue;
        }
        let mut found = Vec::new();
        for slot in kind.slots(param.kind, param.tensor.shape(), param.tensor.dtype(), master) {
            let Some(tensor) = given.remove(&(param.name.clone(), slot.name.to_owned())) else {
                problems.push(problem(format!("optimizer state `{}` of `{}` is missing", slot.name, param.name)));
                continue;
            };
            let is = (tensor.shape(), tensor.dtype());
            if is != (&slot.shape, slot.dtype) {
                let (name, param) = (slot.name, &param.name);
                let (got, want) = (format!("{:?} {}", is.0, is.1), format!("{:?} {}", slot.shape, slot.dtype));
                problems.push(problem(format!("optimizer state `{name}` of `{param}` is {got}, not {want}")));
            }
            found.push((slot.name, tensor));
        }
        states.push(Some(State::of(found)));
    }
    for (param, slot) in given.keys() {
        problems.push(problem(format!("no parameter of `{kind}` has the optimizer state `{slot}` of `{param}`")));
    }
    if problems.has_errors() {
        return Err(problems);
    }
    for (_, tensor) in states.iter().flatten().flat_map(State::iter) {
        // A role belongs to the storage, whichever handle names it.
        let _ = tensor.clone().with_role(Role::OptimizerState);
    }
    Ok(states)
}

fn problem(message: String) -> Diagnostic {
    Diagnostic::error("T0651", message)
        .why("states of another run, or a part of them, would go on as if nothing had happened")
        .help("the optimizer, precision and model that the states were saved with")
}
