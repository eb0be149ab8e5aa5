//! Shows what the reader of the core's sources catches, and what it leaves alone.

use super::*;

fn found(code: &str) -> Vec<String> {
    check("crates/homing-core/src/a.rs", &format!("//! A.\n{code}\n"))
}

#[test]
fn clocks_io_and_threads_are_caught_however_they_are_named() {
    for code in [
        "use std::time::Instant;",
        "use std::time::{Duration, SystemTime};",
        "use std::{fmt, time::{self, Duration}};",
        "use std::{\n    collections::BTreeMap,\n    net::{self as n},\n};",
        "use std::time;",
        "use std::time::*;",
        "use std::net::IpAddr;",
        "use std::fs as files;",
        "use ::std::env;",
        "pub(crate) use std::thread::spawn;",
        "fn a() { let _ = std::time::Instant::now(); }",
        "fn a() -> std::io::Result<()> { Ok(()) }",
        "use tokio::sync::Mutex;",
        "const Q: char = '\"'; fn a() { std::env::vars(); } const R: char = '\"';",
        "const Q: &str = \"\\\\\"; fn a() { std::env::vars(); }",
        "async fn a() { tokio::spawn(async {}).await; }",
    ] {
        assert_eq!(found(code).len(), 1, "{code}: {:?}", found(code));
    }
}

#[test]
fn the_line_of_the_place_is_told() {
    for (code, line) in [
        ("\n\nfn a() { std::env::var(\"X\"); }", 4),
        ("use std::env;", 2),
        ("fn a() {}\nuse std::{\n    env,\n};", 3),
        ("fn a() {}\nfn b() { HashMap::new() }", 3),
    ] {
        let found = found(code);
        assert_eq!(found.len(), 1, "{code}: {found:?}");
        let place = format!("crates/homing-core/src/a.rs:{line}:");
        assert!(found[0].starts_with(&place), "{code}: {found:?}");
    }
}

#[test]
fn maps_with_a_random_seed_are_caught() {
    for code in [
        "use std::collections::HashMap;",
        "use std::collections::{BTreeMap, HashSet};",
        "type Map = std::collections::HashMap<u8, u8>;",
        "use std::hash::RandomState;",
        "use foldhash::fast::RandomState;",
        "use foldhash::HashMap;",
        "use foldhash::fast::FixedState; fn a() { let m = HashMap::new(); }",
    ] {
        assert!(!found(code).is_empty(), "{code}");
    }
}

#[test]
fn globals_are_caught() {
    for code in [
        "thread_local! {\n    static CALLS: Cell<u32> = const { Cell::new(0) };\n}",
        "std::thread_local! { static A: u8 = 0; }",
        "static mut CALLS: u32 = 0;",
        "pub(crate) static NAMES: std::sync::OnceLock<u8> = std::sync::OnceLock::new();",
        "use std::sync::{Arc, LazyLock};",
        "fn next() -> u64 { static NEXT: AtomicU64 = AtomicU64::new(0); 1 }",
        "static TABLE: [std::sync::Mutex<u8>; 2] = todo();",
    ] {
        let found = found(code);
        assert!(found.iter().all(|c| c.contains("share nothing")), "{code}: {found:?}");
        assert!(!found.is_empty(), "{code}");
    }
}

#[test]
fn what_the_core_may_use_is_left_alone() {
    for code in [
        "use std::time::Duration;",
        "use std::collections::BTreeMap;",
        "use foldhash::fast::FixedState;\nuse std::collections::HashMap;\n\
         type Map<K, V> = HashMap<K, V, FixedState>;",
        "// std::time::Instant is not for us",
        "/// Unlike `std::fs`.\nfn a() {}",
        "/* use std::net; */",
        "const A: &str = \"use std::net; \\\" tokio::x\";",
        "const A: &str = r#\" \" use std::net; \"#;",
        "use crate::time::Time;",
        "fn a() { mystd::env::b(); }",
        "use std::sync::Arc;",
        "use std::sync::atomic::AtomicU32;",
        "const fn a() -> &'static str { \"thread_local!\" }",
        "// a static OnceLock is a global",
        "struct Shelf<T> { first: OnceLock<Box<[T]>> }",
        "use std::sync::OnceLock;",
        "fn a(x: &'static str) -> OnceLock<u8> { OnceLock::new() }",
        "static NAMES: [&str; 2] = [\"a\", \"b\"]; fn a(m: Mutex<u8>) {}",
        "use std::{cmp::Ordering, fmt};",
        "#[cfg(test)]\nmod tests { use std::fs; }",
    ] {
        assert_eq!(found(code), Vec::<String>::new(), "{code}");
    }
}

#[test]
fn it_applies_to_the_core_and_the_engine_model_but_not_to_their_tests() {
    assert!(applies("crates/homing-core/src/index/naive.rs"));
    assert!(applies("crates/homing-sim/src/engine/cache.rs"));
    assert!(applies("crates/homing-sim/src/engine.rs"));
    assert!(!applies("crates/homing-core/src/index/naive_tests.rs"));
    assert!(!applies("crates/homing-core/tests/simulation.rs"));
    assert!(!applies("crates/homing-sim/src/serve/mod.rs"));
    assert!(!applies("crates/homing-runtime/src/clock.rs"));
}
