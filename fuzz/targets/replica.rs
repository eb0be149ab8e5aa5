//! What other routers say, and what a shared store holds: nothing panics, nothing is read beyond its bounds, and what
//! was understood can be said again, and is understood as the same. An input is one message and one record.
#![no_main]

use homing_wire::replica::{
    Body, ENTRIES_MAX, Message, NAME_MAX, Record, decode, encode, updates_that_fit,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = decode(data) {
        check(&message);
    }
    if let Ok(record) = Record::decode(data) {
        let names = [Some(&record.publication.pool), record.publication.home.as_ref().map(|h| &h.worker)];
        assert!(names.into_iter().flatten().all(|name| name.len() <= NAME_MAX));
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
});

fn check(message: &Message) {
    let Some(body) = &message.body else { return };
    let entries = match body {
        Body::Updates { updates, .. } | Body::Chunk { updates, .. } => {
            let fit = updates_that_fit(updates, 1 << 10);
            assert!(fit <= updates.len() && (fit > 0 || updates.is_empty()), "a message would go out empty, for ever");
            assert!(updates.iter().all(|p| p.pool.len() <= NAME_MAX));
            assert!(updates.iter().filter_map(|p| p.home.as_ref()).all(|h| h.worker.len() <= NAME_MAX));
            updates.len()
        }
        Body::Loads(loads) => loads.targets.len(),
        Body::Hello | Body::Fetch { .. } | Body::Bye => 0,
    };
    if let Body::Updates { loads: Some(loads), .. } = body {
        assert!(loads.targets.len() <= ENTRIES_MAX);
    }
    assert!(entries <= ENTRIES_MAX, "more than a message may hold");
    assert_eq!(decode(&encode(message)).as_ref(), Ok(message), "it is understood as the same");
}
