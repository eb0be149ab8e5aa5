//! The heads of requests and of answers, and trailers: whatever they hold, the gateway reads them the same way twice,
//! what is not to pass doesn't, and whatever else there is passes as it came. An input is a byte that says who sends
//! it and how, then header lines; behind an empty line the trailers.
#![no_main]

use homing_hosts::gateway::{Head, Heads};
use homing_runtime::settings::{Settings, Sources};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use libfuzzer_sys::fuzz_target;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

const OPEN: &str = "";
const CLOSED: &str = r#"
[gateway]
tenant_header = "x-team"
trusted_proxies = ["10.0.0.0/8"]
steering = "trusted"
api_keys_file = "KEYS"
[affinity]
subagents = "group"
[[tenants]]
name = "a"
steer = true
max_priority = 5
"#;

static OPEN_HEADS: LazyLock<Heads> = LazyLock::new(|| heads(OPEN));
static CLOSED_HEADS: LazyLock<Heads> = LazyLock::new(|| heads(CLOSED));

fn heads(text: &str) -> Heads {
    let keys = std::env::temp_dir().join(format!("homing-fuzz-keys-{}", std::process::id()));
    std::fs::write(&keys, "a:key-of-a-1\nb:key-of-b-1\n").expect("a temporary file");
    let text = text.replace("KEYS", &keys.display().to_string());
    let sources: Sources = Sources { file: Some(("x".into(), text)), ..Sources::default() };
    let settings = Settings::load(sources).expect("the settings are good");
    let url = "http://10.9.9.9:8000/base".parse().expect("a URL");
    let heads = Heads::new(settings, url).expect("the keys are good");
    let _ = std::fs::remove_file(keys);
    heads
}

const TRUSTED: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fuzz_target!(|data: &[u8]| {
    let Some((how, text)) = data.split_first() else { return };
    let has = |bit: u8| how & (1 << bit) != 0;
    let heads = if has(0) { &*CLOSED_HEADS } else { &*OPEN_HEADS };
    let peer = [Some(STRANGER), Some(TRUSTED), None][usize::from(how >> 1 & 3).min(2)];
    let version = if has(3) { Version::HTTP_2 } else { Version::HTTP_11 };
    let rank = has(4).then_some(3);
    let (headers, trailers) = read(text);
    if has(5) {
        let [passed, behind] = heads.response(headers.clone(), trailers.clone());
        check_passed(&headers, &passed, |name| name == "content-length");
        check_passed(&trailers, &behind, |_| false);
        return;
    }
    let request = || heads.request(peer, version, headers.clone(), trailers.clone(), rank);
    let once = request();
    assert_eq!(once, request(), "it is read the same way twice");
    match once {
        Err(refused) => {
            assert!([400, 401, 403].contains(&refused.status), "{refused:?}");
            assert!(refused.message.len() < 2048, "a client's own words, at any length");
        }
        Ok(head) => check(has(0), peer, version, &headers, &trailers, &head, rank),
    }
});

fn check(
    closed: bool,
    peer: Option<IpAddr>,
    version: Version,
    headers: &HeaderMap,
    trailers: &HeaderMap,
    head: &Head,
    rank: Option<u16>,
) {
    assert!(head.allowed <= 1024 && head.labels <= 64);
    assert_eq!(head.client, client(closed, peer, headers));
    if closed {
        let trusted = peer == Some(TRUSTED) && headers.contains_key("x-team");
        assert!(trusted || ["a", "b"].contains(&&*head.tenant), "a tenant out of nowhere");
        let steers = ["worker", "allowed-workers", "require-labels"];
        let ours = steers.iter().any(|name| filled(headers, &format!("x-homing-{name}")));
        assert!(head.tenant == "a" || !ours || head.allowed + head.labels == 0, "it may not steer");
        assert!(head.priority <= if head.tenant == "a" { 5 } else { 0 });
    } else {
        assert_eq!(head.tenant, "");
    }
    let sent = &head.sent;
    let id = Vec::from_iter(sent.get_all("x-request-id"));
    assert!(id.len() == 1 && (1..=128).contains(&id[0].len()));
    let said = Vec::from_iter(sent.get_all("x-data-parallel-rank"));
    let chosen = rank.map(HeaderValue::from);
    assert_eq!(said, Vec::from_iter(&chosen), "the rank that was chosen, and no other");
    for name in ["host", "expect"] {
        assert!(!sent.contains_key(name), "{name} was passed on");
    }
    assert!(!closed || !sent.contains_key("authorization") && !sent.contains_key("x-api-key"));
    let pieces = version == Version::HTTP_2;
    check_passed(headers, sent, |name| match name {
        "host" | "expect" | "trailer" | "x-request-id" | "traceparent" | "x-data-parallel-rank" => true,
        "authorization" | "x-api-key" => closed,
        "cookie" => pieces,
        "content-length" => head.trailers.is_some(),
        _ => false,
    });
    if let Some(passed) = &head.trailers {
        check_passed(trailers, passed, |_| false);
        let told = Vec::from_iter(sent.get_all("trailer"));
        assert_eq!(told.len(), passed.keys_len(), "what comes behind is announced");
    }
}

/// What ends here doesn't pass, and whatever else there is does, in its order. Nothing is known of what is `special`.
fn check_passed(came: &HeaderMap, passed: &HeaderMap, special: impl Fn(&str) -> bool) {
    let hop = ["connection", "proxy-authenticate", "proxy-authorization", "te", "transfer-encoding", "upgrade",
        "keep-alive", "proxy-connection"];
    let named = named(came);
    for name in came.keys().map(HeaderName::as_str) {
        let ends = name.starts_with("x-homing-") || hop.contains(&name) || named.iter().any(|n| n == name);
        let all = |map: &HeaderMap| map.get_all(name).iter().cloned().collect::<Vec<_>>();
        if special(name) {
        } else if ends {
            assert!(!passed.contains_key(name), "{name} was passed on");
        } else {
            assert_eq!(all(came), all(passed), "{name} has changed");
        }
    }
}

/// What `Connection` names, but for its usual values.
fn named(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all("connection").iter().map(|v| v.as_bytes());
    let names = values.flat_map(|value| value.split(|b| *b == b','));
    let names = names.map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase());
    names.filter(|name| name != "close" && name != "keep-alive").collect()
}

/// The last of the addresses that the proxies tell which is none of theirs.
fn client(closed: bool, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
    if !closed || peer != Some(TRUSTED) {
        return peer;
    }
    let all: Vec<&[u8]> = headers.get_all("x-forwarded-for").iter().map(|v| v.as_bytes()).collect();
    let all = all.join(&b","[..]);
    let mut found = None;
    for hop in all.split(|b| *b == b',').rev() {
        let address = std::str::from_utf8(hop).ok().and_then(|hop| hop.trim().parse::<IpAddr>().ok());
        let Some(address) = address else { return peer };
        found = Some(address);
        if !matches!(address.to_canonical(), IpAddr::V4(v4) if v4.octets()[0] == 10) {
            break;
        }
    }
    found.or(peer)
}

fn filled(headers: &HeaderMap, name: &str) -> bool {
    headers.get_all(name).iter().any(|value| !value.as_bytes().trim_ascii().is_empty())
}

/// The lines that can be headers, up to an empty line, and those behind it.
fn read(text: &[u8]) -> (HeaderMap, HeaderMap) {
    let mut both = [HeaderMap::new(), HeaderMap::new()];
    let mut at = 0;
    for line in text.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)) {
        if line.is_empty() {
            at = 1;
            continue;
        }
        let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
        let (name, value) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()));
        // As many as the gateway's server takes.
        if let (Ok(name), Ok(value), true) = (name, value, both[at].len() < 100) {
            both[at].append(name, value);
        }
    }
    let [headers, trailers] = both;
    (headers, trailers)
}
