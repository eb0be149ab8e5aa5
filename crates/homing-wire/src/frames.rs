//! The message around a batch: three ZMQ frames, as vLLM and SGLang publish them (`wire-formats.md` 1).
//!
//! Apart from [`crate::kv_events`] because a feed looks at the sequence number of *every* message, also
//! of those whose payload it throws away or can't read.
//!
//! Beside it what is said over a replay socket (`wire-formats.md` 2): a request, and replies in one of two
//! layouts, which differ in whether the topic is repeated.

/// A published message, still as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The publisher's topic; often empty.
    pub topic: &'a str,
    /// Counts the publisher's messages from 0; going back means a new publisher.
    pub seq: u64,
    /// One msgpack batch: [`crate::kv_events::decode_batch`].
    pub payload: &'a [u8],
}

/// Why some frames are no published message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not topic, sequence number and payload.
    #[error("expected 3 frames (topic, sequence number, payload), got {0}")]
    Count(usize),
    /// The topic is not text.
    #[error("the topic is not UTF-8")]
    Topic,
    /// The sequence number is not 8 bytes.
    #[error("expected a sequence number of 8 bytes, got {0}")]
    Sequence(usize),
    /// Not what a replay socket answers.
    #[error(
        "expected a reply of 3 or 4 frames (empty, topic or none, sequence number, payload), got {0}"
    )]
    Reply(usize),
    /// Not what a replay socket is asked.
    #[error("expected a request of 2 frames (empty, sequence number), got {0}")]
    Request(usize),
    /// The frame that divides an envelope from what is in it is not empty.
    #[error("expected an empty first frame, got one of {0} bytes")]
    Delimiter(usize),
}

/// Takes a message apart.
///
/// # Errors
/// Where there are not exactly three frames, or the first two are malformed.
pub fn parse_frames<F: AsRef<[u8]>>(frames: &[F]) -> Result<Message<'_>, FrameError> {
    let [topic, seq, payload] = frames else {
        return Err(FrameError::Count(frames.len()));
    };
    Ok(Message {
        topic: std::str::from_utf8(topic.as_ref()).map_err(|_| FrameError::Topic)?,
        seq: number(seq.as_ref())?,
        payload: payload.as_ref(),
    })
}

/// The frames of a message, ready to send.
#[must_use]
pub fn build_frames(topic: &str, seq: u64, payload: Vec<u8>) -> [Vec<u8>; 3] {
    [topic.as_bytes().to_vec(), seq.to_be_bytes().to_vec(), payload]
}

/// One reply of a replay socket, still as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A message of the past.
    Message {
        /// Its number when it was published.
        seq: u64,
        /// As [`Message::payload`].
        payload: &'a [u8],
    },
    /// That was all.
    End,
}

/// The number of the end marker: -1.
const END: u64 = u64::MAX;

/// Takes a reply apart, as a DEALER sees it: vLLM's up to 0.25 and SGLang's up to 0.5.21 have 3 frames,
/// later ones repeat the topic.
///
/// # Errors
/// Where it has neither layout.
pub fn parse_reply<F: AsRef<[u8]>>(frames: &[F]) -> Result<Reply<'_>, FrameError> {
    let (delimiter, seq, payload) = match frames {
        [delimiter, seq, payload] | [delimiter, _, seq, payload] => (delimiter, seq, payload),
        _ => return Err(FrameError::Reply(frames.len())),
    };
    empty(delimiter.as_ref())?;
    let (seq, payload) = (number(seq.as_ref())?, payload.as_ref());
    // An empty payload is no batch; beside another number it is one that nobody can read.
    Ok(if seq == END && payload.is_empty() { Reply::End } else { Reply::Message { seq, payload } })
}

/// The frames that ask for everything from a number on, as a DEALER sends them.
#[must_use]
pub fn build_request(from: u64) -> [Vec<u8>; 2] {
    [Vec::new(), from.to_be_bytes().to_vec()]
}

/// From which number on somebody asks, of the frames behind its identity as a ROUTER sees them.
///
/// # Errors
/// Where they are no request.
pub fn parse_request<F: AsRef<[u8]>>(frames: &[F]) -> Result<u64, FrameError> {
    let [delimiter, from] = frames else { return Err(FrameError::Request(frames.len())) };
    empty(delimiter.as_ref())?;
    number(from.as_ref())
}

/// The frames of a reply in the earlier layout, without the identity.
#[must_use]
pub fn build_early_reply(reply: Reply<'_>) -> [Vec<u8>; 3] {
    let [delimiter, _, seq, payload] = build_reply("", reply);
    [delimiter, seq, payload]
}

/// The frames of a reply in the later layout, without the identity; the end marker has neither topic nor
/// payload.
#[must_use]
pub fn build_reply(topic: &str, reply: Reply<'_>) -> [Vec<u8>; 4] {
    let (topic, seq, payload) = match reply {
        Reply::Message { seq, payload } => (topic, seq, payload),
        Reply::End => ("", END, &[] as &[u8]),
    };
    let seq = seq.to_be_bytes().to_vec();
    [Vec::new(), topic.as_bytes().to_vec(), seq, payload.to_vec()]
}

const fn empty(delimiter: &[u8]) -> Result<(), FrameError> {
    if delimiter.is_empty() { Ok(()) } else { Err(FrameError::Delimiter(delimiter.len())) }
}

fn number(seq: &[u8]) -> Result<u64, FrameError> {
    Ok(u64::from_be_bytes(seq.try_into().map_err(|_| FrameError::Sequence(seq.len()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_both_ways() {
        let frames = build_frames("kv-events", u64::MAX - 1, vec![0x90]);
        assert_eq!(frames[1], [255, 255, 255, 255, 255, 255, 255, 254]);
        let message = Message { topic: "kv-events", seq: u64::MAX - 1, payload: &[0x90] };
        assert_eq!(parse_frames(&frames), Ok(message));
    }

    #[test]
    fn other_shapes_are_refused() {
        let none: [&[u8]; 0] = [];
        assert_eq!(parse_frames(&none), Err(FrameError::Count(0)));
        assert_eq!(parse_frames(&[b"a", b"b"]), Err(FrameError::Count(2)));
        assert_eq!(parse_frames(&[&b"t"[..], &[0; 7], b""]), Err(FrameError::Sequence(7)));
        assert_eq!(parse_frames(&[&[0xff][..], &[0; 8], b""]), Err(FrameError::Topic));
    }

    #[test]
    fn a_replay_survives_both_ways_and_in_both_layouts() {
        let request = build_request(7);
        assert_eq!(request, [vec![], vec![0, 0, 0, 0, 0, 0, 0, 7]]);
        assert_eq!(parse_request(&request), Ok(7));
        for reply in [
            Reply::Message { seq: 7, payload: &[0x90] },
            Reply::Message { seq: 7, payload: b"" },
            Reply::Message { seq: u64::MAX, payload: &[0x90] },
            Reply::End,
        ] {
            let frames = build_reply("kv-events", reply);
            assert_eq!(parse_reply(&frames), Ok(reply));
            let early = build_early_reply(reply);
            assert_eq!(early, [&frames[0][..], &frames[2], &frames[3]]);
            assert_eq!(parse_reply(&early), Ok(reply));
        }
        let end = build_reply("kv-events", Reply::End);
        assert_eq!(end, [vec![], vec![], vec![255; 8], vec![]]);
    }

    #[test]
    fn other_replies_and_requests_are_refused() {
        let none: [&[u8]; 0] = [];
        let seq = &[0u8; 8][..];
        assert_eq!(parse_reply(&none), Err(FrameError::Reply(0)));
        assert_eq!(parse_reply(&[b"", seq]), Err(FrameError::Reply(2)));
        assert_eq!(parse_reply(&[b"", b"", seq, b"", b""]), Err(FrameError::Reply(5)));
        assert_eq!(parse_reply(&[b"t", seq, b"x"]), Err(FrameError::Delimiter(1)));
        assert_eq!(parse_reply(&[&b"t"[..], b"", seq, b"x"]), Err(FrameError::Delimiter(1)));
        assert_eq!(parse_reply(&[b"", &seq[1..], b"x"]), Err(FrameError::Sequence(7)));
        assert_eq!(parse_reply(&[b"", seq, b"kv", b"x"]), Err(FrameError::Sequence(2)));
        assert_eq!(parse_request(&none), Err(FrameError::Request(0)));
        assert_eq!(parse_request(&[b"", seq, b""]), Err(FrameError::Request(3)));
        assert_eq!(parse_request(&[b"x", seq]), Err(FrameError::Delimiter(1)));
        assert_eq!(parse_request(&[&b""[..], b"5"]), Err(FrameError::Sequence(1)));
    }
}
