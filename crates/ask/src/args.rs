//! Flags of devices and runs as they are typed. Values stay text here: `parse` reads them all and reports all that is wrong
//! at once.

use clap::Args;
use plan::time::Pace;
use plan::wall::{Around, Failures, Pause};
use units::{Diagnostic, Mfu, Seconds, Tokens};

use crate::parse::{Reader, days, dollars, positive, some};

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
    /// Tokens a second that data loading delivers, over all devices: what is missing is waited for
    #[arg(long, value_name = "RATE")]
    pub loader: Option<String>,
    /// Evaluations: how long one takes and how often there is one, such as 5min/6h
    #[arg(long, value_name = "TIME/EVERY")]
    pub eval: Option<String>,
    /// Saves: for how long one holds up training and how often there is one, such as 30s/1h
    #[arg(long, value_name = "TIME/EVERY")]
    pub save: Option<String>,
    /// Time of one device between two failures that stop the run, such as 50000h; measured: that of a large run
    #[arg(long, value_name = "TIME")]
    pub mtbf: Option<String>,
    /// Time from a failure until training goes on [default: 10min]
    #[arg(long, value_name = "TIME")]
    pub restart: Option<String>,
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
    /// What there is around its steps.
    pub around: Around,
}

impl RunArgs {
    /// Refuses what is said of the speed or the price of a run that has no tokens.
    pub fn need_tokens(&self, read: &mut Reader<'_>) {
        if self.tokens.is_none() {
            let idle =
                [("--mfu", self.mfu.is_some()), ("--days", self.days.is_some()), ("--price", self.price.is_some())];
            read.no_effect(&[&idle[..], &self.around_given()].concat(), "without --tokens no time is asked for");
        }
    }

    /// Flags of what there is around the steps, each with whether it was given.
    const fn around_given(&self) -> [(&'static str, bool); 5] {
        [
            ("--loader", self.loader.is_some()),
            ("--eval", self.eval.is_some()),
            ("--save", self.save.is_some()),
            ("--mtbf", self.mtbf.is_some()),
            ("--restart", self.restart.is_some()),
        ]
    }

    /// What there is around the steps.
    fn around(&self, read: &mut Reader<'_>) -> Around {
        if self.days.is_some() {
            read.no_effect(&self.around_given(), "--days is the time of the steps");
        }
        if self.mtbf.is_none() {
            read.no_effect(&[("--restart", self.restart.is_some())], "no failures are counted without --mtbf");
        }
        let between = read.flag_with("--mtbf", self.mtbf.as_deref(), |text| match text {
            "measured" => Ok(Failures::measured()),
            text => some_time(text),
        });
        let restart = read.flag_with("--restart", self.restart.as_deref(), time);
        Around {
            loader: read.flag_with("--loader", self.loader.as_deref(), |text| {
                positive(text.trim().trim_end_matches("tokens/s").trim_end_matches("/s").trim())
            }),
            evaluation: read.flag_with("--eval", self.eval.as_deref(), pause),
            saves: read.flag_with("--save", self.save.as_deref(), pause),
            failures: between.map(|between| Failures { between, restart }),
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
        Run { tokens, pace, price, around: self.around(read) }
    }
}

/// A time with its unit.
fn time(text: &str) -> Result<Seconds, Diagnostic> {
    let bare = text.trim().ends_with(|last: char| last.is_ascii_digit() || last == '.');
    if bare {
        return Err(Diagnostic::error("", format!("`{text}` has no unit")).help(format!("{}min", text.trim())));
    }
    Ok(text.parse::<Seconds>()?)
}

/// A time above zero.
fn some_time(text: &str) -> Result<Seconds, Diagnostic> {
    match time(text)? {
        Seconds::ZERO => Err(Diagnostic::error("", format!("`{text}` is no time"))),
        time => Ok(time),
    }
}

/// `30s/1h`.
fn pause(text: &str) -> Result<Pause, Diagnostic> {
    let Some((takes, every)) = text.split_once('/') else {
        let problem = Diagnostic::error("", format!("`{text}` is not how long and how often"));
        return Err(problem.help(format!("{}/1h", text.trim())));
    };
    Ok(Pause { takes: time(takes)?, every: some_time(every)? })
}
