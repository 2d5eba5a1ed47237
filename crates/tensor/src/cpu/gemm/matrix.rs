//! Matrices as products see them: checked views of slices.

use super::block::Job;
use super::element::{Element, Kind};
use super::kernel::Factor;
use crate::layout::Layout;
use std::marker::PhantomData;

/// A strided matrix that is read.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    data: *const u8,
    kind: Kind,
    rows: usize,
    cols: usize,
    row_stride: isize,
    col_stride: isize,
    life: PhantomData<&'a ()>,
}

impl<'a> Matrix<'a> {
    /// The matrix of this shape `(rows, columns)` and these strides (in elements) whose first element is `data[offset]`.
    ///
    /// # Panics
    /// If an element lies outside the slice.
    pub fn new<T: Element>(data: &'a [T], offset: usize, shape: (usize, usize), strides: (isize, isize)) -> Self {
        let ((rows, cols), (row_stride, col_stride)) = (shape, strides);
        if rows > 0 && cols > 0 {
            let ends = [(rows - 1) as isize * row_stride, (cols - 1) as isize * col_stride];
            let lowest = offset as isize + ends[0].min(0) + ends[1].min(0);
            let highest = offset as isize + ends[0].max(0) + ends[1].max(0);
            assert!(lowest >= 0 && highest < data.len() as isize, "the matrix lies within its elements");
        }
        let data = data.as_ptr().wrapping_add(offset).cast();
        Self { data, kind: T::KIND, rows, cols, row_stride, col_stride, life: PhantomData }
    }

    /// The matrix of a layout of rank 2 over the elements of a storage.
    ///
    /// # Panics
    /// If the rank is another one, or an element lies outside the slice.
    pub fn of<T: Element>(data: &'a [T], layout: &Layout) -> Self {
        let (&[rows, cols], &[row_stride, col_stride]) = (layout.shape(), layout.strides()) else {
            panic!("a matrix has rank 2, not {}", layout.rank());
        };
        let (shape, strides) = ((rows as usize, cols as usize), (row_stride as isize, col_stride as isize));
        Self::new(data, layout.offset() as usize, shape, strides)
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows and columns exchanged.
    #[must_use]
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// A matrix that is written; its columns lie side by side.
pub struct MatrixMut<'a> {
    data: *mut u8,
    kind: Kind,
    rows: usize,
    cols: usize,
    row_stride: usize,
    life: PhantomData<&'a mut ()>,
}

impl<'a> MatrixMut<'a> {
    /// The matrix of this shape `(rows, columns)` at the start of `data`, with rows `row_stride` elements apart.
    ///
    /// # Panics
    /// If an element lies outside the slice, or rows overlap.
    pub fn new<T: Element>(data: &'a mut [T], shape: (usize, usize), row_stride: usize) -> Self {
        let (rows, cols) = shape;
        if rows > 0 && cols > 0 {
            assert!(rows == 1 || row_stride >= cols, "rows do not overlap");
            assert!((rows - 1) * row_stride + cols <= data.len(), "the matrix lies within its elements");
        }
        Self { data: data.as_mut_ptr().cast(), kind: T::KIND, rows, cols, row_stride, life: PhantomData }
    }
}

/// A product `C = scale A B + bias`, or `C += A B + bias`.
pub struct Product<'a> {
    a: Matrix<'a>,
    b: Matrix<'a>,
    c: MatrixMut<'a>,
    accumulate: bool,
    scale: f32,
    bias: Option<Matrix<'a>>,
}

impl<'a> Product<'a> {
    /// `C = A B`.
    ///
    /// # Shapes
    /// a `m k`, b `k n`, c `m n`
    ///
    /// # Panics
    /// If the shapes do not fit.
    pub fn new(a: Matrix<'a>, b: Matrix<'a>, c: MatrixMut<'a>) -> Self {
        assert!(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows, "the shapes of a product fit");
        let doubles = [a.kind, b.kind, c.kind].map(|kind| kind == Kind::F64);
        assert!(doubles == [doubles[0]; 3], "f64 meets f64 only");
        assert!(c.kind.bytes() > 1, "8-bit floats are factors only");
        Self { a, b, c, accumulate: false, scale: 1.0, bias: None }
    }

    /// Adds to what `C` holds.
    ///
    /// # Panics
    /// If it is [`scaled`](Self::scaled).
    #[must_use]
    pub fn accumulate(self) -> Self {
        assert!(self.scale == 1.0, "what is scaled is not added");
        Self { accumulate: true, ..self }
    }

    /// Multiplies `A B` with a number.
    ///
    /// # Panics
    /// If it is added to what `C` holds; in f64.
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        assert!(!self.accumulate && self.c.kind != Kind::F64, "what is scaled is not added, and not of f64");
        Self { scale, ..self }
    }

    /// Adds the only row of `bias` to every row.
    ///
    /// # Shapes
    /// bias `1 n`
    ///
    /// # Panics
    /// If the shape does not fit.
    #[must_use]
    pub fn bias(self, bias: Matrix<'a>) -> Self {
        assert!(bias.rows == 1 && bias.cols == self.c.cols, "a bias has one element per column");
        assert!((bias.kind == Kind::F64) == (self.c.kind == Kind::F64), "f64 meets f64 only");
        Self { bias: Some(bias), ..self }
    }

    pub(super) fn job(&mut self) -> Job {
        let factor = |x: Matrix<'_>| Factor { data: x.data, kind: x.kind, line: x.row_stride, depth: x.col_stride };
        Job {
            m: self.c.rows,
            n: self.c.cols,
            k: self.a.cols,
            a: factor(self.a),
            b: factor(self.b.t()),
            c: self.c.data,
            c_kind: self.c.kind,
            c_row: self.c.row_stride as isize,
            accumulate: self.accumulate,
            scale: self.scale,
            bias: self.bias.map(|bias| factor(bias.t())),
        }
    }
}
