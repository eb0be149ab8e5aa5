//! Asking a router's admin API, and what to do where it doesn't answer.

use crate::{Failure, running};
use anyhow::anyhow;
use homing_core::ask::Failure as Unanswered;
use homing_runtime::ask::Ask;
use homing_runtime::settings::WorkerUrl;
use homing_runtime::upstream::{Link, Upstream};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// For an answer: a preview may have a long prompt to tokenize.
const PATIENCE: Duration = Duration::from_secs(15);
const MAX_ANSWER: usize = 64 << 20;

/// The router that is asked.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Router {
    /// The router's admin API; where that asks for a token, HOMING_ADMIN_TOKEN is shown
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
    admin: String,
}

impl Router {
    /// What is at a path; with a body, by POST of it. `absent`: where that is not there.
    pub(super) fn ask(&self, path: &str, body: Option<String>) -> Result<Value, Failure> {
        let full = full(&self.admin);
        let url: WorkerUrl = full.parse().map_err(|error| {
            Failure::Usage(format!("--admin {:?} {error}; write e.g. http://host:9464", self.admin))
        })?;
        let ask = Ask {
            upstream: Upstream::fresh(),
            link: Link::plain(url).with_token(token().as_deref()),
            timeout: PATIENCE,
        };
        let answer = running::block_on(async {
            Ok(match body {
                Some(body) => ask.post(path, body.into(), MAX_ANSWER).await,
                None => ask.get(path).await,
            })
        })?;
        let (status, bytes) = answer.map_err(|failure| self.unanswered(failure))?;
        let json: Option<Value> = serde_json::from_slice(&bytes).ok();
        match (status, json) {
            (200, Some(json)) => Ok(json),
            (_, Some(json)) if json["error"]["message"].is_string() => {
                let message = json["error"]["message"].as_str().unwrap_or_default();
                Err(Failure::Failed(anyhow!("{message}")))
            }
            _ => Err(Failure::Failed(anyhow!(
                "{full}{path} answers {status}, and not as a router's admin API does; is it admin.listen of one \
                 of this version?"
            ))),
        }
    }

    fn unanswered(&self, failure: Unanswered) -> Failure {
        let admin = &self.admin;
        let text = match failure {
            Unanswered::Refused => format!(
                "nothing listens at {admin}: is the router running, and is that its admin.listen? \
                 --admin URL names another"
            ),
            _ => format!(
                "{admin} doesn't answer: is that a router's admin.listen? --admin URL names another"
            ),
        };
        Failure::Failed(anyhow!(text))
    }
}

/// A URL of which `http://` may be left out.
pub(crate) fn full(url: &str) -> String {
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

/// The token for a router that asks for one (`admin.token_file`).
pub(crate) fn token() -> Option<String> {
    std::env::var("HOMING_ADMIN_TOKEN").ok().filter(|token| !token.is_empty())
}

/// A request id as a part of a path.
pub(crate) fn encoded(id: &str) -> String {
    let mut path = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            // To a string: it can't fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_part_of_a_path_whatever_is_in_it() {
        assert_eq!(encoded("a-B_0.~"), "a-B_0.~");
        assert_eq!(encoded("a/b?c d\u{e9}"), "a%2Fb%3Fc%20d%C3%A9");
    }
}
