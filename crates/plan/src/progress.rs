//! How far long work is, for who waits for it. Work says so here; whoever looks is another thread, and changes no answer.
//!
//! One for the process: a program answers one question at a time. Where several are answered at once, it is of the one that
//! began last.

use std::sync::{Mutex, PoisonError};

/// Work that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What its parts are, in words.
    pub what: &'static str,
    /// Parts that are done.
    pub done: u64,
    /// All parts.
    pub all: u64,
}

static NOW: Mutex<Option<Progress>> = Mutex::new(None);

/// What is known of the work that goes on; nothing where it does not say.
pub fn now() -> Option<Progress> {
    *NOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins work of so many parts.
pub(crate) fn begin(what: &'static str, all: usize) {
    *NOW.lock().unwrap_or_else(PoisonError::into_inner) = Some(Progress { what, done: 0, all: all as u64 });
}

/// One more part is done.
pub(crate) fn advance() {
    if let Some(progress) = NOW.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        progress.done += 1;
    }
}
