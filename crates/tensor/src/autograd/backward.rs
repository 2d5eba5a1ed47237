//! The backward pass: takes nodes off the tape and passes gradients on.

use super::{GradRef, Leaf, Node, Saved, Slot, checkpoint, remake};
use crate::apply::apply_reusing;
use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::meter::Phase;
use crate::ops::{Needs, Op, binary::Binary};
use crate::runtime::{Accumulate, Runtime};
use crate::tensor::{Spec, Tensor};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;

/// What a gradient rule sees: saved tensors, shapes, and the gradients of the outputs.
pub struct Back<'a> {
    node: &'a Node,
    inputs: SmallVec<[Option<Saved>; 2]>,
    outputs: SmallVec<[Option<Saved>; 1]>,
    grads: SmallVec<[Option<Tensor>; 1]>,
    needs: Needs,
    pending: &'a Pending,
}

impl Back<'_> {
    /// Whether input `i` wants a gradient.
    pub fn wants(&self, i: usize) -> bool {
        self.needs.wants(i)
    }

    /// Saved input `i`.
    ///
    /// # Errors
    /// [`Error::SavedWasChanged`] if it was written in place since.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        self.saved(self.inputs[i].as_ref())
    }

    /// Saved output `j`.
    ///
    /// # Errors
    /// [`Error::SavedWasChanged`] if it was written in place since.
    pub fn output(&self, j: usize) -> Result<&Tensor> {
        self.saved(self.outputs[j].as_ref())
    }

    /// Applies a backward op of one output, which is written over saved input `slot` where this is its last handle and
    /// the runtime allows it ([`Runtime::set_overwrite_saved`]): for an op that reads each element of it before it writes
    /// that element. The rule must not ask for the saved input afterwards.
    ///
    /// # Errors
    /// Those of the op.
    pub fn apply_over(&self, op: impl Into<Op>, inputs: &[&Tensor], slot: usize) -> Result<Tensor> {
        let op = op.into();
        if !inputs[slot].runtime().overwrite_saved() {
            return Tensor::op(op, inputs);
        }
        Ok(apply_reusing(op, inputs, slot)?.swap_remove(0))
    }

    /// Saved input `i`, of which it does not matter that it was written in place since: something that several nodes add
    /// to.
    ///
    /// # Errors
    /// If it was not saved.
    pub fn accumulator(&self, i: usize) -> Result<&Tensor> {
        let saved = self.inputs[i].as_ref();
        saved.map(|saved| &saved.tensor).ok_or(Error::Backward("a gradient rule asked for a tensor it did not save"))
    }

    /// Takes the gradient that input `i` has collected so far, for a rule that adds its contribution to it in place and
    /// gives back the sum: where the contribution is mostly zeros, a tensor of them is spared.
    ///
    /// `None` if there is none yet, somebody else holds it, it is not in the input's shape and dtype and row-major, or
    /// gradients are not to be added in place: the rule then gives back its contribution alone.
    pub fn take_collected(&self, i: usize) -> Option<Tensor> {
        let spec = self.spec(i);
        let fits = |sum: &Tensor| {
            let own = Rc::strong_count(&sum.storage) == 1;
            own && sum.is_contiguous() && sum.dtype() == spec.dtype && sum.shape() == spec.shape()
        };
        self.pending.take_if(self.node.inputs[i].as_ref()?, fits)
    }

    /// The buffer in which input `i` collects its gradient, where kernels add to it themselves
    /// ([`Tensor::set_adds_to_buffer`]): the rule then adds its contribution, and gives none back.
    pub fn buffer(&self, i: usize) -> Option<Tensor> {
        let Some(GradRef::Leaf(leaf)) = self.node.inputs[i].as_ref() else { return None };
        let buffer = leaf.gradient().filter(|_| leaf.adds_to_buffer.get())?;
        (buffer.dtype() != self.spec(i).dtype && buffer.is_contiguous()).then_some(buffer)
    }

    fn saved<'s>(&self, saved: Option<&'s Saved>) -> Result<&'s Tensor> {
        let saved = saved.ok_or(Error::Backward("a gradient rule asked for a tensor it did not save"))?;
        if saved.tensor.storage.version() == saved.version {
            Ok(&saved.tensor)
        } else {
            Err(Error::SavedWasChanged { op: self.node.op.name() })
        }
    }

    /// Shape and dtype of input `i`, saved or not.
    pub fn spec(&self, i: usize) -> &Spec {
        &self.node.specs[i]
    }

    /// Number of inputs.
    pub fn len(&self) -> usize {
        self.node.specs.len()
    }

    /// Whether the op had no inputs.
    pub fn is_empty(&self) -> bool {
        self.node.specs.is_empty()
    }

    /// Shape and dtype of output `j`.
    pub fn out_spec(&self, j: usize) -> &Spec {
        &self.node.out_specs[j]
    }

    /// Gradient of output 0.
    ///
    /// # Errors
    /// If only another output received one; ops with several outputs ask [`Back::grad_of`].
    pub fn grad(&self) -> Result<&Tensor> {
        self.grad_of(0).ok_or(Error::Backward("no gradient reached the first output"))
    }

    /// Gradient of output `j`, if one reached it.
    pub fn grad_of(&self, j: usize) -> Option<&Tensor> {
        self.grads[j].as_ref()
    }
}

/// Gradients of values on their way to the node that made the value.
struct Pending {
    runtime: Runtime,
    slots: RefCell<Vec<Option<Tensor>>>,
}

impl Pending {
    fn take(&self, value: u64) -> Option<Tensor> {
        self.slots.borrow_mut().get_mut(value as usize)?.take()
    }

    /// Takes what was collected if gradients are added in place and it is fit for that.
    fn take_if(&self, from: &GradRef, fits: impl Fn(&Tensor) -> bool) -> Option<Tensor> {
        if self.runtime.accumulate() == Accumulate::OutOfPlace {
            return None;
        }
        match from {
            GradRef::Leaf(leaf) => leaf.gradient.borrow_mut().take_if(|sum| fits(sum)),
            GradRef::Value(value) => self.slots.borrow_mut().get_mut(*value as usize)?.take_if(|sum| fits(sum)),
        }
    }

    /// Adds a contribution: the first is moved, later ones are added.
    fn add(&self, to: &GradRef, grad: Tensor) -> Result<()> {
        match to {
            GradRef::Leaf(leaf) => self.add_to_leaf(leaf, grad),
            GradRef::Value(value) => {
                let sum = match self.take(*value) {
                    None => grad,
                    Some(first) => self.sum(first, grad)?,
                };
                let (at, mut slots) = (*value as usize, self.slots.borrow_mut());
                if at >= slots.len() {
                    slots.resize(at + 1, None);
                }
                slots[at] = Some(sum);
                Ok(())
            }
        }
    }

    fn sum(&self, first: Tensor, second: Tensor) -> Result<Tensor> {
        let add = Op::Binary(Binary::ADD);
        match self.runtime.accumulate() {
            Accumulate::OutOfPlace => Tensor::op(add, &[&first, &second]),
            Accumulate::InPlace => {
                let mut out = apply_reusing(add, &[&first, &second], 0)?;
                Ok(out.swap_remove(0))
            }
        }
    }

    fn add_to_leaf(&self, leaf: &Leaf, grad: Tensor) -> Result<()> {
        let sum = match leaf.take() {
            // The gradient is taken over if it is nobody else's and laid out plainly, else copied.
            None if Rc::strong_count(&grad.storage) == 1 && grad.is_contiguous() => grad,
            None => grad.copy()?,
            // Gradients of an earlier micro-batch are added to in place: optimizers and hooks hold their handle.
            Some(old) if !leaf.fresh.get() => old.add_(&grad)?,
            Some(first) => self.sum(first, grad)?,
        };
        leaf.fresh.set(true);
        leaf.set_gradient(Some(sum));
        Ok(())
    }
}

impl Tensor {
    /// Runs the backward pass from this scalar and consumes the tape.
    ///
    /// # Errors
    /// [`Error::Backward`] if it is not a scalar or has no history (or its history was consumed already).
    pub fn backward(&self) -> Result<()> {
        if self.elements() != 1 {
            return Err(Error::Backward(
                "only a scalar has a gradient without a direction: reduce it, or use backward_with",
            ));
        }
        let runtime = self.runtime().clone();
        let before = runtime.set_phase(Phase::Backward);
        let seed = runtime.no_grad(|| runtime.full(self.shape(), 1.0, self.dtype()));
        let result = seed.and_then(|seed| self.backward_with(seed));
        runtime.set_phase(before);
        result
    }

    /// Runs the backward pass from this tensor, given the gradient of the result with respect to it.
    ///
    /// # Errors
    /// [`Error::Elements`] if shapes differ, otherwise as [`Tensor::backward`].
    pub fn backward_with(&self, grad: Tensor) -> Result<()> {
        self.root()?.backward(grad)
    }

    /// Where its history ends: all of the tensor that a backward pass needs.
    ///
    /// # Errors
    /// [`Error::Backward`] if it has none.
    pub fn root(&self) -> Result<Root> {
        let Some(GradRef::Value(value)) = &self.grad_ref else {
            return Err(Error::Backward("the tensor has no history: nothing it was computed from requires a gradient"));
        };
        Ok(Root { value: *value, shape: self.shape().into(), runtime: self.runtime().clone() })
    }
}

/// The end of a history, without the data of the tensor there: a pipeline stage that has sent its output on needs no more.
#[derive(Debug)]
pub struct Root {
    value: u64,
    shape: Dims,
    runtime: Runtime,
}

impl Root {
    /// Runs the backward pass from here, given the gradient of the result with respect to the tensor.
    ///
    /// # Errors
    /// As [`Tensor::backward_with`].
    pub fn backward(self, grad: Tensor) -> Result<()> {
        let Self { value, shape, runtime } = self;
        if grad.shape() != shape.as_slice() {
            return Err(Error::Elements { op: "backward", from: shape, to: grad.shape().into() });
        }
        let known = runtime.tape().nodes.iter().any(|n| n.out_values.contains(&value));
        if !known {
            return Err(Error::Backward(
                "the history was consumed by an earlier backward pass; double backward is not supported",
            ));
        }
        let pending = Pending { runtime: runtime.clone(), slots: RefCell::default() };
        pending.add(&GradRef::Value(value), grad)?;
        let (module, phase) = (runtime.module(), runtime.set_phase(Phase::Backward));
        let result = run(&runtime, &pending);
        runtime.set_module(module);
        runtime.set_phase(phase);
        result
    }
}

fn run(runtime: &Runtime, pending: &Pending) -> Result<()> {
    let mut leaves: Vec<Rc<Leaf>> = Vec::new();
    loop {
        let Some(mut node) = runtime.tape().nodes.pop() else { break };
        let grads: SmallVec<[Option<Tensor>; 1]> = node.out_values.iter().map(|&v| pending.take(v)).collect();
        if grads.iter().all(Option::is_none) {
            continue;
        }
        runtime.set_module(node.module);
        let inputs = std::mem::take(&mut node.saved_inputs);
        let outputs = std::mem::take(&mut node.saved_outputs);
        let back = Back {
            inputs: inputs.into_iter().map(|s| unpack(runtime, s)).collect::<Result<_>>()?,
            outputs: outputs.into_iter().map(|s| unpack(runtime, s)).collect::<Result<_>>()?,
            needs: Needs::of(node.inputs.iter().map(Option::is_some)),
            node: &node,
            grads,
            pending,
        };
        let before = runtime.set_grad_enabled(false);
        let result = runtime.without_autocast(|| node.op.gradient(&back));
        // Saved tensors and the incoming gradient go before the contributions are added up.
        drop(back);
        let passed = result.and_then(|grads| {
            for (edge, grad) in node.inputs.iter().zip(grads) {
                if let (Some(edge), Some(grad)) = (edge, grad) {
                    if let GradRef::Leaf(leaf) = edge
                        && !leaf.fresh.get()
                    {
                        leaves.push(leaf.clone());
                    }
                    pending.add(edge, grad)?;
                }
            }
            Ok(())
        });
        runtime.set_grad_enabled(before);
        passed?;
    }
    for leaf in leaves {
        leaf.fresh.set(false);
    }
    Ok(())
}

/// The saved tensor behind a slot, recomputing its region if that has not happened yet.
fn unpack(runtime: &Runtime, slot: Option<Slot>) -> Result<Option<Saved>> {
    match slot {
        None => Ok(None),
        Some(Slot::Kept(saved)) => Ok(Some(saved)),
        Some(Slot::Again(again)) => runtime.no_grad(|| remake::unpack(&again, runtime.saved_role())).map(Some),
        Some(Slot::Region(region, at)) => checkpoint::unpack(runtime, &region, at).map(Some),
    }
}
