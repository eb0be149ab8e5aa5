//! Pages of SGLang, made per `wire-formats.md` 1, and those of others.

use super::*;

fn page(text: &str) -> ServerInfo {
    parse_server_info(text.as_bytes(), "gpu-a").unwrap()
}

/// Rank, events, replay and whether it surely listens.
fn seen(info: &ServerInfo) -> Vec<(u32, &str, Option<&str>, bool)> {
    let sources = info.sources.iter();
    sources
        .map(|s| (s.rank, s.endpoint.as_str(), s.replay_endpoint.as_deref(), s.listens))
        .collect()
}

#[test]
fn a_server_describes_the_events_of_each_rank() {
    let info = page(
        r#"{"model_path": "/m", "page_size": 1, "dp_size": 2, "internal_states": [{}], "kv_events":
            {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv-events",
             "block_size": 16, "dp_size": 2, "replay_endpoint_port_base": 6557, "load_topic": "load"}}"#,
    );
    assert_eq!(
        seen(&info),
        [
            (0, "tcp://gpu-a:5557", Some("tcp://gpu-a:6557"), true),
            (1, "tcp://gpu-a:5558", Some("tcp://gpu-a:6558"), true)
        ]
    );
    assert_eq!((info.dp_size, info.block_size, info.is_sglang), (Some(2), Some(16), true));
    assert_eq!(info.sources[1].topic, "kv-events");
}

#[test]
fn every_address_of_a_server_is_the_workers_host() {
    let at = |named: &str, host: &str| {
        let text = format!(
            r#"{{"kv_events": {{"endpoint_host": "{named}", "endpoint_port_base": 5557}}}}"#
        );
        let info = parse_server_info(text.as_bytes(), host).unwrap();
        (info.sources[0].endpoint.clone(), info.sources[0].listens)
    };
    for every in ["*", "0.0.0.0", "::", "[::]", ""] {
        assert_eq!(at(every, "10.0.0.1"), ("tcp://10.0.0.1:5557".to_owned(), true), "{every:?}");
    }
    assert_eq!(at("::", "[fd00::1]"), ("tcp://[fd00::1]:5557".to_owned(), true));
    assert_eq!(at("10.0.0.9", "h"), ("tcp://10.0.0.9:5557".to_owned(), false));
    assert_eq!(at("fd00::2", "h"), ("tcp://[fd00::2]:5557".to_owned(), false));
}

#[test]
fn an_older_server_repeats_its_flag() {
    let info = page(
        r#"{"page_size": 64, "dp_size": 2, "disable_radix_cache": false, "kv_events_config":
            "{\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:6000\", \"replay_endpoint\": \"tcp://*:7000\"}"}"#,
    );
    assert_eq!(
        seen(&info),
        [
            (0, "tcp://gpu-a:6000", Some("tcp://gpu-a:7000"), true),
            (1, "tcp://gpu-a:6001", Some("tcp://gpu-a:7001"), true)
        ]
    );
    assert_eq!((info.block_size, info.prefix_caching), (Some(64), Some(true)));
    let info = page(r#"{"kv_events_config": "{\"publisher\": \"zmq\"}"}"#);
    assert_eq!(seen(&info), [(0, "tcp://gpu-a:5557", None, true)]);
}

#[test]
fn a_server_may_publish_nothing() {
    for nothing in [
        r#"{"page_size": 16, "kv_events": null, "kv_events_config": null}"#,
        r#"{"page_size": 16, "kv_events": {"publisher": "null", "endpoint_port_base": 5557}}"#,
        r#"{"page_size": 16, "kv_events": {"publisher": "zmq", "endpoint_port_base": 0}}"#,
        r#"{"page_size": 16, "kv_events_config": "{}"}"#,
    ] {
        let info = page(nothing);
        assert!(info.sources.is_empty() && info.is_sglang, "{nothing}");
    }
    // vLLM's and TensorRT-LLM's pages of that name.
    for other in [r#"{"vllm_config": {}}"#, r#"{"disaggregated_params": null}"#, "{}"] {
        assert_eq!(page(other), ServerInfo::default(), "{other}");
    }
}

#[test]
fn ranks_are_bounded_and_those_without_a_port_left_out() {
    let with = |base: u32, ranks: u64| {
        let text = format!(
            r#"{{"dp_size": {ranks}, "kv_events": {{"endpoint_host": "*", "endpoint_port_base": {base}}}}}"#
        );
        parse_server_info(text.as_bytes(), "h")
    };
    assert_eq!(with(65_534, 8).unwrap().sources.len(), 2);
    assert_eq!(with(5557, 0).unwrap().sources.len(), 1);
    assert_eq!(with(5557, MAX_RANKS as u64).unwrap().sources.len(), MAX_RANKS);
    assert!(matches!(with(5557, MAX_RANKS as u64 + 1), Err(EngineError::TooMany { .. })));
    assert!(matches!(with(65_536, 1), Err(EngineError::Malformed { .. })));
    for bad in
        ["", "[]", r#"{"dp_size": -1}"#, r#"{"kv_events": 7}"#, r#"{"kv_events_config": "{"}"#]
    {
        assert!(parse_server_info(bad.as_bytes(), "h").is_err(), "{bad}");
    }
}
