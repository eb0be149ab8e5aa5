//! Sockets in the file system, and hearing of a client's end behind bytes that nobody reads.

use super::*;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::AsyncWriteExt;

/// A path that nobody else uses.
fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("homing-{}-{n}.sock", std::process::id()))
}

#[test]
fn a_socket_in_the_file_system_is_its_owners_and_goes_with_the_router() {
    let path = path();
    let at = Listen::Unix(path.clone());
    let bound = bind(&at, 3).unwrap();
    assert_eq!((bound.listeners.len(), &bound.at), (3, &at));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, MODE);
    // Somebody listens on it: it is not taken away.
    let taken = bind(&at, 1).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    drop(bound);
    assert!(!path.exists());
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_nothing_else_is() {
    let path = path();
    drop(StdListener::bind(&path).unwrap());
    assert!(path.exists());
    let bound = bind(&Listen::Unix(path.clone()), 1).unwrap();
    // Another's socket at the same place stays.
    std::fs::remove_file(&path).unwrap();
    let other = StdListener::bind(&path).unwrap();
    drop(bound);
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file").unwrap();
    let refused = bind(&Listen::Unix(path.clone()), 1).unwrap_err();
    assert!(refused.to_string().contains("no socket"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn f40_an_end_is_heard_behind_bytes_that_nobody_reads() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let socket = Socket::Tcp(listener.accept().await.unwrap().0);
    client.write_all(&[b'x'; 100]).await.unwrap();
    let mut ended = std::pin::pin!(socket.closed());
    // It can be read, and that is no end.
    each_ready(&socket).await;
    assert!(futures_util::poll!(&mut ended).is_pending());
    client.write_all(b"y").await.unwrap();
    tokio::task::yield_now().await;
    assert!(futures_util::poll!(&mut ended).is_pending());
    drop(client);
    ended.await;
}

async fn each_ready(socket: &Socket) {
    let Socket::Tcp(stream) = socket else { return };
    stream.readable().await.unwrap();
}
