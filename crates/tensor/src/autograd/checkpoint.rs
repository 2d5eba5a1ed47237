//! Checkpointed regions: keep the inputs, run the region again in backward.
//!
//! The nodes of the region stay on the tape, with placeholders where their saved tensors would be. The first placeholder
//! that backward meets runs the region again, which fills all of them; each is dropped as soon as its node has run.

use super::keep::{KeepSet, Selection};
use super::{GradRef, Saved, Slot};
use crate::apply::Outputs;
use crate::autocast::CastLists;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::meter::{ModuleId, Phase};
use crate::ops::{Op, Out};
use crate::runtime::Runtime;
use crate::tensor::Tensor;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

type Forward = dyn Fn(&[Tensor]) -> Result<Outputs>;

/// What is needed to run a region again exactly as it ran.
pub(super) struct Region {
    forward: Box<Forward>,
    inputs: Vec<(Saved, bool)>,
    random_site: u64,
    autocast: Option<(DType, CastLists)>,
    module: ModuleId,
    /// Number of tensors its nodes asked to keep.
    asked: Cell<usize>,
    /// What is kept in spite of the checkpoint, and what need not run again because of it.
    selection: Selection,
    /// The tensors, once it has been recomputed.
    made: RefCell<Option<Vec<Option<Saved>>>>,
}

/// The region that is running, and how.
pub(super) enum Running {
    Forward(Rc<Region>),
    Recompute(Rc<Region>),
}

/// Runs `forward(inputs)` keeping only the inputs; backward runs it again.
///
/// The random state and autocast are replayed, so that dropout draws the same mask. A region inside a region is part of
/// the outer one.
///
/// # Errors
/// Whatever `forward` refuses.
pub fn checkpoint<F>(inputs: &[&Tensor], forward: F) -> Result<Outputs>
where
    F: Fn(&[Tensor]) -> Result<Outputs> + 'static,
{
    checkpoint_keeping(inputs, KeepSet::NONE, forward)
}

/// [`checkpoint`], keeping the results of some ops of the region: they are not run again, nor is what only they needed.
///
/// Ops are numbered in execution order within the region; casts of parameters by autocast have no number, since a cache
/// decides whether they run.
///
/// # Errors
/// Whatever `forward` refuses.
pub fn checkpoint_keeping<F>(inputs: &[&Tensor], keep: KeepSet, forward: F) -> Result<Outputs>
where
    F: Fn(&[Tensor]) -> Result<Outputs> + 'static,
{
    let runtime = inputs[0].runtime().clone();
    let owned: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
    if !runtime.grad_enabled() || runtime.tape().region.is_some() {
        return forward(&owned);
    }
    let role = runtime.saved_role();
    let region = Rc::new(Region {
        inputs: inputs.iter().map(|t| (Saved::new(t, role), t.requires_grad())).collect(),
        random_site: runtime.random_site(),
        autocast: runtime.autocast_setting(),
        module: runtime.module(),
        asked: Cell::new(0),
        made: RefCell::new(None),
        selection: Selection::new(keep),
        forward: Box::new(forward),
    });
    runtime.tape().region = Some(Running::Forward(region.clone()));
    let outputs = (region.forward)(&owned);
    runtime.tape().region = None;
    region.selection.decide();
    outputs
}

/// A placeholder for a tensor of the region whose forward is running; `None` outside of regions.
pub(super) fn placeholder(runtime: &Runtime, tensor: &Tensor) -> Option<Slot> {
    let tape = runtime.tape();
    let Some(Running::Forward(region)) = &tape.region else { return None };
    region.selection.mark_saved(tensor);
    let at = region.asked.get();
    region.asked.set(at + 1);
    Some(Slot::Region(region.clone(), at))
}

/// Whether a region is being recomputed.
pub(super) fn is_recomputing(runtime: &Runtime) -> bool {
    matches!(runtime.tape().region, Some(Running::Recompute(_)))
}

fn recomputing(runtime: &Runtime) -> Option<Rc<Region>> {
    match &runtime.tape().region {
        Some(Running::Recompute(region)) => Some(region.clone()),
        _ => None,
    }
}

/// Keeps what a recomputed op was asked to keep.
pub(super) fn keep_recomputed(
    runtime: &Runtime,
    input_bits: u8,
    inputs: &[&Tensor],
    output_bits: u8,
    outputs: &Outputs,
) -> Result<()> {
    let Some(region) = recomputing(runtime) else { return Ok(()) };
    let role = runtime.saved_role();
    let mut made = region.made.borrow_mut();
    let made = made.get_or_insert_default();
    let kept_inputs = inputs.iter().copied().enumerate().filter(|&(i, _)| i < 8 && input_bits & (1 << i) != 0);
    let kept_outputs = outputs.iter().enumerate().filter(|&(i, _)| i < 8 && output_bits & (1 << i) != 0);
    for (_, tensor) in kept_inputs.chain(kept_outputs) {
        made.push(Some(Saved::new(tensor, role)));
    }
    if runtime.early_stop() && made.len() >= region.asked.get() {
        return Err(Error::StopRecompute);
    }
    Ok(())
}

/// Stops a recomputation before an op whose inputs are the last tensors backward will ask for.
pub(crate) fn stop_if_complete(runtime: &Runtime, input_bits: u8, output_bits: u8, inputs: &[&Tensor]) -> Result<()> {
    if output_bits != 0 || input_bits == 0 || !runtime.early_stop() {
        return Ok(());
    }
    let Some(region) = recomputing(runtime) else { return Ok(()) };
    let made = region.made.borrow().as_ref().map_or(0, Vec::len);
    if made + input_bits.count_ones() as usize >= region.asked.get() {
        return keep_recomputed(runtime, input_bits, inputs, 0, &Outputs::new());
    }
    Ok(())
}

/// Tensor number `at` of a region, recomputing the region if that has not happened yet.
pub(super) fn unpack(runtime: &Runtime, region: &Rc<Region>, at: usize) -> Result<Saved> {
    if region.made.borrow().is_none() {
        recompute(runtime, region)?;
    }
    let saved = region.made.borrow_mut().as_mut().and_then(|made| made.get_mut(at)).and_then(Option::take);
    saved.ok_or(Error::Backward(
        "a checkpointed region kept fewer tensors when it ran again: its forward is not the same function twice",
    ))
}

/// Notes an op of the region whose forward is running, before it goes on the tape.
pub(crate) fn note(runtime: &Runtime, op: &Op, inputs: &[&Tensor], outs: &[Out], outputs: &Outputs) {
    let region = match &runtime.tape().region {
        Some(Running::Forward(region)) if !region.selection.is_empty() => region.clone(),
        _ => return,
    };
    region.selection.note(op, inputs, outs, outputs);
}

/// The results of an op of a region that is recomputed, if it need not run: kept ones, or stand-ins without bytes that
/// nothing reads.
pub(crate) fn replay(runtime: &Runtime, op: &Op, inputs: &[&Tensor], outs: &[Out]) -> Result<Option<Outputs>> {
    let Some(region) = recomputing(runtime).filter(|region| !region.selection.is_empty()) else { return Ok(None) };
    region.selection.replay(runtime, op, inputs, outs)
}

fn recompute(runtime: &Runtime, region: &Rc<Region>) -> Result<()> {
    let inputs: Vec<Tensor> = region
        .inputs
        .iter()
        .map(|(saved, wants)| {
            let mut input = saved.tensor.clone();
            input.grad_ref = wants.then(|| GradRef::Value(runtime.fresh_value()));
            input
        })
        .collect();
    let phase = runtime.set_phase(Phase::Recompute);
    let module = runtime.set_module(region.module);
    let site = runtime.set_random_site(region.random_site);
    let grad = runtime.set_grad_enabled(true);
    runtime.tape().region = Some(Running::Recompute(region.clone()));
    region.selection.rewind();
    let run = || (region.forward)(&inputs);
    let result = match region.autocast {
        Some((low, lists)) => runtime.with_autocast(low, lists, run),
        None => runtime.without_autocast(run),
    };
    runtime.tape().region = None;
    runtime.set_grad_enabled(grad);
    runtime.set_random_site(site);
    runtime.set_module(module);
    runtime.set_phase(phase);
    // What was kept is now where backward looks for it.
    region.selection.release();
    match result {
        Ok(_) | Err(Error::StopRecompute) => {
            region.made.borrow_mut().get_or_insert_default();
            Ok(())
        }
        Err(other) => Err(other),
    }
}
