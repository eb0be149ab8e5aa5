//! Streams in every spelling and cut, and recorded ones of real engines.

use super::*;
use crate::errors::ApiShape;
use crate::usage::{Usage, parse_usage};
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::PathBuf;

/// What a scanner said, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    First,
    Data(String, String),
    Done,
    Oversize,
}

fn said(event: SseEvent<'_>) -> Said {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match event {
        SseEvent::FirstData => Said::First,
        SseEvent::Data { name, data } => Said::Data(text(name), text(data)),
        SseEvent::Done => Said::Done,
        SseEvent::Oversize => Said::Oversize,
    }
}

/// Feeds `chunks`; also the stream's offset up to which all was whole events.
fn scan_with(scanner: &mut SseScanner, chunks: &[&[u8]]) -> (Vec<Said>, usize) {
    let (mut all, mut whole, mut offset) = (Vec::new(), 0, 0);
    for chunk in chunks {
        match scanner.feed(chunk, |event| all.push(said(event))) {
            0 => {}
            n => whole = offset + n,
        }
        offset += chunk.len();
    }
    (all, whole)
}

fn scan(stream: &str) -> Vec<Said> {
    scan_with(&mut SseScanner::default(), &[stream.as_bytes()]).0
}

fn data(text: &str) -> Said {
    Said::Data(String::new(), text.into())
}

#[test]
fn every_line_end_and_every_spelling_of_a_field() {
    for end in ["\n", "\r", "\r\n"] {
        let lines = ["\u{feff}data: a", ": comment", "", "data:b", "data", "data:  c", "id: 1", ""];
        let stream: String = lines.iter().map(|line| format!("{line}{end}")).collect();
        assert_eq!(scan(&stream), [Said::First, data("a"), data("b\n\n c")], "{end:?}");
    }
}

#[test]
fn an_event_without_data_says_nothing_and_names_do_not_linger() {
    let stream = "event: ping\n\nretry: 5\n\n\n\ndata: x\n\nevent: e\ndata: y\n\ndata: z\n\n";
    let named = Said::Data("e".into(), "y".into());
    assert_eq!(scan(stream), [Said::First, data("x"), named, data("z")]);
}

#[test]
fn the_first_data_line_counts_before_its_event_is_whole() {
    let mut scanner = SseScanner::default();
    let (said, whole) = scan_with(&mut scanner, &[b": hello\n\nevent: m\n", b"data: {\"a\""]);
    assert_eq!((said, whole, scanner.begun()), (vec![], 9, false));
    let (said, whole) = scan_with(&mut scanner, &[b":1}\n"]);
    assert_eq!((said, whole, scanner.begun()), (vec![Said::First], 0, true));
    assert!(scanner.mid_event());
}

#[test]
fn done_is_only_a_whole_payload() {
    let text = r#"data: {"content":"data: [DONE]\n\n"}"#;
    let inside = format!("{text}\n\ndata: x\ndata: [DONE]\n\ndata: [DONE]x\n\n: [DONE]\n\n");
    assert!(!scan(&inside).contains(&Said::Done));
    assert_eq!(scan("data:[DONE]\r\n\r\n"), [Said::First, Said::Done]);
    // Without its blank line it has not come; but if the stream ends there, it is complete.
    assert_eq!(scan("data: [DONE]\n"), [Said::First]);
    for (stream, complete) in [
        ("data: {}\n\ndata: [DONE]\n", true),
        ("data: {}\n\ndata:[DONE]", true),
        ("data: {}\n\ndata: [DONE", false),
        ("data: x\ndata: [DONE]", false),
        ("data: x\ndata: [DONE]\n", false),
        ("data: [DONE]\ndata: x", false),
        ("data: {}\n\n", false),
        (": [DONE]", false),
        ("", false),
    ] {
        let mut scanner = SseScanner::default();
        scanner.feed(stream.as_bytes(), |_| ());
        assert_eq!(scanner.done_at_end(), complete, "{stream:?}");
    }
}

#[test]
fn too_much_data_is_dropped_and_said() {
    let mut scanner = SseScanner::with_max_data(8);
    let long = format!("data: {}\n\ndata: 12345678\n\n", "x".repeat(1000));
    let chunks: Vec<&[u8]> = long.as_bytes().chunks(7).collect();
    let (all, _) = scan_with(&mut scanner, &chunks);
    assert_eq!(all, [Said::First, Said::Oversize, data("12345678")]);
    assert_eq!(scanner.data_events(), 2);
    // Many short lines add up to too much as well, and comments never count.
    let many = format!(": {}\ndata: 1234\ndata: 1234\n\ndata: ok\n\n", "y".repeat(1000));
    let (all, whole) = scan_with(&mut scanner, &[many.as_bytes()]);
    assert_eq!((all, whole), (vec![Said::Oversize, data("ok")], many.len()));
    assert_eq!(scanner.last_data(), b"ok");
}

#[test]
fn bounds_are_the_same_however_a_stream_is_cut() {
    let long = "n".repeat(500);
    let stream =
        format!("event: {long}\ndata: x\n\nevent: {long}\ndata: {long}\n\n: {long}\n{long}: y\n\n");
    for most in [0, 8, 64, 300] {
        let one_go = scan_with(&mut SseScanner::with_max_data(most), &[stream.as_bytes()]);
        for size in 1..stream.len() {
            let chunks: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
            let cut = scan_with(&mut SseScanner::with_max_data(most), &chunks);
            assert_eq!(cut, one_go, "{most} bytes, in chunks of {size}");
        }
    }
}

#[test]
fn memory_stays_bounded_whatever_comes() {
    let mut scanner = SseScanner::with_max_data(64);
    for chunk in [&b"data: "[..], b"zzzzzzzzzzzzzzzz", b": no end of line "] {
        for _ in 0..1000 {
            scanner.feed(chunk, |_| ());
        }
    }
    for _ in 0..1000 {
        scanner.feed(b"\ndata: more and more\nevent: a rather long name of an event", |_| ());
    }
    let held = scanner.line.capacity() + scanner.data.capacity() + scanner.name.capacity();
    assert!(held < 1024, "{held}");
}

#[test]
fn a_cut_stream_is_known_as_cut() {
    let mut scanner = SseScanner::default();
    let (_, whole) = scan_with(&mut scanner, &[b"data: a\n\nda", b"ta: {\"b\":"]);
    assert_eq!((whole, scanner.mid_event()), (9, true));
    scanner.feed(b"1}\r\n\r", |_| ());
    assert!(!scanner.mid_event(), "a CR alone ends a line");
    assert_eq!(scanner.feed(b"\n", |_| ()), 1, "and its LF belongs to it");
}

/// The recorded streams of real engines; `None` where they are not at hand.
fn recorded(name: &str) -> Option<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data/engine-responses/replays")
        .join(name);
    let found = std::fs::read(&path).ok();
    if found.is_none() {
        eprintln!("SKIPPED: {} is not here", path.display());
    }
    found
}

#[test]
fn recorded_streams_of_real_engines() {
    for (name, first_is_comment) in [
        ("deepseek-r1-distill-llama-8b/chat-completions.stream.1", false),
        ("meta/llama-3.1-8b-instruct/chat_completions/chat-completion.streaming.1", false),
        (
            "meta/llama-3.1-8b-instruct/chat_completions/edge_cases/valid-comments_per_response",
            true,
        ),
        ("meta/llama-3.1-8b-instruct/completions/completion.streaming.3", false),
        (
            "mistralai/mixtral-8x22b-instruct-v0.1/chat_completions/chat-completion.streaming.3",
            false,
        ),
    ] {
        let Some(stream) = recorded(name) else { return };
        assert_eq!(stream.starts_with(b":"), first_is_comment);
        let mut scanner = SseScanner::default();
        let (all, _) = scan_with(&mut scanner, &[&stream]);
        let datas: Vec<_> = all.iter().filter(|said| matches!(said, Said::Data(..))).collect();
        let starts = memchr::memmem::find_iter(&stream, b"data: {").count();
        assert_eq!(datas.len(), starts, "{name}");
        for said in datas {
            let Said::Data(_, json) = said else { continue };
            assert!(serde_json::from_str::<serde_json::Value>(json).is_ok(), "{name}: {json}");
        }
        let says_done = memchr::memmem::find(&stream, b"data: [DONE]").is_some();
        assert_eq!(scanner.done_at_end(), says_done, "{name}");
        assert_eq!(scanner.done(), says_done && stream.ends_with(b"\n\n"), "{name}");
    }
}

#[test]
fn the_usage_of_a_real_stream_is_in_its_last_data() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/kv-events/engine-vllm-0.32.0/llama-int.http.json");
    let calls: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut streams = 0;
    for call in calls.as_array().unwrap() {
        let asked = &call["request_body"]["stream_options"]["include_usage"];
        if asked != true || call["path"] != "/v1/chat/completions" {
            continue;
        }
        let mut scanner = SseScanner::default();
        scanner.feed(call["response_body"].as_str().unwrap().as_bytes(), |_| ());
        assert!(scanner.done() && !scanner.mid_event());
        let usage = parse_usage(ApiShape::OpenAi, scanner.last_data()).unwrap();
        assert!(usage.prompt_tokens > 0 && usage.completion_tokens > 0, "{usage:?}");
        assert!(usage.cached_tokens.is_some());
        streams += 1;
    }
    assert!(streams > 0);
    let whole = calls[0]["response_body"].as_str().unwrap();
    let expected = Usage { prompt_tokens: 156, completion_tokens: 24, cached_tokens: Some(0) };
    assert_eq!(parse_usage(ApiShape::OpenAi, whole.as_bytes()), Some(expected));
}

proptest! {
    /// The cuts between chunks change nothing.
    #[test]
    fn cut_anywhere(
        pieces in vec(prop_oneof![
            Just("data: "), Just("data:"), Just("event: x"), Just("[DONE]"), Just(": c"),
            Just("\n"), Just("\r"), Just("\r\n"), Just("\n\n"), Just("{\"a\":\"é\"}"), Just("\u{feff}"),
        ], 0..40),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = pieces.concat().into_bytes();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        let chunks: Vec<&[u8]> = at.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        let one_go = scan_with(&mut SseScanner::default(), &[&stream]);
        prop_assert_eq!(&scan_with(&mut SseScanner::default(), &chunks), &one_go);
        prop_assert_eq!(&scan_with(&mut SseScanner::default(), &bytes), &one_go);
        // What is whole says the same on its own, and nothing is left open.
        let mut scanner = SseScanner::default();
        let prefix = scan_with(&mut scanner, &[&stream[..one_go.1]]);
        prop_assert!(!scanner.mid_event());
        let is_event = |said: &&Said| **said != Said::First;
        prop_assert!(prefix.0.iter().filter(is_event).eq(one_go.0.iter().filter(is_event)));
    }
}
