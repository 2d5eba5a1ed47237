//! What a recorded step did, in the few numbers that a prediction and a run can be compared by.

use tensor::meter::MemoryChange;
use tensor::{Role, Trace};
use units::{Bytes, Flops};

/// What a step did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Names of its ops, in order.
    pub ops: Vec<String>,
    /// FLOP of products the model needs, causal pairs.
    pub matmul: Flops,
    /// FLOP of products that kernels do beyond it: what is done again, and recomputation.
    pub recomputed: Flops,
    /// FLOP outside of products.
    pub elementwise: Flops,
    /// Bytes read and written by ops.
    pub traffic: Bytes,
    /// Highest bytes allocated.
    pub peak: Bytes,
    /// Of which roles they were then; the roles sum to `peak`.
    pub at_peak: Vec<(Role, Bytes)>,
}

impl StepWork {
    /// Sums up a recording that begins with the storages that are alive.
    pub fn of(trace: &Trace) -> Self {
        let cost = trace.cost(|_| true);
        let (peak, at_peak) = peak(trace);
        Self {
            ops: trace.ops.iter().map(|event| event.op.name().to_owned()).collect(),
            matmul: Flops(cost.matmul),
            recomputed: Flops(cost.recomputed),
            elementwise: Flops(cost.elementwise),
            traffic: cost.traffic(),
            peak,
            at_peak,
        }
    }
}

/// The fullest moment: its bytes, and of which roles they are.
fn peak(trace: &Trace) -> (Bytes, Vec<(Role, Bytes)>) {
    let mut held: Vec<Option<Role>> = vec![None; trace.storages.len()];
    let mut by_role = [0u64; Role::ALL.len()];
    let (mut best, mut at_best) = (0, by_role);
    for event in &trace.memory {
        let (id, bytes) = (event.storage.0 as usize, trace.storages[event.storage.0 as usize].bytes);
        if let Some(old) = held[id].take() {
            by_role[old as usize] -= bytes;
        }
        if let MemoryChange::Alloc(role) | MemoryChange::Role(role) = event.change {
            held[id] = Some(role);
            by_role[role as usize] += bytes;
        }
        let live: u64 = by_role.iter().sum();
        if live > best {
            (best, at_best) = (live, by_role);
        }
    }
    let roles = Role::ALL.into_iter().zip(at_best).filter(|(_, bytes)| *bytes > 0);
    (Bytes(best), roles.map(|(role, bytes)| (role, Bytes(bytes))).collect())
}
