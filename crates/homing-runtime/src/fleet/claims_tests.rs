//! Whose an id is: by hand, and through a fleet whose discoveries quarrel.

use super::*;
use crate::fleet::discovery::Change;
use crate::fleet::tests::{Engine, World};
use crate::testing::{Lines, eventually};
use homing_core::fleet::State;
use tokio::sync::mpsc;

fn at(engine: &Engine, id: &str, zone: &str) -> Worker {
    let mut worker = engine.worker(id);
    worker.labels.insert("zone".into(), zone.into());
    worker
}

#[tokio::test]
async fn the_first_one_has_the_id_until_it_lets_go() {
    let (a, b, c) = (Engine::up(), Engine::up(), Engine::up());
    let (first, thief, third) = (a.worker("w"), b.worker("w"), c.worker("w"));
    let mut claims = Claims::default();
    assert_eq!(claims.claim(0, &first, false), Verdict::Held);
    let stolen = |news| Verdict::Stolen { url: first.url.to_string(), news };
    assert_eq!(claims.claim(1, &thief, false), stolen(true));
    assert_eq!(claims.claim(1, &thief, false), stolen(false), "said once");
    assert_eq!(claims.claim(2, &first, false), Verdict::Shared);
    assert_eq!(claims.claim(1, &third, false), stolen(true), "a third place is news");
    assert_eq!(claims.claim(0, &first, false), Verdict::Held);
    assert_eq!(claims.holder("w"), Some(&first));
    // What a thief lets go was never its.
    assert_eq!(claims.claim(3, &thief, false), stolen(true));
    assert_eq!(claims.release(3, "w"), After::Same);
    assert_eq!(claims.release(3, "w"), After::Same);
    assert_eq!(claims.release(0, "w"), After::Next(third), "the oldest claim, as it was said last");
    assert_eq!(claims.named_by(2).collect::<Vec<_>>(), ["w"]);
    assert_eq!(claims.release(1, "w"), After::Next(first));
    assert_eq!(claims.release(2, "w"), After::Nobody);
    assert_eq!((claims.release(2, "w"), claims.waiting), (After::Same, 0));
}

#[tokio::test]
async fn an_operator_may_replace_and_the_one_before_is_back_after_it() {
    let (a, b) = (Engine::up(), Engine::up());
    let (first, second) = (a.worker("w"), b.worker("w"));
    let mut claims = Claims::default();
    assert_eq!(claims.claim(0, &first, false), Verdict::Held);
    assert_eq!(claims.claim(1, &second, true), Verdict::Held);
    assert_eq!(claims.holder("w"), Some(&second));
    assert!(matches!(claims.claim(0, &first, false), Verdict::Stolen { .. }));
    assert_eq!(claims.claim(0, &first, true), Verdict::Held);
    assert_eq!(claims.claim(1, &second, true), Verdict::Held);
    assert_eq!(claims.release(1, "w"), After::Next(first));
    claims.forget("w");
    assert_eq!((claims.holder("w"), claims.waiting), (None, 0));
}

#[tokio::test]
async fn an_id_that_two_discoveries_claim_for_different_urls_stays_whose_it_was() {
    const REFUSED: &str =
        "a worker's id is claimed for another URL: refused; whoever is registered stays as he is";
    let (lines, _guard) = Lines::listen();
    let (engine, thief, other) = (Engine::up(), Engine::up(), Engine::up());
    let world = World::empty("", |_| None);
    let discovery = || {
        let (say, changes) = mpsc::channel(8);
        world.life.spawn(world.fleet.clone().follow(changes));
        say
    };
    let (one, two) = (discovery(), discovery());
    one.send(Change::Reset(vec![at(&engine, "w", "one")])).await.unwrap();
    world.is("w", State::Ready).await;
    let life = world.shell.core().worker_named("w");
    let url = || {
        let workers = world.shell.core().workers();
        let w = workers.iter().find(|w| &*w.info.spec.name == "w").unwrap();
        (w.info.spec.url.to_string(), w.info.spec.labels["zone"].clone())
    };
    let held = (engine.worker("w").url.to_string(), "one".to_owned());
    // In each way in which it can be said, and again.
    two.send(Change::Upsert(at(&thief, "w", "two"))).await.unwrap();
    two.send(Change::Reset(vec![at(&thief, "w", "two"), other.worker("other")])).await.unwrap();
    two.send(Change::Upsert(at(&thief, "w", "two"))).await.unwrap();
    world.is("other", State::Ready).await;
    eventually("it is counted", || world.fleet.refused() == 1).await;
    two.send(Change::Remove("w".into())).await.unwrap();
    // The same place is the same worker, whoever says so.
    two.send(Change::Upsert(at(&engine, "w", "two"))).await.unwrap();
    two.send(Change::Remove("other".into())).await.unwrap();
    eventually("all of that is taken in", || world.shell.core().worker_named("other").is_none())
        .await;
    assert_eq!((url(), world.shell.core().worker_named("w")), (held, life));
    assert_eq!((lines.count(REFUSED), world.fleet.refused()), (1, 1));
    // The holder lets go: who waited goes on with it, and nobody has departed.
    one.send(Change::Remove("w".into())).await.unwrap();
    eventually("the other's words hold", || url().1 == "two").await;
    assert_eq!(world.shell.core().worker_named("w"), life);
    two.send(Change::Upsert(at(&thief, "w", "two"))).await.unwrap();
    eventually("its own it may move", || url().0 == thief.worker("w").url.to_string()).await;
    one.send(Change::Reset(vec![at(&engine, "w", "one")])).await.unwrap();
    eventually("now the first one is the thief", || world.fleet.refused() == 2).await;
    // An operator's word ends all of it, until somebody says it again.
    assert!(world.fleet.remove("w"));
    one.send(Change::Reset(vec![at(&engine, "w", "one")])).await.unwrap();
    eventually("it is there again", || world.shell.core().worker_named("w").is_some()).await;
    one.send(Change::Replace(at(&thief, "w", "by hand"))).await.unwrap();
    eventually("it is replaced", || url().1 == "by hand").await;
    world.end().await;
}
