//! Workers as operators see them: what they do, and whether they get new sessions.

use super::{Admin, problem};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use homing_core::core::WorkerView;
use homing_core::fleet;
use homing_core::fleet::{Drain, FleetChange};
use homing_core::load::Pace;
use homing_core::load::report::Reported;
use homing_core::time::Time;
use homing_core::trust::{LikelyCause, TrustView};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A drain's deadline is at most a year away: more is a slip.
const DEADLINE_MOST: Duration = Duration::from_secs(31_557_600);

pub(super) async fn list(State(admin): State<Admin>) -> Json<Value> {
    let workers = admin.shell.core().workers();
    Json(Value::Array(workers.iter().map(|w| one(&admin, w)).collect()))
}

/// One worker.
fn one(admin: &Admin, w: &WorkerView) -> Value {
    let spec = &w.info.spec;
    let now = admin.shell.now();
    let moves_at = w.drain.and_then(|d| d.moves_at);
    json!({
        "id": &*spec.name,
        "url": &*spec.url,
        "role": spec.role.to_string(),
        "models": w.models.iter().map(|m| &**m).collect::<Vec<_>>(),
        "ranks": w.ranks.count(),
        "state": state(w, admin.shell.now()),
        "labels": spec.labels,
        "active_requests": w.part.load.active_requests,
        "peer_requests": w.part.peers.active_requests,
        "active_prefill_tokens": w.part.load.prefill_tokens,
        "active_blocks": w.part.load.blocks,
        // Which of `[overload]`'s rules it has broken.
        "overloaded_by": w.part.overload.words().collect::<Vec<_>>(),
        // What its engine has said lately; null where it doesn't.
        "reported": w.part.reported.map(|said| reported(&said, now)),
        "cached_blocks": w.cached_blocks,
        "host_blocks": w.host_blocks,
        "disk_blocks": w.disk_blocks,
        // Of what it was sent, in text, where nothing else tells.
        "cached_chunks": w.cached_chunks,
        "bindings": w.part.bindings,
        "index": admin.fleet.index_state(&spec.name),
        // Where it stays `connecting` because of something here.
        "index_error": admin.fleet.index_error(&spec.name),
        // By the form in which requests come, once answers have been held against predictions.
        "pace": pace(&w.pace),
        "trust": w.trust.iter().map(|t| (t.shape.word().to_owned(), trust(t))).collect::<Map<_, _>>(),
        "incarnation": w.info.id.0,
        // Where it drains: from when on its sessions move. Null: they may finish.
        "sessions_move_in_seconds":
            moves_at.map(|at| at.since(admin.shell.now()).as_secs_f64()),
        // It drains, nothing runs there, and no session would miss it.
        "safe_to_stop": w.drain.is_some_and(|drain| {
            let empty = w.part.bindings == 0 || drain.moves(admin.shell.now());
            empty && w.part.load.active_requests + w.part.peers.active_requests == 0
        }),
    })
}

/// What a worker's engine says that it has to do, and how much of that is not ours.
fn reported(said: &Reported, now: Time) -> Value {
    json!({
        "running": said.report.running,
        "waiting": said.report.waiting,
        "kv_usage": said.report.kv_usage,
        "foreign": said.foreign,
        "age_seconds": now.since(said.at).as_secs_f64(),
    })
}

/// How far the worker's index is believed, and how its predictions have fared.
/// In milliseconds, as `docs/http-api.md` says.
fn pace(p: &Pace) -> Value {
    // As long as a float of 32 bits is, and not as its 64-bit neighbour.
    let all = [
        ("base_ms", p.base),
        ("prompt_token_ms", p.token),
        ("pair_ms", p.pair),
        ("step_ms", p.step),
        ("sequence_ms", p.sequence),
        ("context_token_ms", p.context),
        ("stall_token_ms", p.stall),
    ];
    all.into_iter().map(|(name, ms)| (name.to_owned(), json!(ms))).collect::<Map<_, _>>().into()
}

fn trust(t: &TrustView) -> Value {
    json!({
        "trust": t.trust.factor(),
        "error": t.error,
        "likely_cause": t.likely_cause.map(LikelyCause::word),
        "agreed": t.checks.agreed,
        "over": t.checks.over,
        "under": t.checks.under,
        "unknown": t.checks.unknown,
        "other_lengths": t.checks.lengths,
    })
}

/// The state in one word: what keeps requests away first.
fn state(w: &WorkerView, now: Time) -> String {
    let shed = w.part.shed_until.is_some_and(|until| now < until) || !w.part.overload.is_none();
    if let (fleet::State::Ready, Some(ailment)) = (w.state, w.part.ailment) {
        return ailment.word().to_owned();
    }
    match (w.state, w.drain, shed) {
        (fleet::State::Ready, Some(_), _) => "draining".to_owned(),
        (fleet::State::Ready, None, true) => "overloaded".to_owned(),
        (state, _, _) => state.to_string(),
    }
}

pub(super) async fn remove(State(admin): State<Admin>, Path(id): Path<String>) -> Response {
    admin.registered.forget(&id);
    if admin.fleet.remove(&id) { StatusCode::NO_CONTENT.into_response() } else { unknown() }
}

/// What becomes of a draining worker's sessions: nothing (they may finish), or they move.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moves {
    /// With their next turn, from now on.
    move_sessions: Option<bool>,
    /// The same from then on, e.g. `10m`.
    deadline: Option<String>,
}

pub(super) async fn drain(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    Query(moves): Query<Moves>,
) -> Response {
    let after = match (moves.move_sessions, moves.deadline.as_deref()) {
        (Some(true), None) => Some(Duration::ZERO),
        (None | Some(false), None) => None,
        (Some(true), Some(_)) => {
            let text = "move_sessions moves them now and deadline later: give one of them";
            return problem(StatusCode::BAD_REQUEST, "invalid_request", text);
        }
        (None | Some(false), Some(text)) => match humantime::parse_duration(text) {
            Ok(after) if after <= DEADLINE_MOST => Some(after),
            _ => {
                let text = "deadline must be a duration of at most a year, such as 90s, 10m or 1h";
                return problem(StatusCode::BAD_REQUEST, "invalid_request", text);
            }
        },
    };
    let moves_at = after.map(|after| admin.shell.now() + after);
    change(&admin, &id, Some(Drain { moves_at }))
}

pub(super) async fn undrain(State(admin): State<Admin>, Path(id): Path<String>) -> Response {
    change(&admin, &id, None)
}

fn change(admin: &Admin, name: &str, drain: Option<Drain>) -> Response {
    let core = admin.shell.core();
    let Some(worker) = core.worker_named(name) else { return unknown() };
    if core.handle_fleet(admin.shell.now(), FleetChange::Drain(worker, drain)).is_err() {
        // It has departed in this very moment.
        return unknown();
    }
    admin.shell.pump();
    tracing::info!(worker = name, draining = drain.is_some(), "an operator has spoken");
    let workers = core.workers();
    match workers.iter().find(|w| &*w.info.spec.name == name) {
        Some(w) => Json(one(admin, w)).into_response(),
        None => unknown(),
    }
}

fn unknown() -> Response {
    problem(StatusCode::NOT_FOUND, "unknown_worker", "there is no worker of this id")
}
