//! The one raw structure: values by key with their origins, merged from all sources.
//!
//! Sources are taken from the weakest to the strongest, so a later one simply replaces. A value
//! that could not be read leaves a mark, so that what follows from it is not reported as well.

use super::convert::FromValue;
use super::keys::{self, Key, Shape, Status};
use super::problem::{Fault, Origin, Problem, Problems, echo};
use super::value::{self, Misfit, Value};
use super::{Override, Sources, file};
use std::collections::{BTreeMap, BTreeSet};

/// The prefix of environment variables, and what stands for the dot of a key. Variables without
/// the double underscore are not ours (container platforms make `HOMING_PORT` of a service name).
const ENV_PREFIX: &str = "HOMING_";
const ENV_DOT: &str = "__";

/// Most workers; also the bound of `[[workers]]`.
pub(super) const WORKERS_MAX: usize = 4096;

/// The key whose words are open.
pub(super) const POLICY: &str = "routing.policy";

/// A group of keys that belong together: the file as a whole, one worker, or one model.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// How the group is shown: `workers[0]`; empty for the file as a whole.
    pub(super) name: String,
    /// Where the group begins.
    pub(super) origin: Option<Origin>,
    entries: BTreeMap<&'static str, (Value, Origin)>,
    unreadable: BTreeSet<&'static str>,
    /// Policies that the program brings along: words of `routing.policy` too.
    policies: Vec<&'static str>,
}

impl Group {
    pub(super) fn new(name: String, origin: Origin) -> Self {
        Self { name, origin: Some(origin), ..Self::default() }
    }

    /// Sets a key to what reading it gave, if its status allows.
    pub(super) fn set(
        &mut self,
        key: &'static Key,
        read: Result<Value, Misfit>,
        shown: &str,
        origin: Origin,
        problems: &mut Problems,
    ) {
        let own = |name: &&&str| key.path == POLICY && value::quote(name) == shown;
        let read = match self.policies.iter().find(own) {
            Some(name) if read.is_err() => Ok(Value::Word(name)),
            _ => read,
        };
        match admit(key, read) {
            Ok(value) => {
                self.unreadable.remove(key.path);
                self.entries.insert(key.path, (value, origin));
            }
            Err(refusal) => {
                self.unreadable.insert(key.path);
                problems.push(refusal.into_problem(&self.shown(key.path), shown, origin));
            }
        }
    }

    /// The typed value of a key, its default where nobody set it.
    pub(super) fn read<T: FromValue>(&self, path: &'static str) -> Result<T, Problem> {
        let value = self.value(path).and_then(T::from_value);
        value.ok_or_else(|| Problem {
            fault: Fault::Internal,
            key: path.to_owned(),
            origin: self.origin(path),
            what: format!("`{path}` is not in the key table as the conversion expects it"),
            mend: "report this as a bug of Homing".to_owned(),
        })
    }

    /// A key's value, its default where nobody set it.
    pub(super) fn value(&self, path: &str) -> Option<Value> {
        match self.entries.get(path) {
            Some((value, _)) => Some(value.clone()),
            None => {
                let key = keys::find(path)?;
                value::from_text(&key.kind, key.default).ok()
            }
        }
    }

    /// Where a key's value came from.
    pub(super) fn origin(&self, path: &str) -> Origin {
        self.entries.get(path).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// Whether a key was set to something that could not be read (and was reported).
    pub(super) fn is_unreadable(&self, path: &str) -> bool {
        self.unreadable.contains(path)
    }

    /// How a key of this group is shown: `workers[0].url`.
    pub(super) fn shown(&self, path: &str) -> String {
        match path.split_once('.') {
            Some((_, leaf)) if !self.name.is_empty() => format!("{}.{leaf}", self.name),
            _ => path.to_owned(),
        }
    }
}

/// A value, if the key's status allows it.
fn admit(key: &Key, read: Result<Value, Misfit>) -> Result<Value, Refusal> {
    match key.status {
        Status::Built => read.map_err(Refusal::Misfit),
        Status::Only { value: only, step } => match (read, value::from_text(&key.kind, only)) {
            (Ok(value), Ok(only)) if value == only => Ok(value),
            (Ok(_), Ok(only)) => Err(Refusal::Misfit(Misfit::NotBuilt(
                step,
                format!("remove it, or write {}, which is what this build does", only.to_toml()),
            ))),
            (read, _) => read.map_err(Refusal::Misfit),
        },
        Status::Refused { step, today } => Err(Refusal::NotBuilt(step, today)),
    }
}

/// Why a value of a known key is not taken.
enum Refusal {
    Misfit(Misfit),
    /// The whole key is not built.
    NotBuilt(keys::Step, &'static str),
}

impl Refusal {
    fn into_problem(self, key: &str, shown: &str, origin: Origin) -> Problem {
        let (fault, what, mend) = match self {
            Self::Misfit(Misfit::Wrong(what, mend)) => {
                (Fault::Invalid, format!("`{key}` = {} {what}", echo(shown)), mend)
            }
            Self::Misfit(Misfit::NotBuilt(step, mend)) => (
                Fault::NotBuilt,
                format!("`{key}` = {} is not built yet (planned: {step})", echo(shown)),
                mend,
            ),
            Self::NotBuilt(step, today) => (
                Fault::NotBuilt,
                format!("`{key}` is not built yet (planned: {step})"),
                format!("remove it; today {today}"),
            ),
        };
        Problem { fault, key: key.to_owned(), origin, what, mend }
    }
}

/// All sources, merged.
#[derive(Clone, Debug, Default)]
pub(super) struct Raw {
    /// The keys of the sections that appear once.
    pub(super) top: Group,
    /// `[[models]]`.
    pub(super) models: Vec<Group>,
    /// `[[tenants]]`.
    pub(super) tenants: Vec<Group>,
    /// `[[workers]]`, or what the environment or flags put in their place.
    pub(super) workers: Vec<Group>,
}

impl Raw {
    pub(super) fn collect<E>(
        sources: Sources<E>,
        policies: impl Iterator<Item = &'static str>,
        problems: &mut Problems,
    ) -> Self
    where
        E: IntoIterator<Item = (String, String)>,
    {
        let mut raw = Self::default();
        raw.top.policies = policies.collect();
        if let Some((path, text)) = sources.file {
            file::read(&mut raw, &path, &text, problems);
        }
        raw.environment(sources.env, problems);
        raw.flags(sources.overrides, problems);
        raw
    }

    fn environment<E>(&mut self, env: E, problems: &mut Problems)
    where
        E: IntoIterator<Item = (String, String)>,
    {
        // Sorted, so that the report's order does not hang on the process environment's.
        let mut ours: BTreeMap<String, String> = BTreeMap::new();
        for (name, text) in env {
            let Some(rest) = name.strip_prefix(ENV_PREFIX) else { continue };
            if rest == "WORKERS" || rest.contains(ENV_DOT) {
                ours.insert(name, text);
            } else if let Some(key) = settable().find(|key| one_underscore(key.path) == name) {
                // Others may be anybody's (Kubernetes makes some of its own); this one is meant for us.
                let origin = Origin::Env(name.clone());
                problems.push(unknown(&name, &env_name(key.path), key.path, origin));
            }
        }
        for (name, text) in ours {
            let rest = name.strip_prefix(ENV_PREFIX).unwrap_or_default();
            let origin = Origin::Env(name.clone());
            if rest == "WORKERS" {
                let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
                self.replace_workers(urls.map(|url| (url, origin.clone())), problems);
                continue;
            }
            let path = rest.to_lowercase().replace(ENV_DOT, ".");
            match keys::find(&path) {
                Some(key) if env_name(key.path) == name => self.bare(key, &text, origin, problems),
                _ => {
                    let nearest = keys::nearest(&path, settable().map(|key| key.path));
                    problems.push(unknown(&name, &env_name(nearest), &path, origin));
                }
            }
        }
    }

    fn flags(&mut self, overrides: Vec<Override>, problems: &mut Problems) {
        let (workers, others): (Vec<_>, Vec<_>) =
            overrides.into_iter().partition(|flag| flag.key == "workers");
        if !workers.is_empty() {
            let urls = workers.iter().map(|o| (o.value.trim(), Origin::Flag(o.flag.clone())));
            self.replace_workers(urls, problems);
        }
        // A repeated flag of a list appends: its values are joined as the environment would.
        let mut merged: Vec<Override> = Vec::new();
        for flag in others {
            let is_list = keys::find(&flag.key)
                .is_some_and(|key| matches!(key.kind, keys::Kind::List { .. }));
            match merged.iter_mut().find(|seen| seen.key == flag.key) {
                Some(seen) if is_list => seen.value = format!("{},{}", seen.value, flag.value),
                Some(seen) => *seen = flag,
                None => merged.push(flag),
            }
        }
        for flag in merged {
            let origin = Origin::Flag(flag.flag);
            match keys::find(&flag.key) {
                Some(key) => self.bare(key, &flag.value, origin, problems),
                None => {
                    let nearest = keys::nearest(&flag.key, settable().map(|key| key.path));
                    problems.push(unknown(&flag.key, nearest, &flag.key, origin));
                }
            }
        }
    }

    /// Sets a key from bare text.
    fn bare(&mut self, key: &'static Key, text: &str, origin: Origin, problems: &mut Problems) {
        if !is_settable(key) {
            problems.push(Problem {
                fault: Fault::Invalid,
                key: key.path.to_owned(),
                origin,
                what: format!("`{}` belongs to one entry of a list", key.path),
                mend: "set it in the file; workers alone can be listed by URL (--worker, \
                       HOMING_WORKERS)"
                    .to_owned(),
            });
            return;
        }
        let shown = value::quote(text);
        self.top.set(key, value::from_text(&key.kind, text), &shown, origin, problems);
    }

    /// Puts workers named by URL alone in the place of those of a weaker source.
    fn replace_workers<'a>(
        &mut self,
        urls: impl Iterator<Item = (&'a str, Origin)>,
        problems: &mut Problems,
    ) {
        self.workers.clear();
        let Some(key) = keys::find("workers.url") else { return };
        for (url, origin) in urls {
            if self.workers.len() == WORKERS_MAX {
                problems.push(file::too_many("workers", WORKERS_MAX, origin));
                return;
            }
            let name = format!("workers[{}]", self.workers.len());
            let mut group = Group::new(name, origin.clone());
            let read = value::from_text(&key.kind, url);
            group.set(key, read, &value::quote(url), origin, problems);
            self.workers.push(group);
        }
    }
}

/// The environment variable of a key.
pub(super) fn env_name(path: &str) -> String {
    format!("{ENV_PREFIX}{}", path.replace('.', ENV_DOT).to_uppercase())
}

/// What is easily written for it: one underscore where two stand for the dot.
fn one_underscore(path: &str) -> String {
    env_name(path).replace(ENV_DOT, "_")
}

/// Whether a key can be set one by one, not only within an entry of a list of tables.
pub(super) fn is_settable(key: &Key) -> bool {
    let section = key.path.rsplit_once('.').and_then(|(name, _)| keys::section(name));
    section.is_some_and(|section| section.shape == Shape::One)
}

fn settable() -> impl Iterator<Item = &'static Key> {
    super::KEYS.iter().filter(|key| is_settable(key))
}

/// The problem of a name that nobody knows.
pub(super) fn unknown(shown: &str, nearest: &str, key: &str, origin: Origin) -> Problem {
    Problem {
        fault: Fault::UnknownKey,
        key: echo(key),
        origin,
        what: format!("unknown key `{}`", echo(shown)),
        mend: format!("did you mean `{nearest}`?"),
    }
}
