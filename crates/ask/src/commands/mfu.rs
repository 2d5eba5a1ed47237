//! `napkin mfu dense:7B --tokens-per-second 9600 --hw h100-sxm`, or of a log: `napkin mfu gpt2 --log run.jsonl --hw a100`.

use clap::Args;
use plan::mfu::{Measured, Request};
use plan::report::Report;
use plan::work::Work;
use plan::{log_mfu, step_log};
use units::{Diagnostic, Diagnostics, Mfu, Seconds, Tokens, TokensPerSecond};

use crate::args::FleetArgs;
use crate::parse::{Reader, positive, rate};
use crate::step::{FillingArgs, WorkArgs};
use crate::text;

/// Longest log that is read.
const MOST_BYTES: usize = 256 << 20;

/// Which utilization a measured speed is.
#[derive(Debug, Args)]
pub struct MfuArgs {
    /// The model
    #[command(flatten)]
    pub work: WorkArgs,
    /// How sequences are filled
    #[command(flatten)]
    pub filling: FillingArgs,
    /// Tokens per second, of all devices together
    #[arg(long, value_name = "N")]
    pub tokens_per_second: Option<String>,
    /// Time of one step, such as 505ms
    #[arg(long, value_name = "TIME", conflicts_with = "tokens_per_second", requires = "tokens_per_step")]
    pub step_time: Option<String>,
    /// Tokens of one step, of all devices together
    #[arg(long, value_name = "N")]
    pub tokens_per_step: Option<String>,
    /// The log of a run: a file of JSON or plain lines, - for standard input, or a line of it; the model may be left out
    /// where the log counts FLOP, as that of `napkin train --log` does
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens_per_second", "step_time", "matmul", "printed"])]
    pub log: Option<String>,
    /// The tokens are those of one device
    #[arg(long)]
    pub per_device: bool,
    /// One matrix multiplication instead of training, such as 16384x32768x8192
    #[arg(long, value_name = "MxKxN", conflicts_with_all = ["model", "flops_per_token", "tokens_per_second", "step_time"])]
    pub matmul: Option<String>,
    /// How long the multiplication took, such as 0.16 or 160ms
    #[arg(long, value_name = "TIME", requires = "matmul")]
    pub seconds: Option<String>,
    /// A utilization that was printed with a wrong peak, such as 104%
    #[arg(long, value_name = "SHARE", requires = "printed_peak", conflicts_with_all = ["model", "matmul", "flops_per_token"])]
    pub printed: Option<String>,
    /// The peak it was printed with, such as 312TFLOP/s
    #[arg(long, value_name = "RATE", requires = "printed")]
    pub printed_peak: Option<String>,
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl MfuArgs {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if let Some(log) = &self.log {
            return self.logged(log, read);
        }
        if self.tokens_per_step.is_some() && self.step_time.is_none() {
            let problem = Diagnostic::error("", "`--tokens-per-step` needs `--step-time` or `--log`");
            read.problem(problem.help("--step-time 505ms").help("--log run.jsonl"));
        }
        if self.matmul.is_some() || self.printed.is_some() {
            let flags = [("--per-device", self.per_device)];
            read.no_effect(&[&flags[..], &self.filling.given()].concat(), "no tokens are counted");
            self.work.reading.need_model(&mut read);
        }
        let measured = if self.matmul.is_some() {
            self.multiplication(&mut read)
        } else if self.printed.is_some() {
            let mfu = read.flag::<Mfu>("--printed", self.printed.as_deref());
            let peak = read.flag_with("--printed-peak", self.printed_peak.as_deref(), rate);
            mfu.zip(peak).map(|(mfu, peak)| Measured::Printed { mfu, peak })
        } else {
            self.training(&mut read)
        };
        let fleet = read.fleet(&self.fleet);
        let request = measured.zip(fleet).map(|(measured, fleet)| Request { measured, fleet });
        read.finish(request)?.report()
    }

    fn logged(&self, log: &str, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        // A line of a log has words in it; what has none is the name of a file.
        let line = log.contains([' ', '{', '=']);
        let text =
            text::load(read.files(), log, MOST_BYTES, line).and_then(|text| match text.len() {
                0..=MOST_BYTES => Ok(text),
                _ => Err(Diagnostic::error("", "--log: longer than 256 MiB")
                    .help("tail -n 100000 run.log | napkin mfu --log -")),
            });
        let lines = read.take(text.and_then(|text| step_log::read(&text)));
        let asked = self.work.model.is_some() || self.work.flops_per_token.is_some();
        let work = if asked { self.filled(&mut read) } else { None };
        if !asked {
            self.work.reading.need_model(&mut read);
            read.no_effect(&self.filling.given(), "no model is named, and the log counts the work of a token");
        }
        let tokens = read.flag::<Tokens>("--tokens-per-step", self.tokens_per_step.as_deref());
        let fleet = read.fleet(&self.fleet);
        let request = lines.zip(fleet).map(|(lines, fleet)| log_mfu::Request {
            lines,
            work,
            tokens_per_step: tokens.map(Tokens::as_f64),
            fleet,
            per_device: self.per_device,
        });
        read.finish(request)?.report()
    }

    /// The work of a token, in sequences that are filled as was said.
    fn filled(&self, read: &mut Reader<'_>) -> Option<Work> {
        let filling = self.filling.read(read);
        let work = self.work.read(read)?;
        read.take(filling.applied(work))
    }

    fn multiplication(&self, read: &mut Reader<'_>) -> Option<Measured> {
        let sizes = read.flag_with("--matmul", self.matmul.as_deref(), sizes);
        let time = read.flag::<Seconds>("--seconds", self.seconds.as_deref());
        let time = read.required(time, self.seconds.is_some(), "--seconds", "0.16");
        sizes.zip(time).map(|([m, k, n], time)| Measured::Matmul { m, k, n, time })
    }

    fn training(&self, read: &mut Reader<'_>) -> Option<Measured> {
        let work = self.filled(read);
        let speed = read.flag_with("--tokens-per-second", self.tokens_per_second.as_deref(), |text| {
            TokensPerSecond::new(positive(text)?).map_err(|error| Diagnostic::error("", error.to_string()))
        });
        let tokens = read.flag::<Tokens>("--tokens-per-step", self.tokens_per_step.as_deref());
        let time = read.flag::<Seconds>("--step-time", self.step_time.as_deref());
        let speed = speed.or_else(|| tokens.zip(time).map(|(tokens, time)| tokens / time));
        let asked = self.tokens_per_second.is_some() || self.step_time.is_some();
        let rate = read.required(speed, asked, "--tokens-per-second", "9600");
        work.zip(rate).map(|(work, rate)| Measured::Tokens { work, rate, per_device: self.per_device })
    }
}

fn sizes(text: &str) -> Result<[u64; 3], Diagnostic> {
    let parts: Result<Vec<u64>, _> = text.split(['x', 'X', '×']).map(crate::parse::some).collect();
    let wrong = || Diagnostic::error("", format!("`{text}` is no m × k × n")).help("--matmul 16384x32768x8192");
    parts.map_err(|_| wrong())?.try_into().map_err(|_| wrong())
}
