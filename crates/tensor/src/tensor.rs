//! The tensor handle.

use crate::apply::apply;
use crate::autograd::{GradRef, Leaf};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{self, Data};
use crate::layout::Layout;
use crate::meter::{Role, TensorRef};
use crate::ops::Op;
use crate::runtime::Runtime;
use crate::storage::Storage;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A strided view of a storage, with an optional place in the autograd graph.
///
/// Cloning copies the handle, never the bytes.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) storage: Rc<Storage>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) dtype: DType,
    pub(crate) grad_ref: Option<GradRef>,
}

/// What a tensor was at some time: equal to that of another exactly if both are the same elements, unchanged in between,
/// with the same place in the autograd graph. It keeps no bytes.
#[derive(Clone)]
pub struct Identity {
    storage: Weak<Storage>,
    version: u32,
    dtype: DType,
    layout: Arc<Layout>,
    /// Whether it is a leaf, and the number it has as a leaf or as a value.
    node: Option<(bool, u64)>,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.storage.ptr_eq(&other.storage)
            && (self.version, self.dtype, self.node) == (other.version, other.dtype, other.node)
            && self.layout == other.layout
    }
}

/// What an op needs to know of an operand to infer shapes and costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Element type.
    pub dtype: DType,
    /// Shape, strides, offset.
    pub layout: Arc<Layout>,
}

impl Spec {
    /// Sizes of the dimensions.
    pub fn shape(&self) -> &[u64] {
        self.layout.shape()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.layout.elements()
    }

    /// Unique bytes a full read touches.
    pub fn unique_bytes(&self) -> u64 {
        self.layout.unique_elements() * self.dtype.size_in_bytes()
    }

    /// Bytes of all elements the shape names.
    pub fn bytes(&self) -> u64 {
        self.layout.elements() * self.dtype.size_in_bytes()
    }
}

impl Tensor {
    /// Runtime it belongs to.
    pub fn runtime(&self) -> &Runtime {
        self.storage.runtime()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &[u64] {
        self.layout.shape()
    }

    /// Size of dimension `dim` (negative counts from the end).
    ///
    /// # Panics
    /// If there is no such dimension; use it for dimensions the program made itself.
    pub fn size(&self, dim: isize) -> u64 {
        self.shape()[self.layout.dim("size", dim).expect("dimension exists")]
    }

    /// Strides in elements.
    pub fn stride(&self) -> &[i64] {
        self.layout.strides()
    }

    /// Offset of the first element in its storage, in elements.
    pub fn storage_offset(&self) -> u64 {
        self.layout.offset()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.layout.rank()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.layout.elements()
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// An address-like number: equal for two tensors exactly if their first elements are the same bytes.
    pub fn data_ptr(&self) -> (u32, u64) {
        (self.storage.id().0, self.layout.offset() * self.dtype.size_in_bytes())
    }

    /// Whether both are views of one storage.
    pub fn shares_storage_with(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.storage, &other.storage)
    }

    /// The storage behind it.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Shape and dtype, for rules.
    pub fn spec(&self) -> Spec {
        Spec { dtype: self.dtype, layout: self.layout.clone() }
    }

    pub(crate) fn event_ref(&self) -> TensorRef {
        TensorRef { storage: self.storage.id(), dtype: self.dtype, layout: self.layout.clone() }
    }

    // --- autograd

    /// Whether gradients flow to or through this tensor.
    pub fn requires_grad(&self) -> bool {
        self.grad_ref.is_some()
    }

    /// What this tensor is now, to be told from others later.
    pub fn identity(&self) -> Identity {
        Identity {
            storage: Rc::downgrade(&self.storage),
            version: self.storage.version(),
            dtype: self.dtype,
            layout: self.layout.clone(),
            node: self.grad_ref.as_ref().map(|node| match node {
                GradRef::Leaf(leaf) => (true, leaf.id()),
                GradRef::Value(value) => (false, *value),
            }),
        }
    }

    /// Whether this tensor collects its gradient itself.
    pub(crate) fn is_leaf(&self) -> bool {
        matches!(self.grad_ref, Some(GradRef::Leaf(_)))
    }

    /// Makes this tensor a leaf that collects a gradient.
    ///
    /// # Errors
    /// [`Error::DType`] unless it is of a floating-point dtype.
    pub fn require_grad(mut self) -> Result<Self> {
        if !self.dtype.is_float() {
            return Err(Error::DType { op: "require_grad", got: self.dtype, expected: "a floating-point dtype" });
        }
        self.grad_ref = Some(GradRef::Leaf(Leaf::new()));
        Ok(self)
    }

    /// The same bytes without history.
    pub fn detach(&self) -> Self {
        Self { grad_ref: None, ..self.clone() }
    }

    /// The gradient collected by this leaf.
    pub fn grad(&self) -> Option<Self> {
        match &self.grad_ref {
            Some(GradRef::Leaf(leaf)) => leaf.gradient(),
            _ => None,
        }
    }

    /// Forgets the gradient, freeing its bytes if nobody else holds them.
    pub fn zero_grad(&self) {
        if let Some(GradRef::Leaf(leaf)) = &self.grad_ref {
            leaf.set_gradient(None);
        }
    }

    /// Replaces the gradient of this leaf (clipping, unscaling).
    pub fn set_grad(&self, grad: Option<Self>) {
        if let Some(GradRef::Leaf(leaf)) = &self.grad_ref {
            leaf.set_gradient(grad);
        }
    }

    /// Whether kernels that make this leaf's gradient add it to the buffer of another dtype that collects it, as fused ones
    /// do, instead of making it first. Default: they make it first.
    pub fn set_adds_to_buffer(&self, on: bool) {
        if let Some(GradRef::Leaf(leaf)) = &self.grad_ref {
            leaf.adds_to_buffer.set(on);
        }
    }

    /// Marks the storage as held in a role (parameter, optimizer state, input, ...).
    pub fn with_role(self, role: Role) -> Self {
        self.storage.hold(role);
        self
    }

    // --- data

    /// All elements in row-major order as f64.
    ///
    /// # Errors
    /// [`Error::NoData`] on the meta device.
    pub fn to_vec(&self) -> Result<Vec<f64>> {
        let buffer = self.storage.read("to_vec")?;
        Ok(match kernel::load::<f64>(&buffer, self.dtype, &self.layout, false) {
            Data::Num(a) => a.data,
            Data::Int(a) => a.data.into_iter().map(|x| x as f64).collect(),
        })
    }

    /// The only element.
    pub fn item(&self) -> Result<f64> {
        if self.elements() != 1 {
            return Err(Error::Elements { op: "item", from: self.shape().into(), to: crate::layout::Dims::new() });
        }
        Ok(self.to_vec()?[0])
    }

    /// Runs `read` on the bytes of all elements in row-major order, as they lie in memory.
    ///
    /// # Errors
    /// [`Error::NoData`] on the meta device, [`Error::Argument`] if the elements do not lie row-major without gaps.
    pub fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let range = self.byte_range("with_bytes")?;
        let buffer = self.storage.read("with_bytes")?;
        Ok(read(&buffer.bytes()[range]))
    }

    /// Lets `write` overwrite the bytes of all elements in row-major order, in this tensor and its base.
    ///
    /// # Errors
    /// As [`Tensor::with_bytes`]; [`Error::InPlaceOnGraph`] if a gradient flows to it: write through
    /// [`detach`](Tensor::detach).
    pub fn with_bytes_mut<R>(&self, write: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        if self.requires_grad() {
            return Err(Error::InPlaceOnGraph { op: "with_bytes_mut" });
        }
        let range = self.byte_range("with_bytes_mut")?;
        let mut buffer = self.storage.write("with_bytes_mut")?;
        self.storage.bump_version();
        Ok(write(&mut buffer.bytes_mut()[range]))
    }

    fn byte_range(&self, op: &'static str) -> Result<Range<usize>> {
        if !self.is_contiguous() {
            let what = format!("elements of strides {:?} do not lie row-major: call `contiguous` first", self.stride());
            return Err(Error::Argument { op, what });
        }
        if self.elements() == 0 {
            return Ok(0..0);
        }
        let size = self.dtype.size_in_bytes();
        let start = self.layout.offset() * size;
        Ok(start as usize..(start + self.elements() * size) as usize)
    }

    /// Applies an op of one output.
    pub(crate) fn op(op: impl Into<Op>, inputs: &[&Self]) -> Result<Self> {
        let mut out = apply(op.into(), inputs)?;
        Ok(out.swap_remove(0))
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} in {:?}", self.dtype.name(), self.layout, self.storage)
    }
}
