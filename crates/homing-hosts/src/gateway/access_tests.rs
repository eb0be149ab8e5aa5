//! Keys, tenants' headers, where clients sit, and what tenants may do.

use super::*;
use homing_runtime::settings::Sources;
use http::HeaderValue;
use std::path::PathBuf;

/// A file with a key each for `a` and `b`, which goes when this does.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("homing-access-{}-{name}", std::process::id()));
        std::fs::write(&path, "a:key-of-a-1\nb:key-of-b-1\n").unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn access(text: &str) -> Arc<Access> {
    let file = Some(("test.toml".into(), text.to_owned()));
    let settings = Settings::load(Sources { file, ..Sources::default() }).unwrap();
    Arc::new(Access::load(Arc::new(settings)).unwrap())
}

fn keyed(name: &str, more: &str) -> (File, Arc<Access>) {
    let file = File::new(name);
    let access = access(&format!("[gateway]\napi_keys_file = {:?}\n{more}", file.0));
    (file, access)
}

fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in all {
        map.append(*name, HeaderValue::from_static(value));
    }
    map
}

fn tenant(
    access: &Arc<Access>,
    peer: &str,
    all: &[(&'static str, &'static str)],
) -> Option<String> {
    let caller = access.caller(Some(peer.parse().unwrap()), &headers(all));
    caller.ok().map(|caller| caller.tenant.to_string())
}

#[test]
fn without_tenants_everybody_may_do_everything() {
    let access = access("");
    let caller = access.caller(None, &headers(&[("authorization", "Bearer anything")])).unwrap();
    assert_eq!((&*caller.tenant, caller.number()), ("", 0));
    assert!(caller.may_steer() && caller.may_use("m") && caller.may_use_all());
    assert_eq!(caller.priority(77), 77);
    assert!(access.tells_workers() && !access.takes_keys());
}

#[test]
fn a_key_may_come_in_either_header() {
    let (_file, access) = keyed("either", "");
    let of = |all| tenant(&access, "127.0.0.1", all);
    assert_eq!(of(&[("authorization", "Bearer key-of-a-1")]).as_deref(), Some("a"));
    assert_eq!(of(&[("authorization", "bearer  key-of-b-1 ")]).as_deref(), Some("b"));
    assert_eq!(of(&[("x-api-key", "key-of-b-1")]).as_deref(), Some("b"));
    // What a client says first counts; a second key does not mend a wrong one.
    assert_eq!(of(&[("authorization", "Bearer wrong"), ("x-api-key", "key-of-b-1")]), None);
    for wrong in
        [&[][..], &[("authorization", "key-of-a-1")], &[("authorization", "Basic key-of-a-1")]]
    {
        assert_eq!(of(wrong), None);
    }
    assert!(access.takes_keys() && !access.tells_workers());
}

#[test]
fn a_tenants_header_is_believed_of_trusted_proxies_only() {
    let more = "tenant_header = 'x-team'\ntrusted_proxies = ['10.0.0.0/8', '::1']\n";
    let (_file, both) = keyed("header", more);
    let only = access(&format!("[gateway]\n{more}"));
    let team = &[("x-team", "red")][..];
    for access in [&both, &only] {
        assert_eq!(tenant(access, "10.1.2.3", team).as_deref(), Some("red"));
        assert_eq!(
            tenant(access, "::ffff:10.1.2.3", team).as_deref(),
            Some("red"),
            "the same address"
        );
        assert_eq!(tenant(access, "::1", team).as_deref(), Some("red"));
        assert_eq!(tenant(access, "11.1.2.3", team), None);
        assert_eq!(tenant(access, "10.1.2.3", &[("x-team", "no name")]), None);
        assert_eq!(tenant(access, "10.1.2.3", &[("x-team", "red"), ("x-team", "blue")]), None);
        assert_eq!(tenant(access, "10.1.2.3", &[]), None);
    }
    let spoofed = &[("x-team", "b"), ("x-api-key", "key-of-a-1")][..];
    assert_eq!(tenant(&both, "11.1.2.3", spoofed).as_deref(), Some("a"), "its key says who it is");
}

#[test]
fn where_a_client_sits_is_the_trusted_proxies_word() {
    let access = access("[gateway]\ntrusted_proxies = ['10.0.0.0/8']\n");
    let client = |peer: &str, said: &'static str| {
        let caller =
            access.caller(Some(peer.parse().unwrap()), &headers(&[("x-forwarded-for", said)]));
        caller.unwrap().client.unwrap().to_string()
    };
    assert_eq!(client("10.0.0.1", "1.2.3.4"), "1.2.3.4");
    assert_eq!(
        client("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2"),
        "1.2.3.4",
        "what is left of it anybody can say"
    );
    assert_eq!(client("10.0.0.1", "nonsense"), "10.0.0.1");
    assert_eq!(client("9.9.9.9", "1.2.3.4"), "9.9.9.9", "nobody's word");
    // What a client has sent before is not believed because nobody can read what its proxy has said.
    let mut two = headers(&[("x-forwarded-for", "6.6.6.6")]);
    two.append("x-forwarded-for", HeaderValue::from_bytes(b"\xff, 10.0.0.2").unwrap());
    let caller = access.caller(Some("10.0.0.1".parse().unwrap()), &two).unwrap();
    assert_eq!(caller.client.unwrap().to_string(), "10.0.0.1");
}

#[test]
fn tenants_have_their_rights() {
    let (_file, access) = keyed(
        "rights",
        "steering = 'trusted'\n[limits]\nconcurrency = 3\n[[tenants]]\nname = 'a'\nmodels = ['qwen*']\nsteer = true\n\
         max_priority = 5\nrequests_per_minute = 60\n",
    );
    let caller = |key| access.caller(None, &headers(&[("x-api-key", key)])).unwrap();
    let (a, b) = (caller("key-of-a-1"), caller("key-of-b-1"));
    assert!(a.may_steer() && !b.may_steer());
    assert_eq!((a.priority(9), a.priority(-2), b.priority(9)), (5, -2, 0));
    assert!(a.may_use("qwen3") && !a.may_use("llama") && b.may_use("llama"));
    assert_eq!(a.limits().concurrency, Some(3), "the common one");
    assert_eq!((a.limits().requests_per_minute, b.limits().requests_per_minute), (Some(60), None));
    assert_ne!(a.number(), b.number());
}
