//! `[[workers]]` and `[[models]]`: the entries of lists.

use super::Origin;
use super::convert::invalid;
use super::problem::{Fault, Problem, Problems};
use super::raw::Group;
use super::tokenizer::Tokenizer;
use super::transport::{self, Upstream};
use super::types::{Model, Worker};
use super::url::{Scheme, UrlError, WorkerUrl};
use homing_wire::engine::is_wildcard;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Longest id of a worker, in bytes: it is a header's value and a metric's label.
const ID_BYTES_MAX: usize = 128;

/// The models; reports what is wrong with them.
pub(super) fn models(groups: &[Group], problems: &mut Problems) -> Result<Vec<Model>, Problem> {
    let mut models = Vec::with_capacity(groups.len());
    let mut seen = HashMap::new();
    for group in groups {
        let name: String = group.read("models.name")?;
        let tokenizer: String = group.read("models.tokenizer")?;
        let tokenizer = (!tokenizer.is_empty()).then(|| Tokenizer::of(&tokenizer));
        let chat_template_kwargs = group.read("models.chat_template_kwargs")?;
        let aliases: Vec<String> = group.read("models.aliases")?;
        if group.is_unreadable("models.name") {
            continue;
        }
        if name.is_empty() {
            problems.push(missing(group, "models.name", "write the name as the engines serve it"));
            continue;
        }
        if let Some(first) = seen.insert(name.clone(), &group.name) {
            problems.push(twice(group, "models.name", &name, first, "describe each model once"));
            continue;
        }
        models.push(Model { name, aliases, tokenizer, chat_template_kwargs });
    }
    for (model, group) in models.iter().zip(groups) {
        for alias in &model.aliases {
            let mend = "each name leads to one model";
            if let Some(first) = seen.insert(alias.clone(), &group.name) {
                problems.push(twice(group, "models.aliases", alias, first, mend));
            }
        }
    }
    Ok(models)
}

/// The workers; reports what is wrong with them.
pub(super) fn workers(
    groups: &[Group],
    common: &Upstream,
    problems: &mut Problems,
) -> Result<Vec<Worker>, Problem> {
    let mut workers = Vec::with_capacity(groups.len());
    let mut seen = HashMap::new();
    let mut places = HashMap::new();
    let mut published: Vec<(Places, &str)> = Vec::new();
    for group in groups {
        let dp_size = Some(group.read::<u16>("workers.dp_size")?).filter(|ranks| *ranks > 0);
        let mend = "write where the engine publishes, e.g. \"tcp://10.0.0.1:5557\", or where it \
                    connects to, e.g. \"tcp://*:5557\"";
        let kv_events = endpoint(group, "workers.kv_events", true, mend, problems)?;
        let mend = "write where the engine replays, e.g. \"tcp://10.0.0.1:5558\"";
        let kv_replay = endpoint(group, "workers.kv_replay", false, mend, problems)?;
        let labels = group.read("workers.labels")?;
        let upstream = transport::of_worker(group, common, problems)?.into();
        let Some(url) = url(group, problems)? else { continue };
        let Some(id) = id(group, &url, problems)? else { continue };
        if let Some(first) = seen.insert(id.clone(), &group.name) {
            let mend = "give each worker an id of its own";
            problems.push(twice(group, "workers.id", &id, first, mend));
            continue;
        }
        if let Some(first) = places.insert(url.clone(), &group.name) {
            let mend = "name each worker once: its load and its cache are one";
            problems.push(twice(group, "workers.url", &url.to_string(), first, mend));
            continue;
        }
        if url.scheme() == Scheme::Dns {
            refuse_endpoints(group, problems);
        }
        if let Some(places) = Places::of(kv_events.as_deref(), dp_size.unwrap_or(1)) {
            if is_anothers(group, &places, &published, problems) {
                continue;
            }
            published.push((places, &group.name));
        }
        let generation = 0;
        workers.push(Worker {
            id,
            url,
            dp_size,
            kv_events,
            kv_replay,
            labels,
            upstream,
            generation,
        });
    }
    Ok(workers)
}

fn url(group: &Group, problems: &mut Problems) -> Result<Option<WorkerUrl>, Problem> {
    const PATH: &str = "workers.url";
    let text: String = group.read(PATH)?;
    if group.is_unreadable(PATH) {
        return Ok(None);
    }
    let mend = "write e.g. \"http://10.0.0.1:8000\"";
    if text.is_empty() {
        problems.push(missing(group, PATH, mend));
        return Ok(None);
    }
    match text.parse() {
        Ok(url) => return Ok(Some(url)),
        Err(UrlError::User) => {
            // The value is not repeated: it may hold a password.
            let mut problem = invalid(group, PATH, "", "remove what is before the @");
            problem.what = format!("`{}` {}", problem.key, UrlError::User);
            problems.push(problem);
        }
        Err(error) => problems.push(invalid(group, PATH, &error.to_string(), mend)),
    }
    Ok(None)
}

/// The id, or `host:port` where none is given.
fn id(group: &Group, url: &WorkerUrl, problems: &mut Problems) -> Result<Option<String>, Problem> {
    const PATH: &str = "workers.id";
    let given: String = group.read(PATH)?;
    if group.is_unreadable(PATH) {
        return Ok(None);
    }
    let id = if given.is_empty() { url.default_id() } else { given };
    // Requests name workers in comma-separated lists.
    let fits = id.len() <= ID_BYTES_MAX && id.bytes().all(|b| b.is_ascii_graphic() && b != b',');
    if !fits {
        let what = "is not an id";
        let mend = format!(
            "write an id of 1 to {ID_BYTES_MAX} printable ASCII characters without space and comma"
        );
        problems.push(invalid(group, PATH, what, &mend));
        return Ok(None);
    }
    Ok(Some(id))
}

/// One endpoint can't be that of each address of a name.
fn refuse_endpoints(group: &Group, problems: &mut Problems) {
    for path in ["workers.kv_events", "workers.kv_replay"] {
        if group.origin(path) != Origin::Default {
            let what = "is one endpoint, and the URL names many workers";
            let mend =
                "remove it: each engine is asked for its own; or name the workers one by one";
            problems.push(invalid(group, path, what, mend));
        }
    }
}

/// A ZMQ endpoint over TCP; `None` where none is given. `may_listen`: it may be every address of this host,
/// where we are connected to.
fn endpoint(
    group: &Group,
    path: &'static str,
    may_listen: bool,
    mend: &str,
    problems: &mut Problems,
) -> Result<Option<String>, Problem> {
    let endpoint: String = group.read(path)?;
    if endpoint.is_empty() {
        return Ok(None);
    }
    let address = endpoint.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    let fits = address.is_some_and(|(host, port)| {
        !host.is_empty()
            && (may_listen || !is_wildcard(&endpoint))
            // libzmq takes an IPv6 address by its brackets.
            && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'))
            && !host.contains(['/', ' '])
            && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if !fits {
        problems.push(invalid(group, path, "is not an endpoint to connect to", mend));
        return Ok(None);
    }
    Ok(Some(endpoint))
}

/// Where the events of a worker's ranks are, the ports one a rank: whose host, or every address of ours, where we
/// listen.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    /// `None`: ours.
    host: Option<String>,
    ports: RangeInclusive<u32>,
}

impl Places {
    fn of(kv_events: Option<&str>, dp_size: u16) -> Option<Self> {
        let endpoint = kv_events?;
        let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
        let first: u32 = port.parse().ok()?;
        let host = (!is_wildcard(endpoint)).then(|| host.to_ascii_lowercase());
        Some(Self { host, ports: first..=first + u32::from(dp_size) - 1 })
    }

    fn overlap(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.ports, &other.ports);
        self.host == other.host && ours.start() <= theirs.end() && theirs.start() <= ours.end()
    }
}

/// Whether one of those places is another worker's: neither who connects to one of our ports nor what one publisher
/// sends says whose cache it is.
fn is_anothers(
    group: &Group,
    places: &Places,
    taken: &[(Places, &str)],
    problems: &mut Problems,
) -> bool {
    let Some((_, first)) = taken.iter().find(|(other, _)| places.overlap(other)) else {
        return false;
    };
    let (what, mend) = match &places.host {
        None => (
            format!("listens on a port of `{first}`"),
            "give each worker ports of its own, one a rank from the one that is written on: engines \
             that connect to one port can't be told apart",
        ),
        Some(_) => (
            format!("is where `{first}` has its events"),
            "write where this worker's own engine publishes, one port a rank from the one that is written on: \
             what one engine has cached would be believed of two",
        ),
    };
    let mut problem = invalid(group, "workers.kv_events", &what, mend);
    problem.fault = Fault::Conflict;
    problems.push(problem);
    true
}

pub(super) fn missing(group: &Group, path: &str, mend: &str) -> Problem {
    Problem {
        fault: Fault::Invalid,
        key: group.shown(path),
        origin: group.origin.clone().unwrap_or(Origin::Default),
        what: format!("`{}` is missing", group.shown(path)),
        mend: mend.to_owned(),
    }
}

pub(super) fn twice(group: &Group, path: &str, name: &str, first: &str, mend: &str) -> Problem {
    Problem {
        fault: Fault::Conflict,
        key: group.shown(path),
        origin: group.origin.clone().unwrap_or(Origin::Default),
        what: format!("`{}` is \"{name}\", and so is that of `{first}`", group.shown(path)),
        mend: mend.to_owned(),
    }
}
