//! A worker's stream: however the network cuts it, the same events come out, and what is kept is bounded.
//! The data of each event is also read as usage.
#![no_main]

use homing_wire::sse::{SseEvent, SseScanner};
use homing_wire::errors::ApiShape;
use homing_wire::usage::{StreamUsage, parse_usage};
use libfuzzer_sys::fuzz_target;

const MOST: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Some((cut, stream)) = data.split_first() else { return };
    let whole = scan(stream, usize::MAX);
    let pieces = scan(stream, usize::from(*cut).max(1));
    assert_eq!(whole, pieces);
    let _ = parse_usage(ApiShape::OpenAi, stream);
});

/// Everything that a scanner says of a stream that comes in chunks.
fn scan(stream: &[u8], chunk: usize) -> (Vec<String>, [bool; 4], u64, Vec<u8>) {
    let mut scanner = SseScanner::with_max_data(MOST);
    let mut events = vec![];
    let mut usage = StreamUsage::new(ApiShape::Anthropic);
    for bytes in stream.chunks(chunk.min(stream.len().max(1))) {
        let end = scanner.feed(bytes, |event| {
            if let SseEvent::Data { data, .. } = &event {
                assert!(data.len() <= MOST);
                let _ = parse_usage(ApiShape::Responses, data);
            }
            usage.see(event);
            events.push(format!("{event:?}"));
        });
        assert!(end <= bytes.len());
    }
    let ends = [scanner.begun(), scanner.done(), scanner.done_at_end(), scanner.mid_event()];
    (events, ends, scanner.data_events(), scanner.last_data().to_vec())
}
