//! A decision that is not acted upon, in JSON: the gateway reads the request as it would read a real one,
//! and asks the core where it would go (R16). Nothing is held, bound, refreshed or sent.

use super::ask::Given;
use super::decisions::{short, weighed};
use super::proxy;
use super::record::Record;
use super::service::Endpoint;
use super::steering::Steering;
use super::{Gateway, ask};
use bytes::Bytes;
use homing_core::affinity::Steer;
use homing_core::core::WorkerView;
use homing_core::explain::Preview;
use homing_core::explain::record::Weighed;
use homing_core::ids::{Target, WorkerId};
use homing_core::select::policy::Parts;
use homing_runtime::upstream::Upstream;
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::time::Instant;

impl Gateway {
    /// What would become of a request; `None` for a path that is not routed.
    pub(crate) async fn preview(
        &self,
        endpoint: &str,
        headers: HeaderMap,
        body: &Bytes,
    ) -> Option<Value> {
        let path = endpoint.split_once('?').map_or(endpoint, |(path, _)| path);
        let access = self.access();
        let endpoint = Endpoint::of(path, &access)?;
        let mut record = Record::unrecorded(self, &headers, endpoint.label(), endpoint.api());
        let until = Instant::now() + access.settings.gateway.request_timeout;
        let asked = match Steering::parse(&headers) {
            Ok(steering) => {
                // An engine may be asked for the prompt's tokens; a connection of its own, on this thread.
                let upstream = Upstream::fresh();
                // Whose key it shows, or anybody.
                let caller = access.caller(None, &headers);
                let caller = caller.unwrap_or_else(|_| access.anybody());
                match proxy::admitted_model(&caller, body.clone()) {
                    Ok((body, _)) => {
                        let (headers, steering) = (&headers, &steering);
                        let given =
                            Given { endpoint, caller: &caller, headers, steering, body: &body };
                        ask::of(self, &upstream, given, &mut record, until).await
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(self.early(&headers, error).into()),
        };
        let answer = match asked {
            Err(error) => refused(&error),
            Ok((mut ask, _)) => {
                let core = self.shell.core();
                core.look_up(&mut ask);
                match core.preview(self.shell.now(), &ask) {
                    Some(preview) => self.told(&preview, &record, ask.constraints.is_some()),
                    None => refused(&super::reply::Error::not_found("no such partition")),
                }
            }
        };
        Some(answer)
    }

    fn told(&self, preview: &Preview, record: &Record, constrained: bool) -> Value {
        let workers = self.shell.core().workers();
        let name = |id: WorkerId| {
            workers.iter().find(|w: &&WorkerView| w.info.id == id).map(|w| &*w.info.spec.name)
        };
        let at = |t: Option<Target>| {
            t.map(|t| json!({"worker": name(t.worker), "dp_rank": t.rank.map(|r| r.0)}))
        };
        let steer = preview.steer.map(Steer::word);
        let candidates: Vec<_> = preview
            .candidates
            .iter()
            .zip(&preview.terms)
            .map(|((c, cost), terms)| {
                let mut one = weighed(
                    &Weighed::of(c, Parts::default()),
                    name(c.worker),
                    terms.iter().copied(),
                );
                one["cost"] = short(*cost).into();
                one
            })
            .collect();
        let refusal = preview.refusal.map(|r| self.refusal(r, constrained).described());
        json!({
            "worker": preview.target.and_then(|t| name(t.worker)),
            "dp_rank": preview.target.and_then(|t| t.rank).map(|r| r.0),
            "model": record.model.as_deref(),
            "waits": preview.waits,
            "error": refusal,
            "session": {
                "key_digest": record.session.map(|s| s.to_string()),
                "affinity": preview.outcome.word(),
                "home": at(preview.home),
                "steer": steer,
            },
            "prompt_tokens": record.prompt_tokens,
            "candidates": candidates,
        })
    }
}

/// A request that never comes to a decision.
fn refused(error: &super::reply::Error) -> Value {
    json!({
        "worker": null,
        "dp_rank": null,
        "waits": false,
        "error": error.described(),
        "session": {"affinity": error.outcome().word()},
        "candidates": [],
    })
}
