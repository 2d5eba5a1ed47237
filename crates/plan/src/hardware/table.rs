//! The files of `data/hardware`, compiled in.

use std::sync::LazyLock;

use super::Hardware;
use super::data;

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../data/hardware/", $name, ".toml")))),+]
    };
}

/// File stem and text. The order is the order of every listing: newest first within a family.
pub(super) const FILES: &[(&str, &str)] = files![
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h200-sxm",
    "h20",
    "h800-sxm",
    "a100-sxm-80gb",
    "a100-sxm-40gb",
    "a100-pcie-80gb",
    "a100-pcie-40gb",
    "b200",
    "gb200",
    "b300",
    "l4",
    "l40s",
    "a10",
    "t4",
    "v100-sxm2-32gb",
    "v100-sxm2-16gb",
    "v100-pcie-32gb",
    "v100-pcie-16gb",
    "rtx-5090",
    "rtx-4090",
    "rtx-3090",
    "rtx-6000-ada",
    "rtx-a6000",
    "mi355x",
    "mi350x",
    "mi325x",
    "mi300x",
    "mi250x",
    "tpu-v7",
    "tpu-v6e",
    "tpu-v5p",
    "tpu-v5e",
    "tpu-v4",
    "gaudi3",
    "gaudi2",
    "trainium2",
    "trainium1",
    "cpu",
];

/// Every entry, parsed on first use.
pub fn table() -> &'static [Hardware] {
    static TABLE: LazyLock<Vec<Hardware>> = LazyLock::new(|| {
        FILES
            .iter()
            .map(|(name, text)| {
                // The files are part of the program and a test reads each of them.
                data::read(text).unwrap_or_else(|error| panic!("data/hardware/{name}.toml: {error}"))
            })
            .collect()
    });
    &TABLE
}
