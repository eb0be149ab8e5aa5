//! The headers that steer a request: who may serve it, how firmly its session binds, whether it is the
//! last (R09, R19, R20). Only read here: what a worker's name or a label means is the core's to say.
//!
//! A request that says two things, or something that can't be read, is refused and not guessed at: what
//! was meant as a constraint must never be dropped. Dynamo's twins of our headers mean the same. Which
//! session it is, is found in `session`.

use super::reply::Error;
use homing_core::ask::{Constraints, Explicit};
use homing_core::ids::DpRank;
use homing_core::settings::Mode;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;

/// The most workers that a request may list.
const MOST_WORKERS: usize = 1024;
/// The most labels that a request may ask for.
const MOST_LABELS: usize = 64;
/// So much of a client's own words goes back to it.
const ECHO: usize = 128;

const AFFINITY: &str = "x-homing-affinity";
const ALLOWED: &str = "x-homing-allowed-workers";
const LABELS: &str = "x-homing-require-labels";
const PRIORITY: &str = "x-homing-priority";
/// Ours first, then its twin.
const WORKER: [&str; 2] = ["x-homing-worker", "x-dynamo-worker-instance-id"];
const RANK: [&str; 2] = ["x-homing-dp-rank", "x-dynamo-dp-rank"];
const LAST: [&str; 2] = ["x-homing-session-final", "x-dynamo-session-final"];

/// Those that steer.
const STEERS: [&str; 10] =
    [AFFINITY, ALLOWED, LABELS, PRIORITY, WORKER[0], WORKER[1], RANK[0], RANK[1], LAST[0], LAST[1]];

/// Ours that don't, and are read: by the session finder; and our own answer's, in case a client sends back what it got.
const OTHERS: [&str; 3] =
    ["x-homing-session-id", "x-homing-parent-session-id", "x-homing-instance"];

/// Twins of targets that a later version brings: ignoring them would send a request where it must not go.
const UNBUILT_TWINS: [&str; 2] = ["x-dynamo-prefill-instance-id", "x-dynamo-prefill-dp-rank"];

/// What a request says of its session's mode (R20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// This mode, whatever is configured.
    Mode(Mode),
    /// As if it named no session.
    Off,
}

/// What a request's headers ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Steering {
    /// `x-homing-affinity`.
    pub(super) affinity: Option<Wanted>,
    /// The explicit target's worker, by the name in the settings; never empty.
    pub(super) worker: Option<String>,
    /// The explicit target's rank; only with a worker.
    pub(super) rank: Option<u16>,
    /// The only workers that may serve it, at most 1,024, as they were listed; an empty list allows nobody.
    pub(super) allowed: Option<Vec<String>>,
    /// Labels that its worker must have, at most 64; no key is empty.
    pub(super) labels: Vec<(String, String)>,
    /// The session ends with this request.
    pub(super) last: bool,
    /// Higher first; 0 unless said otherwise.
    pub(super) priority: i32,
}

/// Whether any header is of those that steer: of most requests none is, and one look at each tells.
///
/// # Errors
/// Where one is ours that nobody reads: a typing error is told, not ignored.
fn says_any(headers: &HeaderMap) -> Result<bool, Error> {
    let mut any = false;
    for name in headers.keys().map(HeaderName::as_str) {
        let ours = name.starts_with("x-homing-");
        if !ours && !name.starts_with("x-dynamo-") {
            continue;
        }
        let steers = STEERS.contains(&name);
        if ours && !steers && !OTHERS.contains(&name) || UNBUILT_TWINS.contains(&name) {
            let name = short(name);
            return Err(invalid(format!("the header {name} is not supported by this version")));
        }
        any |= steers;
    }
    Ok(any)
}

impl Steering {
    /// Reads the headers.
    ///
    /// # Errors
    /// 400 `invalid_request` where one can't be read, contradicts another, or is none that this version
    /// knows.
    pub(super) fn parse(headers: &HeaderMap) -> Result<Self, Error> {
        if !says_any(headers)? {
            return Ok(Self::default());
        }
        let worker = one(headers, &WORKER, "the name of a worker", |v| Some(v.to_owned()))?;
        let rank = one(headers, &RANK, "a number from 0 to 65535", rank)?;
        if rank.is_some() && worker.is_none() {
            let text = format!("a rank needs its worker: set {} too", WORKER[0]);
            return Err(invalid(text));
        }
        let mut last = false;
        for name in LAST {
            // Whoever says that it is the last is believed.
            last |= one(headers, &[name], "`true` or `false`", truth)?.unwrap_or(false);
        }
        let priority = one(headers, &[PRIORITY], "a whole number", |v| v.parse().ok())?;
        Ok(Self {
            affinity: affinity(headers)?,
            worker,
            rank,
            allowed: allowed(headers)?,
            labels: labels(headers)?,
            last,
            priority: priority.unwrap_or(0),
        })
    }

    /// Whether it says where it goes, or before whom.
    pub(super) fn steers(&self) -> bool {
        self.worker.is_some()
            || self.allowed.is_some()
            || !self.labels.is_empty()
            || self.priority != 0
    }

    /// Whether the headers say `off`, and nothing else, of the session.
    pub(super) fn is_off(headers: &HeaderMap) -> bool {
        affinity(headers).is_ok_and(|wanted| wanted == Some(Wanted::Off))
    }

    /// The target that it names (R09).
    pub(super) fn explicit(&self) -> Option<Explicit> {
        let worker = self.worker.as_deref()?.into();
        Some(Explicit { worker, rank: self.rank.map(DpRank) })
    }

    /// What it allows.
    pub(super) fn constraints(&self) -> Option<Arc<Constraints>> {
        if self.allowed.is_none() && self.labels.is_empty() {
            return None;
        }
        Some(Arc::new(Constraints::new(self.allowed.clone(), self.labels.clone())))
    }
}

fn affinity(headers: &HeaderMap) -> Result<Option<Wanted>, Error> {
    let mut found = None;
    for value in headers.get_all(AFFINITY) {
        // Exactly these: an empty one is no word either.
        let wanted = match value.as_bytes() {
            b"hard" => Wanted::Mode(Mode::Hard),
            b"soft" => Wanted::Mode(Mode::Soft),
            b"off" => Wanted::Off,
            _ => return Err(invalid(format!("{AFFINITY} must be `hard`, `soft` or `off`"))),
        };
        if found.replace(wanted).is_some_and(|before| before != wanted) {
            return Err(differs(AFFINITY, AFFINITY));
        }
    }
    Ok(found)
}

fn allowed(headers: &HeaderMap) -> Result<Option<Vec<String>>, Error> {
    let mut all = None;
    for value in headers.get_all(ALLOWED) {
        // There, though it may name nobody.
        let all: &mut Vec<String> = all.get_or_insert_default();
        for item in items(ALLOWED, value)? {
            let item = item?;
            if all.len() == MOST_WORKERS {
                return Err(invalid(format!("{ALLOWED} lists more than {MOST_WORKERS} workers")));
            }
            all.push(item.to_owned());
        }
    }
    Ok(all)
}

fn labels(headers: &HeaderMap) -> Result<Vec<(String, String)>, Error> {
    let mut all = Vec::new();
    for value in headers.get_all(LABELS) {
        for item in items(LABELS, value)? {
            let item = item?;
            let pair = item.split_once('=').map(|(k, v)| (blank(k), blank(v)));
            let Some((key, value)) = pair.filter(|(key, _)| !key.is_empty()) else {
                let text =
                    format!("{LABELS} must be like `zone=a,gpu=h200`, not `{}`", short(item));
                return Err(invalid(text));
            };
            if all.len() == MOST_LABELS {
                return Err(invalid(format!("{LABELS} asks for more than {MOST_LABELS} labels")));
            }
            all.push((key.to_owned(), value.to_owned()));
        }
    }
    Ok(all)
}

/// The items of a list (RFC 9110, 5.6.1): blanks around them and empty ones count for nothing.
fn items<'a>(
    name: &'static str,
    value: &'a HeaderValue,
) -> Result<impl Iterator<Item = Result<&'a str, Error>>, Error> {
    let items = utf8(name, value)?.split(',').map(blank).filter(|item| !item.is_empty());
    Ok(items.map(move |item| printable(name, item)))
}

/// The one value that these headers have, all of them together; empty ones count as absent.
fn one<T: PartialEq>(
    headers: &HeaderMap,
    names: &[&'static str],
    expected: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Error> {
    let mut found: Option<(&str, T)> = None;
    for name in names {
        for value in headers.get_all(*name) {
            let written = printable(name, blank(utf8(name, value)?))?;
            if written.is_empty() {
                continue;
            }
            let Some(value) = read(written) else {
                let text = format!("{name} must be {expected}, not `{}`", short(written));
                return Err(invalid(text));
            };
            match &found {
                None => found = Some((name, value)),
                Some((_, before)) if *before == value => {}
                Some((first, _)) => return Err(differs(first, name)),
            }
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// Decimal digits only: a rank is no place for a sign.
fn rank(written: &str) -> Option<u16> {
    let digits = written.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| written.parse().ok()).flatten()
}

fn truth(written: &str) -> Option<bool> {
    let is = |word: &str| written.eq_ignore_ascii_case(word);
    match () {
        () if is("true") || is("1") => Some(true),
        () if is("false") || is("0") => Some(false),
        () => None,
    }
}

/// A header may hold any bytes but most control characters; names and labels are texts.
fn utf8<'a>(name: &str, value: &'a HeaderValue) -> Result<&'a str, Error> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map_err(|_| invalid(format!("{name} must be a text in UTF-8")))
}

fn printable<'a>(name: &str, text: &'a str) -> Result<&'a str, Error> {
    if text.chars().any(char::is_control) {
        return Err(invalid(format!("{name} must not have control characters")));
    }
    Ok(text)
}

/// Without the blanks that HTTP allows around a value.
fn blank(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// The beginning of a client's own words, for sending back to it.
fn short(text: &str) -> String {
    text.chars().take(ECHO).collect()
}

fn invalid(text: String) -> Error {
    Error::invalid(text)
}

fn differs(first: &str, second: &str) -> Error {
    if first == second {
        return invalid(format!("the header {first} is there twice, with different values"));
    }
    invalid(format!("the headers {first} and {second} say different things"))
}

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;
