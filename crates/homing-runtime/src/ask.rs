//! Asking a worker (or a router) about itself, bounded in time and size. Apart from what is asked and why.

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
pub struct Ask {
    /// The connections.
    pub upstream: Upstream,
    /// Who is asked.
    pub url: WorkerUrl,
    /// For a whole answer.
    pub timeout: Duration,
}

impl Ask {
    /// The worker's host, an IPv6 address in its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        let authority = self.url.authority();
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    }

    /// The status and body of what is at `path` behind the base path.
    ///
    /// # Errors
    /// Where there is no whole answer in time, or one of more than 8 MiB.
    pub async fn get(&self, path: &str) -> Result<(u16, Bytes), Failure> {
        self.send(http::Method::GET, path, Bytes::new(), MAX_ANSWER).await
    }

    /// Likewise by POST of JSON, or of nothing; the answer may have so many bytes.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn post(
        &self,
        path: &str,
        body: Bytes,
        most: usize,
    ) -> Result<(u16, Bytes), Failure> {
        self.send(http::Method::POST, path, body, most).await
    }

    async fn send(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
        most: usize,
    ) -> Result<(u16, Bytes), Failure> {
        let uri = format!("{}{path}", self.url);
        let mut request = http::Request::builder().method(method).uri(uri);
        if !body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(body))
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
