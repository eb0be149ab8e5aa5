//! How a pod reaches its own cluster: what the kubelet puts into its environment and its file system.

use super::discovery::AccessError;
use homing_runtime::settings::{DiscoveryKubernetes, WorkerUrl};
use std::path::Path;

/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Largest file with a namespace.
const NAMESPACE_MAX: usize = 512;

type Complete = (Vec<WorkerUrl>, String, DiscoveryKubernetes);

/// The servers, the namespace, and the rest.
pub(super) fn complete(wanted: DiscoveryKubernetes) -> Result<Complete, AccessError> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    complete_in(wanted, environment, Path::new(ACCOUNT))
}

fn complete_in(
    mut wanted: DiscoveryKubernetes,
    environment: impl Fn(&str) -> Option<String>,
    account: &Path,
) -> Result<Complete, AccessError> {
    let mut servers = wanted.urls.clone();
    if servers.is_empty() {
        let host = environment("KUBERNETES_SERVICE_HOST").ok_or_else(|| {
            AccessError(
                "this is no pod (KUBERNETES_SERVICE_HOST is not set): name the API server in discovery.urls"
                    .to_owned(),
            )
        })?;
        let port = environment("KUBERNETES_SERVICE_PORT_HTTPS")
            .or_else(|| environment("KUBERNETES_SERVICE_PORT"))
            .unwrap_or_else(|| "443".to_owned());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let url = format!("https://{host}:{port}");
        servers.push(url.parse().map_err(|error| {
            AccessError(format!("the environment's `{}` {error}", url.escape_debug()))
        })?);
        wanted.ca_file = wanted.ca_file.or_else(|| Some(account.join("ca.crt")));
        // Who shows a certificate needs no token.
        if wanted.cert_file.is_none() {
            wanted.token_file = wanted.token_file.or_else(|| Some(account.join("token")));
        }
    }
    let namespace = match &wanted.namespace {
        Some(namespace) => namespace.clone(),
        None => own_namespace(account)?,
    };
    Ok((servers, namespace, wanted))
}

fn own_namespace(account: &Path) -> Result<String, AccessError> {
    let file = account.join("namespace");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let name = text.trim();
    // It goes into paths as it is.
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.len() > NAMESPACE_MAX || !name.bytes().all(fits) {
        return Err(AccessError(format!(
            "{} doesn't say in which namespace we are: set discovery.namespace",
            file.display()
        )));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use homing_runtime::settings::{KubernetesFind, KubernetesPort};

    fn wanted(urls: &[&str]) -> DiscoveryKubernetes {
        DiscoveryKubernetes {
            urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            token_file: None,
            namespace: None,
            find: KubernetesFind::Service("s".to_owned()),
            port: KubernetesPort::Number(8000),
        }
    }

    #[test]
    fn a_pod_knows_its_cluster() {
        let account = std::env::temp_dir().join(format!("homing-account-{}", std::process::id()));
        std::fs::create_dir_all(&account).unwrap();
        std::fs::write(account.join("namespace"), "llm\n").unwrap();
        let pod = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("6443".to_owned()),
            _ => None,
        };
        let (servers, namespace, made) = complete_in(wanted(&[]), pod, &account).unwrap();
        assert_eq!(servers[0].to_string(), "https://[fd00::1]:6443");
        assert_eq!(made.token_file, Some(account.join("token")));
        assert_eq!(made.ca_file, Some(account.join("ca.crt")));
        assert_eq!(namespace, "llm");
        let nowhere = |_: &str| None;
        let error = complete_in(wanted(&[]), nowhere, &account).unwrap_err();
        assert!(error.to_string().contains("discovery.urls"), "{error}");
        let outside = wanted(&["https://h:6443"]);
        let (_, _, made) = complete_in(outside.clone(), nowhere, &account).unwrap();
        assert_eq!(made, outside, "outside nothing is added");
        std::fs::write(account.join("namespace"), "../llm").unwrap();
        assert!(complete_in(outside.clone(), nowhere, &account).is_err());
        std::fs::remove_dir_all(&account).unwrap();
        let error = complete_in(outside, nowhere, &account).unwrap_err();
        assert!(error.to_string().contains("discovery.namespace"), "{error}");
    }
}
