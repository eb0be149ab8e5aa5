//! How a pod reaches its own cluster: what the kubelet puts into its environment and its file system.

use super::discovery::{Access, SettingError};
use homing_runtime::settings::{Scheme, WorkerUrl};
use std::path::Path;

/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Largest file with a namespace.
const NAMESPACE_MAX: usize = 512;

/// The servers, how to speak to them, and the namespace.
pub(super) fn complete(
    access: Access,
    namespace: Option<String>,
) -> Result<(Vec<WorkerUrl>, Access, String), SettingError> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    complete_in(access, namespace, environment, Path::new(ACCOUNT))
}

fn complete_in(
    mut access: Access,
    namespace: Option<String>,
    environment: impl Fn(&str) -> Option<String>,
    account: &Path,
) -> Result<(Vec<WorkerUrl>, Access, String), SettingError> {
    let servers = if access.urls.is_empty() {
        let host = environment("KUBERNETES_SERVICE_HOST").ok_or_else(|| {
            SettingError(
                "this is no pod (KUBERNETES_SERVICE_HOST is not set): name the API server in discovery.urls"
                    .to_owned(),
            )
        })?;
        let port = environment("KUBERNETES_SERVICE_PORT_HTTPS")
            .or_else(|| environment("KUBERNETES_SERVICE_PORT"))
            .unwrap_or_else(|| "443".to_owned());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        access.ca_file = access.ca_file.or_else(|| Some(account.join("ca.crt")));
        // Who shows a certificate needs no token.
        if access.cert_file.is_none() {
            access.token_file = access.token_file.or_else(|| Some(account.join("token")));
        }
        vec![server(&format!("https://{host}:{port}"))?]
    } else {
        access.urls.iter().map(|url| server(url)).collect::<Result<_, _>>()?
    };
    if access.cert_file.is_some() != access.key_file.is_some() {
        return Err(SettingError(
            "discovery.cert_file and discovery.key_file belong together".to_owned(),
        ));
    }
    let namespace = match namespace {
        Some(namespace) => namespace,
        None => own_namespace(account)?,
    };
    Ok((servers, access, namespace))
}

fn server(url: &str) -> Result<WorkerUrl, SettingError> {
    let wrong = |why: &dyn std::fmt::Display| {
        // What stands before an @ may be a password.
        let shown = url.rsplit_once('@').map_or(url, |(_, host)| host);
        SettingError(format!("discovery.urls: `{}` {why}", shown.escape_debug()))
    };
    let parsed: WorkerUrl = url.parse().map_err(|error| wrong(&error))?;
    match parsed.scheme() {
        Scheme::Http | Scheme::Https => Ok(parsed),
        Scheme::Unix | Scheme::Dns => {
            Err(wrong(&"is no URL of an API server: write https://host:port"))
        }
    }
}

fn own_namespace(account: &Path) -> Result<String, SettingError> {
    let file = account.join("namespace");
    match std::fs::read_to_string(&file) {
        Ok(text) if !text.trim().is_empty() && text.len() <= NAMESPACE_MAX => {
            Ok(text.trim().to_owned())
        }
        _ => Err(SettingError(format!(
            "{} doesn't say in which namespace we are: set discovery.namespace",
            file.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (servers, access, namespace) =
            complete_in(Access::default(), None, pod, &account).unwrap();
        assert_eq!(servers[0].to_string(), "https://[fd00::1]:6443");
        assert_eq!(access.token_file, Some(account.join("token")));
        assert_eq!(access.ca_file, Some(account.join("ca.crt")));
        assert_eq!(namespace, "llm");
        let nowhere = |_: &str| None;
        let error = complete_in(Access::default(), None, nowhere, &account).unwrap_err();
        assert!(error.to_string().contains("discovery.urls"), "{error}");
        let urls = vec!["https://me:secret@h:6443".to_owned()];
        let error = complete_in(Access { urls, ..Access::default() }, None, nowhere, &account);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("user") && !error.contains("secret"), "{error}");
        let urls = vec!["https://h:6443".to_owned()];
        let given = Access { urls, ..Access::default() };
        let (_, access, _) = complete_in(given.clone(), None, nowhere, &account).unwrap();
        assert_eq!(access, given, "outside nothing is added");
        std::fs::remove_dir_all(&account).unwrap();
        let error = complete_in(given, None, nowhere, &account).unwrap_err();
        assert!(error.to_string().contains("discovery.namespace"), "{error}");
    }
}
