//! What stands before scripted workers and behind clients where they are not spoken to in the clear: TLS by the
//! certificates of `testdata/tls`, and sockets in the file system.

use super::worker::Worker;
use homing_runtime::pem;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

/// A file of `testdata/tls`.
pub(super) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tls").join(name)
}

/// The same as a value of TOML.
pub(super) fn quoted(name: &str) -> String {
    format!("'{}'", data(name).display())
}

/// A path that nobody else uses.
pub(super) fn temporary(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("homing-{}-{n}-{name}", std::process::id()))
}

fn text(name: &str) -> (PathBuf, Vec<u8>) {
    let path = data(name);
    let text = std::fs::read(&path).unwrap();
    (path, text)
}

/// A server that shows this certificate; `asks`: and wants one of our CA.
pub(super) fn server(name: &str, asks: bool, alpn: &[&str]) -> Arc<ServerConfig> {
    let (path, chain) = text(&format!("{name}.pem"));
    let chain = pem::certificates(&path, &chain).unwrap();
    let (path, key) = text(&format!("{name}.key"));
    let key = pem::key(&path, &key).unwrap();
    let builder = ServerConfig::builder_with_provider(pem::provider())
        .with_safe_default_protocol_versions()
        .unwrap();
    let (path, ca) = text("ca.pem");
    let roots = Arc::new(pem::roots(&path, &ca).unwrap());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, pem::provider());
    let builder = match asks {
        true => builder.with_client_cert_verifier(verifier.build().unwrap()),
        false => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A client that believes our CA, and shows a certificate if it has one.
pub(super) fn connector(shows: Option<&str>, alpn: &[&str]) -> TlsConnector {
    let (path, ca) = text("ca.pem");
    let builder = ClientConfig::builder_with_provider(pem::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(pem::roots(&path, &ca).unwrap());
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let (path, chain) = text(&format!("{name}.pem"));
            let chain = pem::certificates(&path, &chain).unwrap();
            let (path, key) = text(&format!("{name}.key"));
            builder.with_client_auth_cert(chain, pem::key(&path, &key).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// A TLS connection.
pub(super) async fn connect(
    address: SocketAddr,
    connector: &TlsConnector,
) -> std::io::Result<client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    connector.connect("localhost".try_into().unwrap(), stream).await
}

/// Puts TLS before a worker.
pub(super) async fn by_tls(worker: &mut Worker, config: Arc<ServerConfig>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let behind = address_of(worker);
    let base = worker.url.strip_prefix(&format!("http://{behind}")).unwrap().to_owned();
    worker.url = format!("https://localhost:{}{base}", listener.local_addr().unwrap().port());
    let acceptor = TlsAcceptor::from(config);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind);
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    pass(stream, behind).await;
                }
            });
        }
    });
}

/// Puts a socket in the file system before a worker.
pub(super) fn by_socket(worker: &mut Worker) -> PathBuf {
    let path = temporary("worker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let behind = address_of(worker);
    worker.url = format!("unix:{}", path.display());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(pass(stream, behind));
        }
    });
    path
}

fn address_of(worker: &Worker) -> SocketAddr {
    let place = worker.url.strip_prefix("http://").unwrap();
    place.split('/').next().unwrap().parse().unwrap()
}

async fn pass(mut front: impl AsyncRead + AsyncWrite + Unpin, behind: SocketAddr) {
    let mut behind = TcpStream::connect(behind).await.unwrap();
    let _ = copy_bidirectional(&mut front, &mut behind).await;
}
