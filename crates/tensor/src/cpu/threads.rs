//! Threads of the kernels.

use crate::error::{Error, Result};

/// A pool of threads that kernels called from within [`Threads::run`] use. Outside of any, they use one thread per core.
pub struct Threads {
    pool: rayon::ThreadPool,
}

impl Threads {
    /// A pool of `count` threads; 0: one per core.
    ///
    /// # Errors
    /// [`Error::Argument`] if the system cannot start them.
    pub fn new(count: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .build()
            .map_err(|e| Error::Argument { op: "threads", what: format!("{count} threads cannot be started: {e}") })?;
        Ok(Self { pool })
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs a program on the first thread of the pool: its kernels fork and join within it, without waking a thread for
    /// small work.
    pub fn run<R: Send>(&self, program: impl FnOnce() -> R + Send) -> R {
        self.pool.install(program)
    }
}
