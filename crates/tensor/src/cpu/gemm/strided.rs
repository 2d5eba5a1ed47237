//! Batches of products over the layouts of tensors.

use super::{Element, Matrix, MatrixMut, Product, run};
use crate::cpu::Input;
use crate::layout::Layout;
use smallvec::SmallVec;

/// Elements of a storage and where those of a tensor lie in it.
#[derive(Clone, Copy)]
pub struct Strided<'a, T> {
    /// All elements of the storage.
    pub data: &'a [T],
    /// Shape, strides, offset.
    pub layout: &'a Layout,
}

impl<'a, T: Element> Strided<'a, T> {
    /// Of an operand, if its elements are of this size and it is not written over.
    pub fn of(input: &'a Input<'_>) -> Option<Self> {
        Some(Self { data: input.storage()?, layout: input.layout })
    }

    /// A vector as a matrix of one row.
    ///
    /// # Shapes
    /// self `n`
    pub fn row(self) -> Matrix<'a> {
        let (n, stride) = (self.layout.shape()[0] as usize, self.layout.strides()[0] as isize);
        Matrix::new(self.data, self.layout.offset() as usize, (1, n), (0, stride))
    }
}

/// `C = A B + bias` for each matrix of a batch. No operand is copied.
///
/// A batch that the second factor does not depend on is one product of many rows, where the rows of the first allow it.
///
/// # Shapes
/// a `batch.. m k`, b `batch.. k n`, c `batch.. m n` dense, bias `1 n`
///
/// # Panics
/// If the shapes do not fit.
pub fn batched<T: Element>(a: Strided<'_, T>, b: Strided<'_, T>, c: &mut [T], bias: Option<Matrix<'_>>) {
    if c.is_empty() {
        return;
    }
    let rank = a.layout.rank();
    let (shape, strides) = (a.layout.shape(), a.layout.strides());
    let (k, n) = (shape[rank - 1] as usize, b.layout.shape()[rank - 1] as usize);
    let (mut m, mut row_stride) = (shape[rank - 2], strides[rank - 2]);
    let mut outer = rank - 2;
    while outer > 0 {
        let (size, a_stride, b_stride) = (shape[outer - 1], strides[outer - 1], b.layout.strides()[outer - 1]);
        let continues = m == 1 || a_stride == m as i64 * row_stride;
        if size != 1 && !(b_stride == 0 && continues) {
            break;
        }
        if size != 1 {
            row_stride = if m == 1 { a_stride } else { row_stride };
            m *= size;
        }
        outer -= 1;
    }
    let m = m as usize;
    let (a_strides, b_strides) = (
        (row_stride as isize, strides[rank - 1] as isize),
        (b.layout.strides()[rank - 2] as isize, b.layout.strides()[rank - 1] as isize),
    );
    let starts = first_elements(a.layout, outer).zip(first_elements(b.layout, outer));
    let mut products: SmallVec<[Product<'_>; 1]> = c
        .chunks_exact_mut(m * n)
        .zip(starts)
        .map(|(c, (at_a, at_b))| {
            let a = Matrix::new(a.data, at_a, (m, k), a_strides);
            let b = Matrix::new(b.data, at_b, (k, n), b_strides);
            let product = Product::new(a, b, MatrixMut::new(c, (m, n), n));
            match bias {
                Some(bias) => product.bias(bias),
                None => product,
            }
        })
        .collect();
    run(&mut products);
}

/// Positions of the first element of each part that the first `outer` dimensions tell apart.
fn first_elements(layout: &Layout, outer: usize) -> impl Iterator<Item = usize> {
    let (shape, strides, offset) = (&layout.shape()[..outer], &layout.strides()[..outer], layout.offset() as i64);
    let count: u64 = shape.iter().product();
    (0..count).map(move |index| {
        let mut left = index as i64;
        let step = |(&size, &stride): (&u64, &i64)| {
            let i = left % size as i64;
            left /= size as i64;
            i * stride
        };
        (offset + shape.iter().zip(strides).rev().map(step).sum::<i64>()) as usize
    })
}
