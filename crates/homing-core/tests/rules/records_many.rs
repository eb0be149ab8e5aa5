//! Records of many requests, and of many targets: both are bounded.

use super::world::*;
use homing_core::explain::{BEST, RECORD_BYTES, WHOLE};
use homing_core::fleet::Ranks;
use homing_core::ids::DpRank;
use homing_core::select::Fit;
use homing_core::settings::CoreSettings;

#[test]
fn old_records_make_room_and_what_is_said_late_of_them_is_ignored() {
    let w = World::new(8);
    let mut ask = w.hard("s");
    ask.note.id = Some("first".into());
    let first = w.grant(ask);
    let mut n = 0;
    while w.core.decision("first").is_some() {
        for _ in 0..500 {
            w.core.finish(w.now, w.core.commit(w.now, w.go(w.grant(w.plain()))).0);
            n += 1;
        }
        assert!(n < 100_000, "nothing makes room");
        assert!(w.core.record_use().bytes <= RECORD_BYTES);
    }
    let usage = w.core.record_use();
    assert!(usage.kept > 2000 && usage.dropped > 0, "{usage:?}");
    assert_eq!(usage.kept as u64 + usage.dropped, n + 1);
    // It goes on as if nothing had happened, and touches nobody else's record.
    let before = w.core.decisions(usize::MAX).into_iter().map(|d| d.record).collect::<Vec<_>>();
    let (live, _) = w.commit(w.go(first));
    w.finish(live);
    let after = w.core.decisions(usize::MAX).into_iter().map(|d| d.record).collect::<Vec<_>>();
    assert!(before == after);
    // Once it is full, it takes no more.
    for _ in 0..5000 {
        w.core.finish(w.now, w.core.commit(w.now, w.go(w.grant(w.plain()))).0);
    }
    assert!(w.core.record_use().bytes <= RECORD_BYTES);
    w.quiesce();
}

#[test]
fn of_many_targets_the_pick_the_home_and_the_best_are_kept_and_the_rest_counted() {
    let mut w = World::new(0);
    let ids: Vec<_> = (0..50).map(|i| w.up_with_ranks(&format!("w{i}"), 0, 4)).collect();
    w.drain(ids[3], None);
    w.down(ids[4]);
    // All but the home are as idle as it, so the home is none of the best once it is busy.
    let (home, _, _live) = w.start(at(w.hard("s"), "w40", Some(2)));
    let (_, _, second) = w.start(w.hard("s"));
    let mut ask = w.hard("s");
    ask.note.id = Some("r".into());
    let (_, _, live) = w.start(ask);
    let d = w.core.decision("r").unwrap();
    let kept = d.candidates.len();
    assert!((BEST..=BEST + 2).contains(&kept), "{kept}");
    assert_eq!(d.record.left_out as usize + kept, 200);
    let pick = d.record.pick.unwrap();
    assert_eq!((pick.worker, pick.rank), (home, Some(DpRank(2))));
    let picked = d.candidates.iter().find(|c| c.target() == pick).unwrap();
    assert_eq!(picked.active_requests, 2);
    assert!(d.candidates.is_sorted_by_key(|c| (c.worker, c.rank)));
    assert!(d.candidates.iter().all(|c| !c.fit.any(Fit::NOT_READY.and(Fit::DRAINING))));
    let words: Vec<_> = Fit::WORDS.iter().zip(d.record.against).filter(|(_, n)| *n > 0).collect();
    let words: Vec<_> = words.into_iter().map(|((_, word), n)| (*word, n)).collect();
    assert_eq!(words, [("not_ready", 4), ("draining", 4)]);
    w.finish(live);
    w.finish(second);
}

#[test]
fn up_to_64_targets_are_kept_whole() {
    let mut w = World::new(0);
    w.up_as("wide", |spec| spec.ranks = Ranks::new(0, u16::try_from(WHOLE).unwrap()));
    w.turn(w.plain());
    let d = w.core.decisions(1).remove(0);
    assert_eq!((d.candidates.len(), d.record.left_out), (WHOLE, 0));
}

#[test]
fn a_worker_that_has_departed_is_still_called_by_its_name() {
    let mut w = World::new(2);
    let (gone, _) = w.turn(w.plain());
    let name = w.name_of(gone);
    w.remove(gone);
    let d = w.core.decisions(1).remove(0);
    assert_eq!(d.worker(gone), Some(&*name));
    let other = d.candidates.iter().find(|c| c.worker != gone).unwrap();
    assert!(d.worker(other.worker).is_some());
}

#[test]
fn pools_share_the_room_and_the_newest_of_all_come_first() {
    let mut w = World::new(1);
    w.up("x", &["other"]);
    for i in 0..10 {
        w.pass(SECOND);
        w.turn(w.ask_for(if i % 2 == 0 { MODEL } else { "other" }, None));
    }
    let models: Vec<_> = w.core.decisions(3).iter().map(|d| d.model.to_string()).collect();
    assert_eq!(models, ["other", MODEL, "other"]);
}

#[test]
fn without_records_nothing_is_kept() {
    let w = World::with(CoreSettings { records: false, ..settings() }, 2);
    let mut ask = w.hard("s");
    ask.note.id = Some("r".into());
    w.turn(ask);
    assert_eq!(w.core.record_use().kept, 0);
    assert!(w.core.decision("r").is_none() && w.core.decisions(9).is_empty());
}
