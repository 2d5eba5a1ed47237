//! What there is to spend: devices for a time, time of one device, or money.

use std::str::FromStr;
use units::{Diagnostic, Seconds, parse_count};

use crate::hardware::find;

/// A budget.
#[derive(Clone, Debug, PartialEq)]
pub enum Budget {
    /// So many devices of a kind, for so long.
    Fleet {
        /// How many.
        devices: u64,
        /// Name of the device.
        name: String,
        /// For how long.
        time: Seconds,
    },
    /// Time of one device; two devices spend it in half of the time.
    DeviceTime(Seconds),
    /// US dollars.
    Dollars(f64),
}

impl Budget {
    /// Time of one device that it buys at so many US dollars for a device and hour.
    ///
    /// # Errors
    /// `T0489` for money without a price, or a price of nothing.
    pub fn device_time(&self, price: Option<f64>) -> Result<Seconds, Diagnostic> {
        let hours = match self {
            Self::Fleet { devices, time, .. } => time.hours() * *devices as f64,
            Self::DeviceTime(time) => time.hours(),
            Self::Dollars(dollars) => {
                let unknown = || {
                    Diagnostic::error("T0489", "what a device costs is not known")
                        .why("the hardware table holds no prices: they differ by contract and month")
                        .help("--price 2.50, US dollars for one device and hour")
                };
                dollars / price.filter(|price| *price > 0.0).ok_or_else(unknown)?
            }
        };
        Seconds::new(hours * 3600.0).map_err(|error| Diagnostic::error("T0489", error.to_string()))
    }
}

impl FromStr for Budget {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<Self, Diagnostic> {
        let refuse = |what: String| {
            Diagnostic::error("T0489", format!("a budget of `{text}`: {what}"))
                .help("--budget '64 h100-sxm for 14 days'")
                .help("--budget '5000 device-days'")
                .help("--budget '$50000'")
        };
        let number = |part: &str, of: &str| match parse_count(part) {
            Ok(0) => Err(refuse(format!("no {of}"))),
            Ok(count) => Ok(count as f64),
            Err(_) => Err(refuse(format!("`{part}` is no number of {of}"))),
        };
        let plain = text.trim();
        if let Some(dollars) = plain.strip_prefix('$').or_else(|| plain.strip_suffix("USD")) {
            return number(dollars.trim(), "dollars").map(Self::Dollars);
        }
        let Some((devices, time)) = plain.split_once(" for ") else {
            let Some((count, unit)) = plain.split_once(' ') else {
                let what =
                    if number(plain, "devices").is_ok() { "of what, and for how long?" } else { "not understood" };
                return Err(refuse(what.to_owned()));
            };
            let unit = match unit.trim() {
                "device-days" | "gpu-days" => 86_400.0,
                "device-hours" | "gpu-hours" => 3600.0,
                other if find(other).is_ok() => {
                    return Err(refuse("for how long? `for 14 days` is missing".to_owned()));
                }
                other => return Err(refuse(format!("`{other}` is neither device-days nor device-hours"))),
            };
            let time = Seconds::new(number(count, "device-days")? * unit);
            return time.map(Self::DeviceTime).map_err(|error| refuse(error.to_string()));
        };
        let words: Vec<&str> = devices.split_whitespace().filter(|word| !matches!(*word, "x" | "×")).collect();
        let (count, name) = match words.as_slice() {
            [count, name] => (count, name),
            [one] if number(one, "devices").is_ok() => return Err(refuse(format!("{one} of which device?"))),
            [one] => return Err(refuse(format!("how many `{one}`?"))),
            _ => return Err(refuse(format!("`{devices}` is no number and name of a device"))),
        };
        let devices = match count.replace([',', '_'], "").parse::<u64>() {
            Ok(0) => return Err(refuse("no devices".to_owned())),
            Ok(devices) => devices,
            Err(_) => return Err(refuse(format!("`{count}` is no number of devices"))),
        };
        // Seconds without a unit are not meant.
        if !time.ends_with(|last: char| last.is_alphabetic()) {
            return Err(refuse(format!("`{}` has no unit: days, hours or weeks", time.trim())));
        }
        let time: Seconds =
            time.parse().map_err(|_| refuse(format!("`{}` is no time: 14 days, 36 hours, 2 weeks", time.trim())))?;
        if time == Seconds::ZERO {
            return Err(refuse("no time".to_owned()));
        }
        Ok(Self::Fleet { devices, name: (*name).to_owned(), time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_and_others_refused() {
        let fleet = |text: &str| match text.parse::<Budget>().unwrap() {
            Budget::Fleet { devices, name, time } => (devices, name, time.days()),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(fleet("64 h100-sxm for 14 days"), (64, "h100-sxm".to_owned(), 14.0));
        assert_eq!(fleet("1,024 x b200 for 2 weeks"), (1024, "b200".to_owned(), 14.0));
        assert_eq!(fleet("8 a100 for 12 hours").2, 0.5);
        let days = |text: &str, price| text.parse::<Budget>().unwrap().device_time(price).map(Seconds::days).unwrap();
        assert_eq!(days("5,000 device-days", None), 5000.0);
        assert_eq!(days("48 gpu-hours", None), 2.0);
        assert_eq!(days("64 h100-sxm for 14 days", None), 896.0);
        // 4,800 dollars at 2 dollars an hour are 2,400 hours.
        for text in ["$4800", "$ 4,800", "4.8k USD"] {
            assert_eq!(days(text, Some(2.0)), 100.0, "{text}");
            assert!(text.parse::<Budget>().unwrap().device_time(None).is_err());
        }
        for text in [
            "",
            "64",
            "h100 for 3 days",
            "0 h100 for 3 days",
            "8 h100 for -3 days",
            "8 h100 for 0 days",
            "8 h100 for inf days",
            "8 h100 for 1e305 days",
            "8 h100 in 3 days",
            "8 h100 for 3 years",
            "8 h100 for 3",
            "$",
            "$-5",
            "$0",
            "5 days",
            "0 device-days",
        ] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
        for (text, says) in [
            ("64", "of what, and for how long?"),
            ("64 h100-sxm", "for how long?"),
            ("h100-sxm for 3 days", "how many `h100-sxm`?"),
            ("64 for 3 days", "64 of which device?"),
            ("many h100-sxm for 3 days", "`many` is no number of devices"),
            ("64 h100-sxm for x days", "`x days` is no time"),
            ("64 h100-sxm for 3", "`3` has no unit"),
            ("64 h100-sxm for 0 days", "no time"),
            ("0 h100-sxm for 3 days", "no devices"),
            ("x device-days", "`x` is no number of device-days"),
            ("5 parsecs", "`parsecs` is neither device-days nor device-hours"),
            ("$x", "`x` is no number of dollars"),
        ] {
            let problem = text.parse::<Budget>().unwrap_err();
            assert!(problem.message.contains(says), "{text}: {}", problem.message);
        }
    }
}
