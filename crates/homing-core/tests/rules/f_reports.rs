//! What engines report of their load: requests that are not ours weigh as ours do, for as long as the report
//! counts, and nothing that is ours ever weighs less.

use super::world::*;
use homing_core::ask::Abandon;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::load::report::Report;
use homing_core::settings::{CoreSettings, PolicyKind};

fn least_loaded(settings: CoreSettings) -> CoreSettings {
    CoreSettings { policy: PolicyKind::LeastLoaded, ..settings }
}

fn said(running: u32, waiting: u32) -> Report {
    Report { running, waiting, kv_usage: None }
}

fn ids(w: &World) -> Vec<WorkerId> {
    w.core.workers().iter().map(|v| v.info.id).collect()
}

fn hear(w: &World, id: WorkerId, report: Report) {
    w.core.handle_report(w.now, id, None, report);
    w.core.check();
}

/// What a request for anybody would see of each worker: active requests, and blocks.
fn shown(w: &World) -> Vec<(u32, u64)> {
    let preview = w.core.preview(w.now, &w.plain()).unwrap();
    let all = preview.candidates.iter();
    all.map(|(c, _)| (c.load.active_requests, c.load.blocks)).collect()
}

#[test]
fn reports_foreign_requests_count_for_everybody_s_choice() {
    for policy in [PolicyKind::Kv, PolicyKind::LeastLoaded, PolicyKind::PowerOfTwo] {
        let w = World::with(CoreSettings { policy, ..settings() }, 2);
        let all = ids(&w);
        // What a usual request weighs is known from the first one on: 7 blocks.
        w.turn(w.plain());
        hear(&w, all[0], said(3, 2));
        assert_eq!(shown(&w), [(5, 35), (0, 0)]);
        let lives: Vec<_> = (0..3).map(|_| w.start(w.plain())).collect();
        assert!(lives.iter().all(|(there, ..)| *there == all[1]), "{policy:?}");
        // Gauges are of bookings alone.
        assert_eq!(w.part(all[0]).load.active_requests, 0);
        assert_eq!(w.part(all[0]).reported.unwrap().foreign, 5);
        lives.into_iter().for_each(|(.., live)| w.finish(live));
        w.quiesce();
    }
}

#[test]
fn reports_never_make_less_of_what_is_booked() {
    let w = World::with(least_loaded(settings()), 1);
    let id = ids(&w)[0];
    let lives: Vec<_> = (0..3).map(|_| w.start(w.plain()).2).collect();
    for (n, shows) in [(0, 3), (2, 3), (3, 3), (5, 5)] {
        hear(&w, id, said(n, 0));
        assert_eq!(shown(&w)[0].0, shows);
    }
    // Ours come and go on top of the others.
    let (_, _, fourth) = w.start(w.plain());
    assert_eq!(shown(&w)[0].0, 6);
    w.finish(fourth);
    lives.into_iter().for_each(|l| w.finish(l));
    assert_eq!(shown(&w)[0].0, 2);
    w.quiesce();
}

#[test]
fn reports_what_ends_while_the_page_is_on_its_way_is_no_stranger() {
    let w = World::with(least_loaded(settings()), 1);
    let id = ids(&w)[0];
    let lives: Vec<_> = (0..3).map(|_| w.start(w.plain()).2).collect();
    w.core.expect_report(id);
    lives.into_iter().for_each(|l| w.finish(l));
    let grant = w.grant(w.plain());
    let _ = w.core.abandon(w.now, grant, Abandon::ClientGone);
    hear(&w, id, said(3, 1));
    assert_eq!(shown(&w)[0].0, 0);
    hear(&w, id, said(3, 1));
    assert_eq!(shown(&w)[0].0, 4, "whoever is still there then is none of ours");
    w.quiesce();
}

#[test]
fn f35_a_report_counts_for_three_probes_and_who_waits_hears_of_its_end() {
    let mut w = World::with(least_loaded(queueing(4)), 1);
    let id = ids(&w)[0];
    hear(&w, id, said(1, 0));
    let ticket = w.waiting(w.plain());
    assert_eq!(w.woken(), None, "others keep it busy");
    // Each report holds for as long.
    w.pass(SECOND * 14);
    hear(&w, id, said(1, 0));
    w.pass(SECOND * 14);
    w.tick();
    assert_eq!(w.woken(), None);
    assert_eq!(w.core.poll_timeout(), Some(w.now + SECOND));
    w.pass(SECOND);
    w.tick();
    let grant = w.claimed(ticket);
    assert_eq!(w.part(id).reported, None);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn reports_a_better_one_wakes_who_waits() {
    let w = World::with(least_loaded(queueing(4)), 1);
    let id = ids(&w)[0];
    hear(&w, id, said(2, 1));
    let ticket = w.waiting(w.plain());
    hear(&w, id, said(1, 0));
    assert_eq!(w.woken(), None, "still busy");
    hear(&w, id, said(0, 0));
    let grant = w.claimed(ticket);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
}

#[test]
fn reports_of_nobody_are_passed_over() {
    let mut w = World::with(least_loaded(settings()), 1);
    let id = ids(&w)[0];
    w.core.handle_report(w.now, WorkerId(99), None, said(9, 9));
    w.core.handle_report(w.now, id, Some(DpRank(1)), said(9, 9));
    let starting = w.register("starting");
    w.core.handle_report(w.now, starting, None, said(9, 9));
    w.core.check();
    assert_eq!(shown(&w), [(0, 0)]);
    // A life that has ended has none, and its next one begins without.
    hear(&w, id, said(9, 9));
    w.core.expect_report(id);
    w.remove(id);
    w.core.handle_report(w.now, id, None, said(9, 9));
    w.core.check();
    w.up("w0", &[MODEL]);
    assert_eq!(shown(&w), [(0, 0)]);
    w.quiesce();
}

#[test]
fn reports_of_one_rank_are_that_rank_s() {
    let mut w = World::with(least_loaded(settings()), 0);
    let id = w.up_with_ranks("ranks", 1, 2);
    w.core.handle_report(w.now, id, Some(DpRank(2)), said(4, 0));
    w.core.check();
    assert_eq!(shown(&w).iter().map(|s| s.0).collect::<Vec<_>>(), [0, 4]);
    hear(&w, id, said(3, 0));
    assert_eq!(shown(&w).iter().map(|s| s.0).collect::<Vec<_>>(), [2, 1], "together, by halves");
    w.quiesce();
}

#[test]
fn f57_absurd_reports_break_nothing_and_leave_nothing() {
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..settings() }, 2);
        for id in ids(&w) {
            hear(&w, id, said(u32::MAX, u32::MAX));
        }
        let lives: Vec<_> = (0..6).map(|_| w.start(w.plain()).2).collect();
        for id in ids(&w) {
            hear(&w, id, said(u32::MAX, 0));
        }
        lives.into_iter().for_each(|live| w.finish(live));
        w.quiesce();
    }
}
