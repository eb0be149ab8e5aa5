//! The recorded requests of real clients and agents name the sessions that their index says, by the
//! documented order of sources, whatever endpoint they call.

use super::super::steering::Steering;
use super::*;
use homing_core::ids::SessionKey;
use homing_wire::request::{BodyPaths, ChatView};
use http::HeaderValue;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// `affinity.headers` and `affinity.body_fields` as documented, written out here: the settings' own are
/// compared with the documentation elsewhere.
const HEADERS: [&str; 16] = [
    "x-homing-session-id",
    "x-dynamo-session-affinity-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-smg-routing-key",
    "x-sgl-routing-key",
    "x-litellm-session-id",
    "x-bf-session-id",
    "x-aibrix-session-key",
    "x-cache-affinity-key",
    "x-multi-turn-session-id",
    "x-grok-conv-id",
];
const BODY_FIELDS: [&str; 2] = ["prompt_cache_key", "metadata.user_id"];

/// Where a client's session is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// In this header.
    Header(&'static str),
    /// In this top-level field of the body.
    Field(&'static str),
    /// Nowhere.
    Nowhere,
}
use Source::{Field, Header, Nowhere};

/// Per client: where its generating requests name their session, and which conversation they are.
const CLIENTS: [(&str, Source, &str); 23] = [
    ("openai-py-chat", Nowhere, ""),
    ("openai-py-chat-stream", Nowhere, ""),
    ("openai-py-chat-tools", Nowhere, ""),
    ("openai-py-chat-multipart", Nowhere, ""),
    // It has a prompt_cache_key as well, which comes later.
    ("openai-py-chat-session-fields", Header("x-session-id"), "sdk with fields"),
    ("openai-py-completions", Nowhere, ""),
    ("openai-py-completions-tokens", Nowhere, ""),
    ("openai-py-responses", Nowhere, ""),
    ("openai-py-responses-stream", Field("prompt_cache_key"), "sdk responses"),
    // `previous_response_id` names an answer.
    ("openai-py-responses-tools-prev-id", Nowhere, ""),
    ("openai-py-embeddings", Nowhere, ""),
    ("openai-py-models", Nowhere, ""),
    ("openai-py-async-stream", Nowhere, ""),
    ("anthropic-py-messages", Nowhere, ""),
    ("anthropic-py-stream", Nowhere, ""),
    // Its `metadata.user_id` is no JSON: a user, not a session.
    ("anthropic-py-tools-cachecontrol", Nowhere, ""),
    ("anthropic-py-count-tokens", Nowhere, ""),
    ("claude-code", Header("x-claude-code-session-id"), "claude code"),
    ("claude-code-continue", Header("x-claude-code-session-id"), "claude code"),
    ("codex", Header("session-id"), "codex"),
    ("codex-resume", Header("session-id"), "codex"),
    ("opencode", Header("x-session-id"), "opencode"),
    ("pi", Nowhere, ""),
];
/// One more, which brings nothing and does several turns.
const MINI: (&str, Source, &str) = ("mini-swe-agent", Nowhere, "");

struct Recording {
    file: String,
    client: String,
    headers: HeaderMap,
    body: Vec<u8>,
    index: Value,
}

/// Every recording in a folder, as its index lists them; `None` if the folder isn't there.
fn recordings(dir: &str) -> Option<Vec<Recording>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir);
    let index = std::fs::read(dir.join("index.json")).ok()?;
    let index: Vec<Value> = serde_json::from_slice(&index).unwrap();
    let files: BTreeSet<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".http"))
        .collect();
    let listed = index.iter().map(|entry| entry["file"].as_str().unwrap().to_owned());
    assert_eq!(files, listed.collect(), "the index lists each");
    Some(index.into_iter().map(|entry| recording(&dir, entry)).collect())
}

fn recording(dir: &Path, index: Value) -> Recording {
    let file = index["file"].as_str().unwrap().to_owned();
    let bytes = std::fs::read(dir.join(&file)).unwrap();
    let split = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&bytes[..split]).unwrap();
    let headers = head.split("\r\n").skip(1).map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        (name, HeaderValue::from_str(value.trim()).unwrap())
    });
    let client = index["client"].as_str().unwrap().to_owned();
    Recording { file, client, headers: headers.collect(), body: bytes[split + 4..].to_vec(), index }
}

fn finder(infer: bool) -> Finder {
    Finder {
        headers: HEADERS.map(HeaderName::from_static).to_vec(),
        parents: PARENT_HEADERS.to_vec(),
        mode: Mode::Hard,
        body_mode: Mode::Soft,
        group: false,
        infer,
    }
}

fn secret() -> KeySecret {
    KeySecret::new(&[9; 32])
}

/// The session's own id, its mode and its key. A request without a body is one without a field.
fn resolve(headers: &HeaderMap, body: &[u8]) -> Option<(Vec<u8>, Mode, SessionKey)> {
    let paths = BodyPaths::parse(&BODY_FIELDS).unwrap();
    let empty = br#"{"model":"m"}"#;
    let body = if body.is_empty() { empty } else { body };
    let view = CommonView::parse(body, &paths).unwrap();
    let steering = Steering::parse(headers).unwrap();
    assert_eq!(steering, Steering::default(), "no client steers by chance");
    let found = finder(false).find(headers, &steering, &view, || None).unwrap();
    assert_eq!(found.ignored, 0);
    let named = found.named?;
    let Kind::Own(id) = named.kind else { panic!("{named:?}") };
    Some((id.to_vec(), named.mode, named.session(&secret(), "", "").key))
}

/// Resolves all of a folder; how many named a session.
fn all_are_as_expected(recordings: &[Recording]) -> usize {
    let clients: BTreeMap<&str, (Source, &str)> = CLIENTS
        .iter()
        .chain([&MINI])
        .map(|(client, source, conversation)| (*client, (*source, *conversation)))
        .collect();
    let mut keys: BTreeMap<&str, SessionKey> = BTreeMap::new();
    let mut sessions = 0;
    for recording in recordings {
        let Recording { file, headers, body, index, .. } = recording;
        let (source, conversation) = clients[recording.client.as_str()];
        // Claude Code looks first whether anybody is there.
        let source = if index["method"] == "HEAD" { Nowhere } else { source };
        let resolved = resolve(headers, body);
        let said = |kind: &str, name: &str| index[kind][name].as_str().unwrap().as_bytes().to_vec();
        // The value that is the session's is told by changing it, where several are alike.
        let (marked, mode, expected) = match source {
            Nowhere => {
                assert!(resolved.is_none(), "{file}: {resolved:?}");
                continue;
            }
            Header(name) => {
                let mut headers = headers.clone();
                headers.insert(name, HeaderValue::from_static("marked"));
                (resolve(&headers, body), Mode::Hard, said("session_headers", name))
            }
            Field(name) => {
                let mut fields: Value = serde_json::from_slice(body).unwrap();
                fields[name] = "marked".into();
                let body = fields.to_string().into_bytes();
                (resolve(headers, &body), Mode::Soft, said("session_body_fields", name))
            }
        };
        let (id, is_mode, key) = resolved.unwrap();
        assert_eq!((&id, is_mode), (&expected, mode), "{file}");
        assert_eq!(marked.unwrap().0, b"marked", "{file}: from {source:?}");
        assert_eq!(*keys.entry(conversation).or_insert(key), key, "{file}: {conversation}");
        sessions += 1;
    }
    let distinct: BTreeSet<&SessionKey> = keys.values().collect();
    assert_eq!(distinct.len(), keys.len(), "a session a conversation");
    sessions
}

/// Chats that bring no id are told apart by how they open.
fn chats_open(recordings: &[Recording]) -> BTreeMap<&str, Vec<SessionKey>> {
    let mut keys: BTreeMap<&str, Vec<SessionKey>> = BTreeMap::new();
    for recording in recordings {
        if recording.index["path"] != "/v1/chat/completions" {
            continue;
        }
        let paths = BodyPaths::parse(&BODY_FIELDS).unwrap();
        let view = ChatView::parse(&recording.body, &paths).unwrap();
        let opening = || super::super::infer::hash(&secret(), view.opening());
        let steering = Steering::default();
        let found = finder(true).find(&recording.headers, &steering, &view.common, opening);
        let named = found.unwrap().named.unwrap();
        if matches!(named.kind, Kind::Inferred { .. }) {
            let key = named.session(&secret(), "", "").key;
            keys.entry(recording.client.as_str()).or_default().push(key);
        }
    }
    keys
}

/// Every client is one conversation, of these many requests.
fn assert_conversations(keys: &BTreeMap<&str, Vec<SessionKey>>, expected: &[(&str, usize)]) {
    let counts: Vec<(&str, usize)> = keys.iter().map(|(c, k)| (*c, k.len())).collect();
    assert_eq!(counts, expected);
    for (client, keys) in keys {
        assert!(keys.iter().all(|key| *key == keys[0]), "{client} is one conversation");
    }
    // These two say "Hi" to the same model and nothing else: what R27 is for.
    assert_eq!(keys["openai-py-chat-stream"], keys["openai-py-async-stream"]);
    let distinct: BTreeSet<SessionKey> = keys.values().map(|keys| keys[0]).collect();
    assert_eq!(distinct.len(), keys.len() - 1, "and nobody else's");
}

#[test]
fn r01_recordings_of_the_sdk_resolve_as_the_index_says() {
    let recordings = recordings("../../testdata/client-requests").unwrap();
    assert_eq!((recordings.len(), all_are_as_expected(&recordings)), (19, 2));
    let chats = [
        ("openai-py-async-stream", 1),
        ("openai-py-chat", 1),
        ("openai-py-chat-multipart", 1),
        ("openai-py-chat-stream", 1),
        ("openai-py-chat-tools", 2),
    ];
    assert_conversations(&chats_open(&recordings), &chats);
}

#[test]
fn r01_recordings_of_agents_resolve_as_the_index_says() {
    let Some(recordings) = recordings("../../../shared/data/client-requests") else {
        eprintln!("SKIPPED: ../shared/data/client-requests is not here");
        return;
    };
    assert_eq!((recordings.len(), all_are_as_expected(&recordings)), (35, 11));
    let seen: BTreeSet<&str> = recordings.iter().map(|r| r.client.as_str()).collect();
    assert_eq!(seen.len(), CLIENTS.len() + 1, "each line of the table is used");
    let chats = [
        ("mini-swe-agent", 2),
        ("openai-py-async-stream", 1),
        ("openai-py-chat", 1),
        ("openai-py-chat-multipart", 1),
        ("openai-py-chat-stream", 1),
        ("openai-py-chat-tools", 2),
        ("pi", 2),
    ];
    assert_conversations(&chats_open(&recordings), &chats);
}

/// What Claude Code writes into its body is the very session that its header names, so that a proxy that
/// drops the header costs nothing; and the same of Codex.
#[test]
fn r01_without_its_header_an_agent_is_known_by_its_body() {
    let Some(recordings) = recordings("../../../shared/data/client-requests") else {
        eprintln!("SKIPPED: ../shared/data/client-requests is not here");
        return;
    };
    let mut checked = 0;
    for recording in &recordings {
        let name = match recording.client.as_str() {
            "claude-code" | "claude-code-continue" => "x-claude-code-session-id",
            "codex" | "codex-resume" => "session-id",
            _ => continue,
        };
        let mut headers = recording.headers.clone();
        let Some(id) = headers.remove(name) else { continue };
        let (found, mode, _) = resolve(&headers, &recording.body).unwrap();
        assert_eq!((found.as_slice(), mode), (id.as_bytes(), Mode::Soft), "{}", recording.file);
        checked += 1;
    }
    assert_eq!(checked, 6);
}
