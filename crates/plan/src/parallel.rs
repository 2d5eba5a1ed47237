//! Work on several threads, where there are some.

/// Applies a function to all of a list, on several threads where there are some; results in the order of the list.
#[cfg(feature = "parallel")]
pub(crate) fn each<T: Sync, R: Send>(all: &[T], function: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
    use rayon::prelude::*;
    all.par_iter().map(function).collect()
}

/// Applies a function to all of a list.
#[cfg(not(feature = "parallel"))]
pub(crate) fn each<T, R>(all: &[T], function: impl Fn(&T) -> R) -> Vec<R> {
    all.iter().map(function).collect()
}

/// Does two things, at the same time where there are threads for it.
pub(crate) fn both<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    #[cfg(feature = "parallel")]
    return rayon::join(a, b);
    #[cfg(not(feature = "parallel"))]
    (a(), b())
}

/// How many parts of work there are threads for.
pub(crate) fn threads() -> usize {
    #[cfg(feature = "parallel")]
    return rayon::current_num_threads();
    #[cfg(not(feature = "parallel"))]
    1
}
