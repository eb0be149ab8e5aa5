//! R26: every request is counted once, by what happened to its session.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Failure};
use homing_core::settings::OnDown;

/// Holds on one session that leave room for one lease, which it has.
const SHARE: usize = 6;

#[test]
fn r26_every_outcome_is_counted_once_under_its_word() {
    let mut s = settings();
    s.affinity.max_sessions = 3;
    s.affinity.max_parallel = SHARE as u32 + 1;
    s.affinity.on_down = OnDown::Reject;
    let mut w = World::with(s, 4);
    let mut lives = Vec::new();
    let mut seen = Vec::new();
    let mut note = |(live, outcome)| {
        lives.push(live);
        seen.push(outcome);
    };

    note(w.commit(w.go(w.grant(w.plain())))); // none
    let (a, b) = (w.go(w.grant(w.hard("s"))), w.go(w.grant(w.hard("s"))));
    note(w.commit(a)); // new
    note(w.commit(b)); // joined
    note(w.commit(w.go(w.grant(w.hard("s"))))); // hit
    let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken));
    note(w.commit(w.go(moved))); // rebound
    let (a, b) = w.split(w.soft("t"), w.hard("t"));
    let (a, b) = (w.go(a), w.go(b));
    note(w.commit(a)); // new
    note(w.commit(b)); // conflict
    note(w.commit(w.go(w.grant(w.hard("u"))))); // new
    note(w.commit(w.go(w.grant(w.hard("v"))))); // unbound_full
    w.overload(w.home("s").unwrap(), Some(SECOND)); // none: its plain request is refused
    note(w.commit(w.go(w.grant(w.hard("s"))))); // spilled
    let most: Vec<_> = (0..SHARE).map(|_| w.grant(w.hard("u"))).collect();
    note(w.commit(w.go(w.grant(w.hard("u"))))); // surplus
    for grant in most {
        seen.push(w.core.abandon(w.now, grant, Abandon::NotDispatched)); // unbound
    }
    let failed = w.go(w.grant(w.hard("u")));
    seen.push(w.core.abandon(w.now, failed, Abandon::Failed)); // unbound
    w.down(w.home("u").unwrap());
    seen.push(w.refused(w.hard("u")).outcome); // rejected

    use Outcome::*;
    let mut want = vec![None, New, Joined, Hit, Rebound, New, Conflict, New, UnboundFull];
    want.extend([Spilled, Surplus]);
    want.extend([Unbound; SHARE]);
    want.extend([Unbound, Rejected]);
    assert_eq!(seen, want);
    want.push(None);
    for outcome in Outcome::ALL {
        let times = want.iter().filter(|o| **o == outcome).count() as u64;
        assert_eq!(w.outcomes(outcome), times, "{outcome}");
    }
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn r26_the_words_are_those_of_the_contract_in_the_order_of_the_counters() {
    let words: Vec<_> = Outcome::ALL.iter().map(|o| o.word()).collect();
    let contract = "none new joined hit rebound spilled unbound_full conflict surplus unbound \
                    rejected";
    assert_eq!(words.join(" "), contract);
    for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
        assert_eq!(outcome as usize, i);
    }
}

#[test]
fn r26_a_second_selection_is_no_second_request() {
    let mut w = World::new(3);
    let (a, b) = w.split(w.hard("s"), w.hard("s"));
    let (a, _) = w.commit(w.go(a));
    let ask = w.again(b);
    let moved = granted(w.retry(w.go(w.grant(ask)), Failure::Broken));
    let (b, outcome) = w.commit(w.go(moved));
    assert_eq!(outcome, Outcome::Rebound);
    assert_eq!(w.stats().outcomes.iter().sum::<u64>(), 2);
    w.finish(a);
    w.finish(b);
    w.quiesce();
}
