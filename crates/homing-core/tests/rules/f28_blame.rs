//! Blame: each prompt token that was answered for is counted once, under what became of it.

use super::f28_trust::{TOKENS, ask, usage};
use super::world::*;
use homing_core::ask::{Abandon, Failure};
use homing_core::blame::Reuse;

fn reuse(w: &World) -> Reuse {
    w.core.reuse().get(MODEL).copied().unwrap_or_default()
}

#[test]
fn f28_blame_has_a_word_for_each_token() {
    let w = World::new(2);
    let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    let total = u64::from(TOKENS);
    let mut before = Reuse::default();
    let mut turn = |held: &[_], cached| {
        let (_, _, live) = w.start(at(ask(&w, held), "w0", Some(0)));
        w.core.progress(w.now, &live, usage(cached));
        // Told twice, counted once.
        w.core.progress(w.now, &live, usage(cached));
        w.finish(live);
        let (now, was) = (reuse(&w), std::mem::replace(&mut before, reuse(&w)));
        let grown = now.parts().into_iter().zip(was.parts()).map(|((_, a), (_, b))| a - b);
        <[u64; 5]>::try_from(grown.collect::<Vec<_>>()).unwrap()
    };
    // 62 blocks can be reused; the order is cached, new, evicted, misplaced, unknown.
    assert_eq!(turn(&[], Some(0)), [0, total, 0, 0, 0], "the first time");
    assert_eq!(turn(&[(ids[0], 62)], Some(992)), [992, 8, 0, 0, 0]);
    assert_eq!(turn(&[], Some(0)), [0, 8, 992, 0, 0], "nobody has it any more");
    assert_eq!(turn(&[(ids[1], 40)], Some(0)), [0, 8, 352, 640, 0], "the other one has part of it");
    assert_eq!(turn(&[(ids[0], 62)], None), [0, 0, 0, 0, total]);
}

#[test]
fn f28_blame_is_for_what_was_answered() {
    let w = World::new(2);
    let fails = w.go(w.grant(ask(&w, &[])));
    let moved = w.go(granted(w.retry(fails, Failure::Broken)));
    let _ = w.core.abandon(w.now, moved, Abandon::Failed);
    assert_eq!(reuse(&w), Reuse::default());
    // And nothing of it has been seen.
    let (_, _, live) = w.start(ask(&w, &[]));
    w.core.progress(w.now, &live, usage(Some(0)));
    w.finish(live);
    assert_eq!(reuse(&w), Reuse { new: u64::from(TOKENS), ..Reuse::default() });
}

#[test]
fn f28_an_answer_without_usage_is_unknown_once_it_has_ended() {
    let w = World::new(1);
    let (_, _, live) = w.start(ask(&w, &[]));
    assert_eq!(reuse(&w), Reuse::default());
    w.finish(live);
    assert_eq!(reuse(&w), Reuse { unknown: u64::from(TOKENS), ..Reuse::default() });
}

#[test]
fn f28_siblings_of_one_burst_are_news_not_losses() {
    let w = World::new(2);
    let grants = [w.grant(ask(&w, &[])), w.grant(ask(&w, &[]))];
    for grant in grants {
        let (live, _) = w.commit(w.go(grant));
        w.core.progress(w.now, &live, usage(Some(0)));
        w.finish(live);
    }
    assert_eq!(reuse(&w), Reuse { new: 2 * u64::from(TOKENS), ..Reuse::default() });
}
