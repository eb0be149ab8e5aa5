//! The overload detector: who is shed for having too much to do, what that does to whom, and that it ends
//! (F08, F16, F17, F33, F35). What `on_overload` does by itself is in `r07_overloaded`.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Cause, Live};
use homing_core::fleet::{FleetChange, Ranks};
use homing_core::ids::{DpRank, WorkerId};
use homing_core::load::report::Report;
use homing_core::settings::{CoreSettings, OnOverload, OverloadSettings};

fn by(overload: OverloadSettings) -> CoreSettings {
    CoreSettings { overload, ..settings() }
}

/// Overloaded from two requests on.
fn two() -> OverloadSettings {
    OverloadSettings { active_requests: 2, recover: 0.5, ..OverloadSettings::default() }
}

/// So many requests that name the worker.
fn load(w: &World, worker: WorkerId, n: usize) -> Vec<Live> {
    let name = w.name_of(worker);
    (0..n).map(|_| w.start(at(w.plain(), &name, Some(0))).2).collect()
}

fn why(w: &World, worker: WorkerId) -> Vec<&'static str> {
    let part = w.part(worker);
    let words: Vec<_> = part.overload.words().collect();
    assert_eq!(part.shed, !words.is_empty());
    assert_eq!(part.shed_until, None, "it has not said so");
    words
}

fn kv(w: &World, worker: WorkerId, usage: f64) {
    let report = Report { kv_usage: Some(usage), ..Report::default() };
    w.core.handle_report(w.now, worker, None, report);
    w.core.check();
}

#[test]
fn f35_from_the_bound_on_and_until_it_has_recovered() {
    let w = World::with(by(two()), 2);
    let home = w.turn(w.hard("s")).0;
    let mut lives = load(&w, home, 1);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    lives.extend(load(&w, home, 1));
    assert_eq!(why(&w, home), ["active_requests"]);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled);
    // An explicit target outranks the verdict.
    lives.extend(load(&w, home, 2));
    for _ in 0..2 {
        w.finish(lives.pop().unwrap());
        assert_eq!(why(&w, home), ["active_requests"], "not before it is at half of that");
    }
    w.finish(lives.pop().unwrap());
    assert!(why(&w, home).is_empty());
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn f35_whatever_ends_a_booking_clears_it() {
    use homing_core::ask::{Abandon, Failure};
    let w = World::with(by(OverloadSettings { active_requests: 1, ..two() }), 2);
    let id = w.others(WorkerId(u32::MAX))[0];
    let grant = || w.grant(at(w.plain(), &w.name_of(id), Some(0)));
    type End = fn(&World, homing_core::ask::Grant);
    let ends: [End; 4] = [
        |w, g| _ = w.core.abandon(w.now, g, Abandon::NotDispatched),
        |w, g| _ = w.core.abandon(w.now, w.go(g), Abandon::ClientGone),
        |w, g| {
            let moved = w.retry(w.go(g), Failure::Broken);
            let _ = w.core.abandon(w.now, granted(moved), Abandon::Failed);
        },
        |w, g| w.finish(w.commit(w.go(g)).0),
    ];
    for end in ends {
        let grant = grant();
        assert_eq!(why(&w, id), ["active_requests"]);
        end(&w, grant);
        w.core.check();
        assert!(why(&w, id).is_empty());
    }
    w.quiesce();
}

#[test]
fn f35_a_new_life_begins_without_it() {
    let mut w = World::with(by(two()), 2);
    let id = w.others(WorkerId(u32::MAX))[0];
    let lives = load(&w, id, 2);
    kv(&w, id, 1.0);
    let name = w.name_of(id);
    w.fleet(FleetChange::Restarted(id));
    let new = w.core.worker_named(&name).unwrap();
    assert!(why(&w, new).is_empty());
    assert_eq!(w.part(new).reported, None);
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn r07_everybody_overloaded_is_429_and_the_binding_stays() {
    let mut w = World::with(by(two()), 2);
    let home = w.turn(w.hard("s")).0;
    let other = w.others(home)[0];
    let mut lives = load(&w, home, 2);
    lives.extend(load(&w, other, 2));
    let before = w.session("s");
    for ask in [w.hard("s"), w.soft("s"), w.plain()] {
        let refusal = w.refused(ask);
        assert_eq!(refusal.cause, Cause::Overloaded);
        assert!(refusal.retry_after.is_some());
    }
    assert_eq!(w.session("s"), before);
    // Requests end, a second each: that and how many must end says when to come again.
    for _ in 0..5 {
        w.pass(SECOND);
        w.finish(lives.remove(0));
        lives.insert(0, load(&w, home, 1).remove(0));
    }
    // One of either worker must end, and they end by turns.
    assert_eq!(w.refused(w.plain()).retry_after, Some(SECOND * 2));
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn r07_soft_goes_elsewhere_and_stays_there() {
    let w = World::with(by(two()), 2);
    let home = w.turn(w.soft("s")).0;
    let lives = load(&w, home, 2);
    let (there, outcome) = w.turn(w.soft("s"));
    assert_ne!(there, home);
    assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(there)));
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn r07_wait_is_for_home_until_it_has_recovered() {
    let mut settings = by(two());
    settings.affinity.on_overload = OnOverload::Wait;
    let w = World::with(settings, 2);
    let home = w.turn(w.hard("s")).0;
    let mut lives = load(&w, home, 2);
    let [a, b] = [0; 2].map(|_| w.waiting(w.hard("s")));
    assert_eq!(w.woken(), None);
    w.finish(lives.pop().unwrap());
    // One fills it up again, and the next waits on.
    let grant = w.claimed(a);
    assert_eq!(grant.worker().id, home);
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!((outcome, w.woken()), (Outcome::Hit, None));
    w.finish(live);
    let (live, _) = w.commit(w.go(w.claimed(b)));
    w.finish(live);
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn r07_with_a_queue_all_wait_for_the_first_that_has_recovered() {
    let w = World::with(CoreSettings { queue: queueing(8).queue, ..by(two()) }, 1);
    let id = w.others(WorkerId(u32::MAX))[0];
    // Busy from one on, and two are overloaded: the second names it, and waits for its turn there.
    let (_, _, running) = w.start(w.plain());
    let (named, plain) = (w.waiting(at(w.plain(), &w.name_of(id), Some(0))), w.waiting(w.plain()));
    w.finish(running);
    let (live, _) = w.commit(w.go(w.claimed(named)));
    assert_eq!(w.woken(), None);
    w.finish(live);
    let (live, _) = w.commit(w.go(w.claimed(plain)));
    w.finish(live);
    w.quiesce();
}

#[test]
fn f35_kv_usage_ends_with_a_better_report_or_with_none() {
    let kv_usage = OverloadSettings { kv_usage: 0.9, recover: 0.8, ..OverloadSettings::default() };
    let mut w = World::with(by(kv_usage), 2);
    let home = w.turn(w.hard("s")).0;
    for (usage, over) in [(0.89, false), (0.9, true), (0.75, true), (0.72, false), (1.0, true)] {
        kv(&w, home, usage);
        assert_eq!(!why(&w, home).is_empty(), over, "{usage}");
        let outcome = if over { Outcome::Spilled } else { Outcome::Hit };
        assert_eq!(w.turn(w.hard("s")).1, outcome);
    }
    // Its engine falls silent: three probes later that is all that is known of it.
    let due = w.now + SECOND * 15;
    assert_eq!(w.core.poll_timeout(), Some(due));
    w.now = due;
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit), "at once, though nobody has ticked");
    assert!(why(&w, home).is_empty());
    w.quiesce();
}

#[test]
fn f17_the_factor_needs_a_gap_too_and_f16_spills_request_by_request() {
    let factor = OverloadSettings { factor: 1.5, ..OverloadSettings::default() };
    let w = World::with(by(factor), 3);
    let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    // Four against none: twice the mean and more, and hardly any load.
    let mut lives = load(&w, ids[0], 6);
    assert!(why(&w, ids[0]).is_empty(), "6 of a mean of 2: no more than 4 beyond it");
    lives.extend(load(&w, ids[0], 1));
    assert_eq!(why(&w, ids[0]), ["factor"], "7 of 2 1/3");
    for _ in 0..8 {
        let (there, _, live) = w.start(w.plain());
        assert_ne!(there, ids[0]);
        lives.push(live);
    }
    // The others have caught up: without a request of its own having ended it is one of them.
    assert!(why(&w, ids[0]).is_empty(), "7 of 5");
    assert!(why(&w, ids[1]).is_empty() && why(&w, ids[2]).is_empty());
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn f16_when_one_departs_the_others_are_measured_anew() {
    let factor = OverloadSettings { factor: 1.5, ..OverloadSettings::default() };
    let mut w = World::with(by(factor), 3);
    let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    let lives: Vec<_> =
        (0..9).flat_map(|_| [ids[0], ids[1]]).flat_map(|id| load(&w, id, 1)).collect();
    assert_eq!(why(&w, ids[0]), Vec::<&str>::new(), "9 of 6");
    // An idle one comes, and goes.
    let new = w.up("new", &[MODEL]);
    assert_eq!(why(&w, ids[0]), ["factor"], "9 of 4 1/2");
    w.remove(new);
    w.remove(ids[2]);
    assert!(why(&w, ids[0]).is_empty(), "as many as the other");
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn f35_ranks_count_by_their_mean() {
    let mut w = World::with(by(two()), 0);
    let id = w.up_with_ranks("ranks", 0, 2);
    let mut lives = load(&w, id, 3);
    assert!(why(&w, id).is_empty(), "3 in 2 ranks");
    lives.extend(load(&w, id, 1));
    assert_eq!(why(&w, id), ["active_requests"]);
    w.fleet(FleetChange::Ranks(id, Ranks::new(0, 4)));
    assert!(why(&w, id).is_empty(), "4 in 4");
    let usage = |rank, usage| {
        let report = Report { kv_usage: Some(usage), ..Report::default() };
        w.core.handle_report(w.now, id, Some(DpRank(rank)), report);
    };
    usage(0, 1.0);
    usage(3, 0.5);
    usage(9, 1.0);
    assert_eq!(w.part(id).reported.unwrap().report.kv_usage, Some(0.75), "of those who say it");
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn f33_what_a_worker_says_and_what_it_has_to_do_both_count() {
    let mut w = World::with(by(two()), 2);
    let home = w.turn(w.hard("s")).0;
    w.overload(home, Some(SECOND * 3));
    let lives = load(&w, home, 2);
    w.pass(SECOND * 3);
    assert_eq!(
        w.turn(w.hard("s")).1,
        Outcome::Spilled,
        "what it said is over, and it has too much"
    );
    lives.into_iter().for_each(|l| w.finish(l));
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.overload(home, Some(SECOND * 3));
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled, "and the other way round");
    w.quiesce();
}
