//! What libzmq says, byte for byte, and what nobody should.

use super::frame::{write_command, write_message};
use super::*;
use proptest::prelude::*;
use std::path::Path;

type Frames = Vec<Vec<u8>>;

/// The other side, which may say anything.
fn greeting(minor: u8) -> Vec<u8> {
    let mut bytes = greeting::build().to_vec();
    bytes[11] = minor;
    bytes
}

fn said(body: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    write_command(body, &mut out);
    out
}

fn message(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![];
    write_message(frames, &mut out);
    out
}

fn handshake(minor: u8, socket: &str) -> Vec<u8> {
    [greeting(minor), said(&command::ready(socket))].concat()
}

/// What a session hears of bytes that come in pieces of such lengths, over and over, and what ended it.
fn hear(
    session: &mut Session,
    bytes: &[u8],
    cuts: &[usize],
) -> (Vec<Heard>, Option<ZmtpError>, Vec<u8>) {
    let (mut heard, mut out, mut came) = (vec![], session.output(), 0);
    let mut cuts = cuts.iter().cycle();
    let mut rest = bytes;
    while !rest.is_empty() {
        let cut = (*cuts.next().unwrap()).clamp(1, rest.len());
        let (mut piece, next) = rest.split_at(cut);
        (rest, came) = (next, came + cut);
        loop {
            let result = session.read(&mut piece);
            out.extend(session.output());
            assert!(
                session.held() <= (2 * came + 8192).min(MESSAGE_MAX),
                "{} {came}",
                session.held()
            );
            match result {
                Ok(Some(one)) => heard.push(one),
                Ok(None) => break assert!(piece.is_empty()),
                Err(error) => {
                    assert_eq!((session.read(&mut piece), session.held()), (Err(error.clone()), 0));
                    return (heard, Some(error), out);
                }
            }
        }
    }
    (heard, None, out)
}

fn hear_all(role: Role, bytes: &[u8]) -> (Vec<Heard>, Option<ZmtpError>, Vec<u8>) {
    hear(&mut Session::new(role), bytes, &[usize::MAX])
}

fn error(bytes: &[u8]) -> ZmtpError {
    let (_, error, _) = hear_all(Role::Subscriber, bytes);
    error.unwrap()
}

/// What a real libzmq 4.3.5 said, without the two bytes that are the fuzzer's.
fn captured(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/zmtp").join(name);
    std::fs::read(path).unwrap().split_off(2)
}

#[test]
fn what_libzmq_publishes_is_heard() {
    for (name, subscription) in
        [("xpub", said(b"\x09SUBSCRIBE")), ("xpub_3.0", said(b"\x09SUBSCRIBE"))]
    {
        let (heard, error, out) = hear_all(Role::Subscriber, &captured(name));
        let messages = (0u64..3).map(|seq| {
            let payload = [&b"\x93\xcb"[..], &[0; 8], b"\x90\xc0"].concat();
            vec![b"kv-events".to_vec(), seq.to_be_bytes().to_vec(), payload]
        });
        let last = vec![vec![], 3u64.to_be_bytes().to_vec(), vec![b'x'; 300]];
        let messages = messages.chain([last]).map(Heard::Message);
        let all: Vec<_> = std::iter::once(Heard::Ready).chain(messages).collect();
        assert_eq!((heard, error), (all, None), "{name}");
        let ready = said(b"\x05READY\x0bSocket-Type\0\0\0\x03SUB");
        assert_eq!(out, [greeting(1), ready, subscription].concat(), "{name}");
    }
}

#[test]
fn an_older_peer_is_subscribed_to_in_its_own_way_and_not_asked_whether_it_is_there() {
    for (minor, subscription) in
        [(0, vec![0, 1, 1]), (1, said(b"\x09SUBSCRIBE")), (7, said(b"\x09SUBSCRIBE"))]
    {
        let mut session = Session::new(Role::Subscriber);
        let (heard, _, out) = hear(&mut session, &handshake(minor, "PUB"), &[1]);
        assert_eq!(heard, [Heard::Ready]);
        assert!(out.ends_with(&subscription) && session.is_ready());
        assert_eq!(session.ping(), minor > 0);
        let asked = if minor > 0 { said(b"\x04PING\0\0") } else { vec![] };
        assert_eq!(session.output(), asked);
    }
    let mut later = handshake(0, "XPUB");
    later[10] = 4;
    assert_eq!(hear_all(Role::Subscriber, &later).0, [Heard::Ready], "who speaks 4 speaks 3.1");
}

#[test]
fn what_libzmq_answers_to_a_question_is_heard() {
    let request = vec![vec![], vec![0; 8]];
    let (heard, error, out) = hear_all(Role::Asker(request.clone()), &captured("router"));
    let reply = |topic: &[u8], seq: [u8; 8], payload: &[u8]| {
        Heard::Message(vec![vec![], topic.to_vec(), seq.to_vec(), payload.to_vec()])
    };
    let replies = [reply(b"kv-events", [0; 8], b"abc"), reply(b"", [0xff; 8], b"")];
    assert_eq!((&heard[1..], error), (&replies[..], None));
    assert!(out.ends_with(&message(&request)));
}

#[test]
fn a_ping_is_answered_with_what_it_brought() {
    let mut session = Session::new(Role::Subscriber);
    hear(&mut session, &captured("pub_heartbeat")[..], &[3]);
    for (context, back) in [(&b""[..], &b""[..]), (b"who", b"who"), (&[7; 40], &[7; 16])] {
        let ping = [b"\x04PING\0\x0a", context].concat();
        // Between the frames of a message, too: libzmq does so.
        let bytes = [&[1, 1, b'a'][..], &said(&ping), &[0, 1, b'b']].concat();
        let (heard, error, out) = hear(&mut session, &bytes, &[2]);
        assert_eq!(
            (heard, error),
            (vec![Heard::Message(vec![b"a".to_vec(), b"b".to_vec()])], None)
        );
        assert_eq!(out, said(&[b"\x04PONG", back].concat()));
    }
    let (heard, error, out) = hear(&mut session, &said(b"\x07UNKNOWNx"), &[2]);
    assert_eq!((heard, error, out), (vec![], None, vec![]));
}

#[test]
fn who_is_no_peer_of_ours_is_told_why() {
    let says = |bytes: &[u8], what: &str| {
        let error = error(bytes).to_string();
        assert!(error.contains(what), "{error}");
    };
    says(&captured("http"), "doesn't speak ZMTP (it began with 0x48)");
    says(&captured("error"), "the peer refuses us: \"go away\"");
    says(
        &captured("wrong_type"),
        "type \"ROUTER\", and a SUB of ours can't talk to it; name the endpoint of the events",
    );
    says(&captured("lengths"), "more than 16777216 bytes");
    says(&[&[0xff; 9][..], &[0x7f, 1, 2, 0, 0]].concat(), "revision 1");
    says(&[0xff; 10], "doesn't speak ZMTP");
    let mut plain = greeting(1);
    plain[12..17].copy_from_slice(b"PLAIN");
    says(&plain, "wants the mechanism \"PLAIN\"");
    plain[12..32].fill(b'\n');
    says(&plain, "\\n\\n");
    says(&[greeting(1), message(&[vec![]])].concat(), "without READY");
    says(&[greeting(1), said(b"\x04PING\0\0")].concat(), "without READY");
    says(&[greeting(1), said(b"\x05READY")].concat(), "malformed READY: it doesn't tell");
    says(
        &[greeting(1), said(b"\x05READY\x0bSocket-Type\xff\xff\xff\xffPUB")].concat(),
        "malformed READY",
    );
    says(&[greeting(1), said(b"\0")].concat(), "malformed command");
    says(&[handshake(1, "PUB"), said(b"\x04PING\0")].concat(), "malformed PING");
    says(&[handshake(1, "PUB"), said(b"\x05ERROR\xffx")].concat(), "malformed ERROR");
    for flags in [5, 8, 0x80, 7, 0xff] {
        says(&[handshake(1, "PUB"), vec![flags]].concat(), "which mean nothing");
    }
    let (_, error, _) = hear_all(Role::Asker(vec![]), &handshake(1, "PUB"));
    assert!(
        error.unwrap().to_string().ends_with("name the replay endpoint, not that of the events")
    );
}

#[test]
fn a_message_is_bounded_whole_and_in_its_frames() {
    let ready = handshake(1, "PUB");
    let framed = |frames: &[Vec<u8>]| {
        let bytes = [ready.clone(), message(frames)].concat();
        let (heard, error, _) = hear(&mut Session::new(Role::Subscriber), &bytes, &[65_536]);
        assert_eq!(heard.len(), if error.is_some() { 1 } else { 2 });
        error
    };
    let whole = MESSAGE_MAX - FRAME_COST;
    assert_eq!(framed(&[vec![0; whole]]), None);
    assert_eq!(framed(&[vec![0; whole + 1]]), Some(ZmtpError::MessageTooLong));
    assert_eq!(
        framed(&[vec![0; whole], vec![]]),
        Some(ZmtpError::MessageTooLong),
        "all of its frames"
    );
    assert_eq!(framed(&[vec![0; whole / 2], vec![0; whole / 2 - FRAME_COST]]), None);
    assert_eq!(framed(&vec![vec![]; FRAMES_MAX]), None);
    assert_eq!(framed(&vec![vec![]; FRAMES_MAX + 1]), Some(ZmtpError::TooManyFrames));
    // A new message is counted anew.
    let two = [ready.clone(), message(&[vec![0; whole]]), message(&[vec![0; whole]])].concat();
    assert_eq!(hear(&mut Session::new(Role::Subscriber), &two, &[1 << 20]).0.len(), 3);
    let command = [ready.clone(), said(&[&[1, b'X'][..], &[0; COMMAND_MAX - 2]].concat())].concat();
    assert_eq!(hear_all(Role::Subscriber, &command).1, None);
    let command = [ready, said(&[&[1, b'X'][..], &[0; COMMAND_MAX - 1]].concat())].concat();
    assert_eq!(error(&command), ZmtpError::CommandTooLong(COMMAND_MAX as u64 + 1));
}

#[test]
fn a_length_reserves_nothing() {
    let mut session = Session::new(Role::Subscriber);
    let head = [&handshake(1, "PUB")[..], &[2], &(MESSAGE_MAX as u64 - 64).to_be_bytes()].concat();
    assert_eq!(hear(&mut session, &head, &[usize::MAX]).1, None);
    assert_eq!(session.held(), 0);
    assert_eq!(hear(&mut session, b"x", &[1]).1, None);
    assert!(session.held() <= 4096, "{}", session.held());
}

/// What may follow a handshake: messages and commands, honest ones.
fn pieces() -> impl Strategy<Value = Vec<Result<Frames, Vec<u8>>>> {
    let frame = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20),
        proptest::collection::vec(any::<u8>(), 200..600)
    ];
    let frames = proptest::collection::vec(frame, 1..=FRAMES_MAX);
    let context = proptest::collection::vec(any::<u8>(), 0..=16);
    let one = prop_oneof![3 => frames.prop_map(Ok), 1 => context.prop_map(Err)];
    proptest::collection::vec(one, 0..12)
}

proptest! {
    #[test]
    fn what_is_sent_is_heard_however_it_is_cut(
        pieces in pieces(), cuts in proptest::collection::vec(1usize..300, 1..9)
    ) {
        let (mut bytes, mut sent, mut pongs) = (handshake(1, "XPUB"), vec![Heard::Ready], vec![]);
        for piece in pieces {
            match piece {
                Ok(frames) => {
                    write_message(&frames, &mut bytes);
                    sent.push(Heard::Message(frames));
                }
                Err(context) => {
                    bytes.extend(said(&[b"\x04PING\0\0", &context[..]].concat()));
                    pongs.extend(said(&[b"\x04PONG", &context[..]].concat()));
                }
            }
        }
        let (heard, error, out) = hear(&mut Session::new(Role::Subscriber), &bytes, &cuts);
        prop_assert_eq!((heard, error), (sent, None));
        prop_assert!(out.ends_with(&pongs));
    }

    #[test]
    fn whatever_comes_is_heard_the_same_however_it_is_cut(
        greeted in 0usize..4, bytes in proptest::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..600),
        cuts in proptest::collection::vec(1usize..90, 1..9)
    ) {
        let begin = match greeted {
            0 => vec![],
            1 => greeting(1),
            _ => handshake(1, "PUB"),
        };
        let bytes = [begin, bytes].concat();
        let all = hear_all(Role::Subscriber, &bytes);
        prop_assert_eq!(hear(&mut Session::new(Role::Subscriber), &bytes, &cuts), all);
    }
}
