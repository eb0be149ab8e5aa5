//! Asking a worker (or a router) about itself, bounded in time and size. Apart from what is asked and why.

use crate::upstream::{Link, Outgoing, Upstream};
use bytes::Bytes;
use homing_core::ask::Failure;
use http_body_util::{BodyExt, Limited};
use std::sync::Arc;
use std::time::Duration;

/// What an engine may say about itself. vLLM's metrics are some 100 KB.
const MAX_ANSWER: usize = 8 << 20;

/// See the module.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The connections.
    pub upstream: Upstream,
    /// Who is asked, and how.
    pub link: Arc<Link>,
    /// For a whole answer.
    pub timeout: Duration,
}

impl Ask {
    /// The worker's host, an IPv6 address in its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        let authority = self.link.url().authority();
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    }

    /// The status and body of what is at `path` behind the base path.
    ///
    /// # Errors
    /// Where there is no whole answer in time, or one of more than 8 MiB.
    pub async fn get(&self, path: &str) -> Result<(u16, Bytes), Failure> {
        let answer = self.send(http::Method::GET, path, Bytes::new(), MAX_ANSWER).await;
        answer.map_err(|(failure, _)| failure)
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
        let answer = self.send(http::Method::POST, path, body, most).await;
        answer.map_err(|(failure, _)| failure)
    }

    /// The status of a DELETE of what is at `path`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn delete(&self, path: &str) -> Result<u16, Failure> {
        let answer = self.send(http::Method::DELETE, path, Bytes::new(), MAX_ANSWER).await;
        answer.map(|(status, _)| status).map_err(|(failure, _)| failure)
    }

    /// The status of what is at `path`.
    ///
    /// # Errors
    /// As [`Self::get`], and why in words.
    pub async fn probe(&self, path: &str) -> Result<u16, (Failure, String)> {
        let answer = self.send(http::Method::GET, path, Bytes::new(), MAX_ANSWER).await;
        answer.map(|(status, _)| status)
    }

    async fn send(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
        most: usize,
    ) -> Result<(u16, Bytes), (Failure, String)> {
        // The URL was validated; a health path that makes it none is an unreachable worker.
        let uri = self.link.uri(path).map_err(|e| (Failure::Unreachable, e.to_string()))?;
        let is_json = !body.is_empty();
        let mut request = http::Request::new(Outgoing::from(body));
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        if is_json {
            let json = http::HeaderValue::from_static("application/json");
            request.headers_mut().insert(http::header::CONTENT_TYPE, json);
        }
        let answer = async {
            let response = self.upstream.send(&self.link, request).await?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), most).collect().await;
            Ok((status, body.map_err(|e| (Failure::Broken, e.to_string()))?.to_bytes()))
        };
        let late = |_| Err((Failure::Unreachable, "it doesn't answer in time".to_owned()));
        tokio::time::timeout(self.timeout, answer).await.unwrap_or_else(late)
    }
}
