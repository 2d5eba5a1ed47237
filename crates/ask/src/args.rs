//! Flags of devices and runs as they are typed. Values stay text here: `parse` reads them all and reports all that is wrong
//! at once.

use clap::Args;
use plan::time::Pace;
use units::{Mfu, Tokens};

use crate::parse::{Reader, days, dollars, some};

/// Which devices, and how many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Hardware")]
pub struct DeviceArgs {
    /// Accelerator, or a file such as `napkin bench --save` writes; `napkin hw` lists them
    #[arg(long, value_name = "NAME")]
    pub hw: Option<String>,
    /// How many devices [default: 1]
    #[arg(short = 'n', long, value_name = "N")]
    pub devices: Option<String>,
}

impl DeviceArgs {
    /// As many devices as are data-parallel, where only that is said.
    pub fn at_least(&self, dp: Option<&String>) -> Self {
        let devices = self.devices.clone().or_else(|| dp.filter(|text| some(text).is_ok()).cloned());
        Self { devices, ..self.clone() }
    }
}

/// Which devices, how many, in which arithmetic.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Hardware")]
pub struct FleetArgs {
    /// Which devices, and how many
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Arithmetic of the matrix multiplications: bf16, fp16, fp8, tf32, fp32, ... [default: bf16]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<String>,
    /// Dense peak of one device instead of the table's, such as 500TFLOP/s
    #[arg(long, value_name = "RATE")]
    pub peak: Option<String>,
}

impl FleetArgs {
    /// As many devices as are data-parallel, where only that is said.
    pub fn at_least(&self, dp: Option<&String>) -> Self {
        Self { device: self.device.at_least(dp), ..self.clone() }
    }
}

/// The run, whose time is asked.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Tokens to train on
    #[arg(long, value_name = "N")]
    pub tokens: Option<String>,
    /// Model FLOP utilization, such as 0.4 or 40% [default: a range, 0.3 to 0.5]
    #[arg(long, value_name = "SHARE", conflicts_with = "days")]
    pub mfu: Option<String>,
    /// Time there is, in days: asks which MFU it takes
    #[arg(long, value_name = "N")]
    pub days: Option<String>,
    /// US dollars for one device and hour
    #[arg(long, value_name = "USD")]
    pub price: Option<String>,
}

/// What [`RunArgs`] say.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Tokens to train on.
    pub tokens: Option<Tokens>,
    /// How fast.
    pub pace: Pace,
    /// US dollars for one device and hour.
    pub price: Option<f64>,
}

impl RunArgs {
    /// Refuses what is said of the speed or the price of a run that has no tokens.
    pub fn need_tokens(&self, read: &mut Reader<'_>) {
        if self.tokens.is_none() {
            let idle =
                [("--mfu", self.mfu.is_some()), ("--days", self.days.is_some()), ("--price", self.price.is_some())];
            read.no_effect(&idle, "without --tokens no time is asked for");
        }
    }

    /// Reads them.
    pub fn read(&self, read: &mut Reader<'_>) -> Run {
        let tokens = read.flag::<Tokens>("--tokens", self.tokens.as_deref());
        let mfu = read.flag::<Mfu>("--mfu", self.mfu.as_deref());
        let deadline = read.flag_with("--days", self.days.as_deref(), days);
        let price = read.flag_with("--price", self.price.as_deref(), dollars);
        let pace = match (mfu, deadline) {
            (Some(mfu), _) => Pace::Mfu(mfu),
            (None, Some(time)) => Pace::Deadline(time),
            (None, None) => Pace::Unknown,
        };
        Run { tokens, pace, price }
    }
}
