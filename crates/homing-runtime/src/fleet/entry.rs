//! One worker as it registers, over HTTP or in etcd: an object with the keys of `[[workers]]`. The reader is the
//! file's, so words and errors are the same; besides it nothing of what a peer says may reach into our own files.

use super::dns;
use crate::settings::{Settings, Sources, Upstream, Worker};
use serde_json::{Map, Value};
use std::sync::Arc;

/// A worker from its keys.
///
/// # Errors
/// What is wrong, and what to do.
pub fn worker(keys: Map<String, Value>) -> Result<Worker, String> {
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
    let worker = settings.workers.into_iter().next();
    let worker = worker.ok_or_else(|| "the body describes no worker".to_owned())?;
    if dns::is_name(&worker) {
        return Err(format!(
            "`{}` is a dns:// name: those belong into the configuration",
            worker.url
        ));
    }
    Ok(worker)
}

/// The same, reached as `[upstream]` says where it has no words of its own.
///
/// # Errors
/// As [`worker`].
pub fn worker_under(keys: Map<String, Value>, common: &Arc<Upstream>) -> Result<Worker, String> {
    let own = |key: &str| keys.contains_key(key);
    let theirs =
        ["connect_timeout", "first_token_timeout", "idle_timeout", "pool_idle", "tcp_user_timeout"]
            .map(own);
    let mut worker = worker(keys)?;
    let said = worker.upstream;
    let pick = |at: usize, own, common| if theirs[at] { own } else { common };
    worker.upstream = if theirs.contains(&true) {
        Arc::new(Upstream {
            connect_timeout: pick(0, said.connect_timeout, common.connect_timeout),
            first_token_timeout: pick(1, said.first_token_timeout, common.first_token_timeout),
            idle_timeout: pick(2, said.idle_timeout, common.idle_timeout),
            pool_idle: pick(3, said.pool_idle, common.pool_idle),
            tcp_user_timeout: pick(4, said.tcp_user_timeout, common.tcp_user_timeout),
            ..(**common).clone()
        })
    } else {
        common.clone()
    };
    Ok(worker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn keys(value: Value) -> Map<String, Value> {
        let Value::Object(keys) = value else { panic!("an object") };
        keys
    }

    #[test]
    fn the_keys_are_those_of_the_file() {
        let w = worker(keys(
            json!({"url": "http://10.0.0.1:8000", "id": "a", "dp_size": 2, "labels": {"zone": "x"}}),
        ));
        let w = w.unwrap();
        assert_eq!((w.id.as_str(), w.dp_size, w.labels["zone"].as_str()), ("a", Some(2), "x"));
        for (bad, says) in [
            (json!({}), "url` is missing"),
            (json!({"url": "http://a:1", "dp_sise": 2}), "dp_size"),
            (json!({"url": "nonsense"}), "http://"),
            (json!({"url": "dns://a:1"}), "belong into the configuration"),
            (json!({"url": "http://a:1", "api_key_file": "/etc/hostname"}), "api_key_file"),
            (json!({"url": "http://a:1", "labels": null}), "keys of [[workers]]"),
        ] {
            let error = worker(keys(bad)).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_it_does_not_say_of_its_connections_the_router_says() {
        let text = "[upstream]\nca_file = '/ca.pem'\nconnect_timeout = '7s'\nidle_timeout = '3m'\n";
        let file = Some(("test.toml".into(), text.to_owned()));
        let sources: Sources = Sources { file, ..Sources::default() };
        let common = Arc::new(Settings::load(sources).unwrap().upstream);
        let plain = worker_under(keys(json!({"url": "https://a:1"})), &common).unwrap();
        assert_eq!(plain.upstream, common);
        let own = json!({"url": "https://a:1", "idle_timeout": "4m"});
        let own = worker_under(keys(own), &common).unwrap().upstream;
        assert_eq!(own.idle_timeout, Duration::from_secs(240));
        assert_eq!((own.connect_timeout, &own.ca_file), (Duration::from_secs(7), &common.ca_file));
    }
}
