//! Buffers that hold many parameters in one piece, as sharded and bucketed training makes them.
//!
//! A trace of single tensors has none of them: FSDP gathers a block at once, `DeepSpeed` and Megatron keep all gradients, or
//! all f32 copies, in one allocation, divided over the data-parallel devices.

use nn::blocks::Blocks;
use nn::step::ParamInfo;

use super::size::{Fit, Printed};

/// A buffer that has the size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Which parameters, such as `one block`.
    pub what: &'static str,
    /// How many parameters.
    pub elements: u64,
    /// Bytes of one.
    pub element: u64,
    /// Devices that it is divided over.
    pub devices: u64,
    /// How it has the size.
    pub fit: Fit,
}

impl Buffer {
    /// Bytes of it on one device.
    pub fn bytes(&self) -> u64 {
        self.elements.div_ceil(self.devices.max(1)).saturating_mul(self.element)
    }

    /// `all parameters in one buffer, 771,201,024 × 4 B ÷ 8`.
    pub fn words(&self) -> String {
        let count = units::group_digits(u128::from(self.elements));
        let divided = if self.devices > 1 { format!(" ÷ {}", self.devices) } else { String::new() };
        format!("{} in one buffer, {count} × {} B{divided}", self.what, self.element)
    }
}

/// Buffers of the parameters of a model that have the size, exact ones first.
pub fn of_size(params: &[ParamInfo], blocks: Blocks, dp: u64, size: &Printed, segments: bool) -> Vec<Buffer> {
    let elements = |unit: &Vec<&ParamInfo>| unit.iter().fold(0_u64, |all, param| all.saturating_add(param.elements));
    let units = blocks.units(params);
    let root = elements(&units.root);
    let mut blocks: Vec<u64> = units.blocks.values().map(elements).collect();
    let all = blocks.iter().fold(root, |all, block| all.saturating_add(*block));
    blocks.sort_unstable();
    blocks.dedup();
    let groups = [("all parameters", all), ("all outside the blocks", root)];
    let groups = groups.into_iter().chain(blocks.into_iter().map(|elements| ("one block", elements)));
    let shares: &[u64] = if dp > 1 { &[1, dp] } else { &[1] };
    let mut out = Vec::new();
    for (what, elements) in groups {
        for (element, &devices) in
            [4, 2].into_iter().flat_map(|element| shares.iter().map(move |share| (element, share)))
        {
            let buffer = Buffer { what, elements, element, devices, fit: Fit::Exact };
            out.extend(size.fit(buffer.bytes(), segments).map(|fit| Buffer { fit, ..buffer }));
        }
    }
    out.sort_by_key(|buffer| buffer.fit);
    out
}
