//! Which settings can change while the router runs: the difference of two versions, and whether it may be applied.

use super::Settings;
use thiserror::Error;

/// Keys that are read when they are needed. One that ends in a dot stands for all that begin so.
const LIVE: &[&str] = &[
    "gateway.api_keys_file",
    "gateway.tenant_header",
    "gateway.trusted_proxies",
    "gateway.steering",
    "gateway.response_headers",
    "gateway.max_body",
    "gateway.pass_through",
    "gateway.request_timeout",
    "gateway.shutdown_delay",
    "gateway.shutdown_grace",
    "admin.token_file",
    "upstream.first_token_timeout",
    "upstream.idle_timeout",
    "health.",
    "retry.",
    "overload.",
    "queue.max_wait",
    "queue.busy_active_requests",
    "queue.busy_prefill_tokens",
    "limits.",
    "tenants.",
    "affinity.soft",
    "affinity.on_down",
    "affinity.on_overload",
    "affinity.on_failure",
    "affinity.reject_as",
    "log.access",
    "models.aliases",
    "workers.",
];

/// Why changed settings are not applied; nothing has changed then.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{} can't change while the router runs; restart it for that, or put back what was there", keys.join(", "))]
pub struct NotLive {
    /// Which keys have changed that can't, as the file calls them.
    pub keys: Vec<String>,
}

/// The row of the table that a shown key is of: without the place in a list.
fn plain(key: &str) -> String {
    match (key.find('['), key.find(']')) {
        (Some(open), Some(close)) if open < close => {
            format!("{}{}", &key[..open], &key[close + 1..])
        }
        _ => key.to_owned(),
    }
}

fn is_live(key: &str) -> bool {
    let key = plain(key);
    LIVE.iter().any(|live| match live.strip_suffix('.') {
        Some(_) => key.starts_with(live),
        None => key == *live,
    })
}

impl Settings {
    /// The keys whose values differ in `other`, as the file calls them.
    #[must_use]
    pub fn changes(&self, other: &Self) -> Vec<String> {
        let value = |of: &Self, key: &str| {
            of.effective.iter().find(|line| line.key == key).map(|line| line.value.clone())
        };
        let mine = self.effective.iter().map(|line| &line.key);
        let theirs = other.effective.iter().map(|line| &line.key);
        let mut keys: Vec<String> = mine
            .chain(theirs)
            .filter(|key| value(self, key) != value(other, key))
            .cloned()
            .collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// The same, if all of them can change while the router runs.
    ///
    /// # Errors
    /// [`NotLive`], with those that can't.
    pub fn live_changes(&self, other: &Self) -> Result<Vec<String>, NotLive> {
        let changed = self.changes(other);
        let stuck: Vec<String> = changed.iter().filter(|key| !is_live(key)).cloned().collect();
        if stuck.is_empty() { Ok(changed) } else { Err(NotLive { keys: stuck }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{KEYS, Sources};

    fn load(text: &str) -> Settings {
        let file = Some(("test.toml".into(), text.to_owned()));
        Settings::load(Sources { file, ..Sources::default() }).unwrap()
    }

    #[test]
    fn what_can_change_is_listed_and_what_cannot_is_named() {
        let old = load("[gateway]\nmax_body = '1MiB'\n[[workers]]\nurl = 'http://a:1'\n");
        assert_eq!(old.live_changes(&old), Ok(vec![]));
        let new = load(
            "[gateway]\nmax_body = '2MiB'\n[retry]\nattempts = 2\n[[workers]]\nurl = 'http://a:1'\n\
             [[workers]]\nurl = 'http://b:1'\n",
        );
        let changed = old.live_changes(&new).unwrap();
        assert!(changed.contains(&"gateway.max_body".to_owned()), "{changed:?}");
        assert!(changed.contains(&"retry.attempts".to_owned()), "{changed:?}");
        assert!(changed.contains(&"workers[1].url".to_owned()), "{changed:?}");
        let new = load(
            "[gateway]\nlisten = '127.0.0.1:1'\n[affinity]\nttl = '1m'\n[retry]\nattempts = 2\n",
        );
        let refused = old.live_changes(&new).unwrap_err();
        assert_eq!(refused.keys, ["affinity.ttl", "gateway.listen"]);
        assert!(refused.to_string().contains("affinity.ttl, gateway.listen can't change"));
    }

    #[test]
    fn every_live_key_is_one() {
        for live in LIVE {
            let known = KEYS.iter().any(|key| key.path == *live || key.path.starts_with(live));
            assert!(known, "{live}");
        }
    }
}
