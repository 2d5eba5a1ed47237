//! What there is to spend: devices for a time, time of one device, or money.

use std::str::FromStr;
use units::{Diagnostic, Seconds, parse_count};

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
        let refuse = || {
            Diagnostic::error("T0489", format!("a budget of `{text}` is not understood"))
                .help("--budget '64 h100-sxm for 14 days'")
                .help("--budget '5000 device-days'")
                .help("--budget '$50000'")
        };
        let number = |text: &str| parse_count(text).ok().map(|n| n as f64).filter(|n| *n > 0.0);
        let plain = text.trim();
        if let Some(dollars) = plain.strip_prefix('$').or_else(|| plain.strip_suffix("USD")) {
            return number(dollars.trim()).map(Self::Dollars).ok_or_else(refuse);
        }
        let Some((devices, time)) = plain.split_once(" for ") else {
            let (count, unit) = plain.split_once(' ').ok_or_else(refuse)?;
            let unit = match unit.trim() {
                "device-days" | "gpu-days" => 86_400.0,
                "device-hours" | "gpu-hours" => 3600.0,
                _ => return Err(refuse()),
            };
            let time = number(count).and_then(|count| Seconds::new(count * unit).ok());
            return time.map(Self::DeviceTime).ok_or_else(refuse);
        };
        let words: Vec<&str> = devices.split_whitespace().filter(|word| !matches!(*word, "x" | "×")).collect();
        let [count, name] = words.as_slice() else { return Err(refuse()) };
        let devices: u64 = count.replace([',', '_'], "").parse().ok().filter(|count| *count > 0).ok_or_else(refuse)?;
        // Seconds without a unit are not meant.
        let named = time.ends_with(|last: char| last.is_alphabetic());
        let time: Seconds = time.parse().ok().filter(|time| named && *time > Seconds::ZERO).ok_or_else(refuse)?;
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
    }
}
