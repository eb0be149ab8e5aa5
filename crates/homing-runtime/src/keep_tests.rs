//! A table over a restart, through a real file: what comes back, what doesn't, and that nothing that is
//! wrong with the file stops anybody.

use super::*;
use crate::snapshot::testing::Folder;
use crate::testing::settings;
use homing_core::ask::{Admission, Ask, Dispatch, Session};
use homing_core::fleet::{FleetChange, Probe, ServedName, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::settings::Mode;
use std::fs;

fn shell(keyed: &Keyed) -> Arc<Shell> {
    Shell::keyed(&settings(""), keyed.secret(), &[9; 32])
}

fn keyed(path: &Path, fresh: u8) -> Keyed {
    let affinity = Affinity { snapshot: Some(path.to_owned()), ..settings("").affinity };
    Keyed::find(&affinity, [fresh; 32]).unwrap()
}

/// A router over `path`, with what the file brought back; each has other entropy.
fn router(path: &Path, fresh: u8) -> (Arc<Keeper>, Restored) {
    let keyed = keyed(path, fresh);
    let keeper = Keeper::new(shell(&keyed), path.to_owned(), keyed, false).unwrap();
    let restored = keeper.restore();
    (keeper, restored)
}

fn up(keeper: &Keeper, name: &str) {
    let (core, now) = (keeper.shell.core(), keeper.shell.now());
    core.handle_fleet(now, FleetChange::Register(WorkerSpec::new(name, "http://x"))).unwrap();
    let id = core.worker_named(name).unwrap();
    let serves = vec![ServedName { name: "m".to_owned(), adapter: false }];
    core.handle_fleet(now, FleetChange::Serves(id, serves)).unwrap();
    core.handle_fleet(now, FleetChange::Probed(id, Probe::Good)).unwrap();
}

fn turn(keeper: &Keeper, session: &str) -> (String, String) {
    let (core, now) = (keeper.shell.core(), keeper.shell.now());
    let route = core.route("m").unwrap();
    let mut ask = Ask::new(route.partition, route.name, Prompt::of_length(10));
    let key = keeper.shell.secret().session("", "", session.as_bytes());
    ask.session = Some(Session::new(key, Mode::Hard));
    let Admission::Granted(grant) = core.admit(now, ask) else { panic!("not granted") };
    let worker = grant.worker().spec.name.to_string();
    let Dispatch::Go(checked) = core.check_dispatch(now, grant) else { panic!("not dispatched") };
    let (live, outcome) = core.commit(now, checked);
    core.finish(now, live);
    (worker, outcome.word().to_owned())
}

#[test]
fn r25_sessions_come_back_with_the_secret_that_keys_them() {
    let dir = Folder::new();
    let path = dir.snapshot();
    let (first, restored) = router(&path, 1);
    assert_eq!(restored, Restored::default());
    ["a", "b", "c"].iter().for_each(|w| up(&first, w));
    let homes: Vec<_> = (0..20).map(|i| turn(&first, &format!("s{i}")).0).collect();
    assert_eq!(first.write().unwrap().bindings, 20);
    drop(first);

    let (second, restored) = router(&path, 2);
    assert_eq!(restored, Restored { bindings: 20, left: 0 });
    // Another order of registration: other numbers, the same names.
    ["c", "a", "b"].iter().for_each(|w| up(&second, w));
    for (i, home) in homes.iter().enumerate() {
        assert_eq!(turn(&second, &format!("s{i}")), (home.clone(), "hit".to_owned()));
    }
    second.shell.core().check();

    // A third without one of the workers: its sessions move, the others stay.
    second.write().unwrap();
    drop(second);
    let (third, _) = router(&path, 3);
    ["a", "b"].iter().for_each(|w| up(&third, w));
    for (i, home) in homes.iter().enumerate() {
        let (worker, outcome) = turn(&third, &format!("s{i}"));
        assert_eq!(outcome == "hit", home == "a" || home == "b", "{home} -> {worker}: {outcome}");
        assert_eq!(outcome == "rebound", home == "c");
    }
    third.shell.core().check();
}

#[test]
fn r25_what_can_t_be_read_is_set_aside_and_stops_nothing() {
    let dir = Folder::new();
    let path = dir.snapshot();
    fs::write(&path, b"\0garbage").unwrap();
    let (keeper, restored) = router(&path, 1);
    assert_eq!(restored, Restored::default());
    assert!(!path.exists(), "set aside");
    assert_eq!(dir.names().iter().filter(|n| n.contains("damaged")).count(), 1);
    up(&keeper, "a");
    assert_eq!(turn(&keeper, "s").1, "new");
    keeper.write().unwrap();
    drop(keeper);
    assert_eq!(router(&path, 2).1.bindings, 1);
}

#[test]
fn r25_a_file_of_another_key_is_set_aside() {
    let dir = Folder::new();
    let path = dir.snapshot();
    let with_key = |byte: u8| {
        let key_file = dir.file(&format!("key{byte}"));
        fs::write(&key_file, [byte; 32]).unwrap();
        let affinity = Affinity {
            snapshot: Some(path.clone()),
            key_file: Some(key_file),
            ..settings("").affinity
        };
        let keyed = Keyed::find(&affinity, [0; 32]).unwrap();
        let keeper = Keeper::new(shell(&keyed), path.clone(), keyed, false).unwrap();
        let restored = keeper.restore();
        (keeper, restored.bindings)
    };
    let (first, _) = with_key(1);
    up(&first, "a");
    turn(&first, "s");
    first.write().unwrap();
    drop(first);
    assert_eq!(with_key(1).1, 1, "the same key");
    assert_eq!(with_key(2).1, 0, "another");
    assert!(!path.exists());
}

#[test]
fn r25_a_worker_that_has_not_told_what_it_serves_is_waited_for_and_another_life_is_not() {
    let dir = Folder::new();
    let path = dir.snapshot();
    let (first, _) = router(&path, 1);
    ["a", "b"].iter().for_each(|w| up(&first, w));
    let core = first.shell.core();
    let a = core.worker_named("a").unwrap();
    core.handle_fleet(first.shell.now(), FleetChange::Started(a, 1000)).unwrap();
    let at_a: Vec<String> =
        (0..40).map(|i| format!("s{i}")).filter(|s| turn(&first, s).0 == "a").collect();
    first.write().unwrap();
    drop(first);
    for (started, stays) in [(1000, true), (2000, false)] {
        let (second, _) = router(&path, 2);
        let core = second.shell.core();
        let now = second.shell.now();
        up(&second, "b");
        core.handle_fleet(now, FleetChange::Register(WorkerSpec::new("a", "http://x"))).unwrap();
        let route = core.route("m").unwrap();
        let mut ask = Ask::new(route.partition, route.name, Prompt::of_length(10));
        let key = second.shell.secret().session("", "", at_a[0].as_bytes());
        ask.session = Some(Session::new(key, Mode::Hard));
        let Admission::Refused(refusal) = core.admit(now, ask) else { panic!("it was served") };
        assert_eq!(refusal.cause, homing_core::ask::Cause::TargetUnavailable);
        let a = core.worker_named("a").unwrap();
        core.handle_fleet(now, FleetChange::Started(a, started)).unwrap();
        let a = core.worker_named("a").unwrap();
        let serves = vec![ServedName { name: "m".to_owned(), adapter: false }];
        core.handle_fleet(now, FleetChange::Serves(a, serves)).unwrap();
        core.handle_fleet(now, FleetChange::Probed(a, Probe::Good)).unwrap();
        for session in &at_a {
            let (worker, outcome) = turn(&second, session);
            assert_eq!(outcome, if stays { "hit" } else { "rebound" });
            assert!(!stays || worker == "a");
        }
        core.check();
    }
}

#[test]
fn nothing_new_is_not_written_again() {
    let dir = Folder::new();
    let (keeper, _) = router(&dir.snapshot(), 1);
    assert!(keeper.has_changed(), "never written");
    up(&keeper, "a");
    keeper.write().unwrap();
    assert!(!keeper.has_changed());
    turn(&keeper, "s");
    assert!(keeper.has_changed());
    keeper.write().unwrap();
    assert!(!keeper.has_changed());
}

#[test]
fn r25_a_file_has_one_router() {
    let dir = Folder::new();
    let path = dir.snapshot();
    let (first, _) = router(&path, 1);
    let other = keyed(&path, 2);
    let error = Keeper::new(shell(&other), path.clone(), other, false).unwrap_err();
    assert!(error.to_string().contains("state.snap"), "{error}");
    drop(first);
    router(&path, 3);
}

#[test]
fn r25_a_router_that_takes_over_has_what_was_kept_and_at_the_end_of_the_other_what_it_did_last() {
    let dir = Folder::new();
    let path = dir.snapshot();
    let (old, _) = router(&path, 1);
    ["a", "b"].iter().for_each(|w| up(&old, w));
    let early = turn(&old, "early").0;
    old.write().unwrap();

    let theirs = keyed(&path, 2);
    let new = Keeper::new(shell(&theirs), path.clone(), theirs, true).unwrap();
    assert_eq!(new.restore().bindings, 1);
    ["b", "a"].iter().for_each(|w| up(&new, w));
    assert_eq!(turn(&new, "early"), (early, "hit".to_owned()));
    assert_eq!(turn(&new, "ours").1, "new");
    // The file is the other one's for as long as it lives: nothing is written, and nothing set aside.
    assert_eq!((new.is_ours(), new.write().unwrap()), (false, Written::default()));
    let late = turn(&old, "late").0;
    let moved = turn(&old, "ours").0;
    assert_eq!(old.write().unwrap().bindings, 3);
    drop(old);

    assert_eq!(new.write().unwrap().bindings, 3);
    assert!(new.is_ours());
    assert_eq!(turn(&new, "late"), (late, "hit".to_owned()));
    assert_eq!(turn(&new, "ours"), (moved, "hit".to_owned()), "what was written last holds");
    new.shell.core().check();
    assert_eq!(dir.names().iter().filter(|n| n.contains("damaged")).count(), 0);
    drop(new);
    assert_eq!(router(&path, 3).1.bindings, 3);
}

#[test]
fn the_files_are_looked_at_before_a_start() {
    let dir = Folder::new();
    let with = |key_file: Option<PathBuf>, snapshot: Option<PathBuf>| {
        look_at_files(&Affinity { key_file, snapshot, ..settings("").affinity })
    };
    assert_eq!(with(None, Some(dir.snapshot())), Ok(()));
    assert!(with(None, Some(dir.file("no/such"))).unwrap_err().contains("folder"));
    fs::create_dir(dir.file("folder")).unwrap();
    assert!(with(None, Some(dir.file("folder"))).unwrap_err().contains("not a file"));
    assert!(with(Some(dir.file("key")), None).unwrap_err().contains("affinity.key_file"));
    fs::write(dir.file("key"), [1; 5]).unwrap();
    assert!(with(Some(dir.file("key")), None).unwrap_err().contains("32"));
    fs::write(dir.file("key"), [1; 32]).unwrap();
    assert_eq!(with(Some(dir.file("key")), Some(dir.snapshot())), Ok(()));
}
