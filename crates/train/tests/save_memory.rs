//! Saving and loading take no second copy of the model: tensors go from their memory to the file and back.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_train::checkpoint::{Checkpoint, Keep, Manifest, NamedTensor, Snapshot, Store};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tensor::{DType, Device, Runtime};

/// The system's allocator, which counts.
mod counting {
    #![allow(unsafe_code)]

    use super::{AtomicUsize, Relaxed};
    use std::alloc::{GlobalAlloc, Layout, System};

    pub static LIVE: AtomicUsize = AtomicUsize::new(0);
    pub static PEAK: AtomicUsize = AtomicUsize::new(0);

    struct Counting;

    // SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of the caller.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
            PEAK.fetch_max(live, Relaxed);
            // SAFETY: the caller keeps the contract of `alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            LIVE.fetch_sub(layout.size(), Relaxed);
            // SAFETY: the caller keeps the contract of `dealloc`.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;
}

/// Most heap bytes that `f` holds beyond what was held before.
fn extra<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = counting::LIVE.load(Relaxed);
    counting::PEAK.store(before, Relaxed);
    let out = f();
    (out, counting::PEAK.load(Relaxed) - before)
}

#[test]
fn saving_and_loading_take_no_second_copy() {
    let runtime = Runtime::new(Device::Cpu);
    let tensor = |i: usize| NamedTensor::new(format!("{i}"), &runtime.zeros(&[1 << 21], DType::F32).unwrap());
    let model: Vec<NamedTensor> = (0..4).map(tensor).collect();
    let bytes: u64 = model.iter().map(NamedTensor::bytes).sum();
    assert_eq!(bytes, 32 << 20);
    let manifest = Manifest { family: "gpt2".to_owned(), config: "{}".to_owned(), training: None };
    let snapshot = Snapshot { manifest, model, optimizer: Vec::new() };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Keep { last: 1, best: false }).unwrap();

    let (saved, extra_saving) = extra(|| store.save(&snapshot).unwrap());
    let (loaded, extra_loading) = extra(|| Checkpoint::open(&saved.path).and_then(|c| c.load_model(&snapshot.model)));
    loaded.unwrap();
    assert!(saved.bytes > bytes);
    assert!(extra_saving < 64 << 10, "saving took {extra_saving} bytes");
    assert!(extra_loading < 64 << 10, "loading took {extra_loading} bytes");
}
