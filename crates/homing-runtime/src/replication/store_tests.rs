//! Routers that share a store in memory.

use super::*;
use crate::replication::port::Stay;
use homing_wire::replica::{Record, RecordKind};

fn records(shelf: &Shelf) -> Vec<Record> {
    shelf.values().iter().map(|value| Record::decode(value).unwrap()).collect()
}

#[tokio::test]
async fn r24_of_many_first_turns_at_once_all_go_to_one_worker() {
    let shelf = Shelf::with_leases();
    let routers: Vec<_> = (1..=3).map(|n| Router::at(&shelf, n, false)).collect();
    for router in &routers {
        router.ready().await;
    }
    for k in 0..50 {
        let session = format!("s{k}");
        let turns =
            [routers[0].turn(&session), routers[1].turn(&session), routers[2].turn(&session)];
        let [a, b, c] = turns;
        let (a, b, c) = tokio::join!(a, b, c);
        assert!(a.2 == b.2 && b.2 == c.2, "{} {} {}", a.2, b.2, c.2);
        drop((a.0, b.0, c.0));
        let refs: Vec<_> = routers.iter().collect();
        assert_eq!(agree(&refs, &session).await, a.2);
    }
    // A bound turn asks nobody before it goes.
    shelf.fail();
    assert_eq!(routers[1].whole("s7").await.1, Outcome::Hit);
    for router in routers {
        router.end().await;
    }
}

#[tokio::test]
async fn r24_what_comes_to_nothing_is_withdrawn() {
    let shelf = Shelf::with_leases();
    let [a, b] = [1, 2].map(|n| Router::at(&shelf, n, false));
    a.ready().await;
    b.ready().await;
    let checked = a.shell.admit(ask(&a.shell, "s")).await.unwrap().check().await.unwrap();
    assert_eq!(shelf.values().len(), 1);
    let _ = checked.answered_badly();
    eventually("it is taken back", || shelf.values().is_empty()).await;
    // Its client goes while the store is asked: dropped at whichever point, nothing is left.
    for polls in 0..6 {
        let mut going = Box::pin(a.turn("t"));
        for _ in 0..polls {
            if crate::testing::now(&mut going).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(going);
        eventually("nothing is held", || {
            let s = stats(&a.shell);
            s.leases + s.bookings == 0 && (shelf.values().is_empty() || a.home("t").is_some())
        })
        .await;
    }
    a.end().await;
    b.end().await;
}

#[tokio::test(start_paused = true)]
async fn who_starts_while_the_store_is_away_waits_five_seconds() {
    let shelf = Shelf::with_leases();
    shelf.fail();
    let began = tokio::time::Instant::now();
    let router = Router::at(&shelf, 1, false);
    router.ready().await;
    let (after, alone) = (began.elapsed(), ALONE_PATIENCE);
    assert!(after >= alone && after < alone + Duration::from_secs(1), "ready after {after:?}");
    // What it holds is taken over as it comes back.
    let other = Router::at(&shelf, 2, false);
    other.ready().await;
    shelf.back();
    let (home, _) = other.whole("s").await;
    assert_eq!(agree(&[&router, &other], "s").await, home);
    router.end().await;
    other.end().await;
}

#[tokio::test]
async fn r24_an_outage_is_answered_as_the_settings_say() {
    let shelf = Shelf::with_leases();
    let (local, strict) = (Router::at(&shelf, 1, false), Router::at(&shelf, 2, true));
    local.ready().await;
    strict.ready().await;
    let _ = strict.whole("before").await;
    agree(&[&local, &strict], "before").await;
    shelf.fail();
    let (home, outcome) = local.whole("s").await;
    assert_eq!(outcome, Outcome::New, "{home}");
    let granted = strict.shell.admit(ask(&strict.shell, "t")).await.unwrap();
    match granted.check().await {
        Err(Unsent::Refused(Refusal { cause: Cause::StoreUnreachable, .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(strict.whole("before").await.1, Outcome::Hit, "what is bound goes on");
    assert_eq!(stats(&strict.shell).leases, 0);
    shelf.back();
    // What was bound meanwhile is written, and the others hear of it.
    assert_eq!(agree(&[&local, &strict], "s").await, home);
    let strict_again = strict.whole("t").await;
    assert_eq!(strict_again.1, Outcome::New);
    local.end().await;
    strict.end().await;
}

#[tokio::test]
async fn r24_a_store_that_was_silent_for_a_moment_is_used_again() {
    // Who follows it notices nothing, and a strict router has nothing to write meanwhile.
    for strict in [true, false] {
        let shelf = Arc::new(Shelf::default());
        let a = Router::at(&shelf, 1, strict);
        a.ready().await;
        shelf.down.store(true, Ordering::Relaxed);
        let refused = matches!(
            a.shell.admit(ask(&a.shell, "s")).await.unwrap().check().await,
            Err(Unsent::Refused(Refusal { cause: Cause::StoreUnreachable, .. }))
        );
        assert_eq!(refused, strict);
        assert!(metric(&a, "homing_replication_up 0"));
        shelf.down.store(false, Ordering::Relaxed);
        eventually("it is seen to be there", || metric(&a, "homing_replication_up 1")).await;
        let claimed = || metric(&a, "homing_replication_claims_total{outcome=\"ours\"} 1");
        assert!(!claimed());
        let _ = a.whole("t").await;
        assert!(claimed());
        a.end().await;
    }
}

#[tokio::test]
async fn r24_claims_hold_while_their_router_lives_however_many_and_far_away() {
    let shelf = Arc::new(Shelf::default());
    let a = Router::at(&shelf, 1, false);
    a.ready().await;
    let _ = a.whole("other").await;
    eventually("it is bound", || shelf.values().len() == 1).await;
    let mut open = Vec::new();
    for k in 0..300 {
        let granted = a.shell.admit(ask(&a.shell, &format!("s{k}"))).await.unwrap();
        open.push(granted.check().await.unwrap());
    }
    // One after another they would take six seconds; and every third answer is lost.
    shelf.far.store(20, Ordering::Relaxed);
    shelf.forgets.store(3, Ordering::Relaxed);
    let store = a._shared.store.clone().unwrap();
    let later = a.shell.now() + Duration::from_secs(3000);
    let began = std::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    let others = ask(&a.shell, "other");
    assert!(a.shell.core().unbind(a.shell.now(), others.partition, others.session.unwrap().key));
    let held =
        || records(&shelf).iter().filter(|r| r.until.is_some_and(|until| until > later)).count();
    while held() < 300 {
        store.renew(later, &mut tasks);
        while tasks.join_next().await.is_some() {}
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
    // What else is to be written waits for none of them.
    let removed = || records(&shelf).iter().any(|r| r.kind == RecordKind::Removed);
    eventually("the removal is written", removed).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    // One that is taken back while it is renewed is gone all the same.
    shelf.forgets.store(0, Ordering::Relaxed);
    store.renew(later + Duration::from_secs(10), &mut tasks);
    for checked in open {
        let _ = checked.answered_badly();
    }
    eventually("all are taken back", || records(&shelf).iter().all(|r| r.until.is_none())).await;
    a.end().await;
}

#[tokio::test]
async fn r24_who_is_new_has_what_the_store_holds() {
    let shelf = Arc::new(Shelf::default());
    let a = Router::at(&shelf, 1, false);
    a.ready().await;
    for k in 0..200 {
        let _ = a.whole(&format!("s{k}")).await;
    }
    // What has not been written yet is, before it ends.
    a.end().await;
    assert_eq!(shelf.values().len(), 200);
    let b = Router::at(&shelf, 2, false);
    b.ready().await;
    assert_eq!(stats(&b.shell).bindings, 200);
    let calls = shelf.calls.load(Ordering::Relaxed);
    assert_eq!(b.whole("s3").await.1, Outcome::Hit);
    eventually("its use is written", || shelf.calls.load(Ordering::Relaxed) > calls).await;
    b.end().await;
}

#[tokio::test]
async fn r24_a_departed_home_is_moved_by_one_router_for_all() {
    let shelf = Shelf::with_leases();
    let [a, b] = [1, 2].map(|n| Router::at(&shelf, n, false));
    a.ready().await;
    b.ready().await;
    let (home, _) = a.whole("s").await;
    agree(&[&a, &b], "s").await;
    for router in [&a, &b] {
        let id = router.shell.core().worker_named(&home).unwrap();
        crate::testing::fleet(&router.shell, FleetChange::Remove(id));
    }
    let (one, other) = tokio::join!(a.turn("s"), b.turn("s"));
    assert_eq!(one.2, other.2);
    assert_ne!(one.2, home);
    drop((one.0, other.0));
    agree(&[&a, &b], "s").await;
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn a_record_of_a_far_time_is_not_believed_and_is_written_over() {
    for (far, k) in [(u64::MAX / 4, 0), (u64::MAX, 1)] {
        for kind in [RecordKind::Tentative, RecordKind::Bound] {
            let shelf = Shelf::with_leases();
            let [a, b] = [1, 2].map(|n| Router::at(&shelf, n, false));
            a.ready().await;
            b.ready().await;
            let session = format!("s{k}");
            let mut publication = register_of(&a, &session, "w1");
            publication.version.sequence = far;
            let key = store::key_of("m", publication.role, publication.key);
            let record = Record { kind, publication, until: None, group: None };
            shelf.compare_and_set(&key, record.encode().into(), None, Stay::Idle).await.unwrap();
            let (home, outcome) = a.whole(&session).await;
            assert_eq!(outcome, Outcome::New);
            assert_eq!(agree(&[&a, &b], &session).await, home);
            eventually("it is written over", || {
                let all = records(&shelf);
                all.len() == 1 && all[0].publication.version.is_credible(a.shell.now())
            })
            .await;
            // Of another session nothing is lost either.
            let (home, _) = b.whole("other").await;
            assert_eq!(agree(&[&a, &b], "other").await, home);
            assert!(metric(&b, "direction=\"received\",outcome=\"untrue\""));
            a.end().await;
            b.end().await;
        }
    }
}

#[tokio::test]
async fn what_was_written_with_another_secret_is_refused_and_said() {
    let shelf = Shelf::with_leases();
    let a = Router::at(&shelf, 1, false);
    let store: Arc<dyn BindingStore> = shelf.clone();
    let ports = Ports { bus: None, store: Some(store) };
    let stranger = Router::begin(shell(9, 8, "authoritative"), ports, false);
    a.ready().await;
    stranger.ready().await;
    let _ = stranger.whole("s").await;
    let refused = "direction=\"received\",outcome=\"other_secret\"";
    eventually("it is counted", || metric(&a, refused)).await;
    assert_eq!(stats(&a.shell).bindings, 0);
    let _ = a.whole("s").await;
    eventually("it is counted there, too", || metric(&stranger, refused)).await;
    // A record of an earlier release says nothing of it, and is believed.
    let publication = register_of(&a, "old", "w1");
    let key = store::key_of("m", publication.role, publication.key);
    let record = Record { kind: RecordKind::Bound, publication, until: None, group: None };
    shelf.compare_and_set(&key, record.encode().into(), None, Stay::Idle).await.unwrap();
    eventually("it is known", || a.home("old").is_some()).await;
    a.end().await;
    stranger.end().await;
}

#[tokio::test]
async fn a_store_that_has_lost_all_holds_it_again() {
    for one_by_one in [false, true] {
        let shelf = Shelf::with_leases();
        let [a, b, gone] = [1, 2, 3].map(|n| Router::at(&shelf, n, false));
        for router in [&a, &b, &gone] {
            router.ready().await;
            for k in 0..20 {
                let _ = router.whole(&format!("{}-{k}", router.me())).await;
            }
        }
        let all = |r: &Router| stats(&r.shell).bindings == 60;
        eventually("all know all", || all(&a) && all(&b) && all(&gone)).await;
        eventually("all is written", || records(&shelf).len() == 60).await;
        // What it has bound nobody but the others knows any more.
        gone.end().await;
        if one_by_one {
            shelf.lose();
        } else {
            shelf.wipe();
        }
        eventually("it holds all again", || records(&shelf).len() == 60).await;
        let c = Router::at(&shelf, 4, false);
        c.ready().await;
        assert!(all(&c));
        // And then it is quiet.
        let calls = || shelf.calls.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = calls();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(calls() - before < 4, "{} calls", calls() - before);
        for router in [a, b, c] {
            router.end().await;
        }
    }
}

#[tokio::test]
async fn who_is_new_at_a_store_that_has_lost_all_asks_the_others() {
    let (shelf, wire) = (Arc::new(Shelf::default()), Arc::new(Wire::default()));
    let router = |n| {
        let shell = shell(n, 7, "authoritative");
        let store: Arc<dyn BindingStore> = shelf.clone();
        let ports = Ports { bus: Some(wire.join(shell.core().writer())), store: Some(store) };
        Router::begin(shell, ports, false)
    };
    let a = router(1);
    a.ready().await;
    for k in 0..50 {
        let _ = a.whole(&format!("s{k}")).await;
    }
    eventually("all is written", || records(&shelf).len() == 50).await;
    shelf.forget();
    let b = router(2);
    b.ready().await;
    assert_eq!(stats(&b.shell).bindings, 50);
    eventually("it is written by whoever notices", || records(&shelf).len() == 50).await;
    a.end().await;
    b.end().await;
}
