//! What a process takes of a device besides its tensors: context, kernels, communicators, workspaces. Each number is a row
//! of `data/runtime.csv`, with who says so.

use std::sync::OnceLock;
use units::Bytes;

use crate::hardware::{Hardware, Kind};

/// A kind of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// State of the driver.
    Context,
    /// Code and buffers of libraries, loaded when they are first used.
    Kernels,
    /// Buffers of collectives, for one group of devices.
    Communicators,
    /// Scratch of matrix products; taken from PyTorch's allocator.
    Workspace,
}

impl What {
    /// The word in the table and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Kernels => "kernels",
            Self::Communicators => "communicators",
            Self::Workspace => "workspace",
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub what: What,
    vendor: &'static str,
    architecture: &'static str,
    devices: (u64, u64),
    /// Its bytes.
    pub bytes: Bytes,
    /// False for what somebody measured on one machine.
    pub exact: bool,
    /// When that was said, or read.
    pub date: &'static str,
    /// Who says so.
    pub source: &'static str,
}

/// Bytes of the context assumed on an accelerator of which no measurement is known.
const ASSUMED: Bytes = Bytes(1 << 30);

/// All rows.
pub fn table() -> &'static [Row] {
    static TABLE: OnceLock<Vec<Row>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let lines = include_str!("../../../data/runtime.csv").lines().filter(|line| !line.starts_with('#'));
        lines.skip(1).filter_map(row).collect()
    })
}

fn row(line: &'static str) -> Option<Row> {
    let fields: Vec<&'static str> = line.splitn(9, ',').collect();
    let [what, vendor, architecture, from, to, bytes, kind, date, source] = fields[..] else { return None };
    let all = [What::Context, What::Kernels, What::Communicators, What::Workspace];
    let bound = |text: &str, open: u64| if text.is_empty() { Some(open) } else { text.parse().ok() };
    Some(Row {
        what: all.into_iter().find(|one| one.name() == what)?,
        vendor,
        architecture,
        devices: (bound(from, 0)?, bound(to, u64::MAX)?),
        bytes: Bytes(bytes.parse().ok()?),
        exact: kind == "exact",
        date,
        source: source.trim_matches('"'),
    })
}

/// The row for a device that works together with so many, itself included.
pub fn find(what: What, hardware: &Hardware, devices: u64) -> Option<&'static Row> {
    table().iter().find(|row| {
        row.what == what
            && (row.vendor.is_empty() || row.vendor == hardware.vendor)
            && (row.architecture.is_empty() || row.architecture == hardware.architecture)
            && (row.devices.0..=row.devices.1).contains(&devices)
    })
}

/// A part of what lies outside of the allocator, with its row; without one it is assumed.
pub type Part = (What, Bytes, Option<&'static Row>);

/// What lies outside of the allocator on a device that works together with so many, itself included; nothing on a CPU.
pub fn outside(hardware: &Hardware, devices: u64) -> Vec<Part> {
    if hardware.kind == Kind::Cpu {
        return Vec::new();
    }
    let known = |what| find(what, hardware, devices).map(|row| (what, row.bytes, Some(row)));
    let context = known(What::Context).unwrap_or((What::Context, ASSUMED, None));
    [Some(context), known(What::Kernels), known(What::Communicators)].into_iter().flatten().collect()
}

/// Bytes outside of the allocator.
pub fn bytes(hardware: &Hardware, devices: u64) -> Bytes {
    Bytes(outside(hardware, devices).iter().map(|(_, bytes, _)| bytes.get()).sum())
}

/// Bytes of the workspace; none where PyTorch's allocator does not run.
pub fn workspace(hardware: &Hardware) -> Bytes {
    find(What::Workspace, hardware, 1).map_or(Bytes::ZERO, |row| row.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware;

    #[test]
    fn every_row_is_read_and_has_a_source() {
        let lines = include_str!("../../../data/runtime.csv").lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(table().len(), lines - 1);
        for row in table() {
            assert!(row.bytes.get() > 0 && row.source.len() > 20 && !row.date.is_empty(), "{row:?}");
            let known = |value: &str, of: fn(&Hardware) -> &str| {
                value.is_empty() || hardware::table().iter().any(|hardware| of(hardware) == value)
            };
            assert!(known(row.vendor, |h| &h.vendor) && known(row.architecture, |h| &h.architecture), "{row:?}");
        }
    }

    #[test]
    fn rows_by_device_and_number() {
        let of = |name: &str, devices| bytes(hardware::find(name).unwrap(), devices).get();
        let alone = (426 << 20) + 171_798_692;
        assert_eq!(of("h100-sxm", 1), alone);
        assert_eq!(of("h100-sxm", 2), alone + (544 << 20));
        assert_eq!(of("a100-sxm-80gb", 1024), alone + (688 << 20));
        assert_eq!((of("tpu-v4", 8), of("mi300x", 1), of("mi300x", 8), of("cpu", 1)), (1 << 30, 1 << 30, 2 << 30, 0));
        let workspace = |name: &str| workspace(hardware::find(name).unwrap()).get();
        assert_eq!((workspace("h100-sxm"), workspace("rtx-4090")), (32 << 20, (8 << 20) + (128 << 10)));
        assert_eq!((workspace("mi300x"), workspace("tpu-v4")), (128 << 20, 0));
    }
}
