//! The session that a body names, at the places that the configuration lists.
//!
//! Places are dotted paths of object keys, tried in order; the first that holds a usable id wins. One
//! place is known by its tenant: Anthropic's `metadata.user_id`, where Claude Code writes a JSON object
//! *as a text* with a `session_id` inside. Any other text there names a user, not a session, and would
//! tie all that user's sessions together; so it counts as absent.

use crate::json::Raw;
use std::borrow::Cow;

/// The longest session id that is taken from a body; longer ones count as absent, and are counted.
pub const MAX_BODY_SESSION_BYTES: usize = 4096;

const ANTHROPIC_USER: [&str; 2] = ["metadata", "user_id"];

/// Where sessions are looked for in a body, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyPaths(Vec<Vec<String>>);

/// A path that can lead nowhere: the path as it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no path of a field: write names joined by dots, like `metadata.user_id`")]
pub struct PathError(pub String);

/// What was found in a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodySession<'a> {
    /// The id; never empty.
    pub id: Option<Cow<'a, str>>,
    /// Which of the configured paths it is from, counted from 0.
    pub path: usize,
    /// Ids that were passed over because they were too long.
    pub too_long: u32,
}

impl BodyPaths {
    /// Reads paths like `prompt_cache_key` and `metadata.user_id`.
    ///
    /// # Errors
    /// Where a path is empty or has an empty name in it.
    pub fn parse<S: AsRef<str>>(paths: &[S]) -> Result<Self, PathError> {
        let parse = |path: &S| {
            let names: Vec<String> = path.as_ref().split('.').map(str::to_owned).collect();
            match names.iter().any(String::is_empty) {
                true => Err(PathError(path.as_ref().to_owned())),
                false => Ok(names),
            }
        };
        paths.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn roots(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|path| path[0].as_str())
    }
}

/// The first usable id; `roots` has the value under each path's first name.
pub(super) fn find<'a>(paths: &BodyPaths, roots: &[Option<Raw<'a>>]) -> BodySession<'a> {
    let mut session = BodySession::default();
    for (index, (path, root)) in paths.0.iter().zip(roots).enumerate() {
        let leaf = path[1..].iter().fold(*root, |at, name| at.and_then(|raw| raw.member(name)));
        let Some(raw) = leaf else { continue };
        let id = if *path == ANTHROPIC_USER { session_of_user(raw) } else { plain(raw) };
        match id {
            Some(id) if id.len() > MAX_BODY_SESSION_BYTES => session.too_long += 1,
            Some(id) if !id.is_empty() => {
                return BodySession { id: Some(id), path: index, ..session };
            }
            _ => {}
        }
    }
    session
}

/// A text, or a whole number by its digits.
fn plain(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    let digits = raw.get().strip_prefix('-').unwrap_or(raw.get());
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Cow::Borrowed(raw.get()));
    }
    raw.text()
}

/// The `session_id` in the JSON object that is written in this text.
fn session_of_user(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    let written = raw.text()?;
    let inner = Raw::parse(written.as_bytes()).ok()?;
    let id = plain(inner.member("session_id")?)?;
    Some(Cow::Owned(id.into_owned()))
}
