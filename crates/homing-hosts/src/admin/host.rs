//! Keeps web pages out of the admin server. A page can't reach another server's answers, unless a name
//! that its owner controls leads the browser there (DNS rebinding): such a request names that owner in
//! its `Host`, which no page can change. So a name other than `localhost` is refused.

use super::problem;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The answer to whoever asks by another name.
pub(super) fn refused() -> Response {
    let text = "the Host header must be an IP address or localhost (a web page elsewhere could ask \
                by any other name): use the address of admin.listen";
    problem(StatusCode::FORBIDDEN, "host_not_allowed", text)
}

/// Every name in it must be good. One without any is of no browser.
pub(super) fn asks_for_us(uri: &Uri, headers: &HeaderMap) -> bool {
    let in_uri = uri.authority().is_none_or(|a| is_address(a.as_str()));
    in_uri && headers.get_all(header::HOST).iter().all(|h| h.to_str().is_ok_and(is_address))
}

/// `host [":" port]` of RFC 9110, section 7.2, where the host is an IP address or `localhost`.
fn is_address(host: &str) -> bool {
    let (good, rest) = match host.strip_prefix('[').and_then(|h| h.split_once(']')) {
        Some((v6, rest)) => (v6.parse::<Ipv6Addr>().is_ok(), rest),
        None => {
            let (name, rest) = host.split_at(host.find(':').unwrap_or(host.len()));
            (name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok(), rest)
        }
    };
    let port = |rest: &str| rest.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
    good && (rest.is_empty() || port(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn addresses_and_localhost_pass_and_no_other_name_does() {
        for good in [
            "127.0.0.1",
            "127.0.0.1:9464",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:9464",
            "[fe80::1:2]:65535",
            "localhost",
            "LocalHost:9464",
        ] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            ":9464",
            "evil.example",
            "evil.example:9464",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:x",
            "127.0.0.1:65536",
            "127.0.0.1:80:80",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]9464",
            "[::1]:",
            "[evil.example]",
            "[127.0.0.1]:80",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn every_name_of_a_request_counts() {
        let headers = |hosts: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, HeaderValue::from_bytes(host).unwrap());
            }
            headers
        };
        let path = Uri::from_static("/metrics");
        assert!(asks_for_us(&path, &headers(&[])), "HTTP/1.0");
        assert!(asks_for_us(&path, &headers(&[b"localhost"])));
        assert!(!asks_for_us(&path, &headers(&[b"localhost", b"evil.example"])));
        assert!(!asks_for_us(&path, &headers(&[b"local\xffhost"])));
        let whole = Uri::from_static("http://evil.example/metrics");
        assert!(!asks_for_us(&whole, &headers(&[b"localhost"])));
        let whole = Uri::from_static("http://127.0.0.1:9464/metrics");
        assert!(asks_for_us(&whole, &headers(&[b"localhost"])));
        assert!(!asks_for_us(&whole, &headers(&[b"evil.example"])));
    }
}
