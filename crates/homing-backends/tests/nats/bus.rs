//! Messages among routers: in order, to whom they are for, and every loss is said.

use crate::contract::soon;
use crate::server::{Proxy, Server};
use bytes::Bytes;
use homing_backends::nats::{Link, connect};
use homing_runtime::replication::port::{
    Bus as _, Deliveries, Delivery, MESSAGE_MAX, PortError, Reach, To,
};
use std::time::Duration;

struct Router {
    link: Link,
    inbox: Deliveries,
}

impl Router {
    async fn new(reach: Reach, number: u32) -> Self {
        let (link, inbox) = connect(reach, "g", number).await.unwrap();
        Self { link, inbox }
    }

    /// One that is connected.
    async fn there(server: &Server, number: u32) -> Self {
        let mut router = Self::new(server.reach(), number).await;
        assert_eq!(router.next().await, Delivery::Back);
        router.greet().await;
        router
    }

    /// What it says to itself comes back: the server has its subscriptions.
    async fn greet(&mut self) {
        self.link.send(To::All, Bytes::from_static(b"it is me")).await.unwrap();
        self.until(|d| *d == Delivery::Message(Bytes::from_static(b"it is me"))).await;
    }

    async fn next(&mut self) -> Delivery {
        soon("a delivery", self.inbox.recv()).await.unwrap()
    }

    /// What comes before that which is looked for.
    async fn until(&mut self, is_it: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        let mut before = Vec::new();
        loop {
            let next = self.next().await;
            if is_it(&next) {
                return before;
            }
            before.push(next);
        }
    }

    async fn text(&mut self) -> String {
        loop {
            if let Delivery::Message(message) = self.next().await
                && &message[..] != b"it is me"
            {
                return String::from_utf8(message.to_vec()).unwrap();
            }
        }
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_in_order_and_reach_whom_they_are_for() {
    let server = Server::start(&[]);
    let a = Router::there(&server, 1).await;
    let mut b = Router::there(&server, 2).await;
    let mut c = Router::there(&server, 3).await;
    // Fewer at a time than the queues hold: nothing may be lost here.
    for part in 0..10 {
        let part = part * 200..(part + 1) * 200;
        for n in part.clone() {
            a.link.send(To::All, bytes(&n.to_string())).await.unwrap();
        }
        for router in [&mut b, &mut c] {
            for n in part.clone() {
                assert_eq!(router.text().await, n.to_string());
            }
        }
    }
    a.link.send(To::One(3), bytes("for three")).await.unwrap();
    a.link.send(To::One(4), bytes("for nobody")).await.unwrap();
    assert_eq!(c.text().await, "for three");
    a.link.send(To::All, bytes("for all")).await.unwrap();
    assert_eq!(b.text().await, "for all", "and not what was for others");
    assert_eq!(c.text().await, "for all");
    // Another group on the same server hears nothing of it.
    let (_other, mut inbox) = connect(server.reach(), "h", 3).await.unwrap();
    assert_eq!(soon("the connection", inbox.recv()).await, Some(Delivery::Back));
    a.link.send(To::All, bytes("to g")).await.unwrap();
    assert_eq!(b.text().await, "to g");
    assert!(inbox.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_go_and_larger_ones_do_not() {
    let server = Server::start(&[]);
    let a = Router::there(&server, 1).await;
    let mut b = Router::there(&server, 2).await;
    let largest = Bytes::from(vec![7u8; MESSAGE_MAX]);
    a.link.send(To::One(2), largest.clone()).await.unwrap();
    assert_eq!(b.until(|d| *d == Delivery::Message(largest.clone())).await.len(), 0);
    let error = a.link.send(To::All, Bytes::from(vec![7u8; MESSAGE_MAX + 1])).await;
    assert_eq!(error, Err(PortError::TooLarge(MESSAGE_MAX + 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_later_is_waited_for() {
    let mut server = Server::at_rest(&[]);
    let mut a = Router::new(server.reach(), 1).await;
    let error = a.link.send(To::All, bytes("too early")).await.unwrap_err();
    assert!(matches!(error, PortError::Unreachable { backend: "NATS", .. }), "{error}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(a.inbox.try_recv().is_err(), "nothing was said");
    server.run();
    assert_eq!(a.next().await, Delivery::Back);
    let mut b = Router::there(&server, 2).await;
    a.link.send(To::One(2), bytes("now")).await.unwrap();
    assert_eq!(b.text().await, "now", "what failed was not kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_is_lost_and_comes_back() {
    let mut server = Server::start(&[]);
    let mut a = Router::there(&server, 1).await;
    let mut b = Router::there(&server, 2).await;
    for outage in [0, 3] {
        a.link.send(To::All, bytes("before")).await.unwrap();
        assert_eq!(b.text().await, "before");
        server.kill();
        for router in [&mut a, &mut b] {
            router.until(|d| *d == Delivery::Lost).await;
            let error = router.link.send(To::All, bytes("meanwhile")).await.unwrap_err();
            assert!(matches!(error, PortError::Unreachable { .. }), "{error}");
        }
        tokio::time::sleep(Duration::from_secs(outage)).await;
        assert!(b.inbox.try_recv().is_err(), "a loss is said once");
        server.run();
        for router in [&mut a, &mut b] {
            assert_eq!(router.next().await, Delivery::Back);
        }
        b.greet().await;
        a.link.send(To::One(2), bytes("after")).await.unwrap();
        assert_eq!(b.text().await, "after");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_falls_behind_is_told() {
    let server = Server::start(&[]);
    let a = Router::there(&server, 1).await;
    let mut b = Router::there(&server, 2).await;
    // More than all queues hold, and nobody takes them.
    for n in 0..4_000 {
        a.link.send(To::All, bytes(&n.to_string())).await.unwrap();
    }
    // Another connection hears the last: the server has passed them all on by then.
    let mut seen = Vec::new();
    let mut told = Vec::new();
    loop {
        match b.next().await {
            Delivery::Message(message) => {
                let text = String::from_utf8(message.to_vec()).unwrap();
                if let Ok(number) = text.parse::<u32>() {
                    seen.push(number);
                }
                if told.len() >= 2 && told[told.len() - 1] == Delivery::Back {
                    break;
                }
            }
            other => {
                told.push(other);
                // From here on all is whole again.
                if told.last() == Some(&Delivery::Back) {
                    a.link.send(To::All, bytes("on")).await.unwrap();
                }
            }
        }
    }
    assert!(seen.is_sorted(), "in order");
    assert!(told.chunks(2).all(|pair| pair == [Delivery::Lost, Delivery::Back]), "{told:?}");
    assert!(seen.len() < 4_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_falls_silent_is_lost_and_made_anew() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(&server).await;
    let mut a = Router::new(proxy.reach(), 1).await;
    assert_eq!(a.next().await, Delivery::Back);
    a.greet().await;
    let b = Router::there(&server, 2).await;
    // Nothing is closed, nothing comes through: as where a switch has died.
    proxy.stop();
    let _ = a.link.send(To::All, bytes("into the void")).await;
    a.until(|d| *d == Delivery::Lost).await;
    let error = a.link.send(To::All, bytes("meanwhile")).await.unwrap_err();
    assert!(matches!(error, PortError::Unreachable { .. }), "{error}");
    b.link.send(To::All, bytes("missed")).await.unwrap();
    proxy.go_on();
    a.until(|d| *d == Delivery::Back).await;
    a.greet().await;
    b.link.send(To::One(1), bytes("again")).await.unwrap();
    assert_eq!(a.text().await, "again");
}
