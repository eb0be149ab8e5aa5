//! `[discovery]` with `backend = "kubernetes"`: which objects of which namespace are workers, and who is asked.

use super::convert::{conflict, invalid};
use super::problem::{Problem, Problems};
use super::raw::Group;
use super::transport::half;
use super::url::{Scheme, WorkerUrl};
use std::path::PathBuf;

/// Longest name of an object, in bytes.
const NAME_MAX: usize = 253;

/// Keys that no other backend has.
pub(super) const OWN: [&str; 6] = [NAMESPACE, SERVICE, SELECTOR, POOL, PORT, TOKEN];
const NAMESPACE: &str = "discovery.namespace";
const SERVICE: &str = "discovery.service";
const SELECTOR: &str = "discovery.selector";
const POOL: &str = "discovery.inference_pool";
const PORT: &str = "discovery.port";
const TOKEN: &str = "discovery.token_file";

/// Which workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesFind {
    /// The endpoints of a Service, from its EndpointSlices.
    Service(String),
    /// Pods by a label selector, `app=vllm,tier!=test`.
    Selector(String),
    /// The pods of an InferencePool, at its ports.
    InferencePool(String),
}

/// Where in a pod the engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesPort {
    /// This port.
    Number(u16),
    /// The port of this name in the Service.
    Name(String),
}

/// What the API server is asked for, and how it is reached. Files are read anew whenever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryKubernetes {
    /// `https://host:port`; empty: the one of the cluster in whose pod we are.
    pub urls: Vec<WorkerUrl>,
    /// Whom to believe about its certificate.
    pub ca_file: Option<PathBuf>,
    /// Our certificate,
    pub cert_file: Option<PathBuf>,
    /// and its key.
    pub key_file: Option<PathBuf>,
    /// What we show as who we are.
    pub token_file: Option<PathBuf>,
    /// `None`: that of our own pod.
    pub namespace: Option<String>,
    /// Which workers.
    pub find: KubernetesFind,
    /// Where they listen.
    pub port: KubernetesPort,
}

/// Reads it, where it is the backend. `None`: what is to be found is not said, which is reported.
pub(super) fn convert(
    top: &Group,
    problems: &mut Problems,
) -> Result<Option<DiscoveryKubernetes>, Problem> {
    let urls = urls(top, problems)?;
    let (cert, key): (Option<PathBuf>, Option<PathBuf>) =
        (top.read("discovery.cert_file")?, top.read("discovery.key_file")?);
    match (&cert, &key) {
        (Some(_), None) => problems.push(half(top, "discovery.cert_file", "key_file")),
        (None, Some(_)) => problems.push(half(top, "discovery.key_file", "cert_file")),
        _ => {}
    }
    let namespace = name(top, NAMESPACE, problems)?;
    let Some(find) = find(top, problems)? else { return Ok(None) };
    Ok(Some(DiscoveryKubernetes {
        urls,
        ca_file: top.read("discovery.ca_file")?,
        cert_file: cert,
        key_file: key,
        token_file: top.read(TOKEN)?,
        namespace,
        port: port(top, &find, problems)?,
        find,
    }))
}

fn urls(top: &Group, problems: &mut Problems) -> Result<Vec<WorkerUrl>, Problem> {
    const URLS: &str = "discovery.urls";
    let mut parsed = Vec::new();
    for url in top.read::<Vec<String>>(URLS)? {
        match url.parse::<WorkerUrl>() {
            Ok(url) if matches!(url.scheme(), Scheme::Http | Scheme::Https) => parsed.push(url),
            _ => {
                // The value is not repeated: it may hold a password.
                let mend = "write https://host:port; who we are is said by discovery.token_file, or a certificate";
                let mut problem = invalid(top, URLS, "", mend);
                problem.what = format!("`{URLS}` has a URL that is none of an API server");
                problems.push(problem);
            }
        }
    }
    Ok(parsed)
}

/// Exactly one of the three.
fn find(top: &Group, problems: &mut Problems) -> Result<Option<KubernetesFind>, Problem> {
    let selector: String = top.read(SELECTOR)?;
    // One of blanks would be every pod of the namespace.
    if !selector.is_empty()
        && (selector.trim().is_empty()
            || !selector.bytes().all(|b| b.is_ascii_graphic() || b == b' '))
    {
        let mend = "write labels, e.g. \"app=vllm,tier!=test\"";
        problems.push(invalid(top, SELECTOR, "is no label selector", mend));
    }
    let service = name(top, SERVICE, problems)?.map(KubernetesFind::Service);
    let pool = name(top, POOL, problems)?.map(KubernetesFind::InferencePool);
    let selector = (!selector.trim().is_empty()).then_some(KubernetesFind::Selector(selector));
    let mut given: Vec<_> = [service, selector, pool].into_iter().flatten().collect();
    let unreadable = [SERVICE, SELECTOR, POOL].iter().any(|key| top.is_unreadable(key));
    if given.len() != 1 && !unreadable {
        let what = match given.len() {
            0 => "`discovery.backend` is \"kubernetes\", and nothing says which pods are workers",
            _ => "more than one of `discovery.service`, `selector` and `inference_pool` is set",
        };
        let mend = "set one of discovery.service, discovery.selector and discovery.inference_pool";
        problems.push(conflict(top, "discovery.backend", what.to_owned(), mend));
    }
    Ok(given.pop())
}

fn port(
    top: &Group,
    find: &KubernetesFind,
    problems: &mut Problems,
) -> Result<KubernetesPort, Problem> {
    let text: String = top.read(PORT)?;
    if let Ok(number) = text.parse() {
        return Ok(KubernetesPort::Number(number));
    }
    if !matches!(find, KubernetesFind::Service(_)) && !top.is_unreadable(PORT) {
        let what = format!("`{PORT}` = \"{text}\" is a name, and only a Service names its ports");
        problems.push(conflict(top, PORT, what, "write a number"));
    }
    Ok(KubernetesPort::Name(text))
}

/// The name of an object, which goes into paths as it is.
fn name(
    top: &Group,
    key: &'static str,
    problems: &mut Problems,
) -> Result<Option<String>, Problem> {
    let name: String = top.read(key)?;
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if name.len() > NAME_MAX || !name.bytes().all(fits) {
        let mend = "write it as kubectl shows it: a-z, 0-9, - and .";
        problems.push(invalid(top, key, "is no name of Kubernetes'", mend));
    }
    Ok((!name.is_empty()).then_some(name))
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use super::*;
    use crate::settings::{Settings, Sources};

    fn errors(text: &str) -> String {
        let file = Some(("test.toml".into(), text.to_owned()));
        let sources: Sources = Sources { file, ..Sources::default() };
        Settings::load(sources).unwrap_err().to_string()
    }

    const KUBERNETES: &str = "[discovery]\nbackend = 'kubernetes'\n";

    #[test]
    fn the_keys_say_which_pods() {
        let of = |text: &str| load(&format!("{KUBERNETES}{text}")).kubernetes.unwrap();
        let plain = of("service = 'vllm'\n");
        assert_eq!(plain.find, KubernetesFind::Service("vllm".to_owned()));
        assert_eq!((plain.port, plain.namespace), (KubernetesPort::Number(8000), None));
        assert!(plain.urls.is_empty() && plain.token_file.is_none());
        assert_eq!(of("service = 'v'\nport = 9000\n").port, KubernetesPort::Number(9000));
        assert_eq!(
            of("service = 'v'\nport = 'http'\n").port,
            KubernetesPort::Name("http".to_owned())
        );
        let all = of(
            "selector = 'app in (a,b)'\nnamespace = 'llm'\nurls = ['https://a:6443']\nca_file = '/ca'\n\
             token_file = '/t'\ncert_file = '/c'\nkey_file = '/k'\n",
        );
        assert_eq!(all.find, KubernetesFind::Selector("app in (a,b)".to_owned()));
        assert_eq!(all.namespace.as_deref(), Some("llm"));
        assert_eq!(all.urls[0].to_string(), "https://a:6443");
        assert_eq!((all.ca_file, all.token_file), (Some("/ca".into()), Some("/t".into())));
        assert_eq!(load("").kubernetes, None);
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        for (text, says) in [
            ("", "nothing says which pods"),
            ("service = 'a'\nselector = 'b=c'\n", "more than one"),
            ("service = 'a/../b'\n", "is no name"),
            ("service = 'a'\nnamespace = 'A'\n", "is no name"),
            ("selector = ' '\n", "label selector"),
            ("selector = 'a=b'\nport = 'http'\n", "only a Service"),
            ("service = 'a'\nport = 0\n", "neither a port"),
            ("service = 'a'\nport = 'A b'\n", "neither a port"),
            ("service = 'a'\nurls = ['https://u:secret@h:1']\n", "none of an API server"),
            ("service = 'a'\nurls = ['unix:/s']\n", "none of an API server"),
            ("service = 'a'\ncert_file = '/c'\n", "without its key_file"),
            ("service = 'a'\nuser = 'u'\n", "discovery.backend = \"etcd\""),
            ("service = 'a'\ngroup = 'g'\n", "discovery.backend = \"etcd\""),
            ("service = 'a'\npath = '/w'\n", "discovery.backend = \"file\""),
        ] {
            let error = errors(&format!("{KUBERNETES}{text}"));
            assert!(error.contains(says) && !error.contains("secret"), "{text}: {error}");
        }
        for key in ["service = 'a'", "token_file = '/t'", "port = 9000", "namespace = 'n'"] {
            let error = errors(&format!("[discovery]\n{key}\n"));
            assert!(error.contains("discovery.backend = \"kubernetes\""), "{error}");
        }
    }
}
