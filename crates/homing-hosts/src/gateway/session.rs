//! The session that a request names (R01), or belongs to by its parent (R18), or is known by (`infer`);
//! and the mode that it binds with (R20).
//!
//! First it is found, by the request alone; its key is made once its tenant and adapter are known. Group
//! keys and inferred ones are of kinds of their own, so no session id can name them.

use super::reply::Error;
use super::steering::{Steering, Wanted};
use homing_core::ask::Session;
use homing_core::ids::{KeySecret, OpeningHash};
use homing_core::settings::Mode;
use homing_runtime::settings::{Affinity, Subagents};
use homing_runtime::shell::core_mode;
use homing_wire::request::CommonView;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Our own headers and Dynamo's twins: at most this long, and refused when longer.
const OWN_MAX: usize = 256;
/// Other tools' ids: beyond this they count as absent, and are counted.
const FOREIGN_MAX: usize = 4096;

/// Where a parent's id is looked for, in order. The last is OpenCode's.
const PARENT_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-homing-parent-session-id"),
    HeaderName::from_static("x-dynamo-parent-session-id"),
    HeaderName::from_static("x-parent-session-id"),
];

/// Where sessions are looked for, and what is made of them.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    /// `affinity.headers`, in order.
    pub(super) headers: Vec<HeaderName>,
    /// Where a parent's id may be, in order.
    pub(super) parents: Vec<HeaderName>,
    /// `affinity.mode`: of ids in headers, and of groups.
    pub(super) mode: Mode,
    /// `affinity.body_mode`: of ids in bodies, and of inferred sessions.
    pub(super) body_mode: Mode,
    /// `affinity.subagents = "group"`.
    pub(super) group: bool,
    /// `affinity.infer`.
    pub(super) infer: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    /// `None`: no session, or one that is off.
    pub(super) named: Option<Named<'a>>,
    /// Ids of other tools that were too long and count as absent.
    pub(super) ignored: u32,
}

/// A session by its name in the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    /// What names it.
    pub(super) kind: Kind<'a>,
    /// How firmly it binds.
    pub(super) mode: Mode,
    /// The session ends with this request (R19); never true of a group, whose end its parent says.
    pub(super) last: bool,
    /// Whose children's group ends with this request: that of the id which the request itself has, though
    /// it may be a child that binds with its own siblings.
    ends: Option<&'a [u8]>,
}

/// What names a session.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    /// Its own id; never empty.
    Own(&'a [u8]),
    /// Its parent's id: all children of this parent are one session.
    Group(&'a [u8]),
    /// Nothing: how the conversation opens, and the model as the client calls it.
    Inferred {
        /// Never empty.
        model: &'a str,
        /// Of tools, instructions and first user message.
        opening: OpeningHash,
    },
}

impl Named<'_> {
    /// As the core knows it, once it is known whose request it is and for which adapter ("" where there is none).
    pub(super) fn session(&self, secret: &KeySecret, tenant: &str, adapter: &str) -> Session {
        let key = match self.kind {
            Kind::Own(id) => secret.session(tenant, adapter, id),
            Kind::Group(parent) => secret.group(tenant, adapter, parent),
            Kind::Inferred { model, opening } => secret.inferred(tenant, adapter, model, opening),
        };
        let ends_group = self.ends.map(|id| secret.group(tenant, adapter, id));
        Session { key, mode: self.mode, last: self.last, ends_group }
    }
}

impl Finder {
    /// As the settings say.
    pub(super) fn of(affinity: &Affinity) -> Self {
        let names = affinity.headers.iter();
        Self {
            headers: names.filter_map(|h| HeaderName::from_bytes(h.as_bytes()).ok()).collect(),
            parents: PARENT_HEADERS.to_vec(),
            mode: core_mode(affinity.mode),
            body_mode: core_mode(affinity.body_mode),
            group: affinity.subagents == Subagents::Group,
            infer: affinity.infer,
        }
    }

    /// The session of a request. `opening` is asked only where a session is to be inferred.
    ///
    /// # Errors
    /// 400 `invalid_session_id` where one of our own headers is wrong, whatever it would have been used for.
    pub(super) fn find<'a>(
        &self,
        headers: &'a HeaderMap,
        steering: &Steering,
        body: &'a CommonView<'_>,
        opening: impl FnOnce() -> Option<OpeningHash>,
    ) -> Result<Found<'a>, Error> {
        let mut ignored = 0;
        let mut own = first(&self.headers, headers, &mut ignored)?.map(|id| (id, self.mode));
        if own.is_none() {
            ignored += body.session.too_long;
            own = body.session.id.as_deref().map(|id| (id.as_bytes(), self.body_mode));
        }
        let parent = first(&self.parents, headers, &mut ignored)?;
        let none = Found { named: None, ignored };
        if steering.affinity == Some(Wanted::Off) {
            return Ok(none);
        }
        let (kind, usual) = match (parent, own) {
            (Some(parent), _) if self.group => (Kind::Group(parent), self.mode),
            (_, Some((id, mode))) => (Kind::Own(id), mode),
            // A child without an id of its own: nobody's session, and not to be guessed.
            (Some(_), None) => return Ok(none),
            (None, None) => match self.infer.then(opening).flatten() {
                Some(opening) => (Kind::Inferred { model: &body.model, opening }, self.body_mode),
                None => return Ok(none),
            },
        };
        let mode = match steering.affinity {
            Some(Wanted::Mode(mode)) => mode,
            _ => usual,
        };
        let last = steering.last && !matches!(kind, Kind::Group(_));
        let ends = own.map(|(id, _)| id).filter(|_| steering.last);
        Ok(Found { named: Some(Named { kind, mode, last, ends }), ignored })
    }
}

impl Finder {
    /// Whether a header names a session, however the request goes on; for a request that can't be read.
    pub(super) fn names_one(&self, headers: &HeaderMap) -> bool {
        let there = |name| headers.get_all(name).iter().any(|v: &HeaderValue| !v.is_empty());
        let parents = self.parents.iter().filter(|_| self.group);
        !Steering::is_off(headers) && self.headers.iter().chain(parents).any(there)
    }
}

/// The first usable id in these headers.
fn first<'a>(
    names: &[HeaderName],
    headers: &'a HeaderMap,
    ignored: &mut u32,
) -> Result<Option<&'a [u8]>, Error> {
    let mut found = None;
    let there = lengths(headers);
    // A look at the map costs as much as all this: most names are not there, nor any as long.
    for name in names.iter().filter(|name| there & length(name) != 0) {
        // One of our own that is wrong is refused, whatever comes before it; of others the first counts.
        if found.is_none() || is_own(name) {
            let id = from_header(headers, name, ignored)?;
            found = found.or(id);
        }
    }
    Ok(found)
}

/// How long the names are that are there: a bit for each length, the last one for all that are longer.
fn lengths(headers: &HeaderMap) -> u64 {
    headers.keys().map(length).fold(0, std::ops::BitOr::bitor)
}

fn length(name: &HeaderName) -> u64 {
    1 << name.as_str().len().min(63)
}

/// Ours, and Dynamo's twins.
fn is_own(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-homing-") || name.as_str().starts_with("x-dynamo-")
}

fn from_header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    ignored: &mut u32,
) -> Result<Option<&'a [u8]>, Error> {
    let mut values = headers.get_all(name).iter().map(|v| v.as_bytes()).filter(|v| !v.is_empty());
    let Some(id) = values.next() else { return Ok(None) };
    if !is_own(name) {
        if id.len() > FOREIGN_MAX {
            *ignored += 1;
            return Ok(None);
        }
        return Ok(Some(id));
    }
    let wrong = if id.len() > OWN_MAX {
        "is longer than 256 bytes"
    } else if id.iter().any(u8::is_ascii_control) {
        "has control characters"
    } else if values.any(|other| other != id) {
        "is there twice, with different values"
    } else {
        return Ok(Some(id));
    };
    Err(Error::session_id(format!("the header {name} {wrong}")))
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "recordings_tests.rs"]
mod recordings;
