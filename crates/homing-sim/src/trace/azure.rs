//! Azure's CSV (AzurePublicDataset): `TIMESTAMP,ContextTokens,GeneratedTokens`. Lengths and arrivals alone, so
//! no two prompts share a block.

use super::lines::Lines;
use super::read::{Options, length};
use super::{Builder, Format, Told, Trace, TraceError};
use std::time::Duration;

pub(super) fn read(
    header: &[u8],
    mut lines: Lines<'_>,
    options: &Options,
) -> Result<Trace, TraceError> {
    if header != b"TIMESTAMP,ContextTokens,GeneratedTokens" {
        let what = "the columns must be TIMESTAMP,ContextTokens,GeneratedTokens".to_owned();
        return Err(TraceError::Line { line: 1, what });
    }
    let file = |what| TraceError::File(what);
    let size = options.block_size.map_or(Ok(64), |size| options.size(size)).map_err(file)?;
    let mut builder = Builder::new(size);
    let mut contents = 0u64..;
    while builder.told.len() < options.limit
        && let Some((line, text)) = lines.next()?
    {
        let bad = |what: &str| TraceError::Line {
            line,
            what: format!("{what}; a row is like `2023-11-16 18:15:46.6805900,374,44`"),
        };
        let text = std::str::from_utf8(text).map_err(|_| bad("not text"))?;
        let mut cells = text.split(',');
        let (Some(at), Some(prompt), Some(output), None) =
            (cells.next(), cells.next(), cells.next(), cells.next())
        else {
            return Err(bad("not three columns"));
        };
        let number = |cell: &str| cell.trim().parse::<u64>().map_err(|_| bad("not a number"));
        let prompt_tokens = length(line, number(prompt)?)?;
        let told = Told {
            at: instant(at.trim()).ok_or_else(|| bad("not a time"))?,
            prompt_tokens,
            output_tokens: length(line, number(output)?.max(1))?,
            ..Told::default()
        };
        builder.put(line, told, contents.by_ref().take((prompt_tokens / size) as usize))?;
    }
    builder.finish(Format::Azure)
}

/// `2023-11-16 18:15:46.6805900` as the time since some day long ago.
fn instant(text: &str) -> Option<Duration> {
    let (day, time) = text.split_once(' ')?;
    let mut parts = day.splitn(3, '-').map(|p| p.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days of the civil calendar, with March as the first month: leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let days = days - 719_469;
    let mut parts = time.splitn(3, ':');
    let (hours, minutes) = (parts.next()?.parse::<u64>().ok()?, parts.next()?.parse::<u64>().ok()?);
    let seconds = parts.next()?.parse::<f64>().ok()?;
    if hours > 23 || minutes > 59 || !(0.0..61.0).contains(&seconds) {
        return None;
    }
    let whole = u64::try_from(days).ok()? * 86_400 + hours * 3600 + minutes * 60;
    Some(Duration::from_secs(whole) + Duration::from_micros((seconds * 1e6).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_those_of_the_calendar() {
        let seconds = |text| instant(text).map(|t| t.as_secs_f64());
        assert_eq!(seconds("1970-01-01 00:00:01.5"), Some(1.5));
        assert_eq!(seconds("2023-11-16 18:15:46.6805900"), Some(1_700_158_546.680_59));
        assert_eq!(seconds("2024-02-29 00:00:00"), Some(1_709_164_800.0));
        for bad in ["", "2023-11-16", "2023-13-16 00:00:00", "2023-11-16 25:00:00", "a-b-c d:e:f"] {
            assert_eq!(instant(bad), None, "{bad}");
        }
    }
}
