//! Whatever happens while a snapshot is written, its name leads to a whole one.

use super::super::testing::{Folder, Held, header};
use super::super::{Problem, Reader};
use super::*;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A writer with the bindings of `held` in it.
fn begun(path: &Path, held: &Held) -> Writer {
    let mut writer = Writer::create(path, &header()).unwrap();
    writer.bindings(&held.bindings).unwrap();
    writer
}

/// What the next start finds after a crash: a whole file or none, and a writer that can go on.
fn survives(folder: &Folder, expected: Option<&Held>) {
    let path = folder.snapshot();
    match expected {
        Some(held) => assert_eq!(Held::read(&path), *held),
        None => assert!(matches!(Reader::open(&path).unwrap_err(), Problem::Absent(_))),
    }
    Held::sample(3).write(&path);
    assert_eq!(Held::read(&path), Held::sample(3));
    assert_eq!(folder.names(), ["state.snap"], "left-overs are gone");
}

#[test]
fn r25_a_crash_between_any_two_steps_leaves_a_whole_file() {
    let (old, new) = (Held::sample(1), Held::sample(2));
    for before in [None, Some(&old)] {
        let folder = Folder::new();
        let path = folder.snapshot();
        if let Some(old) = before {
            old.write(&path);
        }
        let mut writer = begun(&path, &new);
        survives(&folder.crash(), before);
        writer.flush().unwrap();
        survives(&folder.crash(), before);
        writer.complete(&new.places, &new.lives).unwrap();
        survives(&folder.crash(), before);
        writer.publish().unwrap();
        survives(&folder.crash(), Some(&new));
        drop(writer);
        survives(&folder, Some(&new));
    }
}

#[test]
fn r25_a_crash_in_the_middle_of_a_write_leaves_the_old_file() {
    let old = Held::sample(1);
    let folder = Folder::new();
    Held::sample(2).write(&folder.snapshot());
    let new = fs::read(folder.snapshot()).unwrap();
    old.write(&folder.snapshot());
    for length in (0..new.len()).step_by(13) {
        let dead = folder.crash();
        // Of a process with another id.
        fs::write(dead.file("state.snap.tmp-4000000000"), &new[..length]).unwrap();
        survives(&dead, Some(&old));
    }
}

/// The child of the test below: writes snapshots until it is killed. By itself, a test that does nothing.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os("HOMING_TEST_SNAPSHOT") else { return };
    for generation in 1.. {
        Held::sample(generation).write(Path::new(&path));
    }
}

#[test]
fn r25_kill_9_at_any_moment_leaves_a_whole_file() {
    let folder = Folder::new();
    let path = folder.snapshot();
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "snapshot::writer::tests::child_that_writes_until_it_is_killed"])
            .env("HOMING_TEST_SNAPSHOT", &path)
            .output_nowhere()
            .spawn()
            .unwrap();
        // Until it has written another few files, so that it dies somewhere among them.
        let mut seen = 0;
        let mut last = 0;
        let deadline = Instant::now() + Duration::from_secs(60);
        while seen < 3 + round {
            assert!(Instant::now() < deadline, "the child writes nothing");
            if let Ok(inode) = fs::metadata(&path).map(|it| it.ino()) {
                seen += u32::from(inode != last);
                last = inode;
            }
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let held = Held::read(&path);
        assert_eq!(held, Held::sample(held.bindings[0].sequence));
    }
    Held::sample(1).write(&path);
    assert_eq!(folder.names(), ["state.snap"]);
}

trait OutputNowhere {
    fn output_nowhere(&mut self) -> &mut Self;
}

impl OutputNowhere for Command {
    fn output_nowhere(&mut self) -> &mut Self {
        self.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null())
    }
}

#[test]
fn an_unfinished_writer_leaves_nothing() {
    let folder = Folder::new();
    drop(begun(&folder.snapshot(), &Held::sample(1)));
    assert!(folder.names().is_empty());
    Held::sample(1).write(&folder.snapshot());
    drop(begun(&folder.snapshot(), &Held::sample(2)));
    assert_eq!(folder.names(), ["state.snap"]);
    assert_eq!(Held::read(&folder.snapshot()), Held::sample(1));
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_the_old_file() {
    let folder = Folder::new();
    let path = folder.snapshot();
    Held::sample(1).write(&path);
    let good = Held::sample(2);
    let refused = |held: &Held| {
        let error = begun(&path, held).finish(&held.places, &held.lives).unwrap_err();
        let WriteError::Unfit { what, .. } = error else { panic!("{error}") };
        assert_eq!(folder.names(), ["state.snap"]);
        assert_eq!(Held::read(&path), Held::sample(1));
        what
    };
    let few = Held { places: good.places[..1].to_vec(), ..good.clone() };
    assert_eq!(refused(&few), "a binding without a place");
    let twice = Held { lives: vec![good.lives[0].clone(); 2], ..good.clone() };
    assert_eq!(refused(&twice), "two lives with one id");
    let mut long = good.clone();
    long.lives[0].name = "n".repeat(4097);
    assert_eq!(refused(&long), "a name is longer than 4096 bytes");
    let many = Held { places: vec![good.places[0].clone(); PLACES_MAX + 1], ..good };
    assert_eq!(refused(&many), "too many places or lives");
}

#[test]
fn r25_the_file_is_for_its_owner_alone() {
    let folder = Folder::new();
    let path = folder.snapshot();
    let writer = begun(&path, &Held::sample(1));
    assert_eq!(mode(&writer.temporary), 0o600);
    drop(writer);
    Held::sample(1).write(&path);
    assert_eq!(mode(&path), 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    Held::sample(2).write(&path);
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn a_second_writer_is_told_and_does_no_harm() {
    let folder = Folder::new();
    let path = folder.snapshot();
    let first = begun(&path, &Held::sample(1));
    assert!(matches!(Writer::create(&path, &header()), Err(WriteError::Busy(_))));
    first.finish(&Held::sample(1).places, &Held::sample(1).lives).unwrap();
    assert_eq!(Held::read(&path), Held::sample(1));
}

#[test]
fn a_temporary_file_that_was_taken_away_is_not_put_in_place() {
    let folder = Folder::new();
    let path = folder.snapshot();
    Held::sample(1).write(&path);
    let writer = begun(&path, &Held::sample(2));
    let temporary = writer.temporary.clone();
    fs::rename(&temporary, folder.file("elsewhere")).unwrap();
    fs::write(&temporary, b"another's").unwrap();
    let held = Held::sample(2);
    assert!(matches!(writer.finish(&held.places, &held.lives), Err(WriteError::Lost(_))));
    assert_eq!(Held::read(&path), Held::sample(1));
    assert_eq!(fs::read(&temporary).unwrap(), b"another's", "not ours to remove");
}

#[test]
fn only_left_overs_of_this_snapshot_are_removed() {
    let folder = Folder::new();
    let others = [
        "other.snap.tmp-1",
        "state.snap.bak",
        "state.snap.damaged-7",
        "state.snap.tmp-",
        "state.snap.tmp-+1",
        "state.snap.tmp-1x",
        "state.snap.tmp",
        "xstate.snap.tmp-1",
    ];
    for name in others.iter().chain(&["state.snap.tmp-1", "state.snap.tmp-22"]) {
        fs::write(folder.file(name), b"").unwrap();
    }
    Held::sample(1).write(&folder.snapshot());
    let mut expected: Vec<_> =
        others.iter().chain(&["state.snap"]).map(|s| (*s).to_owned()).collect();
    expected.sort();
    assert_eq!(folder.names(), expected);
}

#[test]
fn errors_name_the_path() {
    let folder = Folder::new();
    let nowhere = folder.file("no/such/state.snap");
    let error = Writer::create(&nowhere, &header()).unwrap_err();
    assert!(matches!(error, WriteError::Io { doing: "list", .. }));
    assert!(error.to_string().contains("no/such"), "{error}");
    assert!(matches!(Writer::create(Path::new("/"), &header()), Err(WriteError::Unfit { .. })));
    // What is no file is left alone, whether it is there at the beginning or comes in between.
    let writer = begun(&folder.snapshot(), &Held::default());
    fs::create_dir(folder.snapshot()).unwrap();
    let error = writer.finish(&[], &[]).unwrap_err();
    assert!(matches!(&error, WriteError::Io { doing: "replace", .. }));
    assert!(error.to_string().contains("state.snap"), "{error}");
    let error = Writer::create(&folder.snapshot(), &header()).unwrap_err();
    assert!(matches!(&error, WriteError::Io { doing: "write", .. }));
    assert!(super::super::set_aside(&folder.snapshot()).is_err());
    assert_eq!(folder.names(), ["state.snap"]);
}
