//! Where the secret comes from, and that it goes nowhere.

use super::super::testing::{Folder, Held};
use super::super::{Header, Writer};
use super::*;
use std::fs;

const FRESH: [u8; 32] = [9; 32];

/// The secret of a key file with `bytes` in it.
fn of_key_file(bytes: &[u8]) -> Result<Secret, String> {
    let folder = Folder::new();
    let path = folder.file("key");
    fs::write(&path, bytes).unwrap();
    secret(Some(&path), None, FRESH).map(|(secret, _)| secret).map_err(|e| {
        let text = e.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        text
    })
}

#[test]
fn a_key_file_holds_32_bytes_or_64_digits() {
    let key: [u8; 32] = std::array::from_fn(|n| n as u8 * 7);
    assert_eq!(of_key_file(&key).unwrap().as_bytes(), &key);
    let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
    for text in [&hex, &hex.to_uppercase(), &format!("{hex}\n"), &format!("{hex}\r\n")] {
        assert_eq!(of_key_file(text.as_bytes()).unwrap().as_bytes(), &key, "{text:?}");
    }
    // 32 digits are 32 raw bytes, and so are 31 with a line end.
    assert_eq!(of_key_file(&[b'a'; 32]).unwrap().as_bytes(), &[b'a'; 32]);
}

#[test]
fn a_key_file_of_another_form_is_refused_by_what_it_is() {
    let hex = "ab".repeat(32);
    for (bytes, found) in [
        (vec![], "holds 0 bytes"),
        (vec![7; 31], "holds 31 bytes"),
        (vec![7; 33], "holds 33 bytes"),
        (vec![b'a'; 63], "holds 63 bytes"),
        (vec![b'a'; 66], "holds 66 bytes"),
        (vec![b'a'; 10_000], "more than 66 bytes"),
        (format!("{hex}\n\n").into(), "holds 66 bytes"),
        (format!("{hex}\r").into(), "holds 65 bytes"),
        (format!(" {hex}").into(), "holds 65 bytes"),
        (vec![b'+'; 64], "not all hex digits"),
        (vec![0xff; 64], "not all hex digits"),
        (format!("{}g", &hex[1..]).into(), "not all hex digits"),
    ] {
        let error = of_key_file(&bytes).unwrap_err();
        assert!(error.contains(found), "{error}");
        assert!(!error.contains("abab"), "nothing of its contents: {error}");
    }
}

#[test]
fn a_key_file_that_cannot_be_read_is_an_error_whatever_the_snapshot_holds() {
    let folder = Folder::new();
    Held::sample(1).write(&folder.snapshot());
    let error = secret(Some(&folder.file("key")), Some(&folder.snapshot()), FRESH).unwrap_err();
    assert!(matches!(error, KeyError::Io { .. }));
    assert!(error.to_string().contains("/key: "), "{error}");
}

#[test]
fn others_eyes_are_told() {
    let folder = Folder::new();
    let (key, snapshot) = (folder.file("key"), folder.snapshot());
    fs::write(&key, [1; 32]).unwrap();
    Held::sample(1).write(&snapshot);
    for (mode, exposed) in
        [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o620, true)]
    {
        for path in [&key, &snapshot] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let (_, origin) = secret(Some(&key), Some(&snapshot), FRESH).unwrap();
        assert_eq!(origin, Origin::KeyFile { exposed });
        let (_, origin) = secret(None, Some(&snapshot), FRESH).unwrap();
        assert_eq!(origin, Origin::Snapshot { exposed });
    }
}

#[test]
fn r25_the_secret_outlives_the_process_in_the_snapshot() {
    let folder = Folder::new();
    let path = folder.snapshot();
    let start = |fresh| secret(None, Some(&path), fresh).unwrap();
    let (first, origin) = start(FRESH);
    assert_eq!((first.as_bytes(), origin), (&FRESH, Origin::Fresh));
    Writer::create(&path, &Header::new(1, &first, origin)).unwrap().finish(&[], &[]).unwrap();
    for _ in 0..2 {
        let (again, origin) = start([8; 32]);
        assert_eq!((again.as_bytes(), origin), (&FRESH, Origin::Snapshot { exposed: false }));
        // And it survives being written by a process that has read it.
        Writer::create(&path, &Header::new(2, &again, origin)).unwrap().finish(&[], &[]).unwrap();
    }
    // Damaged records leave the header's secret.
    let mut bytes = fs::read(&path).unwrap();
    bytes.pop();
    fs::write(&path, &bytes).unwrap();
    assert_eq!(start([8; 32]).0.as_bytes(), &FRESH);
    // A damaged header has none.
    bytes[40] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(start([8; 32]).1, Origin::Fresh);
}

#[test]
fn a_snapshot_of_a_key_file_gives_no_secret() {
    let folder = Folder::new();
    let header = Header::new(1, &Secret::new([3; 32]), Origin::KeyFile { exposed: false });
    Writer::create(&folder.snapshot(), &header).unwrap().finish(&[], &[]).unwrap();
    let (secret, origin) = secret(None, Some(&folder.snapshot()), FRESH).unwrap();
    assert_eq!(origin, Origin::Fresh);
    assert!(!header.is_keyed_by(&secret));
}

#[test]
fn fingerprints_tell_secrets_apart_in_each_bit() {
    let secret = Secret::new([3; 32]);
    assert_eq!(secret.fingerprint(), Secret::new([3; 32]).fingerprint());
    for bit in 0..256 {
        let mut other = [3; 32];
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(Secret::new(other).fingerprint() != secret.fingerprint(), "bit {bit}");
    }
    assert!(secret.fingerprint().as_bytes() != secret.as_bytes());
    let shown = format!("{secret:?} {:?}", secret.fingerprint());
    assert_eq!(shown, "Secret(..) Fingerprint(..)");
}
