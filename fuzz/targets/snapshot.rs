//! A snapshot file: whatever is in it, reading ends, and gives out no more than the file has room for.
//!
//! Each input is read as it is, and once more with its checksums made right: behind those it is judged too.
#![no_main]

use homing_runtime::snapshot::{Reader, read_header};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

const HEADER: usize = 72;
const HEAD: usize = 12;
const BINDING: u64 = 48;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    std::env::temp_dir().join(format!("homing-fuzz-{}.snapshot", std::process::id()))
});

fuzz_target!(|data: &[u8]| {
    read(data);
    read(&sealed(data.to_vec()));
});

fn read(bytes: &[u8]) {
    std::fs::write(&*FILE, bytes).expect("the temporary folder takes files");
    let _ = read_header(&FILE);
    let Ok(mut reader) = Reader::open(&FILE) else { return };
    let promised = reader.bindings();
    assert!(promised <= bytes.len() as u64 / BINDING);
    let mut given = 0;
    while let Ok(Some(batch)) = reader.batch() {
        given += batch.len() as u64;
    }
    assert_eq!(given, promised, "a file that was believed is whole");
}

/// With the checksums that such bytes should have, as far as they have the file's form.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    seal(&mut bytes, 0, HEADER);
    let mut at = HEADER;
    while let Some(head) = bytes.get(at..at + HEAD) {
        let number =
            |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().expect("four"));
        let (kind, length) = (number(0), number(8) as usize);
        if kind == 4 && bytes.len() >= at + HEAD + 40 {
            let all = xxh3_64(&bytes[..at]).to_le_bytes();
            bytes[at + HEAD + 32..at + HEAD + 40].copy_from_slice(&all);
        }
        let size = HEAD.saturating_add(length).saturating_add(8);
        if !seal(&mut bytes, at, size) {
            break;
        }
        at += size;
    }
    bytes
}

/// Puts the checksum of what precedes it into the last 8 of these bytes, if they are there.
fn seal(bytes: &mut [u8], from: usize, size: usize) -> bool {
    let Some(part) = from.checked_add(size).and_then(|to| bytes.get_mut(from..to)) else {
        return false;
    };
    let (content, sum) = part.split_at_mut(size - 8);
    sum.copy_from_slice(&xxh3_64(content).to_le_bytes());
    true
}
