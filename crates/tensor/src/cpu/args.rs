//! The operands of a fast kernel: typed slices over the bytes of their storages.

use super::typed::{Typed, TypedMut};
use crate::arena::Buffer;
use crate::dtype::DType;
use crate::layout::Layout;
use crate::ops::Out;
use crate::tensor::Tensor;
use bytemuck::Pod;
use smallvec::SmallVec;
use std::cell::{Ref, RefMut};

/// Operands of one op, borrowed while its kernel runs.
///
/// The two fields are apart so that a kernel can read inputs while it writes outputs.
pub struct Args<'a> {
    /// What is read.
    pub inputs: SmallVec<[Input<'a>; 4]>,
    /// What is written.
    pub outputs: SmallVec<[Output<'a>; 2]>,
}

/// An operand that is read.
pub struct Input<'a> {
    source: Source<'a>,
    /// Element type.
    pub dtype: DType,
    /// Shape, strides, offset.
    pub layout: &'a Layout,
}

enum Source<'a> {
    Own(Ref<'a, Buffer>),
    /// The very tensor that is written as output `j`: an in-place op, or storage taken over.
    Output(usize),
}

/// An operand that is written.
///
/// A fresh output holds garbage: a kernel writes every element. One that is overwritten in place holds its old contents.
pub struct Output<'a> {
    data: RefMut<'a, Buffer>,
    /// Element type.
    pub dtype: DType,
    /// Shape, strides, offset.
    pub layout: &'a Layout,
}

impl<'a> Args<'a> {
    /// Borrows the operands. `None` if one overlaps another in a way that slices cannot express (a view of what is
    /// written that is not exactly what is written): the plain kernel copies first and can do it.
    pub(crate) fn borrow(inputs: &[&'a Tensor], outs: &[Out], outputs: &'a [Tensor]) -> Option<Self> {
        let mut written = SmallVec::new();
        for output in outputs {
            let data = output.storage.try_write()?;
            written.push(Output { data, dtype: output.dtype, layout: &output.layout });
        }
        let mut read = SmallVec::new();
        for (i, &input) in inputs.iter().enumerate() {
            let shared = outputs.iter().position(|o| o.shares_storage_with(input));
            let same = |j: usize| {
                let in_place = matches!(outs[j], Out::InPlace(of) if of == i);
                in_place || (outputs[j].dtype == input.dtype && outputs[j].layout == input.layout)
            };
            let source = match shared {
                None => Source::Own(input.storage.try_read()?),
                Some(j) if same(j) => Source::Output(j),
                Some(_) => return None,
            };
            read.push(Input { source, dtype: input.dtype, layout: &input.layout });
        }
        Some(Self { inputs: read, outputs: written })
    }
}

impl Input<'_> {
    /// Which output this operand is, if it is written over.
    pub fn output(&self) -> Option<usize> {
        match self.source {
            Source::Output(j) => Some(j),
            Source::Own(_) => None,
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.layout.elements() as usize
    }

    /// The elements from the first one on, whatever their dtype, unless they are written over.
    pub fn typed(&self) -> Option<Typed<'_>> {
        self.elements_from(self.layout.offset())
    }

    /// The elements of the storage from `offset` on; as [`Input::typed`] otherwise.
    pub fn elements_from(&self, offset: u64) -> Option<Typed<'_>> {
        match &self.source {
            Source::Own(buffer) => Some(Typed::new(self.dtype, buffer.slice()).from(offset as usize)),
            Source::Output(_) => None,
        }
    }

    /// The elements in row-major order, if they lie so, are of type `T`, and are not written over.
    pub fn dense<T: Pod>(&self) -> Option<&[T]> {
        if !self.layout.is_contiguous() {
            return None;
        }
        Some(&self.storage::<T>()?[self.layout.offset() as usize..][..self.elements()])
    }

    /// All elements of the storage, to be indexed by the layout; as [`Input::dense`] otherwise.
    pub fn storage<T: Pod>(&self) -> Option<&[T]> {
        match &self.source {
            Source::Own(buffer) if self.dtype.size_in_bytes() as usize == size_of::<T>() => Some(buffer.slice()),
            _ => None,
        }
    }

    /// The integers of a small integer operand, row-major. `None` if it is a float one or is written over.
    pub fn ints(&self) -> Option<Vec<i64>> {
        fn all<S: Pod>(input: &Input<'_>, widen: impl Fn(S) -> i64) -> Option<Vec<i64>> {
            let storage = input.storage::<S>()?;
            Some(input.layout.positions().map(|at| widen(storage[at])).collect())
        }
        match self.dtype {
            DType::I64 => all(self, |x: i64| x),
            DType::I32 => all(self, |x: i32| x.into()),
            DType::U32 => all(self, |x: u32| x.into()),
            DType::U16 => all(self, |x: u16| x.into()),
            DType::U8 | DType::Bool => all(self, |x: u8| x.into()),
            _ => None,
        }
    }
}

impl Output<'_> {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.layout.elements() as usize
    }

    /// The elements from the first one on, whatever their dtype.
    pub fn typed(&mut self) -> TypedMut<'_> {
        let mut all = TypedMut::new(self.dtype, self.data.slice_mut());
        all.take(self.layout.offset() as usize);
        all.take(self.layout.end().saturating_sub(self.layout.offset()) as usize)
    }

    /// The elements in row-major order, if they lie so and are of the size of `T`.
    pub fn dense<T: Pod>(&mut self) -> Option<&mut [T]> {
        if !self.layout.is_contiguous() {
            return None;
        }
        let (start, count) = (self.layout.offset() as usize, self.elements());
        Some(&mut self.storage::<T>()?[start..][..count])
    }

    /// All elements of the storage, to be indexed by the layout.
    pub fn storage<T: Pod>(&mut self) -> Option<&mut [T]> {
        (self.dtype.size_in_bytes() as usize == size_of::<T>()).then(|| self.data.slice_mut())
    }
}
