//! A router that can't start leaves nothing behind. A process of its own with one test, since it looks at
//! the threads of the process.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use homing_hosts::{Server, StartError};
use homing_runtime::settings::{Settings, Sources};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);

/// The threads of this process.
fn threads() -> BTreeSet<OsString> {
    std::fs::read_dir("/proc/self/task").unwrap().map(|t| t.unwrap().file_name()).collect()
}

async fn start(gateway: SocketAddr, admin: SocketAddr, more: &str) -> Result<Server, StartError> {
    let text = format!("gateway.listen = '{gateway}'\nadmin.listen = '{admin}'\n{more}");
    let file = Some(("test.toml".into(), text));
    Server::start(Settings::load(Sources { file, ..Sources::default() }).unwrap()).await
}

/// Until only these run.
async fn only(before: &BTreeSet<OsString>) {
    let until = Instant::now() + DEADLINE;
    while !threads().is_subset(before) {
        assert!(Instant::now() < until, "still there: {:?}", threads().difference(before));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn f44_a_start_that_fails_leaves_nothing_running() {
    let before = threads();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let taken = TcpListener::bind(any).unwrap();
    let address = taken.local_addr().unwrap();

    let failed = start(address, any, "").await.unwrap_err();
    assert!(matches!(failed, StartError::Listen { key: "gateway.listen", .. }), "{failed}");
    only(&before).await;
    let failed = start(any, address, "").await.unwrap_err();
    assert!(matches!(failed, StartError::Listen { key: "admin.listen", .. }), "{failed}");
    only(&before).await;
    let model = "[[models]]\nname = 'm'\ntokenizer = '/nowhere/at/all'\n";
    let failed = start(any, any, model).await.unwrap_err();
    assert!(matches!(failed, StartError::Tokenizer { .. }), "{failed}");
    only(&before).await;

    // And the same place is good once it is free.
    drop(taken);
    let server = start(address, any, "gateway.shutdown_delay = '0s'\n").await.unwrap();
    assert!(threads().len() >= before.len() + 3, "the gateway's, the pool's and the feeds'");
    assert!(server.shut_down().await);
}
