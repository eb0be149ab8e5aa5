//! Load is booked when a request is placed, on every path, and freed by every end.

use super::world::*;
use homing_core::ask::{Abandon, Failure, Live, Step};
use homing_core::load::Load;
use homing_core::settings::{CoreSettings, PolicyKind};

#[test]
fn f12_a_burst_spreads_because_load_counts_from_selection() {
    for policy in
        [PolicyKind::Kv, PolicyKind::Latency, PolicyKind::LeastLoaded, PolicyKind::RoundRobin]
    {
        let w = World::with(CoreSettings { policy, ..settings() }, 4);
        let grants: Vec<_> = (0..40).map(|_| w.grant(w.plain())).collect();
        for view in w.core.workers() {
            assert_eq!(view.part.load.active_requests, 10, "{policy:?}");
        }
        for grant in grants {
            let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        }
        w.quiesce();
    }
}

#[test]
fn f11_f41_every_path_is_booked_once_and_freed_once() {
    type Path = fn(&mut World) -> Option<Live>;
    let paths: [Path; 9] = [
        |w| Some(w.commit(w.go(w.grant(w.hard("s")))).0),
        |w| Some(w.commit(w.go(w.grant(w.soft("s")))).0),
        |w| Some(w.commit(w.go(w.grant(w.plain()))).0),
        |w| Some(w.commit(w.go(granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken)))).0),
        |w| Some(w.commit(w.go(granted(w.retry(w.go(w.grant(w.plain())), Failure::Refused)))).0),
        |w| {
            let _ = w.core.abandon(w.now, w.grant(w.hard("s")), Abandon::ClientGone);
            None
        },
        |w| {
            let _ = w.core.abandon(w.now, w.go(w.grant(w.hard("s"))), Abandon::Failed);
            None
        },
        |w| {
            let twice = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken));
            let _ = refused(w.retry(w.go(twice), Failure::Broken));
            None
        },
        |w| {
            w.core.unbind(w.now, w.partition(), key("s"));
            let (a, b) = w.split(w.hard("s"), w.hard("s"));
            let (a, _) = w.commit(w.go(a));
            let b = w.grant(w.again(b));
            let _ = w.core.abandon(w.now, b, Abandon::NotDispatched);
            Some(a)
        },
    ];
    for policy in POLICIES {
        let mut w = World::with(CoreSettings { policy, ..settings() }, 4);
        for (i, path) in paths.into_iter().enumerate() {
            let live = path(&mut w);
            let active: u32 = w.core.workers().iter().map(|v| v.part.load.active_requests).sum();
            assert_eq!(active, u32::from(live.is_some()), "path {i}, {policy:?}");
            assert_eq!(w.stats().bookings, usize::from(live.is_some()));
            if let Some(live) = live {
                w.core.progress(w.now, &live, Step::FirstToken);
                w.core.progress(w.now, &live, Step::Output(1000));
                w.finish(live);
            }
            assert!(w.core.workers().iter().all(|v| v.part.load == Load::default()), "path {i}");
        }
        w.quiesce();
    }
}

#[test]
fn f41_a_worker_that_is_removed_and_added_under_load_starts_at_zero_and_stays_right() {
    let mut w = World::new(1);
    let (old, _, before) = w.start(w.hard("s"));
    let new = w.up("w0", &[MODEL]);
    assert_ne!(old, new);
    assert_eq!((w.part(new).load, w.stats().bookings), (Load::default(), 1));
    let (_, _, after) = w.start(w.hard("s"));
    w.finish(before);
    assert_eq!(w.part(new).load.active_requests, 1);
    w.core.progress(w.now, &after, Step::FirstToken);
    w.finish(after);
    assert_eq!(w.part(new).load, Load::default());
    w.quiesce();
}

#[test]
fn f41_progress_moves_the_gauges_and_the_end_takes_all_of_it() {
    let w = World::new(1);
    let (worker, _, live) = w.start(w.plain());
    let load = |w: &World| w.part(worker).load;
    let parts = |l: Load| (l.active_requests, l.decoding, l.prefill_tokens, l.blocks, l.context);
    assert_eq!(parts(load(&w)), (1, 0, 100, 7, 0));
    w.core.progress(w.now, &live, Step::FirstToken);
    w.core.progress(w.now, &live, Step::Output(12));
    assert_eq!(parts(load(&w)), (1, 1, 0, 7, 112));
    w.core.progress(w.now, &live, Step::Output(1));
    assert_eq!(load(&w).blocks, 8);
    w.finish(live);
    assert_eq!(load(&w), Load::default());
    w.quiesce();
}
