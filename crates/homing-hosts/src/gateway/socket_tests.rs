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
    let bound = bind(&at, 3, false).unwrap();
    assert_eq!((bound.listeners.len(), &bound.at), (3, &at));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, MODE);
    // Somebody listens on it: it is not taken away.
    let taken = bind(&at, 1, false).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    drop(bound);
    assert!(!path.exists());
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_nothing_else_is() {
    let path = path();
    drop(StdListener::bind(&path).unwrap());
    assert!(path.exists());
    let bound = bind(&Listen::Unix(path.clone()), 1, false).unwrap();
    // Another's socket at the same place stays.
    std::fs::remove_file(&path).unwrap();
    let other = StdListener::bind(&path).unwrap();
    drop(bound);
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file").unwrap();
    let refused = bind(&Listen::Unix(path.clone()), 1, false).unwrap_err();
    assert!(refused.to_string().contains("no socket"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_socket_is_taken_over_without_a_moment_in_which_nobody_listens() {
    let path = path();
    let at = Listen::Unix(path.clone());
    let old = bind(&at, 1, false).unwrap();
    let waits = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let new = bind(&at, 1, true).unwrap();
    let comes = std::os::unix::net::UnixStream::connect(&path).unwrap();
    // Each has its own, and the old one's end takes nothing from the new one.
    for bound in [&old, &new] {
        bound.listeners[0].set_nonblocking(false).unwrap();
        bound.listeners[0].accept().unwrap();
    }
    drop(old);
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    drop((new, waits, comes));
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    bind(&at, 1, true).unwrap_err();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_port_is_shared_where_that_is_wanted() {
    let old = bind(&Listen::Tcp("127.0.0.1:0".parse().unwrap()), 2, false).unwrap();
    assert_eq!(bind(&old.at, 2, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let new = bind(&old.at, 2, true).unwrap();
    assert_eq!(new.at, old.at);
}

#[tokio::test]
async fn who_is_turned_away_was_not_connected_yet_and_who_was_is_accepted() {
    let bound = bind(&Listen::Tcp("127.0.0.1:0".parse().unwrap()), 1, false).unwrap();
    let Bound { at: at @ Listen::Tcp(address), mut listeners, .. } = bound else {
        panic!("a port")
    };
    let listener = Listener::new(&at, listeners.remove(0)).unwrap();
    let mut before = TcpStream::connect(address).await.unwrap();
    listener.turn_away();
    let connect = TcpStream::connect(address);
    let mut after = std::pin::pin!(connect);
    assert!(futures_util::poll!(&mut after).is_pending());
    let Socket::Tcp(mut served) = listener.accept().await.unwrap() else { panic!("a port") };
    served.write_all(b"x").await.unwrap();
    assert_eq!(tokio::io::AsyncReadExt::read_u8(&mut before).await.unwrap(), b'x');
    // The other one listens, and its second try, after a second, finds that.
    let other = bind(&at, 1, true).unwrap();
    drop(listener);
    after.await.unwrap();
    other.listeners[0].set_nonblocking(false).unwrap();
    other.listeners[0].accept().unwrap();
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
