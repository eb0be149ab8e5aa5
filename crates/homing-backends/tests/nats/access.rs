//! Who may speak to NATS: users, passwords and certificates, and what is said where they are wrong.

use crate::contract::soon;
use crate::server::Server;
use homing_backends::nats::{connect, look_at, open};
use homing_runtime::replication::port::{Delivery, PortError, Reach};
use std::path::PathBuf;
use std::time::Duration;

const WITH_USER: &[&str] = &["-js", "--user", "homing", "--pass", "right"];

#[tokio::test(flavor = "multi_thread")]
async fn the_right_password_opens_and_a_wrong_one_is_refused_at_once() {
    let server = Server::start(WITH_USER);
    let (_link, mut inbox) = connect(server.reach_as("homing", "right"), "g", 1).await.unwrap();
    assert_eq!(soon("the connection", inbox.recv()).await, Some(Delivery::Back));
    open(server.reach_as("homing", "right"), "g", Duration::from_secs(60)).await.unwrap();
    for reach in
        [server.reach_as("homing", "wrong"), server.reach_as("me", "right"), server.reach()]
    {
        let begun = tokio::time::Instant::now();
        let error = connect(reach, "g", 1).await.unwrap_err();
        assert!(matches!(error, PortError::Refused { backend: "NATS", .. }), "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!error.to_string().contains("wrong"), "its words are not repeated: {error}");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_read_anew_for_each_connection() {
    let mut server = Server::start(WITH_USER);
    let reach = server.reach_as("homing", "right");
    let (_link, mut inbox) = connect(reach.clone(), "g", 1).await.unwrap();
    assert_eq!(soon("the connection", inbox.recv()).await, Some(Delivery::Back));
    // Another one from now on, at both ends.
    std::fs::write(reach.password_file.as_ref().unwrap(), "other\n").unwrap();
    server.kill();
    assert_eq!(soon("the loss", inbox.recv()).await, Some(Delivery::Lost));
    server.set_args(&["--user", "homing", "--pass", "other"]);
    server.run();
    assert_eq!(soon("the connection", inbox.recv()).await, Some(Delivery::Back));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_used_are_errors_at_start() {
    let server = Server::start(&[]);
    let missing = Some(PathBuf::from("/nowhere/file.pem"));
    let with = |change: fn(&mut Reach, Option<PathBuf>)| {
        let mut reach = server.reach();
        change(&mut reach, missing.clone());
        reach
    };
    for (reach, says) in [
        (with(|reach, file| reach.ca_file = file), "ca_file"),
        (with(|reach, file| reach.cert_file = file), "cert_file"),
        (with(|reach, file| reach.key_file = file), "key_file"),
        (with(|reach, file| reach.password_file = file), "password_file"),
        (Reach { urls: vec!["http://127.0.0.1:1".to_owned()], ..Reach::default() }, "nats://"),
        (Reach::default(), "no NATS server"),
    ] {
        // Looked at without connecting it is the same.
        let looked = look_at(&reach, "g").unwrap_err();
        let error = connect(reach, "g", 1).await.unwrap_err();
        assert!(matches!(error, PortError::Setting(_)), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(looked, error);
    }
    assert_eq!(look_at(&server.reach(), "g"), Ok(()));
    for group in ["", "a.b", "a b", "*", ">"] {
        assert!(look_at(&server.reach(), group).is_err(), "{group}");
        let error = connect(server.reach(), group, 1).await.unwrap_err();
        assert!(matches!(error, PortError::Setting(_)), "{error}");
    }
}

/// A file of `testdata/tls`.
fn pem(name: &str) -> String {
    format!("{}/../../testdata/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_shown_and_believed() {
    let (cert, key, ca) = (pem("server.pem"), pem("server.key"), pem("ca.pem"));
    let server =
        Server::start(&["--tlsverify", "--tlscert", &cert, "--tlskey", &key, "--tlscacert", &ca]);
    let ours = Reach {
        ca_file: Some(ca.into()),
        cert_file: Some(pem("client.pem").into()),
        key_file: Some(pem("client.key").into()),
        ..server.reach()
    };
    let (_link, mut inbox) = connect(ours.clone(), "g", 1).await.unwrap();
    assert_eq!(soon("the connection", inbox.recv()).await, Some(Delivery::Back));
    let other_ca = Reach { ca_file: Some(pem("other-ca.pem").into()), ..ours.clone() };
    let error = connect(other_ca, "g", 1).await.unwrap_err();
    assert!(matches!(error, PortError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    let stranger = Reach {
        cert_file: Some(pem("stranger.pem").into()),
        key_file: Some(pem("stranger.key").into()),
        ..ours
    };
    let error = connect(stranger, "g", 1).await.unwrap_err();
    assert!(matches!(error, PortError::Refused { .. }), "{error}");
}
