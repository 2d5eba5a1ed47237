//! The date.

use std::time::{SystemTime, UNIX_EPOCH};

/// Year and month in UTC, such as `2026-11`.
pub fn month() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
    let (year, month, _) = civil(seconds / 86_400);
    format!("{year}-{month:02}")
}

/// Year, month and day of a day after 1970-01-01, in the Gregorian calendar.
///
/// Years begin in March here, so that the day that is sometimes there is the last one of a year.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468; // days from 0000-03-01 to 1970-01-01
    let (era, of_era) = (day / 146_097, day % 146_097); // 400 years
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153; // months of 31 and 30 days from March on
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        // date -u -d @$((86400 * n)) +%F
        for (day, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_787, (2026, 11, 30)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(day), date, "{day}");
        }
        assert!(month().as_str() >= "2026-01");
    }
}
