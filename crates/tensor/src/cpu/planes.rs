//! Parts of an output that threads may write at the same time.

#![allow(unsafe_code)]

use crate::layout::Layout;
use std::any::TypeId;
use std::marker::PhantomData;
use std::ops::Range;

/// An output of rank 4 as a sequence of planes: for each pair of outer indices, so many rows of the third dimension.
///
/// The layout names no element twice, so no two planes share one, however their rows lie between each other.
pub struct Planes<'a, T> {
    data: *mut T,
    shape: [usize; 4],
    strides: [usize; 4],
    rows: usize,
    left: Range<usize>,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: as a mutable slice; other threads have other elements.
unsafe impl<T: Send> Send for Planes<'_, T> {}

impl<'a, T: Copy> Planes<'a, T> {
    /// The planes of `rows` rows (the last of each pair may have fewer) of the elements that `layout` names.
    ///
    /// `None` if the layout is not of rank 4, names an element twice or one outside the slice, or has a negative stride.
    pub fn new(elements: &'a mut [T], layout: &Layout, rows: usize) -> Option<Self> {
        let shape = <[u64; 4]>::try_from(layout.shape()).ok()?.map(|n| n as usize);
        let strides: [i64; 4] = layout.strides().try_into().ok()?;
        let within = strides.iter().all(|&s| s >= 0) && layout.end() <= elements.len() as u64;
        if !within || layout.overlaps() || rows == 0 {
            return None;
        }
        let count = if shape.contains(&0) { 0 } else { shape[0] * shape[1] * shape[2].div_ceil(rows) };
        let data = elements.as_mut_ptr().wrapping_add(layout.offset() as usize);
        let strides = strides.map(|s| s as usize);
        Some(Self { data, shape, strides, rows, left: 0..count, life: PhantomData })
    }

    /// The first `count` planes, and the others.
    pub fn split_at(self, count: usize) -> (Self, Self) {
        let middle = (self.left.start + count).min(self.left.end);
        (Self { left: self.left.start..middle, ..self }, Self { left: middle..self.left.end, ..self })
    }
}

impl<'a, T: Copy> Iterator for Planes<'a, T> {
    type Item = Plane<'a, T>;

    fn next(&mut self) -> Option<Plane<'a, T>> {
        let index = self.left.next()?;
        let per_pair = self.shape[2].div_ceil(self.rows);
        let (pair, first) = (index / per_pair, index % per_pair * self.rows);
        let at = [pair / self.shape[1], pair % self.shape[1], first];
        let before: usize = at.iter().zip(&self.strides).map(|(i, s)| i * s).sum();
        Some(Plane {
            at,
            rows: self.rows.min(self.shape[2] - first),
            width: self.shape[3],
            data: self.data.wrapping_add(before),
            row: self.strides[2],
            column: self.strides[3],
            life: PhantomData,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl<T: Copy> ExactSizeIterator for Planes<'_, T> {}

/// Rows of numbers that are written.
pub struct Plane<'a, T> {
    /// The two outer indices, and the index of the first row.
    pub at: [usize; 3],
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    data: *mut T,
    row: usize,
    column: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T: Copy> Plane<'a, T> {
    /// All of a slice as rows of `width`, one after another.
    pub fn whole(elements: &'a mut [T], width: usize) -> Self {
        let rows = elements.len() / width;
        Self { at: [0; 3], rows, width, data: elements.as_mut_ptr(), row: width, column: 1, life: PhantomData }
    }

    /// Whether the elements of a row lie side by side.
    pub fn has_dense_rows(&self) -> bool {
        self.column == 1 || self.width == 1
    }

    /// Row `i`, if its elements lie side by side.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&mut self, i: usize) -> Option<&mut [T]> {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        // SAFETY: the elements of this row are in the slice, and nobody else has them.
        self.has_dense_rows().then(|| unsafe { std::slice::from_raw_parts_mut(self.pointer(i), self.width) })
    }

    /// Writes row `i`, whatever its layout: element `j` is what `element` gives for it.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn write(&mut self, i: usize, element: impl Fn(usize) -> T) {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        for j in 0..self.width {
            // SAFETY: element (i, j) is in the slice, and nobody else has it.
            unsafe { *self.pointer(i).add(j * self.column) = element(j) };
        }
    }

    /// The same plane, if its elements are f32.
    pub fn as_f32(&mut self) -> Option<Plane<'_, f32>>
    where
        T: 'static,
    {
        let Self { at, rows, width, row, column, .. } = *self;
        let is_f32 = TypeId::of::<T>() == TypeId::of::<f32>();
        is_f32.then(|| Plane { at, rows, width, data: self.data.cast(), row, column, life: PhantomData })
    }

    /// Where row `i` begins.
    #[inline]
    pub(crate) fn pointer(&mut self, i: usize) -> *mut T {
        self.data.wrapping_add(i * self.row)
    }

    /// From one row to the next, in elements.
    pub(crate) fn row_stride(&self) -> usize {
        self.row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_write_each_element_once() {
        // (b a s d) over memory in the order b s a d.
        let (shape, order) = ([2, 3, 5, 2], [0, 2, 1, 3]);
        let layout = Layout::dense_in_order(&shape, &order);
        let mut data = vec![0u32; 60];
        let planes = Planes::new(&mut data, &layout, 2).unwrap();
        assert_eq!(planes.len(), 2 * 3 * 3);
        let (front, back) = planes.split_at(7);
        std::thread::scope(|scope| {
            for part in [front, back] {
                scope.spawn(move || {
                    for mut plane in part {
                        for i in 0..plane.rows {
                            let [b, a, s] = plane.at;
                            let x = (b * 100 + a * 10 + s + i) as u32;
                            if b == 0 {
                                plane.row(i).unwrap().fill(x);
                            } else {
                                plane.write(i, |_| x);
                            }
                        }
                    }
                });
            }
        });
        for (b, a, s) in (0..2).flat_map(|b| (0..3).flat_map(move |a| (0..5).map(move |s| (b, a, s)))) {
            let at = layout.position(&[b, a, s, 0]) as usize;
            assert_eq!(data[at..at + 2], [(b * 100 + a * 10 + s) as u32; 2]);
        }
    }

    #[test]
    fn layouts_that_cannot_be_shared_out_are_refused() {
        let mut data = vec![0.0f32; 24];
        let dense = Layout::contiguous(&[1, 2, 3, 4]).unwrap();
        assert!(Planes::new(&mut data[..23], &dense, 1).is_none());
        assert!(Planes::new(&mut data, &dense, 0).is_none());
        let repeated = Layout::contiguous(&[1, 2, 1, 4]).unwrap().expand(&[1, 2, 3, 4]).unwrap();
        assert!(Planes::new(&mut data, &repeated, 1).is_none());
        assert!(Planes::new(&mut data, &Layout::contiguous(&[24]).unwrap(), 1).is_none());
        let strided = Layout::contiguous(&[1, 2, 4, 3]).unwrap().transpose(2, 3);
        assert!(!Planes::new(&mut data, &strided, 3).unwrap().next().unwrap().has_dense_rows());
    }
}
