//! What the tests of checkpoints share: small snapshots, and a disk that fails.

use super::disk::{Disk, Output, RealDisk};
use super::{DataPosition, Manifest, NamedTensor, OptimizerSettings, RandomState, Snapshot, Training};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::rc::Rc;
use tempfile::TempDir;
use tensor::{DType, Device, Runtime};

/// A small GPT-2.
pub const CONFIG: &str = r#"{
  "model_type": "gpt2",
  "n_embd": 4,
  "n_layer": 1,
  "n_head": 2,
  "n_positions": 8,
  "vocab_size": 7,
  "layer_norm_epsilon": 1e-05
}
"#;

/// A folder for one test, in memory where there is such a place: saving waits for the disk.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// State of training at `step`.
pub fn training(step: u64) -> Training {
    Training {
        step,
        tokens: step * 4096,
        validation_loss: Some(4.0 / (1.0 + step as f64)),
        settings: json!({"seq_len": 8, "precision": "fp32"}),
        optimizer: OptimizerSettings {
            kind: "adamw".to_owned(),
            hyper: json!({"lr": 0.1 + 0.2, "betas": [0.9, 0.999]}),
            scalars: json!({ "updates": step }),
        },
        schedule: json!({"kind": "cosine", "warmup": 10}),
        scaler: serde_json::Value::Null,
        random: vec![RandomState { stream: "dropout".to_owned(), seed: u64::MAX, next_site: step * 3 }],
        data: DataPosition {
            file: "tokens.bin".to_owned(),
            tokens: 1_000_000,
            hash: "00ff".to_owned(),
            tokenizer: "bytes".into(),
            epoch: 1,
            sampler: json!({ "next": step }),
        },
    }
}

/// A snapshot whose bytes follow from `step`, with one tensor of each dtype, a scalar and an empty one.
pub fn snapshot(step: u64) -> Snapshot {
    let runtime = Runtime::new(Device::Cpu);
    let filled = |name: &str, shape: &[u64], dtype: DType| {
        let tensor = runtime.zeros(shape, dtype).unwrap();
        let salt = crc32fast::hash(name.as_bytes()) as u64 + step;
        tensor
            .with_bytes_mut(|bytes| {
                for (i, byte) in bytes.iter_mut().enumerate() {
                    *byte = (i as u64 + 1).wrapping_mul(salt.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15)) as u8;
                }
            })
            .unwrap();
        NamedTensor::new(name, &tensor)
    };
    let mut model: Vec<NamedTensor> =
        DType::ALL.iter().map(|&dtype| filled(&format!("h.0.{dtype}"), &[2, 3], dtype)).collect();
    model.push(filled("scalar", &[], DType::F32));
    model.push(filled("empty", &[0, 4], DType::BF16));
    let optimizer = vec![filled("h.0.f32.exp_avg", &[2, 3], DType::F32), filled("h.0.f32.step", &[], DType::I64)];
    let manifest = Manifest { family: "gpt2".to_owned(), config: CONFIG.to_owned(), training: Some(training(step)) };
    Snapshot { manifest, model, optimizer }
}

/// Names and bytes.
pub fn contents(tensors: &[NamedTensor]) -> Vec<(String, Vec<u8>)> {
    tensors.iter().map(|t| (t.name.clone(), t.tensor.with_bytes(<[u8]>::to_vec).unwrap())).collect()
}

/// What happens at the call that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One error, after which all is well again.
    Error(ErrorKind),
    /// The process is gone: a write is half done, and no later call happens.
    Kill,
    /// The machine is gone: as a kill, and what was not made durable is empty.
    PowerLoss,
}

/// A disk on which call number `at` fails.
pub struct FailingDisk(Rc<State>);

struct State {
    fault: Fault,
    at: usize,
    calls: Cell<usize>,
    unsynced: RefCell<Vec<(u64, File)>>,
}

impl State {
    /// Counts a call; `partly` is what is done of it if it is the one that fails.
    fn call(&self, partly: impl FnOnce()) -> io::Result<()> {
        let call = self.calls.replace(self.calls.get() + 1);
        let fails = match self.fault {
            Fault::Error(_) => call == self.at,
            Fault::Kill | Fault::PowerLoss => call >= self.at,
        };
        if !fails {
            return Ok(());
        }
        if call == self.at {
            partly();
            if self.fault == Fault::PowerLoss {
                self.unsynced.borrow().iter().for_each(|(_, file)| file.set_len(0).unwrap());
            }
        }
        Err(match self.fault {
            Fault::Error(kind) => kind.into(),
            _ => io::Error::other("killed"),
        })
    }
}

impl FailingDisk {
    pub fn new(fault: Fault, at: usize) -> Self {
        Self(Rc::new(State { fault, at, calls: Cell::new(0), unsynced: RefCell::default() }))
    }

    /// Another handle of the same disk.
    pub fn handle(&self) -> Self {
        Self(self.0.clone())
    }

    /// Whether the failing call has come.
    pub fn has_failed(&self) -> bool {
        self.0.calls.get() > self.0.at
    }
}

impl Disk for FailingDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.call(|| {})?;
        RealDisk.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.0.call(|| {})?;
        let file = File::create_new(path)?;
        let id = self.0.calls.get() as u64;
        self.0.unsynced.borrow_mut().push((id, file.try_clone()?));
        Ok(Box::new(FailingFile { state: self.0.clone(), id, file }))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.call(|| {})?;
        RealDisk.sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.call(|| {})?;
        RealDisk.rename(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        // Half of the files are gone.
        self.0.call(|| {
            for entry in fs::read_dir(path).unwrap().step_by(2) {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        })?;
        RealDisk.remove_dir(path)
    }
}

struct FailingFile {
    state: Rc<State>,
    id: u64,
    file: File,
}

impl Write for FailingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = &self.file;
        self.state.call(|| {
            let mut file = file;
            file.write_all(&bytes[..bytes.len() / 2]).unwrap();
        })?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for FailingFile {
    fn sync(&mut self) -> io::Result<()> {
        self.state.call(|| {})?;
        self.state.unsynced.borrow_mut().retain(|(id, _)| *id != self.id);
        Ok(())
    }
}
