//! `napkin time MODEL --tokens 15T --hw h100-sxm -n 1024`.

use clap::Args;
use plan::report::Report;
use plan::time::{Pace, Request};
use units::{Diagnostics, Mfu, Tokens};

use crate::args::FleetArgs;
use crate::parse::{Reader, days, dollars};
use crate::step::WorkArgs;

/// Wall-clock time, device-hours and cost of a run.
#[derive(Debug, Args)]
pub struct Time {
    /// The model
    #[command(flatten)]
    pub work: WorkArgs,
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
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl Time {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        let work = self.work.read(&mut read);
        let tokens = read.flag::<Tokens>("--tokens", self.tokens.as_deref());
        let tokens = read.required(tokens, self.tokens.is_some(), "--tokens", "15T");
        let fleet = read.fleet(&self.fleet);
        let mfu = read.flag::<Mfu>("--mfu", self.mfu.as_deref());
        let time = read.flag_with("--days", self.days.as_deref(), days);
        let price = read.flag_with("--price", self.price.as_deref(), dollars);
        let pace = match (mfu, time) {
            (Some(mfu), _) => Pace::Mfu(mfu),
            (_, Some(time)) => Pace::Deadline(time),
            _ => Pace::Unknown,
        };
        let request = work.zip(tokens).zip(fleet);
        let request = request.map(|((work, tokens), fleet)| Request { work, tokens, fleet, pace, price });
        read.finish(request)?.report()
    }
}
