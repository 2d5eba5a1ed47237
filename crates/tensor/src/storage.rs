//! The bytes behind tensors: allocated in one place, freed by `Drop`, with a role that follows the holders.

use crate::arena::Buffer;
use crate::error::{Error, Result};
use crate::meter::{Role, StorageId};
use crate::runtime::Runtime;
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;

/// A block of bytes on a device. Shared by all tensors that are views of it.
pub struct Storage {
    id: StorageId,
    bytes: u64,
    runtime: Runtime,
    data: Option<RefCell<Buffer>>,
    holds: Cell<[u16; Role::ALL.len()]>,
    version: Cell<u32>,
}

impl Storage {
    /// The one door through which bytes are allocated. What they hold is left from before: who asked writes them all.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the system has no more.
    pub(crate) fn allocate(runtime: &Runtime, bytes: u64, role: Role) -> Result<Rc<Self>> {
        let data = if runtime.holds_data() {
            let out_of_memory =
                || Error::OutOfMemory { bytes, live: runtime.live_bytes(), reserved: runtime.arena().usage().reserved };
            Some(RefCell::new(runtime.arena().buffer(bytes).ok_or_else(out_of_memory)?))
        } else {
            None
        };
        let mut holds = [0u16; Role::ALL.len()];
        holds[role as usize] = 1;
        let id = runtime.meter().alloc(bytes, role, runtime.module(), runtime.phase());
        Ok(Rc::new(Self { id, bytes, runtime: runtime.clone(), data, holds: Cell::new(holds), version: Cell::new(0) }))
    }

    /// Identity of this storage in the trace.
    pub fn id(&self) -> StorageId {
        self.id
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Runtime it belongs to.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Role by precedence among the holders.
    pub fn role(&self) -> Role {
        let holds = self.holds.get();
        Role::ALL.into_iter().find(|&r| holds[r as usize] > 0).unwrap_or(Role::Temporary)
    }

    fn change_holds(&self, role: Role, by: i32) {
        let before = self.role();
        let mut holds = self.holds.get();
        let count = &mut holds[role as usize];
        *count = (i32::from(*count) + by).clamp(0, i32::from(u16::MAX)) as u16;
        self.holds.set(holds);
        let after = self.role();
        if before != after {
            self.runtime.meter().role(self.id, after);
        }
    }

    /// One more holder of the given kind.
    pub(crate) fn hold(&self, role: Role) {
        self.change_holds(role, 1);
    }

    /// One holder less.
    pub(crate) fn release(&self, role: Role) {
        self.change_holds(role, -1);
    }

    /// Number of in-place writes so far.
    pub(crate) fn version(&self) -> u32 {
        self.version.get()
    }

    pub(crate) fn bump_version(&self) {
        self.version.set(self.version.get().wrapping_add(1));
    }

    /// The bytes, for kernels.
    pub(crate) fn read(&self, op: &'static str) -> Result<Ref<'_, Buffer>> {
        self.data.as_ref().map(RefCell::borrow).ok_or(Error::NoData { op })
    }

    /// The bytes, if there are any and nobody writes them.
    #[cfg(feature = "cpu")]
    pub(crate) fn try_read(&self) -> Option<Ref<'_, Buffer>> {
        self.data.as_ref()?.try_borrow().ok()
    }

    /// The bytes to write, if there are any and nobody uses them.
    #[cfg(feature = "cpu")]
    pub(crate) fn try_write(&self) -> Option<RefMut<'_, Buffer>> {
        self.data.as_ref()?.try_borrow_mut().ok()
    }

    /// The bytes, for kernels that write.
    pub(crate) fn write(&self, op: &'static str) -> Result<RefMut<'_, Buffer>> {
        self.data.as_ref().map(RefCell::borrow_mut).ok_or(Error::NoData { op })
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.runtime.meter().free(self.id, self.bytes);
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "storage {} ({} B, {})", self.id.0, self.bytes, self.role().name())
    }
}
