//! A span, and how OTLP spells it in JSON (opentelemetry-proto 1.x, `trace.proto`, in the proto3 JSON mapping with
//! ids in hexadecimal, as its specification asks).

use super::context::{Context, to_hex};
use homing_core::time::Time;
use serde_json::{Value, json};

/// Whose side of a call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Neither's.
    Internal,
    /// Who is asked.
    Server,
    /// Who asks.
    Client,
}

/// A fact about a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A text.
    Text(String),
    /// A whole number.
    Number(u64),
    /// Yes or no.
    Truth(bool),
}

impl From<&str> for Fact {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Fact {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Fact {
    fn from(truth: bool) -> Self {
        Self::Truth(truth)
    }
}

/// One step of a request, finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What it is.
    pub name: &'static str,
    /// Itself.
    pub context: Context,
    /// What it is a part of.
    pub parent: Option<[u8; 8]>,
    /// Whose side it is.
    pub kind: Kind,
    /// When it began,
    pub began: Time,
    /// and ended.
    pub ended: Time,
    /// What is known of it.
    pub facts: Vec<(&'static str, Fact)>,
    /// It came to nothing, by our fault or a worker's; and how.
    pub error: Option<String>,
}

impl Span {
    pub(super) fn to_json(&self) -> Value {
        let facts: Vec<_> = self.facts.iter().map(|(key, fact)| attribute(key, fact)).collect();
        let kind = match self.kind {
            Kind::Internal => 1,
            Kind::Server => 2,
            Kind::Client => 3,
        };
        let mut span = json!({
            "traceId": to_hex(&self.context.trace),
            "spanId": to_hex(&self.context.span),
            "name": self.name,
            "kind": kind,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(self.ended),
            "attributes": facts,
            "flags": u8::from(self.context.sampled),
        });
        if let Some(parent) = &self.parent {
            span["parentSpanId"] = to_hex(parent).into();
        }
        if let Some(message) = &self.error {
            span["status"] = json!({"code": 2, "message": message});
        }
        span
    }
}

pub(super) fn attribute(key: &str, fact: &Fact) -> Value {
    let value = match fact {
        Fact::Text(text) => json!({ "stringValue": text }),
        // 64-bit numbers are strings in this mapping.
        Fact::Number(number) => json!({ "intValue": number.to_string() }),
        Fact::Truth(truth) => json!({ "boolValue": truth }),
    };
    json!({"key": key, "value": value})
}

fn nanos(time: Time) -> String {
    (u128::from(time.as_micros()) * 1000).to_string()
}
