//! Who may ask the admin server what (`admin.token_file`): a token of the role `read` sees everything, one of
//! `operate` changes things too. Without a file there is no login, and the server listens on loopback only; then
//! [`super::host`] keeps web pages out, which a token does by itself.
//!
//! Whatever changes something leaves a line in the log, target `homing::audit`: who, what, from where, and what came
//! of it.

use super::{Admin, host, problem};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use homing_runtime::keys::{Keys, KeysError, bearer};
use homing_runtime::settings::Settings;
use std::net::SocketAddr;
use std::path::Path;

/// What a token may do, as its file calls it.
const OPERATE: &str = "operate";
const READ: &str = "read";

/// The tokens of a version of the settings; `None`: everybody may do everything.
#[derive(Debug, Default)]
pub struct Tokens(Option<Keys>);

impl Tokens {
    /// Reads the file that the settings name.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn load(settings: &Settings) -> Result<Self, KeysError> {
        settings.admin.token_file.as_deref().map(read).transpose().map(Self)
    }
}

fn read(path: &Path) -> Result<Keys, KeysError> {
    let keys = Keys::read(path)?;
    if keys.owners().all(|role| matches!(&**role, OPERATE | READ)) {
        return Ok(keys);
    }
    let what = "has a line that begins neither with `operate:` nor with `read:`";
    Err(KeysError::Whole { path: path.to_owned(), what })
}

/// Whether a path is for whoever runs the process, and says nothing of its work.
fn is_open(path: &str) -> bool {
    matches!(path, "/health" | "/ready")
}

/// Whether a request changes something. A preview is a question that needs a body.
fn changes(method: &Method, path: &str) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) && path != "/admin/preview"
}

/// Lets a request pass, or answers 401 or 403.
pub(super) async fn check(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let tokens = admin.tokens.load_full();
    let role = match &tokens.0 {
        None => match host::asks_for_us(request.uri(), request.headers()) {
            true => OPERATE,
            false => return host::refused(),
        },
        Some(_) if is_open(&path) => READ,
        Some(keys) => match bearer(request.headers()).and_then(|token| keys.owner(token)) {
            Some(role) if &**role == OPERATE => OPERATE,
            Some(_) => READ,
            None => {
                let text = "a token is needed: send a line's token of admin.token_file as `Authorization: Bearer TOKEN`";
                let mut response = problem(StatusCode::UNAUTHORIZED, "unauthorized", text);
                let bearer = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
                return response;
            }
        },
    };
    if !changes(&method, &path) {
        return next.run(request).await;
    }
    if tokens.0.is_none() && is_of_a_page(request.headers()) {
        let text = "web pages may not change anything here (Origin, Sec-Fetch-Site)";
        return problem(StatusCode::FORBIDDEN, "origin_not_allowed", text);
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    let query = request.uri().query().map(str::to_owned);
    let response = match role {
        OPERATE => next.run(request).await,
        _ => {
            let text = "the token may look and not touch: this asks for one of the role `operate`";
            problem(StatusCode::FORBIDDEN, "not_allowed", text)
        }
    };
    let login = tokens.0.is_some().then_some(role);
    // A session's clear id is nobody's business but its client's.
    let what = if path.starts_with("/admin/sessions/") { "/admin/sessions/.." } else { &path };
    tracing::info!(
        target: "homing::audit",
        method = %method,
        path = what,
        query,
        role = login.unwrap_or("nobody logs in here"),
        peer = peer.map(tracing::field::display),
        status = response.status().as_u16(),
        "an operator has spoken"
    );
    response
}

/// Whether a browser sends it on behalf of a page: those of others may ask by address, and for simple requests nobody
/// asks us first.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|v| v.as_bytes());
    headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != b"none")
}
