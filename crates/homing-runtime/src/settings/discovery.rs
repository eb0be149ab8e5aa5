//! `[discovery]`: where workers come from besides the configuration, and what each kind of it needs.

use super::Origin;
use super::convert::{conflict, invalid};
use super::kubernetes::{self, DiscoveryKubernetes};
use super::problem::{Problem, Problems};
use super::raw::Group;
use super::transport::half;
use super::types::Discovery;
use crate::replication::port::Reach;
use std::path::PathBuf;

/// Where workers register under leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEtcd {
    /// How etcd is reached.
    pub reach: Reach,
    /// Whose workers they are: `a-z`, `0-9` and `-`, 1 to 63 of them.
    pub group: String,
}

/// How etcd is reached.
const REACH: [&str; 6] = [
    "discovery.urls",
    "discovery.user",
    "discovery.password_file",
    "discovery.ca_file",
    "discovery.cert_file",
    "discovery.key_file",
];

/// Those of them that Kubernetes has, too.
const SHARED: [&str; 4] =
    ["discovery.urls", "discovery.ca_file", "discovery.cert_file", "discovery.key_file"];

/// What the backend needs, whichever it is.
type Wanted = (Option<PathBuf>, Option<DiscoveryEtcd>, Option<DiscoveryKubernetes>);

/// The file of workers, where they register, or who lists them; whichever the backend is.
pub(super) fn convert(top: &Group, problems: &mut Problems) -> Result<Wanted, Problem> {
    const BACKEND: &str = "discovery.backend";
    const PATH: &str = "discovery.path";
    let path: Option<PathBuf> = top.read(PATH)?;
    let backend: Discovery = top.read(BACKEND)?;
    let is_known = !top.is_unreadable(BACKEND);
    if backend == Discovery::File && path.is_none() && !top.is_unreadable(PATH) {
        let what = "`discovery.backend` is \"file\", and `discovery.path` is not set".to_owned();
        problems.push(conflict(top, BACKEND, what, "name the file in discovery.path"));
    }
    if backend != Discovery::File && path.is_some() && is_known {
        problems.push(of_another(top, PATH, backend, "file"));
    }
    let of_etcd = REACH.into_iter().chain(["discovery.group"]);
    let of_etcd = of_etcd.filter(|_| backend != Discovery::Etcd);
    let mut of_etcd =
        of_etcd.filter(|key| backend != Discovery::Kubernetes || !SHARED.contains(key));
    let given = of_etcd.find(|key| is_given(top, key));
    if let (Some(key), true) = (given, is_known) {
        problems.push(of_another(top, key, backend, "etcd"));
    }
    let mut of_kubernetes =
        kubernetes::OWN.into_iter().filter(|_| backend != Discovery::Kubernetes);
    let given = of_kubernetes.find(|key| is_given(top, key));
    if let (Some(key), true) = (given, is_known) {
        problems.push(of_another(top, key, backend, "kubernetes"));
    }
    match backend {
        Discovery::Etcd => Ok((None, Some(etcd(top, problems)?), None)),
        Discovery::Kubernetes => Ok((None, None, kubernetes::convert(top, problems)?)),
        Discovery::Static | Discovery::File => Ok((path, None, None)),
    }
}

/// Whether it says more than leaving it out would.
fn is_given(top: &Group, key: &str) -> bool {
    let default = super::KEYS.iter().find(|known| known.path == key).map(|known| known.default);
    let empty = top.value(key).is_none_or(|value| {
        matches!(value.to_toml().as_str(), "\"\"" | "[]")
            || Some(value.to_toml().trim_matches('"')) == default
    });
    top.origin(key) != Origin::Default && !empty && !top.is_unreadable(key)
}

fn of_another(top: &Group, key: &str, backend: Discovery, theirs: &str) -> Problem {
    let what = format!("`{key}` is set, and `discovery.backend` is \"{backend}\"");
    let mend = format!("write discovery.backend = \"{theirs}\", or remove it");
    conflict(top, key, what, &mend)
}

fn etcd(top: &Group, problems: &mut Problems) -> Result<DiscoveryEtcd, Problem> {
    let reach = reach(top, &REACH, problems)?;
    if reach.urls.is_empty() && !top.is_unreadable("discovery.urls") {
        let what = "`discovery.backend` is \"etcd\", and `discovery.urls` is not set".to_owned();
        let mend = "say where etcd is, e.g. discovery.urls = [\"http://10.0.0.1:2379\"]";
        problems.push(conflict(top, "discovery.backend", what, mend));
    }
    for url in &reach.urls {
        if !is_url(url) {
            let what = "has a URL that is none of etcd's";
            let mend =
                "write http://host:port or https://host:port; a user has settings of his own";
            // The value is not repeated: it may hold a password.
            let mut problem = invalid(top, "discovery.urls", "", mend);
            problem.what = format!("`{}` {what}", problem.key);
            problems.push(problem);
            break;
        }
    }
    if reach.ca_file.is_some() && reach.urls.iter().all(|url| !url.starts_with("https://")) {
        let what = "`discovery.ca_file` is set, and none of `discovery.urls` is https".to_owned();
        problems.push(conflict(
            top,
            "discovery.ca_file",
            what,
            "write https:// URLs, or remove it",
        ));
    }
    let group: String = top.read("discovery.group")?;
    if !is_group(&group) && !top.is_unreadable("discovery.group") {
        let what = "is no name of a group";
        let mend = "write 1 to 63 of a-z, 0-9 and -";
        problems.push(invalid(top, "discovery.group", what, mend));
    }
    Ok(DiscoveryEtcd { reach, group })
}

/// Whether it can be a group's name, which is a part of keys and subjects.
#[must_use]
pub fn is_group(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn is_url(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let authority = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    authority.is_some_and(|authority| {
        !authority.contains(['@', '/', '?', '#'])
            && authority.parse::<http::uri::Authority>().is_ok_and(|a| !a.host().is_empty())
    })
}

/// How a backend is reached, by its keys: `urls`, `user`, `password_file`, `ca_file`, `cert_file`, `key_file`.
pub(super) fn reach(
    top: &Group,
    keys: &[&'static str; 6],
    problems: &mut Problems,
) -> Result<Reach, Problem> {
    let [urls, user, password, ca, cert, key] = *keys;
    let name: String = top.read(user)?;
    let reach = Reach {
        urls: top.read(urls)?,
        user: (!name.is_empty()).then_some(name),
        password_file: top.read(password)?,
        ca_file: top.read(ca)?,
        cert_file: top.read(cert)?,
        key_file: top.read(key)?,
    };
    let pairs = [
        (user, reach.user.is_some(), password, reach.password_file.is_some()),
        (cert, reach.cert_file.is_some(), key, reach.key_file.is_some()),
    ];
    for (one, has_one, other, has_other) in pairs {
        let name = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
        match (has_one, has_other) {
            (true, false) => problems.push(half(top, one, name(other))),
            (false, true) => problems.push(half(top, other, name(one))),
            _ => {}
        }
    }
    Ok(reach)
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use crate::settings::{Settings, Sources};

    fn errors(text: &str) -> String {
        let file = Some(("test.toml".into(), text.to_owned()));
        let sources: Sources = Sources { file, ..Sources::default() };
        Settings::load(sources).unwrap_err().to_string()
    }

    #[test]
    fn etcd_is_where_the_keys_say() {
        let settings = load(
            "[discovery]\nbackend = 'etcd'\nurls = ['https://a:2379', 'http://b']\ngroup = 'gpus-1'\nuser = 'u'\n\
             password_file = '/p'\nca_file = '/ca'\ncert_file = '/c'\nkey_file = '/k'\n",
        );
        let etcd = settings.etcd.unwrap();
        assert_eq!(etcd.group, "gpus-1");
        assert_eq!(etcd.reach.urls, ["https://a:2379", "http://b"]);
        assert_eq!(etcd.reach.user.as_deref(), Some("u"));
        assert_eq!(etcd.reach.key_file, Some("/k".into()));
        let plain = load("[discovery]\nbackend = 'etcd'\nurls = ['http://b']\n").etcd.unwrap();
        assert_eq!(plain.group, "default");
        assert_eq!(load("").etcd, None);
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        let etcd = "[discovery]\nbackend = 'etcd'\n";
        for (text, says) in [
            (etcd.to_owned(), "`discovery.urls` is not set"),
            (format!("{etcd}urls = ['nats://a:1']\n"), "http://host:port"),
            (format!("{etcd}urls = ['http://u:secret@a:1']\n"), "http://host:port"),
            (format!("{etcd}urls = ['http://a:1']\ngroup = 'A/b'\n"), "is no name of a group"),
            (format!("{etcd}urls = ['http://a:1']\ngroup = ''\n"), "is no name of a group"),
            (format!("{etcd}urls = ['http://a:1']\nuser = 'u'\n"), "without its password_file"),
            (format!("{etcd}urls = ['http://a:1']\nkey_file = 'k'\n"), "without its cert_file"),
            (
                format!("{etcd}urls = ['http://a:1']\nca_file = 'k'\n"),
                "none of `discovery.urls` is https",
            ),
            (format!("{etcd}urls = ['http://a:1']\npath = '/w'\n"), "discovery.backend = \"file\""),
            ("[discovery]\nurls = ['http://a:1']\n".to_owned(), "discovery.backend = \"etcd\""),
            ("[discovery]\ngroup = 'g'\n".to_owned(), "discovery.backend = \"etcd\""),
        ] {
            let error = errors(&text);
            assert!(error.contains(says) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
