//! A publisher that wants to be held without end, beside one that is honest.

use super::tests::{PATIENCE_MS, Publisher, W, feeds, stored};
use super::*;
use crate::ingest::links::tests::shake;
use crate::testing::shell;
use std::io::Write;
use std::net::TcpListener;

#[test]
fn frames_without_end_end_their_link_and_nobody_elses() {
    // Empty ones, and of some length: bounded by their number and by their bytes.
    for frame in [vec![1, 0], [&[3, 0, 0, 0, 0, 0, 0x20, 0, 0][..], &vec![7; 0x20_0000]].concat()] {
        let names = ["honest", W];
        let (shell, book) = (shell("", &names), FeedBook::default());
        let mut honest = Publisher::new(0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let wants = names.map(|name| {
            book.open(name, 0, 1);
            let mut feed = Feed { worker: name.into(), ..honest.feed_of(0, 1) };
            if name == W {
                feed.endpoint.clone_from(&endpoint);
            }
            ((name.to_owned(), 0), Want { feed, serial: 1 })
        });
        let mut feeds = feeds(PATIENCE);
        feeds.become_as(&shell, &book, &Wants::from(wants));
        // As often as it is come to: each time for as long as it is listened to.
        let hostile = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                shake(&mut stream);
                while stream.write_all(&frame).is_ok() {}
            }
        });
        honest.awaits();
        let key = (W.to_owned(), 0);
        let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
        let mut told = 0;
        while feeds.open[&key].blamed.events.is_none() || !hostile.is_finished() {
            assert!(Instant::now() < until, "it is noticed");
            honest.publish(vec![stored(told)]);
            told += 1;
            feeds.look(&shell, &book);
        }
        hostile.join().unwrap();
        while book.stats()["honest"].stored < u64::from(told) {
            assert!(Instant::now() < until, "the other one is heard");
            feeds.look(&shell, &book);
        }
        assert_eq!((book.state("honest"), book.stats()["honest"].gaps), ("events", 0));
        assert_eq!(book.stats()[W].stored, 0);
        // An honest one takes its place.
        let socket = zmq::Context::new().socket(zmq::XPUB).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(PATIENCE_MS).unwrap();
        socket.bind(&endpoint).unwrap();
        let mut after = Publisher::on(socket, &endpoint);
        after.awaits();
        after.publish(vec![stored(1)]);
        while book.stats()[W].stored == 0 || book.state(W) != "events" {
            assert!(Instant::now() < until, "it is heard again");
            feeds.look(&shell, &book);
        }
    }
}
