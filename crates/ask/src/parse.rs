//! Flags to typed values. A reader goes on after a mistake, so that all of them are reported at once.

use std::fmt::Display;
use std::str::FromStr;

use plan::fleet::Fleet;
use plan::hardware::{Hardware, Precision};
use units::{Diagnostic, Diagnostics, FlopPerSecond, Flops, Seconds};

use crate::args::{DeviceArgs, FleetArgs};
use crate::files::Files;
use crate::hardware;

/// Reads flags and collects what is wrong with them.
#[derive(Debug)]
pub struct Reader<'f> {
    files: &'f dyn Files,
    problems: Diagnostics,
}

impl<'f> Reader<'f> {
    /// A reader of flags that may name files.
    pub fn new(files: &'f dyn Files) -> Self {
        Self { files, problems: Diagnostics::new() }
    }

    /// A reader of the same files, which has found nothing wrong.
    pub fn another(&self) -> Self {
        Self::new(self.files)
    }

    /// Where named files come from.
    pub const fn files(&self) -> &'f dyn Files {
        self.files
    }

    /// Notes a problem, once: flags that several set-ups share are read for each of them.
    pub fn problem(&mut self, problem: impl Into<Diagnostic>) {
        let problem = problem.into();
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Notes several problems.
    pub fn problems(&mut self, problems: Diagnostics) {
        for problem in problems {
            self.problem(problem);
        }
    }

    /// The value, or a note of why there is none.
    pub fn take<T, E: Into<Diagnostic>>(&mut self, value: Result<T, E>) -> Option<T> {
        value.map_err(|problem| self.problem(problem)).ok()
    }

    /// The value, or notes of why there is none.
    pub fn take_all<T>(&mut self, value: Result<T, Diagnostics>) -> Option<T> {
        value.map_err(|problems| self.problems(problems)).ok()
    }

    /// The value of a flag that may be left out. A mistake names the flag.
    pub fn flag<T: FromStr<Err: Into<Diagnostic>>>(&mut self, flag: &str, text: Option<&str>) -> Option<T> {
        self.flag_with(flag, text, str::parse::<T>)
    }

    /// As [`flag`](Self::flag), read by a function.
    pub fn flag_with<T, E: Into<Diagnostic>>(
        &mut self,
        flag: &str,
        text: Option<&str>,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let read = read(text?).map_err(|error| {
            let mut problem: Diagnostic = error.into();
            if !problem.message.contains(flag) {
                problem.message = format!("{flag}: {}", problem.message);
            }
            problem
        });
        self.take(read)
    }

    /// Asks for a flag that was left out.
    pub fn required<T>(&mut self, value: Option<T>, given: bool, flag: &str, example: impl Display) -> Option<T> {
        if value.is_none() && !given {
            self.problem(Diagnostic::error("", format!("`{flag}` is needed")).help(format!("{flag} {example}")));
        }
        value
    }

    /// The device that `--hw` names.
    pub fn hardware(&mut self, name: Option<&str>) -> Option<Hardware> {
        self.take(hardware::load(self.files, name?))
    }

    /// The devices of a run.
    pub fn fleet(&mut self, args: &FleetArgs) -> Option<Fleet> {
        self.fleet_in(args, Precision::Bf16)
    }

    /// The devices of a run that multiplies in `arithmetic` unless `--dtype` says otherwise.
    pub fn fleet_in(&mut self, args: &FleetArgs, arithmetic: Precision) -> Option<Fleet> {
        let hardware = self.hardware(args.device.hw.as_deref());
        let hardware = self.required(hardware, args.device.hw.is_some(), "--hw", "h100-sxm");
        let devices = self.flag_with("--devices", args.device.devices.as_deref(), some);
        let precision = self.flag::<Precision>("--dtype", args.dtype.as_deref());
        let peak = self.flag_with("--peak", args.peak.as_deref(), rate);
        let fleet = Fleet {
            hardware: hardware?,
            devices: devices.unwrap_or(1),
            devices_given: devices.is_some(),
            precision: precision.unwrap_or(arithmetic),
            precision_given: precision.is_some(),
        };
        match peak {
            Some(peak) => self.take(fleet.with_peak(peak)),
            None => Some(fleet),
        }
    }

    /// The device and how many there are, where a device may be left out.
    pub fn device(&mut self, args: &DeviceArgs) -> (Option<Hardware>, u64) {
        let hardware = self.hardware(args.hw.as_deref());
        let devices = self.flag_with("--devices", args.devices.as_deref(), some);
        (hardware, devices.unwrap_or(1))
    }

    /// The devices of a run, where they may be left out; `idle` are flags that then say nothing.
    pub fn fleet_if_named(&mut self, args: &FleetArgs, idle: &[(&str, bool)]) -> Option<Fleet> {
        if args.device.hw.is_some() {
            return self.fleet(args);
        }
        self.no_effect(idle, "no device is named by --hw");
        None
    }

    /// Refuses flags that were given and do not act.
    ///
    /// `flags` are their names, each with whether it was given; `why` says what they have no part in.
    pub fn no_effect(&mut self, flags: &[(&str, bool)], why: &str) {
        let given: Vec<&str> = flags.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
        if !given.is_empty() {
            let message = format!("{} changes nothing: {why}", given.join(", "));
            self.problem(Diagnostic::error("", message).help(format!("leave {} out", given.join(", "))));
        }
    }

    /// The values of a flag that may be given several times.
    pub fn flags<T, E: Into<Diagnostic>>(
        &mut self,
        flag: &str,
        texts: &[String],
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        texts.iter().filter_map(|text| self.flag_with(flag, Some(text), &read)).collect()
    }

    /// All values, or all problems.
    ///
    /// # Errors
    /// What was noted.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Diagnostics> {
        match value {
            Some(value) if !self.problems.has_errors() => Ok(value),
            _ => Err(self.problems),
        }
    }
}

/// A whole number that fits 64 bits.
pub fn count(text: &str) -> Result<u64, Diagnostic> {
    let count = units::parse_count(text)?;
    u64::try_from(count).map_err(|_| Diagnostic::error("", format!("`{text}` is too large")))
}

/// A whole number above zero.
pub fn some(text: &str) -> Result<u64, Diagnostic> {
    let count = count(text)?;
    if count == 0 { Err(Diagnostic::error("", "at least 1 is needed")) } else { Ok(count) }
}

/// A rate such as `989.5TFLOP/s`, `312e12` or `500T`. What a device does is never so few that no power of ten is said.
pub fn rate(text: &str) -> Result<FlopPerSecond, Diagnostic> {
    if text.trim().parse::<f64>().is_ok_and(|flop| flop > 0.0 && flop < 1e9) {
        return Err(Diagnostic::error("", format!("`{text}` has no unit")).help(format!("{}TFLOP/s", text.trim())));
    }
    let flop: Flops = text.trim().strip_suffix("/s").unwrap_or(text).parse()?;
    let rate = FlopPerSecond::new(flop.as_f64()).map_err(|error| Diagnostic::error("", error.to_string()))?;
    if rate == FlopPerSecond::ZERO { Err(Diagnostic::error("", "a rate of zero does no work")) } else { Ok(rate) }
}

/// A time of which a bare number is in days: `30`, `30d`, `720h`.
pub fn days(text: &str) -> Result<Seconds, Diagnostic> {
    let bare = text.trim().ends_with(|c: char| c.is_ascii_digit() || c == '.');
    let text = if bare { format!("{} d", text.trim()) } else { text.to_owned() };
    Ok(text.parse::<Seconds>()?)
}

/// An amount of US dollars: `2.50` or `$2.50`.
pub fn dollars(text: &str) -> Result<f64, Diagnostic> {
    let number = text.trim().trim_start_matches('$').parse::<f64>();
    number
        .ok()
        .filter(|amount| amount.is_finite() && *amount >= 0.0)
        .ok_or_else(|| Diagnostic::error("", format!("price `{text}` is no amount of dollars")).help("--price 2.50"))
}

/// A positive number.
pub fn positive(text: &str) -> Result<f64, Diagnostic> {
    let number =
        text.trim().replace(',', "").parse::<f64>().ok().or_else(|| Some(units::parse_count(text).ok()? as f64));
    number
        .filter(|number| number.is_finite() && *number > 0.0)
        .ok_or_else(|| Diagnostic::error("", format!("`{text}` is no number above zero")))
}

/// A share from 0 to 1: `0.9` or `90%`.
pub fn share(text: &str) -> Result<f64, Diagnostic> {
    let trimmed = text.trim();
    let (number, of) = trimmed.strip_suffix('%').map_or((trimmed, 1.0), |percent| (percent.trim_end(), 100.0));
    let share = number.parse::<f64>().ok().map(|number| number / of);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| Diagnostic::error("", format!("`{text}` is no share from 0 to 1")).help("0.9").help("90%"))
}

/// A share above 0.
pub fn positive_share(text: &str) -> Result<f64, Diagnostic> {
    match share(text)? {
        0.0 => Err(Diagnostic::error("", format!("`{text}` is a share of nothing")).help("0.9").help("90%")),
        share => Ok(share),
    }
}

/// A share below 1.
pub fn share_below_one(text: &str) -> Result<f64, Diagnostic> {
    match share(text)? {
        1.0 => Err(Diagnostic::error("", format!("`{text}` is no share from 0 up to but not 1")).help("0.95")),
        share => Ok(share),
    }
}

/// `name=value`.
pub fn assignment(text: &str) -> Result<(String, String), Diagnostic> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.trim().to_owned())),
        _ => Err(Diagnostic::error("", format!("`{text}` is no assignment")).help("write name=value, such as b=8")),
    }
}

/// The words behind the name of the program as one line that a shell reads back.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,=+%@".contains(c);
    let words = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    std::iter::once("napkin".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(days("143.9").map(Seconds::days).ok(), Some(143.9));
        assert_eq!(days("48h").map(Seconds::days).ok(), Some(2.0));
        assert_eq!(rate("989.5 TFLOP/s").map(FlopPerSecond::get).ok(), Some(989.5e12));
        assert_eq!(rate("312e12").map(FlopPerSecond::get).ok(), Some(312e12));
        assert!(rate("0").is_err());
        assert_eq!(dollars("$2.50").ok(), Some(2.5));
        assert!(dollars("-1").is_err() && dollars("nan").is_err());
        assert_eq!(positive("9,600").ok(), Some(9600.0));
        assert_eq!(positive("1.2M").ok(), Some(1_200_000.0));
        assert!(positive("0").is_err() && positive("inf").is_err());
        assert_eq!(
            ["0.9", "90%", " 12.5 % ", "0", "1", "100%"].map(|text| share(text).ok()),
            [Some(0.9), Some(0.9), Some(0.125), Some(0.0), Some(1.0), Some(1.0)]
        );
        assert!(["1.1", "101%", "-0.1", "nan", "", "%", "x"].iter().all(|text| share(text).is_err()));
        assert!(positive_share("0%").is_err() && positive_share("1").is_ok());
        assert!(share_below_one("100%").is_err() && share_below_one("0").is_ok());
    }

    #[test]
    fn command_lines_can_be_pasted() {
        let words = ["einsum", "b s, s -> b", "it's", "b=8"].map(str::to_owned);
        assert_eq!(command_line(&words), r"napkin einsum 'b s, s -> b' 'it'\''s' b=8");
    }
}
