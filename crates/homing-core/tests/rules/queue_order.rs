//! Who of those that wait is next, what makes a rank busy, and what those are told for whom there is no room.

use super::world::*;
use homing_core::ask::{Abandon, Admission, Ask, Cause, Step, Ticket};
use homing_core::hash::Prompt;
use homing_core::settings::{CoreSettings, QueueSettings};
use std::collections::BTreeMap;
use std::time::Duration;

fn of(w: &World, priority: i32, tenant: u64) -> Ask {
    let mut ask = w.plain();
    (ask.priority, ask.tenant) = (priority, tenant);
    ask
}

/// Serves all who wait, one at a time; in which order.
fn serve_all(
    w: &World,
    mut running: homing_core::ask::Live,
    waiting: Vec<(&str, Ticket)>,
) -> Vec<String> {
    let mut waiting: BTreeMap<_, _> = waiting.into_iter().map(|(n, t)| (t.id(), (n, t))).collect();
    let mut order = Vec::new();
    while !waiting.is_empty() {
        assert_eq!(w.woken(), None, "nobody is woken in vain");
        w.finish(running);
        let (name, ticket) = waiting.remove(&w.woken().expect("somebody's turn")).unwrap();
        order.push(name.to_owned());
        running = w.commit(w.go(granted(w.claim(ticket)))).0;
    }
    w.finish(running);
    order
}

#[test]
fn queue_the_higher_priority_goes_first_and_equals_in_order() {
    let w = World::with(queueing(8), 1);
    let (_, _, running) = w.start(w.plain());
    let come = [("a", 0), ("b", 0), ("low", -5), ("high", 9), ("c", 0), ("higher", i32::MAX)];
    let waiting = come.map(|(name, priority)| (name, w.waiting(of(&w, priority, 0))));
    let order = serve_all(&w, running, waiting.into());
    assert_eq!(order, ["higher", "high", "a", "b", "c", "low"]);
    w.quiesce();
}

#[test]
fn queue_tenants_of_one_priority_take_turns() {
    let w = World::with(queueing(16), 1);
    let (_, _, running) = w.start(w.plain());
    let mut waiting: Vec<_> =
        ["a1", "a2", "a3", "a4"].into_iter().map(|n| (n, w.waiting(of(&w, 0, 1)))).collect();
    waiting.extend(["b1", "b2"].map(|n| (n, w.waiting(of(&w, 0, 2)))));
    waiting.push(("c1", w.waiting(of(&w, 0, 3))));
    let order = serve_all(&w, running, waiting);
    assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
    w.quiesce();
}

#[test]
fn queue_who_leaves_takes_no_turn_of_its_tenant_s() {
    let w = World::with(queueing(16), 1);
    let (_, _, running) = w.start(w.plain());
    let keeper = ("b1", w.waiting(of(&w, 0, 2)));
    for _ in 0..5 {
        w.core.cancel(w.now, w.waiting(of(&w, 0, 1)));
    }
    let waiting = vec![keeper, ("b2", w.waiting(of(&w, 0, 2))), ("a", w.waiting(of(&w, 0, 1)))];
    assert_eq!(serve_all(&w, running, waiting), ["b1", "a", "b2"]);
    w.quiesce();
}

#[test]
fn queue_a_late_one_of_high_priority_is_tried_before_those_who_have_tried() {
    let mut w = World::with(queueing(8), 0);
    w.up("a", &[MODEL, "x-lora"]);
    w.up("b", &[MODEL]);
    let (_, _, on_a) = w.start(w.ask_for("x-lora", None));
    let (_, _, on_b) = w.start(w.plain());
    // These want the one that stays busy, and have seen that the other is not for them.
    let adapters = [0; 2].map(|_| w.waiting(w.ask_for("x-lora", None)));
    w.finish(on_b);
    let mut adapters: BTreeMap<_, _> = adapters.map(|t| (t.id(), t)).into();
    while let Some(id) = w.woken() {
        let Admission::Waiting(again) = w.claim(adapters.remove(&id).unwrap()) else {
            panic!("its worker is busy")
        };
        adapters.insert(again.id(), again);
    }
    // It stands before them, and is not to wait until they may try again.
    let high = w.waiting(of(&w, 1, 0));
    let grant = w.claimed(high);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    for (_, ticket) in adapters {
        w.core.cancel(w.now, ticket);
    }
    w.finish(on_a);
}

#[test]
fn f42_a_full_queue_is_full_for_every_priority() {
    let w = World::with(queueing(1), 1);
    let (_, _, running) = w.start(w.plain());
    let low = w.waiting(of(&w, -1, 0));
    assert_eq!(w.refused(of(&w, i32::MAX, 1)).cause, Cause::QueueFull);
    assert_eq!(serve_all(&w, running, vec![("low", low)]), ["low"]);
    w.quiesce();
}

fn by_prefill(tokens: u64) -> CoreSettings {
    let queue =
        QueueSettings { max_requests: 4, busy_prefill_tokens: tokens, ..QueueSettings::default() };
    CoreSettings { queue, ..settings() }
}

#[test]
fn queue_a_rank_is_busy_with_prefill_until_the_first_token() {
    // Two prompts of 100 tokens are more than 150, and one is not.
    let w = World::with(by_prefill(150), 1);
    let (_, _, a) = w.start(w.plain());
    let (_, _, b) = w.start(w.plain());
    let ticket = w.waiting(w.plain());
    assert_eq!(w.woken(), None);
    w.core.progress(w.now, &a, Step::FirstToken);
    w.core.check();
    let (c, _) = w.commit(w.go(w.claimed(ticket)));
    let [d, e] = [0; 2].map(|_| w.waiting(w.plain()));
    // What ends without a token frees its part, too.
    w.finish(b);
    let grant = w.claimed(d);
    assert_eq!(w.woken(), None, "as busy as before");
    let _ = w.core.abandon(w.now, grant, Abandon::ClientGone);
    let grant = w.claimed(e);
    let _ = w.core.abandon(w.now, grant, Abandon::ClientGone);
    w.finish(a);
    w.finish(c);
    w.quiesce();
}

#[test]
fn queue_a_prompt_longer_than_the_bound_is_served_by_who_is_idle() {
    let w = World::with(by_prefill(150), 1);
    let mut long = w.plain();
    long.prompt = Prompt::of_length(100_000);
    let (_, _, live) = w.start(long);
    let ticket = w.waiting(w.plain());
    w.finish(live);
    let grant = w.claimed(ticket);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn queue_full_says_when_by_how_fast_places_get_free() {
    let mut w = World::with(queueing(3), 1);
    let (_, _, mut running) = w.start(w.plain());
    let mut waiting: Vec<_> = (0..3).map(|_| w.waiting(w.plain())).collect();
    assert_eq!(w.refused(w.plain()).retry_after, None, "nothing is known yet");
    // One ends every two seconds.
    for _ in 0..9 {
        w.pass(SECOND * 2);
        w.finish(running);
        running = w.commit(w.go(w.claimed(waiting.remove(0)))).0;
        waiting.push(w.waiting(w.plain()));
    }
    let refusal = w.refused(w.plain());
    assert_eq!((refusal.cause, refusal.retry_after), (Cause::QueueFull, Some(SECOND * 6)));
    // Nothing ends for a while: then it takes longer than that.
    w.pass(SECOND * 18);
    assert_eq!(w.refused(w.plain()).retry_after, Some(SECOND * 12));
    waiting.into_iter().for_each(|ticket| w.core.cancel(w.now, ticket));
    w.finish(running);
    // Nobody waits any more: an idle hour says nothing of a full one.
    w.pass(Duration::from_secs(3600));
    w.turn(w.plain());
    let (_, _, running) = w.start(w.plain());
    let waiting: Vec<_> = (0..3).map(|_| w.waiting(w.plain())).collect();
    assert_eq!(w.refused(w.plain()).retry_after, Some(SECOND * 12), "as it was then");
    waiting.into_iter().for_each(|ticket| w.core.cancel(w.now, ticket));
    w.finish(running);
    w.quiesce();
}
