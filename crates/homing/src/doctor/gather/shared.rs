//! What a router shares with others: by its counters, and over what by its settings. Of the first turns that could not
//! ask the shared store only those count that come while it is looked at: a total never goes back, and an outage that
//! is over needs no mending.

use crate::doctor::facts::{Over, Shared};
use homing_runtime::ask::Ask;
use homing_runtime::settings::{Replication, ReplicationBackend, ReplicationMode};
use homing_wire::engine::metrics::Exposition;
use serde::Deserialize;
use std::time::Duration;

/// Between two readings of what only ever grows.
const WHILE: Duration = Duration::from_secs(2);

/// `None` where it shares nothing. `configured`: what the file of `--config` says, where the router doesn't.
pub(super) async fn look_at(
    ask: &Ask,
    metrics: &Exposition<'_>,
    configured: Option<&Over>,
) -> Option<Shared> {
    let mut shared = read(metrics)?;
    shared.over = over(ask).await.or_else(|| configured.cloned());
    if shared.unreachable > 0.0 {
        tokio::time::sleep(WHILE).await;
        let before = shared.unreachable;
        let (again, text) = match ask.get("/metrics").await {
            Ok((200, body)) => (true, String::from_utf8_lossy(&body).into_owned()),
            _ => (false, String::new()),
        };
        let now = read(&Exposition::parse(&text)).filter(|_| again);
        shared.unreachable = now.map_or(0.0, |now| (now.unreachable - before).max(0.0));
    }
    Some(shared)
}

/// What its counters say; what could not be asked, in all.
fn read(metrics: &Exposition<'_>) -> Option<Shared> {
    let of = |name: &str, outcome: &str| -> f64 {
        let samples = metrics.samples(name);
        samples.filter(|s| s.label("outcome").as_deref() == Some(outcome)).map(|s| s.value).sum()
    };
    Some(Shared {
        over: None,
        up: metrics.sum("homing_replication_up")? > 0.0,
        in_step: metrics.sum("homing_replication_in_step")? > 0.0,
        other_secret: of("homing_replication_updates_total", "other_secret"),
        unreachable: of("homing_replication_claims_total", "unreachable"),
    })
}

/// What the router itself has for `[replication]`; `None` where it doesn't tell us, as without an admin's token.
async fn over(ask: &Ask) -> Option<Over> {
    #[derive(Deserialize)]
    struct Line {
        key: String,
        value: String,
    }
    let Ok((200, body)) = ask.get("/admin/config").await else { return None };
    let lines: Vec<Line> = serde_json::from_slice(&body).ok()?;
    let value = |key: &str| -> Option<toml::Value> {
        let line = lines.iter().find(|line| line.key == key)?;
        let mut table: toml::Table = toml::from_str(&format!("it = {}", line.value)).ok()?;
        table.remove("it")
    };
    let word = |key: &str| value(key)?.as_str().map(str::to_owned);
    let urls = value("replication.urls");
    let urls = urls.iter().filter_map(toml::Value::as_array).flatten();
    Some(Over {
        backend: ReplicationBackend::from_word(&word("replication.backend")?)?,
        claims: word("replication.mode")? == ReplicationMode::Authoritative.as_str(),
        urls: urls.filter_map(toml::Value::as_str).map(shown).collect(),
    })
}

/// The same of a file.
pub(in crate::doctor) fn configured(it: &Replication) -> Over {
    Over {
        backend: it.backend,
        claims: it.mode == ReplicationMode::Authoritative,
        urls: it.reach.urls.iter().map(|url| shown(url)).collect(),
    }
}

/// What stands before an @ may be a password.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(shown("nats://10.0.0.5:4222"), "nats://10.0.0.5:4222");
        assert_eq!(shown("https://me:se@cret@10.0.0.5:2379"), "https://10.0.0.5:2379");
        assert_eq!(shown("me:secret@10.0.0.5"), "10.0.0.5");
    }
}
