//! TLS in front, and a socket in the file system in its place.

use super::client::chat;
use super::fronts::{connect, connector, data, quoted, temporary};
use super::http2::{self, over};
use super::worker::{Act, LAST, Worker, begun, chunk, find, gate, ok};
use super::world::{World, eventually, in_time};
use homing_hosts::StartError;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Asks by HTTP/1.1, and reads as much as has these bytes in it.
async fn ask(io: &mut (impl AsyncRead + AsyncWrite + Unpin), until: &[u8]) -> String {
    io.write_all(&chat(&[])).await.unwrap();
    read(io, until).await
}

async fn read(io: &mut (impl AsyncRead + Unpin), until: &[u8]) -> String {
    let mut came = Vec::new();
    in_time("an answer", async {
        while find(&came, until).is_none() {
            assert!(
                io.read_buf(&mut came).await.unwrap() > 0,
                "{}",
                String::from_utf8_lossy(&came)
            );
        }
    })
    .await;
    String::from_utf8(came).unwrap()
}

/// The certificate that the router shows.
async fn shown(address: SocketAddr, connector: &TlsConnector) -> Vec<u8> {
    let stream = in_time("a handshake", connect(address, connector)).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn copy(name: &str, to: &Path) {
    std::fs::copy(data(name), to).unwrap();
}

#[tokio::test]
async fn clients_by_tls_speak_whichever_they_prefer() {
    let worker = Worker::start("w", |_| ok()).await;
    let (cert, key) = (quoted("server.pem"), quoted("server.key"));
    let settings = [("gateway.tls.cert", cert.as_str()), ("gateway.tls.key", &key)];
    let world = World::start(&settings, &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    assert_eq!(world.server.gateway_url(), format!("https://{address}"));
    for alpn in [&[][..], &["http/1.1"]] {
        let mut stream = in_time("h", connect(address, &connector(None, alpn))).await.unwrap();
        for _ in 0..2 {
            let answer = ask(&mut stream, b"choices\":[]}").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
    let stream = in_time("h", connect(address, &connector(None, &["h2", "http/1.1"]))).await;
    let (mut client, _connection) = over(stream.unwrap()).await;
    let answer = in_time("an answer", client.send_request(http2::chat(false, &[]))).await.unwrap();
    assert_eq!(answer.status(), 200);
    // Whoever knows no TLS is told nothing.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(&chat(&[])).await.unwrap();
    let mut came = Vec::new();
    let _ = in_time("the end", plain.read_to_end(&mut came)).await;
    assert!(find(&came, b"HTTP").is_none());
    drop(client);
    world.end().await;
}

#[tokio::test]
async fn f40_f46_clients_by_tls_leave_and_are_told_as_others_are() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |_| {
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.extend([Act::Hold(held.clone()), Act::Close]);
        acts
    })
    .await;
    let (cert, key) = (quoted("server.pem"), quoted("server.key"));
    let settings = [("gateway.tls.cert", cert.as_str()), ("gateway.tls.key", &key)];
    let world = World::start(&settings, &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    let connector = connector(None, &["http/1.1"]);
    // With a second request behind the first, which nobody reads.
    let mut leaves = in_time("h", connect(address, &connector)).await.unwrap();
    leaves.write_all(&[super::client::streamed(&[]), chat(&[])].concat()).await.unwrap();
    read(&mut leaves, b"data: 1").await;
    drop(leaves);
    eventually("the worker is free", || worker.left() == 1 && worker.busy() == 0).await;
    let mut stays = in_time("h", connect(address, &connector)).await.unwrap();
    stays.write_all(&super::client::streamed(&[])).await.unwrap();
    read(&mut stays, b"data: 1").await;
    open.add_permits(1);
    let told = read(&mut stays, b"worker_error").await;
    let mut rest = Vec::new();
    let _ = in_time("the end", stays.read_to_end(&mut rest)).await;
    let whole = [told.as_bytes(), &rest].concat();
    assert!(find(&whole, LAST.as_bytes()).is_none(), "no clean end: {whole:?}");
    world.end().await;
}

#[tokio::test]
async fn who_must_show_a_certificate_is_nobody_without() {
    let worker = Worker::start("w", |_| ok()).await;
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(quoted);
    let settings = [
        ("gateway.listen", "'0.0.0.0:0'"),
        ("gateway.tls.cert", cert.as_str()),
        ("gateway.tls.key", &key),
        ("gateway.tls.client_ca", &ca),
    ];
    let world = World::start(&settings, &[&worker]).await;
    let port = world.server.gateway_address().unwrap().port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let known = connector(Some("client"), &[]);
    let mut stream = in_time("h", connect(address, &known)).await.unwrap();
    let answer = ask(&mut stream, b"choices\":[]}").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // With TLS 1.3 a client hears of it with the first answer.
    for shows in [None, Some("stranger")] {
        let Ok(mut stream) = in_time("h", connect(address, &connector(shows, &[]))).await else {
            continue;
        };
        let _ = stream.write_all(&chat(&[])).await;
        let mut came = Vec::new();
        let refused = in_time("the end", stream.read_to_end(&mut came)).await;
        assert!(refused.is_err() && came.is_empty(), "{shows:?}");
    }
    assert_eq!(worker.asked().await.len(), 1);
    drop(stream);
    world.end().await;
}

#[tokio::test]
async fn a_certificate_is_renewed_under_running_streams_and_a_bad_one_is_not() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |_| {
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.extend([Act::Hold(held.clone()), Act::Send(chunk(b"data: 2\n\n"))]);
        acts.push(Act::Send(LAST.into()));
        acts
    })
    .await;
    let (cert, key) = (temporary("cert.pem"), temporary("key.pem"));
    copy("server.pem", &cert);
    copy("server.key", &key);
    let (c, k) = (format!("'{}'", cert.display()), format!("'{}'", key.display()));
    let settings = [("gateway.tls.cert", c.as_str()), ("gateway.tls.key", &k)];
    let world = World::start(&settings, &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    let connector = connector(None, &[]);
    let first = shown(address, &connector).await;
    let mut stream = in_time("h", connect(address, &connector)).await.unwrap();
    stream.write_all(&super::client::streamed(&[])).await.unwrap();
    read(&mut stream, b"data: 1").await;
    assert!(!world.server.refresh_tls().unwrap(), "nothing is new");
    // Half of it: the key is another's.
    copy("renewed.pem", &cert);
    let error = world.server.refresh_tls().unwrap_err().to_string();
    assert!(error.contains("gateway.tls.cert") && error.contains("cert.pem"), "{error}");
    assert_eq!(shown(address, &connector).await, first);
    copy("renewed.key", &key);
    assert!(world.server.refresh_tls().unwrap());
    let second = shown(address, &connector).await;
    assert_ne!(second, first);
    for bad in ["", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&cert, bad).unwrap();
        world.server.refresh_tls().unwrap_err();
        assert_eq!(shown(address, &connector).await, second);
    }
    std::fs::remove_file(&cert).unwrap();
    world.server.refresh_tls().unwrap_err();
    assert_eq!(shown(address, &connector).await, second);
    // By itself, too.
    copy("server.pem", &cert);
    copy("server.key", &key);
    in_time("the look at the files", async {
        while shown(address, &connector).await != first {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    open.add_permits(1);
    read(&mut stream, b"data: 2").await;
    drop(stream);
    world.end().await;
    for path in [cert, key] {
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn a_reload_looks_at_the_certificates_at_once_and_says_what_is_wrong_with_them() {
    let (cert, key) = (temporary("cert.pem"), temporary("key.pem"));
    copy("server.pem", &cert);
    copy("server.key", &key);
    let files = [("cert", &cert), ("key", &key)];
    let text = files.map(|(name, path)| format!("gateway.tls.{name} = '{}'\n", path.display()));
    let world = World::reloadable(Arc::new(Mutex::new(text.concat()))).await;
    let address = world.server.gateway_address().unwrap();
    let connector = connector(None, &[]);
    let first = shown(address, &connector).await;
    let reload = || world.server.reloader().reload().map_err(|e| e.to_string());
    copy("renewed.pem", &cert);
    for _ in 0..2 {
        let error = reload().unwrap_err();
        assert!(error.contains("gateway.tls.cert"), "each time: {error}");
        assert_eq!(shown(address, &connector).await, first);
    }
    copy("renewed.key", &key);
    assert_eq!(reload(), Ok(vec![]), "no setting has changed");
    assert_ne!(shown(address, &connector).await, first);
    world.end().await;
}

#[tokio::test]
async fn a_certificate_that_cant_be_used_is_no_router() {
    let cases = [
        ("nowhere.pem", "server.key", "can't be read"),
        ("server.key", "server.key", "holds no `-----BEGIN CERTIFICATE-----`"),
        ("server.pem", "server.pem", "holds no private key"),
        ("server.pem", "renewed.key", "gateway.tls.cert"),
    ];
    for (cert, key, expected) in cases {
        let (cert, key) = (quoted(cert), quoted(key));
        let settings = [("gateway.tls.cert", cert.as_str()), ("gateway.tls.key", &key)];
        let failed = World::fails(&settings).await;
        assert!(matches!(failed, StartError::Tls(_)), "{failed}");
        assert!(failed.to_string().contains(expected), "{failed}");
    }
}

#[tokio::test]
async fn a_socket_in_the_file_system_serves_both_and_goes_at_the_end() {
    let worker = Worker::start("w", |_| ok()).await;
    let path = temporary("gateway.sock");
    let listen = format!("'unix:{}'", path.display());
    let world = World::start(&[("gateway.listen", &listen)], &[&worker]).await;
    assert_eq!(world.server.gateway_url(), format!("unix:{}", path.display()));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    assert!(ask(&mut stream, b"choices\":[]}").await.starts_with("HTTP/1.1 200"));
    let (mut client, _connection) = over(UnixStream::connect(&path).await.unwrap()).await;
    let answer = in_time("an answer", client.send_request(http2::chat(false, &[]))).await.unwrap();
    assert_eq!(answer.status(), 200);
    // A second router doesn't take it away.
    let taken = World::fails(&[("gateway.listen", &listen)]).await;
    assert!(matches!(taken, StartError::Listen { key: "gateway.listen", .. }), "{taken}");
    assert!(taken.to_string().contains(&*path.to_string_lossy()), "{taken}");
    drop((client, stream));
    world.end().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn f40_a_client_on_a_socket_that_leaves_is_noticed() {
    let worker = Worker::start("w", |_| vec![super::worker::stall()]).await;
    let path = temporary("gone.sock");
    let listen = format!("'unix:{}'", path.display());
    let world = World::start(&[("gateway.listen", &listen)], &[&worker]).await;
    for (n, behind) in [b"".as_slice(), b"more"].into_iter().enumerate() {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&[chat(&[]), behind.to_vec()].concat()).await.unwrap();
        eventually("the worker is at work", || worker.busy() == 1).await;
        drop(stream);
        eventually("the worker is free", || worker.left() == n + 1 && worker.busy() == 0).await;
    }
    world.end().await;
}
