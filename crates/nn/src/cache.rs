//! Keys and values of the tokens before: what lets a model say the next token without reading all of them again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use tensor::meter::ModuleId;
use tensor::{Error, Result, Role, Tensor};

/// Keys and values of every layer, for up to `capacity` tokens.
///
/// They are kept per head as attention reads them, for latent attention too.
#[derive(Debug)]
pub struct KvCache {
    capacity: u64,
    len: Cell<u64>,
    layers: RefCell<BTreeMap<ModuleId, (Tensor, Tensor)>>,
}

impl KvCache {
    /// An empty cache. Its tensors are made as the first tokens come.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, len: Cell::new(0), layers: RefCell::default() }
    }

    /// A cache that holds `past` tokens already: what a pass on the device without data continues.
    pub fn after(past: u64, capacity: u64) -> Self {
        Self { capacity, len: Cell::new(past), layers: RefCell::default() }
    }

    /// Tokens whose keys and values it holds.
    pub fn len(&self) -> u64 {
        self.len.get()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens it has room for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of its tensors.
    pub fn bytes(&self) -> u64 {
        self.layers.borrow().values().map(|(k, v)| k.storage().bytes() + v.storage().bytes()).sum()
    }

    /// Adds keys and values of new tokens in the current module; gives those of all tokens.
    ///
    /// # Shapes
    /// `b k new d`, `b k new dv` -> `b k (len + new) d`, `b k (len + new) dv`
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no room.
    pub fn extend(&self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (start, new) = (self.len(), k.size(2));
        if start + new > self.capacity {
            let what = format!("{new} more tokens after {start} are more than the {} there is room for", self.capacity);
            return Err(Error::Argument { op: "kv_cache", what });
        }
        let runtime = k.runtime().clone();
        let mut layers = self.layers.borrow_mut();
        let room = |t: &Tensor| -> Result<Tensor> {
            let shape = [t.size(0), t.size(1), self.capacity, t.size(3)];
            Ok(runtime.zeros(&shape, t.dtype())?.with_role(Role::Buffer))
        };
        let (keys, values) = match layers.entry(runtime.module()) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => place.insert((room(k)?, room(v)?)),
        };
        keys.narrow(2, start, new)?.copy_(k)?;
        values.narrow(2, start, new)?.copy_(v)?;
        Ok((keys.narrow(2, 0, start + new)?, values.narrow(2, 0, start + new)?))
    }

    /// The tokens of a forward pass are complete: all layers have added them.
    pub(crate) fn advance(&self, new: u64) {
        self.len.set(self.len() + new);
    }
}
