//! `[affinity]` and the policy: each word, the forms of a time-to-live, the bounds.

use super::tests::{flag, load, problem, problems, sources};
use super::*;
use std::fmt::Debug;
use std::time::Duration;

fn affinity(lines: &str) -> Affinity {
    load(&format!("[affinity]\n{lines}\n")).affinity
}

/// Each word of a key gives its variant, and any other is refused with the list of them.
fn each_word<T: PartialEq + Debug>(
    key: &str,
    expected: &[(&str, T)],
    typed: impl Fn(&Settings) -> T,
) {
    let (section, name) = key.split_once('.').unwrap();
    let file = |word: &str| format!("[{section}]\n{name} = \"{word}\"\n");
    for (word, variant) in expected {
        assert_eq!(typed(&load(&file(word))), *variant, "{key} = {word}");
    }
    for bad in ["", "Spill", "evict-idle", "off"] {
        let text = problem(&file(bad));
        assert!(text.contains(&format!("`{key}` = \"{bad}\" is not one of its words")), "{text}");
        let mend = text.split_once("; write ").unwrap().1;
        let words: Vec<&str> = mend.split('"').skip(1).step_by(2).collect();
        assert_eq!(words, expected.iter().map(|(word, _)| *word).collect::<Vec<_>>(), "{key}");
    }
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let affinity = Settings::load(Sources::default()).unwrap().affinity;
    assert_eq!(affinity.prefill_ttl, None);
    assert_eq!(affinity.on_full, OnFull::RouteUnbound);
    assert_eq!(affinity.on_overload, OnOverload::Spill);
    assert_eq!(affinity.on_failure, OnFailure::Rebind);
    assert_eq!(affinity.on_down, OnDown::Rebind);
    assert_eq!(affinity.reject_as, RejectAs::ByCause);
    assert_eq!(affinity.subagents, Subagents::Own);
    assert_eq!(affinity.max_parallel, 32);
    assert!(!affinity.infer);
    assert_eq!((affinity.snapshot, affinity.key_file), (None, None));
}

#[test]
fn each_word_is_read_and_a_bad_one_names_them() {
    each_word(
        "affinity.on_full",
        &[("route_unbound", OnFull::RouteUnbound), ("evict_idle", OnFull::EvictIdle)],
        |s| s.affinity.on_full,
    );
    each_word(
        "affinity.on_overload",
        &[
            ("spill", OnOverload::Spill),
            ("reject", OnOverload::Reject),
            ("wait", OnOverload::Wait),
            ("dispatch", OnOverload::Dispatch),
        ],
        |s| s.affinity.on_overload,
    );
    each_word(
        "affinity.on_failure",
        &[("rebind", OnFailure::Rebind), ("reject", OnFailure::Reject)],
        |s| s.affinity.on_failure,
    );
    each_word("affinity.on_down", &[("rebind", OnDown::Rebind), ("reject", OnDown::Reject)], |s| {
        s.affinity.on_down
    });
    each_word(
        "affinity.reject_as",
        &[("by_cause", RejectAs::ByCause), ("invalid_argument", RejectAs::InvalidArgument)],
        |s| s.affinity.reject_as,
    );
    each_word("affinity.soft", &[("keep", Soft::Keep), ("weigh", Soft::Weigh)], |s| {
        s.affinity.soft
    });
    each_word("affinity.subagents", &[("own", Subagents::Own), ("group", Subagents::Group)], |s| {
        s.affinity.subagents
    });
    each_word(
        "routing.policy",
        &[
            ("kv", Policy::Kv),
            ("latency", Policy::Latency),
            ("least_loaded", Policy::LeastLoaded),
            ("power_of_two", Policy::PowerOfTwo),
            ("round_robin", Policy::RoundRobin),
            ("random", Policy::Random),
        ],
        |s| s.routing.policy,
    );
}

#[test]
fn the_strict_set_is_read_whole() {
    let strict = affinity(
        "on_overload = \"reject\"\non_failure = \"reject\"\non_down = \"reject\"\n\
         reject_as = \"invalid_argument\"",
    );
    assert_eq!(
        (strict.on_overload, strict.on_failure, strict.on_down, strict.reject_as),
        (OnOverload::Reject, OnFailure::Reject, OnDown::Reject, RejectAs::InvalidArgument)
    );
}

#[test]
fn the_environment_overrides_the_file() {
    let overridden = |name: &str, value: &str| {
        let file = "[affinity]\non_overload = \"dispatch\"\nprefill_ttl = \"1m\"\n";
        let env = vec![(format!("HOMING_AFFINITY__{name}"), value.to_owned())];
        Settings::load(Sources { env, ..sources(file) })
    };
    let affinity = overridden("ON_OVERLOAD", "wait").unwrap().affinity;
    assert_eq!(affinity.on_overload, OnOverload::Wait);
    assert_eq!(affinity.prefill_ttl, Some(Some(Duration::from_secs(60))));
    // Empty text is a value here, not an absent one.
    let affinity = overridden("PREFILL_TTL", "").unwrap().affinity;
    assert_eq!((affinity.on_overload, affinity.prefill_ttl), (OnOverload::Dispatch, None));
    let text = overridden("ON_OVERLOAD", "queue").unwrap_err().to_string();
    assert!(
        text.ends_with(
            "environment HOMING_AFFINITY__ON_OVERLOAD: `affinity.on_overload` = \"queue\" is not \
             one of its words; write \"spill\", \"reject\", \"wait\" or \"dispatch\""
        ),
        "{text}"
    );
}

#[test]
fn the_prefill_ttl_has_three_forms_whatever_the_other_is() {
    for ttl in ["30m", "off"] {
        let read = |text: &str| {
            let affinity = affinity(&format!("ttl = \"{ttl}\"\nprefill_ttl = \"{text}\""));
            assert_eq!(affinity.ttl.is_none(), ttl == "off");
            affinity.prefill_ttl
        };
        assert_eq!(read(""), None);
        assert_eq!(read("off"), Some(None));
        assert_eq!(read("1s"), Some(Some(Duration::from_secs(1))));
        assert_eq!(read("1year"), Some(Some(Duration::from_secs(31_557_600))));
    }
    let cases = [
        ("prefill_ttl = \"999ms\"", "is not within 1s to 1year; write a duration from 1s to 1year"),
        ("prefill_ttl = \"2years\"", "1year, or \"off\", or \"\""),
        ("prefill_ttl = \"never\"", "is not a duration; write a number with its unit"),
        ("prefill_ttl = \" \"", "is not a duration"),
        ("prefill_ttl = 30", "is a duration without its unit"),
        ("prefill_ttl = false", "is of type boolean, not a duration"),
        // Only the prefill pool's own can stand for another key's value.
        ("ttl = \"\"", "is not a duration"),
    ];
    for (line, expected) in cases {
        let text = problem(&format!("[affinity]\n{line}\n"));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn one_session_has_a_bound_that_can_be_counted() {
    for bound in [0, 1, 32, 60_000] {
        assert_eq!(affinity(&format!("max_parallel = {bound}")).max_parallel, bound);
    }
    for bound in ["60001", "-1", "1_000_000_000"] {
        let text = problem(&format!("[affinity]\nmax_parallel = {bound}\n"));
        assert!(text.contains("is not a whole number from 0 to 60000"), "{text}");
    }
}

#[test]
fn files_are_paths_and_not_the_same_one() {
    let given = affinity("infer = true\nsnapshot = \"/var/lib/homing/s\"\nkey_file = \"key\"");
    assert!(given.infer);
    assert_eq!(given.snapshot, Some(PathBuf::from("/var/lib/homing/s")));
    assert_eq!(given.key_file, Some(PathBuf::from("key")));
    let empty = affinity("snapshot = \"\"\nkey_file = \"\"");
    assert_eq!((empty.snapshot, empty.key_file), (None, None));
    let found = problems("[affinity]\nsnapshot = \"/s\"\nkey_file = \"/s\"\n");
    assert_eq!((found.len(), found[0].fault), (1, Fault::Conflict));
    assert!(found[0].to_string().contains("are both \"/s\"; give them different files"));
}

#[test]
fn what_is_given_is_printed_and_loads_again() {
    let settings = Settings::load(Sources {
        overrides: vec![
            flag("affinity.prefill_ttl", "off", "--set"),
            flag("affinity.on_full", "evict_idle", "--set"),
            flag("affinity.snapshot", "/s \"x\"", "--set"),
        ],
        ..Sources::default()
    })
    .unwrap();
    let page = settings.effective_toml();
    assert!(page.contains("prefill_ttl = \"off\"  # flag --set\n"), "{page}");
    let again = load(&page).affinity;
    assert_eq!(again, settings.affinity);
    let defaults = Settings::load(Sources::default()).unwrap();
    assert_eq!(load(&defaults.effective_toml()).affinity, defaults.affinity);
}

#[test]
fn replication_needs_a_place_a_key_and_whole_pairs() {
    let good = "[affinity]\nkey_file = \"k\"\n[replication]\nbackend = \"nats\"\nurls = [\"nats://h:4222\", \"h2\"]\n";
    let settings = load(good);
    let replication = settings.replication.unwrap();
    assert_eq!(replication.reach.urls, ["nats://h:4222", "h2"]);
    assert_eq!(
        (replication.mode, replication.group.as_str()),
        (ReplicationMode::Advisory, "default")
    );
    let none = load("[replication]\nmode = \"authoritative\"\n");
    assert_eq!(none.replication, None);
    for (more, says) in [
        ("user = \"u\"\n", "password_file"),
        ("cert_file = \"c\"\n", "key_file"),
        ("group = \"No Such\"\n", "a-z"),
        ("group = \"\"\n", "a-z"),
    ] {
        let found = problems(&format!("{good}{more}"));
        assert!(found.len() == 1 && found[0].to_string().contains(says), "{found:?}");
    }
    for (text, says) in [
        ("[replication]\nbackend = \"nats\"\nurls = [\"nats://h\"]\n", "affinity.key_file"),
        ("[affinity]\nkey_file = \"k\"\n[replication]\nbackend = \"etcd\"\n", "replication.urls"),
        (
            "[affinity]\nkey_file = \"k\"\n[replication]\nbackend = \"etcd\"\nurls = [\"nats://h\"]\n",
            "no place of etcd",
        ),
        (
            "[affinity]\nkey_file = \"k\"\n[replication]\nbackend = \"nats\"\nurls = [\"nats://u:secret@h\"]\n",
            "keys of their own",
        ),
        ("[replication]\nurls = [\"nats://h\"]\n", "replication.backend"),
    ] {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].to_string().contains(says), "{found:?}");
        assert!(!found[0].to_string().contains("secret"), "{found:?}");
    }
}
