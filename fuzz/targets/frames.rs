//! What comes over the two ZMQ sockets, frame by frame: events, replies to a question, questions (the mock's
//! side). What was understood is written back as it was.
#![no_main]

use homing_wire::frames::{
    Reply, build_early_reply, build_frames, build_reply, build_request, parse_frames, parse_reply,
    parse_request,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for frames in homing_fuzz::messages(data) {
        if let Ok(message) = parse_frames(&frames) {
            assert_eq!(build_frames(message.topic, message.seq, message.payload.to_vec()), *frames);
        }
        if let Ok(reply) = parse_reply(&frames) {
            match (frames.len(), reply) {
                (3, reply) => assert_eq!(build_early_reply(reply), *frames),
                // An end marker has no topic; a reply's may be no text.
                (_, Reply::End) => {}
                (_, reply) => {
                    let topic = std::str::from_utf8(frames[1]).unwrap_or("");
                    let built = build_reply(topic, reply);
                    assert_eq!(built[2..], frames[2..]);
                }
            }
        }
        if let Ok(from) = parse_request(&frames) {
            assert_eq!(build_request(from), *frames);
        }
    }
});
