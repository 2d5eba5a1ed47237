//! A thread that reads the next batch while the step of the current one runs.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::batch::{Batch, Loader};
use super::error::DataError;

/// What reading ahead has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchCost {
    /// Batches handed out.
    pub batches: u64,
    /// Time for which the caller stood still because the batch was not ready.
    pub waited: Duration,
    /// Time for which the thread read, on a core that the step may have wanted.
    pub reading: Duration,
    /// Bytes of the two largest batches that were alive at one time: the caller's and the thread's.
    pub held_bytes: u64,
}

/// A batch and the time that the caller stood still for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The batch.
    pub batch: Batch,
    /// How long the caller waited.
    pub waited: Duration,
}

/// Batches in the order of steps, each read while the one before is used.
///
/// At most two are alive: the caller's, and the next one, which waits in the thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Prefetch {
    // Before the thread, so that a drop closes the channel first and the thread sees it.
    batches: Option<Receiver<Result<Read, DataError>>>,
    thread: Option<JoinHandle<()>>,
    cost: PrefetchCost,
    previous_bytes: u64,
}

struct Read {
    batch: Batch,
    took: Duration,
}

impl Prefetch {
    /// Begins to read the batch of `first_step`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(loader: Loader, first_step: u64) -> Result<Self, DataError> {
        // No room in the channel: the thread holds one batch until it is taken, and only then reads another.
        let (send, batches) = sync_channel(0);
        let path = loader.data().file().path().to_owned();
        let thread = thread::Builder::new()
            .name("prefetch".to_owned())
            .spawn(move || read_all(&loader, first_step, &send))
            .map_err(|error| DataError::io(path, "start a thread to read", error))?;
        let cost = PrefetchCost::default();
        Ok(Self { batches: Some(batches), thread: Some(thread), cost, previous_bytes: 0 })
    }

    /// The next batch.
    ///
    /// # Errors
    /// It could not be read. There are no batches behind an error.
    pub fn next_batch(&mut self) -> Result<Fetched, DataError> {
        let began = Instant::now();
        let read = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        let waited = began.elapsed();
        match read {
            Some(Ok(Read { batch, took })) => {
                let cost = &mut self.cost;
                cost.batches += 1;
                cost.waited += waited;
                cost.reading += took;
                cost.held_bytes = cost.held_bytes.max(self.previous_bytes + batch.bytes());
                self.previous_bytes = batch.bytes();
                Ok(Fetched { batch, waited })
            }
            Some(Err(error)) => {
                self.batches = None;
                Err(error)
            }
            None => Err(DataError::NoMoreBatches),
        }
    }

    /// What it has cost so far.
    pub fn cost(&self) -> PrefetchCost {
        self.cost
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself, and the caller has had `NoMoreBatches`.
            let _ = thread.join();
        }
    }
}

fn read_all(loader: &Loader, first_step: u64, send: &SyncSender<Result<Read, DataError>>) {
    for step in first_step.. {
        let began = Instant::now();
        let batch = loader.batch(step);
        let took = began.elapsed();
        let failed = batch.is_err();
        // Nobody takes it: the run is over.
        if send.send(batch.map(|batch| Read { batch, took })).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::sleep;

    use super::super::sampler::{Order, Sampler};
    use super::super::token_file::{OpenOptions, TokenFile};
    use super::*;

    fn loader(ids: &[u32], vocab_size: u64, order: Order) -> (Loader, Arc<TokenFile>) {
        let options = OpenOptions { vocab_size: Some(vocab_size), ..OpenOptions::default() };
        let file = Arc::new(TokenFile::from_ids("ids", ids, &options).unwrap());
        let data = file.whole();
        let sampler = Sampler::new(&data, order, 9, 4, 7).unwrap();
        (Loader::new(data, sampler), file)
    }

    #[test]
    fn batches_are_those_of_the_steps() {
        let ids: Vec<u32> = (0..500).collect();
        let (loader, _) = loader(&ids, 500, Order::Random);
        let mut prefetch = Prefetch::new(loader.clone(), 3).unwrap();
        for step in 3..40 {
            assert_eq!(prefetch.next_batch().unwrap().batch, loader.batch(step).unwrap());
        }
        let cost = prefetch.cost();
        assert_eq!(cost.batches, 37);
        // Two batches of 4 × 9 ids and 4 starts.
        assert_eq!(cost.held_bytes, 2 * (4 * 9 * 4 + 4 * 8));
        assert!(cost.reading > Duration::ZERO);
    }

    #[test]
    fn a_batch_that_is_ready_is_not_waited_for() {
        let ids: Vec<u32> = (0..500).collect();
        let (loader, _) = loader(&ids, 500, Order::Random);
        let mut prefetch = Prefetch::new(loader, 0).unwrap();
        prefetch.next_batch().unwrap();
        // A step of 200 ms, and a batch that takes microseconds. The machine may be busy, hence several tries.
        let waits = (0..5).map(|_| {
            sleep(Duration::from_millis(200));
            prefetch.next_batch().unwrap().waited
        });
        assert!(waits.min() < Some(Duration::from_millis(100)));
    }

    #[test]
    fn an_id_above_the_vocabulary_ends_it_with_its_place() {
        let mut ids = vec![0; 100];
        ids[70] = 99;
        let (loader, _) = loader(&ids, 99, Order::Sequential);
        let mut prefetch = Prefetch::new(loader, 0).unwrap();
        // Windows of 9 every 8 ids, four in a step: id 70 stands in the third step.
        assert!(prefetch.next_batch().is_ok());
        assert!(prefetch.next_batch().is_ok());
        assert!(matches!(prefetch.next_batch(), Err(DataError::AboveVocabulary { position: 70, id: 99, .. })));
        assert!(matches!(prefetch.next_batch(), Err(DataError::NoMoreBatches)));
    }

    #[test]
    fn dropping_it_ends_the_thread() {
        let ids: Vec<u32> = (0..500).collect();
        let (loader, file) = loader(&ids, 500, Order::Random);
        let mut prefetch = Prefetch::new(loader, 0).unwrap();
        prefetch.next_batch().unwrap();
        assert_eq!(Arc::strong_count(&file), 2);
        drop(prefetch);
        assert_eq!(Arc::strong_count(&file), 1, "the thread still holds the data");
    }
}
