//! Whether the run of a row finds enough memory on its devices.

use super::memory::{devices, follow, prepare, process, rank_stream};
use super::ranks;
use super::recipe::Of;
use super::row::Row;
use crate::allocator::Process;
use crate::hardware::Hardware;
use crate::layout::Layout;
use crate::runtime;
use crate::timeline::Device;
use units::Bytes;

/// Whether the run of a row is expected to find no memory on the device of one of its ranks.
///
/// The ranks of the first two stages and of the last are looked at: one of them has most micro-batches in flight, one
/// most blocks of those behind, one the head. Before PyTorch gives up it waits for the device and gives back what was
/// cached, so that no block is late then. Each group that a rank talks in has a communicator, whose buffers lie outside of the
/// allocator. What is predicted is off by some part, and a rank that comes as near to the end as that is expected to run out.
///
/// # Errors
/// What the row does not say, or what is not modelled.
pub fn runs_out(row: &Row) -> Result<bool, String> {
    let mut assumed = Vec::new();
    let run = prepare(row, true, &mut assumed)?;
    if !run.divided {
        return Err("only runs of engines whose ways are known, or of divided models".to_owned());
    }
    let layout = ranks::layout(row, &run.model.spec, run.sharding, &run.options, &mut assumed)?;
    let engine = ranks::engine(row, &mut assumed);
    let number = |of, assumed: &mut Vec<String>| follow(row, of, assumed).and_then(|value| value.parse::<f64>().ok());
    let error = number(Of::Error, &mut assumed).unwrap_or(0.0);
    let communicator = number(Of::Communicators, &mut assumed);
    let mut places = vec![0, 1.min(layout.pp - 1), layout.pp - 1];
    places.dedup();
    for place in places {
        let groups = groups(&layout, place);
        let room = room(row, |device| match communicator {
            Some(each) => runtime::bytes(device, 1).get().saturating_add(groups.len() as u64 * each as u64),
            None => runtime::bytes(device, layout.devices()).get(),
        });
        let room = room.ok_or_else(|| format!("a device that is not known: {}", row.device))?;
        let room = Bytes((room.get() as f64 * (1.0 - error)) as u64);
        for rank in ranks::trace(&run.model.spec, &layout, &run.options, engine, vec![place])? {
            let stream = Some(rank_stream(&run, &layout));
            let mut process = process(row, &rank.traced.params, layout.sharding(), stream, &mut assumed)?;
            process.beside.frees_late = true;
            let blocks = ranks::blocks_of(&rank);
            let empty = Device::new(&rank.traced, &rank.options, layout.sharding(), blocks);
            if process.reserve(&empty, Some(room)).refused.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Ranks of each group that the rank at a place of the pipeline talks in, of those that have more than one.
///
/// All ranks; those that share matrices; those that hold the same parameters; where there are stages, all ranks of one copy
/// of the model, over which the norm of gradients is summed, and a pair with each neighbour.
///
/// Source: huggingface/nanotron, `src/nanotron/parallel/context.py`, `_init_parallel_groups`, where equal groups are one, and
/// `trainer.py`, `clip_grad_norm` over `mp_pg`; pytorch/pytorch, `torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`: a pair
/// of ranks that send and receive has a communicator.
fn groups(layout: &Layout, place: u64) -> Vec<u64> {
    let Layout { tp, cp, dp, pp, ep, .. } = *layout;
    let (all, copies) = (layout.devices(), dp.saturating_mul(cp));
    let mut groups = vec![all, tp, cp, ep, if copies == all { 1 } else { copies }];
    if pp > 1 {
        groups.push(tp.saturating_mul(pp));
        groups.extend(vec![2; usize::from(place > 0) + usize::from(place + 1 < pp)]);
    }
    groups.retain(|ranks| *ranks > 1);
    groups
}

/// Bytes that the allocator of a row's device can have beside what lies outside of it; the most, where a label may mean several.
fn room(row: &Row, outside: impl Fn(&Hardware) -> u64) -> Option<Bytes> {
    let room = devices(row).into_iter().map(|device| Bytes(device.capacity().get().saturating_sub(outside(device))));
    room.max()
}

/// The most that the allocator of a row's device reserves for a step. Near the end of the memory it gives back what was cached,
/// and reserves less than without an end; where even that is not enough, the end is not looked at.
pub(super) fn reserved(row: &Row, devices: u64, process: &Process, empty: &Device<'_>) -> u64 {
    process.wanted(empty, room(row, |device| runtime::bytes(device, devices).get())).end.peak_reserved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_that_a_rank_talks_in() {
        let of = |(tp, pp, dp): (u64, u64, u64), place| groups(&Layout { dp, tp, pp, ..Layout::default() }, place);
        assert_eq!(of((1, 1, 1), 0), []);
        // Replicas and all ranks are one group.
        assert_eq!(of((1, 1, 8), 0), [8]);
        assert_eq!(of((8, 1, 4), 0), [32, 8, 4]);
        assert_eq!(of((2, 4, 2), 0), [16, 2, 2, 8, 2]);
        assert_eq!(of((2, 4, 2), 1), [16, 2, 2, 8, 2, 2]);
    }
}
