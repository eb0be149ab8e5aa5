//! Damaged files are kept, a few, and never written over.

use super::super::testing::{Folder, Held};
use super::*;

fn damaged(folder: &Folder, content: &str, seconds: u64) -> String {
    fs::write(folder.snapshot(), content).unwrap();
    let name = set_aside_at(&folder.snapshot(), seconds).unwrap();
    assert_eq!(fs::read_to_string(&name).unwrap(), content);
    name.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn r25_a_damaged_file_is_set_aside_and_nothing_is_written_over() {
    let folder = Folder::new();
    assert_eq!(damaged(&folder, "a", 100), "state.snap.damaged-100");
    assert_eq!(damaged(&folder, "b", 100), "state.snap.damaged-100-1");
    assert_eq!(damaged(&folder, "c", 100), "state.snap.damaged-100-2");
    assert_eq!(fs::read_to_string(folder.file("state.snap.damaged-100")).unwrap(), "a");
    assert!(!folder.snapshot().exists());
    Held::sample(1).write(&folder.snapshot());
    assert_eq!(folder.names().len(), 4, "a writer leaves them alone");
}

#[test]
fn five_are_kept_the_newest_ones() {
    let folder = Folder::new();
    fs::write(folder.file("state.snap.damaged-"), "not ours").unwrap();
    fs::write(folder.file("state.snap.damaged-1.gz"), "not ours").unwrap();
    // By number, not by letters.
    for seconds in [9, 10, 11, 100, 101, 101, 102] {
        damaged(&folder, "x", seconds);
    }
    let kept = ["-", "-1.gz", "-100", "-101", "-101-1", "-102", "-11"];
    assert_eq!(folder.names(), kept.map(|end| format!("state.snap.damaged{end}")));
    // A clock that went back: the one of just now stays, the oldest of the others goes.
    damaged(&folder, "y", 5);
    let kept = ["-", "-1.gz", "-100", "-101", "-101-1", "-102", "-5"];
    assert_eq!(folder.names(), kept.map(|end| format!("state.snap.damaged{end}")));
}

#[test]
fn what_was_set_aside_is_for_its_owner_alone() {
    let folder = Folder::new();
    fs::write(folder.snapshot(), "x").unwrap();
    fs::set_permissions(folder.snapshot(), fs::Permissions::from_mode(0o644)).unwrap();
    let name = set_aside(&folder.snapshot()).unwrap();
    assert_eq!(fs::metadata(name).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(set_aside(&folder.snapshot()), Err(Problem::Absent(_))));
}
