//! The message around a batch: three ZMQ frames, as vLLM and SGLang publish them (`wire-formats.md` 1).
//!
//! Apart from [`crate::kv_events`] because a feed looks at the sequence number of *every* message, also
//! of those whose payload it throws away or can't read.

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
}

/// Takes a message apart.
///
/// # Errors
/// Where there are not exactly three frames, or the first two are malformed.
pub fn parse_frames<F: AsRef<[u8]>>(frames: &[F]) -> Result<Message<'_>, FrameError> {
    let [topic, seq, payload] = frames else {
        return Err(FrameError::Count(frames.len()));
    };
    let seq = seq.as_ref();
    Ok(Message {
        topic: std::str::from_utf8(topic.as_ref()).map_err(|_| FrameError::Topic)?,
        seq: u64::from_be_bytes(seq.try_into().map_err(|_| FrameError::Sequence(seq.len()))?),
        payload: payload.as_ref(),
    })
}

/// The frames of a message, ready to send.
#[must_use]
pub fn build_frames(topic: &str, seq: u64, payload: Vec<u8>) -> [Vec<u8>; 3] {
    [topic.as_bytes().to_vec(), seq.to_be_bytes().to_vec(), payload]
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
}
