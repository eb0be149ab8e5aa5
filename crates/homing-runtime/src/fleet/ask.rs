//! Asking a worker about itself, bounded in time and size. Apart from what is asked and why.

use crate::settings::WorkerUrl;
use crate::upstream::Upstream;
use bytes::Bytes;
use homing_core::ask::Failure;
use http_body_util::{BodyExt, Full, Limited};
use std::time::Duration;

/// What an engine may say about itself. vLLM's metrics are some 100 KB.
const MAX_ANSWER: usize = 8 << 20;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) upstream: Upstream,
    pub(super) url: WorkerUrl,
    /// For a whole answer.
    pub(super) timeout: Duration,
}

impl Ask {
    /// The worker's host, an IPv6 address in its brackets.
    pub(super) fn host(&self) -> &str {
        let authority = self.url.authority();
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    }

    /// The status and body of what is at `path` behind the worker's base path.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, Bytes), Failure> {
        self.send(http::Method::GET, path, MAX_ANSWER).await
    }

    /// Likewise, of at most so many bytes.
    pub(super) async fn post(&self, path: &str, most: usize) -> Result<(u16, Bytes), Failure> {
        self.send(http::Method::POST, path, most).await
    }

    async fn send(
        &self,
        method: http::Method,
        path: &str,
        most: usize,
    ) -> Result<(u16, Bytes), Failure> {
        let uri = format!("{}{path}", self.url);
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .body(Full::new(Bytes::new()))
            // The URL was validated; a health path that makes it none is an unreachable worker.
            .map_err(|_| Failure::Unreachable)?;
        let answer = async {
            let response = self.upstream.send(request).await.map_err(|(failure, _)| failure)?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), most).collect().await;
            Ok((status, body.map_err(|_| Failure::Broken)?.to_bytes()))
        };
        tokio::time::timeout(self.timeout, answer).await.unwrap_or(Err(Failure::Unreachable))
    }
}
