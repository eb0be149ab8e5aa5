//! What the environment says of traces, whose are recorded, and how they arrive.

use super::*;
use homing_core::time::Time;
use std::collections::{HashMap, HashSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn of(vars: &[(&str, &str)]) -> Result<Option<TraceSettings>, TraceError> {
    let vars: HashMap<_, _> =
        vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    TraceSettings::of(|name| vars.get(name).cloned())
}

const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

#[test]
fn the_environment_says_where_they_go() {
    assert!(of(&[]).unwrap().is_none());
    assert!(of(&[(BASE, "http://c:4318"), ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
    let s = of(&[(BASE, "http://c:4318/")]).unwrap().unwrap();
    assert_eq!((s.endpoint.to_string().as_str(), s.share), ("http://c:4318/v1/traces", 1.0));
    assert_eq!(s.service, "homing");
    let s = of(&[
        (BASE, "http://c:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://d/x"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer secret, x-a=b"),
        ("OTEL_SERVICE_NAME", "edge"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
    ]);
    let s = s.unwrap().unwrap();
    assert_eq!(
        (s.endpoint.to_string().as_str(), s.service.as_str(), s.share),
        ("https://d/x", "edge", 0.25)
    );
    assert_eq!(s.headers.len(), 2);
    assert!(!format!("{s:?}").contains("secret"));
    for (name, bad) in [
        (BASE, "ftp://c"),
        (BASE, "nonsense"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
    ] {
        let vars =
            if name == BASE { vec![(name, bad)] } else { vec![(BASE, "http://c:1"), (name, bad)] };
        let error = of(&vars).unwrap_err().to_string();
        assert!(error.starts_with(name) && !error.contains("secret"), "{error}");
    }
}

fn traces(share: f64) -> (Traces, Exporter) {
    let mut settings = of(&[(BASE, "http://127.0.0.1:9")]).unwrap().unwrap();
    settings.share = share;
    Traces::new(&settings, *b"0123456789abcdef")
}

#[test]
fn clients_decide_and_a_share_of_the_rest_is_recorded() {
    let (t, _exporter) = traces(0.25);
    let begun = (0..4000).filter_map(|_| t.begin(None)).collect::<Vec<_>>();
    assert!((800..1200).contains(&begun.len()), "{}", begun.len());
    let distinct: HashSet<_> = begun.iter().map(|(c, _)| (c.trace, c.span)).collect();
    assert_eq!(distinct.len(), begun.len());
    let client = Context { trace: [1; 16], span: [2; 8], sampled: true };
    let (mine, parent) = t.begin(Some(client)).unwrap();
    assert_eq!((mine.trace, parent), ([1; 16], Some([2; 8])));
    assert_ne!(mine.span, client.span);
    assert!(t.begin(Some(Context { sampled: false, ..client })).is_none());
}

fn span() -> Span {
    Span {
        name: "homing.request",
        context: Context { trace: [0xab; 16], span: [0xcd; 8], sampled: true },
        parent: Some([1; 8]),
        kind: Kind::Server,
        began: Time::from_micros(1_000_001),
        ended: Time::from_micros(3_000_000),
        facts: vec![("a", "x".into()), ("n", 7u64.into()), ("t", true.into())],
        error: Some("it broke".to_owned()),
    }
}

#[test]
fn f_otlp_as_json() {
    let json = span().to_json();
    assert_eq!(json["traceId"], "ab".repeat(16));
    assert_eq!(json["spanId"], "cd".repeat(8));
    assert_eq!(json["parentSpanId"], "01".repeat(8));
    assert_eq!(json["startTimeUnixNano"], "1000001000");
    assert_eq!(json["kind"], 2);
    assert_eq!(json["attributes"][1], serde_json::json!({"key": "n", "value": {"intValue": "7"}}));
    assert_eq!(json["status"]["code"], 2);
}

#[tokio::test]
async fn they_arrive_in_batches_and_what_nobody_takes_is_dropped() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let settings =
        of(&[(BASE, &base), ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")]).unwrap().unwrap();
    let (t, exporter) = Traces::new(&settings, [7; 16]);
    (0..WAITING + 10).for_each(|_| t.finish(vec![span()]));
    assert_eq!(t.dropped(), 10);
    let run = tokio::spawn(exporter.run(tokio_util::sync::CancellationToken::new()));
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        stream.read_buf(&mut head).await.unwrap();
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    assert!(text.starts_with("post /v1/traces http/1.1\r\n"), "{text}");
    assert!(text.contains("x-key: k\r\n") && text.contains("content-type: application/json\r\n"));
    let length = text.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
    let end = head.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let mut body = head.split_off(end);
    while body.len() < length.parse().unwrap() {
        stream.read_buf(&mut body).await.unwrap();
    }
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let spans = json["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 512);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    run.abort();
}
