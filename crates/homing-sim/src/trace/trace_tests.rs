//! Each format by small examples, bad lines by what is said of them, and the real traces where they lie beside the
//! checkout.

use super::*;
use std::io::Write as _;

fn options(block_size: Option<u32>) -> Options {
    Options { block_size, ..Options::default() }
}

fn of(text: &str, block_size: u32) -> Trace {
    read(text.as_bytes(), &options(Some(block_size))).expect("a right trace")
}

/// The blocks of each request, by number.
fn blocks(trace: &Trace) -> Vec<Vec<u32>> {
    let of = |r: &Request| trace.runs(r).iter().flat_map(Clone::clone).collect();
    trace.requests.iter().map(of).collect()
}

const MOONCAKE: &str = r#"{"timestamp": 1000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 1025, "output_length": 0, "hash_ids": [0, 1, 3]}

{"timestamp": 1200, "input_length": 100, "output_length": 5, "hash_ids": [9]}
"#;

#[test]
fn mooncakes_pieces_become_blocks_of_any_size_that_fits() {
    let trace = of(MOONCAKE, 512);
    let at: Vec<_> = trace.requests.iter().map(|r| r.at.as_millis()).collect();
    assert_eq!(at, [0, 200, 500], "by time, from the first on");
    assert_eq!(blocks(&trace), [vec![0, 1], vec![], vec![0, 1]]);
    assert_eq!(trace.requests[2].output_tokens, 1, "at least one token is computed");
    let halves = of(MOONCAKE, 256);
    assert_eq!(blocks(&halves), [vec![0, 1, 2, 3], vec![], vec![0, 1, 2, 3]]);
    assert_eq!((trace.prompt_blocks, halves.prompt_blocks), (4, 8));
    // The third piece of the first is incomplete, and has one whole block of 64.
    let small = of(MOONCAKE, 64);
    assert_eq!(blocks(&small).iter().map(Vec::len).collect::<Vec<_>>(), [17, 1, 16]);
    assert_eq!(blocks(&of(MOONCAKE, 1024)), [vec![0], vec![], vec![0]]);
    let wrong = read(MOONCAKE.as_bytes(), &options(Some(96))).expect_err("96 doesn't fit");
    assert!(wrong.to_string().contains("--block-size"), "{wrong}");
}

#[test]
fn sessions_of_a_mooncake_trace_wait_for_their_turn_before() {
    let line = |at: u32, session: &str, ids: &str| {
        format!(
            "{{\"timestamp\":{at},\"session_id\":\"{session}\",\"turn\":1,\"input_length\":130,\
             \"output_length\":7,\"hash_ids\":[{ids}]}}\n"
        )
    };
    let text = [line(0, "a", "1,2,3"), line(5, "b", "1,4,5"), line(9, "a", "1,2,6")].concat();
    let trace = of(&text, 64);
    assert_eq!(trace.sessions, 2);
    assert_eq!(blocks(&trace), [[0, 1], [0, 2], [0, 1]].map(|b| b.to_vec()));
    let links: Vec<_> = trace.requests.iter().map(|r| (r.session, r.after, r.think)).collect();
    assert_eq!(links, [(Some(0), None, None), (Some(1), None, None), (Some(0), Some(0), None)]);
}

const SESSIONS: &str = r#"{"id":"x","block_size":64,"hash_id_scope":"local","tool_tokens":64,"system_tokens":10,"requests":[{"t":0.0,"type":"n","in":130,"out":9,"hash_ids":[1,2],"api_time":2.0,"think_time":0.0},{"t":3.0,"type":"subagent","requests":[{"t":1.0,"type":"n","in":70,"out":3,"hash_ids":[5],"api_time":1.0,"think_time":0.0},{"t":3.0,"type":"n","in":140,"out":3,"hash_ids":[5,2],"api_time":1.0,"think_time":1.0}],"tool_tokens":3,"system_tokens":0},{"t":9.0,"type":"s","in":200,"out":9,"hash_ids":[1,2,3],"think_time":7.0}]}
{"id":"y","block_size":64,"hash_id_scope":"local","tool_tokens":64,"system_tokens":10,"requests":[{"t":0.0,"type":"n","in":130,"out":9,"hash_ids":[1,2]}]}
"#;

#[test]
fn agent_sessions_are_closed_loops_with_subagents_beside_them() {
    let trace = of(SESSIONS, 64);
    assert_eq!((trace.sessions, trace.requests.len()), (3, 5));
    let first = |session, at: u64| {
        let all = trace.requests.iter().enumerate().filter(|(_, r)| r.session == Some(session));
        let of_time: Vec<_> = all.filter(|(_, r)| r.at.as_secs() >= at).collect();
        of_time[0].0
    };
    let main: Vec<_> = trace.requests.iter().filter(|r| r.session == Some(0)).collect();
    let seconds = |s| Some(Duration::from_secs(s));
    assert_eq!((main[0].after, main[0].think), (None, None));
    assert_eq!((main[1].after, main[1].think), (Some(first(0, 0) as u32), seconds(7)));
    let child: Vec<_> = trace.requests.iter().filter(|r| r.session == Some(1)).collect();
    assert_eq!((child[0].after, child[0].think), (Some(first(0, 0) as u32), seconds(2)));
    assert_eq!((child[1].after, child[1].think), (Some(first(1, 0) as u32), seconds(1)));
    let other = trace.requests.iter().find(|r| r.session == Some(2)).expect("the second session");
    let of = |r: &Request| -> Vec<u32> { trace.runs(r).iter().flat_map(Clone::clone).collect() };
    assert_eq!(of(main[0])[0], of(other)[0], "equal openers are shared");
    assert_ne!(of(main[0])[1], of(other)[1], "and nothing else is");
    assert_eq!(of(main[0]), of(main[1])[..2]);
}

#[test]
fn azures_rows_share_nothing() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n\
                2023-11-16 18:15:50.9951690,396,109\n";
    let trace = of(text, 64);
    assert_eq!(blocks(&trace), [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9, 10]]);
    assert_eq!(trace.requests[1].at, Duration::from_micros(4_314_579));
    assert_eq!((trace.requests[1].output_tokens, trace.sessions), (109, 0));
}

const OWN: &str = r#"{"schema":"homing.trace.v1","block_size":16}
{"t_ms":0,"session":"9f31","prompt_tokens":40,"output_tokens":20,"blocks":"00000000000000aa00000000000000ab","later":1}
{"t_ms":5.5,"session":"9f31","prompt_tokens":60,"output_tokens":20,"after":"00000000000000ab","blocks":"00000000000000ac"}
{"t_ms":7,"prompt_tokens":3,"output_tokens":1}
"#;

#[test]
fn our_own_lines_go_on_where_an_earlier_one_ended() {
    let trace = read(OWN.as_bytes(), &Options::default()).expect("right");
    assert_eq!((trace.block_size(), trace.format, trace.sessions), (16, Format::Own, 1));
    assert_eq!(blocks(&trace), [vec![0, 1], vec![0, 1, 2], vec![]]);
    assert_eq!(trace.requests[1].after, Some(0));
    assert_eq!(trace.requests[1].at, Duration::from_micros(5_500));
    assert_eq!(blocks(&of(OWN, 32)), [vec![0], vec![0], vec![]]);
    // What is written is what is read.
    let line = own::Line {
        t_ms: 1.0,
        prompt_tokens: 17,
        output_tokens: 2,
        blocks: "00000000000000aa".to_owned(),
        ..own::Line::default()
    };
    let (schema, began_ms) = (own::SCHEMA.to_owned(), None);
    let header = own::Header { schema, block_size: 16, began_ms };
    let json = |v: serde_json::Result<String>| v.expect("no maps with odd keys");
    let text =
        [json(serde_json::to_string(&header)), json(serde_json::to_string(&line))].join("\n");
    assert_eq!(blocks(&read(text.as_bytes(), &Options::default()).expect("right")), [[0]]);
}

#[test]
fn a_line_of_ours_may_have_blocks_of_another_size() {
    let [a, b, c] = ["00000000000000aa", "00000000000000bb", "00000000000000cc"];
    let text = format!(
        r#"{{"schema":"homing.trace.v1","block_size":16,"began_ms":1}}
{{"t_ms":0,"prompt_tokens":33,"output_tokens":1,"blocks":"{a}{b}"}}
{{"t_ms":1,"prompt_tokens":130,"output_tokens":1,"block_size":128,"blocks":"{a}"}}
{{"t_ms":2,"prompt_tokens":256,"output_tokens":1,"block_size":128,"after":"{a}","blocks":"{c}"}}
{{"t_ms":3,"prompt_tokens":48,"output_tokens":1,"after":"{b}","blocks":"{c}"}}"#
    );
    let all = blocks(&read(text.as_bytes(), &Options::default()).expect("right"));
    // Equal hashes of unlike blocks are other blocks.
    assert_eq!(all[0], [0, 1]);
    assert_eq!(all[1], (2..10).collect::<Vec<_>>());
    assert_eq!(all[2], (2..18).collect::<Vec<_>>());
    assert_eq!(all[3], [0, 1, 18]);
    // Where one size can't be made of the other, that is said.
    let odd = text.replace(r#""block_size":128"#, r#""block_size":24"#);
    let error = read(odd.as_bytes(), &Options::default()).expect_err("24 and 16").to_string();
    assert!(error.starts_with("line 3") && error.contains("--block-size"), "{error}");
}

#[test]
fn compressed_traces_read_as_the_same() {
    let plain = of(MOONCAKE, 64);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(MOONCAKE.as_bytes()).expect("into memory");
    let gz = gz.finish().expect("into memory");
    let zst = zstd::encode_all(MOONCAKE.as_bytes(), 1).expect("into memory");
    for bytes in [gz, zst] {
        let it = read(bytes.as_slice(), &options(Some(64))).expect("the same");
        assert_eq!((it.requests, blocks(&plain).len()), (plain.requests.clone(), 3));
        let cut = &bytes[..bytes.len() - 9];
        assert!(read(cut, &options(Some(64))).is_err(), "a file that is cut off");
    }
}

#[test]
fn bad_lines_are_named_and_mended() {
    let good = MOONCAKE.lines().next().expect("a line");
    let header = r#"{"schema":"homing.trace.v1","block_size":16}"#;
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens";
    let session = SESSIONS.lines().next().expect("a line");
    for (text, line, says) in [
        (format!("{good}\n{{\"timestamp\": 5"), "line 2", "cut off"),
        (format!("{good}\n{{\"timestamp\": 5}}"), "line 2", "input_length"),
        (format!("{good}\n{}", good.replace("1000", "-1")), "line 2", "is no time"),
        (format!("{good}\n{}", good.replace("1100", "0")), "line 2", "tokens"),
        (good.replace("[0, 1, 2]", "[0]"), "line 1", "block_size"),
        ("hello".to_owned(), "line 1", "docs/replay.md"),
        ("{\"a\":1}".to_owned(), "line 1", "homing.trace.v1"),
        (header.replace("v1", "v9"), "line 1", "homing.trace.v9"),
        (header.replace("16", "0"), "line 1", "block_size"),
        (
            format!(
                "{header}\n{{\"t_ms\":0,\"prompt_tokens\":9,\"output_tokens\":1,\"blocks\":\"0a\"}}"
            ),
            "line 2",
            "16 digits",
        ),
        (
            format!(
                "{header}\n{{\"t_ms\":0,\"prompt_tokens\":9,\"output_tokens\":1,\"blocks\":\"+00000000000000a\"}}"
            ),
            "line 2",
            "digits",
        ),
        (
            format!(
                "{header}\n{{\"t_ms\":0,\"prompt_tokens\":9,\"output_tokens\":1,\"after\":\"00000000000000aa\"}}"
            ),
            "line 2",
            "earlier",
        ),
        (format!("{azure}\n2023-11-16,1,2"), "line 2", "a row is like"),
        (format!("{azure}\n2023-11-16 00:00:00,x,2"), "line 2", "not a number"),
        (
            format!("{session}\n{}", session.replace("\"block_size\":64", "\"block_size\":32")),
            "line 2",
            "32",
        ),
        (session.replace("local", "global"), "line 1", "local"),
    ] {
        let error = read(text.as_bytes(), &Options::default()).expect_err(&text).to_string();
        assert!(error.starts_with(line) && error.contains(says), "{text}\n{error}");
    }
    for empty in ["", "\n\n", header, azure] {
        assert!(read(empty.as_bytes(), &Options::default()).is_err(), "{empty:?}");
    }
}

/// A file of the shared data; `None`, and said so, where it isn't.
fn shared(name: &str, options: &Options) -> Option<Trace> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/traces/");
    let Ok(file) = std::fs::File::open(format!("{root}{name}")) else {
        eprintln!("skipped: {name} is not beside the checkout");
        return None;
    };
    Some(read(file, options).expect(name))
}

#[test]
fn the_real_traces_have_the_best_possible_rates_that_their_makers_state() {
    let best = |name: &str| {
        let trace = shared(name, &Options::default())?;
        Some(crate::replay::bounds::best_hit_rate(&trace))
    };
    for (name, stated) in [
        ("mooncake/conversation_trace.000-035min.jsonl.gz", 0.352),
        ("mooncake/synthetic_trace.first-half.jsonl.gz", 0.338),
        ("mooncake/arxiv_mooncake_trace.first1000.jsonl.gz", 0.391),
        ("claude-code/derived_fleet_60min.jsonl.zst", 0.958),
    ] {
        if let Some(best) = best(name) {
            assert!((best - stated).abs() < 0.002, "{name}: {best}");
        }
    }
}

#[test]
fn recorded_sessions_and_azures_rows_are_read_whole() {
    let limit = Options { limit: 300, ..Options::default() };
    if let Some(trace) = shared("claude-code/claude_code_sessions.jsonl.zst", &limit) {
        assert_eq!(trace.requests.len(), 300);
        let rate = crate::replay::bounds::best_hit_rate(&trace);
        assert!((0.9..1.0).contains(&rate), "{rate}");
    }
    if let Some(trace) = shared("azure/AzureLLMInferenceTrace_conv.csv.gz", &Options::default()) {
        assert_eq!(trace.requests.len(), 19_366);
        assert_eq!(trace.requests.last().map(|r| r.at.as_secs()), Some(3501));
    }
}
