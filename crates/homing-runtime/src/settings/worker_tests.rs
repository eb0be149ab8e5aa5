//! Workers and models: their URLs, ids and lists.

use super::tests::{load, problem, problems};
use super::*;

#[test]
fn worker_urls() {
    let good = [
        ("http://10.0.0.1:8000", "10.0.0.1:8000", ""),
        ("http://Host", "host:80", ""),
        ("http://host:8000/", "host:8000", ""),
        ("http://host:8000/a/b/", "host:8000", "/a/b"),
        ("http://[::1]:8000", "[::1]:8000", ""),
    ];
    for (text, authority, base) in good {
        let url: WorkerUrl = text.parse().unwrap();
        assert_eq!((url.authority(), url.base_path()), (authority, base));
        assert_eq!(url.to_string().parse(), Ok(url));
    }
    // How it is written again, and what requests are sent to.
    let kinds = [
        ("https://Host/", "https://host:443", Scheme::Https, ("https://host:443/", "")),
        ("https://h:8443/a/", "https://h:8443/a", Scheme::Https, ("https://h:8443/", "/a")),
        ("unix:/run/W.sock", "unix:/run/W.sock", Scheme::Unix, ("http://localhost/", "")),
        ("unix:///run/w.sock", "unix:/run/w.sock", Scheme::Unix, ("http://localhost/", "")),
        ("dns://Pool:8000/v", "dns://pool:8000/v", Scheme::Dns, ("http://pool:8000/", "/v")),
    ];
    for (text, written, scheme, base) in kinds {
        let url: WorkerUrl = text.parse().unwrap();
        assert_eq!((url.to_string().as_str(), url.scheme()), (written, scheme));
        assert_eq!((url.origin().to_string().as_str(), url.base_path()), base);
        assert_eq!(written.parse(), Ok(url));
    }
    let name: WorkerUrl = "dns://pool:8000/v".parse().unwrap();
    assert_eq!(name.at("[::1]:8000".parse().unwrap()).to_string(), "http://[::1]:8000/v");
    let bad = [
        ("dns://h", UrlError::NoPort),
        ("unix:", UrlError::Socket),
        ("unix:/", UrlError::Socket),
        ("unix:run/x", UrlError::Socket),
        ("unix://run/x", UrlError::Socket),
        ("h:1", UrlError::Scheme),
        ("ftp://h", UrlError::Scheme),
        ("", UrlError::Scheme),
        ("http://", UrlError::Malformed),
        ("http://:80", UrlError::Malformed),
        ("http://h:", UrlError::Malformed),
        ("http://h:0", UrlError::Malformed),
        ("http://h:65536", UrlError::Malformed),
        ("http://h h", UrlError::Malformed),
        ("http://u:p@h", UrlError::User),
        ("http://h/?q", UrlError::Query),
        ("http://h/#f", UrlError::Query),
    ];
    for (text, error) in bad {
        assert_eq!(text.parse::<WorkerUrl>(), Err(error), "{text}");
    }
    let text = problem("[[workers]]\nurl = \"http://u:secret@h\"");
    assert!(!text.contains("secret"), "{text}");
    let found = problems("[[workers]]\nurl = \"h2://h\"");
    assert_eq!(found[0].fault, Fault::Invalid);
}

#[test]
fn workers_and_models_are_checked_one_by_one() {
    let settings = load(
        "[[models]]\nname = \"m\"\ntokenizer = \"/t\"\n\
         chat_template_kwargs = { thinking = false, n = 0x10, f = 1.5, \"odd key\" = [1, \"\\u007f\"] }\n\
         [[workers]]\nid = \"a\"\nurl = \"http://h:1\"\ndp_size = 1\n\
         kv_events = \"tcp://h:5557\"\nkv_replay = \"tcp://h:5558\"\nlabels = { zone = \"a\", gpu = \"h200\" }\n",
    );
    let model = &settings.models[0];
    assert_eq!(model.tokenizer, Some(Tokenizer::Folder(PathBuf::from("/t"))));
    let engine = load("[[models]]\nname = \"m\"\ntokenizer = \"engine\"\n");
    assert_eq!(engine.models[0].tokenizer, Some(Tokenizer::Engine));
    assert!(engine.effective_toml().contains("tokenizer = \"engine\""));
    let folder = load("[[models]]\nname = \"m\"\ntokenizer = \"./engine\"\n");
    assert_eq!(folder.models[0].tokenizer, Some(Tokenizer::Folder("./engine".into())));
    assert_eq!(load("[[models]]\nname = \"m\"\n").models[0].tokenizer, None);
    let kwargs = serde_json::to_value(&model.chat_template_kwargs).unwrap();
    let expected =
        serde_json::json!({"thinking": false, "n": 16, "f": 1.5, "odd key": [1, "\u{7f}"]});
    assert_eq!(kwargs, expected);
    let worker = &settings.workers[0];
    assert_eq!(worker.kv_events.as_deref(), Some("tcp://h:5557"));
    assert_eq!(worker.kv_replay.as_deref(), Some("tcp://h:5558"));
    assert_eq!(worker.labels["gpu"], "h200");

    let cases = [
        ("[[workers]]\nid = \"a\"", "`workers[0].url` is missing"),
        ("[[models]]\ntokenizer = \"/t\"", "`models[0].name` is missing"),
        (
            "[[workers]]\nurl = \"http://h:1\"\n[[workers]]\nurl = \"http://h:1/b\"",
            "homing.toml:3: `workers[1].id` is \"h:1\", and so is that of `workers[0]`; give each",
        ),
        ("[[models]]\nname = \"m\"\n[[models]]\nname = \"m\"", "so is that of `models[0]`"),
        ("[[workers]]\nurl = \"http://h:1\"\nid = \"a b\"", "is not an id"),
        ("[[workers]]\nurl = \"http://h:1\"\nid = \"a,b\"", "is not an id"),
        (
            "[[workers]]\nurl = \"http://h:1\"\ndp_size = 4097",
            "`workers[0].dp_size` = 4097 is not a whole number from 0 to 4096",
        ),
        ("[[workers]]\nurl = \"http://h:1\"\nkv_events = \"tcp://*:0\"", "is not an endpoint"),
        ("[[workers]]\nurl = \"http://h:1\"\nkv_events = \"tcp://:::5557\"", "is not an endpoint"),
        ("[[workers]]\nurl = \"http://h:1\"\nkv_events = \"h:5557\"", "is not an endpoint"),
        (
            "[[workers]]\nurl = \"http://h:1\"\nkv_replay = \"tcp://*:5558\"",
            "where the engine replays",
        ),
        ("[[workers]]\nurl = \"http://h:1\"\nlabels = { a = 1 }", "has a bad label \"a\""),
        ("[[workers]]\nurl = \"http://h:1\"\nlabels = { a = \"b,c\" }", "has a bad label"),
        ("[[models]]\nname = \"m\"\nchat_template_kwargs = { d = 2020-01-01 }", "holds a number"),
        ("[[models]]\nname = \"m\"\nchat_template_kwargs = { d = nan }", "holds a number"),
        ("[workers]\nurl = \"http://h:1\"", "`workers` is a section"),
        ("workers = [1]", "`workers` is a section"),
        ("gateway = 1", "write [gateway] and its keys below"),
        ("[selection]\nlisten = 1", "section `selection` is not built yet (planned: after step 6)"),
        ("[affinity]\nheaders = [\"a b\"]", "can't be a header's name"),
        ("[affinity]\nheaders = [\"a\", 1]", "has an item that is not text"),
        ("[affinity]\nbody_fields = [\"a..b\"]", "has an empty step"),
        ("[affinity]\nttl = \"400d\"", "is not within 1s to 1year"),
        ("[affinity]\nttl = \"0s\"", "or \"off\""),
        ("[health]\npath = \"/a\\u0007\"", "control character"),
    ];
    for (file, expected) in cases {
        let text = problem(file);
        assert!(text.contains(expected), "{text}");
    }
    load("tenants = []\nworkers = []\n[overload]\n");
}

#[test]
fn ranks_are_counted_and_where_none_are_given_they_are_learned() {
    let ranks = |line: &str| {
        load(&format!("[[workers]]\nurl = \"http://h:1\"\n{line}\n")).workers[0].dp_size
    };
    for (line, expected) in [
        ("", None),
        ("dp_size = 0", None),
        ("dp_size = 1", Some(1)),
        ("dp_size = 2", Some(2)),
        ("dp_size = 4096", Some(4096)),
    ] {
        assert_eq!(ranks(line), expected, "{line}");
    }
}

#[test]
fn two_workers_on_one_port_that_engines_connect_to_are_refused() {
    let two = |a: &str, b: &str| {
        format!(
            "[[workers]]\nurl = \"http://a:1\"\nkv_events = {a}\n\
             [[workers]]\nurl = \"http://b:1\"\nkv_events = {b}\n"
        )
    };
    for (a, b) in [
        ("\"tcp://*:5557\"", "\"tcp://*:5557\""),
        ("\"tcp://0.0.0.0:5557\"", "\"tcp://[::]:5557\""),
        // Rank N listens N ports above the first.
        ("\"tcp://*:5557\"\ndp_size = 4", "\"tcp://*:5560\""),
        ("\"tcp://*:5557\"", "\"tcp://*:5555\"\ndp_size = 3"),
    ] {
        let text = problem(&two(a, b));
        assert!(text.contains("listens on a port of `workers[0]`; give each worker"), "{text}");
    }
    for (a, b) in [
        ("\"tcp://*:5557\"\ndp_size = 4", "\"tcp://*:5561\""),
        ("\"tcp://h:5557\"", "\"tcp://i:5557\""),
        ("\"tcp://*:5557\"", "\"tcp://h:5557\""),
    ] {
        let settings = load(&two(a, b));
        assert_eq!(settings.workers.len(), 2);
    }
    // Where we connect, one publisher would be taken for two caches.
    for (a, b) in [
        ("\"tcp://h:5557\"", "\"tcp://h:5557\""),
        ("\"tcp://h:5557\"", "\"tcp://H:5557\""),
        ("\"tcp://h:5557\"\ndp_size = 4", "\"tcp://h:5560\""),
        ("\"tcp://[::1]:5557\"", "\"tcp://[::1]:5555\"\ndp_size = 3"),
    ] {
        let text = problem(&two(a, b));
        assert!(text.contains("is where `workers[0]` has its events; write where"), "{text}");
    }
}

#[test]
fn one_worker_under_two_ids_is_refused() {
    let text = problem(
        "[[workers]]\nid = \"a\"\nurl = \"http://h:1\"\n[[workers]]\nid = \"b\"\nurl = \"http://h:1/\"",
    )
    .to_string();
    assert!(text.contains("http://h:1") && text.contains("name each worker once"), "{text}");
}
