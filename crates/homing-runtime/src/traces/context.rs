//! W3C trace context (`traceparent`, <https://www.w3.org/TR/trace-context-1/>, version 00): where a request's span
//! belongs, and what is passed on to its worker.

use http::{HeaderMap, HeaderValue};

/// Where a span belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    /// Whether somebody before us has it recorded.
    pub sampled: bool,
}

/// The header.
pub const TRACEPARENT: &str = "traceparent";

impl Context {
    /// What a request says; `None` where it says nothing, or nothing that can be read.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let first = values.next()?;
        // Two say nothing.
        values.next().is_none().then(|| Self::parse(first.as_bytes())).flatten()
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut parts = text.split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // A later version may say more behind what this one says.
        if version.len() != 2 || version == "ff" || version == "00" && parts.next().is_some() {
            return None;
        }
        hex::<1>(version)?;
        let (trace, span, [flags]) = (hex::<16>(trace)?, hex::<8>(span)?, hex::<1>(flags)?);
        let none = trace == [0; 16] || span == [0; 8];
        (!none).then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// As a header.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        let flags = u8::from(self.sampled);
        let text = format!("00-{}-{}-{flags:02x}", to_hex(&self.trace), to_hex(&self.span));
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// Lower case alone, as the standard wants it.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if text.len() != 2 * N || !digits {
        return None;
    }
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

/// In lower case.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(text: &'static str) -> Option<Context> {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(text));
        Context::of(&headers)
    }

    #[test]
    fn what_is_read_is_written_again() {
        let context = read(GOOD).unwrap();
        assert!(context.sampled);
        assert_eq!(context.header(), GOOD);
        let later = read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more").unwrap();
        assert!(!later.sampled);
    }

    #[test]
    fn what_is_none_says_nothing() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
        let mut twice = HeaderMap::new();
        twice.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        twice.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert_eq!(Context::of(&twice), None);
    }
}
