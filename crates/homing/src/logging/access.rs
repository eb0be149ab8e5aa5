//! The lines of the access log, written as the library writes events, byte for byte, in an eighth of its instructions: a
//! request writes one, and by the library's own way, through a call of `fmt` for each part of each field, that was a
//! sixth of all that the router did for a small request.
//!
//! Everything else is the library's: other events, and lines for a terminal, which are coloured.

use std::cell::RefCell;
use std::fmt;
use std::io::Write as _;
use std::time::UNIX_EPOCH;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The target of its events.
const ACCESS: &str = "homing::access";

/// A way of writing events in which these lines are written here.
pub(super) struct AccessLines<F> {
    /// Of all other events.
    others: F,
    json: bool,
}

impl<F> AccessLines<F> {
    /// `json`: as `others` does.
    pub(super) fn beside(others: F, json: bool) -> Self {
        Self { others, json }
    }
}

impl<S, N, F> FormatEvent<S, N> for AccessLines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let meta = event.metadata();
        let ours = meta.target() == ACCESS && *meta.level() == Level::INFO;
        if !ours || writer.has_ansi_escapes() || context.lookup_current().is_some() {
            return self.others.format_event(context, writer, event);
        }
        if self.json {
            writer.write_str("{\"timestamp\":\"")?;
        }
        SECOND.with_borrow_mut(|second| second.write_now(&mut writer))?;
        LINE.with_borrow_mut(|out| {
            out.clear();
            let head: &[u8] = match self.json {
                true => b"\",\"level\":\"INFO\",\"fields\":{",
                false => b"  INFO homing::access: ",
            };
            out.extend_from_slice(head);
            event.record(&mut Fields { out, json: self.json, any: false });
            let end: &[u8] = match self.json {
                true => b"},\"target\":\"homing::access\"}\n",
                false => b"\n",
            };
            out.extend_from_slice(end);
            writer.write_str(std::str::from_utf8(out).map_err(|_| fmt::Error)?)
        })
    }
}

thread_local! {
    /// A line as it grows.
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The second in which lines are written now.
    static SECOND: RefCell<Second> = const { RefCell::new(Second { since_epoch: None, text: String::new() }) };
}

/// A second's time as the library writes it, up to its fraction: the calendar is asked once a second.
struct Second {
    since_epoch: Option<u64>,
    text: String,
}

/// What the library writes behind the second: a dot, microseconds, and the zone.
const FRACTION: usize = ".000000Z".len();

impl Second {
    fn write_now(&mut self, writer: &mut Writer<'_>) -> fmt::Result {
        let Ok(now) = std::time::SystemTime::now().duration_since(UNIX_EPOCH) else {
            return SystemTime.format_time(writer);
        };
        if self.since_epoch != Some(now.as_secs()) {
            self.ask(now.as_secs())?;
        }
        if self.since_epoch.is_none() {
            // The second was just over.
            return SystemTime.format_time(writer);
        }
        writer.write_str(&self.text)?;
        let mut fraction = *b".000000Z";
        let mut micros = now.subsec_micros();
        for digit in fraction[1..FRACTION - 1].iter_mut().rev() {
            *digit = b'0' + (micros % 10) as u8;
            micros /= 10;
        }
        writer.write_str(std::str::from_utf8(&fraction).map_err(|_| fmt::Error)?)
    }

    /// Has the library write the time that is now; it counts if that is still this second.
    fn ask(&mut self, since_epoch: u64) -> fmt::Result {
        self.since_epoch = None;
        self.text.clear();
        SystemTime.format_time(&mut Writer::new(&mut self.text))?;
        let then = std::time::SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_secs());
        if let (Some(second), Ok(then)) = (self.text.len().checked_sub(FRACTION), then)
            && then == since_epoch
            && self.text.is_char_boundary(second)
        {
            self.text.truncate(second);
            self.since_epoch = Some(since_epoch);
        }
        Ok(())
    }
}

/// The fields of one line, as they are written.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    json: bool,
    any: bool,
}

impl Fields<'_> {
    /// What stands before a value; true if that is the line's message.
    fn name(&mut self, field: &Field) -> bool {
        let (name, between) = (field.name(), if self.json { b',' } else { b' ' });
        if self.any {
            self.out.push(between);
        }
        self.any = true;
        let is_message = name == "message";
        if self.json {
            self.out.push(b'"');
            self.out.extend_from_slice(name.as_bytes());
            self.out.extend_from_slice(b"\":");
        } else if !is_message {
            self.out.extend_from_slice(name.as_bytes());
            self.out.push(b'=');
        }
        is_message
    }

    /// Numbers and the like look the same in both forms. Writing into memory doesn't fail, here and below.
    fn plain(&mut self, field: &Field, value: &impl serde::Serialize) {
        self.name(field);
        let _ = serde_json::to_writer(&mut *self.out, value);
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name(field);
        let _ = match self.json {
            true => serde_json::to_writer(&mut *self.out, &format_args!("{value:?}"))
                .map_err(Into::into),
            false => write!(self.out, "{value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let is_message = self.name(field);
        if self.json {
            let _ = serde_json::to_writer(&mut *self.out, value);
        } else if is_message {
            let _ = write!(self.out, "{value}");
        } else if value.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'"' && b != b'\\') {
            self.out.push(b'"');
            self.out.extend_from_slice(value.as_bytes());
            self.out.push(b'"');
        } else {
            let _ = write!(self.out, "{value:?}");
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // Beyond these the forms differ in their exponents.
        if self.json || value == 0.0 || (1e-4..1e15).contains(&value.abs()) {
            self.plain(field, &value);
        } else {
            self.record_debug(field, &value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::format::{Format, JsonFields};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        /// What was written, its times taken off: they are the only difference between two runs.
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            let text = String::from_utf8(bytes).unwrap();
            let timeless = |line: &str| {
                let at = line.find("20").expect("a year");
                assert_eq!(line.as_bytes()[at + 26], b'Z', "a time in microseconds: {line}");
                format!("{}{}", &line[..at], &line[at + 27..])
            };
            text.lines().map(timeless).collect()
        }
    }

    /// What the gateway says of requests, and what it might.
    fn say() {
        let odd = [
            "",
            "plain",
            "with \"quotes\"",
            "back\\slash",
            "tab\tline\n",
            "caf\u{e9} \u{1b}[31m",
            "\u{7f}",
        ];
        for (n, text) in odd.into_iter().enumerate() {
            let none: Option<&str> = None;
            tracing::info!(
                target: "homing::access",
                schema = 1_u32,
                request_id = text,
                client = Some(tracing::field::display("10.0.0.1")),
                nobody = none,
                status = 200_u16,
                dp_rank = Some(u16::MAX),
                large = u64::MAX,
                below = i64::MIN,
                flag = n == 0,
                odd = ?odd,
                ms = [0.0, 0.001, 1.0, 12.345, 1234567.5, 1e-9, 3e20][n],
                "request"
            );
            tracing::info!(target: "homing::access", text, "with {n} arguments and \"quotes\"");
            tracing::warn!(target: "homing::access", text, "of another level");
            tracing::info!(text, n, "of somebody else");
        }
        let span = tracing::info_span!("span", n = 7);
        let _within = span.enter();
        tracing::info!(target: "homing::access", status = 200_u16, "request");
    }

    #[test]
    fn lines_are_the_librarys_to_the_byte() {
        let lines = Lines::default();
        let log = || {
            let lines = lines.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone())
        };
        let written = |subscriber: tracing::Dispatch| {
            tracing::dispatcher::with_default(&subscriber, say);
            lines.take()
        };
        let theirs = written(log().finish().into());
        let ours = AccessLines::beside(Format::default(), false);
        let ours = written(log().event_format(ours).finish().into());
        assert_eq!(ours, theirs);
        assert_eq!(ours.len(), 7 * 4 + 1);

        let theirs = written(log().json().finish().into());
        let ours = AccessLines::beside(Format::default().json(), true);
        let ours = log().fmt_fields(JsonFields::new()).event_format(ours).finish();
        let ours = written(ours.into());
        assert_eq!(ours, theirs);
    }

    #[test]
    fn the_time_is_the_librarys_to_the_digit() {
        let (mut second, mut ours) =
            (Second { since_epoch: None, text: String::new() }, Vec::new());
        for _ in 0..1000 {
            let mut text = [String::new(), String::new(), String::new()];
            SystemTime.format_time(&mut Writer::new(&mut text[0])).unwrap();
            second.write_now(&mut Writer::new(&mut text[1])).unwrap();
            SystemTime.format_time(&mut Writer::new(&mut text[2])).unwrap();
            assert!(
                text.is_sorted(),
                "it lies between what the library wrote before and after: {text:?}"
            );
            assert!(text.iter().all(|t| t.len() == text[0].len()), "{text:?}");
            ours.push(text[1].clone());
        }
        assert!(ours.is_sorted());
        // The clock goes back, or a second passes while the library is asked: nothing wrong is kept.
        second.ask(7).unwrap();
        assert_eq!(second.since_epoch, None);
        let mut text = String::new();
        second.write_now(&mut Writer::new(&mut text)).unwrap();
        assert!(text > ours[999] && second.since_epoch.is_some());
    }
}
