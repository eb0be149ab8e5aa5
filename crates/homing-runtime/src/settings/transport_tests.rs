//! Connections: where the gateway listens, TLS, and what workers inherit.

use super::tests::{load, problem};
use super::*;
use std::time::Duration;

fn path(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(text))
}

#[test]
fn f67_a_workers_own_words_beat_those_for_all() {
    let settings = load(
        "[upstream]\napi_key_file = \"/k\"\nca_file = \"/ca\"\nidle_timeout = \"7s\"\n\
         tcp_user_timeout = \"9s\"\n\
         [[workers]]\nurl = \"https://a\"\n\
         [[workers]]\nurl = \"https://b\"\napi_key_file = \"/own\"\ncert_file = \"/c\"\nkey_file = \"/p\"\n\
         connect_timeout = \"3s\"\nfirst_token_timeout = \"4s\"\nidle_timeout = \"5s\"\npool_idle = \"0s\"\n\
         tcp_user_timeout = \"6s\"\n",
    );
    let [a, b] = [&settings.workers[0].upstream, &settings.workers[1].upstream];
    assert_eq!(**a, settings.upstream);
    assert_eq!((&a.api_key_file, &a.ca_file), (&path("/k"), &path("/ca")));
    assert_eq!(a.tcp_user_timeout, Duration::from_secs(9));
    assert_eq!((&b.api_key_file, &b.ca_file), (&path("/own"), &path("/ca")));
    assert_eq!((&b.cert_file, &b.key_file), (&path("/c"), &path("/p")));
    let times = [b.connect_timeout, b.first_token_timeout, b.idle_timeout, b.pool_idle];
    assert_eq!(times.map(|t| t.as_secs()), [3, 4, 5, 0]);
    assert_eq!(b.tcp_user_timeout, Duration::from_secs(6));
    // Only what was said of a worker is printed of it, and it loads again.
    let page = settings.effective_toml();
    assert_eq!(page.matches("api_key_file").count(), 2, "{page}");
    assert_eq!(page.matches("pool_idle").count(), 2, "{page}");
    assert_eq!(load(&page).workers, settings.workers);
}

#[test]
fn half_a_certificate_is_none() {
    let cases = [
        ("[upstream]\ncert_file = \"/c\"", "`upstream.cert_file` is there without its key_file"),
        ("[upstream]\nkey_file = \"/c\"", "`upstream.key_file` is there without its cert_file"),
        (
            "[[workers]]\nurl = \"https://h\"\nkey_file = \"/c\"",
            "`workers[0].key_file` is there without its cert_file",
        ),
        ("[gateway.tls]\ncert = \"/c\"", "`gateway.tls.cert` is there without its key"),
        ("[gateway.tls]\nkey = \"/c\"", "`gateway.tls.key` is there without its cert"),
        ("[gateway.tls]\nclient_ca = \"/c\"", "asks clients for certificates, without TLS"),
    ];
    for (file, expected) in cases {
        let text = problem(file);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn where_the_gateway_listens() {
    let at = |listen: &str| load(&format!("[gateway]\nlisten = \"{listen}\"")).gateway.listen;
    assert_eq!(at("[::1]:0"), Listen::Tcp("[::1]:0".parse().unwrap()));
    assert_eq!(at("unix:/run/homing.sock"), Listen::Unix("/run/homing.sock".into()));
    let long = format!("unix:/{}", "x".repeat(107));
    for bad in ["unix:", "unix:homing.sock", "unix:/", "unix:/run/", &long, "here"] {
        problem(&format!("[gateway]\nlisten = \"{bad}\""));
    }
    let text = problem("[admin]\nlisten = \"unix:/run/x\"");
    assert!(text.contains("is not an address to listen on"), "{text}");
    // Off loopback somebody has to say who clients are.
    let tls = "[gateway]\nlisten = \"0.0.0.0:1\"\n[gateway.tls]\ncert = \"/c\"\nkey = \"/k\"\n";
    let text = problem(tls);
    assert!(text.contains("gateway.tls.client_ca"), "{text}");
    let tls = load(&format!("{tls}client_ca = \"/ca\"\n")).gateway.tls.unwrap();
    assert_eq!((tls.cert, tls.key), (PathBuf::from("/c"), PathBuf::from("/k")));
    assert_eq!(tls.client_ca, path("/ca"));
}

#[test]
fn a_name_of_many_workers_has_no_one_endpoint() {
    for key in ["kv_events", "kv_replay"] {
        let text = problem(&format!("[[workers]]\nurl = \"dns://h:1\"\n{key} = \"tcp://h:5557\""));
        assert!(text.contains("is one endpoint, and the URL names many workers"), "{text}");
    }
    let ids = load(
        "[[workers]]\nurl = \"dns://h:1\"\n[[workers]]\nurl = \"unix:/run/w\"\n[[workers]]\nurl = \"https://h\"\n",
    );
    let ids: Vec<_> = ids.workers.into_iter().map(|w| w.id).collect();
    assert_eq!(ids, ["h:1", "unix:/run/w", "h:443"]);
}
