//! The session that a request names (R01), and how it wants to be bound (R20).

use super::Gateway;
use super::reply::Error;
use homing_core::fleet::Route;
use homing_core::ids::SessionKey;
use homing_core::settings::Mode;
use homing_runtime::shell::core_mode;
use homing_wire::request::BodySession;
use http::{HeaderMap, HeaderName};

/// Our own header and Dynamo's twins: at most this long, and refused when longer.
const OWN_MAX: usize = 256;
/// Other tools' ids: beyond this they count as absent, and are counted.
const FOREIGN_MAX: usize = 4096;

/// What our own headers are called; a typing error in one is told, not ignored.
const STEERING: [&str; 6] = [
    "x-homing-session-id",
    "x-homing-affinity",
    // These three have no effect yet, and none that could be missed.
    "x-homing-parent-session-id",
    "x-homing-session-final",
    "x-homing-priority",
    // Our own answer's, in case a client sends back what it got.
    "x-homing-instance",
];

/// Dynamo's twins of targets that a later version brings: ignoring them, as ignoring our own, would send a
/// request where it must not go.
const DYNAMO_TARGETS: [&str; 4] = [
    "x-dynamo-worker-instance-id",
    "x-dynamo-dp-rank",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-prefill-dp-rank",
];

/// Refuses steering that this version can't obey, or doesn't know.
pub(super) fn refuse_unknown_steering(headers: &HeaderMap) -> Result<(), Error> {
    for name in headers.keys().map(HeaderName::as_str) {
        let ours = name.starts_with("x-homing-") && !STEERING.contains(&name);
        if ours || DYNAMO_TARGETS.contains(&name) {
            let text = format!("the header {name} is not supported by this version");
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

/// A session by its name in the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    id: &'a [u8],
    mode: Mode,
}

impl Named<'_> {
    /// Its key, once it is known whose request it is.
    pub(super) fn key(&self, gateway: &Gateway, route: &Route) -> (SessionKey, Mode) {
        // Tenants come with the gateway's keys; until then all callers are one.
        (gateway.shell.secret().session("", &route.adapter, self.id), self.mode)
    }
}

/// The session that a request names; `None` for none, or one that is off.
pub(super) fn find<'a>(
    gateway: &Gateway,
    headers: &'a HeaderMap,
    body: &'a BodySession<'_>,
) -> Result<Option<Named<'a>>, Error> {
    let affinity = &gateway.settings.affinity;
    let wanted = match headers.get("x-homing-affinity").map(|v| v.as_bytes()) {
        None => None,
        Some(b"hard") => Some(Some(Mode::Hard)),
        Some(b"soft") => Some(Some(Mode::Soft)),
        Some(b"off") => Some(None),
        Some(_) => {
            let text = "x-homing-affinity must be `hard`, `soft` or `off`";
            return Err(Error::invalid(text.to_owned()));
        }
    };
    let mut found: Option<(&[u8], Mode)> = None;
    for name in &gateway.session_headers {
        if let Some(id) = from_header(gateway, headers, name)? {
            found = Some((id, core_mode(affinity.mode)));
            break;
        }
    }
    if found.is_none() {
        gateway.shell.metrics().ignored_keys.inc_by(u64::from(body.too_long));
        let id = body.id.as_deref().map(str::as_bytes);
        found = id.map(|id| (id, core_mode(affinity.body_mode)));
    }
    let Some((id, usual)) = found else { return Ok(None) };
    Ok(match wanted {
        Some(None) => None,
        Some(Some(mode)) => Some(Named { id, mode }),
        None => Some(Named { id, mode: usual }),
    })
}

fn from_header<'a>(
    gateway: &Gateway,
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a [u8]>, Error> {
    let mut values = headers.get_all(name).iter().map(|v| v.as_bytes()).filter(|v| !v.is_empty());
    let Some(id) = values.next() else { return Ok(None) };
    let own = name.as_str().starts_with("x-homing-") || name.as_str().starts_with("x-dynamo-");
    if !own {
        if id.len() > FOREIGN_MAX {
            gateway.shell.metrics().ignored_keys.inc();
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
