//! Workers that come at run time: `POST /admin/workers` with the keys of `[[workers]]`.

use super::{Admin, problem};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use homing_runtime::fleet::registered::{RegisterError, Registration};
use homing_runtime::settings::{Settings, Sources, Worker};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A time-to-live is at least a second, which a network may take, and at most a day.
const TTL_LEAST: Duration = Duration::from_secs(1);
const TTL_MOST: Duration = Duration::from_secs(24 * 3600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct How {
    /// Gone unless repeated in time, e.g. `15s`.
    ttl: Option<String>,
    /// In the place of whoever has this id.
    replace: Option<bool>,
}

pub(super) async fn register(
    State(admin): State<Admin>,
    Query(how): Query<How>,
    Json(keys): Json<Map<String, Value>>,
) -> Response {
    let bad = |text: &str| problem(StatusCode::BAD_REQUEST, "invalid_request", text);
    let ttl = match how.ttl.as_deref().map(humantime::parse_duration) {
        None => None,
        Some(Ok(ttl)) if (TTL_LEAST..=TTL_MOST).contains(&ttl) => Some(ttl),
        Some(_) => return bad("ttl must be a duration from 1s to 24h, such as 15s"),
    };
    let worker = match worker(keys) {
        Ok(worker) => worker,
        Err(text) => return bad(&text),
    };
    let (id, taken) = (worker.id.clone(), admin.shell.core().worker_named(&worker.id).is_some());
    let replace = how.replace == Some(true);
    match admin.registered.register(worker, ttl, replace, taken) {
        Ok(Registration::Renewed) => Json(json!({"id": id, "renewed": true})).into_response(),
        Ok(Registration::New | Registration::Replaced) => {
            (StatusCode::CREATED, Json(json!({ "id": id }))).into_response()
        }
        Err(error @ RegisterError::InUse) => {
            problem(StatusCode::CONFLICT, "worker_exists", &error.to_string())
        }
        Err(error @ RegisterError::Busy) => {
            problem(StatusCode::SERVICE_UNAVAILABLE, "busy", &error.to_string())
        }
    }
}

/// A worker from its keys: the same reader as the file's, so the same words and the same errors.
fn worker(keys: Map<String, Value>) -> Result<Worker, String> {
    // What a file says would go to an address of the caller's choice.
    if let Some(key) = keys.keys().find(|key| key.ends_with("_file")) {
        return Err(format!(
            "`{key}` names a file of the router's: that belongs into its configuration"
        ));
    }
    let keys: toml::Table = serde_json::from_value(Value::Object(keys))
        .map_err(|e| format!("the body must be an object with the keys of [[workers]]: {e}"))?;
    let mut file = toml::Table::new();
    file.insert("workers".to_owned(), toml::Value::Array(vec![toml::Value::Table(keys)]));
    let text = toml::to_string(&file).map_err(|e| e.to_string())?;
    let sources: Sources = Sources { file: Some(("the body".into(), text)), ..Sources::default() };
    let settings = Settings::load(sources).map_err(|errors| errors.to_string())?;
    settings.workers.into_iter().next().ok_or_else(|| "the body describes no worker".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Worker, String> {
        let Value::Object(keys) = value else { panic!("an object") };
        worker(keys)
    }

    #[test]
    fn the_keys_are_those_of_the_file() {
        let w = read(
            json!({"url": "http://10.0.0.1:8000", "id": "a", "dp_size": 2, "labels": {"zone": "x"}}),
        );
        let w = w.unwrap();
        assert_eq!((w.id.as_str(), w.dp_size, w.labels["zone"].as_str()), ("a", Some(2), "x"));
        for (bad, says) in [
            (json!({}), "url` is missing"),
            (json!({"url": "http://a:1", "dp_sise": 2}), "dp_size"),
            (json!({"url": "nonsense"}), "http://"),
            (json!({"url": "http://a:1", "api_key_file": "/etc/hostname"}), "api_key_file"),
            (json!({"url": "http://a:1", "labels": null}), "keys of [[workers]]"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
