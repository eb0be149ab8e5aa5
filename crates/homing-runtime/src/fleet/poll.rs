//! Asking TensorRT-LLM for its events, again and again. An idle engine answers after two seconds, a busy one
//! at once; the pauses are for those that don't wait.

use super::sources::POLL;
use crate::ask::Ask;
use crate::ingest::{Ingest, Polled};
use crate::upstream::Upstream;
use bytes::Bytes;
use homing_wire::engine::Kind;
use std::time::Duration;
use tokio::time::Instant;

/// What one answer may be: every token is some 60 bytes of it, so this is a quarter of a million.
const MAX_ANSWER: usize = 16 << 20;
/// For an answer: an engine waits for 2 s for something to tell, and writes it all at once.
const PATIENCE: Duration = Duration::from_secs(15);
/// After an answer that told something; what happened meanwhile is told with the next.
const PAUSE: Duration = Duration::from_millis(100);
/// After one that didn't.
const PAUSE_IDLE: Duration = Duration::from_millis(500);
/// After none.
const PAUSE_FAILED: Duration = Duration::from_secs(1);
/// Without an answer for so long, the engine counts as unreachable.
const LOST: Duration = Duration::from_secs(10);
/// An engine that has told nothing for so long is said to tell nothing. One that was started to tell of its
/// cache does so first of all.
const SILENT: Duration = Duration::from_secs(30);

/// Until it is dropped.
pub(super) async fn run(ask: Ask, ingest: Ingest, mut polled: Polled) {
    let ask = Ask { upstream: Upstream::new(), timeout: PATIENCE, ..ask };
    let worker = polled.worker().to_owned();
    let began = Instant::now();
    let mut answered = Instant::now();
    let mut said = false;
    loop {
        let pause = match ask.post(POLL, Bytes::new(), MAX_ANSWER).await {
            Ok((200, body)) => {
                answered = Instant::now();
                // Parsing megabytes takes a while, and probes wait on this thread.
                let took = tokio::task::spawn_blocking(move || {
                    let told = polled.take(&body);
                    (polled, told)
                });
                // It can't be cancelled, so it has panicked, and what it knew is gone with it.
                let Ok((back, told)) = took.await else { return };
                polled = back;
                said = false;
                polled.reached(true);
                if told { PAUSE } else { PAUSE_IDLE }
            }
            other => {
                if answered.elapsed() >= LOST {
                    polled.reached(false);
                    if !std::mem::replace(&mut said, true) {
                        let why = other.map_or_else(|f| format!("{f:?}"), |(s, _)| s.to_string());
                        tracing::warn!(worker, why, "the worker doesn't answer {POLL} any more");
                    }
                }
                PAUSE_FAILED
            }
        };
        if !polled.has_heard() && began.elapsed() >= SILENT {
            let why = "it has told of nothing yet";
            ingest.without_events(&worker, Kind::TensorRtLlm, why);
        }
        tokio::time::sleep(pause).await;
    }
}
