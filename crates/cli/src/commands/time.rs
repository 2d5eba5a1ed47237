//! `napkin time MODEL --tokens 15T --hw h100-sxm -n 1024`.

use clap::Args;
use plan::report::Report;
use plan::time::{Pace, Request};
use plan::work::Work;
use units::{Diagnostic, Diagnostics, Flops, Mfu, Tokens};

use crate::args::FleetArgs;
use crate::model::model;
use crate::parse::{Reader, days, dollars};

/// Wall-clock time, device-hours and cost of a run.
#[derive(Debug, Args)]
pub struct Time {
    /// A bare parameter count such as dense:70B
    pub model: Option<String>,
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
    /// FLOP of one trained token, instead of a model
    #[arg(long, value_name = "FLOP", conflicts_with = "model")]
    pub flops_per_token: Option<String>,
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl Time {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        let work = work(&mut read, self.model.as_deref(), self.flops_per_token.as_deref());
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

/// The work of one token, by a model or by a number.
pub fn work(read: &mut Reader, name: Option<&str>, flops_per_token: Option<&str>) -> Option<Work> {
    match (name, flops_per_token) {
        (Some(name), _) => read.flag_with("MODEL", Some(name), model).map(|model| model.work()),
        (None, Some(_)) => read.flag::<Flops>("--flops-per-token", flops_per_token).map(Work::given),
        (None, None) => {
            let problem = Diagnostic::error("", "which model?").help("dense:70B").help("--flops-per-token 51.47GFLOP");
            read.problem(problem);
            None
        }
    }
}
