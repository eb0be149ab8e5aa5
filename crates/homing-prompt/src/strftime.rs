//! `strftime_now` of chat templates, for a time that the caller supplies: this crate has no clock,
//! and a router must be able to say which day a rendering is for. UTC, as engines in containers
//! run; names are those of the C locale.

use std::fmt::Write as _;

use homing_core::time::Time;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Days from 1970-01-01 to a civil date's year, month (1..=12) and day: counts in years that begin
/// in March, so that the leap day is a year's last, in eras of 400 years (146 097 days).
fn civil(days: u64) -> (u64, u64, u64) {
    // 719 468 days lie between 0000-03-01 and 1970-01-01.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March: lengths 31 30 31 30 31 repeat, 153 days in five months.
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// `now` by Python's `strftime` codes. The error is the code that it doesn't know.
pub(crate) fn strftime(now: Time, format: &str) -> Result<String, char> {
    let seconds = now.as_micros() / 1_000_000;
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) =
        (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    // The epoch was a Thursday. The remainders are below 12 and 7, so the lookups can't miss.
    let month_name = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let day_name = DAYS.get((days as usize + 3) % 7).copied().unwrap_or_default();
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // Writing to a String cannot fail.
        let _ = match chars.next().unwrap_or('%') {
            'Y' => write!(out, "{year:04}"),
            'y' => write!(out, "{:02}", year % 100),
            'm' => write!(out, "{month:02}"),
            'd' => write!(out, "{day:02}"),
            'B' => write!(out, "{month_name}"),
            'b' | 'h' => write!(out, "{}", month_name.get(..3).unwrap_or_default()),
            'A' => write!(out, "{day_name}"),
            'a' => write!(out, "{}", day_name.get(..3).unwrap_or_default()),
            'H' => write!(out, "{hour:02}"),
            'I' => write!(out, "{:02}", (hour + 11) % 12 + 1),
            'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            'M' => write!(out, "{minute:02}"),
            'S' => write!(out, "{second:02}"),
            'F' => write!(out, "{year:04}-{month:02}-{day:02}"),
            'T' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            '%' => write!(out, "%"),
            other => return Err(other),
        };
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, format: &str) -> Result<String, char> {
        strftime(Time::from_micros(seconds * 1_000_000), format)
    }

    /// Values by Python 3.11 `datetime.fromtimestamp(s, UTC).strftime(...)`.
    #[test]
    fn matches_python() {
        assert_eq!(at(0, "%A %d %B %Y %T").unwrap(), "Thursday 01 January 1970 00:00:00");
        assert_eq!(at(1_773_480_413, "%d %b %Y").unwrap(), "14 Mar 2026");
        assert_eq!(
            at(1_773_480_413, "%a %y-%m-%d %I:%M:%S %p %%").unwrap(),
            "Sat 26-03-14 09:26:53 AM %"
        );
        assert_eq!(at(951_782_400, "%F").unwrap(), "2000-02-29");
        assert_eq!(at(4_107_542_399, "%F %I%p").unwrap(), "2100-02-28 11PM");
        assert_eq!(at(4_107_542_400, "%F %I%p").unwrap(), "2100-03-01 12AM");
    }

    #[test]
    fn unknown_codes_are_named_and_the_end_of_time_does_not_overflow() {
        assert_eq!(at(0, "%Q"), Err('Q'));
        assert!(strftime(Time::from_micros(u64::MAX), "%F").is_ok());
    }
}
