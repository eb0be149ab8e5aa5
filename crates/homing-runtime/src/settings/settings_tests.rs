//! Settings from the outside: sources, precedence, refusals, the reference page.

use super::*;
use std::time::Duration;

pub(super) fn sources(file: &str) -> Sources {
    Sources { file: Some((PathBuf::from("homing.toml"), file.to_owned())), ..Sources::default() }
}

pub(super) fn load(file: &str) -> Settings {
    Settings::load(sources(file)).unwrap()
}

pub(super) fn problems(file: &str) -> Vec<Problem> {
    Settings::load(sources(file)).unwrap_err().problems
}

/// The one problem of a file, as a user reads it.
pub(super) fn problem(file: &str) -> String {
    let problems = problems(file);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].to_string()
}

fn env(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

pub(super) fn flag(key: &str, value: &str, flag: &str) -> Override {
    Override { key: key.to_owned(), value: value.to_owned(), flag: flag.to_owned() }
}

fn origin(settings: &Settings, key: &str) -> Origin {
    let line = settings.effective().iter().find(|line| line.key == key);
    line.unwrap_or_else(|| panic!("no {key}")).origin.clone()
}

/// A value of TOML that a key's kind has, other than `avoid`.
fn another_value(key: &Key, avoid: &str) -> String {
    match key.kind {
        Kind::Bool => if avoid == "true" { "false" } else { "true" }.to_owned(),
        Kind::Int { min, max } => {
            let avoid = avoid.parse().unwrap_or(u64::MAX);
            if avoid == max { min } else { max }.to_string()
        }
        Kind::Float { min, max } => {
            let avoid: f64 = avoid.parse().unwrap();
            format!("{:?}", if avoid == max { min } else { max })
        }
        Kind::Duration { max, .. } => format!("\"{}\"", humantime::format_duration(max)),
        Kind::Size { max, .. } => format!("\"{max}B\""),
        Kind::Listen { .. } => "\"127.0.0.1:1\"".to_owned(),
        Kind::Text { .. } => "\"something\"".to_owned(),
        Kind::Port => "8000".to_owned(),
        Kind::List { .. } => "[\"something\"]".to_owned(),
        Kind::Choice { built, .. } => {
            format!("\"{}\"", built.iter().find(|word| **word != avoid).unwrap())
        }
        Kind::Labels | Kind::Json => "{ some = \"thing\" }".to_owned(),
    }
}

/// A file with one key, and what its section needs besides.
fn file_with(path: &str, toml: &str) -> String {
    let (section, name) = path.rsplit_once('.').unwrap();
    match section {
        "workers" => format!("[[workers]]\nurl = \"http://h:1\"\n{name} = {toml}\n"),
        "models" => format!("[[models]]\nname = \"m\"\n{name} = {toml}\n"),
        "tenants" => format!("[[tenants]]\nname = \"t\"\n{name} = {toml}\n"),
        "discovery" if toml == "\"file\"" => {
            format!("[discovery]\npath = \"/w.toml\"\n{name} = {toml}\n")
        }
        "replication" if ["\"nats\"", "\"etcd\""].contains(&toml) => {
            let key = "[affinity]\nkey_file = \"key\"\n";
            format!("{key}[replication]\nurls = [\"h:1\"]\n{name} = {toml}\n")
        }
        "discovery" if toml == "\"kubernetes\"" => {
            format!("[discovery]\nservice = \"s\"\n{name} = {toml}\n")
        }
        "discovery" if toml == "\"etcd\"" => {
            format!("[discovery]\nurls = [\"http://h:1\"]\n{name} = {toml}\n")
        }
        _ => format!("[{section}]\n{name} = {toml}\n"),
    }
}

#[test]
fn nothing_given_is_the_defaults() {
    let settings = Settings::load(Sources::default()).unwrap();
    let gateway = &settings.gateway;
    assert_eq!(gateway.listen, Listen::Tcp("127.0.0.1:8080".parse().unwrap()));
    assert_eq!(gateway.max_body, 32 << 20);
    assert_eq!(gateway.request_timeout, Duration::from_secs(1800));
    assert_eq!(settings.admin.listen.port(), 9464);
    assert_eq!(settings.upstream.pool_idle, Duration::from_secs(3));
    assert_eq!(settings.retry.attempts, 1);
    assert_eq!(settings.queue.busy_active_requests, None);
    assert_eq!(settings.affinity.ttl, Some(Duration::from_secs(1800)));
    assert_eq!(settings.affinity.mode, AffinityMode::Hard);
    assert_eq!(settings.affinity.body_mode, AffinityMode::Soft);
    assert_eq!(settings.affinity.headers.len(), 16);
    assert_eq!(settings.affinity.headers[0], "x-homing-session-id");
    assert_eq!(settings.affinity.body_fields, ["prompt_cache_key", "metadata.user_id"]);
    assert_eq!(settings.routing.policy, Policy::Latency);
    assert_eq!(settings.index.source, IndexSource::Auto);
    assert_eq!(settings.index.verify, Verify::Usage);
    assert!(settings.log.access);
    assert!(settings.workers.is_empty() && settings.models.is_empty());
    assert!(settings.effective().iter().all(|line| line.origin == Origin::Default));
}

#[test]
fn the_detector_and_the_queue_are_off_unless_they_are_set() {
    let off = load("");
    assert_eq!(off.queue.busy_prefill_tokens, None);
    let overload = &off.overload;
    assert_eq!((overload.active_requests, overload.kv_usage, overload.factor), (None, 0.0, 0.0));
    assert!((overload.recover - 0.8).abs() < f64::EPSILON);
    let on = load(
        "[queue]\nbusy_prefill_tokens = 200_000\n[overload]\nactive_requests = 5\nkv_usage = 0.9\n\
         factor = 2\nrecover = 0.5\n",
    );
    assert_eq!(on.queue.busy_prefill_tokens, Some(200_000));
    let overload = &on.overload;
    assert_eq!((overload.active_requests, overload.kv_usage), (Some(5), 0.9));
    assert_eq!((overload.factor, overload.recover), (2.0, 0.5));
    let core = crate::shell::core_settings(&on);
    assert_eq!((core.overload.active_requests, core.overload.factor), (5, 2.0));
    assert_eq!(
        (core.queue.busy_prefill_tokens, core.report_life),
        (200_000, on.health.interval * 3)
    );
}

#[test]
fn what_the_acceptance_harness_writes_loads() {
    let settings = load(
        r#"
[gateway]
listen = "127.0.0.1:40001"
shutdown_delay = "0s"

[admin]
listen = "127.0.0.1:40002"
[routing]
policy = "round_robin"
[index]
source = "off"
[affinity]
ttl = "off"
mode = "soft"
max_sessions = 2
[[workers]]
id = "w0"
url = "http://127.0.0.1:40003"
[[workers]]
id = "w1"
url = "http://127.0.0.1:40004"
"#,
    );
    assert_eq!(settings.gateway.shutdown_delay, Duration::ZERO);
    assert_eq!(settings.affinity.ttl, None);
    assert_eq!(settings.affinity.max_sessions, 2);
    assert_eq!(settings.routing.policy, Policy::RoundRobin);
    assert_eq!(settings.index.source, IndexSource::Off);
    let ids: Vec<&str> = settings.workers.iter().map(|worker| worker.id.as_str()).collect();
    assert_eq!(ids, ["w0", "w1"]);
    assert_eq!(settings.workers[1].url.authority(), "127.0.0.1:40004");
}

#[test]
fn every_documented_key_is_known() {
    // And each documented default says what this build does.
    let settings = load(include_str!("documented.toml"));
    assert_eq!(settings.tenants[0].name, "batch");
}

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    let cases = [
        ("[affinity]\ntl = \"30m\"", "affinity.tl", "affinity.ttl"),
        ("[afinity]\nttl = \"30m\"", "afinity", "affinity"),
        ("[gateway]\npolicy = \"kv\"", "gateway.policy", "routing.policy"),
        ("listen = \"127.0.0.1:1\"", "listen", "gateway.listen"),
        ("[gateway.tls]\ncrt = \"\"", "gateway.tls.crt", "gateway.tls.cert"),
        ("[[workers]]\nurl = \"http://h:1\"\nlabel = {}", "workers[0].label", "workers.labels"),
        ("[Affinity]\nttl = \"1m\"", "Affinity", "affinity"),
        ("[affinity.ttl]\nx = 1\n[affinity.mod]\n", "affinity.mod", "affinity.mode"),
    ];
    for (file, unknown, nearest) in cases {
        let found = problems(file);
        let problem = found.iter().find(|p| p.fault == Fault::UnknownKey).unwrap();
        assert_eq!(problem.key, unknown);
        let text = problem.to_string();
        let expected = format!("unknown key `{unknown}`; did you mean `{nearest}`?");
        assert!(text.ends_with(&expected), "{text}");
    }
}

#[test]
fn one_underscore_where_two_stand_for_the_dot_is_told() {
    for (name, nearest) in [
        ("HOMING_AFFINITY_TTL", "HOMING_AFFINITY__TTL"),
        ("HOMING_GATEWAY_LISTEN", "HOMING_GATEWAY__LISTEN"),
        ("HOMING_GATEWAY_TLS_CERT", "HOMING_GATEWAY__TLS__CERT"),
    ] {
        let sources = Sources { file: None, env: vec![env(name, "1m")], overrides: Vec::new() };
        let text = Settings::load(sources).unwrap_err().to_string();
        assert!(text.contains(&format!("did you mean `{nearest}`?")), "{text}");
    }
}

#[test]
fn unknown_variables_and_flags_name_the_nearest_known_one() {
    let errors = Settings::load(Sources {
        file: None,
        env: vec![
            env("HOMING_AFFINITY__TLL", "1m"),
            env("HOMING_affinity__ttl", "1m"),
            env("HOMING_WORKERS__URL", "http://h"),
            // Not ours: no double underscore, no prefix.
            env("HOMING_BIN", "x"),
            env("HOMING_PORT_9464_TCP", "x"),
            env("OTHER_AFFINITY__TLL", "x"),
        ],
        overrides: vec![flag("routing.polcy", "kv", "--set")],
    })
    .unwrap_err();
    let text = errors.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "the configuration has 4 problems",
            "  - environment HOMING_AFFINITY__TLL: unknown key `HOMING_AFFINITY__TLL`; did you \
             mean `HOMING_AFFINITY__TTL`?",
            "  - environment HOMING_WORKERS__URL: `workers.url` belongs to one entry of a list; \
             set it in the file; workers alone can be listed by URL (--worker, HOMING_WORKERS)",
            "  - environment HOMING_affinity__ttl: unknown key `HOMING_affinity__ttl`; did you \
             mean `HOMING_AFFINITY__TTL`?",
            "  - flag --set: unknown key `routing.polcy`; did you mean `routing.policy`?",
        ]
    );
}

#[test]
fn every_planned_key_is_refused_off_what_the_build_does() {
    let mut seen = 0;
    for key in KEYS {
        let (toml, step) = match key.status {
            Status::Built => continue,
            Status::Only { value, step } => (another_value(key, value), step),
            Status::Refused { step, .. } => (another_value(key, "0"), step),
        };
        let found = problems(&file_with(key.path, &toml));
        assert_eq!(found.len(), 1, "{}: {found:?}", key.path);
        assert_eq!(found[0].fault, Fault::NotBuilt, "{}", found[0]);
        let text = found[0].to_string();
        let leaf = key.path.rsplit('.').next().unwrap();
        assert!(text.contains(&format!("{leaf}`")), "{text}");
        assert!(text.contains(&format!("is not built yet (planned: {step})")), "{text}");
        seen += 1;
    }
    assert!(seen > 0, "{seen}");
}

#[test]
fn a_planned_key_may_say_what_the_build_does() {
    for key in KEYS {
        let Status::Only { value, .. } = key.status else { continue };
        let toml = value::from_text(&key.kind, value).unwrap().to_toml();
        let settings = load(&file_with(key.path, &toml));
        let leaf = key.path.rsplit('.').next().unwrap();
        let shown = settings
            .effective()
            .iter()
            .find(|line| line.origin != Origin::Default && line.key.ends_with(&format!(".{leaf}")));
        assert_eq!(shown.unwrap().value, toml, "{}", key.path);
    }
}

#[test]
fn every_planned_word_is_refused_and_every_built_one_taken() {
    for key in KEYS {
        let (Kind::Choice { built, later }, Status::Built) = (key.kind, key.status) else {
            continue;
        };
        for word in built {
            load(&file_with(key.path, &format!("\"{word}\"")));
        }
        for (word, step) in later {
            let text = problem(&file_with(key.path, &format!("\"{word}\"")));
            assert!(text.contains(&format!("planned: {step}")), "{text}");
            assert!(text.contains(&format!("\"{}\"", built[0])), "{text}");
        }
        let text = problem(&file_with(key.path, "\"nonesuch\""));
        assert!(text.contains("is not one of its words; write \""), "{text}");
    }
}

#[test]
fn defaults_are_values_of_their_kind_and_the_table_has_no_double() {
    for (at, key) in KEYS.iter().enumerate() {
        // A worker's own value of an [upstream] key has no default.
        if !(key.path.starts_with("workers.") && matches!(key.status, Status::Refused { .. })) {
            let read = value::from_text(&key.kind, key.default);
            assert!(read.is_ok(), "{}: {read:?}", key.path);
        }
        assert!(!KEYS[..at].iter().any(|other| other.path == key.path), "{}", key.path);
        let (section, _) = key.path.rsplit_once('.').unwrap();
        assert!(SECTIONS.iter().any(|s| s.name == section), "{}", key.path);
        assert!(!key.doc.is_empty() && !key.doc.contains('|'));
    }
}

#[test]
fn flags_beat_the_environment_and_that_the_file_and_each_origin_is_kept() {
    let file = "[affinity]\nttl = \"1m\"\nmode = \"soft\"\nmax_sessions = 5\n\
                [[workers]]\nurl = \"http://from-file:1\"\n";
    let settings = Settings::load(Sources {
        file: Some((PathBuf::from("a/b.toml"), file.to_owned())),
        env: vec![
            env("HOMING_AFFINITY__TTL", "2m"),
            env("HOMING_AFFINITY__MAX_SESSIONS", "1_000"),
            env("HOMING_AFFINITY__HEADERS", "X-One, x-two,X-one"),
            env("HOMING_WORKERS", "http://from-env:1"),
        ],
        overrides: vec![
            flag("affinity.ttl", "3m", "--ttl"),
            flag("affinity.ttl", "4m", "--session-ttl"),
            flag("affinity.body_fields", "a.b", "--body-field"),
            flag("affinity.body_fields", "c", "--body-field"),
            flag("workers", "http://one:1", "--worker"),
            flag("workers", "http://two:2/base/", "--worker"),
        ],
    })
    .unwrap();
    assert_eq!(settings.affinity.ttl, Some(Duration::from_secs(240)));
    assert_eq!(settings.affinity.mode, AffinityMode::Soft);
    assert_eq!(settings.affinity.max_sessions, 1000);
    assert_eq!(settings.affinity.headers, ["x-one", "x-two"]);
    assert_eq!(settings.affinity.body_fields, ["a.b", "c"]);
    let workers: Vec<(String, String)> =
        settings.workers.iter().map(|w| (w.id.clone(), w.url.to_string())).collect();
    assert_eq!(workers, [env("one:1", "http://one:1"), env("two:2", "http://two:2/base")]);

    assert_eq!(origin(&settings, "affinity.ttl"), Origin::Flag("--session-ttl".to_owned()));
    assert_eq!(origin(&settings, "affinity.mode"), Origin::File(PathBuf::from("a/b.toml"), 3));
    let name = "HOMING_AFFINITY__MAX_SESSIONS".to_owned();
    assert_eq!(origin(&settings, "affinity.max_sessions"), Origin::Env(name));
    assert_eq!(origin(&settings, "workers[1].url"), Origin::Flag("--worker".to_owned()));
    assert_eq!(origin(&settings, "log.format"), Origin::Default);

    let page = settings.effective_toml();
    assert!(page.contains("ttl = \"4m\"  # flag --session-ttl\n"), "{page}");
    assert!(page.contains("mode = \"soft\"  # a/b.toml:3\n"), "{page}");
}

#[test]
fn the_environment_alone_can_name_workers() {
    let settings = Settings::load(Sources {
        file: None,
        env: vec![env("HOMING_WORKERS", "http://a:1, http://b:2,")],
        overrides: Vec::new(),
    })
    .unwrap();
    assert_eq!(settings.workers.len(), 2);
    let text = Settings::load(Sources {
        file: None,
        env: vec![env("HOMING_WORKERS", "a:1")],
        overrides: Vec::new(),
    })
    .unwrap_err()
    .to_string();
    assert!(text.contains("environment HOMING_WORKERS: `workers[0].url` = \"a:1\""), "{text}");
}

#[test]
fn all_problems_come_together_with_their_lines() {
    let file = "[gateway]\nlisten = \"here\"\nmax_body = true\n[health]\ninterval = 5\n\
                path = \"health\"\n[retry]\nattempts = -1\n";
    let errors = Settings::load(Sources {
        env: vec![env("HOMING_QUEUE__MAX_WAIT", "soon")],
        ..sources(file)
    })
    .unwrap_err();
    let text = errors.to_string();
    let expected = [
        "the configuration has 6 problems",
        "  - homing.toml:2: `gateway.listen` = \"here\" is not an address to listen on; write an \
         IP address and a port, e.g. \"127.0.0.1:8080\", or \"unix:/path\"",
        "  - homing.toml:3: `gateway.max_body` = true is of type boolean, not a size, 1KiB to \
         1GiB; write text such as \"32MiB\"",
        "  - homing.toml:5: `health.interval` = 5 is a duration without its unit; write it with \
         one, e.g. \"30s\"",
        "  - homing.toml:8: `retry.attempts` = -1 is not a whole number from 0 to 10; write a \
         whole number from 0 to 10",
        "  - environment HOMING_QUEUE__MAX_WAIT: `queue.max_wait` = \"soon\" is not a duration; \
         write a number with its unit, e.g. \"30s\" or \"1h 30m\", from 1ms to 1h",
        "  - homing.toml:6: `health.path` = \"health\" is not a path; write a path of printable \
         ASCII, e.g. \"/health\"",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn syntax_errors_name_the_line() {
    let text = problem("[gateway]\nlisten = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n");
    assert!(text.starts_with("homing.toml:3: not TOML: duplicate key"), "{text}");
    let found = problems("[gateway\nlisten");
    assert!(found.iter().all(|p| p.fault == Fault::Syntax), "{found:?}");
}

#[test]
fn the_report_is_bounded() {
    let many: String = (0..500).map(|n| format!("zz{n} = 1\n")).collect();
    let errors = Settings::load(sources(&many)).unwrap_err();
    assert_eq!(errors.problems.len() + errors.more, 500);
    assert!(errors.problems.len() < 100 && errors.to_string().ends_with("more"));
    let long = "x".repeat(3000);
    let text = problem(&format!("{long} = 1"));
    assert!(text.len() < 400, "{text}");
    assert!(problem(&" ".repeat(5 << 20)).contains("the file has more than"));
}

#[test]
fn listening_off_loopback_has_to_be_meant() {
    for address in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[::ffff:10.0.0.1]:80"] {
        let listen = format!("listen = \"{address}\"\n");
        let text = problem(&format!("[gateway]\n{listen}"));
        assert!(text.contains("off loopback, and nothing authenticates clients"), "{text}");
        assert!(text.contains("gateway.open = true"), "{text}");
        load(&format!("[gateway]\nopen = true\n{listen}"));
        let text = problem(&format!("[gateway]\nopen = true\n[admin]\n{listen}"));
        assert!(text.contains("`admin.token_file` is not set"), "{text}");
        let tokens = format!("[gateway]\nopen = true\n[admin]\ntoken_file = \"/t\"\n{listen}");
        load(&tokens);
        load(&format!("[gateway]\napi_keys_file = \"/k\"\n{listen}"));
        let proxied = "tenant_header = \"x-t\"\ntrusted_proxies = [\"10.0.0.0/8\"]\n";
        load(&format!("[gateway]\n{proxied}{listen}"));
    }
    for address in ["127.0.0.1:80", "127.8.8.8:0", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        load(&format!("[gateway]\nlisten = \"{address}\"\n[admin]\nlisten = \"[::1]:1\""));
    }
    let same = "[gateway]\nlisten = \"127.0.0.1:1\"\n[admin]\nlisten = \"127.0.0.1:1\"";
    assert!(problem(same).contains("are both \"127.0.0.1:1\""));
    load(&same.replace(":1\"", ":0\""));
}

#[test]
fn sizes_and_numbers_have_the_usual_forms() {
    let size = |text: &str| load(&format!("[gateway]\nmax_body = {text}")).gateway.max_body;
    assert_eq!(size("\"1MB\""), 1_000_000);
    assert_eq!(size("\"64 mib\""), 64 << 20);
    assert_eq!(size("\"4096\""), 4096);
    assert_eq!(size("4096"), 4096);
    assert!(problem("[gateway]\nmax_body = \"1TiB\"").contains("is not a size"));
    assert!(problem("[gateway]\nmax_body = \"99999999999GiB\"").contains("is not a size"));
    assert!(problem("[gateway]\nmax_body = \"2GiB\"").contains("is not within 1KiB to 1GiB"));
    let sessions =
        |text: &str| load(&format!("[affinity]\nmax_sessions = {text}")).affinity.max_sessions;
    assert_eq!(sessions("1_000"), 1000);
    assert_eq!(sessions("0x10"), 16);
    assert_eq!(value::size_text(0), "0B");
    assert_eq!(value::size_text(1_000_000), "1000000B");
}

#[test]
fn a_program_may_bring_policies_along() {
    use homing_core::select::LeastLoaded;
    let own = Policies::default().with("ours", || Box::new(LeastLoaded));
    let load =
        |word: &str| Settings::load_with(sources(&format!("[routing]\npolicy = \"{word}\"")), &own);
    let settings = load("ours").unwrap();
    assert_eq!(settings.routing.custom.as_ref().map(CustomPolicy::name), Some("ours"));
    assert!(settings.effective_toml().contains("policy = \"ours\""));
    assert_eq!(load("kv").unwrap().routing.custom, None);
    let text = load("hers").unwrap_err().to_string();
    assert!(text.contains("is not one of its words"), "{text}");
    // Nobody else has it.
    assert!(Settings::load(sources("[routing]\npolicy = \"ours\"")).is_err());
}
