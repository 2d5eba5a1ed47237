//! Tensors that are made again when backward asks for them, from something smaller: parts that were gathered.

use super::Saved;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::meter::Role;
use crate::ops::Op;
use crate::runtime::Runtime;
use crate::storage::Storage;
use crate::tensor::{Spec, Tensor};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// How a tensor is made again.
pub(super) struct Remake {
    op: Op,
    /// What it is made of, kept once something asks to keep the tensor.
    from: RefCell<Option<Saved>>,
    /// The tensor, from the first node that asks for it to the last.
    made: RefCell<Option<Tensor>>,
}

/// A tensor that can be made again while what it was made of is there. Neither is held.
struct Known {
    made: Weak<Storage>,
    from: (Weak<Storage>, Spec),
    remake: Rc<Remake>,
}

/// Tensors of the running forward pass that can be made again.
#[derive(Default)]
pub(super) struct Remakes(Vec<Known>);

/// A saved tensor that will be made again: how, and which part of what is made.
pub(super) struct Again(Rc<Remake>, Arc<Layout>);

impl Remakes {
    /// What of `tensor` would be kept, if it can be made again.
    pub(super) fn find(&mut self, tensor: &Tensor, role: Role) -> Option<Again> {
        self.0.retain(|known| known.made.strong_count() > 0);
        let known = self.0.iter().find(|known| std::ptr::eq(known.made.as_ptr(), Rc::as_ptr(&tensor.storage)))?;
        let mut from = known.remake.from.borrow_mut();
        if from.is_none() {
            let (storage, spec) = (known.from.0.upgrade()?, &known.from.1);
            let tensor = Tensor { storage, layout: spec.layout.clone(), dtype: spec.dtype, grad_ref: None };
            *from = Some(Saved::new(&tensor, role));
        }
        Some(Again(known.remake.clone(), tensor.layout.clone()))
    }
}

/// Notes that `made` is what `op` makes of `from`, so that nothing need keep it.
pub(crate) fn note_remake(runtime: &Runtime, made: &Tensor, op: Op, from: &Tensor) {
    let remake = Rc::new(Remake { op, from: RefCell::new(None), made: RefCell::new(None) });
    let from = (Rc::downgrade(&from.storage), from.spec());
    runtime.tape().remakes.0.push(Known { made: Rc::downgrade(&made.storage), from, remake });
}

/// The tensor, made again unless a node before has done so.
pub(super) fn unpack(again: &Again, role: Role) -> Result<Saved> {
    let Again(remake, layout) = again;
    let mut made = remake.made.borrow_mut();
    let whole = if let Some(whole) = &*made {
        whole
    } else {
        let from = remake.from.borrow();
        let from = from.as_ref().ok_or(Error::Backward("what a tensor is made of again was not kept"))?;
        if from.tensor.storage.version() != from.version {
            return Err(Error::SavedWasChanged { op: remake.op.name() });
        }
        made.insert(Tensor::op(remake.op.clone(), &[&from.tensor])?)
    };
    Ok(Saved::new(&Tensor { layout: layout.clone(), ..whole.detach() }, role))
}
