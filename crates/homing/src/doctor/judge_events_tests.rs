//! What is said of an engine's events, by the facts that bring it, and by those that don't.

use super::judge;
use super::tests::{ENDPOINT, REPLAY, is, only, streams, with_engine, with_routed, written};
use crate::doctor::facts::Events;
use crate::doctor::finding::Severity::{Broken, Missing, Note};
use homing_wire::engine::Kind;

#[test]
fn events_that_are_off_with_the_switch_of_each_engine() {
    for (kind, switch) in [
        (Some(Kind::Vllm), "start vLLM with --kv-events-config"),
        (Some(Kind::Sglang), "start SGLang with --kv-events-config"),
        (Some(Kind::TensorRtLlm), "event_buffer_max_size"),
        (None, "start vLLM"),
    ] {
        let off = |index: &str| {
            with_engine(|engine| {
                engine.kind = kind;
                engine.events = Events::Off { why: "404".into() };
                engine.routed.as_mut().unwrap().index = index.into();
            })
        };
        is(&off("none"), Missing, "events_off", switch);
        is(&off("approximate"), Note, "events_off", switch);
        let why = only(&off("approximate")).why;
        assert!(why.contains("guessed by the text") && !why.contains("don't go"), "{why}");
        is(&off("connecting"), Broken, "events_unreachable", switch);
        assert_eq!(judge(&off("events")), [], "they are configured by hand");
    }
}

#[test]
fn events_that_do_not_arrive() {
    let connecting = |events: Events| {
        with_engine(|engine| {
            engine.events = events;
            engine.routed.as_mut().unwrap().index = "connecting".into();
        })
    };
    let set = |events: Events, kv_events: Option<&str>| {
        let mut facts = connecting(events);
        facts.engines[0].written = written(kv_events);
        facts
    };
    let connects = || Events::Streams {
        replay: Some(REPLAY.into()),
        endpoint: ENDPOINT.into(),
        listens: false,
    };
    const CONNECTS: &str = "write `kv_events = \"tcp://*:6001\"`";
    is(
        &set(streams(true), None),
        Broken,
        "events_unreachable",
        "open the port of tcp://10.0.0.1:6001",
    );
    is(&set(connects(), None), Broken, "events_unreachable", CONNECTS);
    // What is written goes before what the engine says, and may be wrong.
    for events in [streams(true), connects()] {
        let facts = set(events, Some("tcp://10.0.0.1:18999"));
        let delete =
            "delete `kv_events = \"tcp://10.0.0.1:18999\"` from its [[workers]], or correct it";
        is(&facts, Broken, "events_unreachable", delete);
        let mend = only(&facts).mend;
        assert!(mend.contains(ENDPOINT) && !mend.contains("tcp://*"), "{mend}");
    }
    let same = set(streams(true), Some(ENDPOINT));
    is(
        &same,
        Broken,
        "events_unreachable",
        "open the port of `kv_events = \"tcp://10.0.0.1:6001\"`",
    );
    let listening = set(connects(), Some("tcp://*:6001"));
    is(&listening, Broken, "events_unreachable", "names the router's host");
    // Where the router can't even listen no engine is to blame.
    let mut taken = listening;
    let why = "can't listen at tcp://*:6001: Address already in use (os error 98)";
    taken.engines[0].routed.as_mut().unwrap().index_error = Some(why.into());
    is(&taken, Broken, "events_unreachable", "another port into `kv_events`");
    let found = only(&taken);
    assert!(found.what.contains(why) && !found.mend.contains("no engine has connected"), "{found}");
    // It isn't known what is written.
    is(&connecting(connects()), Broken, "events_unreachable", CONNECTS);
    is(&connecting(connects()), Broken, "events_unreachable", "delete it or correct it");
    is(&connecting(Events::Unknown), Broken, "events_unreachable", "open the port");
    is(&connecting(Events::Polled), Broken, "events_unreachable", "/kv_cache_events");
    let none = |events: Events| {
        with_engine(|engine| {
            engine.kind = Some(Kind::TensorRtLlm);
            engine.events = events;
            engine.routed.as_mut().unwrap().index = "none".into();
        })
    };
    is(&none(Events::Polled), Missing, "events_unfollowed", "event_buffer_max_size");
    is(&none(streams(true)), Missing, "events_unfollowed", "log");
}

#[test]
fn events_that_say_nothing() {
    is(&with_routed(|routed| routed.cached_blocks = 0), Note, "events_silent", "hundred tokens");
    let busy = with_routed(|routed| (routed.cached_blocks, routed.active_requests) = (0, 3));
    is(&busy, Missing, "events_silent", "hundred tokens");
}

#[test]
fn f24_events_that_were_lost() {
    let lost = |replayed| {
        with_engine(|engine| {
            engine.events = streams(replayed);
            let routed = engine.routed.as_mut().unwrap();
            (routed.index, routed.lost, routed.replays) = ("uncertain".into(), 2.0, 2.0);
        })
    };
    is(&lost(true), Missing, "events_uncertain", "passes by itself");
    is(&lost(false), Missing, "events_uncertain", "\"replay_endpoint\":\"tcp://*:5558\"");
    is(&with_engine(|e| e.events = streams(false)), Missing, "replay_off", "\"replay_endpoint\"");
    is(&with_routed(|routed| routed.failed_replays = 1.0), Missing, "replay_failed", "kv_replay");
}

#[test]
fn f24_what_is_written_decides_whether_lost_events_are_asked_for() {
    let set = |kv_replay: Option<&str>, replayed, lost| {
        with_engine(|engine| {
            engine.events = streams(replayed);
            engine.written = written(Some(ENDPOINT));
            engine.written.as_mut().unwrap().kv_replay = kv_replay.map(str::to_owned);
            engine.routed.as_mut().unwrap().lost = lost;
        })
    };
    // The router doesn't ask where the engine names a place to ask at.
    let facts = set(None, true, 7.0);
    is(&facts, Missing, "replay_off", "write `kv_replay = \"tcp://10.0.0.1:6002\"` beside");
    assert!(only(&facts).what.contains("7 holes"), "{}", only(&facts));
    let facts = set(None, true, 0.0);
    is(&facts, Missing, "replay_off", "kv_replay");
    assert!(!only(&facts).what.contains("holes"), "{}", only(&facts));
    is(&set(None, false, 0.0), Missing, "replay_off", "\"replay_endpoint\":\"tcp://*:5558\"");
    assert_eq!(judge(&set(Some(REPLAY), true, 7.0)), []);
    assert_eq!(judge(&set(Some(REPLAY), false, 0.0)), [], "the engine need not name it");
    let mut uncertain = set(None, true, 7.0);
    uncertain.engines[0].routed.as_mut().unwrap().index = "uncertain".into();
    is(&uncertain, Missing, "events_uncertain", "write `kv_replay = ");
    // Events that only the file knows of.
    let mut off = set(None, true, 0.0);
    off.engines[0].events = Events::Off { why: "404".into() };
    is(&off, Missing, "replay_off", "kv_replay");
    // Without the file it shows where nothing was ever asked for.
    let lost = |replays| with_routed(|routed| (routed.lost, routed.replays) = (7.0, replays));
    is(&lost(0.0), Missing, "replay_off", "with --config");
    assert_eq!(judge(&lost(2.0)), []);
}

#[test]
fn a_port_that_is_not_the_one_that_the_engine_names() {
    let set = |kv_events: &str| {
        with_engine(|engine| {
            engine.written = written(Some(kv_events));
            engine.written.as_mut().unwrap().kv_replay = Some(REPLAY.into());
        })
    };
    let facts = set("tcp://10.0.0.1:6003");
    is(&facts, Note, "events_other_port", "correct `kv_events = \"tcp://10.0.0.1:6003\"`");
    assert!(only(&facts).what.contains(ENDPOINT));
    // It may have another name here.
    assert_eq!(judge(&set("tcp://engine-0:6001")), []);
    assert_eq!(judge(&set("tcp://*:6001")), []);
}

#[test]
fn f27_events_that_are_refused_or_can_not_be_read() {
    is(&with_routed(|routed| routed.refused = 5.0), Broken, "events_refused", "--block-size");
    is(&with_routed(|routed| routed.malformed = 5.0), Missing, "events_malformed", "log");
}
