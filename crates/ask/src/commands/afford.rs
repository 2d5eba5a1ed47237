//! `napkin afford --budget '64 h100-sxm for 14 days'`.

use clap::Args;
use plan::afford::{self, Request};
use plan::fleet::Fleet;
use plan::hardware::Precision;
use plan::report::Report;
use units::{Diagnostics, Mfu};

use crate::parse::{Reader, dollars};

/// The model that a budget trains best.
#[derive(Debug, Args)]
pub struct Afford {
    /// Devices and time, such as '64 h100-sxm for 14 days'
    #[arg(long, value_name = "BUDGET")]
    pub budget: String,
    /// Utilization [default: 0.4, the middle of the usual]
    #[arg(long, value_name = "SHARE")]
    pub mfu: Option<String>,
    /// US dollars for one device and hour
    #[arg(long, value_name = "USD")]
    pub price: Option<String>,
    /// Arithmetic of the matrix products [default: bf16]
    #[arg(long, value_name = "DTYPE")]
    pub dtype: Option<String>,
}

impl Afford {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let budget = read.take(afford::budget(&self.budget));
        let mfu = read.flag::<Mfu>("--mfu", self.mfu.as_deref());
        let price = read.flag_with("--price", self.price.as_deref(), dollars);
        let precision = read.flag::<Precision>("--dtype", self.dtype.as_deref());
        let request = budget.and_then(|(devices, name, time)| {
            let hardware = read.hardware(Some(&name))?;
            let fleet = Fleet {
                hardware,
                devices,
                devices_given: true,
                precision: precision.unwrap_or(Precision::Bf16),
                precision_given: precision.is_some(),
            };
            Some(Request { fleet, time, mfu, price })
        });
        read.finish(request)?.report()
    }
}
