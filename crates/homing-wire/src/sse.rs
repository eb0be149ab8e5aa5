//! Reads a relayed event stream along, from copies of its bytes, whatever the chunks' cuts.
//!
//! It changes nothing and holds nothing back; the relay does both. It answers three questions: has the
//! worker begun to answer (its first `data:` line is complete), what did each event say (the usage, the
//! end), and how much of a chunk is whole events. The last is for the day the worker breaks off: bytes
//! of an unfinished event that were relayed could be completed by our error event into a forged one, so
//! a careful relay keeps the tail back until it is whole.
//!
//! The rules are the WHATWG's (HTML standard, 9.2.6): lines end with LF, CR or CRLF; one space after
//! the colon is dropped; several `data:` lines are joined by LF; a blank line ends an event. What is
//! buffered is bounded; data beyond the bound is dropped and said to be.

use memchr::memchr2;

/// The most data of one event that is kept: 256 KiB. A chunk of a chat is some hundred bytes.
pub const MAX_EVENT_DATA: usize = 256 << 10;
/// The most of an event's name that is kept.
const MAX_NAME: usize = 128;
/// The longest beginning of a line that matters beside its data: `data: `.
const FIELD_ROOM: usize = 16;

/// Something that a stream said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseEvent<'a> {
    /// The first `data:` line of the stream is complete; its event may not be. At most once.
    FirstData,
    /// A whole event with data.
    Data {
        /// Its `event:` field; empty if it has none.
        name: &'a [u8],
        /// Its data, without the field name; not necessarily UTF-8.
        data: &'a [u8],
    },
    /// The event whose whole data is `[DONE]`. Text that contains it is only text.
    Done,
    /// A whole event, but its data was longer than the bound and was dropped.
    Oversize,
}

/// The state between two chunks. `Default` makes one with a bound of [`MAX_EVENT_DATA`].
#[derive(Clone, Debug)]
pub struct SseScanner {
    max_data: usize,
    /// The beginning of a line that a chunk's end cut.
    line: Vec<u8>,
    /// That line was too long to keep whole.
    line_cut: bool,
    /// A line was complete with a CR: an LF that comes next belongs to it.
    after_cr: bool,
    /// No line was complete yet: a byte order mark may stand first.
    at_start: bool,
    name: Vec<u8>,
    data: Vec<u8>,
    /// The event at hand has this many data lines.
    data_lines: usize,
    /// Its data was too long.
    oversize: bool,
    /// Any field of the event at hand was seen.
    in_event: bool,
    begun: bool,
    done: bool,
    data_events: u64,
    last: Vec<u8>,
}

impl Default for SseScanner {
    fn default() -> Self {
        Self::with_max_data(MAX_EVENT_DATA)
    }
}

impl SseScanner {
    /// A scanner at the start of a stream that keeps at most `max_data` bytes of an event.
    #[must_use]
    pub fn with_max_data(max_data: usize) -> Self {
        Self {
            max_data,
            line: Vec::new(),
            line_cut: false,
            after_cr: false,
            at_start: true,
            name: Vec::new(),
            data: Vec::new(),
            data_lines: 0,
            oversize: false,
            in_event: false,
            begun: false,
            done: false,
            data_events: 0,
            last: Vec::new(),
        }
    }

    /// Reads the next bytes of the stream and tells `seen` what they complete.
    ///
    /// Returns how many of these bytes, from the first, end where a new event may begin: 0 if the chunk
    /// lies within one event.
    pub fn feed(&mut self, chunk: &[u8], mut seen: impl FnMut(SseEvent<'_>)) -> usize {
        let mut whole = 0;
        let mut at = 0;
        if self.after_cr && !chunk.is_empty() {
            self.after_cr = false;
            if chunk[0] == b'\n' {
                at = 1;
                whole = usize::from(!self.mid_event());
            }
        }
        while let Some(len) = memchr2(b'\r', b'\n', &chunk[at..]) {
            let end = at + len;
            self.end_line(&chunk[at..end], &mut seen);
            at = end + 1;
            if chunk[end] == b'\r' {
                match chunk.get(at) {
                    Some(b'\n') => at += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            if !self.in_event {
                whole = at;
            }
        }
        self.keep(&chunk[at..]);
        whole
    }

    /// Whether the first `data:` line was complete.
    #[must_use]
    pub const fn begun(&self) -> bool {
        self.begun
    }

    /// Whether `[DONE]` came.
    #[must_use]
    pub const fn done(&self) -> bool {
        self.done
    }

    /// Whether the stream is complete if it ends here: `[DONE]` came, or all of it but the blank line,
    /// which some servers and recordings leave off.
    #[must_use]
    pub fn done_at_end(&self) -> bool {
        let pending: &[u8] = match self.line.as_slice() {
            [] => &self.data,
            line if self.data_lines == 0 => line.strip_prefix(b"data:").unwrap_or_default(),
            _ => &[],
        };
        self.done || is_done(pending)
    }

    /// Whether the stream stands within an event: if it ends here, it was cut.
    #[must_use]
    pub const fn mid_event(&self) -> bool {
        self.in_event || !self.line.is_empty() || self.line_cut
    }

    /// How many events had data, `[DONE]` not counted.
    #[must_use]
    pub const fn data_events(&self) -> u64 {
        self.data_events
    }

    /// The data of the last event that had any and was no `[DONE]`: where a stream's usage is. Empty
    /// before the first, and where it was too long.
    #[must_use]
    pub fn last_data(&self) -> &[u8] {
        &self.last
    }

    /// Keeps the beginning of a line, bounded.
    fn keep(&mut self, bytes: &[u8]) {
        let most = self.max_data.max(MAX_NAME) + FIELD_ROOM;
        let room = most.saturating_sub(self.line.len());
        let kept = &bytes[..bytes.len().min(room)];
        self.line.extend_from_slice(kept);
        self.line_cut |= kept.len() < bytes.len();
    }

    /// Ends the line at hand with `rest`.
    fn end_line(&mut self, rest: &[u8], seen: &mut impl FnMut(SseEvent<'_>)) {
        if self.line.is_empty() && !self.line_cut {
            self.read_line(rest, false, seen);
        } else {
            self.keep(rest);
            let mut line = std::mem::take(&mut self.line);
            let cut = std::mem::take(&mut self.line_cut);
            self.read_line(&line, cut, seen);
            line.clear();
            self.line = line;
        }
    }

    fn read_line(&mut self, line: &[u8], cut: bool, seen: &mut impl FnMut(SseEvent<'_>)) {
        let line = match line.strip_prefix(b"\xef\xbb\xbf") {
            Some(line) if self.at_start => line,
            _ => line,
        };
        self.at_start = false;
        if line.is_empty() {
            return self.end_event(seen);
        }
        let colon = memchr::memchr(b':', &line[..line.len().min(FIELD_ROOM)]);
        let (field, value) = match colon {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        if field.is_empty() {
            return; // a comment
        }
        self.in_event = true;
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                self.add_data(value, cut);
                if !self.begun {
                    self.begun = true;
                    seen(SseEvent::FirstData);
                }
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(&value[..value.len().min(MAX_NAME)]);
            }
            _ => {}
        }
    }

    fn add_data(&mut self, value: &[u8], cut: bool) {
        let joint = usize::from(self.data_lines > 0);
        self.data_lines += 1;
        self.oversize |= cut || self.data.len() + joint + value.len() > self.max_data;
        if self.oversize {
            self.data.clear();
            return;
        }
        if joint > 0 {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
    }

    fn end_event(&mut self, seen: &mut impl FnMut(SseEvent<'_>)) {
        if self.data_lines > 0 {
            if is_done(&self.data) {
                self.done = true;
                seen(SseEvent::Done);
            } else {
                self.data_events += 1;
                seen(match self.oversize {
                    true => SseEvent::Oversize,
                    false => SseEvent::Data { name: &self.name, data: &self.data },
                });
                std::mem::swap(&mut self.last, &mut self.data);
            }
        }
        self.name.clear();
        self.data.clear();
        self.data_lines = 0;
        self.oversize = false;
        self.in_event = false;
    }
}

fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
