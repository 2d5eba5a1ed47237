//! The two passes of inference, traced: reading a prompt, and saying one token more.
//!
//! They run the program that [`crate::generate`] runs, on the device without data, so that what a prompt and a token cost
//! is what the engine does for them. Recurrent layers go on from a state of zeros: which one it is changes no cost.

use crate::cache::KvCache;
use crate::context::{Forward, Profile, Recompute};
use crate::model::Model;
use crate::spec::ModelSpec;
use std::rc::Rc;
use tensor::meter::MemoryChange;
use tensor::{DType, Device, Phase, Result, Role, Runtime, Trace};

/// A pass of inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Sequences that are read at the same time.
    pub batch: u64,
    /// Tokens of each that the cache holds.
    pub past: u64,
    /// Tokens of each that are read.
    pub new: u64,
    /// dtype of parameters, activations and the cache.
    pub dtype: DType,
}

/// What a pass comes to.
#[derive(Clone, Debug)]
pub struct Read {
    /// The recording. Logits are those of the last position.
    pub trace: Trace,
    /// Most bytes of activations that live at the same time: neither parameters nor buffers nor the cache.
    pub activation_bytes: u64,
    /// Bytes of the cache, with room for past and new tokens.
    pub cache_bytes: u64,
}

/// Traces a pass of inference on the meta device.
///
/// # Errors
/// If a size is too large to count, or the sequence is longer than the model's learned positions.
pub fn trace(spec: &ModelSpec, reading: &Reading) -> Result<Read> {
    let Reading { batch, past, new, dtype } = *reading;
    let rt = Runtime::new(Device::Meta);
    rt.begin("init", Phase::Init);
    let model = Model::build(&rt, spec, dtype)?;
    rt.begin("read", Phase::Forward);
    let cache = Rc::new(KvCache::after(past, past + new));
    rt.no_grad(|| {
        let ids = rt.tensor_with(&[batch, new], DType::I64, Vec::new)?.with_role(Role::Input);
        let mut f = Forward::new(&rt, Profile::Fused, Recompute::None, batch, new);
        f.training = false;
        f.cache = Some(cache.clone());
        let hidden = model.body(&f, &ids)?;
        model.logits(&f, &hidden.narrow(1, new - 1, 1)?)
    })?;
    let cache_bytes = cache.bytes();
    let trace = rt.take_trace();
    Ok(Read { activation_bytes: peak(&trace), cache_bytes, trace })
}

/// Most bytes that live at the same time while tokens are read, without parameters and buffers.
fn peak(trace: &Trace) -> u64 {
    let start = trace.marks.iter().find(|mark| mark.name == "read").map_or(0, |mark| mark.memory as usize);
    let mut live = vec![0_u64; trace.storages.len()];
    let (mut now, mut most) = (0_u64, 0_u64);
    for (i, event) in trace.memory.iter().enumerate() {
        let at = event.storage.0 as usize;
        now -= std::mem::take(&mut live[at]);
        if let MemoryChange::Alloc(role) | MemoryChange::Role(role) = event.change
            && !matches!(role, Role::Parameter | Role::Buffer)
        {
            live[at] = trace.storages[at].bytes;
            now += live[at];
        }
        if i >= start {
            most = most.max(now);
        }
    }
    most
}
