//! Whether the run of a row finds enough memory on its devices.

use super::memory::{devices, prepare, process, rank_stream};
use super::ranks;
use super::row::Row;
use crate::allocator::Reserved;
use crate::runtime;
use units::Bytes;

/// Whether a rank of the run of a row asks for memory that its device does not have.
///
/// The ranks of the first two stages and of the last are looked at: one of them has most micro-batches in flight, one
/// most blocks of those behind, one the head. Before PyTorch gives up it waits for the device and gives back what was
/// cached, so that no block is late then.
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
    let room = room(row, layout.devices()).ok_or_else(|| format!("a device that is not known: {}", row.device))?;
    let engine = ranks::engine(row, &mut assumed);
    let mut places = vec![0, 1.min(layout.pp - 1), layout.pp - 1];
    places.dedup();
    for place in places {
        for rank in ranks::trace(&run.model.spec, &layout, &run.options, engine, vec![place])? {
            let stream = Some(rank_stream(&run, &layout));
            let mut process = process(row, &rank.traced.params, layout.sharding(), stream, &mut assumed)?;
            process.beside.frees_late = true;
            let blocks = ranks::blocks_of(&rank);
            if process.reserve(&rank.traced, &rank.options, layout.sharding(), blocks, Some(room)).refused.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Bytes that the allocator of one of so many devices can have; the most, where a label may mean several.
pub(super) fn room(row: &Row, count: u64) -> Option<Bytes> {
    let room = devices(row).into_iter().map(|device| {
        let outside = runtime::bytes(device, count).get();
        Bytes(device.capacity().get().saturating_sub(outside))
    });
    room.max()
}

/// The most that the allocator of a row's device reserves for a step. Near the end of the memory it gives back what was cached,
/// and reserves less than without an end; where even that is not enough, the end is not looked at.
pub(super) fn reserved(row: &Row, devices: u64, replay: impl Fn(Option<Bytes>) -> Reserved) -> u64 {
    let found = replay(room(row, devices));
    let found = if found.refused.is_some() { replay(None) } else { found };
    found.end.peak_reserved
}
