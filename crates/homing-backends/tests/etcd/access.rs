//! Who may speak to etcd: users, passwords and files, and what is said where they are wrong.

use crate::contract::{done, set, soon};
use crate::server::Server;
use homing_backends::etcd::{Store, look_at};
use homing_runtime::replication::port::{BindingStore, PortError, Reach, Set, Stay};
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
async fn the_right_password_opens_and_a_wrong_one_is_refused_at_once() {
    let mut server = Server::start();
    // Where nobody is asked who he is, a name does no harm.
    let early = Store::open(server.reach_as("homing", "right"), "g", IDLE).await.unwrap();
    let first = done(&early, "a", "1", None).await;
    server.ask_for_users();
    let store = Store::open(server.reach_as("homing", "right"), "g", IDLE).await.unwrap();
    assert!(matches!(set(&store, "a", "2", Some(first)).await, Set::Done(_)));
    // Who was there before logs in when he is asked.
    done(&early, "b", "1", None).await;

    for reach in [server.reach_as("homing", "wrong"), server.reach_as("me", "right")] {
        let error = Store::open(reach, "g", IDLE).await.unwrap_err();
        assert!(matches!(error, PortError::Refused { backend: "etcd", .. }), "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!error.to_string().contains("wrong"), "its words are not repeated: {error}");
    }
    // Keys of others are not ours, and who says nothing has none.
    for (reach, group) in [(server.reach_as("homing", "right"), "others"), (server.reach(), "g")] {
        let store = Store::open(reach, group, IDLE).await.unwrap();
        let error = store.compare_and_remove("x", 1).await.unwrap_err();
        assert!(matches!(error, PortError::Refused { .. }), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_ended_is_asked_for_anew() {
    let mut server = Server::start();
    server.ask_for_users();
    let store = Store::open(server.reach_as("homing", "right"), "g", IDLE).await.unwrap();
    done(&store, "a", "1", None).await;
    // It keeps no tokens over a restart.
    server.kill();
    server.run();
    soon("a write", async {
        loop {
            match store.compare_and_set("b", "1".into(), None, Stay::WithUs).await {
                Ok(Set::Done(_)) => return,
                Err(PortError::Unreachable { .. }) => {}
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    // Any change of users ends what was said of them before.
    server.ctl(&["user", "add", "somebody:else"]);
    done(&store, "c", "1", None).await;
}

#[test]
fn settings_that_cannot_be_used_are_errors() {
    let at = |url: &str| Reach { urls: vec![url.to_owned()], ..Reach::default() };
    assert_eq!(look_at(&at("http://127.0.0.1:1")), Ok(()));
    let missing = || Some("/nowhere/file.pem".into());
    for (reach, says) in [
        (Reach { ca_file: missing(), ..at("https://a:1") }, "/nowhere/file.pem"),
        (Reach { cert_file: missing(), key_file: missing(), ..at("https://a:1") }, "/nowhere"),
        (
            Reach { user: Some("u".into()), password_file: missing(), ..at("http://a:1") },
            "password",
        ),
        (at("nats://a:1"), "http://host:port"),
        (Reach::default(), "no URL"),
    ] {
        let error = look_at(&reach).unwrap_err();
        assert!(matches!(error, PortError::Setting(_)), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
