//! Headers, both ways: hop-by-hop ones end here (RFC 9110, 7.6.1), steering ones are ours, everything
//! else passes, repeated ones too.

use super::access::API_KEY;
use super::record::Record;
use bytes::Bytes;
use homing_core::ids::DpRank;
use homing_runtime::traces::TRACEPARENT;
use homing_runtime::upstream::{Link, Outgoing};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Version};

const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What of a message's headers is for this hop only: the known ones, and those that `Connection` names.
struct Hop(Vec<HeaderName>);

impl Hop {
    fn of(headers: &HeaderMap) -> Self {
        // By bytes: one name that can't be read hides none of the others.
        let values = headers.get_all(header::CONNECTION).iter().map(HeaderValue::as_bytes);
        let names = values.flat_map(|v| v.split(|b| *b == b',')).map(<[u8]>::trim_ascii);
        // The usual values, which name no header.
        let usual =
            |n: &&[u8]| n.eq_ignore_ascii_case(b"keep-alive") || n.eq_ignore_ascii_case(b"close");
        let named = names.filter(|n| !usual(n));
        Self(named.filter_map(|n| HeaderName::from_bytes(n).ok()).collect())
    }

    fn has(&self, name: &HeaderName) -> bool {
        HOP_BY_HOP.contains(name) || self.0.contains(name)
    }
}

/// Ours, in either direction: a client's steering ends here, and what a worker calls so is not from us.
fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-homing-")
}

/// The engines' own header for a data-parallel rank.
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// What is made anew for the worker, or met here. A client's rank ends here: where a worker has several it would
/// lead to another than the one that is booked (F68), and where it has one, or nobody knows yet how many, past the books and
/// past `gateway.steering`. Who wants one says so in our header.
const NOT_TO_WORKERS: [HeaderName; 4] = [header::HOST, header::EXPECT, header::TRAILER, RANK];

/// HTTP/2 lets clients cut their cookies into pieces, which others don't know (RFC 9113, 8.2.3).
fn join_cookies(version: Version, headers: &mut HeaderMap) {
    let pieces = headers.get_all(header::COOKIE);
    if version != Version::HTTP_2 || pieces.iter().nth(1).is_none() {
        return;
    }
    let pieces: Vec<&[u8]> = pieces.iter().map(HeaderValue::as_bytes).collect();
    // What was valid in pieces is so as a whole.
    if let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
        headers.insert(header::COOKIE, whole);
    }
}

/// What of a message's trailers passes; `None` for nothing.
pub(super) fn trailers(mut trailers: HeaderMap) -> Option<HeaderMap> {
    let hop = Hop::of(&trailers);
    let drop: Vec<HeaderName> =
        trailers.keys().filter(|n| hop.has(n) || is_ours(n)).cloned().collect();
    for name in drop {
        trailers.remove(name);
    }
    (!trailers.is_empty()).then_some(trailers)
}

/// The body as workers get it, with what the client sent behind it, if it announced that or speaks HTTP/2. Its headers
/// then announce it, and no length.
pub(super) fn body(
    parts: &Parts,
    data: Bytes,
    trailers: Option<HeaderMap>,
    headers: &mut HeaderMap,
) -> Outgoing {
    let announced = parts.version == Version::HTTP_2 || parts.headers.contains_key(header::TRAILER);
    let trailers = trailers.filter(|_| announced).and_then(self::trailers);
    let Some(trailers) = trailers else { return data.into() };
    headers.remove(header::CONTENT_LENGTH);
    for name in trailers.keys() {
        headers.append(header::TRAILER, HeaderValue::from(name.clone()));
    }
    Outgoing::with_trailers(data, trailers)
}

/// The headers that a worker gets: made once a request, used for every attempt. `traceparent` where what its worker
/// records is part of what is recorded here; else the client's own passes.
pub(super) fn request_headers(
    parts: &Parts,
    id: &HeaderValue,
    traceparent: Option<HeaderValue>,
    takes_keys: bool,
) -> HeaderMap {
    let hop = Hop::of(&parts.headers);
    let mut headers = HeaderMap::with_capacity(parts.headers.len() + 1);
    for (name, value) in &parts.headers {
        let stays = hop.has(name) || is_ours(name) || NOT_TO_WORKERS.contains(name);
        // What opens this router's door is no worker's business.
        let stays = stays || takes_keys && (name == header::AUTHORIZATION || name == API_KEY);
        if !stays {
            headers.append(name, value.clone());
        }
    }
    join_cookies(parts.version, &mut headers);
    // The client's own, unless it is one that we don't take: all three see the same.
    headers.insert(HeaderName::from_static("x-request-id"), id.clone());
    if let Some(ours) = traceparent {
        headers.insert(HeaderName::from_static(TRACEPARENT), ours);
    }
    headers
}

/// The request as one worker gets it, for one of its ranks where it has several; `None` if its URL and the path make no URI.
pub(super) fn request(
    parts: &Parts,
    headers: &HeaderMap,
    link: &Link,
    rank: Option<DpRank>,
    body: Outgoing,
) -> Option<Request<Outgoing>> {
    let uri = match parts.uri.path_and_query() {
        Some(path) => link.uri_of(path).ok()?,
        None => link.uri("/").ok()?,
    };
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers.clone();
    if let Some(rank) = rank {
        request.headers_mut().insert(RANK, HeaderValue::from(rank.0));
    }
    Some(request)
}

/// Turns a worker's headers into a client's.
pub(super) fn response_headers(headers: &mut HeaderMap, record: &Record) {
    passed_headers(headers);
    own_headers(headers, record);
}

/// Leaves what passes of a worker's headers.
pub(super) fn passed_headers(headers: &mut HeaderMap) {
    if !one_length(headers) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let hop = Hop::of(headers);
    let drop: Vec<HeaderName> =
        headers.keys().filter(|n| hop.has(n) || is_ours(n)).cloned().collect();
    for name in drop {
        headers.remove(name);
    }
}

/// A length that others read as we do. Beside chunks it is void, and a list of the same number is that number once
/// (RFC 9112, 6.3): the body knows how long it is, and what the worker wrote would be believed behind us.
fn one_length(headers: &HeaderMap) -> bool {
    let mut told = headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(length) = told.next() else { return true };
    let plain = length.as_bytes().iter().all(u8::is_ascii_digit);
    plain && told.next().is_none() && !headers.contains_key(header::TRANSFER_ENCODING)
}

/// What every answer to a generating request says, a refusal too (R26).
pub(super) fn own_headers(headers: &mut HeaderMap, record: &Record) {
    let mut set = |name, value| headers.insert(HeaderName::from_static(name), value);
    set("x-request-id", record.request_id.clone());
    set("x-homing-affinity", HeaderValue::from_static(record.outcome.word()));
    set("x-homing-instance", record.instance.clone());
    if !record.tells_workers {
        return;
    }
    if let Some(Ok(worker)) = record.worker.as_deref().map(HeaderValue::from_str) {
        set("x-homing-worker", worker);
    }
    if let Some(rank) = record.rank {
        set("x-homing-dp-rank", HeaderValue::from(rank.0));
    }
    if let Some(cached) = record.cached_tokens {
        set("x-homing-cached-tokens", HeaderValue::from(cached));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connection_names_ends_here_whatever_else_stands_beside_it() {
        for named in [&b"x-secret"[..], b"close, X-Secret ,te", b"\xff,x-secret", b"a b,,x-secret;"]
        {
            let mut headers = HeaderMap::new();
            headers.append(header::CONNECTION, HeaderValue::from_bytes(named).unwrap());
            headers.append("x-secret", HeaderValue::from_static("1"));
            headers.append("x-other", HeaderValue::from_static("2"));
            passed_headers(&mut headers);
            let passes = named.ends_with(b";");
            assert_eq!(headers.contains_key("x-secret"), passes, "{named:?}");
            assert!(headers.contains_key("x-other") && !headers.contains_key(header::CONNECTION));
        }
    }
}
