//! Threads of the kernels.

use crate::error::{Error, Result};

/// A pool of threads that kernels called from within [`Threads::run`] use. Outside of any, they use one thread per core.
pub struct Threads {
    pool: rayon::ThreadPool,
}

impl Threads {
    /// More threads than any machine has cores; a slip of the finger would bring this one to a standstill.
    pub const MOST: usize = 1024;

    /// A pool of `count` threads; 0: one per core.
    ///
    /// # Errors
    /// [`Error::Argument`] for more than [`Threads::MOST`], or if the system cannot start them.
    pub fn new(count: usize) -> Result<Self> {
        if count > Self::MOST {
            let what = format!("{count} threads are more than the {} that a pool may have", Self::MOST);
            return Err(Error::Argument { op: "threads", what });
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_as_many_threads_as_were_asked_for_within_reason() {
        assert_eq!(Threads::new(3).unwrap().count(), 3);
        let refused = Threads::new(100_000).err().unwrap().to_string();
        assert!(refused.contains("100000 threads are more than the 1024"), "{refused}");
    }
}
