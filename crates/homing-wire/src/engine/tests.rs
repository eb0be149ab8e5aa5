//! Answers of a real vLLM 0.32.0, and those that no capture has.

use super::metrics::{CacheConfig, Exposition};
use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

fn capture(name: &str) -> String {
    let dir = "../../testdata/kv-events/engine-vllm-0.32.0";
    std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir).join(name)).unwrap()
}

/// What a real engine answered to `path`.
fn answer(path: &str) -> String {
    let calls: serde_json::Value = serde_json::from_str(&capture("llama-int.http.json")).unwrap();
    let mut calls = calls.as_array().unwrap().iter();
    let call = calls.find(|call| call["path"] == path).unwrap();
    call["response_body"].as_str().unwrap().to_owned()
}

#[test]
fn models_of_a_real_engine() {
    let expected = ServedModel {
        id: "tiny".into(),
        root: Some("/home/dev/tinymodel".into()),
        parent: None,
        max_model_len: Some(2048),
        owner: Some("vllm".into()),
    };
    assert_eq!(parse_models(answer("/v1/models").as_bytes()), Ok(vec![expected]));
}

#[test]
fn models_with_adapters_and_without_names() {
    let body = br#"{"data":[{"id":"base"},{"id":""},{"root":"x"},{"id":"lora","parent":"base"}]}"#;
    let models = parse_models(body).unwrap();
    let names: Vec<_> = models.iter().map(|m| (m.id.as_str(), m.parent.as_deref())).collect();
    assert_eq!(names, [("base", None), ("lora", Some("base"))]);
    for bad in ["", "[]", "{}", r#"{"data":{}}"#, r#"{"data":[{"id":7}]}"#] {
        let error = parse_models(bad.as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("the answer of /v1/models is not"), "{error}");
    }
    let many = format!(r#"{{"data":[{}{{}}]}}"#, "{},".repeat(MAX_MODELS));
    assert!(matches!(parse_models(many.as_bytes()), Err(EngineError::TooMany { .. })));
}

#[test]
fn event_sources_of_a_real_engine() {
    let expected = KvSource {
        rank: 0,
        endpoint: "ipc:///home/dev/kv.ipc".into(),
        listens: false,
        replay_endpoint: Some("tcp://127.0.0.1:15558".into()),
        topic: "kv-events".into(),
    };
    let body = answer("/kv_event_sources");
    assert_eq!(parse_kv_sources(body.as_bytes(), "10.0.0.1"), Ok(vec![expected]));
}

#[test]
fn only_ranks_that_publish_over_zmq_are_sources() {
    let body = br#"{
        "10": {"endpoint": "tcp://*:5567", "replay_endpoint": "tcp://*:5577"},
        "2": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5559", "x": []},
        "3": {"enable_kv_cache_events": false, "publisher": "zmq", "endpoint": "tcp://*:5560"},
        "4": {"publisher": "null", "endpoint": "tcp://*:5561"},
        "5": {"publisher": "zmq", "endpoint": null}}"#;
    let sources = parse_kv_sources(body, "gpu-a").unwrap();
    let seen: Vec<_> = sources.iter().map(|s| (s.rank, s.endpoint.as_str())).collect();
    assert_eq!(seen, [(2, "tcp://gpu-a:5559"), (10, "tcp://gpu-a:5567")]);
    assert_eq!(sources[1].replay_endpoint.as_deref(), Some("tcp://gpu-a:5577"));
    assert_eq!(parse_kv_sources(b"{}", "h"), Ok(vec![]));
    for bad in [&b"[]"[..], br#"{"a":{}}"#, br#"{"-1":{}}"#, br#"{"0":[1]}"#] {
        assert!(matches!(parse_kv_sources(bad, "h"), Err(EngineError::Malformed { .. })));
    }
}

#[test]
fn every_address_is_the_workers_own() {
    for (endpoint, host, expected) in [
        ("tcp://*:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "gpu.local", "tcp://gpu.local:5557"),
        ("tcp://[::]:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://:::5557", "[fd00::1]", "tcp://[fd00::1]:5557"),
        ("tcp://*:5557", "0.0.0.0", "tcp://127.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "[::]", "tcp://[::1]:5557"),
        ("tcp://10.0.0.9:5557", "h", "tcp://10.0.0.9:5557"),
        ("tcp://[fd00::2]:5557", "h", "tcp://[fd00::2]:5557"),
        ("ipc:///tmp/*", "h", "ipc:///tmp/*"),
        ("tcp://*", "h", "tcp://*"),
        ("", "h", ""),
    ] {
        assert_eq!(reachable_endpoint(endpoint, host), expected);
    }
}

#[test]
fn metrics_of_a_real_engine() {
    let text = capture("llama-int.metrics.prom");
    let metrics = Exposition::parse(&text);
    assert_eq!(metrics.process_start_time(), Some(1.795_971_976_25e9));
    assert_eq!(metrics.value("vllm:num_requests_running"), Some(0.0));
    let config = CacheConfig { block_size: 32, num_gpu_blocks: Some(80) };
    assert_eq!(metrics.cache_config(), Some(config));
    assert_eq!(metrics.sum("python_gc_collections_total"), Some(1644.0 + 149.0 + 10.0));
    assert_eq!(metrics.sum("no_such_metric"), None);
    let prompts = metrics.histogram("vllm:request_prompt_tokens").unwrap();
    assert_eq!(prompts.count(), 17.0);
    assert_eq!(Some(prompts.sum), metrics.value("vllm:request_prompt_tokens_sum"));
    // 17 * 0.5 = 8.5: in the bucket from 200 (8 below) to 500 (11 below).
    assert_eq!(prompts.quantile(0.5), Some(200.0 + 300.0 * (0.5 / 3.0)));
    assert_eq!(prompts.quantile(1.0), Some(1000.0));
    assert!(metrics.histogram("vllm:request_prompt").is_none());
}

#[test]
fn odd_lines_are_passed_over() {
    let text = "# HELP a x\r\n\na{l=\"}\\\"{\\\\\",m = \"\\n\\x\",} 1 1700000000\na{l=\"open 2\na\n\
        a{} +Inf\n{x=\"1\"} 3\na 4 # {trace=\"t\"} 9\na five\n  a 6  \n";
    let metrics = Exposition::parse(text);
    let values: Vec<_> = metrics.samples("a").map(|sample| sample.value).collect();
    assert_eq!(values, [1.0, f64::INFINITY, 4.0, 6.0]);
    let first = metrics.samples("a").next().unwrap();
    assert_eq!(first.label("l").as_deref(), Some("}\"{\\"));
    assert_eq!(first.label("m").as_deref(), Some("\n\\x"));
    assert_eq!(first.label("n"), None);
    let unknown =
        Exposition::parse("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1");
    let config = CacheConfig { block_size: 16, num_gpu_blocks: None };
    assert_eq!(unknown.cache_config(), Some(config));
}

fn histogram(buckets: &[(f64, f64)]) -> Histogram {
    summing(0.0, buckets)
}

fn summing(sum: f64, buckets: &[(f64, f64)]) -> Histogram {
    let mut histogram = Histogram::default();
    histogram.sum = sum;
    buckets.iter().for_each(|(le, count)| histogram.add_bucket(*le, *count));
    histogram
}

#[test]
fn quantiles_are_those_of_prometheus() {
    let inf = f64::INFINITY;
    let h = histogram(&[(inf, 10.0), (0.1, 2.0), (0.5, 6.0), (1.0, 9.0)]);
    assert_eq!(h.quantile(0.1), Some(0.1 * (1.0 / 2.0)), "the first bucket begins at 0");
    assert_eq!(h.quantile(0.0), Some(0.0));
    assert_eq!(h.quantile(0.2), Some(0.1));
    assert_eq!(h.quantile(0.4), Some(0.1 + 0.4 * (2.0 / 4.0)));
    assert_eq!(h.quantile(0.95), Some(1.0), "in the endless bucket: its lower bound");
    assert_eq!(h.quantile(1.1), None);
    assert_eq!(h.quantile(f64::NAN), None);
    let negative = histogram(&[(-1.0, 4.0), (1.0, 4.0), (inf, 4.0)]);
    assert_eq!(negative.quantile(0.5), Some(-1.0));
    assert_eq!(histogram(&[]).quantile(0.5), None);
    assert_eq!(histogram(&[(1.0, 3.0)]).quantile(0.5), None, "no endless bucket");
    assert_eq!(histogram(&[(inf, 3.0)]).quantile(0.5), None, "nothing else");
    assert_eq!(histogram(&[(1.0, 0.0), (inf, 0.0)]).quantile(0.5), None, "no observations");
    let falling = histogram(&[(1.0, 5.0), (2.0, 4.0), (4.0, 10.0), (inf, 10.0)]);
    assert_eq!(falling.quantile(0.75), Some(3.0));
}

#[test]
fn histograms_add_up_and_go_on() {
    let text = "t_bucket{le=\"1.0\",engine=\"0\"} 1\nt_bucket{le=\"+Inf\",engine=\"0\"} 2\n\
        t_bucket{le=\"1.0\",engine=\"1\"} 3\nt_bucket{engine=\"1\",le=\"+Inf\"} 4\n\
        t_sum{engine=\"0\"} 1.5\nt_sum{engine=\"1\"} 2.5\nt_count 99\n";
    let later = Exposition::parse(text).histogram("t").unwrap();
    assert_eq!(later, summing(4.0, &[(1.0, 4.0), (f64::INFINITY, 6.0)]));
    assert_eq!(later.mean(), Some(4.0 / 6.0));
    let earlier = summing(1.0, &[(1.0, 1.0), (f64::INFINITY, 1.0)]);
    let between = summing(3.0, &[(1.0, 3.0), (f64::INFINITY, 5.0)]);
    assert_eq!(later.since(&earlier), between);
    assert_eq!(earlier.since(&later), earlier, "it went down: a new process");
    let mut sum = earlier.clone();
    sum.merge(&between);
    assert_eq!(sum, later);
    let mut fresh = Histogram::default();
    fresh.merge(&earlier);
    assert_eq!(fresh, earlier, "an empty one takes the bounds over");
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a{}=\",\\\\n 1#\\n\\PC]{0,80}", host in "\\PC{0,12}") {
        let metrics = Exposition::parse(&text);
        for sample in metrics.samples("a") {
            drop(sample.label("a"));
        }
        drop(metrics.histogram("a"));
        drop(parse_models(text.as_bytes()));
        drop(parse_kv_sources(text.as_bytes(), &host));
        drop(reachable_endpoint(&format!("tcp://{text}"), &host));
    }

    /// Quantiles rise with q and stay within the bounds.
    #[test]
    fn quantiles_are_ordered(steps in proptest::collection::vec(0u32..50, 2..12)) {
        let mut total = 0.0;
        let mut h = Histogram::default();
        for (index, step) in steps.iter().enumerate() {
            total += f64::from(*step);
            let le = if index + 1 == steps.len() { f64::INFINITY } else { index as f64 + 1.0 };
            h.add_bucket(le, total);
        }
        let mut last = 0.0;
        for q in 0..=20 {
            let Some(value) = h.quantile(f64::from(q) / 20.0) else {
                prop_assert_eq!(total, 0.0);
                break;
            };
            prop_assert!(value >= last && value < steps.len() as f64, "{value} after {last}");
            last = value;
        }
    }
}

#[test]
fn ranks_are_counted_only_where_they_are_all_of_them() {
    let listed = |page: &str| listed_ranks(page.as_bytes());
    assert_eq!(listed(r#"{"0": {"endpoint": "tcp://*:1"}}"#), Some(1));
    assert_eq!(listed(r#"{"2": {}, "0": {}, "1": {"enable_kv_cache_events": false}}"#), Some(3));
    for none in ["{}", "[]", "", r#"{"1": {}}"#, r#"{"0": {}, "2": {}}"#, r#"{"a": {}}"#] {
        assert_eq!(listed(none), None, "{none}");
    }
    let many = |n: usize| (0..n).map(|rank| format!(r#""{rank}": {{}}"#)).collect::<Vec<_>>();
    let page = |n: usize| format!("{{{}}}", many(n).join(","));
    assert_eq!(listed(&page(MAX_RANKS)), Some(MAX_RANKS as u32));
    assert_eq!(listed(&page(MAX_RANKS + 1)), None);
}

#[test]
fn tokens_are_as_many_as_their_count_says() {
    let tokens = |answer: &str| parse_tokens(answer.as_bytes());
    let whole =
        r#"{"count": 2, "max_model_len": 4096, "tokens": [1, 4294967295], "token_strs": null}"#;
    assert_eq!(tokens(whole), Some(vec![1, u32::MAX]));
    assert_eq!(tokens(r#"{"tokens": []}"#), Some(vec![]));
    for none in [r#"{"tokens": [1], "count": 2}"#, r#"{"tokens": [4294967296]}"#, "{}", "[1]"] {
        assert_eq!(tokens(none), None, "{none}");
    }
}
