//! Records of decisions: every request leaves exactly one, whatever becomes of it.

use super::world::*;
use homing_core::affinity::{Outcome, Steer};
use homing_core::ask::{Abandon, Ask, Cause, Failure, Usage};
use homing_core::core::Decision;
use homing_core::explain::record::{Awaited, Failed, Report, Stage};
use homing_core::hash::{HashSpace, Prompt};
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::Overlap;
use homing_core::select::Fit;
use homing_core::settings::{CoreSettings, OnOverload};
use std::time::Duration;

/// The request, with an id.
fn called(mut ask: Ask, id: &str) -> Ask {
    ask.note.id = Some(id.into());
    ask
}

fn record(w: &World, id: &str) -> Decision {
    let found = w.core.decision(id).unwrap();
    let same = |d: &&Decision| d.record.id.as_deref() == Some(id);
    assert_eq!(w.core.decisions(100).iter().filter(same).count(), 1, "one record of {id}");
    found
}

fn stage(w: &World, id: &str) -> Stage {
    record(w, id).record.stage
}

fn complete(usage: Option<Usage>) -> Report {
    Report { stage: Some(Stage::Complete), usage, output_tokens: Some(9) }
}

#[test]
fn a_request_is_recorded_step_by_step() {
    let mut w = World::new(2);
    let mut ask = called(w.hard("s"), "r1");
    ask.note.came = Some(w.now);
    (ask.note.prompt, ask.note.look_up) = (SECOND / 100, SECOND / 1000);
    w.pass(SECOND);
    let grant = w.grant(ask);
    let target = grant.target();
    let first = record(&w, "r1");
    assert_eq!((first.record.stage, first.record.pick), (Stage::Placed, Some(target)));
    assert_eq!((&*first.model, &*first.pool, first.candidates.len()), (MODEL, MODEL, 2));
    assert_eq!(first.record.outcome, Outcome::Unbound, "until it is known");
    w.pass(SECOND);
    let checked = w.go(grant);
    assert_eq!(stage(&w, "r1"), Stage::Dispatched);
    w.pass(SECOND);
    let (mut live, _) = w.commit(checked);
    assert_eq!(stage(&w, "r1"), Stage::Running);
    w.pass(SECOND);
    live.report(complete(None));
    w.finish(live);
    let Decision { record: r, .. } = record(&w, "r1");
    assert_eq!((r.stage, r.outcome, r.steer), (Stage::Complete, Outcome::New, Steer::Free));
    let times = r.times;
    let at = |n: u32| Some(w.now - SECOND * (3 - n));
    assert_eq!((times.came, Some(times.asked)), (Some(w.now - SECOND * 4), at(0)));
    assert_eq!((times.granted, times.dispatched, times.begun), (at(0), at(1), at(2)));
    assert_eq!(times.ended, at(3));
    assert_eq!((times.prompt, times.look_up), (SECOND / 100, SECOND / 1000));
    assert_eq!((r.attempts, r.attempts_kept().count(), r.regret_tokens()), (1, 1, None));
    // The next turn is pinned, and says where its home is.
    w.turn(called(w.hard("s"), "r2"));
    let r = record(&w, "r2").record;
    assert_eq!((r.steer, r.home()), (Steer::Pin(target), Some(target)));
    assert_eq!((r.outcome, r.placement.considered), (Outcome::Hit, 1));
    assert_eq!(r.stage, Stage::Ended, "nobody said how");
    assert_eq!(w.core.decisions(1)[0].record.id.as_deref(), Some("r2"), "the newest first");
    assert!(w.core.decision("r3").is_none());
    w.quiesce();
}

#[test]
fn a_request_that_is_tried_again_has_one_record_with_its_attempts() {
    let w = World::with(CoreSettings { retry_attempts: 6, ..settings() }, 7);
    let mut grant = w.grant(called(w.plain(), "r"));
    let mut tried = Vec::new();
    for _ in 0..5 {
        let checked = w.go(grant);
        tried.push(checked.grant().target());
        grant = granted(w.retry(checked, Failure::Broken));
    }
    let (mut live, _) = w.commit(w.go(grant));
    live.report(complete(None));
    w.finish(live);
    let d = record(&w, "r");
    assert_eq!((d.record.attempts, d.record.stage), (6, Stage::Complete));
    let kept: Vec<_> = d.record.attempts_kept().map(|a| (a.target, a.failure)).collect();
    assert_eq!(kept, tried[..4].iter().map(|t| (*t, Some(Failed::Broken))).collect::<Vec<_>>());
    let failed = d.candidates.iter().filter(|c| c.fit.any(Fit::FAILED)).count();
    assert_eq!((failed, d.record.against[2]), (5, 5), "as the last decision saw them");
    w.quiesce();
}

#[test]
fn refusals_say_why_and_those_after_an_attempt_say_what_was_tried() {
    let w = World::with(CoreSettings { retry_attempts: 0, ..settings() }, 2);
    w.refused(at(called(w.plain(), "unknown"), "w9", None));
    let r = record(&w, "unknown").record;
    assert_eq!((r.stage, r.cause, r.explicit), (Stage::Refused, Some(Cause::UnknownWorker), true));
    assert_eq!((r.pick, r.attempts), (None, 0));
    w.refused(only(called(w.plain(), "nobody"), &["w9"]));
    let d = record(&w, "nobody");
    assert_eq!((d.record.cause, d.record.constrained), (Some(Cause::NoWorker), true));
    assert!(d.candidates.iter().all(|c| c.fit.any(Fit::FORBIDDEN)));
    let checked = w.go(w.grant(called(w.plain(), "spent")));
    let target = checked.grant().target();
    refused(w.retry(checked, Failure::Broken));
    let r = record(&w, "spent").record;
    assert_eq!((r.stage, r.cause, r.pick), (Stage::Refused, Some(Cause::WorkerFailed), None));
    assert_eq!(r.attempts_kept().map(|a| a.target).collect::<Vec<_>>(), [target]);
    w.quiesce();
}

#[test]
fn waiting_is_told_with_its_reason_and_its_length() {
    let mut w = World::with(queueing(2), 1);
    let (_, _, first) = w.start(w.plain());
    let ticket = w.waiting(called(w.plain(), "any"));
    let named = w.waiting(at(called(w.plain(), "named"), "w0", Some(0)));
    w.refused(called(w.plain(), "full"));
    assert_eq!(record(&w, "full").record.cause, Some(Cause::QueueFull));
    let r = record(&w, "any").record;
    assert_eq!(
        (r.stage, r.awaited, r.waiting),
        (Stage::Waiting, Some(Awaited::Anyone), Some(w.now))
    );
    w.pass(SECOND);
    w.core.cancel(w.now, named);
    let r = record(&w, "named").record;
    assert_eq!((r.stage, r.times.waited, r.times.ended), (Stage::ClientGone, SECOND, Some(w.now)));
    assert!(matches!(r.awaited, Some(Awaited::Named(_))));
    w.pass(SECOND);
    w.finish(first);
    let grant = w.claimed(ticket);
    let r = record(&w, "any").record;
    assert_eq!((r.stage, r.times.waited, r.waiting), (Stage::Placed, SECOND * 2, None));
    assert_eq!(r.times.granted, Some(w.now));
    assert!(record(&w, "any").candidates.iter().all(|c| !c.fit.any(Fit::BUSY)), "the last look");
    w.core.abandon(w.now, grant, Abandon::NotDispatched);
    assert_eq!(stage(&w, "any"), Stage::GivenUp);
    // One that waits in vain.
    let (_, _, running) = w.start(w.plain());
    let late = w.waiting(called(w.plain(), "late"));
    w.pass(Duration::from_secs(31));
    w.tick();
    assert_eq!(w.woken(), Some(late.id()));
    refused(w.claim(late));
    let r = record(&w, "late").record;
    assert_eq!((r.cause, r.times.waited), (Some(Cause::Timeout), Duration::from_secs(31)));
    w.finish(running);
    w.quiesce();
}

#[test]
fn waiting_for_home_is_one_record_too() {
    let mut s = settings();
    s.affinity.on_overload = OnOverload::Wait;
    let mut w = World::with(s, 2);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(called(w.hard("s"), "r")));
    let homing_core::ask::Admission::Waiting(ticket) =
        w.retry(checked, Failure::Overloaded(Some(SECOND)))
    else {
        panic!("not waiting")
    };
    let r = record(&w, "r").record;
    assert_eq!((r.awaited, r.attempts, r.stage), (Some(Awaited::Home(home)), 1, Stage::Waiting));
    w.pass(SECOND);
    w.tick();
    let (mut live, _) = w.commit(w.go(w.claimed(ticket)));
    live.report(complete(None));
    w.finish(live);
    let r = record(&w, "r").record;
    assert_eq!((r.attempts, r.times.waited, r.outcome), (2, SECOND, Outcome::Hit));
    let failures: Vec<_> = r.attempts_kept().map(|a| a.failure).collect();
    assert_eq!(failures, [Some(Failed::Overloaded), None]);
    w.quiesce();
}

#[test]
fn what_is_given_up_says_by_whom() {
    let w = World::new(1);
    for (why, want) in [
        (Abandon::NotDispatched, Stage::GivenUp),
        (Abandon::Failed, Stage::Failed),
        (Abandon::ClientGone, Stage::ClientGone),
    ] {
        let checked = w.go(w.grant(called(w.hard("s"), want.word())));
        w.core.abandon(w.now, checked, why);
        let r = record(&w, want.word()).record;
        assert_eq!((r.stage, r.outcome), (want, Outcome::Unbound));
    }
    w.quiesce();
}

#[test]
fn a_session_that_moved_before_the_last_look_has_one_record() {
    let mut w = World::new(3);
    let (a, b) = w.split(w.hard("s"), called(w.hard("s"), "r"));
    let (live, _) = w.commit(w.go(a));
    let again = w.again(b);
    let (other, _) = w.commit(w.go(w.grant(again)));
    w.finish(live);
    w.finish(other);
    assert_eq!(record(&w, "r").record.attempts, 1);
    w.quiesce();
}

#[test]
fn a_preview_leaves_no_record() {
    let w = World::new(2);
    let before = w.core.record_use();
    let _ = w.core.preview(w.now, &called(w.hard("s"), "p"));
    assert_eq!(w.core.record_use(), before);
    assert!(w.core.decision("p").is_none());
}

fn overlap(worker: WorkerId, blocks: u32) -> Overlap {
    Overlap { worker, rank: DpRank(0), blocks, told: blocks, host: 0, disk: 0 }
}

#[test]
fn regret_is_what_the_best_of_those_who_could_have_served_it_held_and_was_not_reused() {
    let mut w = World::new(3);
    let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    w.down(ids[2]);
    let tokens: Vec<u32> = (0..1000).collect();
    let ask = |id: &str| {
        let mut ask = at(called(w.plain(), id), "w0", None);
        ask.prompt = Prompt::from_tokens(&tokens, 16, HashSpace::default());
        // What is down holds more, and is no choice.
        ask.overlaps = [(ids[0], 10), (ids[1], 40), (ids[2], 60)]
            .into_iter()
            .map(|(w, n)| overlap(w, n))
            .collect();
        ask
    };
    let end = |id: &str, usage: Option<Usage>| {
        let (_, _, mut live) = w.start(ask(id));
        live.report(complete(usage));
        w.finish(live);
        record(&w, id).record.regret_tokens()
    };
    let usage = |cached_tokens| Some(Usage { prompt_tokens: 1000, cached_tokens });
    assert_eq!(end("some", usage(Some(160))), Some(640 - 160));
    assert_eq!(end("none", usage(Some(900))), Some(0), "more than anybody promised");
    assert_eq!(end("silent", usage(None)), None, "not said is not 0");
    assert_eq!(end("untold", None), None);
    let r = record(&w, "some").record;
    assert_eq!(r.report.output_tokens, Some(9));
    assert_eq!(r.placement.best_overlap_blocks, 40);
}

#[test]
fn regret_of_a_prompt_that_is_known_by_its_text_is_in_the_engines_tokens() {
    let w = World::new(2);
    let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    let mut ask = at(called(w.plain(), "r"), "w0", None);
    ask.text = Prompt::from_text(&[&[b'x'; 5120]], HashSpace::default());
    (ask.prompt.tokens, ask.prompt.block_size) = (ask.text.tokens, ask.text.block_size);
    ask.overlaps = [overlap(ids[1], 5)].into_iter().collect();
    let (_, _, mut live) = w.start(ask);
    // Half of its text, of which the engine makes twice as many tokens as was guessed.
    let usage = Usage { prompt_tokens: 2560, cached_tokens: Some(0) };
    live.report(complete(Some(usage)));
    w.finish(live);
    assert_eq!(record(&w, "r").record.regret_tokens(), Some(1280));
}
