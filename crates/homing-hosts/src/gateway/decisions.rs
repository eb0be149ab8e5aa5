//! Decisions in JSON, as `/admin/decisions` shows them: numbers, and names of workers; of a session its digest.

use super::Gateway;
use homing_core::ask::Refusal;
use homing_core::core::Decision;
use homing_core::explain::Record;
use homing_core::explain::record::{Awaited, Weighed};
use homing_core::ids::Target;
use homing_core::select::Fit;
use homing_core::settings::Mode;
use homing_core::time::Time;
use serde_json::{Map, Value, json};
use std::time::Duration;

impl Gateway {
    /// The latest decisions, the newest first.
    pub(crate) fn decisions(&self, limit: usize) -> Value {
        let core = self.shell.core();
        let all: Vec<_> = core.decisions(limit).iter().map(|d| self.decided(d)).collect();
        let usage = core.record_use();
        json!({"kept": usage.kept, "dropped": usage.dropped, "decisions": all})
    }

    /// The latest decision about the request of this id.
    ///
    /// # Errors
    /// That there is none, as people read it.
    pub(crate) fn decision(&self, id: &str) -> Result<Value, String> {
        let core = self.shell.core();
        if let Some(decision) = core.decision(id) {
            return Ok(self.decided(&decision));
        }
        let kept = core.record_use().kept;
        Err(format!(
            "no record of a request with this id: records of the last {kept} decisions are kept, and a request \
             that was refused before one (a bad body, an unknown model) leaves none"
        ))
    }

    fn decided(&self, decision: &Decision) -> Value {
        let r = &decision.record;
        let at = |t: Target| json!({"worker": decision.worker(t.worker), "dp_rank": t.rank.map(|r| r.0)});
        let refusal = r.cause.map(|cause| {
            let (outcome, bound, retry_after) = (r.outcome, r.bound, None);
            let refusal = Refusal { cause, outcome, bound, retry_after };
            self.refusal(refusal, r.constrained).described()
        });
        let came = r.times.came.unwrap_or(r.times.asked);
        let after = |t: Time| ms(t.since(came));
        let tries: Vec<_> = r
            .attempts_kept()
            .map(|a| {
                let mut one = at(a.target);
                one["at_ms"] = after(a.at).into();
                one["failure"] = a.failure.map(|f| f.word()).into();
                one
            })
            .collect();
        let usage = r.report.usage;
        json!({
            "request_id": r.id.as_deref(),
            "at": came.as_micros() as f64 / 1e6,
            "model": &*decision.model,
            "partition": format!("{}/{}", decision.pool, decision.role),
            "shape": r.shape.word(),
            "stage": r.stage.word(),
            "worker": r.pick.and_then(|t| decision.worker(t.worker)),
            "dp_rank": r.pick.and_then(|t| t.rank).map(|r| r.0),
            "error": refusal,
            "explicit": r.explicit,
            "constrained": r.constrained,
            "session": {
                "key_digest": r.session.map(|key| self.shell.secret().digest(key).to_string()),
                "affinity": r.outcome.word(),
                "mode": r.session.map(|_| match r.mode { Mode::Hard => "hard", Mode::Soft => "soft" }),
                "home": r.home().map(at),
                "steer": r.session.map(|_| r.steer.word()),
            },
            "prompt": {"tokens": r.prompt_tokens, "exact": r.exact, "block_size": r.block_size},
            "eligible": r.placement.eligible,
            "considered": r.placement.considered,
            "best_overlap_blocks": r.placement.best_overlap_blocks,
            "predicted_ttft_ms": decision.predicted_ttft_ms.map(f64::from).map(short),
            "predicted_cached_tokens": r.pick.map(|_| r.placement.cached_tokens),
            "candidates": decision.candidates.iter().map(|c| {
                candidate(decision, c)
            }).collect::<Vec<_>>(),
            "left_out": r.left_out,
            "against": Fit::WORDS.iter().zip(r.against).filter(|(_, n)| *n > 0)
                .map(|((_, word), n)| ((*word).to_owned(), n.into())).collect::<Map<_, _>>(),
            "attempts": r.attempts,
            "tries": tries,
            "waited": waited(decision, r),
            "times": {
                "prompt_ms": ms(r.times.prompt),
                "look_up_ms": ms(r.times.look_up),
                "asked_ms": after(r.times.asked),
                "granted_ms": r.times.granted.map(after),
                "dispatched_ms": r.times.dispatched.map(after),
                "begun_ms": r.times.begun.map(after),
                "first_token_ms": r.times.first_token.map(after),
                "ended_ms": r.times.ended.map(after),
            },
            "really": {
                "prompt_tokens": usage.map(|u| u.prompt_tokens),
                "cached_tokens": usage.and_then(|u| u.cached_tokens),
                "output_tokens": r.report.output_tokens,
                "ttft_ms": r.ttft().map(ms),
                "regret_tokens": r.regret_tokens(),
                "regret_ms": decision.regret_ms().map(short),
            },
        })
    }
}

/// One target, as it stood.
fn candidate(decision: &Decision, c: &Weighed) -> Value {
    let record = &decision.record;
    let home = record.home().is_some_and(|home| home.admits(c.target()));
    let parts = decision.parts(c).map(|(name, cost)| (name, f64::from(cost)));
    let mut all = weighed(c, decision.worker(c.worker), parts);
    all["picked"] = (record.pick == Some(c.target())).into();
    all["home"] = home.into();
    all
}

/// A target, with what it costs part by part.
pub(super) fn weighed(
    c: &Weighed,
    worker: Option<&str>,
    parts: impl Iterator<Item = (&'static str, f64)>,
) -> Value {
    let terms: Map<_, _> =
        parts.map(|(name, cost)| (name.to_owned(), Value::from(short(cost)))).collect();
    json!({
        "worker": worker,
        "dp_rank": c.rank.0,
        // Null: nobody could use it.
        "cost": c.cost().map(f64::from).map(short),
        "terms": terms,
        "overlap_blocks": c.overlap,
        "told_blocks": c.told,
        "host_blocks": c.host,
        "disk_blocks": c.disk,
        // How far that is believed; the cost is by what is.
        "trust": c.trust.factor(),
        "active_requests": c.active_requests,
        "active_prefill_tokens": c.prefill_tokens,
        "active_blocks": c.blocks,
        // Sessions that live there; policies weigh them too.
        "homes": c.homes,
        // What speaks against it; empty: nothing.
        "against": c.fit.words().collect::<Vec<_>>(),
    })
}

fn waited(decision: &Decision, r: &Record) -> Value {
    let (word, worker) = match r.awaited {
        None => return Value::Null,
        Some(Awaited::Anyone) => ("anyone", None),
        Some(Awaited::Named(id)) => ("named", Some(id)),
        Some(Awaited::Home(id)) => ("home", Some(id)),
    };
    json!({
        "for": word,
        "worker": worker.and_then(|id| decision.worker(id)),
        "ms": ms(r.times.waited),
        "still": r.waiting.is_some(),
    })
}

/// To the microsecond, which is what it is known to.
/// A cost as people read it: what is behind the sixth place nobody has measured.
pub(super) fn short(cost: f64) -> f64 {
    (cost * 1e6).round() / 1e6
}

fn ms(d: Duration) -> f64 {
    d.as_micros() as f64 / 1e3
}
