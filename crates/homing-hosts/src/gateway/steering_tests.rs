//! Each header, what it may hold, and what is refused; that nobody's words come back at length.

use super::*;
use proptest::prelude::*;

fn map(headers: &[(&'static str, &[u8])]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_bytes(value).unwrap());
    }
    map
}

fn of(headers: &[(&'static str, &str)]) -> Result<Steering, Error> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    Steering::parse(&map(&headers))
}

fn ok(headers: &[(&'static str, &str)]) -> Steering {
    of(headers).unwrap_or_else(|e| panic!("{headers:?}: {e:?}"))
}

/// What it is refused with: always a 400, `invalid_request`.
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = format!("{:?}", result.unwrap_err());
    assert!(error.contains("status: 400") && error.contains(r#"code: "invalid_request""#));
    error
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn nothing_said_is_nothing_asked() {
    assert_eq!(Steering::parse(&HeaderMap::new()).unwrap(), Steering::default());
    let others = [("x-request-id", "r"), ("x-session-id", "s"), ("x-dynamo-anything", "x")];
    assert_eq!(ok(&others), Steering::default());
    for name in WORKER.iter().chain(&RANK).chain(&LAST).chain([&PRIORITY, &LABELS]) {
        assert_eq!(
            ok(&[(name, ""), (name, " \t ")]),
            Steering::default(),
            "{name}: empty is absent"
        );
    }
}

#[test]
fn r20_a_mode_is_one_of_three_words() {
    for (word, wanted) in [
        ("hard", Wanted::Mode(Mode::Hard)),
        ("soft", Wanted::Mode(Mode::Soft)),
        ("off", Wanted::Off),
    ] {
        assert_eq!(ok(&[(AFFINITY, word)]).affinity, Some(wanted));
        assert_eq!(ok(&[(AFFINITY, word), (AFFINITY, word)]).affinity, Some(wanted));
    }
    for wrong in ["", "HARD", "Soft", "none", "hard, soft", "hard ", "\u{fc}"] {
        assert!(refused(of(&[(AFFINITY, wrong)])).contains(AFFINITY), "{wrong}");
    }
    refused(of(&[(AFFINITY, "hard"), (AFFINITY, "soft")]));
    refused(of(&[(AFFINITY, "off"), (AFFINITY, "")]));
    refused(Steering::parse(&map(&[(AFFINITY, b"\xff")])));
}

#[test]
fn r09_an_explicit_target_is_a_worker_and_perhaps_a_rank() {
    for worker in WORKER {
        let steering = ok(&[(worker, "gpu-a:8000")]);
        assert_eq!((steering.worker.as_deref(), steering.rank), (Some("gpu-a:8000"), None));
        for rank in RANK {
            let steering = ok(&[(rank, "7"), (worker, "\u{fc}")]);
            assert_eq!((steering.worker.as_deref(), steering.rank), (Some("\u{fc}"), Some(7)));
        }
    }
    for (written, rank) in [("0", 0), ("65535", 65535), ("007", 7)] {
        assert_eq!(ok(&[(WORKER[0], "w"), (RANK[0], written)]).rank, Some(rank));
    }
    for name in RANK {
        for wrong in
            ["65536", "-1", "+1", "1.0", "0x1", "1 2", "one", "99999999999999999999", "\u{663}"]
        {
            assert!(refused(of(&[(WORKER[0], "w"), (name, wrong)])).contains(name), "{wrong}");
        }
        for alone in [&[(name, "1")][..], &[(name, "1"), (WORKER[0], "")]] {
            assert!(refused(of(alone)).contains("x-homing-worker"), "a rank needs a worker");
        }
    }
}

#[test]
fn r09_twins_may_agree_and_not_differ() {
    let twins = [(WORKER[1], "w"), (WORKER[0], "w"), (RANK[1], "01"), (RANK[0], "1")];
    let steering = ok(&twins);
    assert_eq!((steering.worker.as_deref(), steering.rank), (Some("w"), Some(1)));
    let error = refused(of(&[(WORKER[0], "w"), (WORKER[1], "v")]));
    assert!(error.contains(WORKER[0]) && error.contains(WORKER[1]));
    refused(of(&[(WORKER[0], "w"), (WORKER[1], "W")]));
    refused(of(&[(WORKER[0], "w"), (RANK[0], "1"), (RANK[1], "2")]));
    refused(of(&[(WORKER[0], "w"), (WORKER[0], "v")]));
    refused(of(&[(WORKER[1], "w"), (WORKER[1], ""), (WORKER[1], "v")]));
    // An empty one contradicts nobody.
    assert_eq!(ok(&[(WORKER[0], ""), (WORKER[1], "w")]).worker.as_deref(), Some("w"));
}

#[test]
fn allowed_workers_are_all_that_are_listed() {
    let allowed = |lists: &[&str]| {
        let headers: Vec<_> = lists.iter().map(|list| (ALLOWED, *list)).collect();
        ok(&headers).allowed
    };
    assert_eq!(allowed(&[]), None);
    assert_eq!(allowed(&["a"]), Some(texts(&["a"])));
    assert_eq!(allowed(&[" a ,,\tb c\t, "]), Some(texts(&["a", "b c"])));
    assert_eq!(allowed(&["a", "", "b,a"]), Some(texts(&["a", "b", "a"])));
    for nobody in ["", ",", " , ,\t"] {
        assert_eq!(allowed(&[nobody]), Some(vec![]), "{nobody:?}: there, and nobody's name");
    }
    let many = |n: usize| vec!["w"; n].join(",");
    assert_eq!(allowed(&[&many(1000), &many(24)]).unwrap().len(), 1024);
    assert!(refused(of(&[(ALLOWED, &many(1024)), (ALLOWED, "w")])).contains("1024"));
    refused(of(&[(ALLOWED, "a,b\tc")]));
    refused(Steering::parse(&map(&[(ALLOWED, b"a,\xff")])));
}

#[test]
fn labels_are_pairs() {
    let labels = |lists: &[&str]| -> Vec<String> {
        let headers: Vec<_> = lists.iter().map(|list| (LABELS, *list)).collect();
        ok(&headers).labels.into_iter().map(|(k, v)| format!("{k}|{v}")).collect()
    };
    assert_eq!(labels(&["zone=a,gpu=h200"]), ["zone|a", "gpu|h200"]);
    assert_eq!(labels(&[" zone = a ,", "gpu=", "k=v=w"]), ["zone|a", "gpu|", "k|v=w"]);
    for wrong in ["zone", "zone=a,gpu", "=a", " = a", "="] {
        assert!(refused(of(&[(LABELS, wrong)])).contains(LABELS), "{wrong}");
    }
    let many = |n: usize| vec!["k=v"; n].join(",");
    assert_eq!(labels(&[&many(60), &many(4)]).len(), 64);
    assert!(refused(of(&[(LABELS, &many(64)), (LABELS, "k=v")])).contains("64"));
    refused(Steering::parse(&map(&[(LABELS, b"zone=\xff")])));
}

#[test]
fn r19_either_header_ends_a_session() {
    for name in LAST {
        for (word, last) in
            [("true", true), ("TRUE", true), ("1", true), ("False", false), ("0", false)]
        {
            assert_eq!(ok(&[(name, word)]).last, last, "{word}");
        }
        for wrong in ["yes", "2", "t", "true,false", "01"] {
            assert!(refused(of(&[(name, wrong)])).contains(name), "{wrong}");
        }
        assert!(ok(&[(name, "true"), (name, "1"), (name, "")]).last, "these are the same");
        refused(of(&[(name, "true"), (name, "false")]));
    }
    assert!(ok(&[(LAST[0], "false"), (LAST[1], "true")]).last);
    assert!(ok(&[(LAST[0], "true"), (LAST[1], "false")]).last);
}

#[test]
fn a_priority_is_a_whole_number() {
    for (word, priority) in [("7", 7), ("-2147483648", i32::MIN), ("2147483647", i32::MAX)] {
        assert_eq!(ok(&[(PRIORITY, word)]).priority, priority);
    }
    for wrong in ["high", "1.5", "2147483648", "1e3", "--1", "-"] {
        assert!(refused(of(&[(PRIORITY, wrong)])).contains(PRIORITY), "{wrong}");
    }
    refused(of(&[(PRIORITY, "1"), (PRIORITY, "2")]));
}

#[test]
fn what_is_not_built_or_not_ours_is_refused_by_name() {
    for name in [
        "x-homing-prefill-worker",
        "x-homing-prefill-dp-rank",
        "x-dynamo-prefill-instance-id",
        "x-dynamo-prefill-dp-rank",
        "x-homing-sesion-id",
        "x-homing-cached-tokens",
        "x-homing-",
    ] {
        for value in ["1", ""] {
            assert!(refused(of(&[(name, value)])).contains(name), "{name}");
        }
    }
    let own = ["x-homing-session-id", "x-homing-parent-session-id", "x-homing-instance"];
    for name in own {
        assert_eq!(ok(&[(name, "x")]), Steering::default(), "{name}");
    }
}

#[test]
fn errors_echo_little_of_what_a_client_wrote() {
    let long = "\u{e9}".repeat(4000);
    for name in [RANK[0], LAST[0], PRIORITY, LABELS] {
        let error = refused(of(&[(WORKER[0], "w"), (name, &long)]));
        assert_eq!(error.matches('\u{e9}').count(), 128, "{name}");
    }
    let item = format!("k=v,{long}");
    assert_eq!(refused(of(&[(LABELS, &item)])).matches('\u{e9}').count(), 128);
    for pair in [[WORKER[0], WORKER[1]], [WORKER[0], WORKER[0]]] {
        let error = refused(of(&[(pair[0], &long), (pair[1], "w")]));
        assert_eq!(error.matches('\u{e9}').count(), 0);
    }
    let name = HeaderName::from_bytes(format!("x-homing-{}", "y".repeat(4000)).as_bytes()).unwrap();
    let headers = HeaderMap::from_iter([(name, HeaderValue::from_static("1"))]);
    assert!(refused(Steering::parse(&headers)).matches('y').count() < 140);
}

proptest! {
    /// Whatever bytes a header may hold: refused, or read; and what was read keeps its bounds.
    #[test]
    fn no_bytes_panic(
        headers in proptest::collection::vec(
            (0usize..10, proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
    ) {
        let names = [WORKER[0], WORKER[1], RANK[0], RANK[1], LAST[0], LAST[1], ALLOWED, LABELS,
            PRIORITY, AFFINITY];
        let mut map = HeaderMap::new();
        for (name, value) in &headers {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                map.append(names[*name], value);
            }
        }
        match Steering::parse(&map) {
            Ok(steering) => {
                prop_assert!(steering.rank.is_none() || steering.worker.is_some());
                prop_assert!(steering.worker.as_deref() != Some(""));
                prop_assert_eq!(steering.allowed.is_some(), map.contains_key(ALLOWED));
                prop_assert!(steering.labels.iter().all(|(key, _)| !key.is_empty()));
            }
            Err(error) => drop(refused::<()>(Err(error))),
        }
    }
}
