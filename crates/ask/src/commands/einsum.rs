//! `napkin einsum "b s1 h, b s2 h -> b s1 s2" b=8 s1=1024 s2=1024 h=128 --dtype bf16 --hw h100-sxm`.

use clap::Args;
use plan::einsum_report::Request;
use plan::report::Report;
use tensor::DType;
use units::{Diagnostic, Diagnostics};

use crate::args::FleetArgs;
use crate::parse::{Reader, assignment, count};

/// What an einsum costs.
#[derive(Debug, Args)]
pub struct Einsum {
    /// Equation by names, "b s h, h d -> b s d", or by letters, "bsh,hd->bsd"
    pub equation: String,
    /// Size of each axis, such as b=8
    #[arg(value_name = "AXIS=SIZE")]
    pub sizes: Vec<String>,
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl Einsum {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let size = |text: &String| assignment(text).and_then(|(name, size)| Ok((name, count(&size)?)));
        let sizes: Vec<(String, u64)> = self.sizes.iter().filter_map(|text| read.take(size(text))).collect();
        let dtype = read.flag_with("--dtype", self.fleet.dtype.as_deref(), |text| {
            // What hardware calls fp32 or fp8 is stored as one of the tensor types.
            let text = match text.trim().to_lowercase().as_str() {
                "tf32" | "fp32_tensor" => "fp32".to_owned(),
                "fp8" => "f8e4m3".to_owned(),
                other => other.to_owned(),
            };
            text.parse::<DType>().map_err(|error| Diagnostic::error("", error.to_string()))
        });
        let idle = [("--devices", self.fleet.device.devices.is_some()), ("--peak", self.fleet.peak.is_some())];
        let fleet = read.fleet_if_named(&self.fleet, &idle);
        let request = Request {
            equation: self.equation.clone(),
            sizes,
            dtype: dtype.unwrap_or(DType::BF16),
            dtype_given: dtype.is_some(),
            fleet,
        };
        read.finish(Some(request))?.report()
    }
}
