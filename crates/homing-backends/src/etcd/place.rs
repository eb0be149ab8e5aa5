//! Where etcd is: its URLs, the files of who we are, and a connection to one place.

use super::wire::{unreachable, words};
use homing_runtime::pem;
use homing_runtime::replication::port::{PortError, Reach};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Largest file with a password, in bytes.
const PASSWORD_MAX: u64 = 64 << 10;
/// etcd's port.
const PORT: u16 = 2379;

/// One URL of etcd.
#[derive(Debug)]
pub(super) struct Place {
    /// As it was given.
    pub(super) url: Arc<str>,
    /// Scheme and authority of requests.
    pub(super) origin: Uri,
    host: String,
    port: u16,
    server: Option<ServerName<'static>>,
}

impl Place {
    pub(super) fn of(url: &str) -> Result<Self, PortError> {
        // What is before an @ may be a password.
        let wrong = |why: &str| {
            let shown = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
            PortError::Setting(format!(
                "the URL \"{}\" of etcd {why}: write http://host:port or https://host:port",
                shown.escape_debug()
            ))
        };
        let origin: Uri = url.parse().map_err(|_| wrong("is none"))?;
        let (Some(scheme), Some(authority)) = (origin.scheme_str(), origin.authority()) else {
            return Err(wrong("has no scheme or no host"));
        };
        if authority.as_str().contains('@') {
            return Err(wrong("has a user: that has settings of its own"));
        }
        if origin.path() != "/" || origin.query().is_some() {
            return Err(wrong("has a path"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let server = match scheme {
            "http" => None,
            "https" => {
                let name = ServerName::try_from(host.clone());
                Some(name.map_err(|_| wrong("has no name that a certificate could have"))?)
            }
            _ => return Err(wrong("has another scheme")),
        };
        let port = authority.port_u16().unwrap_or(PORT);
        Ok(Self { url: url.into(), origin, host, port, server })
    }

    pub(super) const fn is_tls(&self) -> bool {
        self.server.is_some()
    }

    /// A connection, without anything said on it.
    pub(super) async fn connect(&self, reach: &Reach) -> Result<Io, PortError> {
        let failed = |e: io::Error| unreachable(&self.url, &words(&e));
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let Some(server) = self.server.clone() else { return Ok(Io::Plain(TokioIo::new(tcp))) };
        let tls = TlsConnector::from(Arc::new(tls(reach)?));
        match tls.connect(server, tcp).await {
            Ok(stream) => Ok(Io::Tls(Box::new(TokioIo::new(stream)))),
            // Time cures no certificate.
            Err(e) if e.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                Err(PortError::Setting(format!(
                    "etcd at {} and this router don't agree on TLS: {} (see ca_file, cert_file and key_file)",
                    self.url,
                    words(&e)
                )))
            }
            Err(e) => Err(failed(e)),
        }
    }
}

/// TLS as the files say now.
pub(super) fn tls(reach: &Reach) -> Result<rustls::ClientConfig, PortError> {
    let own = reach.cert_file.as_deref().zip(reach.key_file.as_deref());
    let config = pem::client(reach.ca_file.as_deref(), own);
    let mut config =
        config.map_err(|error| PortError::Setting(format!("TLS for etcd: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// The user and his password, where there is one.
pub(super) fn password(reach: &Reach) -> Result<Option<(String, String)>, PortError> {
    let (Some(user), Some(path)) = (&reach.user, &reach.password_file) else { return Ok(None) };
    let wrong = |why: &str| {
        PortError::Setting(format!("the file of etcd's password, {}: {why}", path.display()))
    };
    let about = std::fs::metadata(path).map_err(|e| wrong(&format!("can't be read: {e}")))?;
    if about.len() > PASSWORD_MAX {
        return Err(wrong("is too large for a password"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| wrong(&format!("can't be read: {e}")))?;
    let first = text.lines().next().unwrap_or_default();
    if first.is_empty() {
        return Err(wrong("its first line is empty"));
    }
    Ok(Some((user.clone(), first.to_owned())))
}

/// A connection, plain or not.
pub(super) enum Io {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Read for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tls(io) => Pin::new(&mut **io).poll_read(cx, buf),
        }
    }
}

impl Write for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Self::Tls(io) => Pin::new(&mut **io).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(io) => Pin::new(&mut **io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(io) => Pin::new(&mut **io).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_and_a_port() {
        for (url, host, port, tls) in [
            ("http://127.0.0.1:2379", "127.0.0.1", 2379, false),
            ("http://etcd", "etcd", 2379, false),
            ("https://etcd.example:1/", "etcd.example", 1, true),
            ("https://[::1]:5", "::1", 5, true),
        ] {
            let place = Place::of(url).unwrap();
            assert_eq!(
                (place.host.as_str(), place.port, place.is_tls()),
                (host, port, tls),
                "{url}"
            );
        }
        for url in
            ["", "etcd:2379", "nats://h:1", "http://h:1/base", "http://a:secret@h:1", "http://"]
        {
            let error = Place::of(url).unwrap_err().to_string();
            assert!(error.contains("http://host:port") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_password_is_the_first_line_of_a_file() {
        let path =
            std::env::temp_dir().join(format!("homing-etcd-password-{}", std::process::id()));
        let reach = |user: Option<&str>| Reach {
            user: user.map(str::to_owned),
            password_file: Some(path.clone()),
            ..Reach::default()
        };
        assert_eq!(password(&reach(None)), Ok(None));
        let missing = password(&reach(Some("u"))).unwrap_err().to_string();
        assert!(missing.contains("can't be read"), "{missing}");
        std::fs::write(&path, "a secret \nmore\n").unwrap();
        let read = password(&reach(Some("u"))).unwrap();
        assert_eq!(read, Some(("u".to_owned(), "a secret ".to_owned())));
        std::fs::write(&path, "\n").unwrap();
        assert!(password(&reach(Some("u"))).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
