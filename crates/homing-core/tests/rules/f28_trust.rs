//! F28: a prediction that the engine denies costs its index weight, and one that it confirms gives it back.

use super::world::*;
use homing_core::ask::{Ask, Step, Usage};
use homing_core::hash::{HashSpace, Prompt};
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::Overlap;
use homing_core::trust::{Counters, FLOOR, LikelyCause, SUSPECT, Shape, Trust, Turn};

const BLOCK: u32 = 16;
pub(super) const TOKENS: u32 = 1000;

/// A request whose leading blocks these workers hold.
pub(super) fn ask(w: &World, held: &[(WorkerId, u32)]) -> Ask {
    let tokens: Vec<u32> = (0..TOKENS).collect();
    let mut ask = w.plain();
    ask.prompt = Prompt::from_tokens(&tokens, BLOCK, HashSpace::default());
    let overlap = |(worker, blocks): &(WorkerId, u32)| Overlap {
        worker: *worker,
        rank: DpRank(0),
        blocks: *blocks,
        told: *blocks,
        host: 0,
        disk: 0,
    };
    ask.overlaps = held.iter().map(overlap).collect();
    ask
}

pub(super) fn usage(cached: Option<u64>) -> Step {
    Step::Usage(Usage { prompt_tokens: u64::from(TOKENS), cached_tokens: cached })
}

/// So many requests for which the index says 50 blocks of `worker`, and the engine says `cached`.
fn lessons(w: &World, worker: WorkerId, n: usize, cached: u64) -> Vec<Turn> {
    let mut turns = Vec::new();
    for _ in 0..n {
        let (_, _, live) = w.start(at(ask(w, &[(worker, 50)]), &w.name_of(worker), Some(0)));
        turns.extend(w.core.progress(w.now, &live, usage(Some(cached))));
        w.finish(live);
    }
    turns
}

fn ids(w: &World) -> Vec<WorkerId> {
    w.core.workers().iter().map(|v| v.info.id).collect()
}

#[test]
fn f28_a_lying_index_loses_its_weight_by_itself() {
    let w = World::new(2);
    let [liar, honest] = ids(&w)[..] else { panic!("two") };
    let held = [(liar, 50), (honest, 10)];
    assert_eq!(w.start(ask(&w, &held)).0, liar, "as long as it is believed");
    let turns = lessons(&w, liar, 20, 0);
    assert!(matches!(turns[..], [t] if t.lost && t.worker == liar), "{turns:?}");

    let grant = w.grant(ask(&w, &held));
    assert_eq!(grant.worker().id, honest);
    assert_eq!(grant.placement().trust, Trust::FULL);
    let preview = w.core.preview(w.now, &ask(&w, &held)).unwrap();
    let shown: Vec<_> = preview.candidates.iter().map(|(c, _)| (c.overlap, c.trust)).collect();
    assert_eq!(
        (shown[0].0, shown[1]),
        (50, (10, Trust::FULL)),
        "what the index says stays visible"
    );
    assert!(shown[0].1.factor() < 0.1);

    let turns = lessons(&w, liar, 20, 800);
    assert!(matches!(turns[..], [t] if !t.lost && t.worker == liar), "{turns:?}");
    assert_eq!(w.core.preview(w.now, &ask(&w, &held)).unwrap().target.unwrap().worker, liar);
}

#[test]
fn f28_what_is_predicted_is_the_indexs_word_and_load_is_what_is_believed() {
    let w = World::new(1);
    let liar = ids(&w)[0];
    lessons(&w, liar, 1000, 0);
    let grant = w.grant(ask(&w, &[(liar, 50)]));
    let p = *grant.placement();
    assert_eq!((p.overlap_blocks, p.cached_tokens, p.trust.factor()), (50, 800, FLOOR));
    let believed = Trust::of(p.trust, 50);
    let want = u64::from(TOKENS - believed * BLOCK);
    assert_eq!(w.part(liar).load.prefill_tokens, want, "else it would look idle");
}

#[test]
fn f28_silence_and_repetition_say_nothing() {
    let w = World::new(1);
    let worker = ids(&w)[0];
    for _ in 0..50 {
        let (_, _, live) = w.start(ask(&w, &[(worker, 50)]));
        assert_eq!(w.core.progress(w.now, &live, usage(None)), None);
        // Too late: it has said that it doesn't say.
        assert_eq!(w.core.progress(w.now, &live, usage(Some(0))), None);
        w.finish(live);
    }
    let trust = w.view(worker).trust;
    assert_eq!((trust.len(), trust[0].trust, trust[0].checks.unknown), (1, Trust::FULL, 50));
}

#[test]
fn f28_the_engines_counters_speak_where_usage_is_silent() {
    let w = World::new(1);
    let worker = ids(&w)[0];
    let mut queries = 0;
    let mut span = || {
        for _ in 0..4 {
            let (_, _, live) = w.start(ask(&w, &[(worker, 50)]));
            // Half of them have no usage at all.
            if queries % 2 == 0 {
                w.core.progress(w.now, &live, usage(None));
            }
            queries += u64::from(TOKENS);
            w.finish(live);
        }
        assert!(w.core.wants_counters(worker));
        w.core.counted(worker, Counters { hits: 0, queries })
    };
    let turns: Vec<_> = (0..30).flat_map(|_| span()).collect();
    assert!(matches!(turns[..], [t] if t.lost), "{turns:?}");
    assert!(!w.core.wants_counters(worker));
    assert!(w.view(worker).trust[0].trust.factor() < 0.1);
}

#[test]
fn f28_who_tokenizes_otherwise_begins_with_little_trust() {
    let w = World::new(2);
    let [other, same] = ids(&w)[..] else { panic!("two") };
    w.core.tokenized(other, Shape::Chat, false);
    w.core.tokenized(same, Shape::Chat, true);
    let seen = w.view(other).trust[0];
    assert_eq!((seen.trust.factor(), seen.likely_cause), (SUSPECT, Some(LikelyCause::Template)));
    let preview = w.core.preview(w.now, &ask(&w, &[(other, 20), (same, 15)])).unwrap();
    assert_eq!(preview.target.unwrap().worker, same);
    let mut completion = ask(&w, &[(other, 20), (same, 15)]);
    completion.shape = Shape::Completions;
    assert_eq!(w.core.preview(w.now, &completion).unwrap().target.unwrap().worker, other);
}

#[test]
fn f21_f28_another_life_begins_with_full_trust() {
    let mut w = World::new(1);
    let old = ids(&w)[0];
    let (_, _, late) = w.start(ask(&w, &[(old, 50)]));
    lessons(&w, old, 50, 0);
    w.core.uncertain(old, DpRank(0), true);
    let new = w.up("w0", &[MODEL]);
    assert!(w.view(new).trust.is_empty());
    // What the old life says of itself is nobody's any more.
    assert_eq!(w.core.progress(w.now, &late, usage(Some(0))), None);
    w.finish(late);
    w.core.tokenized(old, Shape::Chat, false);
    w.core.uncertain(old, DpRank(0), true);
    w.core.check();
    assert_eq!(w.grant(ask(&w, &[(new, 50)])).placement().trust, Trust::FULL);
}

#[test]
fn f28_sessions_stay_at_home_whatever_is_believed() {
    let w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    lessons(&w, home, 50, 0);
    let mut turn = ask(&w, &[(home, 50)]);
    turn.session = w.hard("s").session;
    assert_eq!(w.turn(turn).0, home);
}
