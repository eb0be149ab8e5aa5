//! Plays a workload through a gateway, as clients do: each session is a loop that sends a turn, reads the
//! streamed answer, thinks, and sends the next one.

use super::stage::MODEL;
use crate::progress::Progress;
use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use homing_runtime::upstream::{Link, Outgoing, Upstream};
use homing_sim::workload::{Session, Workload};
use homing_wire::sse::{SseEvent, SseScanner};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What the clients saw.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// Turns per worker, by the header that names it.
    pub(super) per_worker: BTreeMap<String, u64>,
    /// What went wrong, if anything did.
    pub(super) failed: Vec<String>,
}

struct Shared {
    played: Mutex<(Played, Progress)>,
    client: Upstream,
    link: Arc<Link>,
    workload: Workload,
    speedup: f64,
}

/// Plays every session to its end.
pub(super) async fn all(
    workload: &Workload,
    gateway: String,
    speedup: f64,
    shown: bool,
) -> anyhow::Result<Played> {
    let progress = Progress::new(workload.turns() as u64, "turns", shown);
    let shared = Arc::new(Shared {
        played: Mutex::new((Played::default(), progress)),
        client: Upstream::new(),
        link: Link::plain(gateway.parse()?),
        workload: workload.clone(),
        speedup,
    });
    let began = Instant::now();
    let mut sessions = JoinSet::new();
    for i in 0..workload.sessions.len() {
        let shared = shared.clone();
        sessions.spawn(async move {
            let session = &shared.workload.sessions[i];
            tokio::time::sleep_until(began + session.start.div_f64(shared.speedup)).await;
            if let Err(error) = shared.session(session).await {
                let mut played = shared.lock();
                played.0.failed.push(format!("{}: {error:#}", session.id));
            }
        });
    }
    while let Some(ended) = sessions.join_next().await {
        ended.context("a session")?;
    }
    let mut all = shared.lock();
    all.1.finish();
    Ok(std::mem::take(&mut all.0))
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Played, Progress)> {
        // Nothing panics while holding it.
        self.played.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn session(&self, session: &Session) -> anyhow::Result<()> {
        let mut replies = Vec::new();
        for turn in &session.turns {
            tokio::time::sleep(turn.think.div_f64(self.speedup)).await;
            let messages = self.workload.messages(session, &replies);
            let body = json!({
                "model": MODEL,
                "messages": messages,
                "max_tokens": turn.output_tokens,
                "ignore_eos": true,
                "stream": true,
            });
            let (worker, reply) = self.turn(&session.id, &body).await?;
            replies.push(reply);
            let mut played = self.lock();
            *played.0.per_worker.entry(worker).or_default() += 1;
            played.1.step();
        }
        Ok(())
    }

    async fn turn(&self, session: &str, body: &Value) -> anyhow::Result<(String, String)> {
        let request = http::Request::post(self.link.uri("/v1/chat/completions")?)
            .header("content-type", "application/json")
            .header("x-homing-session-id", session)
            .body(Outgoing::from(Bytes::from(body.to_string())))?;
        let response =
            self.client.send(&self.link, request).await.map_err(|(_, why)| anyhow!(why))?;
        let status = response.status();
        let worker = response.headers().get("x-homing-worker").cloned();
        let mut stream = response.into_body();
        if !status.is_success() {
            let text = stream.collect().await?.to_bytes();
            bail!("{status}: {}", String::from_utf8_lossy(&text));
        }
        let mut scanner = SseScanner::default();
        let mut reply = String::new();
        while let Some(frame) = stream.frame().await {
            let Ok(chunk) = frame?.into_data() else { continue };
            let _ = scanner.feed(&chunk, |event| {
                if let SseEvent::Data { data, .. } = event
                    && let Ok(event) = serde_json::from_slice::<Value>(data)
                    && let Some(text) = event["choices"][0]["delta"]["content"].as_str()
                {
                    reply.push_str(text);
                }
            });
        }
        let worker = worker.context("the answer names no worker")?;
        if !scanner.done_at_end() {
            bail!("the answer is not complete");
        }
        Ok((worker.to_str()?.to_owned(), reply))
    }
}
