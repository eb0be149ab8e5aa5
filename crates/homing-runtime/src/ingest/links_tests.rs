//! Peers that speak by hand, and mostly not as they should: what becomes of the connection, and what of the next one.
//! Nothing depends on how long something takes: time-outs are short where they are to strike, else longer than the
//! test.

use super::listen::CONNECTIONS_MAX;
use super::queue::HIGH_WATER;
use super::*;
use homing_wire::zmtp::MESSAGE_MAX;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const DEADLINE: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(50);

/// Time-outs that never strike, and attempts that follow each other closely.
pub(in super::super) fn patient() -> Times {
    let (ask, mute) = (DEADLINE, DEADLINE);
    let pause = Duration::from_millis(1);
    Times { connect: DEADLINE, handshake: DEADLINE, ask, mute, pause, pause_max: 20 * pause }
}

pub(in super::super) fn greeting() -> Vec<u8> {
    [&[0xff][..], &[0; 8], &[0x7f, 3, 1], b"NULL", &[0; 16], &[0; 32]].concat()
}

pub(in super::super) fn ready(socket: &str) -> Vec<u8> {
    let body = [b"\x05READY\x0bSocket-Type\0\0\0", &[socket.len() as u8][..], socket.as_bytes()];
    let body = body.concat();
    [&[4, body.len() as u8][..], &body].concat()
}

const PING: &[u8] = b"\x04\x0a\x04PING\0\0who";
const PONG: &[u8] = b"\x04\x08\x04PONGwho";
const MESSAGE: &[u8] = b"\x01\x01a\x00\x01b";

/// What we say to a publisher: greeting, READY, SUBSCRIBE.
const OURS: usize = 64 + 27 + 12;

/// A publisher's side of a handshake, on a connection that is there.
pub(in super::super) fn shake(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(&[greeting(), ready("PUB")].concat()).unwrap();
    let mut ours = [0; OURS];
    stream.read_exact(&mut ours).unwrap();
    assert!(ours.ends_with(b"\x04\x0a\x09SUBSCRIBE"), "{}", ours.escape_ascii());
}

/// Somebody that we connect to, and the link.
fn connected(times: Times) -> (TcpListener, Links, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let links = Links::new(times).unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let link = links.events(&endpoint).unwrap();
    (listener, links, link)
}

/// The next note.
fn next(links: &Links, link: &Link) -> Note {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(note) = link.take(1, usize::MAX).pop() {
            return note;
        }
        assert!(Instant::now() < until, "nothing comes");
        links.wait(SOON);
    }
}

fn is_connected(links: &Links, link: &Link) {
    let note = next(links, link);
    assert!(matches!(note, Note::Connected), "{note:?}");
}

fn brings(links: &Links, link: &Link) {
    let note = next(links, link);
    let Note::Message(frames) = note else { panic!("{note:?}") };
    assert_eq!(frames, [b"a", b"b"]);
}

/// Until the other side has closed it, whatever it says before.
fn is_closed(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn whoever_is_no_publisher_is_left_with_its_reason_and_tried_again() {
    let long = [&[3][..], &(1u64 << 60).to_be_bytes()].concat();
    let cases: [(&str, Vec<u8>, &str); 7] = [
        ("garbage", b"\x00\x01\x02".to_vec(), "doesn't speak ZMTP"),
        ("an HTTP server", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "not an HTTP one"),
        ("the wrong socket", [greeting(), ready("ROUTER")].concat(), "type \"ROUTER\""),
        ("no READY", [greeting(), MESSAGE.to_vec()].concat(), "without READY"),
        ("a refusal", [&greeting()[..], b"\x04\x09\x05ERROR\x02no"].concat(), "refuses us: \"no\""),
        ("too long", [greeting(), ready("PUB"), long].concat(), "more than 16777216 bytes"),
        ("too many", [greeting(), ready("PUB"), [1, 0].repeat(17)].concat(), "more than 16 frames"),
    ];
    let (listener, links, link) = connected(patient());
    for (name, bytes, why) in cases {
        let (mut stream, _) = listener.accept().unwrap();
        // It may be closed before the last of it.
        let _ = stream.write_all(&bytes);
        let mut note = next(&links, &link);
        let was_connected = matches!(note, Note::Connected);
        if was_connected {
            note = next(&links, &link);
        }
        let ended = match note {
            Note::Failed(ended) if !was_connected => ended,
            Note::Lost(ended) if was_connected => ended,
            note => panic!("{name}: {note:?}"),
        };
        assert!(ended.is_fault() && ended.to_string().contains(why), "{name}: {ended}");
        is_closed(&mut stream);
    }
    let (mut stream, _) = listener.accept().unwrap();
    shake(&mut stream);
    stream.write_all(MESSAGE).unwrap();
    is_connected(&links, &link);
    brings(&links, &link);
    drop(stream);
    let note = next(&links, &link);
    assert!(matches!(note, Note::Lost(Ended::Closed | Ended::Broken(_))), "{note:?}");
}

#[test]
fn a_handshake_that_does_not_end_is_given_up() {
    let (listener, links, link) = connected(Times { handshake: SOON, ..patient() });
    // Nothing; a greeting and nothing behind it; and a byte now and then.
    for begin in [vec![], greeting()] {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&begin).unwrap();
        let note = next(&links, &link);
        assert!(matches!(note, Note::Failed(Ended::Handshake(_))), "{note:?}");
        is_closed(&mut stream);
    }
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&greeting()).unwrap();
    let drips = b"\x04\xff\x07UNKNOWN".iter().chain(std::iter::repeat(&0));
    for drip in drips {
        if link.has_something() || stream.write_all(&[*drip]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let note = next(&links, &link);
    assert!(matches!(&note, Note::Failed(ended) if ended.is_fault()), "{note:?}");
}

#[test]
fn a_ping_is_answered() {
    let (listener, links, link) = connected(patient());
    let (mut stream, _) = listener.accept().unwrap();
    shake(&mut stream);
    for _ in 0..3 {
        stream.write_all(&[MESSAGE, PING].concat()).unwrap();
        let mut answer = [0; PONG.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, PONG);
    }
    is_connected(&links, &link);
    (0..3).for_each(|_| brings(&links, &link));
}

#[test]
fn a_peer_that_goes_mute_is_noticed_and_one_that_answers_is_not() {
    let times = Times { ask: Duration::from_millis(5), mute: SOON, ..patient() };
    let (listener, links, link) = connected(times);
    let (mut stream, _) = listener.accept().unwrap();
    shake(&mut stream);
    is_connected(&links, &link);
    let asked = b"\x04\x07\x04PING\0\0";
    // Asked, and silent.
    let mut question = [0; 9];
    stream.read_exact(&mut question).unwrap();
    assert_eq!(&question, asked);
    let note = next(&links, &link);
    assert!(matches!(note, Note::Lost(Ended::Mute(_))), "{note:?}");
    is_closed(&mut stream);
    // Who answers is asked on, for longer than it might be silent. A slow machine may be late with an answer.
    let times = Times { ask: Duration::from_millis(5), mute: DEADLINE, ..patient() };
    let (listener, links, link) = connected(times);
    let (mut stream, _) = listener.accept().unwrap();
    shake(&mut stream);
    is_connected(&links, &link);
    for _ in 0..5 {
        stream.read_exact(&mut question).unwrap();
        stream.write_all(b"\x04\x05\x04PONG").unwrap();
    }
    stream.write_all(MESSAGE).unwrap();
    brings(&links, &link);
}

/// A publisher that connects to us.
fn comes(at: SocketAddr, links: &Links, link: &Link) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    shake(&mut stream);
    is_connected(links, link);
    stream
}

fn listening(times: Times) -> (Links, Link, SocketAddr) {
    let links = Links::new(times).unwrap();
    let link = links.events("tcp://*:*").unwrap();
    let at = SocketAddr::from(([127, 0, 0, 1], link.local().unwrap().port()));
    (links, link, at)
}

#[test]
fn a_port_has_so_many_connections_and_those_that_are_none_make_room() {
    let (links, link, at) = listening(Times { handshake: 4 * SOON, ..patient() });
    let mut idle: Vec<_> =
        (0..2 * CONNECTIONS_MAX).map(|_| TcpStream::connect(at).unwrap()).collect();
    // For those beyond, others make room; all go when they have said nothing for too long.
    idle.iter_mut().for_each(is_closed);
    let (mut full, mut gave_way, mut late) = (0, 0, 0);
    while gave_way + late < 2 * CONNECTIONS_MAX {
        match next(&links, &link) {
            Note::Full => full += 1,
            Note::Failed(Ended::GaveWay) => gave_way += 1,
            Note::Failed(Ended::Handshake(_)) => late += 1,
            note => panic!("{note:?}"),
        }
    }
    assert!(full >= gave_way && late >= 1, "{full} {gave_way} {late}");
    let mut engine = TcpStream::connect(at).unwrap();
    shake(&mut engine);
    engine.write_all(MESSAGE).unwrap();
    is_connected(&links, &link);
    brings(&links, &link);
}

#[test]
fn peers_that_are_connected_and_say_nothing_keep_no_engine_out() {
    let (links, link, at) = listening(patient());
    let connect = || comes(at, &links, &link);
    let mut engine = connect();
    engine.write_all(MESSAGE).unwrap();
    brings(&links, &link);
    let mut idle: Vec<_> = (1..CONNECTIONS_MAX).map(|_| connect()).collect();
    // It comes again while its last connection is there still.
    let mut again = TcpStream::connect(at).unwrap();
    shake(&mut again);
    again.write_all(MESSAGE).unwrap();
    assert!(matches!(next(&links, &link), Note::Full));
    is_closed(&mut idle[0]);
    let mut notes = [(); 3].map(|()| next(&links, &link));
    notes.sort_by_key(|note| matches!(note, Note::Failed(_)));
    let [Note::Connected, Note::Message(_), Note::Failed(Ended::GaveWay)] = notes else {
        panic!("{notes:?}")
    };
    // The one that was heard stays.
    engine.write_all(MESSAGE).unwrap();
    assert!(matches!(next(&links, &link), Note::Rivals));
    brings(&links, &link);
}

/// Found by a breaker: the network went, and the engine was back before its last connection was known to be gone.
#[test]
fn an_engine_that_is_back_before_its_last_connection_is_gone_is_there() {
    let (links, link, at) = listening(patient());
    let connect = || comes(at, &links, &link);
    let mut old = connect();
    old.write_all(MESSAGE).unwrap();
    brings(&links, &link);
    let mut new = connect();
    drop(old);
    let note = next(&links, &link);
    assert!(matches!(note, Note::Replaced(_)), "{note:?}");
    new.write_all(MESSAGE).unwrap();
    brings(&links, &link);
    drop(new);
    let note = next(&links, &link);
    assert!(matches!(note, Note::Lost(_)), "{note:?}");
}

#[test]
fn two_that_publish_to_one_port_are_told_apart_from_one_that_came_back() {
    let (links, link, at) = listening(patient());
    let [mut a, mut b] = [(); 2].map(|()| comes(at, &links, &link));
    for stream in [&mut a, &mut b] {
        stream.write_all(MESSAGE).unwrap();
        brings(&links, &link);
    }
    a.write_all(MESSAGE).unwrap();
    assert!(matches!(next(&links, &link), Note::Rivals), "its last connection would be silent");
    brings(&links, &link);
    // Said once of each.
    b.write_all(MESSAGE).unwrap();
    assert!(matches!(next(&links, &link), Note::Rivals));
    brings(&links, &link);
    a.write_all(MESSAGE).unwrap();
    brings(&links, &link);
}

#[test]
fn of_several_at_a_port_the_one_that_publishes_counts() {
    let (links, link, at) = listening(patient());
    let [mut engine, mut silent, mut other] = [(); 3].map(|()| comes(at, &links, &link));
    engine.write_all(MESSAGE).unwrap();
    brings(&links, &link);
    silent.write_all(PING).unwrap();
    drop(silent);
    let note = next(&links, &link);
    assert!(matches!(note, Note::Failed(_)), "nothing depended on it: {note:?}");
    drop(engine);
    let note = next(&links, &link);
    assert!(matches!(note, Note::Lost(_)), "{note:?}");
    other.write_all(MESSAGE).unwrap();
    brings(&links, &link);
    drop(other);
    let note = next(&links, &link);
    assert!(matches!(note, Note::Lost(_)), "{note:?}");
}

#[test]
fn what_waits_is_bounded_in_bytes_and_in_number() {
    let (listener, links, link) = connected(patient());
    let (mut stream, _) = listener.accept().unwrap();
    let many = 8;
    let publisher = std::thread::spawn(move || {
        shake(&mut stream);
        let length = MESSAGE_MAX - 64;
        for _ in 0..many {
            stream.write_all(&[&[2][..], &(length as u64).to_be_bytes()].concat()).unwrap();
            stream.write_all(&vec![7; length]).unwrap();
        }
        for _ in 0..10 * HIGH_WATER {
            stream.write_all(b"\x00\x01x").unwrap();
        }
        stream
    });
    is_connected(&links, &link);
    let mut came = (0, 0);
    let until = Instant::now() + DEADLINE;
    while came != (many, 10 * HIGH_WATER) {
        assert!(Instant::now() < until, "{came:?}");
        links.wait(SOON);
        let notes = link.take(usize::MAX, usize::MAX);
        assert!(
            notes.len() <= HIGH_WATER && notes.iter().map(Note::size).sum::<usize>() <= 32 << 20
        );
        for note in notes {
            match note {
                Note::Message(frames) if frames[0].len() == 1 => came.1 += 1,
                Note::Message(frames) => {
                    assert!(frames[0].iter().all(|byte| *byte == 7));
                    came.0 += 1;
                }
                note => panic!("{note:?}"),
            }
        }
    }
    drop(publisher.join().unwrap());
}

#[test]
fn an_endpoint_may_be_a_path_and_a_question_waits_for_its_connection() {
    let folder = std::env::temp_dir().join(format!("homing-links-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let endpoint = format!("ipc://{}/replay", folder.display());
    let links = Links::new(patient()).unwrap();
    let link = links.replies(&endpoint, 7).unwrap();
    // Nobody is there yet.
    assert!(matches!(next(&links, &link), Note::Failed(Ended::Connect(_))));
    let router = zmq::Context::new().socket(zmq::ROUTER).unwrap();
    router.set_linger(0).unwrap();
    router.set_rcvtimeo(30_000).unwrap();
    router.bind(&endpoint).unwrap();
    let asked = router.recv_multipart(0).unwrap();
    assert_eq!(asked[1..], [vec![], 7u64.to_be_bytes().to_vec()]);
    router.send_multipart([&asked[0][..], b"a", b"b"], 0).unwrap();
    while !matches!(next(&links, &link), Note::Connected) {}
    brings(&links, &link);
    drop(router);
    assert!(matches!(next(&links, &link), Note::Lost(_)));
    assert!(links.replies("tcp://*:5557", 0).is_err() && links.events("tcp://h:*").is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_link_that_is_dropped_frees_its_port_and_its_connections() {
    let (links, link, at) = listening(patient());
    let mut stream = TcpStream::connect(at).unwrap();
    shake(&mut stream);
    drop(link);
    is_closed(&mut stream);
    let again = links.events(&format!("tcp://*:{}", at.port())).unwrap();
    assert_eq!(again.local().unwrap().port(), at.port());
    // With a link that is wanted still.
    let mut stream = TcpStream::connect(at).unwrap();
    shake(&mut stream);
    drop(links);
    is_closed(&mut stream);
    assert!(TcpStream::connect(at).is_err());
}
